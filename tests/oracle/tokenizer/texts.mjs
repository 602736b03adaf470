// SPDX-License-Identifier: Apache-2.0
// The texts of the tokenizer comparison: real prose, verse, code and other languages, and a nasty generated part.
import fs from "fs";
import path from "path";

// Seeded generator (mulberry32), so that every run compares the same texts.
export function makeRandom(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const below = (n) => Math.floor(next() * n);
  return {below, pick: (list) => list[below(list.length)]};
}

function sourceFiles(folder) {
  return fs.readdirSync(folder, {withFileTypes: true, recursive: true})
      .filter((entry) => entry.isFile() && /\.(cc|h|py|mjs)$/.test(entry.name))
      .map((entry) => path.join(entry.parentPath ?? entry.path, entry.name)).sort();
}

// Cuts a file into texts of 1 to 3 kB at line ends. The last lines of the wanted bytes may be cut anywhere.
function cutLines(text, random) {
  const texts = [];
  let current = "", wanted = 1000 + random.below(2000);
  for (const line of text.split(/(?<=\n)/)) {
    current += line;
    if (current.length < wanted) continue;
    texts.push(current);
    current = "";
    wanted = 1000 + random.below(2000);
  }
  if (current) texts.push(current);
  return texts;
}

// At most `limit` characters of each file. Files of ../shared are read when that folder is there.
export function corpusTexts(root) {
  const random = makeRandom(11);
  const shared = path.join(root, "..", "shared", "data", "corpora");
  const files = [];
  const add = (file, limit) => { if (fs.existsSync(file)) files.push([file, limit]); };
  const heldout = path.join(root, "models", "heldout");
  if (fs.existsSync(heldout)) for (const name of fs.readdirSync(heldout).sort()) add(path.join(heldout, name), 30000);
  for (const file of sourceFiles(path.join(root, "src")).slice(0, 40)) add(file, 8000);
  for (const [name, limit] of [["es_reina_valera_1909.txt", 200000], ["fr_verne_voyage.txt", 200000],
    ["wikitext2.valid.txt", 200000], ["tinyshakespeare.txt", 100000], ["gsm8k_train.jsonl", 150000],
    ["prose_botchan_en.txt", 50000], ["classics/verse_dante_inferno.md", 50000],
    ["classics/prose_austen_emma.md", 100000], ["classics/drama_wilde_earnest.md", 50000]]) {
    add(path.join(shared, name), limit);
  }
  return files.flatMap(([file, limit]) => cutLines(fs.readFileSync(file, "utf8").slice(0, limit), random));
}

// Code point ranges whose characters have kept their properties since Unicode 13, so that engines with different
// tables must agree. Surrogates cannot occur in well-formed text.
const kRanges = [
  [0x00, 0x1f], [0x20, 0x7e], [0x20, 0x7e], [0x7f, 0x9f], [0xa0, 0xff], [0x100, 0x17f], [0x180, 0x24f], [0x250, 0x2af],
  [0x2b0, 0x2ff], [0x300, 0x36f], [0x370, 0x377], [0x388, 0x3ff], [0x400, 0x4ff], [0x531, 0x556], [0x591, 0x5c7],
  [0x5d0, 0x5ea], [0x600, 0x61c], [0x620, 0x6ff], [0x900, 0x97f], [0x985, 0x98c], [0xb85, 0xb8a], [0xe01, 0xe3a],
  [0xf71, 0xf84], [0x1100, 0x11ff], [0x1200, 0x1248], [0x1780, 0x17b3], [0x17b6, 0x17d3], [0x1e00, 0x1eff],
  [0x1f00, 0x1f15], [0x2000, 0x2064], [0x2070, 0x2071], [0x2074, 0x208e], [0x20a0, 0x20bf], [0x20d0, 0x20f0],
  [0x2100, 0x214f], [0x2150, 0x2189], [0x2190, 0x21ff], [0x2200, 0x22ff], [0x2460, 0x24ff], [0x2500, 0x257f],
  [0x2600, 0x26ff], [0x3000, 0x303f], [0x3041, 0x3096], [0x3099, 0x30ff], [0x4e00, 0x9fa5], [0xac00, 0xd7a3],
  [0xe000, 0xe010], [0xf900, 0xfa6d], [0xfb00, 0xfb06], [0xfb1d, 0xfb36], [0xfe00, 0xfe0f], [0xfeff, 0xfeff],
  [0xff01, 0xffbe], [0xfffc, 0xfffd], [0x10000, 0x1000b], [0x10400, 0x1044f], [0x1d15e, 0x1d164], [0x1d400, 0x1d454],
  [0x1f1e6, 0x1f1ff], [0x1f300, 0x1f5ff], [0x1f600, 0x1f64f], [0x1f900, 0x1f978], [0x20000, 0x20010], [0xe0061, 0xe007a],
];

const kSnippets = [
  "👨‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇫🇷🇪🇸", "e\u0301", "a\u0323\u0302", "a\u0302\u0323", "q\u0307\u0323", "\u0301", "\u1100\u1161\u11a8", "가\u11a8", "각",
  "नमस्ते", "สวัสดี", "مرحبا بالعالم", "שָׁלוֹם", "漢字かな交じり文", "한국어", "Ελληνικά", "Русский", "\u212b\u2126", "ﬁ", "ǅ", "ß", "İı",
  "\t", "\t\t", "\r\n", "\r\n\r\n", "\n\n\n", "\r", " \n", "  ", "   ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u2029",
  "\u0000", "\u0007", "\u001b[0m", "\u007f", "\u0085", "\ufeff", "\u202e", "\ufffd", "\u00ad",
  "'s", "'S", "'re", "'LL", "'d've", "’s", "don't", "I'M", "1234567890", "3.14159", "٣٤٥", "½", "Ⅷ", "²", "१२३", "x86_64", "C++20",
  "camelCase", "HTTPServer", "snake_case", "__init__", "#include <x>", "->*", "!==", "/* */", "\\n", "{{}}", "&amp;", "http://a.b/c?d=e&f#g",
  "$$x^2$$", "…", "—", "«»", "。、", "！？", "▁", "▁▁", "Ġ", "Ċ", "<0x0A>", "<0xZZ>", "<|im_start|>", "<|im_end|>", "<think>", "</think>",
  "<|endoftext|>", "<s>", "</s>", "<unk>", "<|end|>", "<|user|>", "<|im_", "|>", "<", "aaaaaaaa", "AAAA", "........", "----", "====", "中中中",
];

export function generatedTexts(n_bytes) {
  const random = makeRandom(12);
  const texts = [];
  let total = 0;
  const character = () => {
    const [low, high] = random.pick(kRanges);
    return String.fromCodePoint(low + random.below(high - low + 1));
  };
  const makers = [
    () => random.pick(kSnippets),
    () => random.pick(kSnippets) + " ",
    () => character(),
    () => character().repeat(1 + random.below(4)),
    () => random.pick(["the", " quick", " Brown", "fox", " 42", "été", " año", "naïve", "int main()"]),
    () => random.pick([" ", "\n", ", ", ". "]),
  ];
  while (total < n_bytes) {
    const wanted = random.pick([1, 2, 5, 20, 100, 400]);
    let text = "";
    for (let i = 0; i < wanted; ++i) text += random.pick(makers)();
    texts.push(text);
    total += Buffer.byteLength(text);
  }
  return texts;
}
