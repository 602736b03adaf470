// SPDX-License-Identifier: Apache-2.0
// Phi-3's tokenizer.json rebuilt from the vocabulary and scores of its GGUF file, by the rules with which Hugging Face
// made the published one from the SentencePiece model (transformers, convert_slow_tokenizer: generate_merges and
// LlamaConverter). No package carries the published file.
import fs from "fs";

const kNumberReaders = {
  0: ["readUInt8", 1], 1: ["readInt8", 1], 2: ["readUInt16LE", 2], 3: ["readInt16LE", 2], 4: ["readUInt32LE", 4],
  5: ["readInt32LE", 4], 6: ["readFloatLE", 4], 7: ["readUInt8", 1], 10: ["readBigUInt64LE", 8], 11: ["readBigInt64LE", 8],
  12: ["readDoubleLE", 8],
};

// The key-value part of a GGUF v3 file.
export function readGgufMetadata(file) {
  const bytes = fs.readFileSync(file);
  let pos = 0;
  const number = (type) => {
    const [method, size] = kNumberReaders[type];
    const value = bytes[method](pos);
    pos += size;
    return value;
  };
  const text = () => {
    const length = Number(number(10));
    pos += length;
    return bytes.toString("utf8", pos - length, pos);
  };
  const value = (type) => {
    if (type === 8) return text();
    if (type !== 9) return number(type);
    const item = number(4), n = Number(number(10));
    return Array.from({length: n}, () => value(item));
  };
  pos = 8;  // magic, version
  number(10);
  const n = Number(number(10)), metadata = {};
  for (let i = 0; i < n; ++i) {
    const key = text();
    metadata[key] = value(number(4));
  }
  return metadata;
}

// Every cut of every token into two tokens; best score first, then shorter left and right halves last.
function generateMerges(vocab, scores) {
  const merges = [];
  for (const [token, id] of vocab) {
    const characters = Array.from(token), local = [];
    for (let i = 1; i < characters.length; ++i) {
      const left = characters.slice(0, i).join(""), right = characters.slice(i).join("");
      if (vocab.has(left) && vocab.has(right)) {
        local.push({left, right, score: scores[id], n_left: i, n_right: characters.length - i});
      }
    }
    local.sort((a, b) => vocab.get(a.left) - vocab.get(b.left) || vocab.get(a.right) - vocab.get(b.right));
    merges.push(...local);
  }
  merges.sort((a, b) => b.score - a.score || b.n_left - a.n_left || b.n_right - a.n_right);
  return merges.map(({left, right}) => [left, right]);
}

const kBaseTokens = 32000;  // what SentencePiece trained; the rest was added

// microsoft/Phi-3-mini-4k-instruct: all added tokens but <|endoftext|> swallow the whitespace after them, so does </s>.
export function makePhi3(gguf) {
  const metadata = readGgufMetadata(gguf);
  const tokens = metadata["tokenizer.ggml.tokens"], kinds = metadata["tokenizer.ggml.token_type"];
  const vocab = new Map(tokens.slice(0, kBaseTokens).map((token, id) => [token, id]));
  const token = (id, special, rstrip) =>
    ({id, content: tokens[id], single_word: false, lstrip: false, rstrip, normalized: false, special});
  const added = [token(0, true, false), token(1, true, false), token(2, false, true)];
  for (let id = kBaseTokens; kinds[id] === 3; ++id) added.push(token(id, true, tokens[id] !== "<|endoftext|>"));
  const text = {Sequence: {id: "A", type_id: 0}};
  return {
    version: "1.0", truncation: null, padding: null, added_tokens: added,
    normalizer: {type: "Sequence", normalizers: [{type: "Prepend", prepend: "▁"}, {type: "Replace", pattern: {String: " "}, content: "▁"}]},
    pre_tokenizer: null,
    post_processor: {type: "TemplateProcessing", single: [text], pair: [text, {Sequence: {id: "B", type_id: 1}}], special_tokens: {}},
    decoder: {type: "Sequence", decoders: [{type: "Replace", pattern: {String: "▁"}, content: " "}, {type: "ByteFallback"}, {type: "Fuse"},
      {type: "Strip", content: " ", start: 1, stop: 0}]},
    model: {type: "BPE", dropout: null, unk_token: "<unk>", continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: true,
      byte_fallback: true, ignore_merges: false, vocab: Object.fromEntries(vocab),
      merges: generateMerges(vocab, metadata["tokenizer.ggml.scores"])},
  };
}
