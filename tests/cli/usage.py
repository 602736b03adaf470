# SPDX-License-Identifier: Apache-2.0
"""Flags, exit codes, environment variables."""
import os
import re
import subprocess

from harness import NPUMOE, SECONDS, npumoe, Case


class Usage(Case):
    def test_help_goes_to_stdout_and_names_every_command(self):
        for args in (["--help"], ["help"], ["-h"]):
            text = self.ok(*args).text()
            for command in ("run", "chat", "info", "exec", "eval", "calibrate", "plot", "bench", "plan", "estimate", "simulate", "report", "doctor", "make-model"):
                self.assertRegex(text, rf"(?m)^  {command} ")
        for command in ("run", "chat", "info", "exec", "eval", "calibrate", "plot", "bench", "plan", "estimate", "simulate", "report", "doctor", "make-model"):
            self.assertIn("--", self.ok(command, "--help").text())
            self.assertEqual(self.ok("help", command).out, self.ok(command, "--help").out)

    def test_version_is_one_line(self):
        done = self.ok("--version")
        self.assertRegex(done.text(), r"\Anpumoe \d+\.\d+\.\d+ \([^\n]+\)\n\Z")
        self.assertEqual(done.err, "")

    def test_no_command_shows_the_usage_and_fails(self):
        done = npumoe()
        self.assertEqual((done.code, done.out), (2, b""))
        self.assertIn("Usage: npumoe COMMAND", done.err)

    def test_unknown_command(self):
        self.fails(2, "unknown command 'server', wanted one of: run, chat", "server")
        self.fails(2, "unknown command '\\x1B[31m\\n'", "\x1b[31m\n")

    def test_wrong_flags(self):
        for part, args in [
            ("'--frobnicate'", ["run", self.model, "--frobnicate"]),
            ("model is required", ["run", "-p", "x"]),
            ("--temp", ["run", self.model, "-p", "x", "--temp", "warm"]),
            ("--temp: wants a number from 0 to", ["run", self.model, "-p", "x", "--temp", "nan"]),
            ("--top-p: wants a number from 0 to 1, got '-1'", ["run", self.model, "-p", "x", "--top-p", "-1"]),
            ("--n-predict", ["run", self.model, "-p", "x", "-n", "-3"]),
            ("--n-predict", ["run", self.model, "-p", "x", "-n", "99999999999999999999"]),
            ("--ctx-size", ["run", self.model, "-p", "x", "-c", "-1"]),
            ("--ctx-size", ["run", self.model, "-p", "x", "-c", "5000000000"]),
            ("--ctx-size", ["run", self.model, "-p", "x", "-c", "16777217"]),
            ("--threads: wants a whole number from -1 to 1024, got '100000'", ["run", self.model, "-p", "x", "-t", "100000"]),
            ("--ubatch-size", ["run", self.model, "-p", "x", "-ub", "0"]),
            ("keys and values must have one type", ["run", self.model, "-p", "x", "-ctk", "f32"]),
            ("keys and values must have one type", ["run", self.model, "-p", "x", "-ctk", "q8_0"]),
            ("keys and values must have one type", ["info", self.model, "-ctv", "q8_0"]),
            ("wants one of f16, f32, q8_0, got 'q4_0'", ["run", self.model, "-p", "x", "-ctk", "q4_0", "-ctv", "q4_0"]),
            ("wants one of f16, f32, q8_0, got 'Q8_0'", ["bench", self.model, "-ctk", "Q8_0", "-ctv", "Q8_0"]),
            ("--chat-template: wants one of chatml, ", ["run", self.model, "-p", "x", "--chat-template", "nonsense"]),
            ("--chat-template: wants one of chatml, ", ["chat", self.model, "--chat-template", "nonsense"]),
            ("--tokenizer-pre: wants one of default, ", ["run", self.model, "-p", "x", "--tokenizer-pre", "nonsense"]),
            ("--tokenizer-pre: wants one of default, ", ["info", self.model, "--tokenizer-pre", "nonsense"]),
            ("got 'm2-max'", ["run", self.model, "-p", "x", "--npu", "m2-max"]),
            ("got 'sim:m9'", ["eval", self.model, "-f", self.model, "--npu", "sim:m9"]),
            ("got 'm9'", ["run", self.model, "-p", "x", "--npu", "coreml", "--npu-spec", "m9"]),
            ("got 'm9'", ["plan", self.model, "--npu", "m9"]),
            ("got 'm4'", ["doctor", "--self-test", "--npu", "m4"]),
            ("got 'sim:m4'", ["exec", "x.mlpackage", "-o", self.dir, "--npu", "sim:m4"]),
            ("--window: wants 0 or at least 2 tokens, got 1", ["eval", self.model, "-f", self.model, "--window", "1"]),
            ("--chunk: wants at most 64 lengths, got 65", ["calibrate", self.model, "-f", self.model, "--chunk", "1-65"]),
            ("-t: wants whole numbers from 0 to 1024, got '-1'", ["bench", self.model, "-t", "-1"]),
            ("--activation-bits: wants one of 8, 16, got '010'", ["bench", self.model, "--activation-bits", "010"]),
            ("-p and -f", ["run", self.model, "-p", "x", "-f", "y"]),
            ("--prompt", ["run", self.model, "-p"]),
            ("'surplus'", ["run", self.model, "surplus"]),
            ("-p: wants whole numbers", ["bench", self.model, "-p", "many"]),
            ("nothing to measure", ["bench", self.model, "-p", "0", "-n", "0"]),
            ("-pg: wants two numbers", ["bench", self.model, "-pg", "1,2,3"]),
            ("--output", ["bench", self.model, "-o", "xml"]),
            ("nonsense", ["make-model", "--shape", "nonsense", "-o", self.dir / "x.gguf"]),
            ("--output: wants a file or a folder, - (stdout) cannot hold it",
             ["make-model", "--shape", "tiny-qwen3moe", "-o", "-"]),
            ("--out: wants a folder", ["exec", "x.mlpackage", "--out", "-"]),
            ("--out: wants a folder", ["compile", self.model, "-o", "-"]),
            ("--sweep: wants a file", ["simulate", "phi-tiny-moe", "--sweep", "-"]),
            ("--resume: wants a file", ["eval", self.model, "--task", "needle-single", "--resume", "-"]),
            ("--output is required", ["make-model", "--shape", "tiny-qwen3moe"]),
        ]:
            with self.subTest(args=args):
                self.fails(2, part, *args)

    def test_flags_that_cannot_be_obeyed_are_refused(self):
        """None is overruled without a word."""
        sim, run = ["--npu", "sim:m2-max"], ["run", self.model, "-p", "x"]
        ours = "of placement ours only"
        for part, args in [
            ("--placement: wants --npu too", [*run, "--placement", "all"]),
            ("--stats: wants --npu too", ["eval", self.model, "-f", self.model, "--stats"]),
            ("--no-agreement: wants --npu too", ["eval", self.model, "-f", self.model, "--no-agreement"]),
            ("--keep-warm: wants --npu coreml", [*run, "--keep-warm", "1"]),
            ("--cache: wants --npu coreml, got sim:m2-max", [*run, *sim, "--cache", self.dir]),
            ("--cache-gb: wants --npu coreml", [*run, *sim, "--cache-gb", "1"]),
            ("--npu-spec: wants --npu coreml", [*run, *sim, "--npu-spec", "m4"]),
            ("moe batch: 100 tokens, wanted at least a chunk of 512", [*run, *sim, "--npu-chunk", "512", "--moe-batch", "100"]),
            ("moe batch: 100 tokens, wanted at least a chunk of 256", ["plan", self.model, "--moe-batch", "100"]),
            ("only placement ours has a choice", [*run, *sim, "--placement", "all", "--order", "wavefront"]),
            (f"--moe-batch: {ours}, got all", [*run, *sim, "--placement", "all", "--moe-batch", "512"]),
            (f"--moe-batch: {ours}, got base", ["plan", self.model, "--placement", "base", "--moe-batch", "512"]),
            ("--max-weight-error: wants weights that are auto", [*run, *sim, "--max-weight-error", "0.1"]),
            ("--max-weight-error: wants weights that are auto", ["plan", self.model, "--max-weight-error", "0.1"]),
            ("--expert-weights: placement cpu runs experts on", ["plan", self.model, "--placement", "cpu", "--expert-weights", "lut4"]),
            ("--expert-weights: placement anemll", [*run, *sim, "--placement", "anemll", "--expert-weights", "lut4"]),
            ("--attention-weights: placement naive", ["plan", self.model, "--placement", "naive", "--attention-weights", "lut4"]),
            ("--objective: placement base", ["plan", self.model, "--placement", "base", "--objective", "energy"]),
            ("--mode: placement base has no rows above a capacity", ["plan", self.model, "--placement", "base", "--mode", "prune"]),
            ("--expert-weights: no placement asked for", ["simulate", "phi-tiny-moe", "--placement", "cpu,anemll", "--expert-weights", "lut4"]),
            ("--attention-weights: no placement", ["simulate", "phi-tiny-moe", "--placement", "naive", "--attention-weights", "lut4"]),
            ("--json: not with -o csv", ["bench", self.model, "-o", "csv", "--json"]),
            ("--all: not with keys", ["cache", "--cache", self.dir, "rm", "--all", "00"]),
            ("--f32: of the reference executor", ["exec", "x.mlpackage", "-o", self.dir, "--f32", "--npu", "coreml"]),
            ("--escape: of -p only", ["run", self.model, "-f", self.model, "-e"]),
            ("--ubatch-size: of runs", ["compile", self.model, "-ub", "64"]),
            ("--cache-type-k: of runs", ["compile", self.model, "-ctk", "f32", "-ctv", "f32"]),
            ("'tiny-qwen3' is dense", ["make-model", "--shape", "tiny-qwen3", "--zipf", "0.35", "-o", self.dir / "x"]),
            ("'tiny-llama' is dense", ["make-model", "--shape", "tiny-llama", "--per-expert", "-o", self.dir / "x"]),
            ("--file: no errors are measured", ["plan", self.model, "-f", self.model]),
            ("--trace: only 'npumoe run'", ["compile", self.model, "--trace", self.dir / "x"]),
            ("--parse-special: not in a chat", [*run, "--chat", "--parse-special"]),
            (f"--order: {ours}", ["simulate", "phi-tiny-moe", "--placement", "all,base", "--order", "wavefront"]),
            (f"--objective: {ours}", ["simulate", "phi-tiny-moe", "--placement", "cpu", "--objective", "edp"]),
            (f"--moe-batch: {ours}", ["simulate", "phi-tiny-moe", "--placement", "cpu", "--moe-batch", "512"]),
            ("--details: wants --json", ["simulate", "phi-tiny-moe", "--details"]),
            ("--details: wants --json", ["simulate", "phi-tiny-moe", "--details", "--sweep", self.dir / "x.csv"]),
            ("--json: not with --sweep", ["simulate", "phi-tiny-moe", "--json", "--sweep", self.dir / "x.json"]),
            ("--drift: wants a file", ["simulate", "phi-tiny-moe", "--drift", "0.1"]),
            ("--drift: wants a file", ["report", "phi-tiny-moe", "--drift", "0.1"]),
            ("--tiers: of placements tiers", ["plan", self.model, "--tiers", "2"]),
            ("--tiers: of placements tiers", ["simulate", "phi-tiny-moe", "--placement", "ours", "--tiers", "2"]),
            ("--per-expert: not with --hf", ["make-model", *self.SHAPE, "--hf", "--per-expert", "-o", self.dir / "x"]),
            ("--cache: wants --self-test", ["doctor", "--cache", self.dir]),
            ("--output: not with --published", ["report", "--published", "-o", self.dir / "x.html"]),
            ("--npu: not with --published", ["report", "--published", "--npu", "m4"]),
            ("--model: not with --published", ["report", "--published", "phi-tiny-moe"]),
            ("--order: not with --published", ["report", "--published", "--order", "auto"]),
        ]:
            with self.subTest(args=args):
                self.fails(2, part, *args)
        # A variable stands for all commands: it cannot make a flag silent, and needs no use itself.
        for variable in ("ours", "all"):
            self.fails(2, "--placement: wants --npu too", *run, "--placement", "all", env={"NPUMOE_PLACEMENT": variable})
        self.ok(*run, "-n", "1", env={"NPUMOE_PLACEMENT": "all", "NPUMOE_MOE_BATCH": "512", "NPUMOE_KEEP_WARM": "1"})
        self.ok(*run, *sim, "-n", "1", "--placement", "all", env={"NPUMOE_MOE_BATCH": "512", "NPUMOE_CACHE_GB": "1"})

    def test_flags_that_are_clamped_are_said(self):
        run = ["run", self.model, "-p", "x", "-n", "1"]
        self.assertEqual(self.ok(*run, "-b", "32", "-ub", "64").lines, ["npumoe: note: -ub 64: chunks have 32 tokens, as -b says"])
        self.assertEqual(self.ok(*run, "-ub", "4096").lines, ["npumoe: note: -ub 4096: chunks have 2048 tokens, as -b says"])
        self.assertEqual(self.ok(*run, "-b", "32").lines, [])
        self.assertEqual(self.ok(*run, "-ub", "64", env={"LLAMA_ARG_BATCH": "32"}).lines,
                         ["npumoe: note: -ub 64: chunks have 32 tokens, as LLAMA_ARG_BATCH (for --batch-size) says"])
        bench = npumoe("bench", self.model, "-p", "4", "-n", "0", "-r", "1", "-b", "8", "-ub", "8,16")
        self.assertEqual(bench.lines[0], "npumoe: note: -ub 16: chunks have 8 tokens, as -b says")
        sim = ["--npu", "sim:m2-max", "--npu-chunk"]
        said = "npumoe: note: --npu-chunk 65536: planned with 512: what the context and the NPU allow"
        for args in (run, ["eval", self.model, "-f", self.write("words.txt", b"words and words"), "--json"],
                     ["compile", self.model, "-o", self.dir / "clamped"]):
            self.assertIn(said, self.ok(*args, *sim, "65536").lines)
            self.assertNotIn("note: --npu-chunk", self.ok(*args, *sim, "64").err)
        self.assertIn(said.replace("--npu-chunk", "NPUMOE_NPU_CHUNK (for --npu-chunk)"),
                      self.ok(*run, *sim[:2], env={"NPUMOE_NPU_CHUNK": "65536"}).lines)
        plan = ["plan", self.model, "-o", self.dir / "said.json"]
        self.assertEqual(self.ok(*plan).lines, [])
        self.assertEqual(self.ok(*plan, "--chunk", "512").lines, [])  # the default of --moe-batch is no wish
        for flag, wanted, got in (("--chunk", 100, 128), ("--moe-batch", 4096, 512), ("--prompt", 100000, 512)):
            done = self.ok(*plan, flag, str(wanted))
            self.assertEqual(len(done.lines), 1, done.err)
            self.assertIn(f"note: {flag} {wanted}: planned with {got}: ", done.lines[0])

    def test_help_lists_the_values(self):
        for command, placement in (("plan", True), ("simulate", True), ("run", True), ("report", False)):
            text = " ".join(self.ok(command, "--help").text().split())
            self.assertIn("auto, layer-major, wavefront", text)
            if placement:
                self.assertIn("time, energy, edp", text)
                self.assertIn("ours, cpu, naive, anemll, base, tiers, tiers+groups, all", text)

    def test_numbers_are_read_as_written_or_refused(self):
        """Every flag of every command that takes one: nothing wraps, nothing is octal, no NaN."""
        commands = {
            "run": [self.model, "-p", "x"], "chat": [self.model], "eval": [self.model, "-f", self.model],
            "calibrate": [self.model, "-f", self.model], "bench": [self.model], "plan": [self.model],
            "simulate": ["phi-tiny-moe"], "report": ["phi-tiny-moe"], "compile": [self.model],
            "make-model": [*self.SHAPE, "-o", self.dir / "never.gguf"],
        }
        # Of all that reads as something else elsewhere; each flag is then tried with what wraps to 1, or is no number.
        for name, values in (("--seed", ["1.5", "1e3", "0x10", "010", "+1", "-1", "99999999999999999999"]),
                             ("--zipf", ["inf", "0x1p3", "1e400", "warm", "1,5"])):
            for value in values:
                with self.subTest(flag=name, value=value):
                    line = self.fails(2, f": {name}: wants a ", "make-model", *commands["make-model"], f"{name}={value}")
                    self.assertIn(f", got '{value}'", line)
        n_seen = 0
        for command, needed in commands.items():
            for entry in re.split(r"(?m)^  (?=(?:-\w,)?--)", self.ok(command, "--help").text()):
                flag = re.match(r"(?:-\w,)?(--[\w-]+)[\w,-]* ([NX])\s", entry)
                if not flag:
                    continue
                n_seen += 1
                name, kind = flag.groups()
                value = "nan" if kind == "X" else "-18446744073709551615"
                with self.subTest(command=command, flag=name):
                    line = self.fails(2, f": {name}: wants a ", command, *needed, f"{name}={value}")
                    self.assertIn(f", got '{value}'", line)
        self.assertGreater(n_seen, 70)
        self.assertFalse((self.dir / "never.gguf").exists())
        self.ok("run", self.model, "-p", "x", "-n", "1", "-s", "-1")  # as its help says

    def test_empty_values_name_nothing(self):
        for name, args in [
            ("--model", ["run", "-m", "", "-p", "x"]),
            ("--model", ["info", self.model, ""]),
            ("--file", ["run", self.model, "-f", ""]),
            ("--npu", ["run", self.model, "-p", "x", "--npu="]),
            ("--plan", ["run", self.model, "-p", "x", "--npu", "sim:m2-max", "--plan", ""]),
            ("--cache", ["run", self.model, "-p", "x", "--npu", "sim:m2-max", "--cache", ""]),
            ("--trace", ["run", self.model, "-p", "x", "--npu", "sim:m2-max", "--trace", ""]),
            ("--chat-template", ["run", self.model, "-p", "x", "--chat-template", ""]),
            ("--output", ["make-model", "--shape", "tiny-qwen3moe", "-o", ""]),
            ("--output", ["calibrate", self.model, "-f", self.model, "-o", ""]),
            ("--stats", ["plan", self.model, "--stats", ""]),
            ("--output", ["plan", self.model, "-o", ""]),
            ("--routing", ["simulate", "phi-tiny-moe", "--routing", ""]),
            ("--model", ["simulate", ""]),
            ("--output", ["report", "-o", ""]),
            ("--resume", ["eval", self.model, "--task", "needle-single", "--resume", ""]),
            ("key", ["cache", "--cache", self.dir, "rm", ""]),
            ("--npu", ["doctor", "--npu", ""]),
        ]:
            with self.subTest(args=args):
                self.fails(2, f"{args[0]}: {name}: the value is empty", *args)
        self.assertTrue(self.run_text("-p", "x", "-n", "1", env={"NPUMOE_NPU": "", "NPUMOE_CACHE": ""}).startswith(b"x"))

    def test_long_values_are_cut_in_messages(self):
        long = "x" * 50_000
        wide = "\u20ac" * 20_000
        for code, args in [(2, [long]), (2, ["run", self.model, "--" + long]), (2, ["run", self.model, "-p", "x", "--temp", long]),
                           (2, ["run", self.model, "-p", "x", "--npu", "sim:m2-max", "--placement", wide]),
                           (2, ["run", self.model, "-p", "x", "--chat-template", wide]),
                           (2, ["run", self.model, "-p", "x", f"--chat-template={long}"]),
                           (1, ["run", long, "-p", "x"]), (1, ["run", self.model, "-f", wide]),
                           (2, ["make-model", "--shape", long, "-o", self.dir / "x"])]:
            with self.subTest(args=args[:-1], last=str(args[-1])[:9]):
                line = self.fails(code, "...", *args)
                self.assertLess(len(line), 600)
        for args in (["run", self.model, "-p", "x", "-t" + long], ["exec", "x.mlpackage", "--in", "a=" + long, "-o", self.dir],
                     ["simulate", "phi-tiny-moe,a" + long, "--seeds", "1", "--placement", "cpu"],
                     ["bench", self.model, "-p", "1,2," + long], ["plan", self.model, "--stats", "a/" + long + "/b"]):
            done = npumoe(*args)
            self.assertIn(done.code, (1, 2))
            self.assertLess(len(done.err), 1100)
        self.fails(2, "xxx...xxx", "run", self.model, "-p", "x", env={"NPUMOE_THREADS": long})

    def test_well_known_flags_that_change_nothing_are_ignored_with_a_note(self):
        plain = self.run_text("-p", "abc", "-n", "4")
        for flags in (["-ngl", "99"], ["--n-gpu-layers=99"], ["-fa"], ["-fa", "on"], ["--no-mmap"], ["-tb", "2"],
                      ["-ncmoe", "3"], ["--jinja"], ["-no-cnv"]):
            with self.subTest(flags=flags):
                done = self.ok("run", *flags, self.model, "--temp", "0", "-p", "abc", "-n", "4")
                self.assertEqual(done.out, plain)
                self.assertEqual(len(done.lines), 1)
                self.assertTrue(done.lines[0].startswith(f"npumoe: note: {flags[0].split('=')[0]} is ignored: "))

    def test_well_known_flags_that_cannot_be_obeyed_are_refused(self):
        for flags in (["--grammar", "x"], ["-hf", "user/repo"], ["-cnv"], ["--json-schema", "{}"], ["--lora", "x"],
                      ["--chat-template-file=x"]):
            with self.subTest(flags=flags):
                self.fails(2, flags[0].split("=")[0] + ": ", "run", self.model, "-p", "abc", *flags)

    def test_text_that_looks_like_a_flag_is_text(self):
        self.assertTrue(self.run_text("-p", "-ngl", "-n", "1").startswith(b"-ngl"))
        self.assertTrue(self.run_text("-p", "--help", "-n", "1").startswith(b"--help"))
        self.assertTrue(self.run_text("-p", "[a,b]", "-n", "1").startswith(b"[a,b]"))
        self.assertTrue(self.run_text("--prompt=a b", "-n", "1").startswith(b"a b"))

    def test_environment_variables_stand_in_for_flags(self):
        expected = self.run_text("-p", "abc", "-n", "3")
        for env in ({"LLAMA_ARG_N_PREDICT": "3"}, {"NPUMOE_N_PREDICT": "3", "LLAMA_ARG_N_PREDICT": "5"}):
            self.assertEqual(self.run_text("-p", "abc", env=env), expected)
        self.assertEqual(self.run_text("-p", "abc", "-n", "3", env={"NPUMOE_N_PREDICT": "9"}), expected)
        self.assertEqual(self.ok("run", "-p", "abc", "-n", "3", "--temp", "0",
                                 env={"LLAMA_ARG_MODEL": os.fspath(self.model)}).out, expected)

    def test_what_a_variable_says_is_told_by_its_name(self):
        run, sim = ["run", self.model, "-p", "x"], ["--npu", "sim:m2-max"]
        for code, part, args, env in [
            (2, "run: NPUMOE_THREADS, for --threads: wants", run, {"NPUMOE_THREADS": "many"}),
            (2, "run: LLAMA_ARG_CTX_SIZE, for --ctx-size: wants", run, {"LLAMA_ARG_CTX_SIZE": "-1"}),
            (2, "run: NPUMOE_NPU, for --npu: wants one of", run, {"NPUMOE_NPU": "m2-max"}),
            (2, "run: LLAMA_ARG_CHAT_TEMPLATE, for --chat-template: wants", run, {"LLAMA_ARG_CHAT_TEMPLATE": "x"}),
            (2, "run: NPUMOE_PLACEMENT, for --placement: wants one of", [*run, *sim], {"NPUMOE_PLACEMENT": "x"}),
            (2, "(from the environment: LLAMA_ARG_CACHE_TYPE_K)", run, {"LLAMA_ARG_CACHE_TYPE_K": "q8_0"}),
            (2, "(from the environment: NPUMOE_MOE_BATCH)", [*run, *sim, "--npu-chunk", "512"], {"NPUMOE_MOE_BATCH": "64"}),
            (2, "NPUMOE_NPU_CHUNK (for --npu-chunk) and --plan: ", [*run, *sim, "--plan", "p"], {"NPUMOE_NPU_CHUNK": "64"}),
            (2, "--npu-chunk and NPUMOE_PLAN (for --plan): ", [*run, *sim, "--npu-chunk", "64"], {"NPUMOE_PLAN": "p"}),
            (1, "(NPUMOE_PLAN is set)", [*run, *sim], {"NPUMOE_PLAN": "/no/such/plan.json"}),
            (1, "(LLAMA_ARG_MODEL is set)", ["run", "-p", "x"], {"LLAMA_ARG_MODEL": "/no/such/model.gguf"}),
            (1, "(NPUMOE_NPU is set)", run, {"NPUMOE_NPU": "coreml:gpu"}),
        ]:
            with self.subTest(env=env):
                self.fails(code, part, *args, env=env)
        # The flag is what is wrong here, whatever the variable says.
        line = self.fails(2, "run: --threads: wants", *run, "-t", "many", env={"NPUMOE_THREADS": "2"})
        self.assertNotIn("NPUMOE", line)

    def test_closed_streams_do_not_become_files(self):
        out = self.dir / "closed.gguf"
        done = subprocess.run(["sh", "-c", 'exec "$0" make-model --shape tiny-qwen3moe -o "$1" >&- 2>&- <&-', NPUMOE, out],
                              timeout=SECONDS, check=False)
        self.assertEqual(done.returncode, 1)  # its one line of output had nowhere to go
        self.ok("info", out)                  # but the file is whole
