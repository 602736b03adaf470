#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the first inputs of corpus/tokenizer_json_fuzz and corpus/tokenizer_gguf_fuzz."""

import json
import struct

from make_seeds import BOOL, CORPUS, F32, I32, STR, array, gguf, kv, string, u32

BYTE_LEVEL = {
    "added_tokens": [{"id": 5, "content": "<s>", "lstrip": True, "rstrip": True, "single_word": True,
                      "normalized": False, "special": True},
                     {"id": 6, "content": "e\u0301", "normalized": True, "special": False}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"(?i:'s)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]+|\s+(?!\S)|\s+"},
         "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False}]},
    "post_processor": {"type": "TemplateProcessing",
                       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "ignore_merges": True, "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4},
              "merges": ["a b", "Ġ ab"]},
}
SPM = {
    "added_tokens": [{"id": 0, "content": "<unk>", "special": True}, {"id": 1, "content": "<s>", "special": True}],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": "1+"}, "content": "a"}]},
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
              "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "▁": 3, "a": 4, "▁a": 5}, "merges": [["▁", "a"]]},
}
METASPACE = dict(SPM, normalizer=None, pre_tokenizer={"type": "Sequence", "pretokenizers": [
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
    {"type": "Digits", "individual_digits": True},
    {"type": "Split", "pattern": {"String": "b"}, "behavior": "MergedWithNext", "invert": True}]},
    decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"})


def strings(key, texts):
    return array(key, STR, len(texts), b"".join(string(text) for text in texts))


def spm_gguf():
    tokens = ["<unk>", "<s>", "<|end|>", "<0x0A>", "▁", "a", "b", "▁a", "ab", "<|assistant|>", "<|placeholder1|>", "1"]
    kinds = [2, 3, 3, 6, 1, 1, 1, 1, 1, 3, 3, 4]
    scores = [0, 0, 0, 0, -5, -5, -5, -1, -2, 0, 0, 0]
    return gguf([kv("tokenizer.ggml.model", STR, string("llama")), strings("tokenizer.ggml.tokens", tokens),
                 array("tokenizer.ggml.token_type", I32, len(kinds), struct.pack(f"<{len(kinds)}i", *kinds)),
                 array("tokenizer.ggml.scores", F32, len(scores), struct.pack(f"<{len(scores)}f", *scores)),
                 u32("tokenizer.ggml.bos_token_id", 1), u32("tokenizer.ggml.eos_token_id", 2),
                 kv("tokenizer.ggml.add_space_prefix", BOOL, b"\1"),
                 kv("tokenizer.chat_template", STR, string("{{x}}"))])


def bpe_gguf():
    tokens = ["a", "b", "Ġ", "ab", "Ġab", "<|im_end|>", "[PAD]"]
    return gguf([kv("tokenizer.ggml.model", STR, string("gpt2")), kv("tokenizer.ggml.pre", STR, string("qwen2")),
                 strings("tokenizer.ggml.tokens", tokens),
                 array("tokenizer.ggml.token_type", I32, 7, struct.pack("<7i", 1, 1, 1, 1, 1, 3, 5)),
                 strings("tokenizer.ggml.merges", ["a b", "Ġ ab", "ab x"]), u32("tokenizer.ggml.eos_token_id", 5)])


def main():
    seeds = {
        "tokenizer_json_fuzz": {"byte_level": BYTE_LEVEL, "spm": SPM, "metaspace": METASPACE},
        "tokenizer_gguf_fuzz": {"spm": spm_gguf(), "bpe": bpe_gguf()},
    }
    for folder, files in seeds.items():
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            data = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
            (CORPUS / folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
