"""Partial credit on countdown, for a model that has yet to learn to write down the numbers it is given."""

from __future__ import annotations

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
