"""The program in a response: OpenCompass's rules for HumanEval and MBPP, and ours."""

from __future__ import annotations

import ast
import re

FENCE = "```"
_BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
_PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_MARKS = (("[BEGIN]", "[DONE]"), ("BEGIN", "[DONE]"), ("[BEGIN]", "DONE"), ("BEGIN", "DONE"))


def first_block(response: str) -> str:
    """``oc-humaneval-v2``: the first fenced block, else the response; without blanks in front."""
    found = _BLOCK.search(response)
    return (found[1] if found else response).lstrip()


def marked_block(response: str) -> str:
    """``oc-mbpp-extract``: what stands between marks (quoted, half quoted, plain), else in a fence, else behind an
    opening or before a closing mark, else the whole; cut at the first fence and the first ``DONE``."""
    text = _marked(response).split(FENCE)[0]
    end = text.find("DONE")
    if end >= 0:
        text = text[:end].removesuffix("[").rstrip().removesuffix("'")
    return text.replace("\\_", "_").strip()


def _marked(text: str) -> str:
    for opened, closed in ((r"\s*'", r"'\s*"), (r"\s*'", ""), (r"\s*", "")):
        for begin, done in _MARKS:
            found = _between(text, re.escape(begin) + opened, closed + re.escape(done))
            if found is not None:
                return found
    if FENCE in text:
        return _fenced(text)
    for begin in (r"\[BEGIN\]\s*'", r"\[BEGIN\]"):
        opening = re.search(begin, text)
        if opening:
            return text[opening.end() :]
    found = _between(text, "'", r"'\s*\[DONE\]")
    return text if found is None else found


def _between(text: str, begin: str, done: str) -> str | None:
    """Text from the first ``begin`` to the last ``done`` behind it; None without such a pair."""
    opening = re.search(begin, text)
    if opening is None:
        return None
    closing = None
    for closing in re.compile(done).finditer(text, opening.end()):  # noqa: B007  (the last one is wanted)
        pass
    return None if closing is None else text[opening.end() : closing.start()]


def _fenced(text: str) -> str:
    for begin, done in (("```python", FENCE), (FENCE, FENCE), ("```python", None), (FENCE, None)):
        start = text.find(begin)
        if start < 0:
            continue
        start += len(begin)
        end = len(text) if done is None else text.rfind(done, start)
        if end >= 0:
            return text[start:end]
    return text


def program_text(response: str) -> str:
    """Ours: the first fenced block that parses as Python, else the first block, else the response as it is. Blanks in
    front stay, so that a bare function body keeps its indentation."""
    blocks = [match[1] for match in _BLOCK.finditer(response)]
    if not blocks and FENCE in response:
        blocks = [response.partition(FENCE)[2].partition("\n")[2]]  # a fence that is never closed
    return next((block for block in blocks if _parses(block)), blocks[0] if blocks else response)


def python_block(response: str) -> str:
    """The first fenced block marked ``python`` as it stands; empty without one (Coupled-GRPO, JustGRPO)."""
    found = _PYTHON_BLOCK.search(response)
    return found[1] if found else ""


def function_block(response: str) -> str | None:
    """The only fenced block, of several the first with a function definition, else the last; without blanks around;
    None without a block (the unified framework)."""
    blocks = [match[1].strip() for match in _BLOCK.finditer(response)]
    return next((block for block in blocks if "def " in block), blocks[-1]) if blocks else None


def form_score(response: str, *, line_break: bool) -> float:
    """Whether a response is free text and one python fence that ends it: 1, 0.5 if the program does not parse, else 0.

    Args:
        response: the text.
        line_break: whether the fence must be followed by a line break, which is the end; else it may be.
    """
    ended = response.removesuffix("\n")
    parts = ended.split(FENCE)
    if (line_break and ended == response) or len(parts) != 3 or parts[2] or not parts[1].startswith("python\n"):
        return 0.0
    return 1.0 if _parses(parts[1].removeprefix("python\n")) else 0.5


def completed_stub(stub: str, code: str, entry_point: str) -> str:
    """A program from a stub and what was written for it.

    Code that defines the entry point itself runs behind what stands before the stub's own definition; anything else is
    the stub's body, indented if it is not.
    """
    if re.search(rf"^(async\s+)?def\s+{re.escape(entry_point)}\b", code, re.MULTILINE):
        return _imports(stub) + code
    body = code.strip("\n")
    if body and not body[0].isspace():
        first, *others = body.split("\n")
        # a reply that lost its first line's indentation keeps that of the other lines
        lost = any(line[:1].isspace() for line in others) and not _parses(body)
        body = "\n".join([f"    {first}", *(others if lost else [f"    {line}" if line else line for line in others])])
    return f"{stub.rstrip()}\n{body}\n"


def _imports(stub: str) -> str:
    """What stands before the stub's last definition: imports, and whole definitions that it calls."""
    try:
        tree = ast.parse(stub)
    except (SyntaxError, ValueError):
        lines = [line for line in stub.split("\n") if line.startswith(("import ", "from "))]
        return "".join(f"{line}\n" for line in lines)
    *before, _ = tree.body or [None]
    return "".join(f"{ast.unparse(node)}\n" for node in before if node is not None)


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
