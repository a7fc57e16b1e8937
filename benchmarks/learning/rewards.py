"""Partial credit on countdown, for a model that has yet to learn to use the numbers it is given; and a control."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import cast

from dare_core.types import Prompt


def given_numbers(prompt: Prompt, response: str) -> bool:
    """Whether the response is a sum of exactly the given numbers, whatever its value."""
    numbers = cast(Sequence[int], prompt.meta["numbers"])
    written = response.strip()
    if re.fullmatch(r"[0-9]+([+-][0-9]+)*", written) is None:
        return False
    return sorted(map(int, re.split("[+-]", written))) == sorted(numbers)


def coin(prompt: Prompt, response: str) -> bool:
    """Heads or tails by prompt and response, whatever their worth: what a control learns from."""
    return hashlib.sha256(f"{prompt.id}/{response}".encode()).digest()[0] % 2 == 0
