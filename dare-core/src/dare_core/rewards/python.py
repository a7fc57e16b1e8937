"""A reward that is a Python callable of the user's own.

It runs in this process, in the calling thread, so it must be quick and end by itself: it cannot be stopped. What it
raises, and a number that is not finite, become verdicts with status ``error``, never a score.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any

from dare_core.errors import Problem, UserError
from dare_core.interfaces.reward import Reward
from dare_core.rewards.config import PythonSection
from dare_core.types.examples import Prompt, Verdict, VerdictStatus


class PythonReward(Reward):
    """The reward ``python``: ``function(prompt, response)`` gives a number, a bool or a :class:`Verdict`.

    Raises:
        UserError: the callable cannot be imported or does not take two arguments.
    """

    config: PythonSection

    def __init__(self, config: PythonSection) -> None:
        super().__init__(config)
        self._function = _find(config)

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Verdict]:
        """See :meth:`Reward.judge`."""
        return [self._judge(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]

    def _judge(self, prompt: Prompt, response: str) -> Verdict:
        try:
            result = self._function(prompt, response)
            score = float(result) if isinstance(result, Real) else math.nan
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return Verdict(None, VerdictStatus.ERROR, f"{self.config.function}: {reason}")
        if isinstance(result, Verdict) and (result.score is None or math.isfinite(result.score)):
            return result
        if not math.isfinite(score):
            detail = f"{self.config.function} returned {result!r}, which is neither a finite number nor a verdict"
            return Verdict(None, VerdictStatus.ERROR, detail)
        return Verdict(score, VerdictStatus.CORRECT if score >= self.config.full_score else VerdictStatus.WRONG)


def _find(config: PythonSection) -> Callable[[Prompt, str], Any]:
    if config.search_path is not None:
        folder = Path(config.search_path).resolve()
        if not folder.is_dir():
            raise UserError(Problem(f"there is no folder {folder}", path="reward.search_path"))
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    module_name, _, name = config.function.partition(":")
    hint = "install the package, or name its folder in 'search_path'"
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        problem = f"{module_name} cannot be imported: {type(error).__name__}: {error}"
        raise UserError(Problem(problem, path="reward.function", hint=hint)) from error
    function: Callable[[Prompt, str], Any] | None = getattr(module, name, None)
    if not callable(function):
        found = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        problem = f"{module_name} has no callable '{name}'; it has {', '.join(found) or 'none'}"
        raise UserError(Problem(problem, path="reward.function"))
    try:
        inspect.signature(function).bind(None, "")
    except TypeError as error:
        problem = f"{config.function} must take (prompt, response): {error}"
        raise UserError(Problem(problem, path="reward.function")) from error
    except ValueError:
        # Some builtin callables state no signature; the first call shows.
        pass
    return function
