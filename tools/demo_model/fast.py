# SPDX-License-Identifier: Apache-2.0
"""The training step's differentiable parts: oneDNN's bfloat16 products around the passes of
kernels.c. model.py's plain torch is the definition; fast_test.py compares the two."""

import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch


FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-fPIC", "-c", "-ffast-math"]


def _library():
    """kernels.c compiled for this machine, once per version of the source."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels.c")
    with open(source, "rb") as f:
        version = hashlib.sha256(f.read() + " ".join(FLAGS).encode()).hexdigest()[:16]
    path = f"{tempfile.gettempdir()}/demo_model_kernels_{version}.so"
    if not os.path.exists(path):
        part = f"{path}.{os.getpid()}"
        # Linked apart: with -ffast-math the linker adds code that changes the whole process's floats.
        subprocess.run(["gcc", *FLAGS, source, "-o", part + ".o"], check=True)
        subprocess.run(["gcc", "-shared", part + ".o", "-o", part, "-lmvec", "-lm"], check=True)
        os.remove(part + ".o")
        os.replace(part, path)
    lib = ctypes.CDLL(path)
    lib.CrossEntropy.restype = ctypes.c_double
    return lib


LIB = _library()


class Heads(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("batch", "n", "n_heads", "n_kv", "head_dim")]


def call(function, *args):
    """Tensors go as addresses, so they must be contiguous; ints as long, floats as float."""
    converted = []
    for a in args:
        if isinstance(a, torch.Tensor):
            assert a.is_contiguous()
            converted.append(ctypes.c_void_p(a.data_ptr()))
        elif isinstance(a, int):
            converted.append(ctypes.c_long(a))
        elif isinstance(a, float):
            converted.append(ctypes.c_float(a))
        else:
            converted.append(a)
    return function(*converted)


class Norm(torch.autograd.Function):
    """RMS norm of float32 x [..., dim]: (bfloat16, float32) results."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        dim, n = x.shape[-1], x.numel() // x.shape[-1]
        out16, out32 = torch.empty(n, dim, dtype=torch.bfloat16), torch.empty(n, dim)
        scale = torch.empty(n)
        call(LIB.RmsForward, n, dim, eps, x, weight, out16, out32, scale)
        ctx.save_for_backward(x, weight, scale)
        ctx.set_materialize_grads(False)
        return out16, out32

    @staticmethod
    def backward(ctx, grad16, grad32):
        x, weight, scale = ctx.saved_tensors
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
        call(LIB.RmsBackward, len(scale), x.shape[-1], x, weight, scale, grad16.contiguous(),
             None if grad32 is None else grad32.contiguous(), grad_x, grad_weight)
        return grad_x, grad_weight, None


class Attention(torch.autograd.Function):
    """Packed bfloat16 rows [batch * n, (n_heads + 2 n_kv) * head_dim] -> [batch * n, n_heads *
    head_dim]. The query norm's weight carries the scale of the scores."""

    @staticmethod
    def forward(ctx, qkv, w_q, w_k, cosine, sine, heads, eps):
        s = heads
        b, group = s.batch * s.n_kv, s.n_heads // s.n_kv
        q = qkv.new_empty(b, group * s.n, s.head_dim)
        k, v = qkv.new_empty(b, s.n, s.head_dim), qkv.new_empty(b, s.n, s.head_dim)
        scale = torch.empty(s.batch * s.n, s.n_heads + s.n_kv)
        call(LIB.HeadsForward, ctypes.byref(s), eps, qkv, w_q, w_k, cosine, sine, q, k, v, scale)
        p = torch.bmm(q, k.transpose(1, 2))
        call(LIB.SoftmaxForward, b * group * s.n, s.n, p)
        y = torch.bmm(p, v)
        ctx.save_for_backward(qkv, w_q, w_k, cosine, sine, q, k, v, scale, p)
        ctx.heads = s
        return (y.view(s.batch, s.n_heads, s.n, s.head_dim).transpose(1, 2)
                .reshape(s.batch * s.n, -1))

    @staticmethod
    def backward(ctx, grad):
        qkv, w_q, w_k, cosine, sine, q, k, v, scale, p = ctx.saved_tensors
        s = ctx.heads
        grad_y = (grad.view(s.batch, s.n, s.n_heads, s.head_dim).transpose(1, 2)
                  .reshape(s.batch * s.n_kv, -1, s.head_dim))
        grad_v = torch.bmm(p.transpose(1, 2), grad_y)
        g = torch.bmm(grad_y, v.transpose(1, 2))
        call(LIB.SoftmaxBackward, g.shape[0] * g.shape[1], s.n, p, g)
        grad_q, grad_k = torch.bmm(g, k), torch.bmm(g.transpose(1, 2), q)
        grad_qkv = torch.empty_like(qkv)
        grad_w_q, grad_w_k = torch.zeros_like(w_q), torch.zeros_like(w_k)
        call(LIB.HeadsBackward, ctypes.byref(s), qkv, w_q, w_k, cosine, sine, scale, grad_q, grad_k,
             grad_v, grad_qkv, grad_w_q, grad_w_k)
        return grad_qkv, grad_w_q, grad_w_k, None, None, None, None


class RouterLinear(torch.autograd.Function):
    """Float32 logits, so that the choice is exact; the gradients are bfloat16 products, many times
    faster than the skinny float32 ones."""

    @staticmethod
    def forward(ctx, h, weight):
        ctx.save_for_backward(h, weight)
        return h @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        h, weight = ctx.saved_tensors
        g = grad.bfloat16()
        return (g @ weight.bfloat16()).float(), (g.t() @ h.bfloat16()).float()


class Experts(torch.autograd.Function):
    """sum_j p[t,j] * down_e(silu(gate_e x) * up_e x) with e = chosen[t,j]: rows are sorted by
    expert, so that every expert is two plain matrix products."""

    PAD = 64  # oneDNN compiles a kernel per shape: rows of an expert are rounded up to few shapes

    @staticmethod
    def places(chosen, n_experts):
        """(row of each choice, [begin, end) of each expert's rows)."""
        flat = chosen.flatten()
        order = torch.argsort(flat, stable=True)
        loads = torch.bincount(flat, minlength=n_experts)
        padded = (loads + Experts.PAD - 1) // Experts.PAD * Experts.PAD
        ends = padded.cumsum(0)
        shift = (ends - padded) - (loads.cumsum(0) - loads)
        row_of = torch.empty_like(order)
        row_of[order] = torch.arange(len(order)) + shift[flat[order]]
        ends = ends.tolist()
        return row_of, list(zip([0] + ends[:-1], ends))

    @staticmethod
    def forward(ctx, x, p, chosen, gate_up, down):
        dim, expert_dim = down.shape[1:]
        row_of, spans = Experts.places(chosen, len(down))
        rows = x.new_zeros(spans[-1][1], dim)
        call(LIB.Spread, *chosen.shape, dim, x, row_of, rows)
        hidden = x.new_empty(len(rows), 2 * expert_dim)
        h, y = x.new_empty(len(rows), expert_dim), torch.empty_like(rows)
        for e, (a, b) in enumerate(spans):
            if a < b:
                torch.mm(rows[a:b], gate_up[e].t(), out=hidden[a:b])
        call(LIB.SwigluForward, len(rows), expert_dim, hidden, h)
        for e, (a, b) in enumerate(spans):
            if a < b:
                torch.mm(h[a:b], down[e].t(), out=y[a:b])
        out = torch.empty(len(x), dim)
        call(LIB.Gather, *chosen.shape, dim, y, row_of, p, out)
        ctx.save_for_backward(rows, hidden, h, y, p, row_of, gate_up, down)
        ctx.spans = spans
        return out

    @staticmethod
    def backward(ctx, grad):
        rows, hidden, h, y, p, row_of, gate_up, down = ctx.saved_tensors
        dim, expert_dim = down.shape[1:]
        g, grad_p = torch.zeros_like(y), torch.empty_like(p)
        call(LIB.GatherBackward, *p.shape, dim, grad.contiguous(), y, row_of, p, g, grad_p)
        grad_h, grad_hidden = torch.empty_like(h), torch.empty_like(hidden)
        grad_rows = torch.empty_like(rows)
        grad_down, grad_gate_up = torch.zeros_like(down), torch.zeros_like(gate_up)
        for e, (a, b) in enumerate(ctx.spans):
            if a < b:
                torch.mm(g[a:b], down[e], out=grad_h[a:b])
                torch.mm(g[a:b].t(), h[a:b], out=grad_down[e])
        call(LIB.SwigluBackward, len(rows), expert_dim, hidden, grad_h, grad_hidden)
        for e, (a, b) in enumerate(ctx.spans):
            if a < b:
                torch.mm(grad_hidden[a:b], gate_up[e], out=grad_rows[a:b])
                torch.mm(grad_hidden[a:b].t(), rows[a:b], out=grad_gate_up[e])
        grad_x = torch.empty(len(p), dim)
        call(LIB.Gather, *p.shape, dim, grad_rows, row_of, None, grad_x)
        return grad_x.bfloat16(), grad_p, None, grad_gate_up, grad_down


class CrossEntropy(torch.autograd.Function):
    """Mean next-token loss of tied-head logits, with the gradient made chunk by chunk: the whole
    [tokens, vocab] matrix never exists."""

    CHUNK = 512

    @staticmethod
    def forward(ctx, x, head, targets):
        total, n = 0.0, len(x)
        grad_x, grad_head = torch.empty_like(x), torch.zeros(head.shape)
        for a in range(0, n, CrossEntropy.CHUNK):
            rows = x[a:a + CrossEntropy.CHUNK]
            g = rows @ head.t()
            total += call(LIB.CrossEntropy, len(g), len(head), g, targets[a:a + len(g)])
            torch.mm(g, head, out=grad_x[a:a + len(g)])
            grad_head += g.t() @ rows
        ctx.save_for_backward(grad_x, grad_head)
        ctx.n = n
        return torch.tensor(total / n)

    @staticmethod
    def backward(ctx, grad):
        grad_x, grad_head = ctx.saved_tensors
        scale = float(grad) / ctx.n
        return grad_x * scale, grad_head * scale, None
