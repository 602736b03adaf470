# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model on CPU cores: one single-threaded process each, weights in shared memory.

Usage: train.py --run RUN_DIR [--length 512]     (RUN_DIR as written by data.py; resumes by itself)
Warm-up, then a constant rate until RUN_DIR/decay exists: it holds the minutes over which the rate
falls to zero. RUN_DIR/stop ends the run at once with a checkpoint.
"""

import argparse
import os
import time
import types

import numpy as np
import torch
import torch.multiprocessing as mp

import evaluate
from model import Config, DemoModel
from optimizer import Optimizer, bind
from tokenizer import Tokenizer

MIX = {"prose": 0.18, "verse": 0.115, "drama": 0.115, "maths": 0.14, "spanish": 0.11, "french": 0.04,
       "python": 0.14, "retrieval": 0.16}
WARMUP_STEPS = 60
BALANCE = 0.01
CHECKPOINT_SECONDS = 240
EVALUATE_EVERY = 200


class Batches:
    """Random windows of the domains' token streams; a function of (seed, step, part) alone."""

    def __init__(self, run_dir, length, end_id):
        self.length = length
        self.names = list(MIX)
        self.streams = [np.load(f"{run_dir}/{name}.npy") for name in self.names]
        self.weights = np.array([MIX[n] for n in self.names])
        # A key is looked up only if its line is in the window: these windows begin with a text.
        stream = self.streams[self.names.index("retrieval")]
        begins = np.flatnonzero(stream == end_id) + 1
        self.begins = begins[begins < len(stream) - length - 1]

    def get(self, seed, step, part, n):
        rng = np.random.default_rng([seed, step, part])
        rows = []
        for domain in rng.choice(len(self.names), n, p=self.weights):
            stream = self.streams[domain]
            begin = (rng.choice(self.begins) if self.names[domain] == "retrieval"
                     else rng.integers(len(stream) - self.length - 1))
            rows.append(stream[begin:begin + self.length + 1].astype(np.int64))
        ids = torch.from_numpy(np.stack(rows))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


class Schedule:
    """Learning-rate factor; the decay counts training seconds, so a resumed run continues it."""

    def __init__(self, run_dir, state):
        self.path = f"{run_dir}/decay"
        self.decayed, self.total = state.get("decayed", 0.0), state.get("decay_total", 0.0)

    def factor(self, step, seconds):
        if not self.total and os.path.exists(self.path):
            with open(self.path) as f:
                self.total = 60 * float(f.read())
        elif self.total:
            self.decayed += seconds
        fall = max(0.0, 1 - self.decayed / self.total) if self.total else 1.0
        return min(1.0, (step + 1) / WARMUP_STEPS) * fall


def save(path, shared, model, state):
    torch.save({"params": shared.params, "first": shared.first, "second": shared.second,
                "state": state, "config": vars(model.config)}, path + ".part")
    os.replace(path + ".part", path)


def work(rank, args, shared):
    # Linux shares a busy machine out by setsid groups: two workers in one get one worker's part.
    os.setsid()
    torch.set_num_threads(1)
    model = DemoModel(Config())
    bind(model, shared.params, shared.grads[rank])
    optimizer = Optimizer(model, shared, rank, args.workers)
    tok = Tokenizer.load(f"{args.run}/tokenizer.json")
    batches = Batches(args.run, args.length, tok.id_of("<|endoftext|>"))
    n_parts = args.batch_tokens // (args.part_rows * args.length)
    state = dict(shared.state)
    schedule = Schedule(args.run, state)
    heldout = evaluate.Heldout(args.heldout, tok) if rank == 0 else None
    began = saved = last = time.time()
    tokens_before = state["tokens"]
    while not shared.stop.value:
        step = state["step"]
        shared.grads[rank].zero_()
        loss_sum = balance_sum = 0.0
        # Whoever is free takes the next part: other programs slow the two cores unevenly.
        while True:
            with shared.next_part.get_lock():
                part = shared.next_part.value
                shared.next_part.value += 1
            if part >= n_parts:
                break
            loss, balance = model.loss(*batches.get(args.seed, step, part, args.part_rows))
            ((loss + BALANCE * balance) / n_parts).backward()
            loss_sum += loss.item() / n_parts
            balance_sum += float(balance) / n_parts
        shared.losses[rank] = torch.tensor([loss_sum, balance_sum])
        shared.barrier.wait()
        if rank == 0:
            now = time.time()
            shared.lr[0] = schedule.factor(step, now - last)
            last = now
            shared.next_part.value = 0
        shared.barrier.wait()
        optimizer.step(step, shared.lr[0].item())
        state["step"] += 1
        state["tokens"] += args.batch_tokens
        finished = rank == 0 and (shared.lr[0] == 0 or os.path.exists(f"{args.run}/stop"))
        if finished:
            shared.stop.value = 1
        shared.barrier.wait()
        if rank != 0:
            continue
        seconds = time.time() - began
        state.update(seconds=shared.state["seconds"] + seconds, decayed=schedule.decayed,
                     decay_total=schedule.total)
        if step % 10 == 0 or finished:
            loss, balance = shared.losses.sum(0).tolist()
            rate = (state["tokens"] - tokens_before) / seconds
            print(f"step {step} loss {loss:.3f} balance {balance:.3f} lr {shared.lr[0]:.3f} "
                  f"tokens {state['tokens'] / 1e6:.2f}M {rate:.0f} tok/s", flush=True)
        if time.time() - saved > CHECKPOINT_SECONDS or finished:
            save(f"{args.run}/checkpoint.pt", shared, model, state)
            saved = time.time()
        if (step + 1) % EVALUATE_EVERY == 0:
            print(heldout.brief(model), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--heldout", default="models/heldout")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--part-rows", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = DemoModel(Config())
    n = sum(p.numel() for p in model.parameters())
    shared = types.SimpleNamespace(
        params=torch.zeros(n), first=torch.zeros(n), second=torch.zeros(n),
        grads=[torch.zeros(n) for _ in range(args.workers)],
        losses=torch.zeros(args.workers, 2), lr=torch.zeros(1),
        state={"step": 0, "tokens": 0, "seconds": 0.0})
    initial = [(p, p.detach().clone()) for p in model.parameters()]
    bind(model, shared.params, shared.grads[0])
    checkpoint = f"{args.run}/checkpoint.pt"
    if os.path.exists(checkpoint):
        stored = torch.load(checkpoint)
        shared.state = stored["state"]
        for name in ("params", "first", "second"):
            getattr(shared, name).copy_(stored[name])
    else:
        for p, value in initial:
            p.data.copy_(value)
    for t in [shared.params, shared.first, shared.second, shared.losses, shared.lr, *shared.grads]:
        t.share_memory_()
    context = mp.get_context("spawn")
    shared.barrier = context.Barrier(args.workers)
    shared.next_part, shared.stop = context.Value("i", 0), context.Value("i", 0)
    workers = [context.Process(target=work, args=(r, args, shared)) for r in range(args.workers)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()


if __name__ == "__main__":
    main()
