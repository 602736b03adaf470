# SPDX-License-Identifier: Apache-2.0
"""npumoe calibrate and plot."""
import json
import os
import re
import resource
import signal
import subprocess
import xml.etree.ElementTree as xml

from harness import NPUMOE, SECONDS, Case, Running, clean_environment, npumoe, read_until

SVG = "{http://www.w3.org/2000/svg}"
WORDS = b"The quick brown fox; jumps over 42 lazy dogs(x), said Zoe. "


class Calibrate(Case):
    def setUp(self):
        self.text = self.write("words.txt", WORDS * 40)

    def stats(self, path):
        return json.loads(path.read_text())

    def leftovers(self):
        return [path.name for path in self.dir.rglob("*.tmp*")]

    def test_statistics_lie_beside_the_model_and_add_up(self):
        done = self.ok("calibrate", "-m", self.model, "-f", self.text, "--chunk", "16,64")
        path = self.dir / "tiny.npumoe" / "routing_stats.json"
        stats = self.stats(path)
        self.assertIn(f"{path}: ", done.text())
        self.assertRegex(done.text(), rf"\A{stats['n_tokens']} tokens of 1 text, chunk lengths 16, 64\n")
        self.assertTrue(stats["complete"])
        self.assertEqual((stats["sources"], stats["chunk_tokens"]), (["words.txt"], [16, 64]))
        self.assertRegex(stats["model_hash"], r"\A[0-9a-f]{32}\Z")
        self.assertEqual(len(stats["layers"]), stats["n_layers"])
        rows = re.findall(r"(?m)^ +(\d+) +([\d.]+) x +([\d.]+) of 8 +(\d+) +([\d.]+) +\(([\d.]+)\) +- +([\d.]+) \((\w+)\)$",
                          done.text())
        self.assertEqual([int(row[0]) for row in rows], list(range(stats["n_layers"])))
        for layer, row in zip(stats["layers"], rows):
            self.assertEqual(sum(layer["tokens"]), stats["n_tokens"] * stats["top_k"])
            self.assertEqual([sum(pair) for pair in zip(*layer["half_tokens"])], layer["tokens"])
            self.assertEqual(layer["source_tokens"], [layer["tokens"]])
            for length, experts in zip((16, 64), layer["loads"]):
                chunks = stats["n_tokens"] // length
                self.assertEqual([sum(count for _, count in pairs) for pairs in experts], [chunks] * stats["n_experts"])
                self.assertEqual(sum(load * count for pairs in experts for load, count in pairs),
                                 chunks * length * stats["top_k"])
            mean = sum(layer["tokens"]) / stats["n_experts"]
            self.assertAlmostEqual(float(row[1]), max(layer["tokens"]) / mean, delta=0.006)
            self.assertEqual(int(row[3]), layer["tokens"].count(0))
            self.assertEqual(row[7], max(layer["range"], key=lambda stage: layer["range"][stage]))
        self.assertTrue(any("little text" in line for line in done.lines), done.err)
        self.assertEqual(self.leftovers(), [])

    def test_texts_are_domains_named_by_their_files(self):
        (self.dir / "other").mkdir(exist_ok=True)
        same_name = self.dir / "other" / "words.txt"
        same_name.write_bytes(b"0123456789 " * 50)
        out = self.dir / "domains.json"
        done = self.ok("calibrate", "-m", self.model, "-f", self.text, same_name, "-f", "-", "-o", out, "--chunk", "8", "--json",
                       stdin=b"something else " * 30)
        report = json.loads(done.text())
        self.assertEqual(report["sources"], ["words.txt", str(same_name), "stdin"])
        self.assertEqual(report["output"], str(out))
        stats = self.stats(out)
        self.assertEqual(stats["sources"], report["sources"])
        for layer, row in zip(stats["layers"], report["layers"]):
            shares = [[count / sum(tokens) for count in tokens] for tokens in layer["source_tokens"]]
            distances = [sum(abs(x - y) for x, y in zip(a, b)) / 2 for a in shares for b in shares]
            self.assertAlmostEqual(row["source_distance"], max(distances), places=12)

    def test_max_tokens_and_lengths_that_are_never_filled(self):
        out = self.dir / "short.json"
        done = self.ok("calibrate", self.model, "-f", self.text, "-o", out, "--max-tokens", "100", "--chunk", "32-128*2")
        stats = self.stats(out)
        self.assertEqual((stats["n_tokens"], stats["chunk_tokens"], stats["complete"]), (100, [32, 64], True))
        self.assertTrue(any("left out: 128 (longest text 100 tokens" in line for line in done.lines), done.err)

    def test_an_interrupt_keeps_what_was_gathered(self):
        out = self.dir / "stopped.json"
        text = self.write("long.txt", WORDS * 20000)
        # Short windows: one that was not read to its end has gathered nothing.
        args = ["calibrate", "-m", self.model, "-f", text, "-o", out, "-t", "1", "-c", "64"]

        def has_gathered(seen):
            return any(int(tokens) > 64 for tokens in re.findall(rb"calibrate: (\d+) of .* left\n", seen))

        with Running([NPUMOE, *map(os.fspath, args)], env=clean_environment(), stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE) as process:
            seen = read_until(process.stderr.fileno(), has_gathered)
            self.assertRegex(seen, rb"npumoe: calibrate: \d+ of \d+ tokens \(\d+ %\), [\d.]+ t/s, \d+ (s|min|h).* left\n")
            process.send_signal(signal.SIGINT)
            shown, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130)
        stats = self.stats(out)
        self.assertFalse(stats["complete"])
        self.assertGreater(stats["n_tokens"], 0)
        self.assertIn(f"{stats['n_tokens']} tokens of 1 text", shown.decode())
        self.assertIn(b"warning: stopped early", err)
        self.assertTrue(err.endswith(b"npumoe: interrupted: what was gathered is written\n"), err)
        for layer in stats["layers"]:
            self.assertEqual(sum(layer["tokens"]), stats["n_tokens"] * stats["top_k"])
        self.assertIn("stopped early", self.ok("plot", out, "-o", "-").text())

    def test_what_cannot_be_written_keeps_the_old_file(self):
        out = self.write("kept.json", b"old")
        args = ["calibrate", "-m", self.model, "-f", self.text, "-o"]
        line = self.fails(1, "File too large", *args, out,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
        self.assertEqual(line, f"npumoe: {out}: cannot write: File too large")
        self.assertEqual(out.read_bytes(), b"old")
        self.assertEqual(self.leftovers(), [])
        self.fails(1, "not a regular file", *args, "/dev/zero")
        self.ok(*args, "/dev/null", "--chunk", "16")
        self.fails(1, "Is a directory", *args, self.dir)
        self.fails(1, "No such file", *args, self.dir / "no" / "such" / "folder.json")

    def test_what_is_read_is_not_written(self):
        stats = self.dir / "apart.json"
        self.ok("calibrate", "-m", self.model, "-f", self.text, "-o", stats, "--chunk", "16")
        before = {path: path.read_bytes() for path in (self.model, self.text, stats)}
        linked = self.dir / "linked.json"
        linked.symlink_to(stats)
        for args in [("calibrate", "-m", self.model, "-f", self.text, "-o", self.model),
                     ("calibrate", "-m", self.model, "-f", self.text, "-o", self.text),
                     ("calibrate", "-m", self.model, "-f", self.text, "-o", self.dir / "s.json", "--svg", self.dir / "s.json"),
                     ("plot", stats, "-o", stats), ("plot", linked, "-o", stats),
                     ("plan", self.model, "-o", self.model), ("plan", self.model, "--stats", stats, "-o", stats),
                     ("run", self.model, "-f", self.text, "-n", "1", "--trace", self.text),
                     ("run", self.model, "-p", "x", "-n", "1", "--trace", self.model)]:
            with self.subTest(args=args[0]):
                self.fails(2, "to be", *args)
        self.assertEqual({path: path.read_bytes() for path in before}, before)

    def test_wrong_usage_and_texts_that_are_none(self):
        none = self.write("none.txt", b"")
        dense = self.dir / "dense.gguf"
        self.ok("make-model", "--shape", "tiny-llama", "-o", dense)
        for code, part, args in [
            (2, "--file is required", [self.model]),
            (2, "--chunk: lengths start at 1", [self.model, "-f", self.text, "--chunk", "0,8"]),
            (2, "--chunk: wants whole numbers", [self.model, "-f", self.text, "--chunk", "many"]),
            (2, "--max-tokens", [self.model, "-f", self.text, "--max-tokens", "-1"]),
            (2, "--chunk: wants at most 64 lengths, got 100", [self.model, "-f", self.text, "--chunk", "1-100"]),
            (1, "the text is empty", [self.model, "-f", none, none]),
            (1, "absent.txt': No such file", [self.model, "-f", self.dir / "absent.txt"]),
            (1, "Is a directory", [self.model, "-f", self.dir]),
            (1, "has no experts", [dense, "-f", self.text]),
            (1, "absent.gguf", [self.dir / "absent.gguf", "-f", self.text]),
        ]:
            with self.subTest(part=part):
                self.fails(code, part, "calibrate", *args, "-o", self.dir / "unwritten.json")
                self.assertFalse((self.dir / "unwritten.json").exists())

    def test_any_bytes_are_text(self):
        path = self.write("bytes.bin", bytes(range(256)) * 8 + b"\xff\xfe\x00<|endoftext|>\r\n")
        self.ok("calibrate", self.model, "-f", path, "-o", self.dir / "bytes.json", "--chunk", "8")
        one = self.write("one.txt", b"a")
        self.ok("calibrate", self.model, "-f", one, "-o", self.dir / "one.json")
        stats = self.stats(self.dir / "one.json")
        self.assertEqual(stats["chunk_tokens"], [stats["n_tokens"]])

    def test_the_picture_has_a_cell_for_every_expert(self):
        out, svg = self.dir / "drawn.json", self.dir / "drawn.svg"
        done = self.ok("calibrate", self.model, "-f", self.text, "-o", out, "--svg", svg, "--chunk", "8")
        self.assertIn(f"{svg}: the heat map", done.text())
        stats = self.stats(out)
        root = xml.fromstring(svg.read_bytes())
        self.assertEqual(root.tag, SVG + "svg")
        titles = [cell.findtext(SVG + "title") for cell in root.iter(SVG + "rect") if cell.find(SVG + "title") is not None]
        wanted = []
        for index, layer in enumerate(stats["layers"]):
            mean = sum(layer["tokens"]) / stats["n_experts"]
            wanted += [f"layer {index}, expert {expert}: {tokens:,} tokens, {tokens / mean:.2f} x mean" if tokens else
                       f"layer {index}, expert {expert}: never chosen" for expert, tokens in enumerate(layer["tokens"])]
        self.assertEqual(titles, wanted)
        texts = [text.text for text in root.iter(SVG + "text")]
        self.assertIn(f"Which experts {stats['model_name']} chooses", texts)
        # plot draws the same from the file: beside it, where it is told, or to stdout.
        self.assertEqual(self.ok("plot", out).text().split(":")[0], str(svg))
        same = svg.read_bytes()
        self.assertEqual(self.ok("plot", out, "-o", "-").out, same)
        self.assertEqual(self.ok("plot", "-", stdin=out.read_bytes()).out, same)
        self.ok("plot", out, "-o", self.dir / "else.svg")
        self.assertEqual((self.dir / "else.svg").read_bytes(), same)

    def test_plot_survives_hostile_files(self):
        out = self.dir / "good.json"
        self.ok("calibrate", self.model, "-f", self.text, "-o", out, "--chunk", "8")
        good = self.stats(out)
        evil = dict(good, model_name="</text><script>alert(1)</script>\x1b[2J&\u202e", sources=["\x00"])
        drawn = self.ok("plot", self.write("evil.json", json.dumps(evil).encode()), "-o", "-").out
        self.assertIsNone(xml.fromstring(drawn).find(SVG + "script"))
        self.assertNotIn(b"<script", drawn)
        whole = out.read_bytes()
        for name, data in {"cut": whole[:len(whole) // 2], "empty": b"", "list": b"[]", "gguf": b"GGUF" + bytes(40),
                           "experts": json.dumps(dict(good, n_experts=4000000)).encode(),
                           "version": json.dumps(dict(good, version=99)).encode()}.items():
            with self.subTest(name=name):
                self.fails(1, name + ".json", "plot", self.write(name + ".json", data))
                self.assertFalse((self.dir / (name + ".svg")).exists())
        self.fails(1, "No such file", "plot", self.dir / "absent.json")
        self.fails(2, "stats is required", "plot")
