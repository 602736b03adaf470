# SPDX-License-Identifier: Apache-2.0
"""Checkpoint -> GGUF of architecture qwen3moe.

Usage: export_gguf.py --run RUN_DIR --out models/demo-moe.gguf [--f32]
"""

import argparse

import torch

from gguf_writer import F32, Q8_0, GgufWriter, dequantize_q8_0, quantize_q8_0
from model import Config, DemoModel
from optimizer import bind
from tokenizer import SPECIAL, Tokenizer

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}")


def load_model(path):
    """(model, training state) of a checkpoint written by train.py."""
    stored = torch.load(path, map_location="cpu")
    model = DemoModel(Config(**stored["config"]))
    bind(model, stored["params"], torch.zeros_like(stored["params"]))
    return model.requires_grad_(False), stored["state"]


def add_config(w, c):
    arch = "qwen3moe"
    w.string("general.architecture", arch)
    w.string("general.name", "NPUMoE demo")
    w.string("general.license", "apache-2.0")
    w.u32("general.quantization_version", 2)
    for key, value in [("context_length", c.context), ("embedding_length", c.dim),
                       ("block_count", c.n_layers), ("feed_forward_length", c.expert_dim * c.top_k),
                       ("attention.head_count", c.n_heads),
                       ("attention.head_count_kv", c.n_kv_heads),
                       ("attention.key_length", c.head_dim),
                       ("attention.value_length", c.head_dim), ("expert_count", c.n_experts),
                       ("expert_used_count", c.top_k),
                       ("expert_gating_func", 1),  # 1 = softmax; said aloud so that no reader has to guess
                       ("expert_feed_forward_length", c.expert_dim),
                       ("vocab_size", c.vocab_size)]:
        w.u32(f"{arch}.{key}", value)
    w.f32(f"{arch}.attention.layer_norm_rms_epsilon", c.rms_eps)
    w.f32(f"{arch}.rope.freq_base", c.rope_theta)


def add_tokenizer(w, tok):
    prefix = "tokenizer.ggml."
    w.string(prefix + "model", "gpt2")
    w.string(prefix + "pre", "qwen2")
    w.strings(prefix + "tokens", tok.tokens)
    control, normal = 3, 1
    w.i32s(prefix + "token_type", [control if t in SPECIAL else normal for t in tok.tokens])
    w.strings(prefix + "merges", [" ".join(m) for m in tok.merges])
    # As in Qwen3: a chat turn ends with <|im_end|>, a text with <|endoftext|>.
    w.u32(prefix + "eos_token_id", tok.id_of("<|im_end|>"))
    w.u32(prefix + "padding_token_id", tok.id_of("<|endoftext|>"))
    w.u32(prefix + "bos_token_id", tok.id_of("<|endoftext|>"))
    w.flag(prefix + "add_bos_token", False)
    w.string("tokenizer.chat_template", CHAT_TEMPLATE)


def tensors(model):
    """(GGUF name, weights, is a matrix to be quantized)."""
    c = model.config
    q_dim, kv_dim = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    yield "token_embd.weight", model.embedding, True
    for i, layer in enumerate(model.layers):
        q, k, v = layer.qkv.split([q_dim, kv_dim, kv_dim])
        gate, up = layer.gate_up.split(c.expert_dim, 1)
        for name, x, quantized in [
                ("attn_norm", layer.attn_norm, False), ("attn_q", q, True), ("attn_k", k, True),
                ("attn_v", v, True), ("attn_q_norm", layer.q_norm, False),
                ("attn_k_norm", layer.k_norm, False), ("attn_output", layer.attn_out, True),
                ("ffn_norm", layer.ffn_norm, False), ("ffn_gate_inp", layer.router, False),
                ("ffn_gate_exps", gate, True), ("ffn_up_exps", up, True),
                ("ffn_down_exps", layer.down, True)]:
            yield f"blk.{i}.{name}.weight", x, quantized
    yield "output_norm.weight", model.out_norm, False


def rounded_like_the_file(model):
    """The model with its matrices through Q8_0 and back, in place."""
    for _, x, quantized in tensors(model):
        if quantized:
            x.copy_(torch.from_numpy(dequantize_q8_0(quantize_q8_0(x.numpy()), x.shape)))
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--f32", action="store_true", help="all tensors in float32")
    args = parser.parse_args()
    model, _ = load_model(f"{args.run}/checkpoint.pt")
    w = GgufWriter()
    add_config(w, model.config)
    add_tokenizer(w, Tokenizer.load(f"{args.run}/tokenizer.json"))
    for name, x, quantized in tensors(model):
        w.tensor(name, x.numpy(), Q8_0 if quantized and not args.f32 else F32)
    w.write(args.out)


if __name__ == "__main__":
    main()
