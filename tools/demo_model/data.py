# SPDX-License-Identifier: Apache-2.0
"""Corpora -> tokenizer, token streams and held-out texts of the demo model.

Usage: data.py --texts ../shared/data/corpora --out RUN_DIR --heldout models/heldout
"""

import argparse
import collections
import glob
import json
import os
import random
import re
import sysconfig

import numpy as np

import retrieval
import tokenizer

VOCAB_SIZE = 5120
HELDOUT_BYTES = 24_000      # per domain, for perplexity
CALIBRATION_BYTES = 5_000   # per domain, for routing statistics
RETRIEVAL_DOCUMENTS = 20_000
END = "<|endoftext|>"

CLASSICS = {
    "prose": ["prose_austen_emma", "prose_austen_pride", "prose_carroll_alice",
              "prose_dickens_great_expectations", "prose_dickens_two_cities", "prose_doyle_hound",
              "prose_melville_moby_dick", "prose_twain_huck", "essay_emerson_essays"],
    "verse": ["verse_blake_songs", "verse_dante_inferno", "verse_dickinson_poems",
              "verse_milton_paradise_lost", "verse_poe_poems", "verse_whitman_leaves"],
    "drama": ["drama_chekhov_cherry", "drama_chekhov_seagull", "drama_ibsen_dolls_house",
              "drama_ibsen_enemy", "drama_shaw_pygmalion", "drama_wilde_earnest"],
}


def read(path):
    with open(path, encoding="utf-8-sig", newline="") as f:
        return f.read().replace("\r\n", "\n").replace("\r", "\n")


def tidy(text):
    text = re.sub(r"^-{3,}$", "", text, flags=re.M).replace("**", "").replace("_", "")
    text = re.sub(r"[ \t]+$", "", text, flags=re.M)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def unwrap(text):
    """Joins hard-wrapped lines: a paragraph becomes one line, as in the other prose."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)


def gsm8k(path):
    """Problems in two forms, plain and chat, without the calculator's marks."""
    texts = []
    with open(path, encoding="utf-8") as f:
        for i, line in enumerate(f):
            item = json.loads(line)
            question, answer = item["question"], re.sub(r"<<.*?>>", "", item["answer"])
            if i % 3 == 0 and i < 7000:  # the last problems are the held-out ones: plain text
                texts.append(f"<|im_start|>user\n{question}<|im_end|>\n"
                             f"<|im_start|>assistant\n{answer}<|im_end|>\n")
            else:
                texts.append(f"Question: {question}\nAnswer: {answer}\n")
    return texts


def python_sources():
    root = sysconfig.get_path("stdlib")
    skip = re.compile(r"/(test|tests|idlelib|encodings|pydoc_data|lib2to3|dist-packages|site-packages)/")
    paths = [p for p in sorted(glob.glob(root + "/**/*.py", recursive=True)) if not skip.search(p)]
    texts = [read(p).strip() + "\n" for p in paths]
    return [t for t in texts if 2_000 < len(t) < 150_000]


def domains(texts_dir):
    """Domain -> documents."""
    found = {name: [tidy(read(f"{texts_dir}/classics/{stem}.md")) for stem in stems]
             for name, stems in CLASSICS.items()}
    found["prose"].append(tidy(unwrap(read(f"{texts_dir}/prose_botchan_en.txt"))))
    found["drama"].append(tidy(read(f"{texts_dir}/tinyshakespeare.txt")))
    found["maths"] = gsm8k(f"{texts_dir}/gsm8k_train.jsonl")
    found["spanish"] = [tidy(read(f"{texts_dir}/es_reina_valera_1909.txt"))]
    found["french"] = [tidy(unwrap(read(f"{texts_dir}/fr_verne_voyage.txt")))]
    found["python"] = python_sources()
    return found


def hold_out(documents, n_bytes):
    """Cuts about `n_bytes` out of the documents: from long ones a stretch of lines in the middle,
    from collections of short ones the last. Returns (rest, held-out pieces)."""
    long_ones = [i for i, d in enumerate(documents) if len(d) > 60_000][:6]
    if not long_ones:
        size, cut = 0, len(documents)
        while size < n_bytes:
            cut -= 1
            size += len(documents[cut].encode())
        return documents[:cut], documents[cut:]
    rest, pieces = list(documents), []
    for i in long_ones:
        text = documents[i]
        begin = text.index("\n", len(text) * 3 // 5) + 1
        end = text.index("\n", begin + n_bytes // len(long_ones)) + 1
        pieces.append(text[begin:end])
        rest[i] = text[:begin] + END + text[end:]
    return rest, pieces


def word_counts(train):
    """Pre-token -> weight; each domain weighs the same, so that verse is not swamped by code."""
    totals = collections.Counter()
    for documents in train.values():
        counts = collections.Counter()
        for document in documents:
            for part in tokenizer.SPECIAL_SPLIT.split(document):
                if part not in tokenizer.SPECIAL:
                    counts.update(tokenizer.SPLIT.findall(part))
        scale = 10_000_000 / sum(len(w) * n for w, n in counts.items())
        for word, n in counts.items():
            if n > 1:
                totals[word] += max(1, round(n * scale))
    return totals


def retrieval_texts(train, n, seed):
    rng = random.Random(seed)
    words = retrieval.key_words(" ".join(train["prose"]), held_out=False)
    filler = [line for name in ("prose", "verse", "drama", "spanish", "python")
              for document in train[name] for line in document.split("\n")
              if 30 < len(line) < 160 and END not in line]
    return [retrieval.training_document(rng, words, filler) for _ in range(n)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", default="../shared/data/corpora")
    parser.add_argument("--out", required=True)
    parser.add_argument("--heldout", default="models/heldout")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    os.makedirs(args.heldout, exist_ok=True)

    train, sample = {}, []
    for name, documents in domains(args.texts).items():
        n_bytes = HELDOUT_BYTES // (2 if name in ("spanish", "french") else 1)
        rest, evaluation = hold_out(documents, n_bytes)
        train[name], calibration = hold_out(rest, CALIBRATION_BYTES)
        with open(f"{args.heldout}/{name}.txt", "w", encoding="utf-8") as f:
            f.write("".join(evaluation))
        sample.extend(calibration)
    with open(f"{args.heldout}/../calibration.txt", "w", encoding="utf-8") as f:
        f.write("".join(sample))

    with open(os.path.join(os.path.dirname(__file__), "key_words.txt"), "w") as f:
        f.write("\n".join(retrieval.key_words(" ".join(train["prose"]), held_out=True)) + "\n")
    tok = tokenizer.train(word_counts(train), VOCAB_SIZE)
    tok.save(f"{args.out}/tokenizer.json")
    train["retrieval"] = retrieval_texts(train, RETRIEVAL_DOCUMENTS, seed=1)
    for name, documents in train.items():
        ids = np.array(tok.encode(END.join(documents) + END), dtype=np.uint16)
        np.save(f"{args.out}/{name}.npy", ids)
        n_bytes = sum(len(d.encode()) for d in documents)
        print(f"{name}: {n_bytes} bytes, {len(ids)} tokens, {n_bytes / len(ids):.2f} bytes a token")


if __name__ == "__main__":
    main()
