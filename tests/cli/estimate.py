# SPDX-License-Identifier: Apache-2.0
"""npumoe estimate."""
import json

from harness import Case, npumoe


class Estimate(Case):
    def ask(self, npu, op, shape, *args):
        return json.loads(self.ok("estimate", "--npu", npu, "--op", op, "--shape", shape, *args, "--json").text())

    def test_one_op(self):
        said = self.ask("m2-max", "gemv", "4096x4096")
        self.assertEqual({k: said[k] for k in ("npu", "op", "shape", "weights", "path", "simulated", "bound")},
                         {"npu": "m2-max", "op": "gemv", "shape": "4096x4096", "weights": "fp16", "path": "coreml",
                          "simulated": True, "bound": "weights"})
        parts = said["parts_ms"]
        self.assertAlmostEqual(said["ms"], parts["dispatch"] + parts["io"] + max(parts["compute"], parts["weights"]))
        self.assertAlmostEqual(said["gbps"], 2 * 4096 * 4096 / said["ms"] * 1e-6)
        self.assertAlmostEqual(said["tflops"], 2 * 4096 * 4096 / said["ms"] * 1e-9)
        self.assertGreater(said["mj"], 0)
        text = self.ok("estimate", "--npu", "sim:m2-max", "--op", "gemv", "--shape", "1x4096x4096").text()
        self.assertRegex(text, r"\Agemv 1x4096x4096, .* ms, .* mJ, bound by weights .*; simulated on m2-max\n\Z")
        properties = json.loads(self.ok("doctor", "--json", "--npu", "m2-max").text())["npu"]["properties"]
        floor = next(p["value"] for p in properties if p["name"] == "dispatch_seconds")
        self.assertAlmostEqual(parts["dispatch"], 1e3 * floor)

    def test_what_bounds(self):
        for bound, npu, op, shape, *args in [
            ("dispatch", "m1", "gemv", "64x64"),
            ("weights", "m5-pro", "gemv", "8192x8192", "--path", "direct"),
            ("compute", "m4-max", "matmul", "4096x4096x4096", "--path", "direct"),
            ("compute", "m3-pro", "conv1x1", "2048x512x512*128"),
            ("io", "m2-max", "matmul", "8192x64x4096", "--path", "direct"),
            ("compute", "m2-max", "matmul", "512x2048x2048", "--path", "cpu"),
            ("weights", "m2-max", "gemv", "4096x4096", "--path", "cpu"),
        ]:
            with self.subTest(op=op, shape=shape):
                self.assertEqual(self.ask(npu, op, shape, *args)["bound"], bound)

    def test_shapes_formats_and_paths_matter_as_they_should(self):
        def ms(*args):
            return self.ask(*args)["ms"]
        self.assertEqual(ms("m2-max", "gemv", "64x64"), ms("m2-max", "gemv", "1x64x64"))
        # Few rows run at a lower rate; products beyond the chip's memory as well.
        self.assertLess(ms("m4", "conv1x1", "2048x512x512*64"), 30 * ms("m4", "conv1x1", "64x512x512*64"))
        self.assertGreater(ms("m4", "matmul", "8192x8192x8192"), 10 * ms("m4", "matmul", "4096x4096x4096"))
        # int8 is as long as fp16 where the chip unfolds it; palettes stream everywhere.
        large = ("gemv", "8192x8192", "--weights")
        self.assertEqual(ms("m1", *large, "int8"), ms("m1", *large, "fp16"))
        self.assertLess(ms("m2-max", *large, "int8"), 0.6 * ms("m2-max", *large, "fp16"))
        self.assertLess(ms("m1", *large, "lut4"), 0.5 * ms("m1", *large, "fp16"))
        # Arithmetic in int8 is M4's.
        heavy = ("conv1x1", "4096x512x512*128", "--weights")
        self.assertLess(ms("m4", *heavy, "w8a8"), 0.6 * ms("m4", *heavy, "fp16"))
        self.assertGreater(ms("m2", *heavy, "w8a8"), 0.9 * ms("m2", *heavy, "fp16"))
        self.assertGreater(ms("m2-max", "matmul", "64x512x512", "--runtime-weights"), ms("m2-max", "matmul", "64x512x512"))
        self.assertAlmostEqual(ms("m2-max", "swiglu", "64x512x256"), ms("m2-max", "conv1x1", "64x512x256*2,64x256x512"), delta=1e-4)
        self.assertGreater(ms("m2-max", "attention", "64x1024x8x2x64"), ms("m2-max", "attention", "64x64x8x2x64"))

    def test_every_machine_answers(self):
        names = json.loads(self.ok("doctor", "--json").text())["simulated_npus"]
        self.assertEqual(len(names), 18)
        for name in names:
            for path in ("coreml", "direct", "cpu"):
                self.assertGreater(self.ask(name, "swiglu", "128x2048x768", "--path", path)["ms"], 0)

    def test_what_is_wrong_is_said_in_one_line(self):
        good = {"--npu": "m1", "--op": "matmul", "--shape": "4x4x4"}
        for part, change in [
            ("no spec named 'm9', wanted one of m1, m1-pro", {"--npu": "m9"}),
            ("--op: unknown 'gemm', wanted one of: conv1x1, matmul", {"--op": "gemm"}),
            ("--weights: unknown 'q4', wanted one of: fp16, int8", {"--weights": "q4"}),
            ("--path: unknown 'gpu', wanted one of: coreml, direct, cpu", {"--path": "gpu"}),
            ("matmul wants MxKxN of 1 to 16777216", {"--shape": "4x4"}),
            ("got '4x4x4x4'", {"--shape": "4x4x4x4"}),
            ("got '4x0x4'", {"--shape": "4x0x4"}),
            ("got '4x-1x4'", {"--shape": "4x-1x4"}),
            ("got '4x4x16777217'", {"--shape": "4x4x16777217"}),
            ("got '4x4x99999999999999999999'", {"--shape": "4x4x99999999999999999999"}),
            ("got '4x4x4*'", {"--shape": "4x4x4*"}),
            ("got '4x4x4*0'", {"--shape": "4x4x4*0"}),
            ("got '4x4x4*1*1'", {"--shape": "4x4x4*1*1"}),
            ("the value is empty", {"--shape": ""}),
            ("got ''", {"--shape": "4x4x4,,4x4x4"}),
            ("got '4x4x4,'", {"--shape": "4x4x4,"}),
            ("got '4x4x4 '", {"--shape": "4x4x4 "}),
            ("got '4x4x4'", {"--shape": ",".join(["4x4x4"] * 65)}),
            ("HEADS a multiple of KVHEADS, got '4x4x6x4x64'", {"--op": "attention", "--shape": "4x4x6x4x64"}),
            ("attention has none that could be int8", {"--op": "attention", "--shape": "4x4x4x4x64", "--weights": "int8"}),
        ]:
            with self.subTest(part=part):
                self.fails(2, part, "estimate", *(word for pair in {**good, **change}.items() for word in pair))
        self.fails(2, "--shape is required", "estimate", "--npu", "m1", "--op", "gemv")
        self.fails(2, "--runtime-weights: for matmul, got gemv", "estimate", "--npu", "m1", "--op", "gemv", "--shape", "4x4",
                   "--runtime-weights")
        self.assertEqual(npumoe("estimate").code, 2)
