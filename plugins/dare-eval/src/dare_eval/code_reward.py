"""Programs: how many tests pass, and whether the response has the form that was asked for.

Reads ``meta.tests`` (a list of statements, or one text), and where a stub was given ``meta.stub`` and
``meta.entry_point`` (HumanEval's form, whose tests are one function); ``meta.setup`` stands before the tests. Rules:

* ``tests``: 1 if all tests pass, else 0; the program is what :func:`code_text.program_text` reads.
* ``dare`` (the unified framework): the same, but without a fence there is no program, and of several fences the first
  with a function definition counts, else the last.
* ``coupled-grpo`` (Coupled-GRPO, arXiv 2506.20639): 2 x share of the tests that pass, counted only where the form is
  full, plus 0.5 x form. Each test is a program of its own.
* ``justgrpo`` (JustGRPO, arXiv 2601.15165): share of the tests that pass, plus form.
* ``coupled-format``, ``justgrpo-format``: the form alone; nothing is run.

The form is 1 for free text and one python fence that ends the response and parses, 0.5 if it does not parse, else 0.
Coupled-GRPO asks for a line break behind the fence; JustGRPO takes it with or without.

The status tells about the tests alone, or about the form where nothing is run. Generated programs run as in evaluation
(:mod:`dare_eval.programs.runner`), and only where ``allow_code_execution`` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from dare_core.api import Problem, UserError
from dare_core.interfaces import Reward
from dare_core.types import Prompt, Verdict, VerdictStatus
from dare_eval.answers import one_line
from dare_eval.config import CodeRewardSection
from dare_eval.judging import meta_value, require
from dare_eval.programs.runner import ProgramResult, ProgramRunner
from dare_eval.scoring import code_text

#: scores that run nothing
FORM_ONLY = ("coupled-format", "justgrpo-format")
#: weights of Coupled-GRPO's two parts
TESTS_WEIGHT, FORM_WEIGHT = 2.0, 0.5


class CodeReward(Reward):
    """``reward: {kind: code}``."""

    config: CodeRewardSection

    def __init__(self, config: CodeRewardSection) -> None:
        super().__init__(config)
        self._runner: ProgramRunner | None = None
        if config.score in FORM_ONLY:
            return
        if not config.allow_code_execution:
            message = f"'{config.score}' runs programs that the model wrote"
            hint = "set allow_code_execution: true after reading docs/evaluation.md, 'Generated programs'"
            raise UserError(Problem(message, path="reward.allow_code_execution", hint=hint))
        self._runner = ProgramRunner(time_limit=config.time_limit, memory_mb=config.memory_mb, workers=config.workers)

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Verdict]:
        """One verdict per (prompt, response), in order."""
        pairs = list(zip(prompts, responses, strict=True))
        if self._runner is None:
            return [_form_verdict(self._form(response), response) for response in responses]
        programs = [self._programs(prompt, response) for prompt, response in pairs]
        results = iter(self._runner.run([program for own in programs for program in own]))
        return [
            self._verdict(prompt, response, list(islice(results, len(own))))
            for (prompt, response), own in zip(pairs, programs, strict=True)
        ]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Look whether every prompt has tests, where they are run.

        Raises:
            UserError: names the prompts without.
        """
        if self._runner is not None:
            require(prompts, _lacks)

    def close(self) -> None:
        """End what runs."""
        if self._runner is not None:
            self._runner.close()

    def _form(self, response: str) -> float:
        return code_text.form_score(response, line_break=self.config.score.startswith("coupled"))

    def _code(self, response: str) -> str | None:
        """The program; None where there is none to run."""
        if self.config.score == "dare":
            found = code_text.function_block(response)
        elif self.config.score == "tests":
            found = code_text.program_text(response)
        else:
            found = code_text.python_block(response)
        return found if found and found.strip() else None

    def _programs(self, prompt: Prompt, response: str) -> list[str]:
        code = self._code(response)
        if code is None or _lacks(prompt) is not None:
            return []
        if self.config.score in ("tests", "dare"):
            return [_program(prompt, code, _tests(prompt))]
        if self.config.score == "coupled-grpo" and self._form(response) < 1:
            return []
        return [_program(prompt, code, [test]) for test in _tests(prompt)]

    def _verdict(self, prompt: Prompt, response: str, results: Sequence[ProgramResult]) -> Verdict:
        missing = _lacks(prompt)
        if missing is not None:
            return Verdict(None, VerdictStatus.ERROR, missing)
        faults = [result.detail for result in results if result.status == "runner_fault"]
        if faults:
            return Verdict(None, VerdictStatus.ERROR, one_line(faults[0]))
        passed = sum(result.status == "passed" for result in results) / len(results) if results else 0.0
        status, detail = _status(response, self._code(response), results)
        if self.config.score in ("tests", "dare"):
            return Verdict(passed, status, detail)
        form = self._form(response)
        parts = {"tests": passed, "form": form}
        if self.config.score == "coupled-grpo":
            parts = {"tests": TESTS_WEIGHT * passed, "form": FORM_WEIGHT * form}
        return Verdict(sum(parts.values()), status, detail, parts)


def _form_verdict(form: float, response: str) -> Verdict:
    if not response.strip():
        return Verdict(form, VerdictStatus.EMPTY)
    return Verdict(form, VerdictStatus.CORRECT if form == 1 else VerdictStatus.WRONG, f"form {form:g}")


def _status(response: str, code: str | None, results: Sequence[ProgramResult]) -> tuple[VerdictStatus, str]:
    if not response.strip():
        return VerdictStatus.EMPTY, ""
    if code is None:
        return VerdictStatus.UNPARSED, "no program"
    if not results:
        return VerdictStatus.WRONG, "not run: the form is not full"
    failed = [result for result in results if result.status != "passed"]
    if not failed:
        return VerdictStatus.CORRECT, "passed"
    status = VerdictStatus.TIMEOUT if any(r.status == "timeout" for r in failed) else VerdictStatus.WRONG
    return status, one_line(f"{failed[0].status}: {failed[0].detail}")


def _tests(prompt: Prompt) -> list[str]:
    tests = meta_value(prompt, "tests")
    return list(map(str, tests)) if isinstance(tests, (list, tuple)) else [str(tests)]


def _program(prompt: Prompt, code: str, tests: Sequence[str]) -> str:
    entry, stub = meta_value(prompt, "entry_point"), meta_value(prompt, "stub")
    if entry and stub:
        code, tests = code_text.completed_stub(str(stub), code, str(entry)), [*tests, f"check({entry})"]
    return "\n".join([code, str(meta_value(prompt, "setup") or ""), *tests, ""])


def _lacks(prompt: Prompt) -> str | None:
    if meta_value(prompt, "tests"):
        return None
    return "code runs the tests in meta field 'tests' (a list of statements, or text); name it in data.meta"
