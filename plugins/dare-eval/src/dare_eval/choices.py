"""Items of likelihood tasks: which continuation is the likeliest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dare_core.interfaces import ModelAdapter
from dare_core.types import Address
from dare_eval.likelihood import Likelihood, LikelihoodSettings, Target, likelihoods, split_tokens, standard_error
from dare_eval.tasks.rows import Question

#: how many standard errors of the difference count as close
CLOSE = 2.0


def choice_items(
    adapter: ModelAdapter,
    questions: Sequence[Question],
    settings: LikelihoodSettings,
    address: Address,
    rows_per_batch: int,
) -> Iterator[dict[str, Any]]:
    """One finished item per question, in order.

    Batches hold the views of one question only: the shape of a batch moves the last bits of a sum, and an item must
    not depend on which other items a call happens to do.
    """
    for question in questions:
        targets = _targets(adapter, question, settings)
        yield _item(question, targets, likelihoods(adapter, targets, settings, address, rows_per_batch=rows_per_batch))


def _targets(adapter: ModelAdapter, question: Question, settings: LikelihoodSettings) -> list[Target]:
    end = adapter.facts.eos_ids[0] if settings.end_token else None
    found = []
    for continuation in question.continuations:
        before, target = split_tokens(adapter.text, question.prompt, continuation, end)
        found.append(Target(question=question.prompt.index, prompt=tuple(before), continuation=tuple(target)))
    return found


def _item(question: Question, targets: Sequence[Target], found: Sequence[Likelihood]) -> dict[str, Any]:
    prompt = question.prompt
    choices = [
        {
            "text": text,
            "choice": choice,
            "logp": one.logp,
            "stderr": one.stderr,
            "tokens": len(target.continuation),
        }
        for text, choice, target, one in zip(question.continuations, question.choices, targets, found, strict=True)
    ]
    return {
        "key": prompt.id,
        "index": prompt.index,
        "prompt": prompt.text if prompt.text is not None else [[m.role, m.content] for m in prompt.messages],
        "reference": prompt.reference,
        "right": question.right,
        "group": question.group,
        "choices": choices,
        "chosen": {
            "accuracy": _best([one.logp for one in found]),
            "accuracy_per_character": _best(
                [one.logp / max(1, len(text)) for one, text in zip(found, question.choices, strict=True)]
            ),
            "accuracy_per_token": _best(
                [one.logp / len(target.continuation) for one, target in zip(found, targets, strict=True)]
            ),
        },
        "close_call": _close(found),
        "tokens": 0,
    }


def _best(values: Sequence[float]) -> int:
    """Index of the largest value, the first of equal ones."""
    return max(range(len(values)), key=lambda index: (values[index], -index))


def _close(found: Sequence[Likelihood]) -> bool:
    """Whether more draws could swap the two likeliest; draws are shared, so errors are those of differences."""
    first, second = sorted(found, key=lambda one: one.logp, reverse=True)[:2]
    if len(first.groups) == len(second.groups):
        error = standard_error([a - b for a, b in zip(first.groups, second.groups, strict=True)])
    else:
        error = (first.stderr**2 + second.stderr**2) ** 0.5
    return first.logp - second.logp < CLOSE * error
