"""Whether the files and folders that a spec names are there. Paths are relative to the working directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dare_core.components import Slot
from dare_core.errors import Problem, UserError
from dare_core.spec.draft import Draft
from dare_core.spec.options import is_folder
from dare_core.spec.sections import AlgorithmSection, DataSection, ModelSection, ValueModelSection
from dare_core.spec.selection import read_config

#: what tokenizers of published folders consist of, at least one of them
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "tokenizer.model")
_MODEL_FOLDER = "name a folder with config.json and safetensors weights"


def files_missing(draft: Draft) -> Iterator[Problem]:
    """Missing model, value model, tokenizer, adapter and data files."""
    model = draft.choices.get(Slot.MODEL)
    if model is not None and isinstance(model.config, ModelSection):
        yield from _model_files(model.config, draft)
    algorithm = draft.choices.get(Slot.ALGORITHM)
    if algorithm is not None and isinstance(algorithm.config, AlgorithmSection):
        yield from _value_model_files(algorithm.config, draft)
    if draft.peft is not None and draft.peft.adapter is not None:
        reason = _folder_with(draft.peft.adapter, ("adapter_config.json",))
        if reason:
            yield Problem(reason, "peft.adapter", draft.place("peft.adapter"))
    for path, config in draft.configs(Slot.DATA):
        if isinstance(config, DataSection):
            yield from _data_files(config, f"{path}.path", draft)


def _data_files(config: DataSection, path: str, draft: Draft) -> Iterator[Problem]:
    try:
        config.check_files()
    except UserError as error:
        for problem in error.problems:
            yield replace(problem, path=path, where=draft.place(path))
    except (OSError, ValueError) as error:
        yield Problem(f"cannot be looked at: {error}", path, draft.place(path))


def _model_files(config: ModelSection, draft: Draft) -> Iterator[Problem]:
    place = draft.place("model.path")
    if config.path is not None:
        reason = _no_model(config.path)
        if reason is not None:
            yield Problem(reason, "model.path", place, _MODEL_FOLDER)
        elif config.tokenizer is None and (reason := _folder_with(config.path, _TOKENIZER_FILES)):
            yield Problem(reason, "model.path", place, "name a tokenizer folder by 'model.tokenizer'")
    if config.tokenizer is not None:
        reason = _folder_with(config.tokenizer, _TOKENIZER_FILES)
        if reason:
            yield Problem(reason, "model.tokenizer", draft.place("model.tokenizer"))


def _value_model_files(config: AlgorithmSection, draft: Draft) -> Iterator[Problem]:
    for name, value in config:
        if isinstance(value, ValueModelSection) and value.path is not None:
            option = f"algorithm.{name}.path"
            reason = _no_model(value.path)
            if reason is not None:
                yield Problem(reason, option, draft.place(option), _MODEL_FOLDER)


def _no_model(folder: str) -> str | None:
    """Why ``folder`` is no model folder."""
    _, reason = read_config(Path(folder))
    if reason is None and not any(Path(folder).glob("*.safetensors")):
        return f"{folder} has no weights: no *.safetensors file"
    return reason


def _folder_with(folder: str, names: tuple[str, ...]) -> str | None:
    """Why ``folder`` is not a folder that has one of ``names``."""
    if not is_folder(folder):
        return f"no such folder: {Path(folder).absolute()}"
    if not any((Path(folder) / name).is_file() for name in names):
        return f"{folder} has none of {', '.join(names)}"
    return None
