# SPDX-License-Identifier: Apache-2.0
"""Held-out perplexity per domain, retrieval accuracy, expert use and samples of a checkpoint.

Usage: evaluate.py --run RUN_DIR [--parts perplexity,retrieval,samples]   (the tables of the card)
"""

import argparse
import glob
import math
import os
import random

import torch
import torch.nn.functional as F

import retrieval
from export_gguf import load_model, rounded_like_the_file
from tokenizer import Tokenizer

WINDOW = 512
PROMPTS = {
    "prose": "It was a fine morning, and",
    "verse": "O thou, whose gentle",
    "drama": "KING RICHARD II:\n",
    "maths": "Question: Tom has 5 apples and buys 3 more. How many apples does he have now?\nAnswer:",
    "spanish": "Y dijo Dios",
    "french": "Mon oncle",
    "python": "class Reader:\n    def __init__(self,",
    "retrieval": "The code of garden is 4821.\nThe code of silver is 9035.\nThe code of window is 1776."
                 "\nWhat is the code of silver?",
}


def key_words():
    """The keys that no training text uses (retrieval.key_words with held_out)."""
    with open(os.path.join(os.path.dirname(__file__), "key_words.txt")) as f:
        return f.read().split()


class Heldout:
    """The held-out texts, cut into windows of 512 tokens, and a fixed set of key questions."""

    def __init__(self, heldout_dir, tok):
        self.tok = tok
        self.windows, self.n_bytes = {}, {}
        for path in sorted(glob.glob(f"{heldout_dir}/*.txt")):
            name = os.path.basename(path)[:-4]
            with open(path, encoding="utf-8") as f:
                text = f.read()
            ids = torch.tensor(tok.encode(text))
            n = len(ids) // WINDOW
            self.windows[name] = ids[:n * WINDOW].view(n, WINDOW)
            self.n_bytes[name] = len(tok.decode(ids[:n * WINDOW].tolist()).encode())
        with open(f"{heldout_dir}/prose.txt", encoding="utf-8") as f:
            self.filler = [s + "." for s in f.read().replace("\n", " ").split(". ")
                           if 30 < len(s) < 160]

    @torch.no_grad()
    def read(self, model, name):
        """(mean loss in nats a token over windows read without earlier context, share of the token
        choices each expert gets [n_layers, n_experts])."""
        total = 0.0
        counts = torch.zeros(model.config.n_layers, model.config.n_experts)
        for row in self.windows[name]:
            logits, routes = model.logits(row[None])
            total += F.cross_entropy(logits[0, :-1], row[1:]).item()
            counts += torch.stack([torch.bincount(r.flatten(), minlength=counts.shape[1])
                                   for r in routes])
        return total / len(self.windows[name]), counts / counts.sum(-1, keepdim=True)

    @torch.no_grad()
    def retrieval_accuracy(self, model, words, n_keys, n_filler, n_texts, chat=False):
        """Share of key questions whose whole number is the most probable continuation."""
        rng = random.Random(7)
        right = 0
        for _ in range(n_texts):
            text, _ = retrieval.document(rng, words, self.filler, n_keys, n_filler, 1, chat)
            answer = text.rstrip("\n").removesuffix("<|im_end|>").removesuffix(".").split(" ")[-1]
            cut = text.rindex(answer)
            # The space goes with the question: a digit is a token of its own.
            prompt, digits = self.tok.encode(text[:cut]), self.tok.encode(answer)
            logits, _ = model.logits(torch.tensor([prompt + digits]))
            guess = logits[0, len(prompt) - 1:-1].argmax(-1).tolist()
            right += guess == digits
        return right / n_texts

    @torch.no_grad()
    def brief(self, model):
        """One line for the training log, by the fast path."""
        losses = {}
        for name, windows in self.windows.items():
            ids = windows[:4]
            losses[name] = model.loss(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())[0].item()
        found = self.retrieval_accuracy(model, key_words(), 8, 2, 20)
        return ("heldout " + " ".join(f"{n} {v:.3f}" for n, v in losses.items())
                + f" retrieval {found:.2f}")


def generate(model, tok, prompt, n_tokens, temperature, seed):
    """Continuation of `prompt`; temperature 0 takes the most probable token."""
    generator = torch.Generator().manual_seed(seed)
    ids = tok.encode(prompt)
    begin, stops = len(ids), (tok.id_of("<|endoftext|>"), tok.id_of("<|im_end|>"))
    for _ in range(n_tokens):
        with torch.no_grad():
            last = model.logits(torch.tensor([ids]))[0][0, -1]
        if temperature == 0:
            token = int(last.argmax())
        else:
            token = int(torch.multinomial(F.softmax(last / temperature, -1), 1, generator=generator))
        if token in stops:
            break
        ids.append(token)
    return tok.decode(ids[begin:])


def effective(shares):
    """exp(entropy): how many equally used experts would be as varied."""
    return torch.exp(-(shares * shares.clamp_min(1e-9).log()).sum(-1))


def print_perplexity(losses, heldout):
    """`losses`: label of the weights -> domain -> mean loss."""
    print("| domain | tokens | bytes a token | " + " | ".join(
        f"perplexity, {label}" for label in losses) + " | bits a byte |")
    print("|---|---|---|" + "---|" * (len(losses) + 1))
    for name, windows in heldout.windows.items():
        values = [by_domain[name] for by_domain in losses.values()]
        bytes_a_token = heldout.n_bytes[name] / windows.numel()
        print(f"| {name} | {windows.numel()} | {bytes_a_token:.2f} | "
              + " | ".join(f"{math.exp(v):.3f}" for v in values)
              + f" | {values[-1] / math.log(2) / bytes_a_token:.3f} |")


def print_retrieval(model, heldout, words):
    print("| keys | filler lines | form | whole number right |\n|---|---|---|---|")
    for n_keys, n_filler in [(1, 0), (4, 2), (8, 4), (16, 4)]:
        for chat in (False, True):
            share = heldout.retrieval_accuracy(model, words, n_keys, n_filler, 50, chat)
            print(f"| {n_keys} | {n_filler} | {'chat' if chat else 'plain'} | {share:.0%} |")


def print_experts(shares):
    names, mixed = list(shares), sum(shares.values()) / len(shares)
    print("| layer | hottest, all | coldest, all | effective, all | "
          + " | ".join(f"{n}: hottest, effective" for n in names) + " |")
    print("|---|---|---|---|" + "---|" * len(names))
    for layer, row in enumerate(mixed):
        print(f"| {layer} | {row.max():.1%} | {row.min():.2%} | {effective(row):.1f} | " + " | ".join(
            f"{shares[n][layer].max():.0%}, {effective(shares[n][layer]):.1f}" for n in names) + " |")
    print("\n| shared with | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for a in names:
        overlap = [torch.minimum(shares[a], shares[b]).sum(-1).mean() for b in names]
        print(f"| {a} | " + " | ".join(f"{v:.2f}" for v in overlap) + " |")


def print_reading(model, quantized, heldout):
    losses, shares = {"float32": {}, "Q8_0": {}}, {}
    for name in heldout.windows:
        losses["float32"][name], _ = heldout.read(model, name)
        losses["Q8_0"][name], shares[name] = heldout.read(quantized, name)
    print_perplexity(losses, heldout)
    print()
    print_experts(shares)
    print()


def print_samples(model, tok, seed):
    for name, prompt in PROMPTS.items():
        for temperature in (0, 0.7):
            text = generate(model, tok, prompt, 50, temperature, seed)
            print(f"\n{name}, temperature {temperature}, seed {seed}:\n\n```\n"
                  f"{prompt}[>]{text}\n```", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--heldout", default="models/heldout")
    parser.add_argument("--parts", default="perplexity,retrieval,samples")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tok = Tokenizer.load(f"{args.run}/tokenizer.json")
    heldout = Heldout(args.heldout, tok)
    model, state = load_model(f"{args.run}/checkpoint.pt")
    quantized = rounded_like_the_file(load_model(f"{args.run}/checkpoint.pt")[0])
    print(state, "\n")
    if "perplexity" in args.parts:
        print_reading(model, quantized, heldout)
    if "retrieval" in args.parts:
        print_retrieval(quantized, heldout, key_words())
    if "samples" in args.parts:
        print_samples(quantized, tok, args.seed)


if __name__ == "__main__":
    main()
