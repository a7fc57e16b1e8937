"""Whether a model would write a continuation itself: all of it masked, one token per forward, the surest first.

This is LLaDA's evaluation of ``is_greedy`` (arXiv 2502.09992): the decoder at temperature 0, and the text must come out
token by token.
"""

from __future__ import annotations

from collections.abc import Sequence

from dare_core.diffusion.denoise import denoise
from dare_core.interfaces import ModelAdapter
from dare_core.types import Address, DecodingSettings
from dare_eval.likelihood import Target


def would_write(
    adapter: ModelAdapter, targets: Sequence[Target], guidance: float, *, rows_per_batch: int
) -> list[bool]:
    """Of each target whether greedy decoding from its prompt gives exactly its continuation.

    Args:
        adapter: in evaluation mode.
        targets: prompts and continuations.
        guidance: scale of classifier-free guidance; 0 = off.
        rows_per_batch: rows denoised together.
    """
    found = [False] * len(targets)
    lengths = {len(target.continuation) for target in targets}
    for length in sorted(lengths):
        own = [index for index, target in enumerate(targets) if len(target.continuation) == length]
        block = adapter.facts.layout.block_length or length
        settings = DecodingSettings(
            new_tokens=length, block_length=block, steps_per_block=block, guidance=guidance, temperature=0.0
        )
        result = denoise(
            adapter,
            [targets[index].prompt for index in own],
            settings,
            Address(0, "eval/greedy"),
            [targets[index].question for index in own],
            rows_per_batch=rows_per_batch,
        )
        for row, index in enumerate(own):
            start = len(targets[index].prompt)
            written = result.tokens[row, start : start + length].tolist()
            found[index] = tuple(written) == targets[index].continuation
    return found
