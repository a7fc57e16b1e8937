"""Options of the rewards. Each field's meaning is its description."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from dare_core.api import SectionConfig
from dare_core.spec.sections import EvaluatorSection


class Gsm8kSection(SectionConfig):
    """`reward: {kind: gsm8k}`."""

    score: Literal["accuracy", "d1", "d-treerpo", "justgrpo"] = Field(
        "accuracy",
        description="`accuracy`: 1 if the answer equals the reference as a number, else 0. `d1`: sum of five parts "
        "(correctness 2, integer 0.5, two formats 0.5 each, tags 0.5). `d-treerpo`: the same, correctness 1. "
        "`justgrpo`: 1 or -1; the answer may also be 100 times the reference or a hundredth of it.",
    )


class MathSection(SectionConfig):
    """`reward: {kind: math}`."""

    score: Literal["math-verify", "coupled-grpo", "dare", "d1", "d-treerpo", "justgrpo"] = Field(
        "math-verify",
        description="`math-verify`: 1 if mathematically equal, else 0. `coupled-grpo`: the same, but the answer must "
        "be boxed or announced and in LaTeX (MDPO too). `dare`: needs a box; equal as strings or symbolically. "
        "`d1`: 2 if the normalised strings are equal, plus 0.25 or 0.75 for the form. `d-treerpo`: 1, string equality. "
        "`justgrpo`: as `math-verify`, 1 or -1.",
    )
    time_limit: PositiveFloat = Field(5.0, description="Wall-clock seconds per response; over it: `timeout`, score 0.")
    workers: PositiveInt = Field(2, description="Processes that check; unused by `d1` and `d-treerpo`.")
    memory_mb: PositiveInt = Field(4096, description="Address space of such a process in MiB; over it: `timeout`.")


class CountdownSection(SectionConfig):
    """`reward: {kind: countdown}`."""

    score: Literal["exact", "d1", "mdpo"] = Field(
        "exact",
        description="`exact`: 1 for + - * / and parentheses over exactly the given numbers, in exact arithmetic. "
        "`d1`: 0, 0.1 or 1 for none, a wrong or a right last answer tag; `**` and `//` allowed. `mdpo`: 1 or 0; "
        "takes a box or the first `expression = number`.",
    )


class SudokuSection(SectionConfig):
    """`reward: {kind: sudoku}`: 4x4 grids."""

    score: Literal["solved", "units", "d1"] = Field(
        "solved",
        description="`solved`: 1 for any valid grid that keeps the givens, else 0. `units`: share of the 12 rows, "
        "columns and boxes that are right. `d1`: share of the empty cells that equal the stored solution, in the last "
        "answer tag.",
    )


class CodeRewardSection(SectionConfig):
    """`reward: {kind: code}`: programs."""

    score: Literal["tests", "dare", "coupled-grpo", "justgrpo", "coupled-format", "justgrpo-format"] = Field(
        "tests",
        description="`tests`: 1 if all tests pass, else 0. `dare`: the same, and the program must be fenced. "
        "`coupled-grpo`: 2 x share of passed tests, where the form is full, plus 0.5 x form. `justgrpo`: share plus "
        "form. `coupled-format`, `justgrpo-format`: the form alone, 1, 0.5 (does not parse) or 0; runs nothing.",
    )
    allow_code_execution: bool = Field(False, description="Let programs that the model wrote run.")
    time_limit: PositiveFloat = Field(
        5.0, description="Wall-clock seconds per program: of all tests, of each one where shares are scored."
    )
    memory_mb: PositiveInt = Field(1024, description="Address space of a program in MiB.")
    workers: PositiveInt = Field(2, description="Programs run at the same time.")


class LikelihoodSection(SectionConfig):
    """How likelihoods of given continuations are estimated."""

    estimator: Literal["count-stratified", "bernoulli", "exact"] = Field(
        "count-stratified",
        description="`count-stratified`: evenly spread numbers of hidden tokens (LLaDA). `bernoulli`: each token "
        "hidden on its own (Dream), noisy for short continuations. `exact`: every set of up to 10 tokens.",
    )
    draws: PositiveInt = Field(128, description="Views per continuation; one token needs one.")
    strata: PositiveInt = Field(16, description="Draws per independent group; the standard error comes from groups.")
    end_token: bool = Field(False, description="Score the family's end token behind each continuation (Dream).")
    guidance: float = Field(
        0.0, ge=0, description="Scale s of classifier-free guidance, logits u + (s + 1)(c - u); 0 = off."
    )

    @model_validator(mode="after")
    def _groups(self) -> LikelihoodSection:
        if self.draws % self.strata or self.draws < 2 * self.strata:
            raise ValueError(f"draws {self.draws} must be a multiple of strata {self.strata}, at least twice it")
        return self


class CodeSection(SectionConfig):
    """Limits of one generated program."""

    time_limit: PositiveFloat = Field(10.0, description="Wall-clock seconds; over it: `timeout`.")
    memory_mb: PositiveInt = Field(1024, description="Address space in MiB.")
    workers: PositiveInt = Field(2, description="Programs run at the same time.")


class TaskSection(EvaluatorSection):
    """`eval: [{kind: task, task: gsm8k, data_folder: ...}]`: a benchmark, or a yaml file of yours."""

    task: str = Field(description="Name of a task, or path to a yaml file that describes one.")
    data_folder: str | None = Field(None, description="Folder with the task's files.")
    data_file: str | None = Field(None, description="Read questions from this file instead of the task's.")
    limit: PositiveInt | None = Field(None, description="Only the first questions.")
    shots: int | None = Field(None, ge=0, description="Worked examples shown, instead of the task's number.")
    samples: PositiveInt | None = Field(None, description="Responses per question, instead of the task's number.")
    temperature: float | Literal["task", "run"] = Field(
        "task",
        description="`task`: the task's own, else 0. `run`: as the rollout section says. Or a number.",
    )
    allow_overlap: bool = Field(False, description="Accept questions whose prompts are trained on as well.")
    max_error_share: float = Field(
        0.2, ge=0, le=1, description="Stop when the judge itself failed on more than this share of responses."
    )
    likelihood: LikelihoodSection = Field(default_factory=LikelihoodSection, description="For likelihood tasks.")
    allow_code_execution: bool = Field(False, description="Let tasks that need it run generated programs.")
    code: CodeSection = Field(default_factory=CodeSection, description="Limits of such programs.")


class HarnessSection(EvaluatorSection):
    """`eval: [{kind: lm-eval, task: ...}]`: a task of lm-evaluation-harness, by this framework's decoder."""

    task: str = Field(description="Name of a task of the harness, or of a yaml file in `include`.")
    include: str | None = Field(None, description="Folder with task files of yours; ours are always known.")
    bundled: bool = Field(
        False, description="Know the harness's own tasks as well: slow to start, and most download their data."
    )
    data_folder: str | None = Field(None, description="Folder with the files of our tasks.")
    limit: PositiveInt | None = Field(None, description="Only the first documents.")
    shots: int | None = Field(None, ge=0, description="Worked examples shown, instead of the task's number.")
    temperature: float | Literal["task", "run"] = Field(
        "task", description="`task`: 0. `run`: as the rollout section says. Or a number."
    )
    greedy: bool = Field(
        False,
        description="Find out for likelihood tasks whether the model would write the continuation itself, surest token "
        "first (`is_greedy`): one forward per token. Otherwise it is always false.",
    )
    chat_template: bool = Field(False, description="Put prompts into the family's chat template.")
    likelihood: LikelihoodSection = Field(default_factory=LikelihoodSection, description="For likelihood tasks.")
