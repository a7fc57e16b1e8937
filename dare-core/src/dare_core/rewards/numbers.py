r"""Numbers as people and models write them, read exactly.

``-1,234.50``, ``3/4``, ``1e3``, ``$5``, ``50%``, ``\$72`` and a Unicode minus are read; the result is a fraction, so
``0.1`` and ``1/10`` are equal and no two different numbers ever are.
"""

from __future__ import annotations

import re
from fractions import Fraction

#: longest text that is read as a number, and largest power of ten: what is beyond is no answer, and takes long
MAX_CHARACTERS = 400
MAX_EXPONENT = 400

_CURRENCY = r"\\?[$€£¥₹]"
_MAGNITUDE = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"

#: A number inside running text. A sign belongs to it only where nothing stands before from which it could take away.
NUMBER_IN_TEXT = re.compile(
    rf"(?:(?<![\w)\]}}.%])[+\-−])?(?:{_CURRENCY}\s?[+\-−]?)?{_MAGNITUDE}(?:/\d+(?!\d|\.\d|/\d))?(?:\s?\\?%)?", re.ASCII
)
_WHOLE = re.compile(
    rf"(?P<sign>[+\-−]?)\s*(?P<currency>{_CURRENCY})?\s*(?P<inner>[+\-−]?)"
    r"(?P<digits>[\d,]*\.?\d*)(?:[eE](?P<exponent>[+-]?\d{1,4}))?"
    r"(?:\s*/\s*(?P<divisor>\d+))?\s*(?P<percent>\\?%)?\.?",
    re.ASCII,
)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d*)?")


def read_number(text: str, *, commas: bool = True, currency: bool = True, percent: bool = True) -> Fraction | None:
    """The exact value of a text that is one number, or None. A full stop behind it is not part of it.

    Args:
        text: the number, white space around it allowed.
        commas: read thousands commas (groups of three); otherwise a comma makes it no number.
        currency: drop a currency sign; otherwise it makes it no number.
        percent: drop a percent sign (5% is 5); otherwise it makes it no number.
    """
    text = text.strip()
    match = _WHOLE.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    if match is None or (match["sign"] and match["inner"]):
        return None
    digits = match["digits"]
    if not any(character.isdigit() for character in digits):
        return None
    if (match["currency"] and not currency) or (match["percent"] and not percent):
        return None
    if "," in digits:
        if not commas or not _GROUPED.fullmatch(digits):
            return None
        digits = digits.replace(",", "")
    exponent, divisor = int(match["exponent"] or 0), int(match["divisor"] or 1)
    if abs(exponent) > MAX_EXPONENT or divisor == 0:
        return None
    value = Fraction(digits.removesuffix(".")) * Fraction(10) ** exponent / divisor
    return -value if (match["sign"] or match["inner"]) in ("-", "−") else value
