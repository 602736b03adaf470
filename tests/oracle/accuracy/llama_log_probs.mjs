// SPDX-License-Identifier: Apache-2.0
// llama.cpp's log p(next token) after each token, f32 keys and values, no flash attention; raw f32 to MODEL.llama.
// usage: node llama_log_probs.mjs NODE_MODULES TOKEN,TOKEN,... CONTEXT MODEL...
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import fs from "node:fs";
import path from "node:path";

const [nodeModules, tokenList, contextSize, ...modelPaths] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(nodeModules), "x.js"));
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(require.resolve("node-llama-cpp")).href);

const llama = await getLlama({
    gpu: false, build: "never", skipDownload: true, usePrebuiltBinaries: true, maxThreads: 2, logLevel: LlamaLogLevel.error
});
const tokens = tokenList.split(",").map(Number);
const plain = {temperature: 1, topK: 0, topP: 1, minP: 0, seed: 1}; // the softmax of the raw logits

for (const modelPath of modelPaths) {
    const model = await llama.loadModel({modelPath, defaultContextFlashAttention: false});
    const context = await model.createContext({
        contextSize: Number(contextSize), batchSize: 512, threads: 2, sequences: 1, flashAttention: false,
        experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"
    });
    const results = await context.getSequence().controlledEvaluate(
        tokens.map((token) => [token, {generateNext: {probabilities: true, options: plain}}]));
    const rows = results.map(({next: {probabilities}}) => {
        const row = new Float32Array(probabilities.size);
        for (const [token, p] of probabilities)
            row[token] = Math.log(p);
        return Buffer.from(row.buffer);
    });
    fs.writeFileSync(modelPath + ".llama", Buffer.concat(rows));
    await context.dispose();
    await model.dispose();
}
await llama.dispose();
process.exit(0);
