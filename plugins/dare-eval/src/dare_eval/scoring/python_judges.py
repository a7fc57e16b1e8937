"""Judges that run the program in a response: HumanEval's and MBPP's forms, ours and OpenCompass's extraction.

A fault of the runner itself is an error; a program that fails its tests, exits or crashes is wrong, and which of these
it was stands in the detail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dare_core.api import Problem, UserError
from dare_core.types import Prompt, VerdictStatus
from dare_eval.config import CodeSection
from dare_eval.judging import meta_value, require
from dare_eval.programs.runner import ProgramResult, ProgramRunner
from dare_eval.scoring import code_text
from dare_eval.scoring.judges import Judge, Judged

_Build = Callable[[str, Prompt], str]


def _tests(prompt: Prompt) -> str:
    tests = meta_value(prompt, "tests")
    return "\n".join(tests) if isinstance(tests, (list, tuple)) else str(tests)


def _function_program(code: str, prompt: Prompt) -> str:
    entry = str(meta_value(prompt, "entry_point"))
    whole = code_text.completed_stub(str(meta_value(prompt, "stub")), code, entry)
    return f"{whole}\n{_tests(prompt)}\ncheck({entry})\n"


def _stub_program(code: str, prompt: Prompt) -> str:
    """HumanEval's checker: stub, completion, tests, check."""
    stub, entry = str(meta_value(prompt, "stub")), str(meta_value(prompt, "entry_point"))
    return f"{stub}{code}\n{_tests(prompt)}\ncheck({entry})\n"


def _tests_program(code: str, prompt: Prompt) -> str:
    """Solution, setup, tests: a setup may use what the solution defines (``mbpp-0367`` does)."""
    return f"{code}\n{meta_value(prompt, 'setup') or ''}\n{_tests(prompt)}\n"


def _tests_without_setup(code: str, prompt: Prompt) -> str:
    return f"{code}\n{_tests(prompt)}\n"


_FUNCTION = ("stub", "tests", "entry_point")
#: name -> (text to code, code to program, meta fields that are read)
PYTHON_RULES: Mapping[str, tuple[Callable[[str], str], _Build, tuple[str, ...]]] = MappingProxyType(
    {
        "python-function": (code_text.program_text, _function_program, _FUNCTION),
        "python-tests": (code_text.program_text, _tests_program, ("tests",)),
        "oc-humaneval-v2": (code_text.first_block, _stub_program, _FUNCTION),
        "oc-mbpp-extract": (code_text.marked_block, _tests_without_setup, ("tests",)),
    }
)


class PythonJudge(Judge):
    """Runs programs by one of :data:`PYTHON_RULES`."""

    def __init__(self, rule: str, limits: CodeSection) -> None:
        self._read, self._program, self._needs = PYTHON_RULES[rule]
        self._rule = rule
        self._runner = ProgramRunner(time_limit=limits.time_limit, memory_mb=limits.memory_mb, workers=limits.workers)

    @property
    def isolation(self) -> str:
        """How programs are fenced in here."""
        return self._runner.isolation.name

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Judged]:
        """See :class:`Judge`."""
        codes = [self._read(response) if response.strip() else "" for response in responses]
        chosen = [index for index, code in enumerate(codes) if code.strip()]
        programs = [self._program(codes[index], prompts[index]) for index in chosen]
        results = dict(zip(chosen, self._runner.run(programs), strict=True))
        return [
            _judged(codes[index], results[index])
            if index in results
            else Judged(answer=None, score=0.0, status=_without_code(response))
            for index, response in enumerate(responses)
        ]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """See :class:`Judge`."""
        require(prompts, self._lacks)

    def close(self) -> None:
        """See :class:`Judge`."""
        self._runner.close()

    def _lacks(self, prompt: Prompt) -> str | None:
        missing = [name for name in self._needs if not meta_value(prompt, name)]
        return f"has no {', '.join(missing)}, which the rule '{self._rule}' reads" if missing else None


def build_python_judge(rule: str, options: Mapping[str, Any], limits: CodeSection) -> PythonJudge:
    """The judge of a rule that runs programs.

    Raises:
        UserError: options are given; such rules have none.
    """
    if options:
        raise UserError(Problem(f"rule '{rule}' has no options; limits stand in eval.code", path="scoring.options"))
    return PythonJudge(rule, limits)


def _without_code(response: str) -> VerdictStatus:
    return VerdictStatus.UNPARSED if response.strip() else VerdictStatus.EMPTY


def _judged(code: str, result: ProgramResult) -> Judged:
    detail = f"{result.status}: {result.detail}" if result.detail else result.status
    parts = {f"programs/{result.status}": 1.0}
    if result.status == "passed":
        return Judged(answer=code, score=1.0, status=VerdictStatus.CORRECT, detail=detail, parts=parts)
    if result.status == "runner_fault":
        return Judged(answer=code, score=None, status=VerdictStatus.ERROR, detail=detail, parts=parts)
    status = VerdictStatus.TIMEOUT if result.status == "timeout" else VerdictStatus.WRONG
    return Judged(answer=code, score=0.0, status=status, detail=detail, parts=parts)
