# SPDX-License-Identifier: Apache-2.0
"""Muon for the square weight matrices and AdamW for the rest, over one flat parameter vector.

Flat memory lets two processes share weights, gradients and optimizer state without a copy: each
sums the gradients of, and updates, its own part (see train.py).
"""

import ctypes

import torch

import fast

MATRICES = ("qkv", "attn_out", "gate_up", "down")  # all of them stacks of dim x dim blocks


def flat_order(model):
    """Parameters in the order of the flat vector: every layer's matrices first, then the rest."""
    named = list(model.named_parameters())
    is_matrix = {name: name.split(".")[-1] in MATRICES for name, _ in named}
    return ([(n, p) for n, p in named if is_matrix[n]], [(n, p) for n, p in named if not is_matrix[n]])


def bind(model, flat_params, flat_grads):
    """Makes the model's parameters and gradients views of the flat vectors."""
    at = 0
    for _, p in sum(flat_order(model), []):
        p.data = flat_params[at:at + p.numel()].view(p.shape)
        p.grad = flat_grads[at:at + p.numel()].view(p.shape)
        at += p.numel()


def orthogonalize(x):
    """Nearest orthogonal matrix, roughly, of each in x [n, dim, dim], bfloat16 of norm 1: Muon's
    Newton-Schulz quintic."""
    for _ in range(5):
        a = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x


class Optimizer:
    """The part of the update that worker `rank` of `n_workers` owns."""

    MUON_LR, MUON_DECAY, MOMENTUM = 0.02, 0.05, 0.95
    ADAM_LR, BETA1, BETA2 = 0.003, 0.9, 0.97

    def __init__(self, model, shared, rank, n_workers):
        """`shared` has the flat vectors params, first, second and the list grads, one a worker."""
        self.shared = shared
        matrices, rest = flat_order(model)
        dim = model.config.dim
        end = sum(p.numel() for _, p in matrices)
        total = end + sum(p.numel() for _, p in rest)
        n_blocks = end // (dim * dim)
        self.muon = slice(rank * n_blocks // n_workers * dim * dim,
                          (rank + 1) * n_blocks // n_workers * dim * dim)
        self.adam = slice(end + rank * (total - end) // n_workers,
                          end + (rank + 1) * (total - end) // n_workers)
        self.dim = dim

    def step(self, number, lr_factor):
        s = self.shared
        part, size, chunk = self.muon, self.dim * self.dim, 16  # 16 blocks fit the cache
        n_blocks = (part.stop - part.start) // size
        grads = (ctypes.c_void_p * len(s.grads))(*(g[part].data_ptr() for g in s.grads))
        update = torch.empty(n_blocks, self.dim, self.dim, dtype=torch.bfloat16)
        fast.call(fast.LIB.MuonMomentum, n_blocks, size, len(s.grads), grads, self.MOMENTUM,
                  s.first[part], update)
        for a in range(0, n_blocks, chunk):
            update[a:a + chunk] = orthogonalize(update[a:a + chunk])
        fast.call(fast.LIB.MuonApply, update.numel(), self.MUON_LR * lr_factor, self.MUON_DECAY,
                  update, s.params[part])

        g = sum(g[self.adam] for g in s.grads)
        first, second = s.first[self.adam], s.second[self.adam]
        first.lerp_(g, 1 - self.BETA1)
        second.lerp_(g.square_(), 1 - self.BETA2)
        mean = first / (1 - self.BETA1 ** (number + 1))
        rms = (second / (1 - self.BETA2 ** (number + 1))).sqrt_().add_(1e-10)
        s.params[self.adam].addcdiv_(mean, rms, value=-self.ADAM_LR * lr_factor)
