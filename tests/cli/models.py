# SPDX-License-Identifier: Apache-2.0
"""npumoe info and make-model."""
import json
import re

from harness import npumoe, Case


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

    def test_bytes_per_token_follow_the_type_of_the_cache(self):
        for name, bits in (("f16", 16), ("f32", 32), ("q8_0", 8.5)):
            with self.subTest(name=name):
                flags = ["-ctk", name, "-ctv", name]
                info = json.loads(self.ok("info", self.model, "--json", *flags).text())
                self.assertEqual(info["kv_type"], name)
                per_layer = info["n_kv_heads"] * info["head_dim"] * 2
                self.assertEqual(info["kv_bytes_per_token"], info["n_layers"] * per_layer * bits / 8)
                self.assertRegex(self.ok("info", self.model, *flags).text(), rf"(?m)^KV per token, {name} ")

    def test_heads_that_blocks_of_the_cache_do_not_fill_are_refused(self):
        folder = self.dir / "short-heads"
        self.ok("make-model", "--shape", "tiny-mixtral", "--hf", "-o", folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # The same matrices, read as four times as many heads of 16 dims.
        config.update(num_attention_heads=16, num_key_value_heads=8, head_dim=16)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        self.ok("run", folder, "-p", "a", "-n", "1")
        flags = ["-ctk", "q8_0", "-ctv", "q8_0"]
        for command in (["run", folder, "-p", "a"], ["info", folder]):
            with self.subTest(command=command[0]):
                self.fails(1, "q8_0 wants heads of a multiple of 32 dims, the model has 16", *command, *flags)

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
        tiny = re.findall(r"(?<!-)tiny-[a-z0-9]+", shapes)
        self.assertGreaterEqual(len(tiny), 7)
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
        self.fails(2, "5 experts per token", "make-model", *self.SHAPE, "--experts", "2", "--top-k", "5", "-o", self.dir / "k.gguf")
        self.assertFalse((self.dir / "k.gguf").exists())
