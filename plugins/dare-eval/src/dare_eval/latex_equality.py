"""String equality of LaTeX answers after normalisation: the rule of the MATH data set's authors, used by d1.

Hendrycks et al. 2021 (arXiv 2103.03874). No algebra: ``2/4`` is not ``1/2``, ``x+2`` is not ``2+x``.
"""

from __future__ import annotations

_FIRST = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
)
_SECOND = (("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""))
_THIRD = (("\\%", ""), (" .", " 0."), ("{.", "{0."))


def equal_strings(left: str, right: str) -> bool:
    """Whether both normalise to the same string; compared as they are if one cannot be normalised."""
    try:
        return normalised(left) == normalised(right)
    except ValueError:
        return left == right


def normalised(text: str) -> str:
    """``text`` without blanks, units, degrees, currency and short ``k=`` prefixes; fractions and roots braced.

    Raises:
        ValueError: two units, or a root or fraction of nothing.
    """
    text = _replaced(_replaced(text, _FIRST), _SECOND)
    pieces = text.split("\\text{ ")
    if len(pieces) > 2:
        raise ValueError("more than one unit")
    text = _replaced(pieces[0], _THIRD)
    if text.startswith("."):
        text = "0" + text
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name) <= 2:
        text = value
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    return _slashed_fraction("\\frac{1}{2}" if text == "0.5" else text)


def _replaced(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for written, meant in pairs:
        text = text.replace(written, meant)
    return text


def _braced_roots(text: str) -> str:
    head, *tails = text.split("\\sqrt")
    if "" in tails:
        raise ValueError("a root of nothing")
    return head + "".join("\\sqrt" + (tail if tail[0] == "{" else f"{{{tail[0]}}}{tail[1:]}") for tail in tails)


def _braced_fractions(text: str) -> str:
    head, *tails = text.split("\\frac")
    braced = [head]
    for tail in tails:
        if not tail:
            raise ValueError("a fraction of nothing")
        if tail[0] == "{":
            braced.append("\\frac" + tail)
        elif len(tail) < 2:
            return text
        else:
            below = tail[1:] if tail[1] == "{" else f"{{{tail[1]}}}{tail[2:]}"
            braced.append(f"\\frac{{{tail[0]}}}{below}")
    return "".join(braced)


def _slashed_fraction(text: str) -> str:
    above, slash, below = text.partition("/")
    if slash and _is_plain_integer(above) and _is_plain_integer(below):
        return f"\\frac{{{above}}}{{{below}}}"
    return text


def _is_plain_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and ((digits == "0" and text == "0") or digits[0] != "0")
