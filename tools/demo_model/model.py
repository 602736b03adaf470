# SPDX-License-Identifier: Apache-2.0
"""The demo model: Qwen3-MoE's arithmetic at dim 256.

Weights are float32. `logits` is the definition, plain torch in float32. `loss`, for training, runs
the matrix products in bfloat16 (oneDNN uses AMX for them) and the rest through fast.py; norms,
router and the residual stream stay float32.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

import fast


@dataclasses.dataclass
class Config:
    vocab_size: int = 5120
    dim: int = 256
    n_layers: int = 6
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 64
    n_experts: int = 16
    top_k: int = 2
    expert_dim: int = 256
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    context: int = 1024


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rope_tables(config, n):
    """Cosines and sines [n, head_dim / 2]."""
    inverse = config.rope_theta ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    angles = torch.arange(n).float()[:, None] * inverse
    return torch.cos(angles), torch.sin(angles)


def rotate(x, cosine, sine):
    """x [batch, n, heads, head_dim]. NeoX layout: pair i is (x[i], x[i + head_dim / 2])."""
    a, b = x.chunk(2, -1)
    cosine, sine = cosine[:, None], sine[:, None]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        q_dim, kv_dim = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim

        def matrix(*shape, scale=1.0):
            return nn.Parameter(torch.randn(*shape) * scale * shape[-1] ** -0.5)

        out_scale = (2 * c.n_layers) ** -0.5
        self.attn_norm = nn.Parameter(torch.ones(c.dim))
        self.qkv = matrix(q_dim + 2 * kv_dim, c.dim)
        self.q_norm = nn.Parameter(torch.ones(c.head_dim))
        self.k_norm = nn.Parameter(torch.ones(c.head_dim))
        self.attn_out = matrix(c.dim, q_dim, scale=out_scale)
        self.ffn_norm = nn.Parameter(torch.ones(c.dim))
        self.router = matrix(c.n_experts, c.dim)
        self.gate_up = matrix(c.n_experts, 2 * c.expert_dim, c.dim)
        self.down = matrix(c.n_experts, c.dim, c.expert_dim, scale=out_scale)

    def choose(self, router_logits):
        """(probabilities of all experts, weights and ids of the chosen)."""
        probs = F.softmax(router_logits, -1)
        top, chosen = probs.topk(self.config.top_k, -1)
        return probs, top / top.sum(-1, keepdim=True), chosen

    def exact(self, x, tables):
        """x [batch, n, dim] -> (next x, chosen experts [batch * n, top_k])."""
        c, (batch, n, _) = self.config, x.shape
        h = rms_norm(x, self.attn_norm, c.rms_eps)
        q, k, v = F.linear(h, self.qkv).view(batch, n, -1, c.head_dim).split(
            [c.n_heads, c.n_kv_heads, c.n_kv_heads], 2)
        q = rotate(rms_norm(q, self.q_norm, c.rms_eps), *tables)
        k = rotate(rms_norm(k, self.k_norm, c.rms_eps), *tables)
        group = c.n_heads // c.n_kv_heads
        q, k, v = (t.transpose(1, 2) for t in (
            q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
        scores = q @ k.transpose(2, 3) * c.head_dim ** -0.5
        hidden_keys = torch.ones(n, n, dtype=torch.bool).triu(1)
        y = scores.masked_fill(hidden_keys, float("-inf")).softmax(-1) @ v
        x = x + F.linear(y.transpose(1, 2).reshape(batch, n, -1), self.attn_out)

        h = rms_norm(x, self.ffn_norm, c.rms_eps).flatten(0, 1)
        _, p, chosen = self.choose(F.linear(h, self.router))
        out = torch.zeros_like(h)
        for expert in range(c.n_experts):
            token, slot = (chosen == expert).nonzero(as_tuple=True)
            gate, up = F.linear(h[token], self.gate_up[expert]).chunk(2, -1)
            y = F.linear(F.silu(gate) * up, self.down[expert])
            out = out.index_add(0, token, y * p[token, slot, None])
        return x + out.view_as(x), chosen

    def fast(self, x, tables, heads):
        """x [batch * n, dim] -> (next x, balance term)."""
        c = self.config
        h, _ = fast.Norm.apply(x, self.attn_norm, c.rms_eps)
        qkv = F.linear(h, self.qkv.bfloat16())
        y = fast.Attention.apply(qkv, self.q_norm * c.head_dim ** -0.5, self.k_norm, *tables, heads,
                                 c.rms_eps)
        x = x + F.linear(y, self.attn_out.bfloat16())
        h, h32 = fast.Norm.apply(x, self.ffn_norm, c.rms_eps)
        probs, p, chosen = self.choose(fast.RouterLinear.apply(h32, self.router))
        y = fast.Experts.apply(h, p, chosen, self.gate_up.bfloat16(), self.down.bfloat16())
        # Switch Transformer's balance term: 1 when even.
        share = torch.bincount(chosen.flatten(), minlength=c.n_experts) / chosen.numel()
        return x + y, c.n_experts * (share * probs.mean(0)).sum()


class DemoModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.randn(config.vocab_size, config.dim) * 0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.out_norm = nn.Parameter(torch.ones(config.dim))

    def loss(self, ids, targets):
        """ids, targets [batch, n] -> (mean loss in nats, mean balance term of the layers)."""
        c, (batch, n) = self.config, ids.shape
        heads = fast.Heads(batch, n, c.n_heads, c.n_kv_heads, c.head_dim)
        tables = rope_tables(c, n)
        x = F.embedding(ids.flatten(), self.embedding)
        balance = 0.0
        for layer in self.layers:
            x, term = layer.fast(x, tables, heads)
            balance = balance + term / c.n_layers
        h, _ = fast.Norm.apply(x, self.out_norm, c.rms_eps)
        return (fast.CrossEntropy.apply(h, self.embedding.bfloat16(), targets.flatten().contiguous()),
                balance)

    def logits(self, ids):
        """ids [batch, n] -> (logits [batch, n, vocab], chosen experts of every layer)."""
        tables = rope_tables(self.config, ids.shape[1])
        x, routes = F.embedding(ids, self.embedding), []
        for layer in self.layers:
            x, chosen = layer.exact(x, tables)
            routes.append(chosen)
        return rms_norm(x, self.out_norm, self.config.rms_eps) @ self.embedding.t(), routes
