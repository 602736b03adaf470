# SPDX-License-Identifier: Apache-2.0
"""npumoe simulate."""
import csv
import io
import json

from harness import Case, few_cases

MODEL = "phi-tiny-moe"
N_LAYERS = 32
# The same with as few layers as show everything.
SMALL = {"model_type": "phimoe", "architectures": ["PhiMoEForCausalLM"], "hidden_size": 4096, "intermediate_size": 448,
         "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
         "num_local_experts": 16, "num_experts_per_tok": 2, "vocab_size": 32064, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "max_position_embeddings": 4096, "attention_bias": True}


class Simulate(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole, cls.n_layers = MODEL, N_LAYERS
        if few_cases():
            cls.whole, cls.n_layers = cls.dir / "small.json", SMALL["num_hidden_layers"]
            cls.whole.write_text(json.dumps(SMALL))

    def report(self, *args):
        return json.loads(self.ok("simulate", "-m", self.whole, "--seeds", "1", *args, "--json").text())

    def test_says_what_is_simulated_on_what(self):
        text = self.ok("simulate", self.whole, "--seeds", "1", "--npu", "sim:m4-max", "--placement", "ours,npumoe").text()
        self.assertIn("simulated", text.splitlines()[0])
        self.assertIn("m4-max", text.splitlines()[0])
        self.assertIn("\nsimulated on m4-max\n", text)
        self.assertRegex(text.splitlines()[-1], "order of ours: (layer-major|wavefront, )")
        rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
        self.assertEqual([row.split(",")[0] for row in rows], ["placement", "ours", "all", "placement", "ours", "all"])

    def test_json_holds_every_placement(self):
        said = self.report()
        self.assertTrue(said["simulated"])
        self.assertEqual([p["placement"] for p in said["placements"]],
                         ["ours", "cpu", "naive", "anemll", "base", "tiers", "tiers+groups", "all"])
        for placement in said["placements"]:
            self.assertAlmostEqual(sum(placement["stages"].values()), placement["ttft_seconds"]["mean"])
        self.assertNotIn("popularity", said)
        detailed = self.report("--placement", "ours", "--details")
        self.assertEqual(len(detailed["popularity"]), self.n_layers)
        self.assertAlmostEqual(sum(detailed["popularity"][0]), 1)
        self.assertTrue(detailed["placements"][0]["zones"])

    def test_sweeps_write_every_combination(self):
        path = self.dir / "sweep.csv"
        self.ok("simulate", self.whole, "--seeds", "1", "--prompt", "512,1024", "--chunk", "256,512", "--npu", "m2-max,m2-ultra",
                "--placement", "cpu,ours", "--sweep", path)
        with open(path, encoding="utf-8") as file:
            rows = list(csv.DictReader(io.StringIO(file.read())))
        self.assertEqual(len(rows), 2 * 2 * 2 * 2)
        self.assertEqual({(r["npu"], r["prompt_tokens"], r["chunk_tokens"]) for r in rows},
                         {(n, p, c) for n in ("m2-max", "m2-ultra") for p in ("512", "1024") for c in ("256", "512")})
        self.assertEqual({r["simulated"] for r in rows}, {"true"})
        self.assertEqual({r["routing"] for r in rows}, {"zipf:0.6,0.3"})
        path = self.dir / "sweep.json"
        self.ok("simulate", self.whole, "--seeds", "1", "--placement", "ours", "--objective", "time,energy", "--sweep", path)
        with open(path, encoding="utf-8") as file:
            self.assertEqual([r["placements"][0]["objective"] for r in json.load(file)], ["time", "energy"])

    def test_three_digits_show_whatever_the_model(self):
        text = self.ok("simulate", "tiny-qwen3moe", "--prompt", "64", "--chunk", "64", "--seeds", "1", "--placement", "ours,cpu",
                       "--objective", "energy").text()
        times, stages = [part.split("\n") for part in text.split("| placement")[1:]]
        self.assertRegex(times[0], r"^ \| TTFT [mu]s \| [mun]J/token \| CPU busy [mu]s \|")
        self.assertRegex(stages[0], r"^, [mu]s \| attention \|")
        for table in (times, stages):
            self.assertTrue(table[2].startswith("| ours, energy |"), table)
            for row in table[2:4]:
                for cell in row.split("|")[2:-1]:
                    number = cell.split()[0]
                    if "%" not in cell and number not in ("0", "-"):
                        self.assertGreaterEqual(len(number.replace(".", "").lstrip("0")), 3, row)

    def test_orders(self):
        orders = {order: self.report("--placement", "ours", "--order", order)["placements"][0]
                  for order in ("layer-major", "wavefront")}
        for order, placement in orders.items():
            self.assertEqual(placement["order"], order)
            self.assertEqual(placement["dropped"]["mean"], 0)
        # Attention and experts at the same time.
        self.assertLess(orders["wavefront"]["ttft_seconds"]["mean"], orders["layer-major"]["ttft_seconds"]["mean"])

    def test_a_config_and_statistics_from_files(self):
        config = self.dir / "config.json"
        shape = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 512,
                       "intermediate_size": 1024, "moe_intermediate_size": 256, "num_hidden_layers": 2,
                       "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 16,
                       "num_experts_per_tok": 4, "vocab_size": 1000, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                       "max_position_embeddings": 8192, "norm_topk_prob": True, "tie_word_embeddings": False}
        config.write_text(json.dumps(shape))
        said = json.loads(self.ok("simulate", config, "--seeds", "1", "--placement", "ours", "--json").text())
        self.assertEqual((said["n_layers"], said["n_experts"], said["top_k"]), (2, 16, 4))
        self.assertEqual(said["model"], str(config))
        large = self.dir / "large.json"
        large.write_text(json.dumps({**shape, "num_experts": 512, "max_position_embeddings": 1 << 20}))
        self.fails(2, "32768 chunks of 32 tokens, limit 4096", "simulate", large, "--prompt", "1048576", "--chunk", "32")
        large.write_text(json.dumps({**shape, "num_experts": 512, "num_hidden_layers": 8, "max_position_embeddings": 1 << 20}))
        self.fails(2, "loads, limit", "simulate", large, "--prompt", "131072", "--chunk", "32")

    def test_a_sweep_never_replaces_what_it_reads(self):
        config = self.write("kept.json", b"{}")
        self.fails(2, "kept.json", "simulate", config, "--sweep", config)
        self.assertEqual(config.read_bytes(), b"{}")
        folder = self.dir / "folder"
        folder.mkdir()
        (folder / "config.json").write_bytes(b"{}")
        self.fails(2, "config.json", "simulate", folder, "--sweep", folder / "config.json")
        self.assertEqual((folder / "config.json").read_bytes(), b"{}")
        stats = self.write("stats.json", b"{}")
        self.fails(2, "stats.json", "simulate", MODEL, "--routing", stats, "--sweep", stats)
        self.assertEqual(stats.read_bytes(), b"{}")

    def test_refusals(self):
        for args, message in [
            ([], "model"),
            (["no-such"], "model no-such: neither a file nor a known shape"),
            ([MODEL, "--npu", "m9"], "m9"),
            ([MODEL, "--placement", "best"], "best"),
            ([MODEL, "--objective", "speed"], "speed"),
            ([MODEL, "--order", "chunk-major"], "order: 'chunk-major' is unknown, wanted one of auto, layer-major, wavefront"),
            ([MODEL, "--routing", "zipf:"], "wanted zipf:S or zipf:S,DRIFT"),
            ([MODEL, "--chunk", "300"], "chunk 300: wanted a multiple of 32"),
            ([MODEL, "--moe-batch", "300"], "MoE batch 300: wanted a multiple of the chunk of 256 tokens"),
            (["tiny-qwen3moe"], "prompt 4096: wanted 1 to 512 tokens, the context of tiny-qwen3moe"),
            ([MODEL, "--drift", "nan"], "nan"),
            ([MODEL, "--run-drift-factor", "nan"], "nan"),
            ([MODEL, "--prompt", "0"], "prompt"),
            (["tiny-llama"], "no experts to place"),
            ([f"{MODEL},/no/such"], "/no/such"),  # before the first is simulated: one line, no progress
            ([MODEL, "--chunk", "256,257"], "chunk 257"),
            ([MODEL, "--sweep", "x.txt"], "wanted a name that ends in .csv or .json"),
            ([MODEL, "--seeds", "0"], "seeds"),
        ]:
            with self.subTest(args=args):
                self.fails(2, message, "simulate", *args)
        self.fails(1, "/no/such/stats.json", "simulate", MODEL, "--routing", "/no/such/stats.json")
        self.fails(1, "empty, wanted statistics", "simulate", MODEL, "--routing", self.write("empty.json", b""))
        self.fails(1, "x.csv", "simulate", MODEL, "--seeds", "1", "--placement", "cpu", "--sweep", self.dir / "no" / "x.csv")
