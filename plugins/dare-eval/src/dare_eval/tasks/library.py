"""Finding a task: one of ours by name, or a yaml file of the user's."""

from __future__ import annotations

import hashlib
import json
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dare_core.api import Problem, UserError
from dare_eval.tasks.description import TaskDescription


@cache
def names() -> tuple[str, ...]:
    """Tasks that come with this package, sorted."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml")))


def find(name: str) -> TaskDescription:
    """The task called ``name``, or described by the yaml file at that path.

    Raises:
        UserError: neither exists (near names), or the file is no task; carries every problem.
    """
    if name in names():
        return _parsed(_folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        try:
            return _parsed(path.read_text(encoding="utf-8"), name)
        except OSError as error:
            raise UserError(Problem(f"cannot be read: {error.strerror}", where=name)) from error
    near = get_close_matches(name, names(), n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    hint += f"tasks: {', '.join(names())}; or a path to a yaml file of yours"
    raise UserError(Problem(f"unknown task '{name}'", path="eval.task", hint=hint))


def fingerprint(task: TaskDescription) -> str:
    """Hash of everything a task says."""
    return hashlib.sha256(json.dumps(task.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def _folder() -> Any:
    return files("dare_eval").joinpath("tasks")


def _parsed(text: str, where: str) -> TaskDescription:
    try:
        data = yaml.safe_load(text)
        return TaskDescription.model_validate(data)
    except yaml.YAMLError as error:
        raise UserError(Problem(f"is not yaml: {error}", where=where)) from error
    except ValidationError as error:
        raise UserError(
            [
                Problem(found["msg"], path=".".join(map(str, found["loc"])) or None, where=where)
                for found in error.errors()
            ]
        ) from error
