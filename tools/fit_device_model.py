#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the cost model's parameters to published measurements; docs/device_model.md says what the model is.

    tools/fit_device_model.py                   prints the rows of src/npu/spec_fit.inc and the errors of both halves
    tools/fit_device_model.py --write           writes that file
    tools/fit_device_model.py --check [NPUMOE]  exit 1 unless that file is what the data give, to 2 %, and `npumoe estimate`
                                                says of every row what the fit does

Only rows marked `fit` are looked at. Every parameter has a prior, what the generation's other chips or its rated speed
suggest, and a width; the data move it from there as far as they say something. A Cauchy loss keeps single odd rows from
pulling. There is no parameter of a row. Needs numpy (python3-numpy); exit 77 without it.
"""
import json
import pathlib
import re
import subprocess
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data/npu/published.json"
TABLE = ROOT / "src/npu/spec_fit.inc"

CHIPS = ["m1", "m1-pro", "m1-max", "m1-ultra", "m2", "m2-pro", "m2-max", "m2-ultra", "m3", "m3-pro", "m3-max", "m3-ultra",
         "m4", "m4-pro", "m4-max", "m5", "m5-pro", "m5-max"]
BITS = {"fp16": 16, "int8": 8, "w8a8": 8, "lut8": 8, "lut6": 6, "lut4": 4}
UNFOLDS_INT8 = {"m1", "m5"}   # generations whose rows show no gain from int8 weights
INT8_ARITHMETIC = {"m4": 1.88, "m5": 1.88}
SURFACE_RATE = 60.0           # GB/s, assumed: inputs and outputs through Core ML
SIGMA = 0.12                  # relative error of a row that is no surprise

# Shared: rows at half rate, GB/s of unpacking palettes (as fp16), times the scores of attention move.
SHARED_PRIOR, SHARED_WIDTH = np.log([40.0, 270.0, 4.0]), np.array([0.7, 0.5, 0.3])
# By chip: TFLOP/s, weights GB/s, floor of the direct path ms, of Core ML ms, host copies GB/s, on-chip MB.
FIELDS = ["tflops", "weight_gbps", "direct_ms", "coreml_ms", "host_copy_gbps", "on_chip_mb"]
# What a generation's chips have in common may differ from the prior by this much, one chip from its generation by that.
COMMON_WIDTH = np.array([0.12, 0.05, 0.2, 0.3, 0.4, 0.4])
WIDTH = np.array([0.08, 0.2, 0.2, 0.3, 0.6, 0.25])
TFLOPS = {"m1": 11.0, "m2": 14.0, "m3": 16.8, "m4": 18.6, "m5": 17.0}
HOST_COPY = {"m1": 5.0, "m2": 7.0, "m3": 10.0, "m4": 18.0, "m5": 30.0}


ON_CHIP = 1.5                 # MB, below the compiler's 2 MB for the largest resident operand
GENERATIONS = ["m1", "m2", "m3", "m4", "m5"]


def generation(chip):
    return chip[:2]


def prior(chip):
    family = generation(chip)
    wide = family not in ("m1", "m2") and chip != family  # Pro and up stream twice as fast from M3 on
    direct = {"m1": 0.19, "m5": 0.09}.get(family, 0.12)
    return np.log([TFLOPS[family], 120.0 if wide else 62.0, direct, direct + 0.08, HOST_COPY[family], ON_CHIP])


def products(row):
    """[rows, in, out, times] of every product of a row; attention is [tokens, context, heads, kv heads, head dim]."""
    found = []
    for shape in row["shape"].split(","):
        dims, _, times = shape.partition("*")
        dims, times = [int(d) for d in dims.split("x")], int(times or 1)
        if row["op"] == "attention":
            return [dims]
        if row["op"] == "gemv" and len(dims) == 2:
            dims = [1] + dims
        rows, inner, outer = dims
        if row["op"] == "swiglu":
            found += [(rows, inner, outer, 2 * times), (rows, outer, inner, times)]
        else:
            found.append((rows, inner, outer, times))
    return found


def work(row, half_rows, on_chip, score_moves):
    """What src/npu/cost.cc counts: flops at full rate, bytes of weights, unpacked, moved again, in and out, flops."""
    family, weights = generation(row["chip"]), row["weights"]
    shapes = products(row)
    if row["op"] == "attention":
        tokens, context, heads, kv_heads, dim = shapes[0]
        flops = 4.0 * tokens * context * heads * dim
        io = 4.0 * dim * (tokens * heads + context * kv_heads)
        rows = tokens * heads / kv_heads  # heads that share a key head stand together
        keys = 2.0 * dim * context
        moved = sum(kv_heads * min(keys * max(0, 2.0 * rows * inner / on_chip - 1), 2.0 * rows * inner *
                                   max(0, keys / on_chip - 1)) for inner in (dim, context))
        moved += score_moves * 2.0 * tokens * context * heads
        return flops * (1 + half_rows / rows), 0.0, 0.0, moved, io, flops
    bits = 16 if weights == "int8" and family in UNFOLDS_INT8 else BITS[weights]
    full = stored = unpacked = moved = total = 0.0
    for rows, inner, outer, times in shapes:
        flops = 2.0 * rows * inner * outer * times
        total += flops
        full += flops * (1 + half_rows / rows) / (INT8_ARITHMETIC.get(family, 1) if weights == "w8a8" else 1)
        own, dense, x = inner * outer * bits / 8, inner * outer * 2.0, rows * inner * 2.0
        stored += times * own
        unpacked += times * dense if weights.startswith("lut") else 0
        moved += times * min(own * max(0, x / on_chip - 1), x * max(0, dense / on_chip - 1))
    last = shapes[-1]
    io = (1 if weights == "w8a8" else 2) * shapes[0][0] * (shapes[0][1] + last[2])
    return full, stored, unpacked, moved, io, total


def predict(row, shared, chip):
    """Milliseconds."""
    half_rows, unpack, score_moves = shared
    tflops, stream, direct, coreml, host_copy, on_chip = chip
    full, stored, unpacked, moved, io, _ = work(row, half_rows, on_chip * 1e6, score_moves)
    core = row["path"] == "coreml"
    busy = max(full / tflops / 1e9, stored / stream / 1e6, unpacked / unpack / 1e6) + moved / stream / 1e6
    return (coreml if core else direct) + busy + io / (SURFACE_RATE if core else host_copy) / 1e6


class Fit:
    def __init__(self, rows):
        self.rows = [r for r in rows if r["split"] == "fit" and r["path"] != "cpu"]
        n = len(FIELDS)
        self.n_shared, self.n_common = len(SHARED_PRIOR), n * len(GENERATIONS)
        # Shared parameters, then logarithmic steps from the prior: of generations, of chips.
        self.start = np.concatenate([SHARED_PRIOR, np.zeros(self.n_common + n * len(CHIPS))])
        self.width = np.concatenate([SHARED_WIDTH] + [COMMON_WIDTH] * len(GENERATIONS) + [WIDTH] * len(CHIPS))
        self.x = self.solve()

    def own(self, name):
        """Where the parameters of one chip begin."""
        return self.n_shared + self.n_common + len(FIELDS) * CHIPS.index(name)

    def chip(self, x, name):
        n, common = len(FIELDS), self.n_shared + len(FIELDS) * GENERATIONS.index(generation(name))
        return np.exp(prior(name) + x[common:common + n] + x[self.own(name):self.own(name) + n])

    def predict(self, row, x=None):
        x = self.x if x is None else x
        return predict(row, np.exp(x[:self.n_shared]), self.chip(x, row["chip"]))

    def surprises(self, x):
        return np.array([np.log(self.predict(r, x) / r["ms"]) for r in self.rows]) / SIGMA

    def residuals(self, x):
        e = self.surprises(x)
        return np.concatenate([np.sign(e) * np.sqrt(np.log1p(e * e)), (x - self.start) / self.width])

    def jacobian(self, x, f, of):
        step = 1e-4
        return np.array([(of(x + step * unit) - f) / step for unit in np.eye(len(x))]).T

    def solve(self):
        """Levenberg-Marquardt."""
        x, damping = self.start, 1e-2
        f = self.residuals(x)
        for _ in range(200):
            j = self.jacobian(x, f, self.residuals)
            while damping < 1e8:
                dx = np.linalg.solve(j.T @ j + damping * np.eye(len(x)), -j.T @ f)
                new = self.residuals(x + dx)
                if new @ new < f @ f:
                    break
                damping *= 4
            if damping >= 1e8 or f @ f - new @ new < 1e-9:
                break
            x, f, damping = x + dx, new, max(damping / 3, 1e-6)
        return x

    def informed(self):
        """Whether the rows say more than the prior, parameter by parameter."""
        j = self.jacobian(self.x, self.surprises(self.x), self.surprises)
        return (j * j).sum(axis=0) * np.concatenate([SHARED_WIDTH, np.ones(len(self.x) - self.n_shared) * 0.3]) ** 2 > 1

    def power(self):
        """W, W s/TFLOP, W s/GB by generation: ridge towards the prior, from rows with energy."""
        priors = {"m1": (1.08, 0.54, 0.006), "m2": (1.4, 0.48, 0.014), "m3": (0.9, 0.58, 0.014), "m4": (0.4, 0.68, 0.014),
                  "m5": (1.9, 0.57, 0.014)}
        found = {}
        for family, values in priors.items():
            p = np.array(values)
            a, b = [np.diag(1 / (0.4 * p))], [np.ones(3) / 0.4]
            for r in self.rows:
                if generation(r["chip"]) != family or "mj" not in r:
                    continue
                shared, chip = np.exp(self.x[:self.n_shared]), self.chip(self.x, r["chip"])
                _, stored, _, moved, _, flops = work(r, shared[0], chip[5] * 1e6, shared[2])
                watts = r["mj"] / r["ms"]
                line = np.array([[1.0, flops / r["ms"] / 1e9, (stored + moved) / r["ms"] / 1e6]])
                a.append(line / (0.15 * watts))
                b.append(np.array([watts / (0.15 * watts)]))
            n = len(a) - 1
            solved = np.linalg.lstsq(np.concatenate(a), np.concatenate(b), rcond=None)[0]
            found[family] = (np.maximum(solved, 0.02 * p), n)
        return found

    def table(self):
        lines = ["// Written by tools/fit_device_model.py from the rows marked `fit` of tests/data/npu/published.json. " +
                 "Do not edit."]
        shared, known = np.exp(self.x[:self.n_shared]), self.informed()
        lines.append("constexpr SharedFit kSharedFit{%.1f, %.0f, %.2f};" % tuple(shared))
        lines.append("constexpr PowerFit kPowerFit[] = {")
        for family, (watts, n) in self.power().items():
            lines.append('    {"%s", %.2f, %.3f, %.4f, %d},' % (family, *watts, n))
        lines.append("};")
        lines.append("constexpr ChipFit kChipFit[] = {")
        for chip in CHIPS:
            at = self.own(chip)
            values = ", ".join(f"{{{v:.3g}, {'true' if k else 'false'}}}"
                               for v, k in zip(self.chip(self.x, chip), known[at:at + len(FIELDS)]))
            n = sum(r["chip"] == chip for r in self.rows)
            lines.append(f'    {{"{chip}", {n}, {values}}},')
        return "\n".join(lines + ["};"]) + "\n"


def errors(fit, rows, split):
    by_class = {}
    for row in rows:
        if row["split"] == split and row["path"] != "cpu":
            error = abs(fit.predict(row) / row["ms"] - 1)
            by_class.setdefault("all", []).append(error)
            by_class.setdefault(row["class"], []).append(error)
    return "\n".join(f"{split:6} {name:10} n {len(e):3}  median {100 * np.median(e):5.1f} %  "
                     f"p90 {100 * np.quantile(e, 0.9):5.1f} %" for name, e in by_class.items())


def same(a, b):
    """Whether two tables agree: words exactly, numbers to 2 %."""
    split = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
    if split.sub("#", a) != split.sub("#", b):
        return False
    return all(abs(float(x) - float(y)) <= 0.02 * abs(float(y)) + 1e-9 for x, y in zip(split.findall(a), split.findall(b)))


def strays(fit, rows, program):
    """Rows of which the program says something else than this file's copy of its model."""
    found = []
    for r in rows:
        if r["path"] == "cpu":
            continue
        done = subprocess.run([program, "estimate", "--npu", r["chip"], "--op", r["op"], "--shape", r["shape"], "--weights",
                               r["weights"], "--path", r["path"], "--json"], capture_output=True, check=True, timeout=60)
        said, wanted = json.loads(done.stdout)["ms"], fit.predict(r)
        if abs(said / wanted - 1) > 0.02:
            found.append(f"{r['chip']} {r['op']} {r['shape']} {r['weights']}: {said:.4g} ms, the fit says {wanted:.4g}")
    return found


def main():
    rows = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    fit = Fit(rows)
    table = fit.table()
    if "--write" in sys.argv[1:]:
        TABLE.write_text(table, encoding="utf-8")
    if "--check" in sys.argv[1:]:
        if not same(TABLE.read_text(encoding="utf-8"), table):
            print(f"{TABLE.name}: not what the data give, wanted\n{table}")
            return 1
        found = strays(fit, rows, sys.argv[-1]) if sys.argv[-1] != "--check" else []
        print("\n".join(found) if found else f"{TABLE.name} is what the data give")
        return 1 if found else 0
    print(table)
    print(errors(fit, rows, "fit"))
    print(errors(fit, rows, "judge"))
    if "--rows" in sys.argv[1:]:
        for r in rows:
            if r["path"] == "cpu":
                continue
            p = fit.predict(r)
            print(f"{r['split']:8} {r['class']:9} {r['chip']:8} {r['shape'][:44]:44} {r['weights']:5} {r['ms']:9.3f} {p:9.3f} {100 * p / r['ms'] - 100:+5.0f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
