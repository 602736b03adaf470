# SPDX-License-Identifier: Apache-2.0
"""The demo model: Qwen3-MoE's arithmetic at dim 256, written for training on a CPU with bf16 tiles.

Weights are float32; matrix products run in bfloat16 (oneDNN uses AMX for them), norms, router,
softmax of the router and the residual stream stay float32. `exact` runs all of it in float32.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


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


class RmsNorm(torch.autograd.Function):
    """x / rms(x) * weight over the last axis. By hand: half the memory passes of autograd's."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight

    @staticmethod
    def backward(ctx, grad):
        unit, scale, weight = ctx.saved_tensors
        grad_weight = (grad * unit).flatten(0, -2).sum(0)
        g = grad * weight
        g -= unit * (g * unit).mean(-1, keepdim=True)
        return g.mul_(scale), grad_weight, None


class Experts(torch.autograd.Function):
    """sum_k p[n,k] * down_e(silu(gate_e x) * up_e x) with e = chosen[n,k]: rows are sorted by
    expert, so that every expert is three plain matrix products."""

    @staticmethod
    def forward(ctx, x, p, chosen, gate_up, down):
        n_experts, expert_dim = down.shape[0], down.shape[2]
        order = torch.argsort(chosen.flatten(), stable=True)
        token = order // chosen.shape[1]
        ends = torch.bincount(chosen.flatten(), minlength=n_experts).cumsum(0).tolist()
        spans = list(zip([0] + ends[:-1], ends))
        rows = x[token]
        hidden = torch.empty(len(order), 2 * expert_dim, dtype=x.dtype)
        y = torch.empty(len(order), x.shape[1], dtype=x.dtype)
        for e, (a, b) in enumerate(spans):
            if a < b:
                torch.mm(rows[a:b], gate_up[e].t(), out=hidden[a:b])
        gate, up = hidden[:, :expert_dim], hidden[:, expert_dim:]
        h = F.silu(gate) * up
        for e, (a, b) in enumerate(spans):
            if a < b:
                torch.mm(h[a:b], down[e].t(), out=y[a:b])
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        ctx.save_for_backward(rows, hidden, h, y, p, token, order, place, gate_up, down)
        ctx.spans = spans
        picked = y[place].view(*chosen.shape, -1)
        return (picked.float() * p.unsqueeze(-1)).sum(1)

    @staticmethod
    def backward(ctx, grad):
        rows, hidden, h, y, p, token, order, place, gate_up, down = ctx.saved_tensors
        expert_dim = down.shape[2]
        g = grad[token]
        grad_p = (g * y).sum(-1)[place].view_as(p)
        g = (g * p.flatten()[order].unsqueeze(-1)).to(rows.dtype)
        gate, up = hidden[:, :expert_dim], hidden[:, expert_dim:]
        grad_h = torch.empty_like(h)
        grad_down, grad_gate_up = torch.zeros_like(down), torch.zeros_like(gate_up)
        for e, (a, b) in enumerate(ctx.spans):
            if a < b:
                torch.mm(g[a:b], down[e], out=grad_h[a:b])
                grad_down[e] = torch.mm(g[a:b].t(), h[a:b])
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        grad_hidden = torch.cat([grad_h * up * (sigmoid + silu * (1 - sigmoid)), grad_h * silu], -1)
        grad_rows = torch.empty_like(rows)
        for e, (a, b) in enumerate(ctx.spans):
            if a < b:
                torch.mm(grad_hidden[a:b], gate_up[e], out=grad_rows[a:b])
                grad_gate_up[e] = torch.mm(grad_hidden[a:b].t(), rows[a:b])
        grad_x = grad_rows[place].view(*p.shape, -1).sum(1)
        return grad_x, grad_p, None, grad_gate_up, grad_down


class CrossEntropy(torch.autograd.Function):
    """Mean next-token loss of tied-head logits, with the gradient made chunk by chunk: the whole
    [tokens, vocab] matrix never exists."""

    CHUNK = 512

    @staticmethod
    def forward(ctx, x, head, targets):
        total, n = 0.0, len(x)
        grad_x, grad_head = torch.empty_like(x), torch.zeros(head.shape)
        for a in range(0, n, CrossEntropy.CHUNK):
            rows, target = x[a:a + CrossEntropy.CHUNK], targets[a:a + CrossEntropy.CHUNK, None]
            log_p = F.log_softmax((rows @ head.t()).float(), -1)
            total -= log_p.gather(1, target).sum().item()
            p = log_p.exp_()
            p.scatter_add_(1, target, torch.full(target.shape, -1.0))
            p = p.to(x.dtype)
            grad_x[a:a + CrossEntropy.CHUNK] = p @ head
            grad_head += (p.t() @ rows).float()
        ctx.save_for_backward(grad_x, grad_head)
        ctx.n = n
        return torch.tensor(total / n)

    @staticmethod
    def backward(ctx, grad):
        grad_x, grad_head = ctx.saved_tensors
        scale = float(grad) / ctx.n
        return grad_x * scale, grad_head * scale, None


def rope_tables(config, n):
    inverse = config.rope_theta ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    angles = torch.arange(n).float()[:, None] * inverse
    return torch.cos(angles).repeat(1, 2)[:, None], torch.sin(angles).repeat(1, 2)[:, None]


def rotate(x, cos, sin):
    """NeoX layout: pair i is (x[i], x[i + head_dim / 2])."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


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

    def attention(self, x, cos, sin, mask, dtype):
        c, (batch, n, _) = self.config, x.shape
        h = RmsNorm.apply(x, self.attn_norm, c.rms_eps).to(dtype)
        q, k, v = F.linear(h, self.qkv.to(dtype)).view(batch, n, -1, c.head_dim).split(
            [c.n_heads, c.n_kv_heads, c.n_kv_heads], 2)
        q = rotate(RmsNorm.apply(q.float(), self.q_norm * c.head_dim ** -0.5, c.rms_eps), cos, sin)
        k = rotate(RmsNorm.apply(k.float(), self.k_norm, c.rms_eps), cos, sin)
        # The query heads of one key head become further rows of one product.
        group = c.n_heads // c.n_kv_heads
        q = q.to(dtype).view(batch, n, c.n_kv_heads, group, c.head_dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(batch * c.n_kv_heads, group * n, c.head_dim)
        k = k.to(dtype).transpose(1, 2).reshape(batch * c.n_kv_heads, n, c.head_dim)
        v = v.transpose(1, 2).reshape(batch * c.n_kv_heads, n, c.head_dim)
        scores = torch.bmm(q, k.transpose(1, 2))
        scores.view(-1, group, n, n).add_(mask)
        y = torch.bmm(F.softmax(scores, -1), v)
        y = y.view(batch, c.n_heads, n, c.head_dim).transpose(1, 2).reshape(batch, n, -1)
        return F.linear(y, self.attn_out.to(dtype))

    def route(self, h):
        """h [tokens, dim] -> (probabilities of all experts, weights and ids of the chosen)."""
        probs = F.softmax(F.linear(h, self.router), -1)
        top, chosen = probs.topk(self.config.top_k, -1)
        return probs, top / top.sum(-1, keepdim=True), chosen

    def forward(self, x, cos, sin, mask, dtype):
        x = x + self.attention(x, cos, sin, mask, dtype)
        h = RmsNorm.apply(x, self.ffn_norm, self.config.rms_eps).flatten(0, 1)
        probs, p, chosen = self.route(h)
        y = Experts.apply(h.to(dtype), p, chosen, self.gate_up.to(dtype), self.down.to(dtype))
        # Switch Transformer's balance term: 1 when even.
        n_experts = self.config.n_experts
        share = torch.bincount(chosen.flatten(), minlength=n_experts) / chosen.numel()
        balance = n_experts * (share * probs.mean(0)).sum()
        return x + y.view_as(x), balance, chosen


class DemoModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.randn(config.vocab_size, config.dim) * 0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.out_norm = nn.Parameter(torch.ones(config.dim))
        self._tables = {}

    def _positions(self, n, dtype):
        if (n, dtype) not in self._tables:
            mask = torch.full((n, n), float("-inf")).triu(1).to(dtype)
            self._tables[n, dtype] = (*rope_tables(self.config, n), mask)
        return self._tables[n, dtype]

    def hidden(self, ids, exact=False):
        """ids [batch, n] -> final normed states [batch, n, dim], mean balance term, chosen experts
        of every layer."""
        dtype = torch.float32 if exact else torch.bfloat16
        cos, sin, mask = self._positions(ids.shape[1], dtype)
        x = F.embedding(ids, self.embedding)
        balance, routes = 0.0, []
        for layer in self.layers:
            x, term, chosen = layer(x, cos, sin, mask, dtype)
            balance = balance + term / len(self.layers)
            routes.append(chosen)
        return RmsNorm.apply(x, self.out_norm, self.config.rms_eps), balance, routes

    def loss(self, ids, targets):
        h, balance, _ = self.hidden(ids)
        loss = CrossEntropy.apply(h.flatten(0, 1).bfloat16(), self.embedding.bfloat16(),
                                  targets.flatten())
        return loss, balance

    def logits(self, ids, exact=True):
        h, _, routes = self.hidden(ids, exact)
        return h @ self.embedding.t(), routes
