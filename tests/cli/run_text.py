# SPDX-License-Identifier: Apache-2.0
"""npumoe run: text, prompt sources, JSON, statistics, models that cannot be read."""
import json
import re

from harness import npumoe, Case


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
        self.assertEqual(result["timings"]["clock"], "real time of this machine")
        memory = result["memory"]
        self.assertGreater(memory["peak_resident_bytes"], memory["mapped_weights_bytes"])
        # The command line's own text and buffers are the only thing outside the bound.
        self.assertLess(memory["peak_resident_bytes"], memory["bound_bytes"] + (4 << 20))
        broken = json.loads(self.ok("run", self.model, "-f", self.write("b.txt", b"\xff"), "-n", "1", "--json").text())
        self.assertEqual(broken["prompt"], "\ufffd")

    def test_stats_on_stderr(self):
        done = self.ok("run", self.model, "-p", "Hello", "-n", "6", "--stats", "-s", "11")
        for line in (r"prompt +\d+ tokens +[\d.]+ s +[\d.]+ t/s", r"generation +5 tokens +[\d.]+ s +[\d.]+ t/s",
                     r"first token after +[\d.]+ s", r"stopped by length, seed 11",
                     r"program and vocabulary +[\d.]+ [KMG]iB", r"mapped weights +[\d.]+ [KMG]iB",
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
        line = self.fails(1, "context: ", "run", self.model, "-c", "16", "-p", "x" * 400)
        self.assertRegex(line, r"\d+ tokens needed, 16 available")

    def test_prompt_files_that_cannot_be_read(self):
        self.fails(1, "No such file", "run", self.model, "-f", self.dir / "absent.txt")
        self.fails(1, "Is a directory", "run", self.model, "-f", self.dir)
        self.fails(1, "more than 64.00 MiB, the limit", "run", self.model, "-f", "/dev/zero")

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
