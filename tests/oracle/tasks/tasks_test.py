# SPDX-License-Identifier: Apache-2.0
"""Holds the scores of multiple-choice items against llama.cpp's, in which all is independent of ours: how files are read and
prompts are put together, the tokenizer, the arithmetic (llama_choices.mjs). f32 weights, keys and values on both sides.

usage: tasks_test.py NPUMOE NODE_MODULES      exit 77: the oracle is absent
"""
import bz2
import glob
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

SKIP = 77
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
DATA = ROOT.parent / "shared" / "data" / "eval"
N_ITEMS = 200
CONTEXT = 1024
# A vocabulary of 512 takes a token for every two letters or so, and llama.cpp's probabilities take a millisecond each.
HELLASWAG_BYTES, BOOLQ_BYTES = 260, 700
# Two f32 engines differ by rounding, about 1e-6 nats a token (2.4e-5 was the farthest seen), of at most a hundred
# tokens here.
TOLERANCE = 1e-4  # nats, of a sum


def words_of_ours(rng, n):
    words = "the old captain looked at a quiet sea and said that nobody would sail before the wind was fair again".split()
    return " ".join(rng.choice(words) for _ in range(n))


def hellaswag(folder):
    path = folder / "hellaswag.txt"
    source = DATA / "hellaswag_val_full.txt.bz2"
    if source.exists():
        lines = bz2.open(source).readlines()
        items = [b"".join(lines[i:i + 6]) for i in range(0, len(lines), 6)]
        path.write_bytes(b"".join([item for item in items if len(item) < HELLASWAG_BYTES][:N_ITEMS]))
        return path, "the validation set's first short ones"
    rng = random.Random(3)
    lines = []
    for _ in range(N_ITEMS):
        lines += [words_of_ours(rng, rng.randint(8, 40)), str(rng.randrange(4))]
        lines += [words_of_ours(rng, rng.randint(3, 20)) + "." for _ in range(4)]
    path.write_text("\n".join(lines) + "\n")
    return path, "made"


def boolq(folder):
    path = folder / "boolq.jsonl"
    source = DATA / "boolq.jsonl"
    if source.exists():
        rows = [line for line in source.read_text().splitlines() if len(line) < BOOLQ_BYTES][:N_ITEMS]
        kind = "the first short ones"
    else:
        rng = random.Random(4)
        rows = [json.dumps({"query": f"Passage: {words_of_ours(rng, rng.randint(20, 80))}.\nQuestion: is it {words_of_ours(rng, 3)}?",
                            "choices": ["no", "yes"], "gold": rng.randrange(2)}) for _ in range(N_ITEMS)]
        kind = "made"
    assert len(rows) == N_ITEMS, len(rows)
    path.write_text("\n".join(rows) + "\n")
    return path, kind


def best(scores):
    return scores.index(max(scores))


def margin(scores):
    first, second = sorted(scores, reverse=True)[:2]
    return first - second


def compare(ours, theirs):
    """(farthest sums, items chosen differently although the margin is beyond the tolerance, choices too close to tell)."""
    farthest, different, in_doubt = 0.0, [], 0
    for record, scores in zip(ours, theirs):
        assert record["n_tokens"] == [n for _, n in scores], f"item {record['item']}: {record['n_tokens']} {scores}"
        sums = [s for s, _ in scores]
        errors = [abs(a - b) for a, b in zip(record["log_probs"], sums)]
        farthest = max(farthest, *errors)
        for divisors in ([1] * len(sums), record["n_characters"], record["n_tokens"]):
            mine = [a / d for a, d in zip(record["log_probs"], divisors)]
            llama = [b / d for b, d in zip(sums, divisors)]
            if margin(llama) <= 2 * TOLERANCE / min(divisors):
                in_doubt += 1
            elif best(mine) != best(llama):
                different.append(record["item"])
    return farthest, different, in_doubt


def main():
    npumoe, node_modules = sys.argv[1:3]
    if not glob.glob(os.path.join(node_modules, "@node-llama-cpp/linux-x64/bins/*/libggml-base.so")):
        print(f"skipped: no node-llama-cpp in {node_modules} (npm absent or offline when scripts/setup ran)")
        return SKIP
    probe = pathlib.Path(__file__).resolve().parent / "llama_choices.mjs"
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = folder / "model.gguf"
        subprocess.run([npumoe, "make-model", "--shape", "tiny-qwen3moe", "--type", "f32", "--seed", "7", "-o", model],
                       check=True, capture_output=True)
        for task, (data, source), shots in [("hellaswag", hellaswag(folder), 0), ("boolq", boolq(folder), 0),
                                            ("hellaswag", hellaswag(folder), 2)]:
            n = N_ITEMS if shots == 0 else 15
            log = folder / f"{task}{shots}.jsonl"
            subprocess.run([npumoe, "eval", model, "--task", task, "--data", data, "--limit", str(n), "--shots", str(shots),
                            "-c", str(CONTEXT), "-ctk", "f32", "-ctv", "f32", "--resume", log], check=True, capture_output=True)
            ours = [json.loads(line) for line in log.read_text().splitlines()[1:]]
            shown = subprocess.run(["node", probe, node_modules, model, str(CONTEXT), str(shots),
                                    "hellaswag" if task == "hellaswag" else "jsonl", data, str(n)],
                                   check=True, capture_output=True, text=True).stdout
            theirs = [json.loads(line) for line in shown.splitlines()]
            assert len(ours) == len(theirs) == n, (len(ours), len(theirs))
            farthest, different, in_doubt = compare(ours, theirs)
            n_endings = sum(len(record["log_probs"]) for record in ours)
            good = not different and farthest <= TOLERANCE and in_doubt <= 0.05 * 3 * n
            failed = failed or not good
            print(f"{task}, {n} items ({source}), {shots} shots: {n_endings} sums, farthest {farthest:.1e} nats; "
                  f"choices different: {different or 'none'}, {in_doubt} of {3 * n} too close to tell"
                  f"{'' if good else '  FAILED'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
