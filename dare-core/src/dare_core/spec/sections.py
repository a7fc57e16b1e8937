"""The spec's sections as far as core owns them; plugins subclass the bases for their kinds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from glob import iglob
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from dare_core.api import SectionConfig
from dare_core.errors import Problem, UserError
from dare_core.types.decoding import DecodingSettings, EosRule, Schedule, SelectionRule
from dare_core.types.model import AttentionLayout, ModelFacts

TrainedTurns = Literal["last", "all", "marked", "one"]
Share = Annotated[float, Field(ge=0, le=1)]


class RunSection(SectionConfig):
    """Where a run goes, how long it lasts and what it keeps."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Folder name of the run below `folder`.")
    folder: str = Field("runs", description="Parent folder of runs.")
    seed: int = Field(0, ge=0, description="Seed of every random draw of the run.")
    steps: PositiveInt = Field(description="Training steps: rollouts in RL, optimizer steps otherwise.")
    save_every: PositiveInt = Field(100, description="Steps between checkpoints; one is always saved at the end.")
    keep_checkpoints: PositiveInt = Field(2, description="Newest checkpoints kept; the best one is kept besides.")
    keep_best: str | None = Field(None, description="Metric whose best checkpoint is kept, e.g. `eval/reward`.")
    stop_when_flat: PositiveInt | None = Field(
        None, description="Stop after this many steps in which no group had differing rewards."
    )
    stop_below: Mapping[str, float] = Field(
        default_factory=dict,
        description="Stop when a metric falls below its bound (collapse), e.g. {eval/reward: 0.05}.",
    )
    max_error_share: Share = Field(
        0.2, description="Stop when the reward itself failed (status `error`) on more than this share of a step's rows."
    )
    save_samples: bool = Field(True, description="Keep prompts, responses and verdicts of every step in samples/.")


class ModelSection(SectionConfig):
    """Base of model sections. Exactly one of `path` and `config` is given."""

    path: str | None = Field(None, description="Published model folder; never written to.")
    config: Mapping[str, Any] | None = Field(None, description="Published config keys of a fresh model.")
    init: Literal["random"] | None = Field(None, description="`random` starts the model of `config` afresh.")
    tokenizer: str | None = Field(None, description="Tokenizer folder, if not the model's own.")
    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        "auto", description="Weight dtype; `auto` = bfloat16 on a GPU that has it, else float32."
    )
    device: str = Field("auto", description="`auto`, `cpu`, `cuda`, `cuda:1`, ...")
    attention: Literal["auto", "sdpa", "flex", "flash"] = Field(
        "auto",
        description="Attention implementation; `auto` = `sdpa`, which runs everywhere; `flex` trains on a GPU only, "
        "`flash` needs one and half precision.",
    )
    quantise: Literal["nf4", "fp4", "int8"] | None = Field(
        None,
        description="Keep the frozen base in few bits below trained adapters, through bitsandbytes; needs an NVIDIA "
        "GPU and 'peft'. The output head, embeddings, norms and stacked experts keep `dtype`.",
    )
    mask_id: int | None = Field(None, ge=0, description="Mask token id, if the published config lacks it.")
    eos_ids: tuple[int, ...] | None = Field(None, description="Ids that end a response, if not the published ones.")
    pad_id: int | None = Field(None, ge=0, description="Padding id, if not the published one.")

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        if (self.path is None) == (self.config is None):
            raise ValueError("give either 'path' (a published folder) or 'config' with 'init: random'")
        if (self.config is not None) != (self.init is not None):
            raise ValueError("'config' and 'init: random' belong together")
        if self.config is not None and self.tokenizer is None:
            raise ValueError("a fresh model needs 'tokenizer', a folder with tokenizer files")
        return self

    @abstractmethod
    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        """Facts of the checkpoint whose parsed config.json is ``published``; this section's ids win.

        Raises:
            ValueError: a needed key is missing or contradictory; the message names key and remedy.
        """


class MessageTemplate(SectionConfig):
    """One chat turn over row fields."""

    role: str = Field(description="system, user or assistant.")
    content: str = Field(description="Text with {field} places.")


class DataSection(SectionConfig):
    """Base of data sections: which rows, and how they become prompts."""

    path: str = Field(description="File or folder, relative to the working directory.")
    prompt: str | tuple[MessageTemplate, ...] | None = Field(
        None, description="Plain text or chat messages with {field} places; or name a `messages` field."
    )
    messages: str | None = Field(None, description="Field holding a list of {role, content} turns.")
    trained_turns: TrainedTurns | None = Field(
        None,
        description="Makes demonstrations of conversations in `messages`: learn the `last` turn, which is the "
        "assistant's; `all` of the assistant's; those `marked` by `turn_mark`; or `one`, drawn at each step.",
    )
    turn_mark: str = Field("train", description="Key of a turn that says whether `marked` learns it: true or false.")
    completion: str | None = Field(None, description="Answer template, for demonstrations, e.g. '{answer}'.")
    chosen: str | None = Field(None, description="Preferred answer template, for pairs.")
    rejected: str | None = Field(None, description="Other answer template, for pairs.")
    reference: str | None = Field(None, description="Reference answer template, for rewards.")
    id: str = Field("id", description="Field with the row's id; rows without it are named by position.")
    meta: tuple[str, ...] = Field((), description="Fields that rewards may read, dotted for nested ones.")
    limit: PositiveInt | None = Field(None, description="Use only the first rows.")
    shuffle: bool = Field(True, description="New order each epoch, from the run's seed; false keeps file order.")
    group_by_length: PositiveInt | None = Field(
        None,
        description="Batches of similar length: rows of so many batches are sorted by length and cut into batches "
        "again, which come in a drawn order. Changes the order of rows, not what they are; null = off.",
    )
    max_prompt_tokens: PositiveInt | None = Field(None, description="Longest prompt allowed.")
    max_tokens: PositiveInt | None = Field(None, description="Longest prompt + answer allowed.")
    on_long_row: Literal["refuse", "drop"] = Field(
        "refuse", description="Rows over the limits: error, or drop and count."
    )
    on_bad_row: Literal["refuse", "drop"] = Field("refuse", description="Malformed rows: error, or drop and count.")

    @model_validator(mode="after")
    def _prompt_and_answers(self) -> DataSection:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either 'prompt' (a template) or 'messages' (a field name)")
        if (self.chosen is None) != (self.rejected is None):
            raise ValueError("'chosen' and 'rejected' belong together")
        if self.completion is not None and self.chosen is not None:
            raise ValueError("give 'completion' (demonstrations) or 'chosen' and 'rejected' (pairs), not both")
        if self.group_by_length is not None and not self.shuffle:
            raise ValueError(
                "'group_by_length' changes the order of rows, and 'shuffle: false' keeps that of the files"
            )
        if self.turn_mark != "train" and self.trained_turns != "marked":
            raise ValueError("'turn_mark' says which turns 'trained_turns: marked' learns")
        if self.trained_turns is not None:
            if self.messages is None:
                raise ValueError("'trained_turns' learns answers inside conversations; name their field in 'messages'")
            if self.completion is not None or self.chosen is not None:
                raise ValueError(
                    "'trained_turns' takes answers from 'messages': leave out completion, chosen, rejected"
                )
        return self

    @property
    def gives(self) -> frozenset[str]:
        """Capability words of what the rows become. Every row gives a prompt."""
        words = {"prompts"}
        if self.completion is not None or self.trained_turns is not None:
            words.add("demonstrations")
        if self.chosen is not None:
            words.add("pairs")
        return frozenset(words)

    def check_files(self) -> None:
        """Whether something is at `path` for the reader. Part of validation; reads no row.

        Raises:
            UserError: there is not, or not what the reader needs.
        """
        if not Path(self.path).exists() and next(iglob(self.path, recursive=True), None) is None:
            raise UserError(Problem(f"no such file or folder: {Path(self.path).absolute()}"))


class SelectionSection(SectionConfig):
    """Which masked positions commit at a step."""

    kind: str = Field("low-confidence", description="A rule of the selection table.")
    options: Mapping[str, Any] = Field(default_factory=dict, description="Options of that rule.")


class RolloutSection(SectionConfig):
    """Base of rollout sections: the decoding protocol."""

    new_tokens: PositiveInt = Field(description="Response positions decoded per row.")
    block_length: PositiveInt | None = Field(
        None,
        description="Positions denoised together; default: the block length of a block model, else all new tokens.",
    )
    steps_total: PositiveInt | None = Field(None, description="Denoising forwards over all blocks.")
    steps_per_block: PositiveInt | None = Field(
        None, description="Denoising forwards per block; default: one per token."
    )
    temperature: float = Field(0.0, ge=0, description="Sampling temperature; 0 = argmax.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling; 1 = off.")
    top_k: int = Field(0, ge=0, description="Most probable tokens kept; 0 = off.")
    min_p: float = Field(0.0, ge=0, lt=1, description="Share of the top probability below which tokens drop; 0 = off.")
    guidance: float = Field(0.0, ge=0, description="Classifier-free guidance scale; 0 = off.")
    eos_rule: EosRule = Field(EosRule.FILL, description="fill, stop, stop-early, suppress or suppress-confidence.")
    selection: SelectionSection = Field(default_factory=SelectionSection, description="Commit rule.")
    schedule: Schedule = Field(
        "even",
        description="Tokens per step: `even` = masked tokens over steps, the remainder first; `even-block` = as if the "
        "whole block were masked; `linear-time` = the whole part of n (1 - s/t), time from 1 to `schedule_eps`; "
        "`doubling` = 2^i tokens at step i of floor(log2) of the block length, the rest at the last; "
        "`anew` = every step decides the whole block again (uniform noise).",
    )
    schedule_eps: float = Field(1e-3, ge=0, lt=1, description="Where the `linear-time` schedule ends.")
    whole_blocks: bool = Field(
        False, description="Decode the last block to its end; the tokens beyond `new_tokens` are left out of the text."
    )
    rows_per_batch: PositiveInt = Field(64, description="Rows denoised together.")

    @model_validator(mode="after")
    def _lengths(self) -> RolloutSection:
        if self.steps_total is not None and self.steps_per_block is not None:
            raise ValueError("give steps_total or steps_per_block, not both")
        self.settings()
        return self

    def settings(self, layout: AttentionLayout | None = None) -> DecodingSettings:
        """The decoding protocol with block length and steps per block filled in.

        Args:
            layout: of the model, whose blocks are decoded unless the section says otherwise.

        Raises:
            ValueError: lengths or steps contradict each other.
        """
        block = self.block_length or (layout.block_length if layout is not None else None) or self.new_tokens
        blocks = -(-self.new_tokens // block)
        per_block = self.steps_per_block or block
        if self.steps_total is not None:
            if self.steps_total % blocks:
                raise ValueError(
                    f"steps_total {self.steps_total} is not divisible by the {blocks} blocks of {block} tokens"
                )
            per_block = self.steps_total // blocks
        return DecodingSettings(
            new_tokens=self.new_tokens,
            block_length=block,
            steps_per_block=per_block,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            guidance=self.guidance,
            eos_rule=self.eos_rule,
            selection=SelectionRule(self.selection.kind, dict(self.selection.options)),
            whole_blocks=self.whole_blocks,
            schedule=self.schedule,
            schedule_eps=self.schedule_eps,
        )

    def withheld(self) -> Mapping[str, tuple[str, str]]:
        """Capability words of the backend that these options take away: word -> (option, reason)."""
        return {}


class AlgorithmSection(SectionConfig):
    """Base of algorithm sections."""

    @property
    def needs(self) -> frozenset[str]:
        """Capability words that these options need beyond those of the component."""
        return frozenset()


class ValueModelSection(SectionConfig):
    """A value model: a second model of the policy's family with a value head, trained beside it."""

    lr: float | None = Field(None, gt=0, description="Peak learning rate of the value model; null = optim.lr.")
    path: str | None = Field(
        None, description="Folder that the value model starts from, with or without a value head; null = the policy's."
    )


class GroupAlgorithmSection(AlgorithmSection):
    """Base of algorithms that compare responses to one prompt."""

    group_size: int = Field(ge=2, description="Responses per prompt (G); a group of one has no baseline.")


class EngineSection(SectionConfig):
    """Base of engine sections."""

    update: Literal["auto", "direct", "two-pass"] = Field(
        "auto",
        description="How gradients are gathered: `direct` = one pass; `two-pass` = memory does not depend on the "
        "number of views; `auto` = direct where each part of a separable loss fits a micro-batch.",
    )
    reference_every: PositiveInt | None = Field(
        None, description="Optimizer steps between moves of the reference policy; null = it stays where the run began."
    )
    reference_mix: float = Field(
        1.0, gt=0, le=1, description="Share of the live weights in the reference policy after such a move."
    )


class EvaluatorSection(SectionConfig):
    """Base of the sections below `eval`."""

    name: str = Field(
        "eval",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Prefix of its metrics (`eval/reward`) and of its folders in eval/.",
    )
    every: PositiveInt = Field(100, description="Steps between evaluations; the last step is always evaluated.")
    at_start: bool = Field(False, description="Evaluate before the first step as well.")


class OptimSection(SectionConfig):
    """AdamW and its schedule. One optimizer step sees `batch_size` rows."""

    batch_size: PositiveInt = Field(
        description="Rows per optimizer step: responses in RL, demonstrations, or 2 per pair."
    )
    lr: float = Field(1e-5, gt=0, description="Peak learning rate.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="After warmup.")
    warmup_steps: int = Field(0, ge=0, description="Optimizer steps of linear warmup.")
    min_lr_ratio: Share = Field(0.0, description="Final learning rate as a share of `lr`.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW betas.")
    eps: float = Field(1e-8, gt=0, description="AdamW epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay, on matrices only.")
    clip_norm: float | None = Field(1.0, gt=0, description="Gradient norm bound; null = off.")


class PeftSection(SectionConfig):
    """Parameter-efficient training through peft."""

    kind: Literal["lora", "dora", "rslora"] = Field("lora", description="Adapter type.")
    r: PositiveInt = Field(32, description="Rank.")
    alpha: PositiveInt = Field(64, description="Scale: updates are multiplied by alpha / r (rslora: alpha / sqrt(r)).")
    dropout: float = Field(0.0, ge=0, lt=1, description="Adapter dropout; must be 0 where an update needs two passes.")
    targets: str | tuple[str, ...] = Field(
        "default", description="A named target group of the family, or module names."
    )
    adapter: str | None = Field(None, description="Folder of an adapter to continue from, in peft's format.")
