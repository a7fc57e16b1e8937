"""One row of fields -> one prompt, demonstration or pair."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare_core.data.fields import FieldError, nest, read_field
from dare_core.data.template import Template
from dare_core.data.turns import learnt_turns, read_marks, read_turns
from dare_core.spec.sections import DataSection
from dare_core.types.examples import Demonstration, Message, Pair, Prompt

Example = Prompt | Demonstration | Pair
_PLACE = re.compile(r"(.*?)(?::\d+|\[\d+\])?")


class ExampleBuilder:
    """Applies a section's templates to rows.

    Raises:
        ValueError: a template is malformed.
    """

    def __init__(self, config: DataSection) -> None:
        self._config = config
        self._text = Template.parse(config.prompt) if isinstance(config.prompt, str) else None
        turns = config.prompt if isinstance(config.prompt, tuple) else ()
        self._turns = tuple((turn.role, Template.parse(turn.content)) for turn in turns)
        self._answers = {
            name: Template.parse(text)
            for name in ("completion", "chosen", "rejected")
            if (text := getattr(config, name)) is not None
        }
        self._reference = None if config.reference is None else Template.parse(config.reference)

    def row_id(self, row: Mapping[str, Any], where: str, index: int) -> str:
        """The row's own id, or ``<file name without endings>-<index>`` if it has none.

        Raises:
            FieldError: the id is neither text nor a whole number.
        """
        try:
            value = read_field(row, self._config.id)
        except FieldError:
            value = None
        if value is None or value == "":
            place = _PLACE.fullmatch(where)
            return f"{Path(place[1] if place else where).name.split('.')[0]}-{index}"
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise FieldError(f"field '{self._config.id}' is the row's id and must be text or a whole number")
        return str(value)

    def build(self, row: Mapping[str, Any], row_id: str, index: int) -> Example:
        """The example of one row.

        Raises:
            ValueError: the row lacks something; names the field.
        """
        if self._config.messages is not None and self._config.trained_turns is not None:
            turns = read_turns(row, self._config.messages)
            marks = read_marks(row, self._config.messages, self._config.turn_mark)
            end, earlier = learnt_turns(turns, marks, self._config.trained_turns, self._config.messages)
            return Demonstration(self._prompt_of(row, row_id, index, turns[:end]), turns[end].content, earlier)
        prompt = self._prompt(row, row_id, index)
        answers = {name: self._answer(template, row, name) for name, template in self._answers.items()}
        if "completion" in answers:
            return Demonstration(prompt, answers["completion"])
        if "chosen" in answers:
            return Pair(prompt, answers["chosen"], answers["rejected"])
        return prompt

    def _prompt(self, row: Mapping[str, Any], row_id: str, index: int) -> Prompt:
        if self._config.messages is not None:
            messages = read_turns(row, self._config.messages)
            if messages[-1].role == "assistant":
                raise FieldError(
                    f"the turns in '{self._config.messages}' end with the assistant's, so nothing is left to answer"
                )
        else:
            messages = tuple(Message(role, template.render(row)) for role, template in self._turns)
        return self._prompt_of(row, row_id, index, messages)

    def _prompt_of(self, row: Mapping[str, Any], row_id: str, index: int, messages: tuple[Message, ...]) -> Prompt:
        text = None if self._text is None else self._text.render(row)
        written = (text or "", *(message.content for message in messages))
        # `prompt: ""` is meant: whole texts to learn, as in pre-training.
        if self._config.prompt != "" and not any(part.strip() for part in written):
            raise FieldError("the prompt is empty")
        return Prompt(
            id=row_id,
            index=index,
            messages=messages,
            text=text,
            reference=None if self._reference is None else _filled(self._reference.render(row), "reference"),
            meta=nest({name: read_field(row, name) for name in self._config.meta}),
        )

    @staticmethod
    def _answer(template: Template, row: Mapping[str, Any], name: str) -> str:
        field = template.only_field
        if field is not None and isinstance(read_field(row, field), (list, tuple)):
            spoken = [turn.content for turn in read_turns(row, field) if turn.role == "assistant"]
            if len(spoken) != 1:
                raise FieldError(f"the turns in '{field}' hold {len(spoken)} of the assistant; '{name}' needs one")
            return _filled(spoken[0], name)
        return _filled(template.render(row), name)


def _filled(text: str, name: str) -> str:
    if not text.strip():
        raise FieldError(f"the {name} is empty")
    return text
