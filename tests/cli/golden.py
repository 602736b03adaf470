# SPDX-License-Identifier: Apache-2.0
"""Greedy text against the float64 reference."""
import json
import unittest

from harness import ROOT, SHARED_MODELS, Case


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
