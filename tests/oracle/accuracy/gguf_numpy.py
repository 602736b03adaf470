# SPDX-License-Identifier: Apache-2.0
"""A GGUF reader in numpy that shares no code with the engine: metadata, and tensors as float64.

Block formats other than plain floats are decoded by llama.cpp's own library, given as `ggml`.
"""
import ctypes
import struct

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# GGUF type id -> (name of the library's decoder, elements per block, bytes per block)
BLOCKS = {
    2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34),
    10: ("q2_K", 256, 84), 11: ("q3_K", 256, 110), 12: ("q4_K", 256, 144), 13: ("q5_K", 256, 176),
    14: ("q6_K", 256, 210), 20: ("iq4_nl", 32, 18), 23: ("iq4_xs", 256, 136), 39: ("mxfp4", 32, 17),
}


class Gguf:
    def __init__(self, path, ggml=None):
        self.bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self.ggml = ggml
        self.position = 0
        magic, version = bytes(self.bytes[:4]), struct.unpack("<I", self.bytes[4:8])[0]
        assert magic == b"GGUF" and version in (2, 3), (magic, version)
        n_tensors, n_metadata = struct.unpack("<QQ", self.bytes[8:24])
        self.position = 24
        self.metadata = {}
        for _ in range(n_metadata):
            key = self._string()
            self.metadata[key] = self._value(self._number("I"))
        self.records = {}
        for _ in range(n_tensors):
            name = self._string()
            n_dims = self._number("I")
            dims = [self._number("Q") for _ in range(n_dims)]
            self.records[name] = (dims[::-1], self._number("I"), self._number("Q"))
        alignment = self.metadata.get("general.alignment", 32)
        self.data_begin = -(-self.position // alignment) * alignment

    def _number(self, code):
        size = struct.calcsize(code)
        value = struct.unpack("<" + code, self.bytes[self.position:self.position + size])[0]
        self.position += size
        return value

    def _string(self):
        n = self._number("Q")
        value = bytes(self.bytes[self.position:self.position + n]).decode("utf-8", "replace")
        self.position += n
        return value

    def _value(self, kind):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            element, n = self._number("I"), self._number("Q")
            return [self._value(element) for _ in range(n)]
        return self._number(SCALARS[kind])

    def __contains__(self, name):
        return name in self.records

    def tensor(self, name):
        """The tensor as float64, outermost dimension first."""
        shape, kind, offset = self.records[name]
        n = int(np.prod(shape))
        begin = self.data_begin + offset
        if kind in (0, 1, 30):
            raw = self.bytes[begin:begin + n * (4 if kind == 0 else 2)]
            if kind == 0:
                flat = raw.view(np.float32)
            elif kind == 1:
                flat = raw.view(np.float16)
            else:
                flat = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            decoder, elems, size = BLOCKS[kind]
            raw = np.ascontiguousarray(self.bytes[begin:begin + n // elems * size])
            flat = np.zeros(n, np.float32)
            decode = getattr(self.ggml, "dequantize_row_" + decoder)
            decode(raw.ctypes.data_as(ctypes.c_void_p), flat.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(n))
        return flat.astype(np.float64).reshape(shape)
