"""Do rows fit the model? Asked of every row before weights are read or anything is written."""

from __future__ import annotations

from dataclasses import replace

from dare_core.data.examples import SHOWN_PROBLEMS, ExampleSet
from dare_core.data.tokens import example_tokens
from dare_core.errors import Problem, UserError
from dare_core.interfaces.model import TextCodec
from dare_core.types import ModelFacts


def refuse_misfits(
    examples: ExampleSet, codec: TextCodec, facts: ModelFacts, new_tokens: int | None = None, path: str = "data"
) -> None:
    """Every row can be written in tokens of the model's vocabulary, and is no longer than the model takes.

    Args:
        examples: the rows; what they are learnt as, or their prompts if ``new_tokens`` is given.
        codec: writes them in tokens.
        facts: vocabulary and positions of the model.
        new_tokens: that a response to each prompt may have; None = answers are given.
        path: of the section that names the rows.

    Raises:
        UserError: each row that does not, by file and line; the first ones are listed, the others counted.
    """
    prompts_only = new_tokens is not None
    rows = examples.prompts if prompts_only else examples.demonstrations or examples.pairs
    what = f"prompt and {new_tokens} new tokens" if prompts_only else "prompt and answer"
    unwritten: list[Problem] = []
    long: list[Problem] = []
    for prompt, place, example in zip(examples.prompts, examples.places, rows, strict=True):
        name = f"row '{prompt.id}'"
        try:
            lines = example_tokens(example, codec)
        except UserError as error:
            unwritten += [replace(p, message=f"{name}: {p.message}", where=place) for p in error.problems]
            continue
        foreign = sorted({token for line in lines for token in line if not 0 <= token < facts.vocab_size})
        if foreign:
            message = f"{name}: token {foreign[0]} lies outside the model's vocabulary 0..{facts.vocab_size - 1}"
            hint = "tokenizer and model do not belong together"
            unwritten.append(Problem(message, where=place, hint=hint))
        length = max(map(len, lines)) + (new_tokens or 0)
        if length > facts.max_positions:
            message = f"{name}: {what} make {length} tokens; the model takes {facts.max_positions}"
            long.append(Problem(message, where=place))
    problems = [*unwritten[:SHOWN_PROBLEMS], *long[:SHOWN_PROBLEMS]]
    if len(unwritten) > SHOWN_PROBLEMS:
        message = f"{len(unwritten)} of {len(examples)} rows cannot be written in tokens"
        problems.append(Problem(message, path=path))
    if long:
        hint = f"leave long rows out with {path}.max_prompt_tokens or {path}.max_tokens and {path}.on_long_row: drop"
        message = f"{len(long)} of {len(examples)} rows do not fit the model"
        problems.append(Problem(message, path=path, hint=hint))
    if problems:
        raise UserError(problems)
