// SPDX-License-Identifier: Apache-2.0
// llama.cpp's speed on one model as JSON: prefill of every length and decode in tokens per second, and seconds from
// opening the file to the first token (without the start of Node). Decode evaluates known tokens one at a time, without
// sampling, as llama-bench does; JavaScript's own cost is in it and is largest for small models.
// usage: node llama_speed.mjs NODE_MODULES MODEL THREADS N_PROMPT[,N_PROMPT...] N_DECODE DEPTH[,DEPTH...]
// A depth is how many tokens are in the context before.
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import path from "node:path";

const [nodeModules, modelPath, threads, prompts, nDecode, depthList] = process.argv.slice(2);
const lengths = prompts.split(",").map(Number), depths = depthList.split(",").map(Number);
const require = createRequire(path.join(path.resolve(nodeModules), "x.js"));
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(require.resolve("node-llama-cpp")).href);

const llama = await getLlama({
    gpu: false, build: "never", skipDownload: true, usePrebuiltBinaries: true, maxThreads: Number(threads),
    logLevel: LlamaLogLevel.error
});
// Ids that the smallest vocabulary in use has (8192); none twice in 7681.
const tokens = (n) => Array.from({length: n}, (_, i) => 300 + (i * 7919) % 7681);
const begin = performance.now();
const model = await llama.loadModel({modelPath});
const context = await model.createContext({
    contextSize: Math.max(...depths) + Math.max(...lengths) + Number(nDecode) + 64, batchSize: 512, threads: Number(threads), sequences: 1
});
const sequence = context.getSequence();
await sequence.evaluateWithoutGeneratingNewTokens(tokens(1));
const firstToken = (performance.now() - begin) / 1e3;

await sequence.evaluateWithoutGeneratingNewTokens(tokens(32)); // warm-up
// Tokens per second, averaged over repetitions: three, or one where `depth` tokens have to be read before each.
async function speed(n, depth, evaluate) {
    const repetitions = depth > 0 ? 1 : 3;
    let seconds = 0;
    for (let i = 0; i < repetitions; ++i) {
        await sequence.clearHistory();
        if (depth > 0) await sequence.evaluateWithoutGeneratingNewTokens(tokens(depth));
        const start = performance.now();
        await evaluate();
        seconds += (performance.now() - start) / 1e3;
    }
    return n * repetitions / seconds;
}
const prefill = {}, decode = {};
for (const depth of depths) {
    for (const length of lengths) {
        prefill[`${depth} ${length}`] = await speed(
            length, depth, () => sequence.evaluateWithoutGeneratingNewTokens(tokens(length)));
    }
    decode[depth] = await speed(Number(nDecode), depth, async () => {
        for (const token of tokens(Number(nDecode)))
            await sequence.evaluateWithoutGeneratingNewTokens([token]);
    });
}
console.log(JSON.stringify({prefill, decode, firstToken}));
await llama.dispose();
process.exit(0);
