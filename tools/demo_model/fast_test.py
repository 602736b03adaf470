# SPDX-License-Identifier: Apache-2.0
"""Loss and gradients of the training path against plain torch in float32.

bfloat16 keeps 8 bits: a gradient that went through some ten products may be off by a few percent of
its norm; a wrong formula is off by its whole size.
"""

import torch
import torch.nn.functional as F

from model import Config, DemoModel


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # All experts are chosen: rounding may not change a choice, which would hide the comparison.
    model = DemoModel(Config(vocab_size=512, n_layers=2, n_experts=4, top_k=4))
    ids = torch.randint(0, 512, (3, 65))
    ids, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    for p in model.parameters():  # away from the symmetric start
        p.data += 0.3 * p.data.std() * torch.randn_like(p) + 0.1 * torch.randn_like(p) * (p.dim() == 1)
    names, parameters = zip(*model.named_parameters())
    exact = F.cross_entropy(model.logits(ids)[0].flatten(0, 1), targets.flatten())
    wanted = torch.autograd.grad(exact, parameters)
    loss, _ = model.loss(ids, targets)
    got = torch.autograd.grad(loss, parameters)
    print(f"loss {loss.item():.5f} exact {exact.item():.5f}")
    worst = 0.0
    for name, a, b in zip(names, got, wanted):
        error = ((a - b).norm() / b.norm()).item()
        worst = max(worst, error)
        print(f"{name}: {error:.4f} of the norm")
    assert abs(loss.item() - exact.item()) < 0.01 * exact.item()
    assert worst < 0.06, worst


if __name__ == "__main__":
    main()
