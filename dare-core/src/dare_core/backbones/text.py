"""Text codecs over a folder's tokenizer files, without remote code.

A tokenizer.json is loaded as it is into the library's generic fast tokenizer; folders that only have
vocab.json and merges.txt need a class of the library that builds the rest. Custom classes and ``auto_map`` in
tokenizer_config.json are ignored. Chat templates are rendered in transformers' sandbox.

Plain-text prompts are tokenised as they stand: no start token is added, and special tokens spelled out in
them count as such. Completions are encoded as ordinary text, so an answer that spells a special token does
not produce it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jinja2.exceptions import TemplateError

from dare_core.backbones.folders import read_json
from dare_core.errors import Problem, UserError
from dare_core.interfaces import TextCodec
from dare_core.types import Message, ModelFacts, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TOKENIZER, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_PIECES = ("vocab.json", "merges.txt")
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token", "cls_token", "sep_token")


def read_tokenizer(folder: Path, library_class: Any = None) -> PreTrainedTokenizerFast:
    """The folder's tokenizer, with the special tokens and the chat template that its settings name.

    Args:
        folder: with tokenizer.json, or with vocab.json and merges.txt.
        library_class: transformers tokenizer class that reads vocab.json and merges.txt; None = tokenizer.json
            is needed.

    Raises:
        UserError: the files are missing or broken.
    """
    from transformers import PreTrainedTokenizerFast

    if not (folder / TOKENIZER).is_file():
        if library_class is not None and all((folder / name).is_file() for name in _PIECES):
            return _from_pieces(folder, library_class)
        pieces = "" if library_class is None else f", and no {' with '.join(_PIECES)}"
        raise UserError(
            Problem(
                f"no {TOKENIZER}{pieces}",
                where=str(folder),
                path="model.tokenizer",
                hint="name a folder that has one",
            )
        )
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    named = {name: _token_text(settings[name]) for name in _NAMED_TOKENS if settings.get(name)}
    try:
        tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_file=str(folder / TOKENIZER), **named
        )
    except Exception as error:  # the tokenizers library raises bare Exception for a malformed file
        raise UserError(Problem(f"not a readable tokenizer ({error})", where=str(folder / TOKENIZER))) from error
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if (folder / TEMPLATE).is_file():
        template = (folder / TEMPLATE).read_text(encoding="utf-8")
    tokenizer.chat_template = template
    return cast("PreTrainedTokenizerFast", tokenizer)


def _from_pieces(folder: Path, library_class: Any) -> PreTrainedTokenizerFast:
    for name in (SETTINGS, "added_tokens.json", "special_tokens_map.json", "vocab.json"):
        if (folder / name).is_file():
            read_json(folder / name)  # the library does not say which of its files is broken
    try:
        tokenizer = library_class.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # bare Exception for malformed pieces, as above
        raise UserError(Problem(f"not a readable tokenizer ({error})", where=str(folder))) from error
    return cast("PreTrainedTokenizerFast", tokenizer)


def _token_text(entry: str | Mapping[str, Any]) -> str:
    return entry if isinstance(entry, str) else str(entry["content"])


class TokenizerCodec(TextCodec):
    """A family's text over a fast tokenizer.

    Args:
        tokenizer: from :func:`read_tokenizer`.
        facts: ids; the mask token may not stand in a prompt, end and padding ids have no text.
        end_id: what ends an answer after an open answer header; written by :meth:`encode_completion`.
        template: chat template used where the tokenizer has none; None = chat prompts are then an error.
        roles: roles that the template knows.
        options: further variables of the template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        facts: ModelFacts,
        *,
        end_id: int,
        template: str | None = None,
        roles: Sequence[str] = ("system", "user", "assistant"),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._facts, self._end_id, self._roles = facts, end_id, tuple(roles)
        self._template = tokenizer.chat_template or template
        self._options = dict(options or {})
        named = {facts.mask_id, facts.pad_id, end_id, *facts.eos_ids, *facts.extra_ids.values()}
        textless = {*named, *tokenizer.all_special_ids, *_special_ids(tokenizer)}
        self._with_text = frozenset(tokenizer.get_vocab().values()) - textless

    @property
    def vocab_size(self) -> int:
        """See the interface."""
        return max(self.tokenizer.get_vocab().values()) + 1

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """See the interface.

        Raises:
            UserError: also if the prompt holds the mask token, which would be taken for a position to fill.
        """
        text = self.render(prompt.messages) if prompt.text is None else prompt.text
        return self._without_mask(self._encode(text, special=True), prompt.id)

    def encode_completion(self, text: str) -> list[int]:
        """See the interface. ``text`` is taken as it is, surrounding blanks included."""
        return [*self._encode(text, special=False), self._end_id]

    def encode_conversation(self, prompt: Prompt, answers: Sequence[int]) -> list[tuple[list[int], bool]]:
        """See the interface. What stands between two answers is what the template renders after the end token of the
        first, with the second one's open header.

        Raises:
            UserError: an answer spells the end token, or the template rewrites what precedes an answer later on.
        """
        turns, end = prompt.messages, str(self.tokenizer.convert_ids_to_tokens(self._end_id))
        pieces: list[tuple[list[int], bool]] = []
        shown = head = ""
        for number, turn in enumerate(answers):
            before, head = head, self.render(turns[:turn])
            if number:
                shown = _through_answer(before, head, end, prompt.id)
            if end in turns[turn].content and turn != answers[-1]:
                problem = Problem(
                    f"turn {turn} spells the end token {end}, so its end cannot be told",
                    where=prompt.id,
                    hint="remove it from the text, or set data.trained_turns to 'last' or 'one'",
                )
                raise UserError(problem)
            given = self._without_mask(self._encode(head[len(shown) :], special=True), prompt.id)
            pieces += [(given, False), (self.encode_completion(turns[turn].content), True)]
        return pieces

    def _without_mask(self, ids: list[int], name: str) -> list[int]:
        if self._facts.mask_id in ids:
            raise UserError(Problem("the prompt holds the mask token", where=name, hint="remove its text from the row"))
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """See the interface. Ids beyond the tokenizer have no text either."""
        shown = [token for token in tokens if token in self._with_text]
        return str(self.tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def render(self, messages: Sequence[Message]) -> str:
        """See the interface."""
        unknown = sorted({message.role for message in messages} - set(self._roles))
        if unknown:
            raise UserError(
                Problem(f"unknown chat role {', '.join(map(repr, unknown))}; this model has {', '.join(self._roles)}")
            )
        if self._template is None:
            raise UserError(
                Problem(
                    "the tokenizer has no chat template",
                    path="data.prompt",
                    hint="write the prompt as plain text, or name a 'tokenizer' folder with a template",
                )
            )
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                turns, chat_template=self._template, tokenize=False, add_generation_prompt=True, **self._options
            )
        except TemplateError as error:
            raise UserError(Problem(f"the chat template refuses these turns: {error}", path="data.prompt")) from error
        return str(text)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=not special)
        return [int(token) for token in encoded["input_ids"]]


def _through_answer(before: str, later: str, end: str, name: str) -> str:
    """The beginning of ``later`` that ends with the answer opened by ``before``.

    A template may open an answer otherwise than it shows it later, as with an empty think part; it may not change what
    precedes the answer.
    """
    pairs = enumerate(zip(before, later, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(len(before), len(later)))
    place = later.find(end, same)
    if end in before[same:] or place < 0:
        why = f"does not close earlier answers with {end}" if place < 0 else "rewrites turns before an earlier answer"
        message = f"the chat template {why}, so answers of one conversation cannot be learnt in one row"
        raise UserError(Problem(message, where=name, path="data.trained_turns", hint="use 'last' or 'one'"))
    return later[: place + len(end)]


def _special_ids(tokenizer: PreTrainedTokenizerFast) -> set[int]:
    return {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}


class MissingCodec(TextCodec):
    """Stands for a tokenizer that a folder lacks: tokens work, text is an error that names the folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def _refuse(self) -> UserError:
        return UserError(
            Problem(f"no {TOKENIZER}", where=self._folder, path="model.tokenizer", hint="name a folder that has one")
        )

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Always an error."""
        raise self._refuse()

    def encode_completion(self, text: str) -> list[int]:
        """Always an error."""
        raise self._refuse()

    def decode(self, tokens: Sequence[int]) -> str:
        """Always an error."""
        raise self._refuse()

    def render(self, messages: Sequence[Message]) -> str:
        """Always an error."""
        raise self._refuse()
