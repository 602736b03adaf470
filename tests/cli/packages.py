# SPDX-License-Identifier: Apache-2.0
"""npumoe exec, and npumoe info of Core ML packages."""
import json
import os
import struct
import sys

import numpy as np

from harness import ROOT, Case, npumoe

sys.path.insert(0, str(ROOT / "fuzz"))
import make_mlpackage_seeds as mil  # noqa: E402  an encoder that shares nothing with the program

REFERENCES = ROOT.parent / "shared" / "coreml_ref"
MANIFEST = {"fileFormatVersion": "1.0.0", "rootModelIdentifier": "m", "itemInfoEntries": {
    "m": {"author": "com.apple.CoreML", "description": "", "name": "model.mlmodel",
          "path": "com.apple.CoreML/model.mlmodel"}}}


class Exec(Case):
    def package(self, name, spec, weights=None):
        folder = self.dir / f"{name}.mlpackage"
        inner = folder / "Data" / "com.apple.CoreML"
        (inner / "weights").mkdir(parents=True)
        (folder / "Manifest.json").write_text(json.dumps(MANIFEST))
        (inner / "model.mlmodel").write_bytes(spec)
        if weights:
            (inner / "weights" / "weight.bin").write_bytes(weights.bytes())
        return folder

    def conv_package(self, name, opset="CoreML8", functions=("a", "b")):
        weights = mil.Weights()
        blob = weights.blob(mil.F16, [2, 4, 1, 1], mil.half(*range(8)))
        function = mil.function(opset, [mil.named("x", mil.F16, [1, 4, 1, 3])], mil.conv(blob), ["y"])
        return self.package(name, mil.model(9, {f: function for f in functions}, functions[-1]), weights)

    def npy(self, name, array):
        path = self.dir / name
        np.save(path, array)
        return path

    def test_runs_a_package_and_says_where_the_outputs_are(self):
        package = self.conv_package("run")
        x = np.random.default_rng(1).standard_normal((1, 4, 1, 3)).astype(np.float32)
        wanted = np.einsum("oc,bcwt->bowt", np.arange(8).reshape(2, 4), x.astype(np.float16).astype(np.float64))
        out = self.dir / "run_out"
        for flags in ([], ["--function", "a"], ["-f", "b"]):
            done = self.ok("exec", package, "--in", f"x={self.npy('x.npy', x)}", "--out", out, *flags)
            self.assertEqual(done.text(), f"y fp16[1, 2, 1, 3] {out}/y.npy\n")
            y = np.load(out / "y.npy")
            self.assertEqual((y.dtype, y.shape), (np.float16, (1, 2, 1, 3)))
            np.testing.assert_allclose(y, wanted, atol=2 ** -9 * abs(wanted).max())  # one rounding to fp16
        self.ok("exec", package, "-i", f"x={self.npy('x.npy', x)}", "-o", out, "--f32")
        y = np.load(out / "y.npy")
        self.assertEqual(y.dtype, np.float32)
        np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-5)

    def test_inputs_may_be_fortran_ordered_or_wider(self):
        package = self.conv_package("order")
        x = np.arange(12, dtype=np.float64).reshape(1, 4, 1, 3)
        outputs = []
        for i, array in enumerate([x, np.asfortranarray(x), x.astype(np.float16)]):
            self.ok("exec", package, "--in", f"x={self.npy('o.npy', array)}", "--out", self.dir / f"order_{i}")
            outputs.append((self.dir / f"order_{i}" / "y.npy").read_bytes())
        self.assertEqual(len(set(outputs)), 1)

    def test_wrong_use_ends_in_one_line(self):
        package, out = self.conv_package("wrong"), self.dir / "wrong_out"
        good = self.npy("good.npy", np.zeros((1, 4, 1, 3), np.float16))
        big = self.npy("big.npy", np.zeros((1, 4, 1, 3), ">f2"))
        base = ["exec", package, "--out", out]
        for code, part, args in [
            (2, "--out is required", ["exec", package, "--in", f"x={good}"]),
            (2, "package is required", ["exec", "--out", out]),
            (2, "--in: wants NAME=FILE.npy, got 'x'", [*base, "--in", "x"]),
            (2, "--in: wants NAME=FILE.npy, got '=x'", [*base, "--in", "=x"]),
            (1, "input 'x' (fp16[1, 4, 1, 3]) of function 'b' is missing", base),
            (1, "input 'z': function 'b' has no such input, it has x", [*base, "--in", f"z={good}"]),
            (1, "input 'x' is given twice", [*base, "--in", f"x={good}", "--in", f"x={good}"]),
            (1, "no function 'c', it has a, b", [*base, "--function", "c"]),
            (1, "absent.npy", [*base, "--in", "x=absent.npy"]),
            (1, "type '>f2'", [*base, "--in", f"x={big}"]),
            (1, "is fp16[4, 3], wanted fp16[1, 4, 1, 3]", [*base, "--in", f"x={self.npy('r.npy', np.zeros((4, 3), 'f2'))}"]),
            (1, "is int32[1, 4, 1, 3], wanted", [*base, "--in", f"x={self.npy('i.npy', np.zeros((1, 4, 1, 3), 'i4'))}"]),
            (1, "not an .npy file", [*base, "--in", f"x={self.model}"]),
            (1, "absent.mlpackage: no such package", ["exec", self.dir / "absent.mlpackage", "--out", out]),
            (1, "not a folder", ["exec", self.model, "--out", out]),
            (1, "cannot write", ["exec", package, "--in", f"x={good}", "--out", self.model / "x"]),
        ]:
            with self.subTest(part=part):
                self.fails(code, part, *args)
        self.assertFalse(out.exists())

    def test_hostile_packages_end_in_one_line(self):
        x = [mil.named("x", mil.F16, [1, 4, 1, 3])]
        weights = mil.Weights()
        escape = weights.blob(mil.F16, [2, 4, 1, 1], mil.half(*range(8)), "@model_path/../../../../etc/passwd")
        state = mil.field(1, "x") + mil.field(2, mil.field(5, mil.field(1, mil.tensor_type(mil.F16, [4]))))
        relu = [mil.op("relu", [mil.named("y", mil.F16, [1, 4, 1, 3])], [("x", ["x"])])]
        # y = x tiled to two gigabytes and more: a small file must not take all memory.
        huge = [mil.op("tile", [mil.named(f"t{i}", mil.F16, [1, 4, 1, 3 << 26])],
                       [("x", ["x"]), ("reps", [mil.ints([1, 1, 1, 1 << 26])])]) for i in range(3)]
        total = [mil.op("add", [mil.named("u", mil.F16, [1, 4, 1, 3 << 26])], [("x", ["t0"]), ("y", ["t1"])]),
                 mil.op("add", [mil.named("y", mil.F16, [1, 4, 1, 3 << 26])], [("x", ["u"]), ("y", ["t2"])])]
        out = self.dir / "hostile_out"
        good = self.npy("h.npy", np.zeros((1, 4, 1, 3), np.float16))
        for name, part, spec in [
            ("escape", "wanted a path below @model_path",
             mil.model(7, {"main": mil.function("CoreML6", x, mil.conv(escape), ["y"])})),
            ("state", "is a state, and states are not supported",
             mil.model(9, {"main": mil.function("CoreML8", [state], relu, ["y"])})),
            ("huge", "bytes for its tensors, at most",
             mil.model(7, {"main": mil.function("CoreML6", x, huge + total, ["y"])})),
            ("html", "no Core ML model", b"<!DOCTYPE html>\n<html><body>404</body></html>\n"),
            ("empty", "has no specification version", b""),
            ("steer", "op 0 (?[31m): this op is not supported",
             mil.model(7, {"main": mil.function(
                 "CoreML6", x, [mil.op("\x1b[31m", [mil.named("y", mil.F16, [1])])], ["y"])})),
        ]:
            with self.subTest(name=name):
                package = self.package(name, spec, weights if name == "escape" else None)
                self.fails(1, part, "exec", package, "--in", f"x={good}", "--out", out)
        folder = self.package("manifest", b"")
        (folder / "Manifest.json").write_bytes(b"[" * 100000)
        self.fails(1, "Manifest.json: not JSON", "exec", folder, "--out", out)
        os.remove(folder / "Manifest.json")
        os.mkfifo(folder / "Manifest.json")
        self.fails(1, "Manifest.json: not a regular file", "exec", folder, "--out", out)
        self.assertFalse(out.exists())

    def test_info_describes_a_package(self):
        package = self.conv_package("info")
        text = self.ok("info", package).text()
        self.assertRegex(text, r"(?m)^specification +9 \(macOS 15 or newer\)$")
        self.assertRegex(text, r"(?m)^functions +2, chosen by name$")
        self.assertRegex(text, r"(?m)^weights +1 fp16 +16 B$")
        self.assertIn("function b (default)\n  inputs           x fp16[1, 4, 1, 3]\n"
                      "  outputs          y fp16[1, 2, 1, 3]\n  ops              1: 1 conv\n", text)
        info = json.loads(self.ok("info", "--json", package).text())
        self.assertEqual(info["weights"], [{"type": "fp16", "n_tensors": 1, "size_bytes": 16}])
        self.assertEqual(info["functions"][0]["outputs"], [{"name": "y", "type": "fp16[1, 2, 1, 3]"}])
        self.assertEqual((info["warnings"], info["opset"]), ([], "CoreML8"))

    def test_info_warns_of_ops_that_leave_the_npu(self):
        x = mil.named("x", mil.F16, [4])
        sort = mil.op("argsort", [mil.named("y", mil.I32, [4])], [("x", ["x"]), ("axis", [mil.integer(0)]),
                                                                  ("ascending", [mil.flag(1)])])
        package = self.package("sort", mil.model(7, {"main": mil.function("CoreML6", [x], [sort], ["y"])}))
        done = self.ok("info", package)
        self.assertEqual(len(done.lines), 2, done.err)
        self.assertIn("function 'main': op argsort (once) leaves the NPU", done.lines[0])
        self.assertIn("1 op with a result that is not fp16", done.lines[1])

    def test_info_describes_what_exec_refuses(self):
        state = mil.field(1, "s") + mil.field(2, mil.field(5, mil.field(1, mil.tensor_type(mil.F16, [4]))))
        read = mil.op("read_state", [mil.named("y", mil.F16, [4])], [("input", ["s"])])
        package = self.package("stateful", mil.model(9, {"main": mil.function("CoreML8", [state], [read], ["y"])}))
        done = self.ok("info", package)
        self.assertIn("  states           s state fp16[4]\n", done.text())
        self.assertIn("cannot be run here", done.err)
        self.assertIn("states are not supported", done.err)
        # A broken one fails and does not hide the others.
        broken = self.package("broken", struct.pack("<I", 7))
        done = npumoe("info", broken, self.model)
        self.assertEqual(done.code, 1)
        self.assertIn("broken.mlpackage: the model file is no Core ML model", done.lines[0])
        self.assertIn("family", done.text())

    def test_packages_of_apples_making_give_their_outputs(self):
        if not REFERENCES.exists():
            self.skipTest(f"no {REFERENCES}")
        compared = 0
        for package in sorted(REFERENCES.glob("*.mlpackage")):
            info = json.loads(self.ok("info", "--json", package).text())
            for function in info["functions"]:
                io = package.with_suffix(".io")
                if info["multi_function"]:
                    io = io / function["name"]
                out = self.dir / package.stem / function["name"]
                inputs = [a for i in function["inputs"] for a in ("--in", f"{i['name']}={io}/in_{i['name']}.npy")]
                self.ok("exec", package, "--function", function["name"], *inputs, "--out", out)
                for output in function["outputs"]:
                    got, wanted = (np.load(f / f"{output['name']}.npy").astype(np.float64) for f in (out, io))
                    unit = 2.0 ** (np.floor(np.log2(abs(wanted).max())) - 10)  # fp16 spacing at the largest value
                    self.assertLessEqual(abs(got - wanted).max(), 4 * unit, (package, output))
                    compared += 1
        self.assertGreater(compared, 0)
