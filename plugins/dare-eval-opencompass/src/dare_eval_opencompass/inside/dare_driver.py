"""Runs OpenCompass's own tasks in its own environment: ``python dare_driver.py FOLDER``.

``FOLDER/request.json`` says which dataset configuration, how many rows, and the phase: ``build`` (configurations only),
``ask`` (inference with a model that writes questions down) or ``answer`` (inference with the answers, then
OpenCompass's evaluation). ``FOLDER/outcome.json`` is written last; a dataset that failed carries its error there, and
whoever reads it trusts that file and the result files, not the exit code.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    """Do what the request says."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    outcome: dict[str, Any] = {"opencompass": None, "datasets": [], "error": None}
    try:
        outcome["opencompass"] = version("opencompass")
        for benchmark in request["benchmarks"]:
            for dataset in _datasets(benchmark):
                outcome["datasets"].append({"benchmark": benchmark["name"], **_one(folder, request, dataset)})
    except Exception:
        outcome["error"] = traceback.format_exc()
    written = folder / "outcome.tmp"
    written.write_text(json.dumps(outcome, ensure_ascii=False, default=str), encoding="utf-8")
    os.replace(written, folder / "outcome.json")


def _datasets(benchmark: dict[str, Any]) -> list[Any]:
    """The benchmark's dataset configurations, with number of rows and repetitions as asked for."""
    from mmengine.config import ConfigDict

    if benchmark.get("multiple_choice"):
        from opencompass.datasets.custom import make_custom_dataset_config

        meta = {**benchmark["multiple_choice"], "data_type": "mcq", "infer_method": "gen"}
        found = [make_custom_dataset_config(meta)]
    else:
        module = importlib.import_module(f"opencompass.configs.datasets.{benchmark['config']}")
        lists = [
            value for name, value in vars(module).items() if name.endswith("_datasets") and isinstance(value, list)
        ]
        found = [dataset for one in lists for dataset in one]
    if not found:
        raise LookupError(f"{benchmark['config']} holds no list called ..._datasets")
    found = copy.deepcopy(found)
    for dataset in found:
        if benchmark.get("repeats"):
            dataset["n"] = benchmark["repeats"]
        if benchmark.get("limit"):
            dataset["reader_cfg"] = {**dataset["reader_cfg"], "test_range": f"[0:{benchmark['limit']}]"}
        if benchmark.get("boxed"):
            _score_boxed(dataset)
    return [ConfigDict(_named(dataset)) for dataset in found]


def _named(value: Any) -> Any:
    """Classes and functions by their dotted paths, as OpenCompass has them after reading a file: its hash of a prompt
    is over these."""
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(item) for item in value]
    if callable(value):
        return f"{value.__module__}.{value.__name__}"
    return value


def _score_boxed(dataset: dict[str, Any]) -> None:
    """Judge by OpenCompass's own string rule for boxed answers, where a configuration asks a second model to judge."""
    from opencompass.datasets import MATHEvaluator, math_postprocess_v2

    dataset["eval_cfg"] = {
        "evaluator": {"type": MATHEvaluator, "version": "v2"},
        "pred_postprocessor": {"type": math_postprocess_v2},
    }


def _one(folder: Path, request: dict[str, Any], dataset: Any) -> dict[str, Any]:
    from opencompass.utils import get_prompt_hash

    inferencer = dataset["infer_cfg"]["inferencer"]
    said = {
        "dataset": dataset["abbr"],
        "version": str(get_prompt_hash(copy.deepcopy(dataset)))[:6],
        "inferencer": _name(inferencer["type"]),
        "evaluator": _name(dataset["eval_cfg"]["evaluator"]["type"]),
        "repeats": dataset.get("n", 1),
        "max_out_len": inferencer.get("max_out_len"),
        "examples": _examples(dataset["infer_cfg"]),
        "error": None,
    }
    if request["phase"] == "build":
        return said
    try:
        if said["inferencer"] != "GenInferencer":
            raise TypeError(f"{said['inferencer']}: only datasets with GenInferencer can be run")
        _run(folder, request, dataset)
    except Exception:
        said["error"] = traceback.format_exc()
    return said


def _run(folder: Path, request: dict[str, Any], dataset: Any) -> None:
    from mmengine.config import ConfigDict
    from opencompass.tasks import OpenICLEvalTask, OpenICLInferTask

    model = {
        "type": "dare_bridge.BridgeModel",
        "abbr": "dare",
        "path": str(folder),
        "dataset": dataset["abbr"],
        "phase": request["phase"],
        "chat": request["chat"],
        "answer_turn": request["answer_turn"],
        "batch_size": 64,
        "max_out_len": None,
    }
    work = str(folder / request["phase"])
    config = {"models": [model], "datasets": [[dataset]], "work_dir": work}
    config["eval"] = {"runner": {"task": {"dump_details": True}}}
    OpenICLInferTask(ConfigDict(copy.deepcopy(config))).run()
    if request["phase"] == "answer":
        OpenICLEvalTask(ConfigDict(copy.deepcopy(config))).run()


def _examples(infer: Any) -> int:
    """Worked examples that a prompt shows: fixed rows, or answered turns before the question."""
    fixed = infer["retriever"].get("fix_id_list")
    if fixed is not None:
        return len(fixed)
    template = infer.get("prompt_template", {}).get("template", {})
    turns = template.get("round", []) if isinstance(template, dict) else []
    return max(0, sum(turn.get("role") == "HUMAN" for turn in turns if isinstance(turn, dict)) - 1)


def _name(kind: Any) -> str:
    return kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
