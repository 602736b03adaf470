# SPDX-License-Identifier: Apache-2.0
"""npumoe plan and doctor."""
import json
import os
import subprocess
import unittest

from harness import NPUMOE, SECONDS, Case, clean_environment, few_cases, npumoe

TEXT = b"The quick brown fox; jumps over 42 lazy dogs(x), said Zoe. " * 40


class Plan(Case):
    def setUp(self):
        self.sidecar = self.dir / "tiny.npumoe"
        for path in self.sidecar.glob("*"):
            path.unlink()

    def calibrate(self, *args):
        self.ok("calibrate", "-m", self.model, "-f", self.write("text.txt", TEXT), "--chunk", "64,256", *args)
        return self.sidecar / "routing_stats.json"

    def plan(self, *args):
        return json.loads(self.ok("plan", self.model, "-o", "-", *args).text())

    def leftovers(self):
        return [path.name for path in self.dir.rglob("*.tmp*")]

    def test_without_statistics_it_says_so_and_lies_beside_the_model(self):
        done = self.ok("plan", self.model)
        path = self.sidecar / "plan.json"
        self.assertIn("none: experts count as equally popular", done.text())
        self.assertRegex(done.text(), r"(?m)^expected .* J for attention and routed experts of \d+ tokens, simulated on m2-max$")
        self.assertRegex(done.text(), rf"(?m)^written +{path}$")
        plan = json.loads(path.read_text())
        self.assertEqual((plan["calibrated"], plan["stats_hash"], plan["placement"], plan["npu"]), (False, "", "ours", "m2-max"))
        self.assertEqual(len(plan["model_hash"]), 32)
        self.assertEqual(self.leftovers(), [])
        # What was made is what a run takes.
        run = self.ok("run", self.model, "-p", "x y z " * 40, "-n", "2", "--temp", "0", "--npu", "sim:m2-max", "--json")
        self.assertEqual(json.loads(run.text())["npu"]["plan"], str(path))

    def test_statistics_beside_the_model_are_used(self):
        stats = self.calibrate()
        done = self.ok("plan", self.model, "--explain")
        self.assertRegex(done.text(), rf"(?m)^statistics +{stats}$")
        self.assertRegex(done.text(), r"(?m)^layer 0: \d+ groups on the NPU")
        self.assertTrue(json.loads((self.sidecar / "plan.json").read_text())["calibrated"])
        moved = self.dir / "moved.json"
        stats.rename(moved)
        again = self.ok("plan", self.model, "--stats", moved, "-o", self.dir / "p.json")
        self.assertIn(str(moved), again.text())
        self.assertEqual((self.dir / "p.json").read_bytes(), (self.sidecar / "plan.json").read_bytes())

    def test_options_arrive_in_the_plan(self):
        plan = self.plan("--npu", "sim:m4", "--chunk", "100", "--prompt", "200", "--objective", "edp", "--mode", "prune",
                         "--placement", "tiers+groups", "--expert-weights", "int8", "--attention-weights", "int8")
        self.assertEqual((plan["npu"], plan["chunk_tokens"], plan["objective"], plan["mode"]), ("m4", 128, "edp", "prune"))
        self.assertEqual((plan["placement"], plan["expert_weights"], plan["attention_weights"]), ("tiers+groups", "int8", "int8"))
        self.assertEqual(plan["kv_buckets"], [0, 128, 256])
        self.assertEqual((plan["order"], plan["moe_batch_tokens"]), ("chunk-major", 128))
        self.assertEqual(self.plan("--placement", "cpu")["layers"][0]["attention"], "cpu")
        ours = self.plan("--moe-batch", "300", "--chunk", "64")
        self.assertIn(ours["order"], ("layer-major", "wavefront"))
        self.assertEqual(ours["moe_batch_tokens"], 300)
        for order in ("layer-major", "wavefront"):
            asked = self.plan("--order", order, "--chunk", "64")
            self.assertEqual((asked["order"], asked["whole_tokens"]), (order, 0))
        self.fails(2, "only placement ours has a choice, got all", "plan", self.model, "--placement", "all", "--order", "wavefront")
        whole = self.ok("plan", self.model, "--order", "wavefront", "--chunk", "64", "--moe-batch", "64", "--explain", "-o",
                        self.dir / "whole.json").text()
        self.assertIn("order layer-major instead of wavefront: a batch of one chunk has no halves", whole)
        self.assertEqual(self.plan("--objective", "time", "--order", "layer-major")["joule_price"], 0)
        self.assertGreater(self.plan("--objective", "edp")["joule_price"], 0)

    def test_every_plan_is_read_again_and_no_other(self):
        """What is refused as nothing a planner writes must be nothing that this one writes."""
        path = self.dir / "again.json"
        run = ["run", self.model, "-p", "x", "-n", "1", "--npu", "sim:m2-max", "--plan", path]
        ours = [["--order", order] for order in ("auto", "layer-major", "wavefront")]
        others = [["--placement", name] for name in ("tiers", "tiers+groups", "all")]
        objectives = ("energy",) if few_cases() else ("time", "energy", "edp")
        plans = [["--placement", name] for name in ("cpu", "naive", "anemll", "base")]  # no objective moves these
        plans += [["--objective", name, *flags] for name in objectives for flags in ours + others]
        for flags in plans:
            with self.subTest(flags=flags):
                self.ok("plan", self.model, "--chunk", "64", *flags, "-o", path)
                self.ok(*run)
        good = json.loads(path.read_text())
        for field, value, part in (("expected_seconds", -1, "wanted 0 to 1000000000, got -1"),
                                   ("expected_joules", 1e300, "wanted 0 to 1000000000, got 1e+300"),
                                   ("expected_seconds", "1", "wanted a number, got string"),
                                   ("joule_price", 1, "wanted 0 with placement all"),
                                   ("order", "wavefront", "wanted chunk-major with placement all")):
            path.write_text(json.dumps({**good, field: value}))
            self.fails(1, f"again.json: field '{field}': {part}", *run)
        path.write_text(json.dumps(good).replace(str(good["expected_joules"]), "NaN"))
        self.fails(1, "again.json", *run)

    def test_the_default_mode_may_be_written_out(self):
        self.ok("plan", self.model, "--placement", "naive", "--mode", "exact", "-o", self.dir / "naive.json")

    def test_summary_as_json(self):
        out = self.dir / "plan.json"
        shown = json.loads(self.ok("plan", self.model, "--json", "--explain", "-o", out).text())
        plan = json.loads(out.read_text())
        self.assertEqual((shown["path"], shown["simulated"], shown["calibrated"]), (str(out), True, False))
        self.assertEqual(shown["expected_seconds"], plan["expected_seconds"])
        groups = [group for layer in plan["layers"] for group in layer["groups"]]
        attention = sum(layer["attention"] == "npu" for layer in plan["layers"])
        self.assertEqual(shown["n_programs"], len(groups) + attention)
        self.assertEqual(shown["n_npu_experts"], sum(len(group["experts"]) for group in groups))
        self.assertEqual(shown["n_cpu_experts"], sum(len(layer["cpu_experts"]) for layer in plan["layers"]))
        self.assertIn("no routing statistics", shown["reasons"][0])
        self.fails(2, "--json and -o -", "plan", self.model, "--json", "-o", "-")

    def test_weight_formats_are_kept_and_counted(self):
        sizes = {}
        formats = ("fp16", "int8", "lut4") if few_cases() else ("fp16", "int8", "lut8", "lut6", "lut4")
        for weights in formats:
            out = self.dir / f"{weights}.json"
            shown = json.loads(self.ok("plan", self.model, "--json", "--placement", "base", "-o", out,
                                       "--expert-weights", weights, "--attention-weights", weights).text())
            plan = json.loads(out.read_text())
            self.assertEqual((plan["expert_weights"], plan["attention_weights"]), (weights, weights))
            sizes[weights] = shown["program_bytes"]
            text = self.ok("eval", self.model, "-f", self.write("t.txt", b"a text of some words " * 20), "--npu", "sim:m2-max",
                           "--plan", out)
            self.assertNotIn("fell back", text.err)
        self.assertLess(sizes["int8"], 0.6 * sizes["fp16"])
        palettes = [sizes[name] for name in formats if name.startswith("lut")]
        self.assertEqual(palettes, sorted(set(palettes), reverse=True))
        self.assertLess(sizes["lut4"], sizes["int8"])

    def test_weight_formats_are_chosen_by_measured_errors(self):
        auto = ["--expert-weights", "auto", "--attention-weights", "auto", "--placement", "base", "--json", "-o", self.dir / "auto.json"]
        shown = json.loads(self.ok("plan", self.model, "--explain", *auto).text())
        plan = json.loads((self.dir / "auto.json").read_text())
        self.assertEqual((shown["expert_weights"], shown["attention_weights"]),
                         (plan["expert_weights"], plan["attention_weights"]))
        errors = {row["format"]: row for row in shown["weight_errors"]}
        self.assertEqual(list(errors), ["fp16", "int8", "lut8", "lut6", "lut4"])
        for kind in ("experts", "gate_up", "down", "attention"):
            self.assertLess(0, errors["fp16"][kind])
            self.assertLess(errors["lut8"][kind], errors["lut6"][kind])
            self.assertLess(errors["lut6"][kind], errors["lut4"][kind])
        reasons = "\n".join(shown["reasons"])
        self.assertIn("weights as lut4: relative error of experts' outputs", reasons)
        self.assertRegex(reasons, "experts' weights are [a-z0-9]+: fp16 ")
        # No error is small enough: fp16 is what is left.
        strict = json.loads(self.ok("plan", self.model, *auto, "--max-weight-error", "1e-9").text())
        self.assertEqual((strict["expert_weights"], strict["attention_weights"]), ("fp16", "fp16"))
        # A text of one's own gives other figures; a format that was asked for is measured as well.
        text = self.write("sample.txt", b"one two three four five six seven eight nine ten")
        own = json.loads(self.ok("plan", self.model, "--json", "--expert-weights", "lut4", "-f", text, "-o", self.dir / "p.json").text())
        self.assertEqual(own["expert_weights"], "lut4")
        self.assertNotEqual(own["weight_errors"][4]["experts"], errors["lut4"]["experts"])
        self.assertNotIn("weight_errors", json.loads(self.ok("plan", self.model, "--json", "-o", self.dir / "p.json").text()))
        self.fails(2, "--max-weight-error", "plan", self.model, *auto, "--max-weight-error", "0")
        self.fails(1, "the text is empty", "plan", self.model, *auto, "-f", self.write("empty.txt", b""))
        self.fails(1, "absent.txt", "plan", self.model, *auto, "-f", self.dir / "absent.txt")

    def test_dense_models_have_a_plan_of_attention(self):
        dense = self.dir / "dense.gguf"
        self.ok("make-model", "--shape", "tiny-llama", "-s", "1", "-o", dense)
        shown = json.loads(self.ok("plan", dense, "--json", "--placement", "anemll").text())
        self.assertEqual((shown["n_programs"], shown["n_npu_experts"], shown["n_cpu_experts"]), (2, 0, 0))

    def test_odd_shapes(self):
        for experts, top_k in ((2, 1), (2, 2), (3, 3), (7, 5), (33, 8)):
            model = self.dir / "odd.gguf"
            self.ok("make-model", *self.SHAPE, "--experts", str(experts), "--top-k", str(top_k), "-o", model)
            for args in ([], ["--placement", "all"], ["--chunk", "1", "--prompt", "1"], ["--prompt", "32768", "--moe-batch", "32768"]):
                with self.subTest(experts=experts, args=args):
                    shown = json.loads(self.ok("plan", model, "--json", *args).text())
                    self.assertEqual(shown["n_npu_experts"] + shown["n_cpu_experts"], 2 * experts)

    def test_wrong_options_name_the_known_ones(self):
        for part, args in [
            ("wanted one of time, energy, edp", ["--objective", "speed"]),
            ("wanted one of ours, cpu, naive, anemll, base, tiers, tiers+groups, all", ["--placement", "best"]),
            ("wanted one of exact, prune, reroute", ["--mode", "drop"]),
            ("wanted one of fp16, int8, lut8, lut6, lut4", ["--expert-weights", "lut5"]),
            ("wants one of m1, m1-pro, m1-max", ["--npu", "m9"]),
            ("--chunk", ["--chunk", "0"]),
            ("--chunk", ["--chunk", "4000000000"]),
            ("--moe-batch", ["--moe-batch", "99999999999"]),
            ("--tiers", ["--tiers", "0"]),
        ]:
            with self.subTest(args=args):
                self.fails(2, part, "plan", self.model, "-o", "-", *args)
        self.fails(1, "absent.gguf", "plan", self.dir / "absent.gguf")
        self.fails(1, "absent.json", "plan", self.model, "--stats", self.dir / "absent.json")

    def test_statistics_of_another_model_are_refused(self):
        other = self.dir / "other.gguf"
        self.ok("make-model", *self.SHAPE, "--seed", "9", "-o", other)
        stats = self.calibrate()
        line = self.fails(1, "made of another model", "plan", other, "--stats", stats)
        self.assertIn(str(stats), line)

    def test_broken_statistics_are_one_line(self):
        stats = self.calibrate()
        good = stats.read_bytes()
        for name, data in {"cut": good[:len(good) // 2], "empty": b"", "no json": b"\xff\x00", "list": b"[]",
                           "nested": b"[" * 100000, "huge": good.replace(b'"n_experts":8', b'"n_experts":4000000000'),
                           "chunks": good.replace(b'"chunk_tokens":[64,256]', b'"chunk_tokens":[64,4000000000]')}.items():
            with self.subTest(name=name):
                self.fails(1, "bad.json", "plan", self.model, "-o", "-", "--stats", self.write("bad.json", data))
        self.assertFalse((self.sidecar / "plan.json").exists())

    def test_interrupted_statistics_and_lengths_never_filled_are_said(self):
        stats = self.calibrate("--max-tokens", "100")
        text = self.ok("plan", self.model, "--explain", "-o", self.dir / "p.json").text()
        self.assertIn("loads of 512 tokens are scaled from the nearest calibrated length of 64", text)
        cut = self.write("cut.json", stats.read_bytes().replace(b'"complete":true', b'"complete":false'))
        text = self.ok("plan", self.model, "--stats", cut, "--explain", "-o", self.dir / "p.json").text()
        self.assertIn("warning: the routing statistics are incomplete: calibration was interrupted", text)

    def test_a_stale_plan_is_refused_with_the_reason(self):
        self.ok("plan", self.model)
        plan = self.sidecar / "plan.json"
        other = self.dir / "second.gguf"
        self.ok("make-model", *self.SHAPE, "--seed", "9", "-o", other)
        run = ["-p", "x", "-n", "1", "--npu", "sim:m2-max"]
        self.fails(1, "stale: made for another model", "run", other, "--plan", plan, *run)
        self.fails(1, "made for npu 'm2-max', wanted 'm4'", "run", self.model, "--plan", plan, *run[:-1], "sim:m4")
        document = json.loads(plan.read_text())
        document["layers"][0]["cpu_experts"] = document["layers"][0]["cpu_experts"][1:]
        broken = self.write("broken.json", json.dumps(document).encode())
        self.fails(1, "is placed nowhere", "run", self.model, "--plan", broken, *run)
        self.calibrate()
        self.fails(1, "stale: made without routing statistics, which there are now", "run", self.model, "--plan", plan, *run)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_a_full_disk_is_an_error(self):
        self.fails(1, "/dev/full: cannot write", "plan", self.model, "-o", "/dev/full")
        with open("/dev/full", "wb") as full:
            done = subprocess.run([NPUMOE, "plan", self.model, "-o", "-"], stdout=full, stderr=subprocess.PIPE,
                                  env=clean_environment(), timeout=SECONDS, check=False)
        self.assertEqual((done.returncode, done.stderr), (1, b"npumoe: stdout: No space left on device\n"))

    def test_a_failed_write_keeps_the_old_plan(self):
        self.ok("plan", self.model, "--npu", "m1")
        plan = self.sidecar / "plan.json"
        before = plan.read_bytes()
        # No file may grow beyond one block: what a full disk does, on any machine.
        done = subprocess.run(["sh", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$0" plan "$1" --npu m4', NPUMOE, self.model],
                              capture_output=True, env=clean_environment(), timeout=SECONDS, check=False)
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertRegex(done.stderr.decode(), rf"\Anpumoe: {plan}: cannot write: [^\n]+\n\Z")
        self.assertEqual(plan.read_bytes(), before)
        self.assertEqual(self.leftovers(), [])
        self.fails(1, "cannot write", "plan", self.model, "-o", self.dir / "absent" / "folder" / "plan.json")
        self.fails(1, "cannot write", "plan", self.model, "-o", self.dir)

    @unittest.skipIf(os.geteuid() == 0, "root may write anywhere")
    def test_a_folder_that_may_not_be_written_to(self):
        folder = self.dir / "locked"
        folder.mkdir()
        folder.chmod(0o500)
        self.fails(1, "cannot write", "plan", self.model, "-o", folder / "plan.json")


class Doctor(Case):
    def test_says_what_is_here(self):
        text = self.ok("doctor").text()
        for name in ("system", "cpu", "simd", "memory", "page size", "build", "real NPUs", "simulated"):
            self.assertRegex(text, rf"(?m)^{name} +\S")
        if os.uname().sysname == "Linux":
            self.assertIn("none: Core ML is not in this build", text)
        shown = json.loads(self.ok("doctor", "--json").text())
        self.assertEqual(shown["cores"], os.sysconf("SC_NPROCESSORS_ONLN"))
        self.assertEqual(shown["memory_bytes"], os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        self.assertEqual(shown["page_bytes"], os.sysconf("SC_PAGE_SIZE"))
        self.assertIn("m2-max", shown["simulated_npus"])
        self.assertNotIn("npu", shown)

    def test_every_number_of_an_npu_has_a_source(self):
        for name in json.loads(self.ok("doctor", "--json").text())["simulated_npus"]:
            npu = json.loads(self.ok("doctor", "--json", "--npu", "sim:" + name).text())["npu"]
            self.assertEqual((npu["name"], npu["simulated"]), (name, True))
            self.assertEqual(len(npu["properties"]), 30)
            for number in npu["properties"]:
                self.assertRegex(number["source"], r"\A(measured|published|derived|assumed)")
                self.assertEqual(number["assumed"], number["source"].startswith("assumed"))
            text = self.ok("doctor", "--npu", name).text()
            for number in npu["properties"]:
                self.assertRegex(text, rf"(?m)^  {number['name']} +\S.*{number['source'][:9]}")
        numbers = {n["name"]: n["value"] for n in json.loads(self.ok("doctor", "--json", "--npu", "m2-max").text())["npu"]["properties"]}
        self.assertEqual(numbers["max_programs"], 120)

    def test_the_self_test_of_a_simulated_npu_finds_its_numbers(self):
        cache = self.dir / "cache"
        report = json.loads(self.ok("doctor", "--self-test", "--npu", "sim:m4", "--cache", cache, "--json").text())
        self.assertEqual((report["npu"], report["simulated"], report["passed"], report["spec_path"]), ("m4", True, True, ""))
        text = self.ok("doctor", "--self-test", "--npu", "sim:m4", "--cache", cache).text()
        self.assertEqual(text.splitlines()[-1], "passed, simulated on m4")
        self.assertFalse(cache.exists(), "a simulated machine teaches the planner nothing")
        compared = [probe for probe in report["probes"] if probe["right"] is not None]
        self.assertGreaterEqual(len(compared), 6)
        self.assertLess(max(probe["relative_rms"] for probe in compared), 5e-3)
        self.assertEqual(set(report["numbers"]), {"dispatch_seconds", "flops_per_second", "weight_bytes_per_second",
                                                  "io_bytes_per_second"})
        for name, number in report["numbers"].items():
            self.assertAlmostEqual(number["value"] / number["table"], 1, delta=0.02, msg=name)

    def test_the_self_test_without_an_npu(self):
        if os.uname().sysname == "Linux":
            self.fails(1, "no NPU on this system", "doctor", "--self-test")
            self.fails(1, "Core ML is not on this system", "doctor", "--self-test", "--npu", "coreml")

    def test_unknown_npu(self):
        self.fails(2, "'m9' is unknown, wanted one of m1, m1-pro, m1-max", "doctor", "--npu", "m9")
        self.assertEqual(npumoe("doctor", "surplus").code, 2)
