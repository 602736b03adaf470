#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the first inputs of corpus/mlpackage_fuzz, with an encoder of its own."""
import struct

from make_seeds import CORPUS

F16, F32, I32, BOOL, STRING, I8, U8, U4, U1, U32 = 10, 11, 23, 1, 2, 21, 31, 35, 37, 33
BLOB_CODE = {F16: 1, F32: 2, U8: 3, I8: 4, U1: 9, U4: 11}


def varint(n):
    out = b""
    n &= (1 << 64) - 1
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """A number, or a message or text."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor_type(elem, dims, flexible=False):
    out = field(1, elem) + (field(2, len(dims)) if dims else b"")
    for i, dim in enumerate(dims):
        out += field(3, field(2, b"") if flexible and i == 0 else field(1, field(1, dim)))
    return field(1, out)


def immediate(elem, dims, member, payload):
    return field(2, tensor_type(elem, dims)) + field(3, field(1, field(member, payload)))


def text(value):
    return immediate(STRING, [], 4, field(1, value))


def ints(values):
    return immediate(I32, [len(values)], 2, field(1, b"".join(varint(v) for v in values)))


def integer(value):
    return immediate(I32, [], 2, field(1, varint(value)))


def flag(value):
    return immediate(BOOL, [], 3, field(1, varint(value)))


def half(*values):
    return struct.pack(f"<{len(values)}e", *values)


class Weights:
    """weight.bin."""

    def __init__(self):
        self.data, self.count = b"", 0

    def blob(self, elem, dims, data, file="@model_path/weights/weight.bin"):
        count = 1
        for dim in dims:
            count *= dim
        bits = {U4: 4, U1: 1}.get(elem, 8 * len(data) // count)
        self.data += bytes(-len(self.data) % 64)
        offset = 64 + len(self.data)
        self.data += struct.pack("<IIQQQ", 0xDEADBEEF, BLOB_CODE[elem], len(data), offset + 64, len(data) * 8 - count * bits)
        self.data += bytes(32) + data
        self.count += 1
        return field(2, tensor_type(elem, dims)) + field(5, field(1, file) + field(2, offset))

    def bytes(self):
        return struct.pack("<II", self.count, 2) + bytes(56) + self.data


def const(name, elem, dims, value):
    return field(1, "const") + field(3, named(name, elem, dims)) + field(5, entry("name", text(name))) + \
        field(5, entry("val", value))


def named(name, elem, dims, flexible=False):
    return field(1, name) + field(2, tensor_type(elem, dims, flexible))


def entry(key, value):
    return field(1, key) + field(2, value)


def op(kind, outputs, inputs=(), attributes=()):
    """inputs: (parameter, [names or values])."""
    out = field(1, kind)
    for key, bindings in inputs:
        out += field(2, entry(key, b"".join(field(1, field(1, b) if isinstance(b, str) else field(2, b))
                                            for b in bindings)))
    for output in outputs:
        out += field(3, output)
    out += b"".join(field(5, entry(key, value)) for key, value in attributes)
    return out


def function(opset, inputs, ops, outputs):
    block = b"".join(field(2, name) for name in outputs) + b"".join(field(3, o) for o in ops)
    return b"".join(field(1, i) for i in inputs) + field(2, opset) + field(3, entry(opset, block))


def model(version, functions, default=None):
    description = b""
    if default:
        description = b"".join(field(20, field(1, name)) for name in functions) + field(21, default)
    program = field(1, 1) + b"".join(field(2, entry(name, f)) for name, f in functions.items())
    return field(1, version) + field(2, description) + field(502, program)


def seed(name, spec, weights=None):
    folder = CORPUS / "mlpackage_fuzz"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(struct.pack("<I", len(spec)) + spec + (weights.bytes() if weights else b""))


def conv(weight, weight_op=()):
    fixed = [("strides", [ints([1, 1])]), ("pad", [ints([0] * 4)]), ("dilations", [ints([1, 1])]), ("groups", [integer(1)]),
             ("pad_type", [text("valid")])]
    return list(weight_op) + [op("conv", [named("y", F16, [1, 2, 1, 3])], [("x", ["x"]), ("weight", [weight])] + fixed)]


def main():
    x = named("x", F16, [1, 4, 1, 3])
    w = Weights()
    blob = w.blob(F16, [2, 4, 1, 1], half(*range(8)))
    plain = function("CoreML6", [x], [const("w", F16, [2, 4, 1, 1], blob)] + conv("w"), ["y"])
    seed("conv", model(7, {"main": plain}), w)
    seed("two_functions", model(9, {name: function("CoreML8", [x], conv(blob), ["y"]) for name in ("a", "b")}, "b"), w)

    w = Weights()
    lut = op("constexpr_lut_to_dense", [named("w", F16, [2, 4, 1, 1])],
             [("indices", [w.blob(U4, [2, 4, 1, 1], bytes([0x10, 0x32, 0x54, 0x76]))]),
              ("lut", [w.blob(F16, [1, 1, 1, 1, 16, 1], half(*range(16)))])])
    seed("lut_inputs", model(9, {"main": function("CoreML8", [x], conv("w", [lut]), ["y"])}), w)
    lut = op("constexpr_lut_to_dense", [named("w", F16, [2, 4, 1, 1])], attributes=[
        ("name", text("w")), ("indices", immediate(U8, [2], 7, field(1, bytes([0x1B, 0xE4])))),
        ("lut", immediate(F16, [4], 7, field(1, half(1, 2, 3, 4)))),
        ("shape", immediate(U32, [4], 7, field(1, struct.pack("<4I", 2, 4, 1, 1))))])
    seed("lut_attributes", model(7, {"main": function("CoreML6", [x], conv("w", [lut]), ["y"])}))

    w = Weights()
    affine = op("constexpr_affine_dequantize", [named("w", F16, [2, 4, 1, 1])], attributes=[
        ("quantized_data", w.blob(I8, [2, 4, 1, 1], bytes(range(8)))), ("axis", integer(0)),
        ("zero_point", immediate(I8, [], 7, field(1, b"\1"))), ("scale", w.blob(F16, [2], half(0.5, 2)))])
    seed("affine", model(7, {"main": function("CoreML6", [x], conv("w", [affine]), ["y"])}), w)
    w = Weights()
    mask = w.blob(U1, [2, 4, 1, 1], b"\x92")
    sparse = op("constexpr_sparse_to_dense", [named("w", F16, [2, 4, 1, 1])],
                [("nonzero_data", [w.blob(F16, [3], half(1, 2, 3))]), ("mask", [mask])])
    seed("sparse", model(9, {"main": function("CoreML8", [x], conv("w", [sparse]), ["y"])}), w)

    y = named("y", F16, [1, 4, 1, 3])
    relu = [op("relu", [y], [("x", ["x"])])]
    state = field(1, "x") + field(2, field(5, field(1, tensor_type(F16, [4]))))
    seed("state", model(9, {"main": function("CoreML8", [state], relu, ["y"])}))
    seed("flexible", model(7, {"main": function("CoreML6", [named("x", F16, [1, 4, 1, 3], True)], relu, ["y"])}))
    w = Weights()
    escape = w.blob(F16, [2, 4, 1, 1], half(*range(8)), "@model_path/../../secret")
    seed("escape", model(7, {"main": function("CoreML6", [x], conv(escape), ["y"])}), w)
    defaults = [op("squeeze", [named("s", F16, [4, 3])], [("x", ["x"])]),
                op("reduce_sum", [named("r", F16, [])], [("x", ["s"])]),
                op("mul", [y], [("x", ["x"]), ("y", ["r"])])]
    seed("defaults", model(7, {"main": function("CoreML6", [x], defaults, ["y"])}))
    (CORPUS / "mlpackage_fuzz" / "manifest").write_text(
        '{"fileFormatVersion": "1.0.0", "rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "b/c"}}}')
    npy = b"{'descr': '<f2', 'fortran_order': True, 'shape': (2, 2), }"
    (CORPUS / "mlpackage_fuzz" / "npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(npy)) + npy + half(1, 2, 3, 4))


if __name__ == "__main__":
    main()
