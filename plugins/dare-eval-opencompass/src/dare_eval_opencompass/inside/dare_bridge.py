"""The model that OpenCompass addresses by dotted path, ``dare_bridge.BridgeModel``. Runs in OpenCompass's environment.

It holds no weights. ``ask``: it writes every question down and answers with nothing. ``answer``: it reads what was
answered to the same questions in the same order. So OpenCompass makes prompts and scores, and another process, with
other packages, owns model and decoder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opencompass.models.base import BaseModel
from opencompass.models.base_api import APITemplateParser

ROLES = {"HUMAN": "user", "BOT": "assistant", "SYSTEM": "system"}


class BridgeModel(BaseModel):
    """One dataset's questions, in the order in which OpenCompass asks them.

    Args:
        path: the exchange folder: ``questions.jsonl`` is written, ``answers.jsonl`` is read.
        dataset: whose questions these are.
        phase: ``ask`` or ``answer``.
        chat: whether prompts are chat turns; else plain text, turns joined by line breaks.
        answer_turn: what becomes of an answer turn that ends a prompt: ``prefill`` (the model goes on from it) or
            ``drop``.
    """

    is_api = False

    def __init__(self, path: str, dataset: str, phase: str, chat: bool, answer_turn: str, **options: Any) -> None:
        super().__init__(path=path, max_seq_len=None, **options)
        self._folder, self._dataset, self._phase = Path(path), dataset, phase
        self._next = 0
        self._known = _rows(self._folder / "answers.jsonl", dataset) if phase == "answer" else []
        if chat:
            answers = {"role": "BOT", "api_role": "BOT"} | ({"generate": True} if answer_turn == "drop" else {})
            # System turns become the user's, as for OpenCompass's own chat models.
            turns = [{"role": "HUMAN", "api_role": "HUMAN"}, {"role": "SYSTEM", "api_role": "HUMAN"}, answers]
            self.template_parser = APITemplateParser({"round": turns})

    def generate(self, inputs: Sequence[Any], max_out_len: int | None, stopping_criteria: Sequence[str] = ()) -> list:
        """Answers to ``inputs``; a prompt is a string or a list of turns."""
        questions = [
            {"dataset": self._dataset, "row": self._next + place, "prompt": _plain(prompt),
             "max_out_len": max_out_len, "stop": list(stopping_criteria or ())}
            for place, prompt in enumerate(inputs)
        ]  # fmt: skip
        self._next += len(questions)
        if self._phase == "ask":
            with (self._folder / "questions.jsonl").open("a", encoding="utf-8") as out:
                out.writelines(json.dumps(question, ensure_ascii=False) + "\n" for question in questions)
            return [""] * len(questions)
        return [self._answer(question) for question in questions]

    def get_token_len(self, prompt: str) -> int:
        """Nothing is cut by length here, so nothing needs it."""
        raise NotImplementedError("lengths are checked where the model is")

    def get_ppl(self, inputs: Sequence[str], mask_length: Any = None) -> Any:
        """Refused: OpenCompass hands over whole texts, without the boundary between question and answer."""
        raise NotImplementedError("likelihood datasets are for the evaluators 'task' and 'lm-eval'")

    def _answer(self, question: dict[str, Any]) -> str:
        row = question["row"]
        if row >= len(self._known):
            raise LookupError(f"{self._dataset}: row {row} was never asked before")
        known = self._known[row]
        if known["prompt"] != question["prompt"]:
            raise LookupError(f"{self._dataset}: row {row} is asked with another prompt than the one answered")
        return str(known["text"])


def _plain(prompt: Any) -> Any:
    """Chat turns as [role, text] with the model's role names; a string as it is."""
    if isinstance(prompt, str):
        return prompt
    return [[ROLES[turn["role"]], turn["prompt"]] for turn in prompt]


def _rows(path: Path, dataset: str) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [row for row in map(json.loads, lines) if row["dataset"] == dataset]
