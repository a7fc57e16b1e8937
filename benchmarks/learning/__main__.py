"""Held-out curves of all algorithms on two small tasks from one fine-tuned start each.

Every run is an ordinary ``dare run`` of the specs beside this file: ``<task>-sft.yaml`` makes the start (seed 0's is
the one that others start from), ``<task>-rl.yaml`` with ``algorithms/<kind>.yaml`` on top learns from rewards, and
``<task>-pairs.yaml`` from pairs of the start's own responses. Finished runs are kept and interrupted ones resumed, so
the same command goes on; ``--table`` only prints what there is. One thread each: ``OMP_NUM_THREADS=1``, and as many
processes as cores, given different ``--algorithms``, once ``--algorithms sft`` has made the starts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from benchmarks.learning.pairs import write_pairs
from benchmarks.learning.rows import write_rows
from benchmarks.learning.runs import ALGORITHMS, PAIRED, RUNS, TASKS, Run
from benchmarks.learning.tables import print_tables

from dare_core.cli.main import main as dare


def complete(run: Run) -> None:
    """Bring the run to its end, and first what it starts from.

    Raises:
        SystemExit: ``dare`` ended with an error, which it has shown.
    """
    if run.status == "finished":
        return
    if run.algorithm != "sft":
        complete(Run(run.task, "sft", 0))
    if run.algorithm in PAIRED:
        write_pairs(RUNS, run.task)
    code = dare(["resume", str(run.folder)] if run.status else ["run", *run.arguments])
    if code:
        raise SystemExit(code)


def runs(tasks: Sequence[str], algorithms: Sequence[str], seeds: Sequence[int]) -> Iterator[Run]:
    """Seed by seed, so that all algorithms have one before any has two."""
    for seed in seeds:
        for task in tasks:
            for algorithm in algorithms:
                yield Run(task, algorithm, seed)


def main() -> None:
    """Complete the runs that are asked for, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="+", default=[], metavar="PATH=VALUE", help="values set on top, for trials")
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    write_rows(RUNS / "data")
    wanted = [
        Run(run.task, run.algorithm, run.seed, tuple(given.set))
        for run in runs(given.task, given.algorithms, given.seeds)
    ]
    if not given.table:
        for run in wanted:
            complete(run)
    print_tables(wanted)


if __name__ == "__main__":
    main()
