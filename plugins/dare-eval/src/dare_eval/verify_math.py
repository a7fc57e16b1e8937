"""Mathematical equality by the math-verify library. Runs in worker processes only: see ``verifier_pool``.

The library's own time limits use process signals and fail off the main thread, so they are off; the pool's clock holds.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]

from dare_eval.answers import one_line
from dare_eval.dare_math import judge_dare

#: rule -> how the response is searched
EXTRACTION: dict[str, tuple[LatexExtractionConfig | ExprExtractionConfig, ...]] = {
    "math-verify": (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()),
    "coupled-grpo": (
        LatexExtractionConfig(
            try_extract_without_anchor=False,
            boxed_match_priority=0,
            normalization_config=NormalizationConfig(
                basic_latex=True, units=True, malformed_operators=False, nits=False, boxed="all", equations=True
            ),
        ),
    ),
}
_MATH_MARK = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")


def judge(item: dict[str, Any]) -> dict[str, Any]:
    """Verdict on ``item["response"]`` against ``item["reference"]`` by ``item["rule"]``: status and detail.

    Raises:
        ValueError: the reference cannot be read as mathematics.
        Exception: the library failed on every comparison it tried; never a verdict then.
    """
    rule, reference, response = item["rule"], item["reference"], item["response"]
    if rule == "dare":
        return judge_dare(response, reference)
    gold = _gold(reference, rule)
    if not gold:
        raise ValueError(f"the reference {one_line(reference)!r} cannot be read as mathematics")
    try:
        answer = _parse(response, rule)
    except RecursionError:
        return {"status": "unparsed", "detail": "nested too deeply"}
    if not answer:
        return {"status": "unparsed", "detail": "no answer found"}
    detail = one_line(str(answer[-1]) if isinstance(answer[-1], str) else "")
    if _equal(gold, answer):
        return {"status": "correct", "detail": detail}
    comparable = any(not isinstance(value, str) for value in answer) or all(isinstance(value, str) for value in gold)
    return {"status": "wrong" if comparable else "unparsed", "detail": detail}


@lru_cache(maxsize=4096)
def _gold(reference: str, rule: str) -> tuple[Any, ...]:
    text = reference if _MATH_MARK.search(reference) else f"${reference}$"
    extraction = (
        [LatexExtractionConfig(), ExprExtractionConfig()] if rule == "math-verify" else [LatexExtractionConfig()]
    )
    return tuple(parse(text, extraction, extraction_mode="first_match", parsing_timeout=None, raise_on_error=True))


def _parse(response: str, rule: str) -> list[Any]:
    found: list[Any] = parse(
        response, EXTRACTION[rule], extraction_mode="first_match", parsing_timeout=None, raise_on_error=True
    )
    return found


def _equal(gold: tuple[Any, ...], answer: list[Any]) -> bool:
    """Whether a reading of the answer equals one of the reference; raises if none does and a comparison failed."""
    failure: Exception | None = None
    for expected in gold:
        for given in answer:
            try:
                if verify(expected, given, timeout_seconds=None, raise_on_error=True):
                    return True
            except Exception as error:
                failure = error
    if failure is not None:
        raise failure
    return False
