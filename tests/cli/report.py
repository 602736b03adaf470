# SPDX-License-Identifier: Apache-2.0
"""npumoe report."""
import html.parser
import json
import os
import re
import signal
import subprocess
import xml.etree.ElementTree

from harness import NPUMOE, PROGRESS, SECONDS, Case, Running, clean_environment, read_until

CONFIG = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 512, "intermediate_size": 1024,
          "moe_intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
          "num_experts": 16, "num_experts_per_tok": 4, "vocab_size": 1000, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
          "max_position_embeddings": 8192, "norm_topk_prob": True, "tie_word_embeddings": False}
QUICK = ["--seeds", "1", "--prompt", "512"]


class Page(html.parser.HTMLParser):
    """Which elements, attributes and captions a page has; counts what is opened and never closed."""

    VOID = {"meta", "link", "img", "br", "hr", "input"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.captions, self.drawings, self.cells = [], [], [], [], [], []
        self.unbalanced = []
        self.feed(text)
        self.close()
        self.unbalanced += self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "figcaption":
            self.captions.append("")
        if tag == "svg":
            self.drawings.append(dict(attrs))
        if tag == "td":
            self.cells.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        for name, out in (("figcaption", self.captions), ("td", self.cells)):
            if name in self.open:
                out[-1] += data


class Report(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.config = cls.dir / "config.json"
        cls.config.write_text(json.dumps(CONFIG), encoding="utf-8")

    def page(self, *args, model=None):
        out = self.dir / "page.html"
        done = self.ok("report", model or self.config, *QUICK, *args, "-o", out)
        self.assertRegex(done.text(), r"page\.html: [\d.]+ KiB, all of it simulated on ")
        return out.read_text(encoding="utf-8")

    def test_the_page_is_whole_and_loads_nothing(self):
        text = self.page()
        page = Page(text)
        self.assertEqual(page.unbalanced, [])
        xml.etree.ElementTree.fromstring(text.replace("<!DOCTYPE html>\n", ""))
        self.assertTrue(text.endswith("</html>\n"))
        self.assertEqual(set(page.tags) & {"script", "link", "img", "iframe", "object", "embed", "a", "use", "image"}, set())
        self.assertEqual([(k, v) for k, v in page.attributes if k in ("href", "src", "xlink:href") or k.startswith("on")], [])
        self.assertNotIn("http", text)
        self.assertNotIn("url(", text)
        self.assertNotIn("@import", text)
        self.assertIsNone(re.search(r"\b(nan|inf)\b", text))

    def test_every_figure_says_what_it_is_simulated_on(self):
        page = Page(self.page("--npu", "m4-max"))
        # Bars, steps, shares, map, time line, front.
        self.assertEqual(len(page.captions), 6)
        self.assertEqual(page.tags.count("figure"), 6)
        for caption in page.captions:
            self.assertIn("simulated on m4-max (Apple M4 Max)", caption)
        for drawing in page.drawings:
            self.assertEqual(drawing["role"], "img")
            self.assertTrue(drawing["aria-label"])
        self.assertEqual(len(page.drawings), 3 + 3 + 1 + 2)  # the map has three, the front one beside its colours

    def test_the_numbers_are_those_of_simulate(self):
        page = Page(self.page("--chunk", "128"))
        said = json.loads(self.ok("simulate", self.config, *QUICK, "--chunk", "128", "--expert-weights", "int8", "--json").text())
        for placement in said["placements"]:
            name = placement["placement"]
            at = next(i for i, cell in enumerate(page.cells) if cell == name)
            self.assertEqual(page.cells[at - 1], str(self.config))
            self.assertEqual(page.cells[at + 1], f"{placement['ttft_seconds']['mean']:.3f}", name)
            self.assertEqual(page.cells[at + 3], f"{1e3 * placement['joules_per_token']['mean']:.2f}", name)

    def test_the_same_on_any_number_of_threads(self):
        self.assertEqual(self.page("-t", "1"), self.page("-t", "4"))
        self.assertNotEqual(self.page("-t", "1"), self.page("--seed", "7"))

    def test_published_figures_have_their_sources(self):
        published = json.loads(self.ok("report", "--published").text())
        self.assertEqual(len({figure["key"] for figure in published}), len(published))
        page = Page(self.page())
        for figure in published:
            self.assertLessEqual(figure["low"], figure["high"])
            self.assertTrue(figure["source"])
            self.assertIn(figure["confidence"], ("high", "medium", "low"))
            at = page.cells.index(figure["what"])
            self.assertIn(f"{figure['high']:g}", page.cells[at + 1])
            self.assertEqual(page.cells[at + 3], figure["source"])
            self.assertTrue(page.cells[at + 5])

    def test_hostile_names_are_text(self):
        name = "a<script>alert(1)</script>&\"'\x1b[31m\u202e.json"
        folder = self.dir / "<svg onload=x>"
        folder.mkdir(exist_ok=True)
        path = folder / name.replace("/", "_")
        path.write_text(json.dumps(CONFIG), encoding="utf-8")
        text = self.page(model=path)
        page = Page(text)
        self.assertEqual(page.unbalanced, [])
        self.assertNotIn("script", page.tags)
        self.assertFalse([k for k, _ in page.attributes if k.startswith("on")])
        self.assertNotIn("\x1b", text)
        self.assertNotIn("\u202e", text)
        self.assertTrue(any("<script>alert(1)" in caption for caption in page.captions))

    def test_refusals(self):
        out = self.dir / "refused.html"
        for args, message in [
            (["no-such"], "model no-such: neither a file nor a known shape"),
            ([self.config, "--npu", "m9"], "m9"),
            ([self.config, "--routing", "zipf:"], "wanted zipf:S or zipf:S,DRIFT"),
            ([self.config, "--chunk", "300"], "chunk 300: wanted a multiple of 32"),
            ([self.config, "--prompt", "0"], "prompt"),
            ([self.config, "--expert-weights", "int3"], "int3"),
            ([self.config, "--seeds", "0"], "seeds"),
            ([self.config, "-t", "5000"], "threads"),
            ([f"{self.config},{self.config}"], "named twice"),
        ]:
            with self.subTest(args=args):
                self.fails(2, message, "report", *args, "-o", out)
                self.assertFalse(out.exists())
        self.fails(1, "/no/such/stats.json", "report", self.config, "--routing", "/no/such/stats.json", "-o", out)
        self.fails(1, "bad.json", "report", self.write("bad.json", b"{"), "-o", out)
        self.fails(1, "bad.json", "report", self.config, self.write("bad.json", b"{"), "-o", out)  # before the first is simulated
        self.fails(1, "p.html", "report", self.config, "-o", self.dir / "no" / "p.html")
        self.assertFalse(out.exists())

    def test_inputs_are_never_replaced(self):
        before = self.config.read_bytes()
        self.fails(2, "config.json", "report", self.config, *QUICK, "-o", self.config)
        self.fails(2, "config.json", "report", self.dir, *QUICK, "-o", self.config)  # the model's folder
        stats = self.write("stats.json", b"{}")
        self.fails(2, "stats.json", "report", self.config, *QUICK, "--routing", stats, "-o", stats)
        self.assertEqual((self.config.read_bytes(), stats.read_bytes()), (before, b"{}"))

    def test_on_stdout(self):
        done = self.ok("report", self.config, *QUICK, "-o", "-")
        self.assertEqual(done.text(), self.page())

    def test_an_interrupt_leaves_the_old_file(self):
        out = self.write("old.html", b"old")
        args = ["report", self.config, "--seeds", "10000", "--prompt", "4096", "-t", "1", "-o", out]
        with Running([NPUMOE, *map(os.fspath, args)], env=clean_environment(), stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE) as process:
            read_until(process.stderr.fileno(), lambda seen: b" left\n" in seen)
            process.send_signal(signal.SIGINT)
            shown, err = process.communicate(timeout=SECONDS)
        self.assertEqual((process.returncode, shown, PROGRESS.sub("", err.decode())), (130, b"", "npumoe: interrupted\n"))
        self.assertEqual(out.read_bytes(), b"old")
        self.assertEqual([path.name for path in self.dir.glob("*.tmp*")], [])
