#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line from outside: exit codes, streams, signals, hostile input.

usage: cli_test.py NPUMOE GROUP      GROUP is one of the test classes below; exit 77 when all of it is skipped
"""
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHARED_MODELS = ROOT.parent / "shared" / "data" / "models"
NPUMOE = ""
SECONDS = 120  # for one command, also under sanitizers on a busy machine


def clean_environment(**extra):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NPUMOE_", "LLAMA_ARG_"))}
    return {**kept, **extra}


class Outcome:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err.decode("utf-8", "replace")
        self.lines = self.err.splitlines()

    def text(self):
        return self.out.decode("utf-8")


def npumoe(*args, stdin=b"", env=None):
    done = subprocess.run([NPUMOE, *map(os.fspath, args)], input=stdin, capture_output=True, timeout=SECONDS,
                          env=clean_environment(**(env or {})), check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


class Case(unittest.TestCase):
    """Small models in a folder of their own, made once for each group."""

    SHAPE = ["--shape", "tiny-qwen3moe"]

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.model = cls.dir / "tiny.gguf"
        made = npumoe("make-model", *cls.SHAPE, "--seed", "3", "-o", cls.model)
        assert made.code == 0, made.err

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def ok(self, *args, **options):
        done = npumoe(*args, **options)
        self.assertEqual(done.code, 0, done.err)
        return done

    def fails(self, code, part, *args, **options):
        """Exit code, nothing but one line 'npumoe: ...' on stderr (notes aside), and nothing on stdout."""
        done = npumoe(*args, **options)
        self.assertEqual(done.code, code, done.err)
        lines = [line for line in done.lines if not line.startswith("npumoe: note: ")]
        self.assertEqual(len(lines), 1, done.err)
        self.assertTrue(lines[0].startswith("npumoe: "), done.err)
        self.assertIn(part, lines[0])
        self.assertEqual(done.out, b"")
        return lines[0]

    def run_text(self, *args, **options):
        return self.ok("run", self.model, "--temp", "0", *args, **options).out

    def write(self, name, data):
        path = self.dir / name
        path.write_bytes(data)
        return path


class Usage(Case):
    def test_help_goes_to_stdout_and_names_every_command(self):
        for args in (["--help"], ["help"], ["-h"]):
            text = self.ok(*args).text()
            for command in ("run", "chat", "info", "bench", "make-model"):
                self.assertRegex(text, rf"(?m)^  {command} ")
        for command in ("run", "chat", "info", "bench", "make-model"):
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
            ("-t: wants 1 to 1024", ["run", self.model, "-p", "x", "-t", "100000"]),
            ("--ubatch-size", ["run", self.model, "-p", "x", "-ub", "0"]),
            ("keys and values must have one type", ["run", self.model, "-p", "x", "-ctk", "f32"]),
            ("wants f16 or f32, got 'q8_0'", ["run", self.model, "-p", "x", "-ctk", "q8_0", "-ctv", "q8_0"]),
            ("unknown format 'nonsense', wanted one of: ", ["run", self.model, "-p", "x", "--chat-template", "nonsense"]),
            ("-p and -f", ["run", self.model, "-p", "x", "-f", "y"]),
            ("--prompt", ["run", self.model, "-p"]),
            ("'surplus'", ["run", self.model, "surplus"]),
            ("-p: wants whole numbers", ["bench", self.model, "-p", "many"]),
            ("nothing to measure", ["bench", self.model, "-p", "0", "-n", "0"]),
            ("-pg: wants two numbers", ["bench", self.model, "-pg", "1,2,3"]),
            ("--output", ["bench", self.model, "-o", "xml"]),
            ("unknown setting", ["make-model", "--shape", "nonsense", "-o", self.dir / "x.gguf"]),
            ("--output is required", ["make-model", "--shape", "tiny-qwen3moe"]),
        ]:
            with self.subTest(args=args):
                if part == "unknown setting":
                    part = "nonsense"
                self.fails(2, part, *args)

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


class Run(Case):
    def test_prints_prompt_and_text_and_one_newline(self):
        whole = self.run_text("-p", "Hello", "-n", "6")
        text = self.run_text("-p", "Hello", "-n", "6", "--no-display-prompt")
        self.assertEqual(whole, b"Hello" + text)
        self.assertTrue(text.endswith(b"\n"))
        self.assertGreater(len(text), 1)
        self.assertEqual(self.run_text("-p", "Hello", "-n", "0"), b"Hello\n")

    def test_stderr_is_silent_unless_asked(self):
        self.assertEqual(self.ok("run", self.model, "-p", "Hello", "-n", "3").err, "")

    def test_result_depends_on_neither_threads_nor_chunk(self):
        prompt = self.write("prompt.txt", b"The quick brown fox jumps over the lazy dog. " * 8)
        expected = self.run_text("-f", prompt, "-n", "24")
        for flags in (["-t", "1"], ["-t", "2"], ["-t", "4"], ["-ub", "1"], ["-ub", "7"], ["-b", "64"]):
            self.assertEqual(self.run_text("-f", prompt, "-n", "24", *flags), expected, flags)

    def test_same_seed_same_text(self):
        flags = ["run", self.model, "-p", "Hello", "-n", "24", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--min-p", "0"]
        first = self.ok(*flags, "-s", "7").out
        self.assertEqual(self.ok(*flags, "-s", "7").out, first)
        self.assertNotEqual(self.ok(*flags, "-s", "8").out, first)
        seeds = {json.loads(self.ok(*flags, "--json").text())["seed"] for _ in range(2)}
        self.assertEqual(len(seeds), 2)  # -s -1 is the default: a new seed each time

    def test_top_k_one_is_greedy(self):
        self.assertEqual(self.ok("run", self.model, "-p", "Hello", "-n", "12", "--top-k", "1", "--temp", "2").out,
                         self.run_text("-p", "Hello", "-n", "12"))

    def test_prompt_sources_agree(self):
        expected = self.run_text("-p", "one\ntwo", "-n", "5")
        self.assertEqual(self.run_text("-p", "one\\ntwo", "-n", "5"), expected)
        self.assertEqual(self.run_text("-f", self.write("a.txt", b"one\ntwo\n"), "-n", "5"), expected)
        self.assertEqual(self.run_text("-n", "5", stdin=b"one\ntwo\n"), expected)
        self.assertEqual(self.run_text("-p", "-", "-n", "5", stdin=b"one\ntwo\n"), expected)
        self.assertTrue(self.run_text("-p", "one\\ntwo", "--no-escape", "-n", "1").startswith(b"one\\ntwo"))

    def test_bytes_of_the_prompt_survive(self):
        for data in (b"a\0b", b"\xff\xfe\x80", "é😊".encode(), b"\xf0\x9f"):
            prompt = self.write("bytes.txt", data)
            self.assertTrue(self.run_text("-f", prompt, "-n", "2").startswith(data), data)

    def test_json(self):
        done = self.ok("run", self.model, "-p", "Hello", "-n", "6", "--temp", "0", "--json")
        result = json.loads(done.text())
        text = self.run_text("-p", "Hello", "-n", "6", "--no-display-prompt")[:-1]
        self.assertEqual(result["text"], text.decode("utf-8", "replace"))
        self.assertEqual((result["prompt"], len(result["tokens"]), result["stop_reason"]), ("Hello", 6, "length"))
        self.assertEqual(result["timings"]["predicted_n"], 5)  # the last token is drawn, not evaluated
        self.assertGreater(result["timings"]["prompt_n"], 0)
        self.assertGreater(result["memory"]["peak_resident_bytes"], result["memory"]["mapped_weights_bytes"])
        broken = json.loads(self.ok("run", self.model, "-f", self.write("b.txt", b"\xff"), "-n", "1", "--json").text())
        self.assertEqual(broken["prompt"], "\ufffd")

    def test_stats_on_stderr(self):
        done = self.ok("run", self.model, "-p", "Hello", "-n", "6", "--stats", "-s", "11")
        for line in (r"prompt +\d+ tokens +[\d.]+ s +[\d.]+ t/s", r"generation +5 tokens +[\d.]+ s +[\d.]+ t/s",
                     r"first token after +[\d.]+ s", r"stopped by length, seed 11", r"mapped weights +[\d.]+ [KMG]iB",
                     r"KV cache, reserved +[\d.]+ [KMG]iB", r"scratch +[\d.]+ [KMG]iB", r"= peak bound +[\d.]+ [KMG]iB",
                     r"peak resident \(process\) +[\d.]+ [KMG]iB"):
            self.assertRegex(done.err, f"(?m)^{line}$")
        self.assertNotIn(b"t/s", done.out)

    def test_verbose_prompt_lists_the_tokens(self):
        n = int(re.match(r"prompt: (\d+) tokens", self.ok("run", self.model, "-p", "Hi\n", "-n", "0", "--verbose-prompt").err)[1])
        done = self.ok("run", self.model, "-p", "Hi\n", "-n", "0", "--verbose-prompt")
        self.assertEqual(len(done.lines), n + 1)
        self.assertIn("\\n", done.lines[-1])

    def test_a_full_context_ends_the_text_with_a_note(self):
        done = self.ok("run", self.model, "-p", "Hello", "-c", "16", "--temp", "0")
        self.assertIn("npumoe: stopped: the context of 16 tokens is full", done.err)

    def test_a_prompt_beyond_the_context_says_both_numbers(self):
        line = self.fails_with_echo(1, "context: ", "run", self.model, "-c", "16", "-p", "x" * 400)
        self.assertRegex(line, r"\d+ tokens needed, 16 available")

    def fails_with_echo(self, code, part, *args):
        done = npumoe(*args)
        self.assertEqual(done.code, code, done.err)
        self.assertEqual(len(done.lines), 1, done.err)
        self.assertIn(part, done.lines[0])
        return done.lines[0]

    def test_prompt_files_that_cannot_be_read(self):
        self.fails(1, "No such file", "run", self.model, "-f", self.dir / "absent.txt")
        self.fails(1, "Is a directory", "run", self.model, "-f", self.dir)
        self.fails(2, "more than 64.00 MiB, the limit", "run", self.model, "-f", "/dev/zero")

    def test_models_that_cannot_be_read(self):
        for name, data in [("empty.gguf", b""), ("junk.gguf", b"junk" * 100), ("page.gguf", b"<!DOCTYPE html><html>"),
                           ("cut.gguf", self.model.read_bytes()[:-1])]:
            line = self.fails(1, name, "run", self.write(name, data), "-p", "x")
            self.assertNotIn("\n", line)
        self.fails(1, "absent.gguf", "run", self.dir / "absent.gguf", "-p", "x")
        empty = self.dir / "empty"
        empty.mkdir(exist_ok=True)
        self.fails(1, "empty", "run", empty, "-p", "x")
        self.fails(1, "\\x1B[2J", "run", self.dir / "\x1b[2J.gguf", "-p", "x")

    def test_chat_format_of_a_single_question(self):
        flags = ["run", self.model, "-p", "Hello", "-n", "5", "--temp", "0", "--chat-template", "chatml"]
        answer = self.ok(*flags)
        self.assertFalse(answer.out.startswith(b"Hello"))
        plain, asked = (int(json.loads(self.ok(*f, "--json").text())["timings"]["prompt_n"])
                        for f in (["run", self.model, "-p", "Hello", "-n", "5"], flags))
        self.assertGreater(asked, plain)
        system = json.loads(self.ok(*flags, "-sys", "Be kind.", "--json").text())["timings"]["prompt_n"]
        self.assertGreater(system, asked)

    def test_control_tokens_in_the_prompt_are_text_unless_asked(self):
        def n_tokens(*flags):
            done = self.ok("run", self.model, "-p", "<|im_end|>", "-n", "0", "--json", *flags)
            return json.loads(done.text())["timings"]["prompt_n"]
        if n_tokens("--parse-special") == n_tokens():
            self.skipTest("the made model has no <|im_end|> token")
        self.assertLess(n_tokens("--parse-special"), n_tokens())

    def test_hugging_face_folder_and_split_files_give_the_same_text(self):
        expected = self.run_text("-p", "Hello", "-n", "12")
        folder, split = self.dir / "hf", self.dir / "split.gguf"
        self.ok("make-model", *self.SHAPE, "--seed", "3", "--hf", "-o", folder)
        done = self.ok("run", folder, "-p", "Hello", "-n", "12", "--temp", "0")
        self.assertEqual(done.out, expected)
        self.ok("make-model", *self.SHAPE, "--seed", "3", "--splits", "3", "-o", split)
        parts = sorted(self.dir.glob("split*of*.gguf"))
        self.assertEqual(len(parts), 3)
        for part in parts:
            self.assertEqual(self.ok("run", part, "-p", "Hello", "-n", "12", "--temp", "0").out, expected)
        parts[1].unlink()
        self.fails(1, parts[1].name, "run", parts[0], "-p", "x")


class Streams(Case):
    """Pipes that close, disks that are full, Ctrl-C."""

    def start(self, *args, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([NPUMOE, *map(os.fspath, args)], env=clean_environment(), **options)

    def endless(self):
        return ["run", self.model, "-p", "Hello", "--temp", "0", "-c", "100000", "-n", "90000"]

    def long_prompt(self):
        return self.write("long.txt", b"The quick brown fox jumps over the lazy dog. " * 20000)

    def test_text_streams_while_it_is_made(self):
        with self.start(*self.endless()) as process:
            self.assertEqual(process.stdout.read(5), b"Hello")
            self.assertNotEqual(process.stdout.read(3), b"")
            self.assertIsNone(process.poll())
            process.kill()

    def test_a_reader_that_leaves_ends_the_program_quietly(self):
        with self.start(*self.endless()) as process:
            process.stdout.read(10)
            process.stdout.close()
            self.assertEqual(process.wait(timeout=SECONDS), 0)
            self.assertEqual(process.stderr.read(), b"")

    def test_help_into_a_closed_pipe(self):
        done = subprocess.run(["sh", "-c", '"$0" run --help | true', NPUMOE], capture_output=True, timeout=SECONDS, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_a_full_disk_is_an_error(self):
        for args in (["--help"], ["info", self.model], ["run", self.model, "-p", "x", "-n", "3"],
                     ["run", self.model, "-p", "x", "-n", "3", "--json"], ["--version"]):
            with open("/dev/full", "wb") as full, self.start(*args, stdout=full) as process:
                self.assertEqual(process.wait(timeout=SECONDS), 1, args)
                self.assertEqual(process.stderr.read(), b"npumoe: stdout: No space left on device\n")

    def test_ctrl_c_keeps_what_was_printed(self):
        with self.start(*self.endless()) as process:
            begin = process.stdout.read(40)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=SECONDS)
            self.assertEqual(process.returncode, 130)
            self.assertEqual(err, b"")
            self.assertTrue((begin + out).endswith(b"\n"))
        expected = self.run_text("-n", "12", "-p", "Hello")[:-1]
        self.assertTrue((begin + out).startswith(expected[:20]))

    def test_ctrl_c_while_the_prompt_is_read(self):
        with self.start("run", self.model, "-f", self.long_prompt(), "-c", "2000000", "-n", "1", "--no-display-prompt") as process:
            first = process.stderr.readline()  # progress: it takes longer than a second
            self.assertRegex(first.decode(), r"^npumoe: prompt: \d+ of \d+ tokens \(\d+ %\), [\d.]+ t/s\n$")
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=SECONDS)
            self.assertEqual((process.returncode, out), (130, b"\n"))

    def test_progress_on_a_terminal_is_one_line_that_goes_away(self):
        leader, follower = pty.openpty()
        with self.start("run", self.model, "-f", self.long_prompt(), "-c", "2000000", "-n", "1", "--no-display-prompt",
                        stderr=follower) as process:
            os.close(follower)
            seen = read_until(leader, lambda text: text.count(b"\rprompt: ") >= 2)
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            self.assertEqual(process.wait(timeout=SECONDS), 130)
            seen += read_rest(leader)
        os.close(leader)
        self.assertNotIn(b"\n", seen)
        self.assertTrue(seen.endswith(b"\r\x1b[K"))

    def test_ctrl_c_while_waiting_for_a_prompt(self):
        with self.start("run", self.model, stdin=subprocess.PIPE) as process:
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=SECONDS), 130)


def read_until(fd, enough):
    seen, end = b"", time.monotonic() + SECONDS
    while not enough(seen):
        if not select.select([fd], [], [], max(0, end - time.monotonic()))[0]:
            raise AssertionError(f"nothing more within {SECONDS} s after {seen!r}")
        seen += os.read(fd, 65536)
    return seen


def read_rest(fd):
    seen = b""
    try:
        while select.select([fd], [], [], 0.2)[0]:
            data = os.read(fd, 65536)
            if not data:
                break
            seen += data
    except OSError:  # Linux ends a pseudo-terminal so
        pass
    return seen


class Chat(Case):
    FLAGS = ["--chat-template", "chatml", "--temp", "0", "-n", "8"]

    def chat(self, text, *flags):
        return self.ok("chat", self.model, *self.FLAGS, *flags, stdin=text)

    def test_one_answer_per_line_and_no_decoration(self):
        done = self.chat(b"Hello\n")
        self.assertNotIn(b"> ", done.out)
        self.assertEqual(done.err, "")
        self.assertTrue(done.out.endswith(b"\n"))
        answer = self.ok("run", self.model, *self.FLAGS, "-p", "Hello").out
        self.assertEqual(done.out, answer)

    def test_a_second_turn_sees_the_first(self):
        two = self.chat(b"Hello\nAgain\n").out
        first, again = self.chat(b"Hello\n").out, self.chat(b"Again\n").out
        self.assertTrue(two.startswith(first))
        self.assertNotEqual(two[len(first):], again)
        self.assertEqual(self.chat(b"Hello\n/clear\nAgain\n").out, first + again)

    def test_a_reused_prefix_is_not_computed_again(self):
        done = self.chat(b"Hello\nAgain\n", "--stats")
        counts = [int(n) for n in re.findall(r"(?m)^prompt +(\d+) tokens", done.err)]
        fresh = self.chat(b"Again\n", "--stats")
        alone = int(re.search(r"(?m)^prompt +(\d+) tokens", fresh.err)[1])
        self.assertEqual(len(counts), 2)
        self.assertLess(counts[1], counts[0] + alone)

    def test_lines_between_fences_are_one_message(self):
        fenced = self.chat(b'"""\none\ntwo\n"""\n').out
        self.assertEqual(fenced, self.ok("run", self.model, *self.FLAGS, "-p", "one\ntwo").out)
        self.assertEqual(self.chat(b'"""one\ntwo"""\n').out, fenced)
        self.assertEqual(self.chat(b'"""\none\ntwo').out, fenced)  # a pipe that ends early

    def test_empty_lines_are_no_messages(self):
        self.assertEqual(self.chat(b"\n  \n\r\n").out, b"")
        self.assertEqual(self.chat(b"\nHello\r\n\n").out, self.chat(b"Hello").out)

    def test_commands(self):
        self.assertIn(b"/clear", self.chat(b"/help\n").out)
        self.assertEqual(self.chat(b"/bye\nHello\n").out, b"")
        self.assertEqual(self.chat(b"/exit\nHello\n").out, b"")
        shown = self.chat(b"/set temp 0.25\n/set parameter top_k 7\n/set system Be kind.\n/show\n").text()
        self.assertIn("temp 0.25 top-k 7 ", shown)
        self.assertRegex(shown, r"(?m)^system +Be kind\.$")
        self.assertRegex(shown, r"(?m)^format +chatml$")

    def test_set_changes_the_answer(self):
        self.assertEqual(self.chat(b"/set n-predict 2\nHello\n").out, self.chat(b"Hello\n", "-n", "2").out)
        self.assertEqual(self.chat(b"/set system Be kind.\nHello\n").out, self.chat(b"Hello\n", "-sys", "Be kind.").out)

    def test_wrong_commands_are_told_and_counted(self):
        for text, part in [(b"/frob\n", "unknown command '/frob'"), (b"/set\n", "/set"), (b"/set temp x\n", "/set temp"),
                           (b"/set temp nan\n", "temperature"), (b"/set top-k -1\n", "/set top-k"),
                           (b"/set volume 3\n", "/set volume")]:
            done = npumoe("chat", self.model, *self.FLAGS, stdin=text + b"Hello\n")
            self.assertEqual(done.code, 1, text)
            self.assertIn(part, done.err)
            self.assertEqual(len(done.lines), 1)
            self.assertEqual(done.out, self.chat(b"Hello\n").out)  # and the conversation goes on

    def test_a_message_beyond_the_context_does_not_end_the_conversation(self):
        done = npumoe("chat", self.model, *self.FLAGS, "-c", "128", stdin=b"x" * 4000 + b"\nHello\n")
        self.assertEqual(done.code, 1)
        self.assertRegex(done.err, r"\d+ tokens needed, 128 available")
        self.assertEqual(done.out, self.chat(b"Hello\n").out)

    def test_first_message_and_single_turn(self):
        expected = self.chat(b"Hello\n").out
        self.assertEqual(self.chat(b"", "-p", "Hello").out, expected)
        self.assertEqual(self.chat(b"Again\n", "-p", "Hello", "-st").out, expected)

    def test_on_a_terminal(self):
        """Prompt, Ctrl-C on an idle line, Ctrl-C in an answer, Ctrl-D."""
        leader, follower = pty.openpty()
        with subprocess.Popen([NPUMOE, "chat", self.model, "--chat-template", "chatml", "--temp", "0", "-c", "100000"],
                              stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
                              preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
                              env=clean_environment()) as process:
            os.close(follower)
            read_until(leader, lambda text: text.endswith(b"> "))
            os.write(leader, b"\x03")
            read_until(leader, lambda text: b"/bye leaves" in text and text.endswith(b"> "))
            os.write(leader, b"Hello\n")
            read_until(leader, lambda text: len(text) > 60)  # the answer runs on
            os.write(leader, b"\x03")
            read_until(leader, lambda text: text.endswith(b"\r\n> "))
            os.write(leader, b"/show\n")
            read_until(leader, lambda text: b"settings" in text and text.endswith(b"> "))
            os.write(leader, b"\x04")
            self.assertEqual(process.wait(timeout=SECONDS), 0)
        os.close(leader)


class Info(Case):
    def test_names_what_a_person_asks_for(self):
        text = self.ok("info", self.model).text()
        info = json.loads(self.ok("info", self.model, "--json").text())
        self.assertRegex(text, rf"(?m)^family +{info['family']}$")
        self.assertRegex(text, rf"(?m)^experts +{info['n_experts']} per layer, {info['top_k']} per token$")
        self.assertRegex(text, r"(?m)^bytes per expert +[\d.]+ [KM]iB \(\d+ B\)$")
        self.assertEqual(info["family"], "qwen3moe")
        expected = 3 * info["dim"] * info["expert_dim"] * 4  # gate, up and down in f32
        self.assertEqual(info["expert_bytes"], expected)
        self.assertEqual(info["kv_bytes_per_token"], info["n_layers"] * info["n_kv_heads"] * info["head_dim"] * 2 * 2)

    def test_lists_tensors(self):
        info = json.loads(self.ok("info", self.model, "--json", "--tensors").text())
        self.assertEqual(len(info["tensors"]), info["n_tensors"])
        self.assertEqual(sum(t["size_bytes"] for t in info["tensors"]), info["size_bytes"])
        text = self.ok("info", self.model, "--tensors").text()
        for tensor in info["tensors"]:
            self.assertIn(tensor["name"], text)

    def test_a_bad_file_does_not_hide_the_others(self):
        bad = self.write("bad.gguf", b"GGUF\3\0\0\0" + b"\xff" * 16)
        done = npumoe("info", bad, self.model, self.dir / "absent.gguf", self.model)
        self.assertEqual(done.code, 1)
        self.assertEqual(len(done.lines), 2, done.err)
        self.assertIn("bad.gguf", done.lines[0])
        self.assertIn("absent.gguf", done.lines[1])
        self.assertEqual(done.text().count("family "), 2)
        listed = json.loads(npumoe("info", "--json", bad, self.model).text())
        self.assertEqual(["error" in row for row in listed], [True, False])

    def test_hostile_files_end_in_one_line(self):
        def le(n, size):
            return int(n).to_bytes(size, "little")
        header = b"GGUF" + le(3, 4)
        good = self.model.read_bytes()
        files = {
            "zero-dim": header + le(1, 8) + le(0, 8) + le(1, 8) + b"t" + le(2, 4) + le(1, 8) + le(0, 8) + le(0, 4) + le(0, 8),
            "alignment-0": header + le(0, 8) + le(1, 8) + le(17, 8) + b"general.alignment" + le(4, 4) + le(0, 4),
            "long-key": header + le(0, 8) + le(1, 8) + le(0xFFFFFFFFFFFF, 8),
            "many-tensors": header + le(2**63, 8) + le(0, 8),
            "big-endian": b"GGUF" + (3).to_bytes(4, "big") + bytes(16),
            "html": b"<!DOCTYPE html>\n<html><body>404</body></html>\n",
            "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n",
            "half": good[:len(good) // 2],
            "header-only": header + le(0, 8) + le(0, 8),
        }
        for name, data in files.items():
            with self.subTest(name=name):
                self.fails(1, name + ".gguf", "info", self.write(name + ".gguf", data))

    def test_names_in_files_cannot_steer_the_terminal(self):
        good = self.model.read_bytes()
        name = json.loads(self.ok("info", self.model, "--json").text())["name"]
        evil = ("\x1b[2J" + "x" * len(name))[:len(name)].encode()
        self.assertGreater(len(name), 4)
        at = good.index(b"general.name") + len(b"general.name") + 4 + 8
        self.assertEqual(good[at:at + len(name)], name.encode())
        path = self.write("evil.gguf", good[:at] + evil + good[at + len(name):])
        done = self.ok("info", path)
        self.assertIn("\\x1B[2J", done.text())
        self.assertNotIn(b"\x1b", done.out)


class MakeModel(Case):
    def test_same_seed_same_bytes(self):
        again, other = self.dir / "again.gguf", self.dir / "other.gguf"
        self.ok("make-model", *self.SHAPE, "--seed", "3", "-o", again)
        self.ok("make-model", *self.SHAPE, "--seed", "4", "-o", other)
        self.assertEqual(again.read_bytes(), self.model.read_bytes())
        self.assertNotEqual(other.read_bytes(), self.model.read_bytes())

    def test_shape_flags_arrive_in_the_file(self):
        path = self.dir / "shaped.gguf"
        self.ok("make-model", *self.SHAPE, "--layers", "3", "--vocab", "777", "--experts", "6", "--top-k", "3", "--dim", "128",
                "--expert-dim", "96", "--type", "q8_0", "-o", path)
        info = json.loads(self.ok("info", "--json", path).text())
        self.assertEqual([info[k] for k in ("n_layers", "vocab_size", "n_experts", "top_k", "dim", "expert_dim", "type")],
                         [3, 777, 6, 3, 128, 96, "Q8_0"])

    def test_every_family_can_be_made_opened_and_run(self):
        shapes = re.search(r"one of: ([^\[\n]*)", self.ok("make-model", "--help").text().replace("\n", " "))[1]
        tiny = re.findall(r"tiny-[a-z0-9]+", shapes)
        self.assertGreaterEqual(len(tiny), 6)
        for shape in tiny:
            path = self.dir / f"{shape}.gguf"
            self.ok("make-model", "--shape", shape, "-o", path)
            self.assertEqual(json.loads(self.ok("info", "--json", path).text())["family"], shape.split("-")[1]
                             if shape != "tiny-mixtral" else "llama")
            self.assertTrue(self.ok("run", path, "-p", "Hi", "-n", "3").out.startswith(b"Hi"))

    def test_what_cannot_be_written(self):
        self.fails(1, "nowhere", "make-model", *self.SHAPE, "-o", self.dir / "nowhere" / "m.gguf")
        self.fails(2, "q9_9", "make-model", *self.SHAPE, "--type", "q9_9", "-o", self.dir / "t.gguf")
        self.assertFalse((self.dir / "t.gguf").exists())
        self.fails(2, "top", "make-model", *self.SHAPE, "--experts", "2", "--top-k", "5", "-o", self.dir / "k.gguf")
        self.assertFalse((self.dir / "k.gguf").exists())


class Bench(Case):
    """Needs a release build: others refuse to measure, and that is tested instead."""

    def setUp(self):
        self.debug = ", debug)" in self.ok("--version").text()

    def bench(self, *args):
        return self.ok("bench", self.model, "-r", "2", *args).text()

    def test_debug_builds_refuse(self):
        if not self.debug:
            self.skipTest("a release build")
        self.fails(1, "debug checks", "bench", self.model)

    def test_markdown_table(self):
        if self.debug:
            return
        lines = self.bench("-p", "16,8", "-n", "4", "-t", "1").splitlines()
        self.assertEqual([cell.strip() for cell in lines[0].split("|")[1:-1]],
                         ["model", "size", "params", "backend", "threads", "test", "t/s"])
        self.assertRegex(lines[1], r"^\|[-:| ]+\|$")
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:5]]
        self.assertEqual([row[5] for row in rows], ["pp16", "pp8", "tg4"])
        self.assertEqual({row[4] for row in rows}, {"1"})
        for row in rows:
            self.assertRegex(row[6], r"^[\d.]+ ± [\d.]+$")
        self.assertEqual(lines[5], "")
        self.assertRegex(lines[6], r"^build: \S+ \(\d+\.\d+\.\d+\)$")
        self.assertRegex(lines[7], r"^machine: .+ real time$")
        self.assertRegex(lines[8], r"^check: logits finite")
        self.assertEqual(len({len(line) for line in lines[:5]}), 1)

    def test_json_agrees_with_itself(self):
        if self.debug:
            return
        rows = json.loads(self.bench("-p", "8", "-n", "0", "-pg", "8,4", "-d", "0,16", "--json"))
        self.assertEqual([(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows],
                         [(8, 0, 0), (8, 4, 0), (8, 0, 16), (8, 4, 16)])
        for row in rows:
            n = row["n_prompt"] + row["n_gen"]
            self.assertEqual(len(row["samples_ns"]), 2)
            self.assertAlmostEqual(row["avg_ts"], sum(n * 1e9 / ns for ns in row["samples_ns"]) / 2, delta=1e-6 * row["avg_ts"])
            self.assertEqual(row["model_type"].split()[0], "qwen3moe")
            self.assertLess(row["check_kl"], 1e-3)
            self.assertRegex(row["test_time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")

    def test_other_formats(self):
        if self.debug:
            return
        lines = self.bench("-p", "8", "-n", "2", "-o", "jsonl").splitlines()
        self.assertEqual([json.loads(line)["n_gen"] for line in lines], [0, 2])
        import csv
        rows = list(csv.DictReader(self.bench("-p", "8", "-n", "2", "-o", "csv").splitlines()))
        self.assertEqual([(row["n_prompt"], row["n_gen"]) for row in rows], [("8", "0"), ("0", "2")])
        self.assertGreater(float(rows[0]["avg_ts"]), 0)


class Golden(Case):
    """stories260K, greedy: the text of the float64 reference (tests/oracle/accuracy/make_stories_golden.py)."""

    @classmethod
    def setUpClass(cls):
        if not (SHARED_MODELS / "stories260K-f32.gguf").exists():
            raise unittest.SkipTest(f"no {SHARED_MODELS}/stories260K-f32.gguf")
        super().setUpClass()
        ids, cls.text = (ROOT / "tests/data/stories260K.golden.txt").read_text(encoding="utf-8").split("\n", 1)
        cls.ids = [int(i) for i in ids.split()]

    def test_text_and_tokens_equal_the_reference(self):
        self.assertGreaterEqual(len(self.ids), 256)
        for name in ("stories260K-f32.gguf", "stories260K-upcycled-4e2.gguf"):
            for flags in (["-t", "1"], ["-ctk", "f32", "-ctv", "f32"]):
                with self.subTest(name=name, flags=flags):
                    args = ["run", SHARED_MODELS / name, "-p", "", "-n", str(len(self.ids)), "--temp", "0", *flags]
                    self.assertEqual(json.loads(self.ok(*args, "--json").text())["tokens"], self.ids)
                    self.assertEqual(self.ok(*args).text(), self.text.rstrip("\n") + "\n")

    def test_a_prompt_of_its_own_beginning_continues_the_same(self):
        start = "Once upon a time, there was a little girl"
        if not self.text.startswith(start):
            start = self.text[:40]
        done = self.ok("run", SHARED_MODELS / "stories260K-f32.gguf", "-p", start, "-n", "60", "--temp", "0")
        self.assertTrue(self.text.startswith(done.text()[:-1]), done.text())


GROUPS = [Usage, Run, Streams, Chat, Info, MakeModel, Bench, Golden]


def main():
    global NPUMOE
    if len(sys.argv) != 3 or sys.argv[2] not in [group.__name__ for group in GROUPS]:
        print(__doc__, "groups:", ", ".join(group.__name__ for group in GROUPS))
        return 2
    NPUMOE = os.path.abspath(sys.argv[1])
    group = next(group for group in GROUPS if group.__name__ == sys.argv[2])
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(group))
    if result.wasSuccessful() and result.testsRun == 0 and result.skipped:
        return 77
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
