# SPDX-License-Identifier: Apache-2.0
"""npumoe chat, from a pipe and on a terminal."""
import fcntl
import os
import pty
import re
import signal
import subprocess
import termios
import time

from harness import NPUMOE, SECONDS, clean_environment, npumoe, Case, Running, read_until


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

    def test_ctrl_c_ends_a_conversation_that_a_script_feeds(self):
        flags = [NPUMOE, "chat", self.model, "--chat-template", "chatml", "--temp", "0", "-c", "100000"]
        for text, n_before in ((b"", 0), (b"Hello\n", 8)):  # while waiting, and in an answer that runs on
            with Running(flags, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment()) as process:
                process.stdin.write(text)
                process.stdin.flush()
                self.assertEqual(len(process.stdout.read(n_before)), n_before)
                time.sleep(1 if n_before == 0 else 0)
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(timeout=SECONDS), 130)

    def test_sigterm_ends_a_conversation_on_a_terminal(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            leader, follower = pty.openpty()
            with Running([NPUMOE, "chat", self.model, "--chat-template", "chatml"], stdin=follower, stdout=follower,
                         stderr=follower, env=clean_environment()) as process:
                os.close(follower)
                read_until(leader, lambda text: text.endswith(b"> "))
                process.send_signal(number)
                self.assertEqual(process.wait(timeout=SECONDS), 130)
            os.close(leader)

    def test_on_a_terminal(self):
        """Prompt, Ctrl-C on an idle line, Ctrl-C in an answer, Ctrl-D."""
        leader, follower = pty.openpty()
        with Running([NPUMOE, "chat", self.model, "--chat-template", "chatml", "--temp", "0", "-c", "100000"],
                              stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
                              preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                              env=clean_environment()) as process:
            os.close(follower)
            read_until(leader, lambda text: text.endswith(b"> "))
            for _ in range(50):  # each as soon as the prompt shows: it may not get lost before the wait begins
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
