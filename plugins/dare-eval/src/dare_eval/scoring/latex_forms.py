"""OpenCompass's string rule for mathematics, version 2 (``oc-math-v2``): extraction, two normal forms, equality.

No algebra: ``2\\sqrt{3}`` is not ``\\sqrt{12}``. The first form, *short*, takes an answer apart from units and layout;
the second, *bare*, also drops words and marks of a sentence around it (after Minerva, arXiv 2206.14858, appendix D).
"""

from __future__ import annotations

import re

from dare_eval.answers import closing_brace

_LAYOUT = (
    ("\\!", ""), ("\\ ", ""), ("\\\\", "\\"), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"),
    ("\\left", ""), ("\\right", ""),
)  # fmt: skip
_SIGNS = (
    ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""), ("$", ""), ("\\text", ""), ("x\\in", ""), ("\\%", ""), ("%", ""),
    (" .", " 0."), ("{.", "{0."), ("\\cdot", ""), ("infinity", "\\infty"),
)  # fmt: skip
_WORDS = (("and", ""), ("\\mathbf", ""))
_MBOX = re.compile(r"\\mbox\{.*?\}")
_POINT_ZERO = re.compile(r"(\d+)\.0+(?!\d)")
_ROOT = re.compile(r"\\sqrt(\w+)")
_PLAIN_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")

_BARE_SWAPS = (
    ("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text"),
    (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}"), ("\\le", "<"),
)  # fmt: skip
_BARE_DROPS = (
    "square", "ways", "integers", "dollars", "mph", "inches", "ft", "hours", "km", "units", "\\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}",
    "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots", "\n", "\r", "\f",
)  # fmt: skip
_UNWRAPPED = tuple(
    re.compile(pattern)
    for pattern in (
        r"\\text\{\((.*?)\)\}",
        r"\\text\{(.*?)\}",
        r"\\textbf\{(.*?)\}",
        r"\\overline\{(.*?)\}",
        r"\\boxed\{(.*)\}",
    )
)
_ANNOUNCED = tuple(
    re.compile(pattern) for pattern in (r"finalansweris(.*)", r"answer?is:?(.*)", r"oxed\{(.*?)\}", r"\$(.*?)\$")
)
_FRACTION = re.compile(r"frac([^{])(.)")
_BARE_ROOT = re.compile(r"sqrt([^{])")
_SENTENCE = re.compile(r"final answer|answer is")


def extracted(response: str) -> str:
    """The content of the last box as it stands, one extra pair of braces around it removed; without a closed, filled
    box the bare form of the first sentence that announces an answer, else of the first sentence."""
    box = _last_box(response)
    if box:
        return box
    sentences = response.split(".")
    announcing = (sentence for sentence in sentences if _SENTENCE.search(sentence.lower()))
    return bare(next(announcing, sentences[0]))


def equal(answer: str, reference: str) -> bool:
    """Whether short forms, bare forms of the short forms, bare forms, or the strings themselves are equal."""
    try:
        left, right = short(answer), short(reference)
        if left == right or bare(left) == bare(right):
            return True
    except ValueError:
        pass  # a form that does not exist compares as unequal; the next one decides
    return bare(answer) == bare(reference) or answer == reference


def short(text: str) -> str:
    """``text`` without layout, units and signs that carry no value; fractions and roots with braces.

    Raises:
        ValueError: a fraction of nothing.
    """
    text = _swapped(text.strip().replace("\n", "").rstrip("."), _LAYOUT)
    text = _swapped(_without_unit(text), _SIGNS)
    if "\\infty" not in text:
        text = text.replace("inf", "\\infty")
    text = _MBOX.sub("", _swapped(text, _WORDS)).replace('"', "")
    if "j" in text and "i" not in text:
        text = text.replace("j", "i")
    text = _POINT_ZERO.sub(r"\1", text)
    if text.startswith("."):
        text = "0" + text
    name, *values = text.split("=")
    if len(values) == 1 and len(name) <= 2:
        text = values[0]
    return _slashed(_braced_fractions(_ROOT.sub(r"\\sqrt{\1}", text).replace(" ", "")))


def bare(text: str) -> str:
    """``text`` without blanks, unit words and the sentence around the answer."""
    text = _swapped(text, _BARE_SWAPS)
    for dropped in _BARE_DROPS:
        text = text.replace(dropped, "")
    for wrapped in _UNWRAPPED:
        text = wrapped.sub(r"\1", text)
    for announced in _ANNOUNCED:
        found = announced.findall(text)
        text = found[-1] if found else text
    text = text.strip()
    if "rac" in text and "\\frac" not in text:
        text = text.replace("rac", "\\frac")
    text = _BARE_ROOT.sub(r"sqrt{\1}", _FRACTION.sub(r"frac{\1}{\2}", text)).replace("$", "")
    digits = text.replace(",", "")
    return digits if digits.isdigit() else text


def _last_box(text: str) -> str | None:
    start, command = text.rfind("\\boxed"), "\\boxed"
    if start < 0:
        start, command = text.rfind("\\fbox"), "\\fbox"
    opening = start + len(command)
    if start < 0 or not text.startswith("{", opening):
        return None
    end = closing_brace(text, opening)
    if end is None:
        return None
    content = text[opening + 1 : end]
    doubled = len(content) > 1 and content[0] == "{" and content[-1] == "}" and "\n" not in content
    return content[1:-1] if doubled else content


def _without_unit(text: str) -> str:
    start = text.find("\\text{")
    if start < 0 or not text.endswith("}"):
        return text
    return text[:start].strip() or text


def _swapped(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for written, meant in pairs:
        text = text.replace(written, meant)
    return text


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


def _slashed(text: str) -> str:
    above, slash, below = text.partition("/")
    if slash and _PLAIN_INTEGER.fullmatch(above) and _PLAIN_INTEGER.fullmatch(below):
        return f"\\frac{{{above}}}{{{below}}}"
    return text
