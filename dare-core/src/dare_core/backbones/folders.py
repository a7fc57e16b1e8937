"""Published model folders: which of their files are read, and which are copied when a model is saved.

Python files in a folder are never run, read or copied; keys such as ``auto_map`` that point to them are
kept in the saved config.json, as published.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare_core.errors import Problem, UserError

CONFIG, GENERATION = "config.json", "generation_config.json"
#: everything a tokenizer may consist of
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        UserError: the file is missing, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(Problem("no such file", where=str(path))) from error
    except (ValueError, OSError) as error:
        raise UserError(Problem(f"not a readable JSON file ({error})", where=str(path))) from error
    if not isinstance(content, dict):
        raise UserError(Problem(f"must hold a JSON object, not {type(content).__name__}", where=str(path)))
    return content


def prepare_target(folder: Path, source: Path | None) -> None:
    """Make ``folder`` to save into.

    Raises:
        UserError: it is the folder that the model was read from.
    """
    if source is not None and folder.resolve() == source.resolve():
        raise UserError(
            Problem("cannot save into the folder that the model was read from", where=str(folder), hint="name another")
        )
    folder.mkdir(parents=True, exist_ok=True)


def copy_files(source: Path, target: Path, names: tuple[str, ...]) -> None:
    """Copy those of ``names`` that ``source`` has, byte for byte."""
    if source.resolve() == target.resolve():
        return
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def write_config(target: Path, published: Mapping[str, Any]) -> None:
    """The config.json of a model that was not read from a folder."""
    (target / CONFIG).write_text(json.dumps(dict(published), indent=2) + "\n", encoding="utf-8")
