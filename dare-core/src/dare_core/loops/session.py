"""A run's bookkeeping: steps, metrics, checkpoints, stop rules, interrupts. Loops call it; it computes nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from dare_core.errors import Problem, UserError
from dare_core.interfaces import Engine, Tracker
from dare_core.loops.evaluation import Evaluations
from dare_core.loops.interrupt import Interrupt
from dare_core.loops.outcome import Outcome
from dare_core.loops.progress import Report
from dare_core.loops.stopping import StopRules
from dare_core.run.checkpoint import VALUE_STATE
from dare_core.run.folder import Best, RunFolder
from dare_core.run.ledger import Ledger, Phase
from dare_core.spec.sections import RunSection
from dare_core.types import CheckpointSaved, RunFinished, RunStarted, StepFinished

SESSION = "session.json"
_log = logging.getLogger("dare")


@dataclass(kw_only=True)
class Session:
    """One process's share of a run, from its start or a checkpoint to its end.

    Attributes:
        section: the run section.
        folder: where everything is written; held for writing.
        engine: its state is saved, and its counters enter the ledger.
        evaluations: who evaluates when.
        notify: tells observers: (hook name, event).
        report: what a person sees.
        trackers: further receivers of metrics.
        ledger: what was spent.
        start: training steps done before this session.
        until: training steps after which to end, the run's own or fewer.
        closers: what to close at the end.
        value_engine: that of the value model, saved and counted likewise; or None.
    """

    section: RunSection
    folder: RunFolder
    engine: Engine
    evaluations: Evaluations
    notify: Callable[[str, object], None]
    report: Report
    trackers: Sequence[Tracker] = ()
    ledger: Ledger = field(default_factory=Ledger)
    start: int = 0
    until: int | None = None
    closers: Sequence[Callable[[], None]] = ()
    value_engine: Engine | None = None

    def __post_init__(self) -> None:
        self.step = self.start
        self._last = self.section.steps if self.until is None else min(self.until, self.section.steps)
        self._stops = StopRules(self.section)
        self._reason = ""
        self._interrupt = Interrupt()
        self._saved: int | None = self.start or None
        self._best = self.folder.state().best
        self._counted: Mapping[str, Any] = self._counters()
        self._open = ExitStack()

    # -- life ----------------------------------------------------------------------------------------

    def restore(self, checkpoint: Path) -> None:
        """Take over engine and session state of a checkpoint.

        Raises:
            UserError: its files are missing or do not fit this run.
        """
        self.engine.load(checkpoint / "trainer")
        if self.value_engine is not None:
            self.value_engine.load(checkpoint / "trainer" / VALUE_STATE)
        try:
            state = json.loads((checkpoint / "trainer" / SESSION).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            problem = Problem(f"cannot be read: {error}", where=str(checkpoint / "trainer" / SESSION))
            raise UserError(problem) from error
        self.step = self.start = self._saved = state["step"]
        self._stops.flat_steps = state["flat_steps"]
        self._best = self.folder.state().best
        self.ledger = Ledger.from_json(state["ledger"])
        self._counted = self._counters()

    def __enter__(self) -> Session:
        for close in (self.folder.close, self.report.close, *self.closers, *(t.close for t in self.trackers)):
            self._open.callback(close)
        self._open.enter_context(self._interrupt)
        self.folder.set_state("running", self.step)
        resumed = self.start if self.start else None
        self.notify("dare_run_started", RunStarted(self.folder.path, self.folder.manifest(), resumed))
        self.report.start(self.step, self.section.steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:
            if isinstance(error, KeyboardInterrupt):
                message = f"stopped at once; {self._how_to_go_on()}"
                self._end("interrupted", message)
                _log.warning(message)
            elif error is not None:
                self._end("failed", str(error).splitlines()[0] if str(error) else type(error).__name__)

    def outcome(self) -> Outcome:
        """How it ended; called when :meth:`steps` is exhausted."""
        message, early = self._reason, self.step < self.section.steps
        interrupted = early and not message
        if interrupted:
            message = self._how_to_go_on()
        status = self._end("interrupted" if interrupted else "finished", message)
        code = self._interrupt.exit_code if interrupted else 0
        return Outcome(status=status, step=self.step, folder=self.folder.path, message=message, exit_code=code)

    def _end(self, status: Any, message: str) -> Any:
        self.folder.write_ledger(self.ledger)
        self.folder.set_state(status, self.step, message)
        self.notify("dare_run_finished", RunFinished(self.folder.path, status, self.step, message))
        return status

    def _how_to_go_on(self) -> str:
        saved = f"step {self._saved} is saved" if self._saved else "nothing is saved yet"
        return f"{saved}; go on with 'dare resume {self.folder.path}'"

    # -- steps ---------------------------------------------------------------------------------------

    def steps(self) -> Iterator[int]:
        """Training steps to take, counted from 0; ends early on a stop rule or an interrupt, and saves at the end."""
        if self.step == 0 and self.evaluations.due(0):
            self._write(0, self._evaluate(0))
        while self.step < self._last and not self._reason and self._interrupt.signal is None:
            yield self.step
        if self._saved != self.step and self.step > 0:
            self._save()

    def timed(self, phase: Phase) -> AbstractContextManager[None]:
        """Enter the seconds spent inside into the ledger."""
        return self.ledger.timed(phase)

    def finish(self, step: int, metrics: Mapping[str, float], samples: Sequence[Mapping[str, Any]] = ()) -> None:
        """Record a training step: count, evaluate, write, save if due, and tell everyone."""
        self.step = step + 1
        self._count()
        values = dict(sorted({**metrics, **self._spent(), **self._evaluate(self.step)}.items()))
        if samples and self.section.save_samples:
            self.folder.write_samples(self.step, samples)
        self._reason = self._stops.reason(values) or ""
        self._write(self.step, values)
        best = self._better(values)
        if best is not None or self.step % self.section.save_every == 0:
            self._save(best)
        if self._reason:
            _log.warning("stopping after step %d: %s", self.step, self._reason)

    def _evaluate(self, step: int) -> Mapping[str, float]:
        with self.timed("eval"):
            return self.evaluations.run(step, self.folder)

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.folder.append_metrics(step, metrics)
        self.folder.write_ledger(self.ledger)
        self.folder.set_state("running", step)
        self.report.step(step, metrics)
        for tracker in self.trackers:
            tracker.log(step, metrics)
        self.notify("dare_step_finished", StepFinished(self.folder.path, step, metrics))

    def _counters(self) -> Mapping[str, Any]:
        """Of both engines together: work adds up, of memory the larger one is kept."""
        counters = self.engine.counters()
        if self.value_engine is None:
            return counters
        other = self.value_engine.counters()
        joined = {name: counters[name] + other[name] for name in counters if name != "peak_memory"}
        return {**joined, "peak_memory": max(counters["peak_memory"], other["peak_memory"])}

    def _count(self) -> None:
        counters = self._counters()
        spent = {
            name: counters[name] - self._counted[name] for name in ("forwards", "forward_tokens", "backward_tokens")
        }
        self.ledger.count(**spent, peak_memory=counters["peak_memory"])
        self._counted = counters

    def _spent(self) -> dict[str, float]:
        """Counters since the run began. No seconds: metrics of a resumed run equal those of an uninterrupted one."""
        names = ("forwards", "forward_tokens", "backward_tokens", "generated_tokens")
        return {f"spent/{name}": float(getattr(self.ledger, name)) for name in names}

    # -- checkpoints ---------------------------------------------------------------------------------

    def _better(self, metrics: Mapping[str, float]) -> Best | None:
        name = self.section.keep_best
        if name is None or name not in metrics or metrics[name] != metrics[name]:
            return None
        if self._best is not None and metrics[name] <= self._best.value:
            return None
        return Best(name, metrics[name], self.step)

    def _save(self, best: Best | None = None) -> None:
        with self.folder.checkpoint(self.step) as temporary:
            if self._adapters():
                self.engine.adapter.save_adapter(temporary / "adapter")
            else:
                self.engine.adapter.save(temporary / "model")
            self.engine.save(temporary / "trainer")
            if self.value_engine is not None:
                self.value_engine.save(temporary / "trainer" / VALUE_STATE)
            state = {"step": self.step, "flat_steps": self._stops.flat_steps, "ledger": self.ledger.to_json()}
            (temporary / "trainer" / SESSION).write_text(json.dumps(state, indent=2), encoding="utf-8")
        self._saved, self._best = self.step, best or self._best
        self.folder.set_state("running", self.step, best=best)
        self.folder.retain(self.section.keep_checkpoints)
        path = self.folder.path / "checkpoints" / f"step_{self.step}"
        self.notify("dare_checkpoint_saved", CheckpointSaved(self.folder.path, path, self.step))

    def _adapters(self) -> bool:
        return self.engine.inputs.peft is not None


def refuse_finished(step: int, total: int, folder: Path) -> None:
    """Raise unless there are steps left.

    Raises:
        UserError: the run is done; says so.
    """
    if step >= total:
        raise UserError(Problem(f"the run is finished: {step} of {total} steps are done", where=str(folder)))
