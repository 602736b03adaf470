// SPDX-License-Identifier: Apache-2.0
// A GGUF file with nothing but the byte-level BPE tokenizer of a tokenizer.json, so that the pre-tokenizers that have
// only a name in GGUF meet the same texts as their pattern in tokenizer.json.
import fs from "fs";

const kString = 8, kArray = 9, kInt32 = 5;

function number(value, n_bytes) {
  const bytes = Buffer.alloc(n_bytes);
  if (n_bytes === 8) bytes.writeBigUInt64LE(BigInt(value));
  else bytes.writeInt32LE(value);
  return bytes;
}

function string(text) {
  const bytes = Buffer.from(text, "utf8");
  return Buffer.concat([number(bytes.length, 8), bytes]);
}

function array(key, type, items) {
  return [string(key), number(kArray, 4), number(type, 4), number(items.length, 8), ...items];
}

export function writeBpeGguf(file, json, pre) {
  const tokens = [], kinds = [];
  for (const [text, id] of Object.entries(json.model.vocab)) [tokens[id], kinds[id]] = [text, 1];
  for (const {content, id, special} of json.added_tokens) [tokens[id], kinds[id]] = [content, special ? 3 : 4];
  for (let id = 0; id < tokens.length; ++id) {  // ids that nobody uses are padding
    if (tokens[id] === undefined) [tokens[id], kinds[id]] = [`[PAD${id}]`, 5];
  }
  const merges = json.model.merges.map((merge) => (Array.isArray(merge) ? merge.join(" ") : merge));
  fs.writeFileSync(file, Buffer.concat([
    Buffer.from("GGUF"), number(3, 4), number(0, 8), number(5, 8),
    string("tokenizer.ggml.model"), number(kString, 4), string("gpt2"),
    string("tokenizer.ggml.pre"), number(kString, 4), string(pre),
    ...array("tokenizer.ggml.tokens", kString, tokens.map(string)),
    ...array("tokenizer.ggml.token_type", kInt32, kinds.map((kind) => number(kind, 4))),
    ...array("tokenizer.ggml.merges", kString, merges.map(string)),
  ]));
}
