# SPDX-License-Identifier: Apache-2.0
"""Flags, exit codes, environment variables."""
import os
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
            ("temperature", ["run", self.model, "-p", "x", "--temp", "nan"]),
            ("top", ["run", self.model, "-p", "x", "--top-p", "-1"]),
            ("--n-predict", ["run", self.model, "-p", "x", "-n", "-3"]),
            ("--n-predict", ["run", self.model, "-p", "x", "-n", "99999999999999999999"]),
            ("--ctx-size", ["run", self.model, "-p", "x", "-c", "-1"]),
            ("--ctx-size", ["run", self.model, "-p", "x", "-c", "5000000000"]),
            ("--ctx-size", ["run", self.model, "-p", "x", "-c", "16777217"]),
            ("-t: wants 1 to 1024", ["run", self.model, "-p", "x", "-t", "100000"]),
            ("--ubatch-size", ["run", self.model, "-p", "x", "-ub", "0"]),
            ("keys and values must have one type", ["run", self.model, "-p", "x", "-ctk", "f32"]),
            ("keys and values must have one type", ["run", self.model, "-p", "x", "-ctk", "q8_0"]),
            ("keys and values must have one type", ["info", self.model, "-ctv", "q8_0"]),
            ("wants f16, f32 or q8_0, got 'q4_0'", ["run", self.model, "-p", "x", "-ctk", "q4_0", "-ctv", "q4_0"]),
            ("wants f16, f32 or q8_0, got 'Q8_0'", ["bench", self.model, "-ctk", "Q8_0", "-ctv", "Q8_0"]),
            ("unknown format 'nonsense', wanted one of: ", ["run", self.model, "-p", "x", "--chat-template", "nonsense"]),
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
        ]:
            with self.subTest(args=args):
                self.fails(2, part, *args)
        # A variable stands for all commands: it cannot make a flag silent, and needs no use itself.
        self.fails(2, "--placement: wants --npu too", *run, "--placement", "all", env={"NPUMOE_PLACEMENT": "ours"})
        self.ok(*run, "-n", "1", env={"NPUMOE_PLACEMENT": "all", "NPUMOE_MOE_BATCH": "512", "NPUMOE_KEEP_WARM": "1"})
        self.ok(*run, *sim, "-n", "1", "--placement", "all", env={"NPUMOE_MOE_BATCH": "512", "NPUMOE_CACHE_GB": "1"})

    def test_flags_that_are_clamped_are_said(self):
        run = ["run", self.model, "-p", "x", "-n", "1"]
        self.assertEqual(self.ok(*run, "-b", "32", "-ub", "64").lines, ["npumoe: note: -ub 64: chunks have 32 tokens, as -b says"])
        self.assertEqual(self.ok(*run, "-ub", "4096").lines, ["npumoe: note: -ub 4096: chunks have 2048 tokens, as -b says"])
        self.assertEqual(self.ok(*run, "-b", "32").lines, [])
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
                     ["simulate", "phi-tiny-moe,a" + long], ["bench", self.model, "-p", "1,2," + long],
                     ["plan", self.model, "--stats", "a/" + long + "/b"]):
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
        self.fails(2, "NPUMOE_THREADS", "run", self.model, "-p", "x", env={"NPUMOE_THREADS": "many"})

    def test_closed_streams_do_not_become_files(self):
        out = self.dir / "closed.gguf"
        done = subprocess.run(["sh", "-c", 'exec "$0" make-model --shape tiny-qwen3moe -o "$1" >&- 2>&- <&-', NPUMOE, out],
                              timeout=SECONDS, check=False)
        self.assertEqual(done.returncode, 1)  # its one line of output had nowhere to go
        self.ok("info", out)                  # but the file is whole
