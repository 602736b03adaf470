// SPDX-License-Identifier: Apache-2.0
// Multiple choice scored with llama.cpp: its tokenizer, its log-probabilities, and a reading of the files of its own. Prints
// one JSON array per item: [sum, tokens] per ending. f32 keys and values, no flash attention.
// usage: node llama_choices.mjs NODE_MODULES MODEL CONTEXT SHOTS hellaswag|jsonl FILE N_ITEMS
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import fs from "node:fs";
import path from "node:path";

const [nodeModules, modelPath, contextSize, nShots, kind, file, nItems] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(nodeModules), "x.js"));
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(require.resolve("node-llama-cpp")).href);

function readItems() {
    const lines = fs.readFileSync(file, "utf8").split("\n").map((line) => line.trim());
    if (kind === "hellaswag") {
        const items = [];
        for (let i = 0; i + 5 < lines.length; i += 6)
            items.push({context: lines[i], gold: Number(lines[i + 1]), endings: lines.slice(i + 2, i + 6)});
        return items;
    }
    return lines.filter((line) => line !== "").map((line) => {
        const {query, choices, gold} = JSON.parse(line);
        return {context: `${query.trim()}\nAnswer:`, gold, endings: choices.map((choice) => choice.trim())};
    });
}

const items = readItems();
const solved = ({context, endings, gold}) => `${context} ${endings[gold]}`;
const promptOf = (index) => [
    ...items.filter((_, other) => other !== index).slice(0, Number(nShots)).map(solved), items[index].context
].join("\n\n");

const llama = await getLlama({
    gpu: false, build: "never", skipDownload: true, usePrebuiltBinaries: true, maxThreads: 2, logLevel: LlamaLogLevel.error
});
const model = await llama.loadModel({modelPath, defaultContextFlashAttention: false});
const context = await model.createContext({
    contextSize: Number(contextSize), batchSize: 512, threads: 2, sequences: 1, flashAttention: false,
    experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"
});
const sequence = context.getSequence();
const plain = {temperature: 1, topK: 0, topP: 1, minP: 0, seed: 1}; // the softmax of the raw logits
const start = model.tokens.shouldPrependBosToken ? [model.tokens.bos] : [];
const tokenize = (text) => [...start, ...model.tokenize(text, false)];

for (let index = 0; index < Number(nItems); index++) {
    const prompt = promptOf(index), before = tokenize(prompt), scores = [];
    let shared = 0; // leading tokens that all endings so far begin with
    for (const ending of items[index].endings) {
        const all = tokenize(`${prompt} ${ending}`);
        let split = 0;
        while (split < before.length && before[split] === all[split])
            split++;
        // What an ending's tokens begin with before the split is in the cache since the first ending.
        const kept = scores.length > 0 ? Math.min(split - 1, shared) : 0;
        await sequence.eraseContextTokenRanges([{start: kept, end: sequence.nextTokenIndex}]);
        shared = scores.length > 0 ? Math.min(shared, split - 1) : split - 1;
        const results = await sequence.controlledEvaluate(all.slice(kept, -1).map(
            (token, i) => kept + i + 1 < split ? token : [token, {generateNext: {probabilities: true, options: plain}}]));
        let sum = 0;
        for (let i = split; i < all.length; i++)
            sum += Math.log(results[i - 1 - kept].next.probabilities.get(all[i]));
        scores.push([sum, all.length - split]);
    }
    console.log(JSON.stringify(scores));
}
await context.dispose();
await model.dispose();
await llama.dispose();
process.exit(0);
