"""The run folder: everything a run leaves, in one place and one layout (docs/run-folder.md)."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import yaml

from dare_core.errors import Problem, UserError
from dare_core.run import checkpoint as checkpoints
from dare_core.run.atomic import finite, sync_folder, write_json, write_json_lines, write_text
from dare_core.run.checkpoint import Checkpoint
from dare_core.run.ledger import Ledger
from dare_core.run.lock import FolderLock
from dare_core.run.manifest import DistributionReport, build_manifest, changed_versions, resume_entry
from dare_core.run.metrics import metrics_line
from dare_core.spec.plan import RunPlan
from dare_core.spec.yaml_text import yaml_text

MANIFEST = "manifest.json"
METRICS = "metrics.jsonl"
LEDGER = "ledger.json"
STATE = "state.json"
INPUT = "spec/input.yaml"
RESOLVED = "spec/resolved.yaml"

Status = Literal["running", "finished", "interrupted", "failed"]
_SAMPLES = re.compile(r"step_(\d+)\.jsonl")
_EVALUATION = re.compile(r"step_(\d+)-.+")


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of the metric that ``run.keep_best`` names, and the step of its checkpoint."""

    metric: str
    value: float
    step: int


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is. A run that was killed still says ``running``; :class:`FolderLock` tells them apart."""

    status: Status = "running"
    step: int = 0
    message: str = ""
    best: Best | None = None


class RunFolder:
    """Reads and writes one run folder. A *step* is the number of training steps done: the first step's metrics
    are those of step 1; what is measured before training belongs to step 0.

    Use :meth:`create` for a new run and :meth:`open` for one that exists.
    """

    def __init__(self, path: Path, lock: FolderLock | None) -> None:
        self.path = path
        self._lock = lock
        self._last_step: int | None = None

    @classmethod
    def create(
        cls,
        plan: RunPlan,
        input_files: Sequence[Path],
        catalog_reports: Iterable[DistributionReport],
        *,
        sets: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> RunFolder:
        """Make ``<run.folder>/<run.name>`` and hold it for writing.

        Args:
            plan: the resolved run.
            input_files: the spec and its overlays, in order; kept as they are.
            catalog_reports: one load report per plugin distribution.
            sets: the ``--set`` values, in order.
            arguments: the command line, for the manifest.

        Raises:
            UserError: the folder exists; says how to resume it or to run beside it.
        """
        path = Path(plan.run.folder) / plan.run.name
        if path.exists():
            raise _exists(path, input_files)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            write_text(temporary / INPUT, _input_text(input_files, sets))
            write_text(temporary / RESOLVED, yaml_text(_plain(plan.resolved)))
            write_json(temporary / LEDGER, Ledger().to_json())
            write_json(temporary / STATE, asdict(RunState()))
            write_json(temporary / MANIFEST, build_manifest(plan, catalog_reports, arguments))
            try:
                os.rename(temporary, path)
            except OSError as error:
                raise _exists(path, input_files) from error
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(path.parent)
        return cls(path, FolderLock(path))

    @classmethod
    def open(cls, path: Path | str, *, write: bool = True) -> RunFolder:
        """Open a run folder, by default to go on with the run.

        Args:
            path: the folder.
            write: hold it for writing; False only reads, also while the run goes on.

        Raises:
            UserError: there is no run folder at ``path``, or another process writes it.
        """
        path = Path(path)
        if not path.is_dir():
            raise UserError(Problem("there is no such folder", where=str(path), hint=_known_runs(path)))
        missing = [name for name in (MANIFEST, RESOLVED, STATE) if not (path / name).is_file()]
        if missing:
            raise UserError(Problem(f"not a run folder: it has no {', '.join(missing)}", where=str(path)))
        return cls(path, FolderLock(path) if write else None)

    def close(self) -> None:
        """Let others write."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what the run is ------------------------------------------------------------------------------------

    def resolved(self) -> dict[str, Any]:
        """The resolved spec the run began with."""
        value: dict[str, Any] = yaml.safe_load((self.path / RESOLVED).read_text(encoding="utf-8"))
        return value

    def manifest(self) -> dict[str, Any]:
        """The manifest, resumes included."""
        return self._read_json(MANIFEST)

    def add_fingerprints(self, fingerprints: Mapping[str, str]) -> None:
        """Record hashes of what the run read, e.g. ``{"data": ..., "model": ...}``.

        Raises:
            UserError: the run began with other content under the same name, so resuming would mix two runs.
        """
        manifest = self.manifest()
        known = manifest["fingerprints"]
        problems = [
            Problem(
                f"the {name} changed since the run began (fingerprint {known[name][:12]}, now {value[:12]})",
                where=str(self.path),
                hint="restore it, or start a new run",
            )
            for name, value in fingerprints.items()
            if name in known and known[name] != value
        ]
        if problems:
            raise UserError(problems)
        self._write_json(MANIFEST, manifest | {"fingerprints": known | dict(fingerprints)})

    def record_model(self, described: Mapping[str, Any]) -> None:
        """Write what :meth:`dare_core.interfaces.ModelAdapter.describe` says into the manifest, as ``model``."""
        self._write_json(MANIFEST, self.manifest() | {"model": dict(described)})

    def record_resume(self, step: int, catalog_reports: Iterable[DistributionReport]) -> list[str]:
        """Add a resume to the manifest.

        Returns:
            What differs from the environment the run began in, one line each; to be shown, since the numbers may
            then differ from an uninterrupted run's.
        """
        manifest = self.manifest()
        entry = resume_entry(step, catalog_reports)
        self._write_json(MANIFEST, manifest | {"resumes": [*manifest["resumes"], entry]})
        return changed_versions(manifest)

    # -- how far it is --------------------------------------------------------------------------------------

    def state(self) -> RunState:
        """How far the run is."""
        value = self._read_json(STATE)
        best = value.pop("best")
        return RunState(**value, best=None if best is None else Best(**best))

    def set_state(self, status: Status, step: int, message: str = "", *, best: Best | None = None) -> None:
        """Write state.json; ``best`` None leaves the recorded best as it is. A new best is set once its checkpoint
        is complete, so that it never names one that a kill prevented."""
        state = RunState(status, step, message, best or self.state().best)
        self._write_json(STATE, asdict(state))

    def ledger(self) -> Ledger:
        """The ledger as last written."""
        return Ledger.from_json(self._read_json(LEDGER))

    def write_ledger(self, ledger: Ledger) -> None:
        """Write ledger.json."""
        self._write_json(LEDGER, ledger.to_json())

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a line to metrics.jsonl; numbers that are not finite are written as null.

        Raises:
            ValueError: ``step`` does not come after the last line's.
        """
        self._expect_writer()
        if self._last_step is None:
            self._keep_metrics(self.metrics())
        if self._last_step is not None and step <= self._last_step:
            raise ValueError(f"metrics of step {step} come after those of step {self._last_step}; rewind first")
        path = self.path / METRICS
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(metrics_line(step, metrics))
            file.flush()
            os.fsync(file.fileno())
        self._last_step = step

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl. A last line cut short by a kill is left out.

        Raises:
            UserError: another line is not JSON.
        """
        path = self.path / METRICS
        if not path.exists():
            return []
        *lines, unfinished = path.read_text(encoding="utf-8").split("\n")
        del unfinished
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise UserError(Problem(f"not a JSON object: {error.msg}", where=f"{path}:{number}")) from error
        return rows

    def write_samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Write ``samples/step_N.jsonl``: prompts, responses and verdicts of one step."""
        return self._write_lines(f"samples/step_{step}.jsonl", rows)

    def write_evaluation(
        self,
        step: int,
        name: str,
        *,
        protocol: Mapping[str, Any],
        items: Sequence[Mapping[str, Any]],
        result: Mapping[str, Any],
    ) -> Path:
        """Write ``eval/step_N-<name>/``: protocol.json, items.jsonl and, last, result.json. As in samples,
        numbers that are not finite are written as null."""
        folder = f"eval/step_{step}-{name}"
        (self.path / folder / "result.json").unlink(missing_ok=True)
        self._write_json(f"{folder}/protocol.json", finite(protocol))
        self._write_lines(f"{folder}/items.jsonl", items)
        self._write_json(f"{folder}/result.json", finite(result))
        return self.path / folder

    # -- checkpoints ----------------------------------------------------------------------------------------

    def checkpoint(self, step: int) -> AbstractContextManager[Path]:
        """A temporary folder to fill; it becomes ``checkpoints/step_N`` when the block ends without exception."""
        self._expect_writer()
        return checkpoints.writing(self.path / "checkpoints", step)

    def checkpoints(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first."""
        return checkpoints.complete_checkpoints(self.path / "checkpoints")

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest complete checkpoint, or None. See :func:`dare_core.run.checkpoint.verify` for its files."""
        return checkpoints.latest_complete(self.path / "checkpoints")

    def retain(self, newest: int) -> list[int]:
        """Delete checkpoints except the ``newest`` ones and the best one of state.json; returns deleted steps."""
        self._expect_writer()
        best = self.state().best
        return checkpoints.retain(self.path / "checkpoints", newest, best.step if best else None)

    def rewind(self, step: int) -> None:
        """Drop what was written after ``step`` (a checkpoint's), so that the resumed run writes it again: lines of
        metrics.jsonl, samples, evaluations, checkpoints, and a best value that came later. A resumed run's files
        then equal those of an uninterrupted one. The ledger is the caller's: it is restored from the checkpoint.

        Rewinding to 0, where no checkpoint is, begins again: what was measured before training goes too."""
        self._expect_writer()
        last_kept = step if step > 0 else -1
        self._keep_metrics([line for line in self.metrics() if line["step"] <= last_kept])
        for folder, pattern in (("samples", _SAMPLES), ("eval", _EVALUATION)):
            for path in (self.path / folder).glob("*"):
                match = pattern.fullmatch(path.name)
                if match and int(match[1]) > last_kept:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        checkpoints.drop_after(self.path / "checkpoints", step)
        state = self.state()
        best = state.best if state.best and state.best.step <= step else None
        self._write_json(STATE, asdict(replace(state, step=step, best=best)))

    # -- plumbing -------------------------------------------------------------------------------------------

    def _keep_metrics(self, lines: Sequence[Mapping[str, Any]]) -> None:
        if (self.path / METRICS).exists():
            write_json_lines(self.path / METRICS, lines)
        self._last_step = max((int(line["step"]) for line in lines), default=-1)

    def _expect_writer(self) -> None:
        if self._lock is None:
            raise ValueError(f"{self.path} is open for reading only")

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(Problem(f"cannot be read: {error}", where=str(path))) from error
        return value

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self._expect_writer()
        write_json(self.path / name, value)

    def _write_lines(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        self._expect_writer()
        write_json_lines(self.path / name, [finite(row) for row in rows])
        return self.path / name


def _exists(path: Path, input_files: Sequence[Path]) -> UserError:
    spec = " ".join(f"-f {file}" if place else str(file) for place, file in enumerate(input_files)) or "spec.yaml"
    beside = f"run beside it with 'dare run {spec} --set run.name={path.name}-2'"
    if (path / MANIFEST).is_file():
        return UserError(
            Problem(
                f"the run folder {path} exists",
                path="run.name",
                hint=f"go on with 'dare resume {path}', or {beside}",
            )
        )
    return UserError(Problem(f"{path} exists and is not a run folder", path="run.name", hint=beside))


def _known_runs(path: Path) -> str | None:
    names = sorted(manifest.parent.name for manifest in path.parent.glob(f"*/{MANIFEST}"))
    return f"{path.parent} holds {', '.join(names)}" if names else None


def _input_text(files: Sequence[Path], sets: Sequence[str]) -> str:
    documents = [f"# {file}\n{file.read_text(encoding='utf-8').rstrip()}\n" for file in files]
    if sets:
        documents.append("".join(f"# --set {line}\n" for line in sets))
    return "---\n".join(documents)


def _plain(value: Any) -> Any:
    """The value with mappings as dict, sequences as list and subclasses of str (enums) as str."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value
