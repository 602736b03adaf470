# SPDX-License-Identifier: Apache-2.0
"""Greedy continuation of stories260K by the float64 reference: the golden text of the tests.

usage: make_stories_golden.py stories260K-f32.gguf > tests/data/stories260K.golden.txt
First line: 256 token ids after BOS. The rest: their text.
"""
import sys

import numpy as np

from gguf_numpy import Gguf
from reference_model import ReferenceModel

N_TOKENS = 256

gguf = Gguf(sys.argv[1])
model = ReferenceModel(gguf)
ids = [gguf.metadata["tokenizer.ggml.bos_token_id"]]
for _ in range(N_TOKENS):
    ids.append(int(np.argmax(model.log_probs(ids)[-1])))
pieces = [gguf.metadata["tokenizer.ggml.tokens"][i] for i in ids[1:]]
text = b""
for piece in pieces:
    if piece.startswith("<0x") and piece.endswith(">"):
        text += bytes([int(piece[3:-1], 16)])
    else:
        text += piece.replace("\u2581", " ").encode()
print(" ".join(map(str, ids[1:])))
sys.stdout.write(text.decode()[1:] if text.startswith(b" ") else text.decode())
