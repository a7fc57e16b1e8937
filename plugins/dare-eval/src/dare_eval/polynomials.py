"""Symbolic equality of simple expressions: numbers, one-letter unknowns, ``pi``, ``sqrt``, + - * / ^ and parentheses.

Parsed here, not by a library that evaluates text. Products may be implied (``2x``, ``3(x+1)``). Worker processes only.
"""

from __future__ import annotations

import re

import sympy  # type: ignore[import-untyped]

_TOKEN = re.compile(r"\s*(?:(\d+\.\d*|\.\d+|\d+)|(sqrt|pi)|([A-Za-z])|(\*\*|[-+*/^()]))")
#: digits of a power's exponent that are still worked out
_LARGEST_EXPONENT = 64


class _NotSimpleError(ValueError):
    """The text is not such an expression."""


def difference_is_zero(left: str, right: str) -> bool:
    """Whether ``left - right`` simplifies to zero; False if either is not a simple expression."""
    try:
        difference = _Parser(left).whole() - _Parser(right).whole()
    except (_NotSimpleError, RecursionError):
        return False
    return bool(sympy.simplify(difference) == 0)


class _Parser:
    """Precedence climbing: sums of products of powers."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _NotSimpleError(text)
            self._tokens.append(match.group().strip())
            position = match.end()
        self._tokens.append("")
        self._next = 0

    def whole(self) -> sympy.Expr:
        value = self._sum()
        if self._peek():
            raise _NotSimpleError(self._peek())
        return value

    def _peek(self) -> str:
        return self._tokens[self._next]

    def _take(self) -> str:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _sum(self) -> sympy.Expr:
        value = self._product()
        while self._peek() in ("+", "-"):
            value = value + self._product() if self._take() == "+" else value - self._product()
        return value

    def _product(self) -> sympy.Expr:
        value = self._signed()
        while (token := self._peek()) and token not in ("+", "-", ")", "^", "**"):
            if token == "/":
                self._take()
                value = value / self._signed()
            else:
                if token == "*":
                    self._take()
                value = value * self._signed()
        return value

    def _signed(self) -> sympy.Expr:
        if self._peek() in ("+", "-"):
            return -self._signed() if self._take() == "-" else self._signed()
        return self._power()

    def _power(self) -> sympy.Expr:
        base = self._atom()
        if self._peek() not in ("^", "**"):
            return base
        self._take()
        exponent = self._signed()
        if exponent.is_number and abs(exponent) > _LARGEST_EXPONENT:
            raise _NotSimpleError("a power too large")
        return base**exponent

    def _atom(self) -> sympy.Expr:
        token = self._take()
        if token == "(":
            value = self._sum()
            if self._take() != ")":
                raise _NotSimpleError("an open parenthesis")
            return value
        if token == "sqrt":
            return sympy.sqrt(self._atom())
        if token == "pi":
            return sympy.pi
        if token[:1].isalpha():
            return sympy.Symbol(token)
        if not token or not (token[0].isdigit() or token[0] == "."):
            raise _NotSimpleError(token)
        return sympy.Rational(token) if "." in token else sympy.Integer(token)
