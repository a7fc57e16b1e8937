"""Time of one layer of experts, forward and backward: ``python benchmarks/experts.py [--tokens 512]``.

Compares dare's grouped products with the library's two ways: its loop, and its grouped matrix product.
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers import Glm4MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeExperts

from dare_core.backbones.experts import EXPERTS

EXPERT_COUNT, CHOSEN, HIDDEN, WIDTH = 64, 8, 512, 256
WAYS = {EXPERTS: "dare", "eager": "library, loop", "grouped_mm": "library, grouped product"}


def seconds(way: str, tokens: int, repeats: int) -> tuple[float, float]:
    """Best time of forward and of backward."""
    config = Glm4MoeConfig(
        hidden_size=HIDDEN,
        moe_intermediate_size=WIDTH,
        n_routed_experts=EXPERT_COUNT,
        num_experts_per_tok=CHOSEN,
        experts_implementation=way,
    )
    module = Glm4MoeExperts(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    states = torch.randn(tokens, HIDDEN, generator=generator, requires_grad=True)
    chosen = torch.rand(tokens, EXPERT_COUNT, generator=generator).topk(CHOSEN).indices
    weights = torch.rand(tokens, CHOSEN, generator=generator)
    forward, backward = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        loss = module(states, chosen, weights).square().sum()
        forward.append(time.perf_counter() - start)
        start = time.perf_counter()
        loss.backward()
        backward.append(time.perf_counter() - start)
    return min(forward), min(backward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{EXPERT_COUNT} experts, {CHOSEN} per token, {HIDDEN} -> {WIDTH}, {options.tokens} tokens, float32, one thread"
    )
    for way, name in WAYS.items():
        forward, backward = seconds(way, options.tokens, options.repeats)
        print(f"{name:26} forward {1000 * forward:7.1f} ms   backward {1000 * backward:7.1f} ms")


if __name__ == "__main__":
    main()
