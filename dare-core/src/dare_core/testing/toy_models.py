"""Toy models small enough to enumerate: lookup tables behind the adapter interface, in float64.

The logits at position i are ``bias[i] + sum over visible j of table[i, j, :, token_j]``, where positions count
valid tokens and the mask token has a column of its own. The mask token itself is never predicted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from dare_core.diffusion.layouts import block_index, positions
from dare_core.diffusion.seeds import batch_uniforms
from dare_core.errors import Problem, UserError
from dare_core.interfaces import ModelAdapter, TextCodec
from dare_core.testing.toy_config import ALPHABET, toy_facts
from dare_core.types import Address, AttentionLayout, Message, ModelFacts, Prompt, Scores, Views

if TYPE_CHECKING:
    from dare_core.spec.sections import ModelSection, PeftSection

# Finite, so that guidance on two such logits is not NaN; its probability is exactly 0 in float64.
_NEVER = -1e9


class ToyCodec(TextCodec):
    """One character per token; end, padding and mask have no text."""

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        self._characters = ALPHABET[: facts.vocab_size - 2]

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Ids of the text's characters; chat turns are joined without separators."""
        return self._ids(prompt.text if prompt.text is not None else self.render(prompt.messages), prompt.id)

    def encode_completion(self, text: str) -> list[int]:
        """Ids of the characters, then the end token."""
        return [*self._ids(text, "completion"), self._facts.eos_ids[0]]

    def encode_conversation(self, prompt: Prompt, answers: Sequence[int]) -> list[tuple[list[int], bool]]:
        """The turns' characters; answers end with the end token."""
        pieces: list[tuple[list[int], bool]] = []
        begin = 0
        for turn in answers:
            given = self._ids(self.render(prompt.messages[begin:turn]), prompt.id)
            pieces += [(given, False), (self.encode_completion(prompt.messages[turn].content), True)]
            begin = turn + 1
        return pieces

    def decode(self, tokens: Sequence[int]) -> str:
        """Characters of the tokens that have one."""
        return "".join(self._characters[t] for t in tokens if t < len(self._characters))

    def render(self, messages: Sequence[Message]) -> str:
        """The turns' contents, joined."""
        return "".join(message.content for message in messages)

    def _ids(self, text: str, name: str) -> list[int]:
        unknown = sorted(set(text) - set(self._characters))
        if unknown:
            raise UserError(Problem(f"{name!r} holds {''.join(unknown)!r}; the toy vocabulary is {self._characters!r}"))
        return [self._characters.index(character) for character in text]


class ToyModule(nn.Module):
    """The tables as parameters.

    Attributes:
        bias: [P,V-1] by position and predicted token.
        table: [P,P,V-1,V] by position, seen position, predicted token, seen token.
    """

    def __init__(self, bias: Tensor, table: Tensor) -> None:
        super().__init__()
        self.bias = nn.Parameter(bias.to(torch.float64).clone())
        self.table = nn.Parameter(table.to(torch.float64).clone())
        self.low_rank: nn.ParameterDict | None = None
        self.scale = 0.0
        self.use_low_rank = True
        self.value_head: nn.Parameter | None = None

    def effective_bias(self) -> Tensor:
        """[P,V-1] the bias with the attached adapter added."""
        if self.low_rank is None or not self.use_low_rank:
            return self.bias
        change: Tensor = self.scale * self.low_rank["a"] @ self.low_rank["b"]
        return self.bias + change

    def forward(self, position: Tensor, seen_position: Tensor, seen_token: Tensor, seen: Tensor) -> Tensor:
        """[M,V] logits of M positions.

        Args:
            position: [M] int64.
            seen_position: [M,L] int64 positions of the row.
            seen_token: [M,L] int64 what stands there, as that position sees it.
            seen: [M,L] bool which of it is visible.
        """
        context = self.table[position[:, None], seen_position, :, seen_token]
        logits = self.effective_bias()[position] + (context * seen[:, :, None]).sum(dim=1)
        return torch.cat([logits, logits.new_full((len(logits), 1), _NEVER)], dim=1)


class _Toy(ModelAdapter):
    """What both toys share; ``facts.layout`` tells them apart."""

    lora_targets: ClassVar[dict[str, Sequence[str] | str]] = {"default": ("bias",)}
    wrap_units: ClassVar[tuple[str, ...]] = ()
    module: ToyModule

    def __init__(self, facts: ModelFacts, bias: Tensor, table: Tensor) -> None:
        self.facts = facts
        self.text = ToyCodec(facts)
        self.module = ToyModule(bias, table)

    @classmethod
    def load_text(cls, section: ModelSection) -> ToyCodec:
        """The codec by the config alone."""
        return ToyCodec(section.facts(_config_of(section)))

    def token_logp(self, views: Views, *, entropy: bool = False) -> Scores:
        """See the interface. Block layouts score the noisy block against earlier blocks of ``views.targets``."""
        logits = self._logits(views.inputs, views.targets, views.valid, views.scored, views.layout, views.prompt_length)
        if self.module.value_head is not None:
            nothing = torch.zeros(views.inputs.shape, dtype=logits.dtype, device=logits.device)
            values = logits[:, :-1] @ self.module.value_head
            return Scores(logp=nothing, value=nothing.masked_scatter(views.scored, values))
        logps = (logits / views.temperature).log_softmax(dim=-1)
        chosen = logps.gather(1, views.targets[views.scored][:, None])[:, 0]
        blank = torch.zeros(views.inputs.shape, dtype=logps.dtype, device=logps.device)
        spread = -(logps.exp() * logps).sum(dim=-1) if entropy else None
        correct = logps.argmax(dim=-1) == views.targets[views.scored]
        return Scores(
            logp=blank.masked_scatter(views.scored, chosen),
            entropy=None if spread is None else blank.masked_scatter(views.scored, spread),
            correct=None if spread is None else views.scored.masked_scatter(views.scored, correct),
        )

    def logits(
        self,
        tokens: Tensor,
        valid: Tensor,
        where: Tensor,
        *,
        layout: AttentionLayout,
        prompt_length: Tensor,
        condition: Tensor | None = None,
    ) -> Tensor:
        """See the interface."""
        return self._logits(tokens, tokens, valid, where, layout, prompt_length)

    def _logits(
        self, noisy: Tensor, clean: Tensor, valid: Tensor, where: Tensor, layout: AttentionLayout, prompt: Tensor
    ) -> Tensor:
        if layout.kind != self.facts.layout.kind:
            raise ValueError(f"{self.facts.kind} attends by {self.facts.layout.kind!r} layouts, not {layout.kind!r}")
        position, blocks = positions(valid), block_index(valid, prompt, layout)
        if bool((valid.sum(dim=1) > self.facts.max_positions).any()):
            raise ValueError(f"a row is longer than the {self.facts.max_positions} positions of the toy")
        row, column = where.nonzero(as_tuple=True)
        own, seen_blocks = blocks[row, column][:, None], blocks[row]
        tokens = torch.where(seen_blocks == own, noisy[row], clean[row])
        seen = (seen_blocks >= 0) & (seen_blocks <= own)
        logits: Tensor = self.module(position[row, column], position[row], tokens, seen)
        return logits

    def attach_peft(self, section: PeftSection) -> None:
        """Freeze the tables and add a low-rank matrix to the bias.

        Raises:
            UserError: an unknown target group, or files of another shape.
        """
        if section.targets != "default":
            raise UserError(Problem(f"unknown target group {section.targets!r}; a toy has 'default'", "peft.targets"))
        rows, columns = self.module.bias.shape
        start = _normal(Address(0, "toy-low-rank"), (rows, section.r))
        matrices = {"a": start, "b": torch.zeros(section.r, columns, dtype=torch.float64)}
        if section.adapter is not None:
            matrices = _read(Path(section.adapter) / "adapter_model.safetensors", matrices)
        for parameter in self.module.parameters():
            parameter.requires_grad_(False)
        self.module.low_rank = nn.ParameterDict({name: nn.Parameter(value) for name, value in matrices.items()})
        self.module.scale = section.alpha / section.r

    def attach_value_head(self) -> None:
        """Values are a weighted sum of the logits; the weights start at zero."""
        self.module.value_head = nn.Parameter(torch.zeros(self.facts.vocab_size - 1, dtype=torch.float64))

    @contextmanager
    def base_only(self) -> Iterator[None]:
        """Leave the low-rank matrix out while open."""
        before, self.module.use_low_rank = self.module.use_low_rank, False
        try:
            yield
        finally:
            self.module.use_low_rank = before

    def published(self) -> Iterator[tuple[str, Tensor]]:
        """``bias``, with the low-rank matrix added, and ``table``."""
        yield "bias", self.module.effective_bias().detach()
        yield "table", self.module.table.detach()

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors with keys ``bias`` and ``table``."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in self.published()}, folder / "model.safetensors")
        if self.module.value_head is not None:
            save_file({"value_head.weight": self.module.value_head.detach()[None]}, folder / "value_head.safetensors")
        (folder / "config.json").write_text(json.dumps(self._config()), encoding="utf-8")

    def save_adapter(self, folder: Path) -> None:
        """adapter_model.safetensors with keys ``a`` and ``b``."""
        from safetensors.torch import save_file

        if self.module.low_rank is None:
            raise UserError("no adapter is attached, so there is none to save")
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: value.detach() for name, value in self.module.low_rank.items()},
            folder / "adapter_model.safetensors",
        )

    def describe(self) -> dict[str, Any]:
        """Kind, dtype and size."""
        count = sum(parameter.numel() for parameter in self.module.parameters())
        return {"kind": self.facts.kind, "dtype": "float64", "parameters": count}

    def _config(self) -> dict[str, Any]:
        sizes = {"vocab_size": self.facts.vocab_size, "max_positions": self.facts.max_positions}
        block = self.facts.layout.block_length
        return {"model_type": self.facts.kind, **sizes, **({} if block is None else {"block_length": block})}


class ToyMasked(_Toy):
    """Every position sees the whole row. Facts: mask id ``V - 1``, end and padding id ``V - 2``.

    Args:
        vocab_size: V, at least 3.
        max_positions: longest row.
        seed: of the tables.
        strength: how much the context moves the logits; 0 = none.
    """

    def __init__(self, vocab_size: int = 8, max_positions: int = 16, seed: int = 0, *, strength: float = 2.0) -> None:
        tables = toy_tables(vocab_size, max_positions, seed, strength)
        super().__init__(toy_facts("toy-masked", vocab_size, max_positions, None), *tables)

    @classmethod
    def from_tables(cls, bias: Tensor, table: Tensor, *, eos_id: int | None = None) -> ToyMasked:
        """A toy with given tables, ``bias`` [P,V-1] and ``table`` [P,P,V-1,V]; ids as usual unless given."""
        toy = cls(bias.shape[1] + 1, bias.shape[0])
        _fill(toy, bias, table, eos_id)
        return toy

    @classmethod
    def load(cls, section: ModelSection, *, device: torch.device, dtype: torch.dtype, seed: int = 0) -> ToyMasked:
        """From a folder that :meth:`save` wrote, or fresh by ``section.config``; always float64."""
        config = _config_of(section)
        toy = cls(config["vocab_size"], config["max_positions"], config.get("seed", seed))
        _load(toy, section, device)
        return toy


class ToyBlock(_Toy):
    """Every position sees its own and earlier blocks; as :class:`ToyMasked` otherwise."""

    def __init__(
        self,
        vocab_size: int = 8,
        max_positions: int = 16,
        seed: int = 0,
        *,
        block_length: int = 4,
        strength: float = 2.0,
    ) -> None:
        tables = toy_tables(vocab_size, max_positions, seed, strength)
        super().__init__(toy_facts("toy-block", vocab_size, max_positions, block_length), *tables)

    @classmethod
    def from_tables(cls, bias: Tensor, table: Tensor, *, block_length: int, eos_id: int | None = None) -> ToyBlock:
        """A toy with given tables, ``bias`` [P,V-1] and ``table`` [P,P,V-1,V]; ids as usual unless given."""
        toy = cls(bias.shape[1] + 1, bias.shape[0], block_length=block_length)
        _fill(toy, bias, table, eos_id)
        return toy

    @classmethod
    def load(cls, section: ModelSection, *, device: torch.device, dtype: torch.dtype, seed: int = 0) -> ToyBlock:
        """From a folder that :meth:`save` wrote, or fresh by ``section.config``; always float64."""
        config = _config_of(section)
        sizes = (config["vocab_size"], config["max_positions"], config.get("seed", seed))
        toy = cls(*sizes, block_length=config["block_length"])
        _load(toy, section, device)
        return toy


def toy_tables(vocab_size: int, max_positions: int, seed: int, strength: float) -> tuple[Tensor, Tensor]:
    """Random ``bias`` [P,V-1] and ``table`` [P,P,V-1,V]; each row's context has about the spread ``strength``."""
    if vocab_size < 3:
        raise ValueError(f"a toy needs at least 3 tokens (one character, end, mask), not {vocab_size}")
    if vocab_size - 2 > len(ALPHABET):
        raise ValueError(f"a toy has at most {len(ALPHABET) + 2} tokens, not {vocab_size}")
    outputs = vocab_size - 1
    bias = _normal(Address(seed, "toy-bias"), (max_positions, outputs))
    table = _normal(Address(seed, "toy-table"), (max_positions, max_positions, outputs, vocab_size))
    return bias, table * (strength / math.sqrt(max_positions))


def _normal(address: Address, shape: tuple[int, ...]) -> Tensor:
    uniform = batch_uniforms(address, math.prod(shape)).reshape(shape)
    return math.sqrt(2.0) * torch.erfinv(2 * uniform - 1)


def _fill(toy: _Toy, bias: Tensor, table: Tensor, eos_id: int | None) -> None:
    with torch.no_grad():
        toy.module.bias.copy_(bias)
        toy.module.table.copy_(table)
    if eos_id is not None:
        toy.facts = replace(toy.facts, eos_ids=(eos_id,), pad_id=eos_id)


def _config_of(section: ModelSection) -> Mapping[str, Any]:
    if section.path is None:
        return section.config or {}
    path = Path(section.path) / "config.json"
    if not path.is_file():
        raise UserError(Problem(f"no config.json in {section.path}", path="model.path"))
    config: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


def _load(toy: _Toy, section: ModelSection, device: torch.device) -> None:
    if section.path is not None:
        wanted = {"bias": toy.module.bias.detach(), "table": toy.module.table.detach()}
        _fill(toy, **_read(Path(section.path) / "model.safetensors", wanted), eos_id=None)
    toy.module.to(device)


def _read(path: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(Problem(f"no such file: {path}"))
    found = load_file(path)
    for name, tensor in wanted.items():
        if name not in found or found[name].shape != tensor.shape:
            got = tuple(found[name].shape) if name in found else "nothing"
            raise UserError(Problem(f"{path}: tensor {name!r} must have shape {tuple(tensor.shape)}, found {got}"))
    return {name: found[name] for name in wanted}
