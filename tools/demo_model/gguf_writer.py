# SPDX-License-Identifier: Apache-2.0
"""Writes GGUF version 3 files: keys, then tensors as float32 or Q8_0."""

import struct

import numpy as np

ALIGNMENT = 32
F32, Q8_0 = 0, 8                       # ggml tensor types
U32, I32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # value types


def quantize_q8_0(x):
    """Blocks of 32 along the last axis: float16 scale amax / 127, then 32 int8, rounded half away
    from zero by the float32 reciprocal, as llama.cpp does."""
    blocks = np.ascontiguousarray(x, dtype=np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse
    q = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled).astype(np.int8)
    return np.concatenate([scale.astype(np.float16).view(np.int8), q], 1).tobytes()


def dequantize_q8_0(data, shape):
    raw = np.frombuffer(data, np.int8).reshape(-1, 34)
    scale = raw[:, :2].copy().view(np.float16).astype(np.float32)
    return (raw[:, 2:] * scale).reshape(shape)


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


class GgufWriter:
    def __init__(self):
        self.keys, self.tensors = [], []

    def u32(self, key, value):
        self._key(key, U32, struct.pack("<I", value))

    def f32(self, key, value):
        self._key(key, FLOAT32, struct.pack("<f", value))

    def flag(self, key, value):
        self._key(key, BOOL, struct.pack("<?", value))

    def string(self, key, value):
        self._key(key, STRING, _string(value))

    def strings(self, key, values):
        self._key(key, ARRAY, struct.pack("<IQ", STRING, len(values))
                  + b"".join(map(_string, values)))

    def i32s(self, key, values):
        self._key(key, ARRAY, struct.pack(f"<IQ{len(values)}i", I32, len(values), *values))

    def tensor(self, name, x, kind):
        """`x` is [..., out, in]; GGUF lists the extents innermost first."""
        data = quantize_q8_0(x) if kind == Q8_0 else np.ascontiguousarray(x, np.float32).tobytes()
        self.tensors.append((name, x.shape[::-1], kind, data))

    def write(self, path):
        head = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.keys)), *self.keys]
        offset = 0
        for name, extents, kind, data in self.tensors:
            head.append(_string(name) + struct.pack(f"<I{len(extents)}Q", len(extents), *extents)
                        + struct.pack("<IQ", kind, offset))
            offset += len(data) + -len(data) % ALIGNMENT
        with open(path, "wb") as f:
            f.write(b"".join(head))
            f.write(b"\0" * (-f.tell() % ALIGNMENT))
            for *_, data in self.tensors:
                f.write(data + b"\0" * (-len(data) % ALIGNMENT))

    def _key(self, key, kind, data):
        self.keys.append(_string(key) + struct.pack("<I", kind) + data)
