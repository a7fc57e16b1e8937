"""What evaluation adds to the decoder's own time: ``python benchmarks/evaluation.py [--questions 24]``.

A random model in LLaDA's layout answers GSM8K by the same path as ``dare eval``: prompts, decoding, verdicts, items
written one by one, metrics. Everything outside the decoder counts as added. The target is under 3 %.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from dare_core.interfaces import EvaluationContext, RolloutRequest
from dare_core.loops.item_evaluation import evaluate_items
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.run.evaluations import EvaluationFolder
from dare_core.types import Address, Rollout
from dare_eval.config import TaskSection
from dare_eval.task_evaluator import TaskEvaluator
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import write_llada_checkpoint

DATA = Path(__file__).parents[1] / "examples" / "data"


class TimedBackend(NativeBackend):
    """Counts the seconds spent decoding."""

    seconds = 0.0

    def generate(self, request: RolloutRequest) -> Rollout:
        start = time.perf_counter()
        rollout = super().generate(request)
        self.seconds += time.perf_counter() - start
        return rollout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=24)
    questions = parser.parse_args().questions
    sizes = {"d_model": 256, "n_layers": 4, "mlp_hidden_size": 512, "max_sequence_length": 2048}
    with tempfile.TemporaryDirectory() as name:
        folder = write_llada_checkpoint(Path(name) / "model", **sizes)
        adapter = LladaAdapter.load(LladaSection(path=str(folder)), device=torch.device("cpu"), dtype=torch.float32)
        section = NativeSection(new_tokens=32, block_length=32, rows_per_batch=16)
        backend = TimedBackend(section, adapter)
        start = time.perf_counter()
        evaluator = TaskEvaluator(TaskSection(task="gsm8k", data_folder=str(DATA), limit=questions))
        evaluator.prepare((), adapter.text, None)
        context = EvaluationContext(
            backend=backend,
            decoding=section.settings(adapter.facts.layout),
            reward=None,
            seed=0,
            step=0,
            address=Address(0, "rollout", 0),
        )
        target = EvaluationFolder(Path(name) / "gsm8k")
        evaluate_items(evaluator, context, target, lambda progress: None, kind="task", weights={})
        evaluator.close()
        added = time.perf_counter() - start - backend.seconds
        share = added / backend.seconds
    print(f"{questions} questions, {backend.seconds:.1f} s decoding, {added:.2f} s added ({share:.1%})")


if __name__ == "__main__":
    main()
