# SPDX-License-Identifier: Apache-2.0
"""Runs the program under test and looks at what comes back."""
import functools
import os
import pathlib
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
NPUMOE = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""  # the program under test
SECONDS = 120  # for one command, also under sanitizers on a busy machine


@functools.cache
def few_cases():
    """Whether the program looks at its memory and is slow: a few cases of each kind will do, all are run elsewhere."""
    return npumoe("--version").text().rstrip().endswith("debug)")


def clean_environment(**extra):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NPUMOE_", "LLAMA_ARG_"))}
    return {**kept, **extra}


PROGRESS = re.compile(r"^npumoe: \w+: (?:\d+ of \d+ (?:tokens|items|prompts) \(\d+ %\), "
                      r"[\d.]+ (?:(?:t|items|prompts)/s|s/(?:token|item|prompt)), .* left"
                      r"|(?:\d+ of \d+ (?:tokens|items|prompts), )?[\w ]+ so far)\n", re.MULTILINE)
# Programs that are started without job control ("&" in a script) are told to ignore Ctrl-C, and so would be what they
# start. What is tested here hears it.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Outcome:
    """What a command left. Lines of progress are taken out: how many there are depends on how busy the machine is."""

    def __init__(self, code, out, err):
        self.code, self.out = code, out
        self.err = PROGRESS.sub("", err.decode("utf-8", "replace"))
        self.lines = self.err.splitlines()

    def text(self):
        return self.out.decode("utf-8")


class Running(subprocess.Popen):
    """A started program; killed when a test leaves it running, also by failing."""

    def __exit__(self, *args):
        if self.poll() is None:
            self.kill()
        super().__exit__(*args)


def npumoe(*args, stdin=b"", env=None, preexec_fn=None):
    done = subprocess.run([NPUMOE, *map(os.fspath, args)], input=stdin, capture_output=True, timeout=SECONDS,
                          env=clean_environment(**(env or {})), check=False, preexec_fn=preexec_fn)
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


def wait_for_handler(pid, signal_number):
    """Until the process catches the signal; a second where the system does not tell."""
    status = pathlib.Path("/proc", str(pid), "status")
    if not status.exists():
        time.sleep(1)
        return
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        caught = re.search(r"(?m)^SigCgt:\s*([0-9a-f]+)", status.read_text(encoding="utf-8"))
        if caught and int(caught[1], 16) >> (signal_number - 1) & 1:
            return
        time.sleep(0.01)
    raise AssertionError(f"no handler within {SECONDS} s")


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
