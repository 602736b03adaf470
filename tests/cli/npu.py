# SPDX-License-Identifier: Apache-2.0
"""Prompts on a simulated NPU: run, chat and eval with --npu."""
import json

from harness import Case, npumoe

PROMPT = "The quick brown fox; jumps over 42 lazy dogs(x), said Zoe. " * 5
NPU = ["--npu", "sim:m2-max"]


class Npu(Case):
    def json_of(self, *args):
        return json.loads(self.ok("run", self.model, "-p", PROMPT, "-n", "4", "--temp", "0", "--json", *args).text())

    def test_the_text_is_the_cpus(self):
        cpu = self.json_of()
        self.assertNotIn("npu", cpu)
        for placement in ("ours", "naive", "base", "tiers", "tiers+groups", "all", "anemll", "cpu"):
            npu = self.json_of(*NPU, "--placement", placement, "--npu-chunk", "64")
            self.assertEqual(npu["tokens"], cpu["tokens"], placement)
            self.assertEqual(npu["npu"]["fallbacks"], {}, placement)
        for order in ("layer-major", "wavefront"):
            npu = self.json_of(*NPU, "--order", order, "--npu-chunk", "32")
            self.assertEqual(npu["tokens"], cpu["tokens"], order)
            self.assertEqual(npu["npu"]["fallbacks"], {}, order)
            self.assertEqual(npu["npu"]["order"], order)

    def test_weight_formats(self):
        args = [*NPU, "--placement", "base", "--npu-chunk", "64"]
        exact = self.json_of(*args)["npu"]
        for weights in ("fp16", "int8", "lut8", "lut6", "lut4"):
            with self.subTest(weights=weights):
                npu = self.json_of(*args, "--expert-weights", weights, "--attention-weights", weights)["npu"]
                self.assertEqual(npu["fallbacks"], {})
                self.assertEqual(npu["experts"]["rows_used"], exact["experts"]["rows_used"])
                self.assertEqual(npu == exact, weights == "fp16")  # fewer bytes, less simulated time
        auto = self.json_of(*args, "--expert-weights", "auto", "--attention-weights", "auto", "--max-weight-error", "1e-9")
        self.assertEqual(auto["npu"], exact)
        self.fails(2, "--expert-weights", "run", self.model, "-p", "x", *NPU, "--expert-weights", "lut5")
        self.fails(2, "wants --npu too", "run", self.model, "-p", "x", "--expert-weights", "lut4")

    def test_every_row_is_counted_once(self):
        done = self.json_of(*NPU, "--placement", "tiers+groups", "--npu-chunk", "64")
        n, report = done["timings"]["prompt_n"], done["npu"]
        self.assertEqual((report["simulated"], report["spec"], report["clock"]), (True, "m2-max", "simulated on m2-max"))
        self.assertEqual(done["timings"]["clock"], "real time of this machine")
        for layer in report["layers"][:-1]:  # of the last layer one row is left, the CPU's
            used = layer["experts"]
            self.assertEqual(used["rows_used"] + used["rows_spilled"] + used["rows_cpu"], 2 * n)
            self.assertEqual(layer["attention"]["rows_used"] + layer["attention"]["rows_cpu"], n)
        busy = report["attention"]["npu_ms"] + report["experts"]["npu_ms"]
        self.assertGreater(report["experts"]["dispatches"], 0)
        self.assertGreaterEqual(report["prefill_seconds"] * 1e3 * (1 + 1e-9), busy)
        self.assertGreater(report["npu_joules"], 0)
        total = sum(layer["experts"]["dispatches"] for layer in report["layers"])
        self.assertEqual(report["experts"]["dispatches"], total)

    def test_simulated_time_depends_on_the_work_alone(self):
        one, two = (self.json_of(*NPU, "--placement", "base", "-t", t)["npu"] for t in ("1", "2"))
        self.assertEqual(one, two)

    def test_environment_variables_stand_in_for_flags(self):
        env = {"NPUMOE_NPU": "sim:m2-max", "NPUMOE_PLACEMENT": "tiers+groups", "NPUMOE_NPU_CHUNK": "64", "NPUMOE_OVERFLOW": "prune"}
        run = ["run", self.model, "-p", PROMPT, "-n", "1", "--temp", "0", "--json"]
        said = json.loads(self.ok(*run, env=env).text())["npu"]
        self.assertEqual(said, self.json_of(*NPU, "--placement", "tiers+groups", "--npu-chunk", "64", "--overflow", "prune")["npu"])
        self.assertNotEqual(said, json.loads(self.ok(*run, "--overflow", "exact", env=env).text())["npu"])
        self.fails(2, "NPUMOE_PLACEMENT, for --placement: wants", *run, env={**env, "NPUMOE_PLACEMENT": "everywhere"})
        env.pop("NPUMOE_NPU")  # those that say how mean nothing to a run on the CPU
        self.assertNotIn("npu", json.loads(self.ok(*run, env=env).text()))
        self.fails(2, "--placement: wants --npu too", *run, "--placement", "base")

    def test_overflow_modes(self):
        args = [*NPU, "--placement", "tiers+groups", "--npu-chunk", "64"]
        pruned = self.json_of(*args, "--overflow", "prune")["npu"]["experts"]
        self.assertGreater(pruned["rows_pruned"], 0)
        self.assertEqual(pruned["rows_spilled"], 0)
        rerouted = self.json_of(*args, "--overflow", "reroute")["npu"]["experts"]
        self.assertGreater(rerouted["rows_rerouted"], 0)
        self.assertEqual(rerouted["rows_pruned"], 0)

    def test_the_report_says_simulated_and_where(self):
        done = self.ok("run", self.model, "-p", PROMPT, "-n", "2", "--temp", "0", *NPU)
        self.assertRegex(done.err, r"(?m)^npumoe: simulated on m2-max: prefill [\d.]+ s, [\d.]+ J; [\d.]+ % of expert rows on the NPU$")
        whole = self.ok("run", self.model, "-p", PROMPT, "-n", "2", "--temp", "0", *NPU, "--placement", "anemll", "--stats").err
        self.assertRegex(whole, r"(?m)^NPU, simulated on m2-max; plan: made for this run without calibration")
        self.assertRegex(whole, r"(?m)^ +0 attention +1 ")
        self.assertRegex(whole, r"\(simulated on m2-max\)")

    def test_a_trace_that_cannot_be_written_is_known_before_the_run(self):
        path = self.dir / "no" / "such" / "trace.json"
        self.fails(1, "trace.json: cannot write: No such file", "run", self.model, "-p", PROMPT, "-n", "2", "--npu", "sim:m4",
                   "--trace", path)

    def test_trace_opens_as_chrome_events(self):
        path = self.dir / "trace.json"
        self.ok("run", self.model, "-p", PROMPT, "-n", "2", "--temp", "0", *NPU, "--placement", "base", "--npu-chunk",
                "64", "--trace", path)
        trace = json.loads(path.read_text())
        events = trace["traceEvents"]
        names = {event["args"]["name"] for event in events if event["ph"] == "M"}
        self.assertLessEqual({"simulated m2-max", "CPU", "NPU"}, names)
        zones = [event for event in events if event["ph"] == "X"]
        npu = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in zones if e["tid"] == 2)
        self.assertTrue(any(name.startswith("layer 0 experts") for _, _, name in npu))
        self.assertTrue(any(name == "layer 1 attention" for _, _, name in npu))
        for before, after in zip(npu, npu[1:]):
            self.assertLessEqual(before[1], after[0] + 1e-6, "one program in flight")
        self.assertEqual(trace["otherData"]["dropped_events"], 0)
        # Without an NPU the times are real, and the trace says so.
        self.ok("run", self.model, "-p", PROMPT, "-n", "2", "--temp", "0", "--trace", path)
        real = json.loads(path.read_text())
        self.assertEqual(real["otherData"]["clock"], "real time")
        self.assertIn("feed-forward", {event["name"] for event in real["traceEvents"]})

    def test_one_token_is_decode(self):
        done = self.ok("run", self.model, "-p", "a", "-n", "2", "--temp", "0", *NPU)
        self.assertIn("no prompt was long enough for the NPU", done.err)

    def test_bad_flags(self):
        run = ["run", self.model, "-p", "x y", "-n", "1"]
        self.fails(2, "got 'sim:m9'", *run, "--npu", "sim:m9")
        self.fails(2, "got 'ane'", *run, "--npu", "ane")
        self.fails(2, "--plan: wants --npu too", *run, "--plan", "p.json")
        self.fails(2, "--placement and --plan", *run, *NPU, "--plan", "p.json", "--placement", "ours")
        self.fails(1, "none.json", *run, *NPU, "--plan", self.dir / "none.json")
        self.fails(2, "best", *run, *NPU, "--placement", "best")
        self.fails(2, "drop", *run, *NPU, "--overflow", "drop")
        self.fails(2, "--npu-chunk", *run, *NPU, "--npu-chunk", "0")
        bad = self.write("bad.json", b"{\"version\": 2")
        self.fails(1, "bad.json", *run, *NPU, "--plan", bad)
        self.fails(1, "bad.json", *run, *NPU, "--routing-stats", bad)

    def test_a_stale_or_broken_plan_is_refused_with_the_reason(self):
        path = self.dir / "plan.json"
        self.ok("plan", self.model, "-o", path, "--npu", "m2-max")
        other = self.dir / "other.gguf"
        self.ok("make-model", "--shape", "tiny-qwen3moe", "--seed", "4", "-o", other)
        run = ["-p", PROMPT, "-n", "1", "--temp", "0", "--plan", path]
        self.fails(1, "another model", "run", other, *run, *NPU)
        self.fails(1, "m4", "run", self.model, *run, "--npu", "sim:m4")
        plan = json.loads(path.read_text())
        expert = plan["layers"][0]["cpu_experts"] or plan["layers"][0]["groups"][0]["experts"]
        gone = expert.pop()
        path.write_text(json.dumps(plan))
        self.fails(1, f"expert {gone} is placed nowhere", "run", self.model, *run, *NPU)

    def test_an_order_that_is_asked_for_wants_a_plan_of_its_own(self):
        path = self.dir / "tiny.npumoe" / "plan.json"
        path.parent.mkdir(exist_ok=True)
        self.ok("plan", self.model, "--npu", "m2-max", "--order", "layer-major", "--npu-chunk", "32")
        try:
            self.assertEqual(self.json_of(*NPU)["npu"]["order"], "layer-major")
            asked = self.json_of(*NPU, "--order", "wavefront", "--npu-chunk", "32")["npu"]
            self.assertEqual(asked["order"], "wavefront")
            self.assertEqual(self.json_of(*NPU, "--order", "wavefront")["npu"]["plan"], asked["plan"])
        finally:
            path.unlink()

    def test_a_plan_beside_the_model_that_is_not_taken_is_named(self):
        path = self.dir / "tiny.npumoe" / "plan.json"
        path.parent.mkdir(exist_ok=True)
        try:
            for text, reason in [(b"", "plan.json"), (b'{"npu": "m4"}', "is for npu m4")]:
                path.write_bytes(text)
                done = self.ok("run", self.model, "-p", PROMPT, "-n", "1", "--temp", "0", *NPU)
                self.assertRegex(done.err, rf"note: the model's own plan is not taken: .*{reason}")
        finally:
            path.unlink()

    def test_eval_prints_agreement(self):
        text = self.write("text.txt", PROMPT.encode() * 4)
        done = json.loads(self.ok("eval", self.model, "-f", text, *NPU, "--placement", "base", "--npu-chunk", "64",
                                  "--window", "128", "--json").text())
        self.assertLessEqual(done["agreement"]["median_kl"], 1e-4)
        self.assertAlmostEqual(done["perplexity"] / done["agreement"]["exact_perplexity"], 1, 2)
        plain = json.loads(self.ok("eval", self.model, "-f", text, "--window", "128", "--json").text())
        self.assertAlmostEqual(plain["perplexity"], done["agreement"]["exact_perplexity"], 6)
        self.assertNotIn("agreement", plain)
        self.fails(1, "wanted at least 2", "eval", self.model, "-f", self.write("empty.txt", b""))

    def test_chat_reads_prompts_on_it(self):
        done = npumoe("chat", self.model, "--chat-template", "chatml", "-p", "Hello there", "-n", "3", "--temp", "0",
                      "--single-turn", *NPU)
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("simulated on m2-max: prefill", done.err)
