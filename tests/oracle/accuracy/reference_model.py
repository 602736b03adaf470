# SPDX-License-Identifier: Apache-2.0
"""Float64 forward pass of every family, written from the published formulas for the accuracy tests.

Slow and plain on purpose: whole sequence at once, no cache, no chunks, experts one by one.
"""
import numpy as np


def rms_norm(x, weight, eps, bias=0.0):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight + bias


def layer_norm(x, weight, eps, bias=0.0):
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps) * weight + bias


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def silu(x):
    return x / (1.0 + np.exp(-x))


def sparsemixer(logits, jitter):
    """Phi-3.5-MoE's rule: [(expert, weight), (expert, weight)] of one token."""
    picks, left = [], logits.copy()
    for _ in range(2):
        best = int(np.argmax(left))
        top = left[best]
        with np.errstate(invalid="ignore", divide="ignore"):
            masked = (top - logits) / np.maximum(np.abs(logits), top) > 2 * jitter
        gates = np.where(masked, -np.inf, left)
        picks.append((best, softmax(gates)[best]))
        left[best] = -np.inf
    return picks


class Family:
    """What distinguishes one architecture: read once from the metadata, then data."""

    def __init__(self, gguf, phimoe_llama_cpp):
        arch = gguf.metadata["general.architecture"]
        get = lambda key, default=None: gguf.metadata.get(f"{arch}.{key}", default)
        self.n_layers, self.dim = get("block_count"), get("embedding_length")
        self.n_heads = get("attention.head_count")
        self.n_kv = get("attention.head_count_kv", self.n_heads)
        self.head_dim = get("attention.key_length", self.dim // self.n_heads)
        self.rope_dim = get("rope.dimension_count", self.head_dim)
        self.theta = get("rope.freq_base", 10000.0)
        self.eps = get("attention.layer_norm_rms_epsilon", get("attention.layer_norm_epsilon"))
        self.top_k = get("expert_used_count", 0)
        self.interleaved = arch == "llama"
        published_phi = arch == "phimoe" and not phimoe_llama_cpp
        self.norm = layer_norm if published_phi else rms_norm
        self.sparse = published_phi
        self.jitter = get("router_jitter_noise", 0.01)
        # Which families divide the chosen weights by their sum: as published (Mixtral, Qwen3-MoE), or as llama.cpp
        # reads PhiMoE. OLMoE and Qwen2-MoE publish norm_topk_prob = false.
        self.renormalise = {"llama": True, "qwen3moe": True, "phimoe": True, "olmoe": False, "qwen2moe": False}.get(arch)
        if get("expert_weights_norm") is not None:
            self.renormalise = get("expert_weights_norm")
        self.mscale = get("rope.scaling.attn_factor", 1.0)
        self.original_context = get("rope.scaling.original_context_length", 0)


class ReferenceModel:
    def __init__(self, gguf, phimoe_llama_cpp=False):
        self.gguf, self.f = gguf, Family(gguf, phimoe_llama_cpp)
        self.cache = {}

    def w(self, name):
        if name not in self.cache:
            self.cache[name] = self.gguf.tensor(name)
        return self.cache[name]

    def maybe(self, name, default):
        return self.w(name) if name in self.gguf else default

    def norm(self, x, name):
        return self.f.norm(x, self.w(name + ".weight"), self.f.eps, self.maybe(name + ".bias", 0.0))

    def linear(self, x, name):
        return x @ self.w(name + ".weight").T + self.maybe(name + ".bias", 0.0)

    def rope(self, heads, positions):
        """heads: [tokens, n, head_dim]."""
        f, half = self.f, self.f.rope_dim // 2
        factors = np.ones(half)
        if "rope_freqs.weight" in self.gguf:
            factors = self.w("rope_freqs.weight")
        elif "rope_factors_short.weight" in self.gguf:
            long = f.original_context and len(positions) > f.original_context
            factors = self.w("rope_factors_long.weight" if long else "rope_factors_short.weight")
        angle = positions[:, None] * f.theta ** (-np.arange(half) * 2.0 / f.rope_dim) / factors
        cos, sin = np.cos(angle)[:, None, :] * f.mscale, np.sin(angle)[:, None, :] * f.mscale
        out = heads.copy()
        if f.interleaved:
            a, b = heads[..., 0:f.rope_dim:2], heads[..., 1:f.rope_dim:2]
            out[..., 0:f.rope_dim:2], out[..., 1:f.rope_dim:2] = a * cos - b * sin, a * sin + b * cos
        else:
            a, b = heads[..., :half], heads[..., half:2 * half]
            out[..., :half], out[..., half:2 * half] = a * cos - b * sin, a * sin + b * cos
        return out

    def project_heads(self, x, blk, kind, n):
        y = self.linear(x, f"{blk}.attn_{kind}")
        norm = f"{blk}.attn_{kind}_norm.weight"
        if norm in self.gguf and self.w(norm).size == y.shape[-1]:  # over the full width (OLMoE)
            y = rms_norm(y, self.w(norm), self.f.eps)
        y = y.reshape(len(x), n, self.f.head_dim)
        if norm in self.gguf and self.w(norm).size == self.f.head_dim != n * self.f.head_dim:
            y = rms_norm(y, self.w(norm), self.f.eps)
        return y

    def attention(self, x, blk):
        f, t = self.f, len(x)
        positions = np.arange(t, dtype=np.float64)
        q = self.rope(self.project_heads(x, blk, "q", f.n_heads), positions)
        k = self.rope(self.project_heads(x, blk, "k", f.n_kv), positions)
        v = self.project_heads(x, blk, "v", f.n_kv)
        mask = np.triu(np.full((t, t), -np.inf), 1)
        out = np.empty_like(q)
        for head in range(f.n_heads):
            kv = head // (f.n_heads // f.n_kv)
            scores = softmax(q[:, head] @ k[:, kv].T / np.sqrt(f.head_dim) + mask)
            out[:, head] = scores @ v[:, kv]
        return self.linear(out.reshape(t, -1), f"{blk}.attn_output")

    def choose(self, logits):
        if self.f.sparse:
            return sparsemixer(logits, self.f.jitter)
        p = softmax(logits)
        ids = np.argsort(-logits, kind="stable")[:self.f.top_k]
        weights = p[ids] / (np.sum(p[ids]) if self.f.renormalise else 1.0)
        return list(zip(ids, weights))

    def ffn(self, x, blk):
        if f"{blk}.ffn_gate_inp.weight" not in self.gguf:
            return self.glu(x, *(self.w(f"{blk}.ffn_{p}.weight") for p in ("gate", "up", "down")))
        gate, up, down = (self.w(f"{blk}.ffn_{p}_exps.weight") for p in ("gate", "up", "down"))
        logits = x @ self.w(f"{blk}.ffn_gate_inp.weight").T
        y = np.zeros_like(x)
        for token in range(len(x)):
            for expert, weight in self.choose(logits[token]):
                y[token] += weight * self.glu(x[token], gate[expert], up[expert], down[expert])
        if f"{blk}.ffn_gate_shexp.weight" in self.gguf:
            shared = self.glu(x, *(self.w(f"{blk}.ffn_{p}_shexp.weight") for p in ("gate", "up", "down")))
            share = x @ self.w(f"{blk}.ffn_gate_inp_shexp.weight").reshape(-1)
            y += shared / (1.0 + np.exp(-share))[:, None]
        return y

    @staticmethod
    def glu(x, gate, up, down):
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def log_probs(self, tokens):
        """log p(next token) after each of `tokens`: [tokens, vocab]."""
        x = self.w("token_embd.weight")[np.asarray(tokens)]
        for layer in range(self.f.n_layers):
            blk = f"blk.{layer}"
            x = x + self.attention(self.norm(x, blk + ".attn_norm"), blk)
            x = x + self.ffn(self.norm(x, blk + ".ffn_norm"), blk)
        x = self.norm(x, "output_norm")
        output = self.maybe("output.weight", self.w("token_embd.weight"))
        logits = x @ output.T + self.maybe("output.bias", 0.0)
        return np.log(softmax(logits))


def kl(p_log, q_log):
    """KL(p || q) in nats, per row."""
    return np.sum(np.exp(p_log) * (p_log - q_log), axis=-1)
