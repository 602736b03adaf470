# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE with the qwen2 pre-tokenizer: training, encoding, decoding, a JSON file."""

import collections
import heapq
import json

import regex

# llama.cpp's pre = "qwen2"; every digit is a token of its own.
SPLIT = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPECIAL_SPLIT = regex.compile("(" + "|".join(regex.escape(s) for s in SPECIAL) + ")")


def _byte_letters():
    """GPT-2's printable letter for each byte: GGUF stores token texts in this alphabet."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {b: chr(b) for b in plain}, 0
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + extra)
            extra += 1
    return letters


BYTE_LETTER = _byte_letters()
LETTER_BYTE = {letter: byte for byte, letter in BYTE_LETTER.items()}


class Tokenizer:
    def __init__(self, tokens, merges):
        self.tokens, self.merges = tokens, merges
        self.ids = {t: i for i, t in enumerate(tokens)}
        self.ranks = {tuple(m): r for r, m in enumerate(merges)}
        self._cache = {}

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as f:
            stored = json.load(f)
        return cls(stored["tokens"], [tuple(m) for m in stored["merges"]])

    def save(self, path):
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"tokens": self.tokens, "merges": self.merges}, f, ensure_ascii=False)

    def id_of(self, special):
        return self.ids[special]

    def encode(self, text):
        """Ids of `text`; the special tokens are recognised wherever they stand."""
        out = []
        for part in SPECIAL_SPLIT.split(text):
            if part in SPECIAL:
                out.append(self.ids[part])
            else:
                for word in SPLIT.findall(part):
                    out.extend(self._encode_word(word))
        return out

    def decode(self, ids):
        data = bytearray()
        for i in ids:
            token = self.tokens[i]
            data += token.encode() if token in SPECIAL else bytes(LETTER_BYTE[c] for c in token)
        return data.decode("utf-8", errors="replace")

    def _encode_word(self, word):
        known = self._cache.get(word)
        if known is not None:
            return known
        parts = [BYTE_LETTER[b] for b in word.encode()]
        while len(parts) > 1:
            rank, at = min((self.ranks.get((a, b), 1 << 30), i)
                           for i, (a, b) in enumerate(zip(parts, parts[1:])))
            if rank == 1 << 30:
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        ids = self._cache[word] = [self.ids[p] for p in parts]
        return ids


def train(word_counts, vocab_size):
    """BPE over `word_counts` (text of a pre-token -> weight). Ties go to the smaller pair, so that
    the same counts give the same vocabulary everywhere."""
    words = [[BYTE_LETTER[b] for b in w.encode()] for w in word_counts]
    weights = list(word_counts.values())
    pair_weight, pair_words = collections.Counter(), collections.defaultdict(set)
    for index, parts in enumerate(words):
        for pair in zip(parts, parts[1:]):
            pair_weight[pair] += weights[index]
            pair_words[pair].add(index)
    heap = [(-weight, pair) for pair, weight in pair_weight.items()]
    heapq.heapify(heap)
    tokens = [BYTE_LETTER[b] for b in range(256)]
    merges = []
    while len(tokens) + len(SPECIAL) < vocab_size and heap:
        weight, pair = heapq.heappop(heap)
        if pair_weight[pair] != -weight:  # an older entry: the pair was pushed again since
            continue
        merged = pair[0] + pair[1]
        merges.append(pair)
        tokens.append(merged)
        touched = set()
        for index in pair_words.pop(pair):
            parts, i = words[index], 0
            for old in zip(parts, parts[1:]):
                pair_weight[old] -= weights[index]
                touched.add(old)
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == pair:
                    parts[i:i + 2] = [merged]
                i += 1
            for new in zip(parts, parts[1:]):
                pair_weight[new] += weights[index]
                pair_words[new].add(index)
                touched.add(new)
        touched.discard(pair)
        pair_weight[pair] = 0
        for changed in touched:
            if pair_weight[changed] > 0:
                heapq.heappush(heap, (-pair_weight[changed], changed))
    return Tokenizer(tokens + SPECIAL, merges)
