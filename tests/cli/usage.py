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
