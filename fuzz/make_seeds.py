#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the first inputs of corpus/gguf_fuzz and corpus/safetensors_fuzz: python3 fuzz/make_seeds.py"""

import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"

# name: (id in a tensor record, elements per block, bytes per block), from the GGUF specification
TYPES = {
    "f32": (0, 1, 4), "f16": (1, 1, 2), "bf16": (30, 1, 2), "q8_0": (8, 32, 34), "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24), "q2_k": (10, 256, 84), "q3_k": (11, 256, 110),
    "q4_k": (12, 256, 144), "q5_k": (13, 256, 176), "q6_k": (14, 256, 210), "iq4_nl": (20, 32, 18),
    "iq4_xs": (23, 256, 136), "mxfp4": (39, 32, 17),
}
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def kv(key, kind, payload):
    return string(key) + struct.pack("<I", kind) + payload


def array(key, kind, count, payload):
    return kv(key, ARR, struct.pack("<IQ", kind, count) + payload)


def u32(key, value):
    return kv(key, U32, struct.pack("<I", value))


def tensor(name, dims, kind, offset):
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(records=(), tensors=(), data=b"", version=3, alignment=32):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(records)) + b"".join(records) + b"".join(tensors)
    return out + b"\0" * (-len(out) % alignment) + data


def every_tensor_type():
    tensors, data = [], b""
    for name, (kind, elems, size) in TYPES.items():
        tensors.append(tensor(name, [elems, 2], kind, len(data)))
        data += bytes(i % 256 for i in range(2 * size))
        data += b"\0" * (-len(data) % 32)
    return gguf([kv("general.architecture", STR, string("test"))], tensors, data)


def every_value():
    numbers = [(U8, "<B", 200), (I8, "<b", -2), (U16, "<H", 60000), (I16, "<h", -3), (U32, "<I", 4000000000),
               (I32, "<i", -7), (F32, "<f", 0.5), (U64, "<Q", 1 << 63), (I64, "<q", -5), (F64, "<d", 0.1)]
    records = [kv(f"v{kind}", kind, struct.pack(form, value)) for kind, form, value in numbers]
    records += [array(f"a{kind}", kind, 3, struct.pack(form, value) * 3) for kind, form, value in numbers]
    records += [kv("yes", BOOL, b"\1"), array("flags", BOOL, 2, b"\0\1"), kv("text", STR, string("h\u00e9")),
                array("words", STR, 3, string("a") + string("") + string(b"\xff"))]
    return gguf(records)


def gguf_seeds():
    f32 = tensor("a", [2, 3], 0, 0)
    split = [kv("split.no", U16, b"\0\0"), kv("split.count", U16, b"\3\0"), kv("split.tensors.count", I32, b"\4\0\0\0")]
    big = 1 << 62
    return {
        "every_value": every_value(),
        "every_tensor_type": every_tensor_type(),
        "empty_header": gguf(),
        "version_2": gguf([u32("a", 1)], [f32], b"x" * 32, version=2),
        "version_1": gguf(version=1),
        "big_endian": gguf(version=0x03000000),
        "split": gguf(split, [f32], b"x" * 32),
        "alignment_64": gguf([u32("general.alignment", 64)], [f32, tensor("b", [1], 0, 64)], b"x" * 128, alignment=64),
        "alignment_0": gguf([u32("general.alignment", 0)]),
        "unpadded": gguf([], [f32], b"x" * 24),
        "dim_0": gguf([], [tensor("t", [1, 0], 0, 0)]),
        "dims_5": gguf([], [tensor("t", [1] * 5, 0, 0)], b"x" * 32),
        "wraps": gguf([], [tensor("t", [big + 1], 0, 0), tensor("u", [4], 0, 32)], b"x" * 64),
        "type_255": gguf([], [tensor("t", [32], 255, 0)], b"x" * 64),
        "long_key": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 0xFFFFFFFFFFFF),
        "long_array": gguf([array("a", STR, 1 << 40, b"")]),
        "nested_array": gguf([array("a", ARR, 1, struct.pack("<IQ", U8, 1) + b"\1")]),
        "duplicate_key": gguf([u32("a", 1), u32("a", 2)]),
        "duplicate_tensor": gguf([], [f32, tensor("a", [1], 0, 32)], b"x" * 64),
        "html": b"<!DOCTYPE html><html></html>",
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n",
    }


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    good = {"__metadata__": {"format": "pt"}, "w": entry("F32", [2, 1], 0, 8), "h": entry("F16", [1], 8, 10),
            "b": entry("BF16", [3], 10, 16), "none": entry("F32", [0, 4], 16, 16)}
    index = {"metadata": {"total_size": 8, "x": [[{"y": None}]]}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    return {
        "good": safetensors(good, bytes(range(16))),
        "scalar": safetensors({"s": entry("F32", [], 0, 4)}, b"abcd"),
        "empty": safetensors({}),
        "gap": safetensors({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, b"x" * 12),
        "overlap": safetensors({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, b"x" * 6),
        "negative": safetensors({"a": entry("F32", [1], -4, 0)}),
        "unknown_dtype": safetensors({"a": entry("F13", [1], 0, 1 << 60)}, b"xxxx"),
        "overflow": safetensors({"a": entry("F32", [1 << 62, 4], 0, 4)}, b"xxxx"),
        "duplicate": safetensors(b'{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"a":{}}', b"xx"),
        "deep": safetensors(b'{"a":' + b"[" * 500),
        "index.json": json.dumps(index).encode(),
        "deep.json": b'{"metadata":' + b'{"a":[' * 200,
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n",
    }


def main():
    for name, seeds in (("gguf_fuzz", gguf_seeds()), ("safetensors_fuzz", safetensors_seeds())):
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed, data in seeds.items():
            (folder / seed).write_bytes(data)


if __name__ == "__main__":
    main()
