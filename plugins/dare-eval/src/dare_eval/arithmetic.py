"""Values of arithmetic expressions written by a model, without running them.

The text is parsed to a tree whose nodes are all known; anything else is refused. Numbers are exact fractions. Lengths,
depths and powers are bounded, so no expression takes noticeable time.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

#: characters an expression may have; three or four numbers need a few dozen
LONGEST = 600
#: bits of the largest power that is computed
LARGEST_POWER = 4096

Number = Fraction | float
_DIGITS = re.compile(r"\d+")
_EXPRESSION = re.compile(r"[0-9+\-*/().\s]+")


class ExpressionError(ValueError):
    """The text is not an expression of the allowed form, or has no value. The message says why."""


def exact_value(text: str) -> Fraction:
    """Value of an expression of whole numbers, + - * / and parentheses.

    Raises:
        ExpressionError: anything else is in it, or a division by zero.
    """
    try:
        return _exact(_tree(text))
    except RecursionError as error:
        raise ExpressionError("nested too deeply") from error


def python_value(text: str) -> Number:
    """Value that Python gives an expression of digits, ``+ - * / ( ) .``: so ``**``, ``//``, signs and decimals count.

    Exact where Python is exact. Powers with more than ``LARGEST_POWER`` bits are refused.

    Raises:
        ExpressionError: not such an expression, no value, a value beyond floats, or too large a power.
    """
    try:
        return _python(_tree(text))
    except (ArithmeticError, RecursionError) as error:
        raise ExpressionError(str(error)) from error


def whole_numbers(text: str) -> list[int]:
    """All runs of digits in ``text``, as integers, in order.

    Raises:
        ExpressionError: a run is too long to be one of the given numbers.
    """
    runs = _DIGITS.findall(text)
    if any(len(run) > LONGEST for run in runs):
        raise ExpressionError("a number has too many digits")
    return [int(run) for run in runs]


def _tree(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise ExpressionError(f"longer than {LONGEST} characters")
    if not _EXPRESSION.fullmatch(text):
        raise ExpressionError("other characters than digits, + - * / ( ) .")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ExpressionError("not an arithmetic expression") from error


_EXACT: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _exact(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if not isinstance(node, ast.BinOp):
        raise ExpressionError("only whole numbers, + - * / and parentheses are allowed")
    left, right = _exact(node.left), _exact(node.right)
    if isinstance(node.op, ast.Div):
        if right == 0:
            raise ExpressionError("division by zero")
        return left / right
    if type(node.op) not in _EXACT:
        raise ExpressionError("only + - * / are allowed")
    return _EXACT[type(node.op)](left, right)


def _python(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        operand = _python(node.operand)
        return -operand if isinstance(node.op, ast.USub) else operand
    if not isinstance(node, ast.BinOp):
        raise ExpressionError("not an arithmetic expression")
    left, right = _python(node.left), _python(node.right)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return (
                Fraction(left // right) if isinstance(left, Fraction) and isinstance(right, Fraction) else left // right
            )
        case ast.Pow():
            return _power(left, right)
    raise ExpressionError("only + - * / // ** are allowed")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        return _whole_power(base, int(exponent))
    if base < 0:
        raise ExpressionError("a power that is not real")
    result: float = float(base) ** float(exponent)
    return result


def _whole_power(base: Fraction, exponent: int) -> Fraction:
    if base == 0:
        if exponent < 0:
            raise ZeroDivisionError("zero to a negative power")
        return Fraction(exponent == 0)
    if abs(base) == 1:
        return base if exponent % 2 else Fraction(1)
    size = max(abs(base.numerator), base.denominator).bit_length()
    if abs(exponent) * size > LARGEST_POWER:
        raise ExpressionError(f"a power with more than {LARGEST_POWER} bits")
    return Fraction(base**exponent)
