# SPDX-License-Identifier: Apache-2.0
"""Pipes that close, disks that are full, Ctrl-C, progress."""
import os
import pty
import signal
import subprocess
import time
import unittest

from harness import NPUMOE, SECONDS, clean_environment, npumoe, Case, Running, read_until, read_rest, wait_for_handler


class Streams(Case):
    """Pipes that close, disks that are full, Ctrl-C."""

    def start(self, *args, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return Running([NPUMOE, *map(os.fspath, args)], env=clean_environment(), **options)

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
            self.assertEqual(err, b"npumoe: interrupted\n")
            self.assertTrue((begin + out).endswith(b"\n"))
        expected = self.run_text("-n", "12", "-p", "Hello")[:-1]
        self.assertTrue((begin + out).startswith(expected[:20]))

    def test_ctrl_c_while_the_prompt_is_read(self):
        with self.start("run", self.model, "-f", self.long_prompt(), "-c", "2000000", "-n", "1", "--no-display-prompt") as process:
            first = process.stderr.readline()  # progress: it takes longer than a second
            self.assertRegex(first.decode(), r"^npumoe: prompt: \d+ of \d+ tokens \(\d+ %\), [\d.]+ t/s, .+ left\n$")
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=SECONDS)
            self.assertEqual((process.returncode, out), (130, b"\n"))

    def test_ctrl_c_where_no_loop_looks(self):
        with self.start("bench", self.model, "-p", "8", "-n", "0", "-r", "1", "--delay", "3600") as process:
            time.sleep(2)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=SECONDS)
            if b"debug checks" in err:
                return  # such builds measure nothing
            self.assertEqual((process.returncode, err), (130, b"npumoe: interrupted\n"))

    def deep_model(self):
        """A hundred megabytes, and planned (for edp) for some seconds on any machine; 11 s on two cores of an EPYC."""
        path = self.dir / "deep.gguf"
        self.ok("make-model", *self.SHAPE, "--layers", "1000", "--experts", "16", "--top-k", "8", "--dim", "64",
                "--expert-dim", "32", "--vocab", "300", "--type", "q4_0", "-o", path)
        return path

    def test_ctrl_c_while_a_plan_is_made(self):
        model, text = self.deep_model(), self.write("words.txt", b"some words " * 200)
        before = sorted(path.name for path in self.dir.iterdir())
        npu = ["--npu", "sim:m2-max", "--objective", "edp"]
        for args in (["plan", model, *npu, "-o", self.dir / "plan.json"], ["run", model, "-p", "x", *npu],
                     ["chat", model, "-p", "x", "--chat-template", "chatml", *npu],
                     ["eval", model, "-f", text, "-c", "512", *npu], ["compile", model, "-o", self.dir / "out", *npu]):
            with self.subTest(args=args[0]):
                leader, follower = pty.openpty()
                with self.start(*args, stderr=follower) as process:
                    os.close(follower)
                    seen = read_until(leader, lambda text: b"planning: " in text)  # for how long, after a second
                    self.assertRegex(seen, rb"\rplanning: \d+ s so far\x1b\[K")
                    process.send_signal(signal.SIGINT)
                    self.assertEqual((process.stdout.read(), process.wait(timeout=SECONDS)), (b"", 130))
                    seen += read_rest(leader)
                os.close(leader)
                self.assertTrue(seen.endswith(b"\r\x1b[Knpumoe: interrupted\r\n"), seen[-100:])
                self.assertEqual(sorted(path.name for path in self.dir.iterdir()), before)

    def test_ctrl_c_while_a_pipe_has_no_writer(self):
        pipe = self.dir / "pipe"
        os.mkfifo(pipe)
        for args in (["eval", self.model, "-f", pipe], ["run", self.model, "-f", pipe], ["plan", self.model, "--stats", pipe],
                     ["calibrate", self.model, "-f", pipe], ["plot", pipe, "-o", "-"],
                     ["simulate", "phi-tiny-moe", "--routing", pipe], ["report", "phi-tiny-moe", "--routing", pipe]):
            for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                with self.subTest(args=args[0], signal=signal_number), self.start(*args) as process:
                    wait_for_handler(process.pid, signal_number)  # it has one from its start on, wherever it is
                    process.send_signal(signal_number)
                    out, err = process.communicate(timeout=SECONDS)
                    self.assertEqual((process.returncode, out, err), (130, b"", b"npumoe: interrupted\n"))

    def test_signals_that_are_ignored_stay_ignored(self):
        """As nohup asks for."""
        with self.start("run", self.model, "-n", "1", stdin=subprocess.PIPE,
                        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
            wait_for_handler(process.pid, signal.SIGINT)
            process.send_signal(signal.SIGHUP)
            out, err = process.communicate(b"Hello", timeout=SECONDS)
            self.assertEqual((process.returncode, out[:5], err), (0, b"Hello", b""))

    def test_ctrl_c_while_a_file_is_written(self):
        path = self.write("kept.gguf", b"old")
        args = ["make-model", *self.SHAPE, "--layers", "200", "-o", path]
        with self.start(*args) as process:
            end = time.monotonic() + SECONDS
            while not list(self.dir.glob("kept.gguf.tmp*")):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=SECONDS)
        self.assertEqual((process.returncode, out, err), (130, b"", b"npumoe: interrupted: nothing is written\n"))
        self.assertEqual((path.read_bytes(), list(self.dir.glob("kept.gguf.*"))), (b"old", []))

    def test_a_second_ctrl_c_leaves_no_part_of_a_model(self):
        folder = self.dir / "twice"
        args = ["make-model", *self.SHAPE, "--layers", "200", "--hf", "--splits", "100", "-o", folder]
        with self.start(*args) as process:
            end = time.monotonic() + SECONDS
            while not list(folder.glob("model-*.safetensors")):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)  # wherever the first one has got to
            out, err = process.communicate(timeout=SECONDS)
        self.assertEqual((process.returncode, out), (130, b""))
        self.assertRegex(err, rb"\Anpumoe: interrupted[^\n]*\n\Z")
        self.assertFalse(folder.exists())

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
        self.assertEqual(seen.count(b"\n"), 1)
        self.assertTrue(seen.endswith(b"\r\x1b[Knpumoe: interrupted\r\n"))

    def test_a_simulation_shows_how_far_it_is(self):
        leader, follower = pty.openpty()
        with self.start("simulate", "qwen3-30b-a3b", "--seeds", "10000", "--placement", "naive", stderr=follower) as process:
            os.close(follower)
            seen = read_until(leader, lambda text: text.count(b"\rsimulate: ") >= 2)
            process.send_signal(signal.SIGINT)
            out = process.stdout.read()
            self.assertEqual((process.wait(timeout=SECONDS), out), (130, b""))
            seen += read_rest(leader)
        os.close(leader)
        self.assertRegex(seen.decode(), r"\rsimulate: \d+ of 10000 prompts")
        self.assertTrue(seen.endswith(b"\r\x1b[Knpumoe: interrupted\r\n"))

    def test_ctrl_c_while_waiting_for_a_prompt(self):
        with self.start("run", self.model, stdin=subprocess.PIPE) as process:
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=SECONDS), 130)
            self.assertEqual(process.stderr.read(), b"npumoe: interrupted\n")
