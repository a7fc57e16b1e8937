"""Time limits hold from the main thread, a worker thread and an event loop, and never cost the next item."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dare_core.types import Prompt, Verdict, VerdictStatus
from dare_eval.config import MathSection
from dare_eval.math_reward import MathReward
from dare_eval.verifier_pool import VerifierPool

TOWER = r"\boxed{9^{9^{9^{9}}}}"
THIRD = r"so it is \boxed{\frac{1}{3}}"


@pytest.fixture(scope="module")
def math() -> Iterator[MathReward]:
    reward = MathReward(MathSection())
    yield reward
    reward.close()


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module with functions for a pool, importable in its workers."""
    folder = tmp_path_factory.mktemp("targets")
    (folder / "pool_targets.py").write_text(
        textwrap.dedent(
            """
            import os, time

            def work(item):
                print("printed by a library")
                if "sleep" in item:
                    time.sleep(item["sleep"])
                if "exit" in item:
                    os._exit(item["exit"])
                if "allocate" in item:
                    return {"size": len(bytearray(item["allocate"]))}
                if "raise" in item:
                    raise KeyError(item["raise"])
                return {"pid": os.getpid(), "text": item.get("text")}
            """
        )
    )
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.fixture
def pool(targets: None) -> Iterator[VerifierPool]:
    pool = VerifierPool("pool_targets:work", workers=1, memory_mb=1024)
    yield pool
    pool.close()


def verdict(reward: MathReward, response: str, reference: str = "1/3") -> Verdict:
    [found] = reward.judge([Prompt("one", 0, text="q", reference=reference)], [response])
    return found


def from_a_thread(reward: MathReward, response: str) -> Verdict:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(verdict, reward, response).result()


def from_an_event_loop(reward: MathReward, response: str) -> Verdict:
    async def ask() -> Verdict:
        return verdict(reward, response)

    return asyncio.run(ask())


@pytest.mark.parametrize("response", [THIRD, r"\boxed{\frac{2}{3}}", "no answer here", ""])
def test_verdict_is_the_same_from_main_thread_worker_thread_and_event_loop(math: MathReward, response: str) -> None:
    here = verdict(math, response)
    assert from_a_thread(math, response) == here
    assert from_an_event_loop(math, response) == here


def test_third_is_correct_from_a_worker_thread(math: MathReward) -> None:
    assert from_a_thread(math, THIRD).status is VerdictStatus.CORRECT


def test_power_tower_times_out_within_a_second_over_the_limit_and_the_next_item_is_served(math: MathReward) -> None:
    start = time.monotonic()
    found = from_a_thread(math, TOWER)
    assert time.monotonic() - start <= 6.0
    assert (found.status, found.score) == (VerdictStatus.TIMEOUT, 0.0)
    assert verdict(math, THIRD).status is VerdictStatus.CORRECT


def test_one_slow_item_costs_only_its_own_verdict() -> None:
    reward = MathReward(MathSection(time_limit=1.0))
    try:
        prompt = Prompt("one", 0, text="q", reference="1/3")
        found = reward.judge([prompt] * 7, [TOWER, THIRD, THIRD, TOWER, TOWER, THIRD, r"\boxed{0.5}"])
    finally:
        reward.close()
    expected = ["timeout", "correct", "correct", "timeout", "timeout", "correct", "wrong"]
    assert [verdict.status.value for verdict in found] == expected


def test_time_over_the_limit_is_a_timeout_and_frees_the_worker(pool: VerifierPool) -> None:
    start = time.monotonic()
    slow, after = pool.ask([{"sleep": 60}, {"text": "next"}], limit=0.5)
    assert time.monotonic() - start < 10
    assert slow.failure == "timeout"
    assert after.result is not None
    assert after.result["text"] == "next"


def test_memory_over_the_limit_is_a_timeout(pool: VerifierPool) -> None:
    big, after = pool.ask([{"allocate": 2 << 30}, {"allocate": 8}], limit=20)
    assert (big.failure, big.detail) == ("timeout", "memory limit reached")
    assert after.result == {"size": 8}


def test_exception_in_a_check_is_an_error_that_says_what_happened(pool: VerifierPool) -> None:
    [reply] = pool.ask([{"raise": "colour"}], limit=20)
    assert (reply.failure, reply.detail) == ("error", "KeyError: 'colour'")


def test_process_that_ends_is_an_error_and_is_replaced(pool: VerifierPool) -> None:
    ended, after = pool.ask([{"exit": 3}, {"text": "next"}], limit=20)
    assert (ended.failure, "exit code 3" in ended.detail) == ("error", True)
    assert after.failure is None


def test_process_killed_while_idle_costs_no_item(pool: VerifierPool) -> None:
    [first] = pool.ask([{}], limit=20)
    assert first.result is not None
    os.kill(first.result["pid"], signal.SIGKILL)
    time.sleep(0.2)
    [second] = pool.ask([{"text": "still here"}], limit=20)
    assert second.result is not None
    assert second.result["text"] == "still here"


def test_text_of_any_size_and_kind_passes_the_pipe_unchanged(pool: VerifierPool) -> None:
    texts = ["x" * 3_000_000, "\ud800 lone surrogate", "line\nbreak\x00\u2028", ""]
    replies = pool.ask([{"text": text} for text in texts], limit=20)
    assert [reply.result and reply.result["text"] for reply in replies] == texts


def test_many_threads_share_the_workers(pool: VerifierPool) -> None:
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(pool.ask, [{"text": str(index)}] * 3, 20) for index in range(40)]
        got = [[reply.result and reply.result["text"] for reply in future.result()] for future in asked]
    assert got == [[str(index)] * 3 for index in range(40)]


def test_target_that_cannot_be_imported_is_an_error_with_the_reason() -> None:
    pool = VerifierPool("no_such_module:work", workers=1)
    try:
        [reply] = pool.ask([{}], limit=5)
    finally:
        pool.close()
    assert reply.failure == "error"
    assert "no_such_module" in reply.detail


def test_closing_ends_items_in_flight_and_every_process(targets: None) -> None:
    pool = VerifierPool("pool_targets:work", workers=2)
    pids = [reply.result["pid"] for reply in pool.ask([{}] * 8, limit=20) if reply.result]
    threading.Timer(0.3, pool.close).start()
    start = time.monotonic()
    replies = pool.ask([{"sleep": 60}] * 4, limit=60)
    assert time.monotonic() - start < 10
    assert {reply.failure for reply in replies} == {"error"}
    assert [reply.failure for reply in pool.ask([{}], limit=5)] == ["error"]
    assert not [pid for pid in set(pids) if Path(f"/proc/{pid}").exists()]


def test_program_that_never_closes_its_reward_ends_and_leaves_no_process() -> None:
    script = """
        import json
        from dare_core.types import Prompt
        from dare_eval.config import MathSection
        from dare_eval.math_reward import MathReward

        reward = MathReward(MathSection(workers=1))
        [found] = reward.judge([Prompt("a", 0, text="q", reference="2")], ["2"])
        print(json.dumps([found.status, [worker._process.pid for worker in reward._pool._workers]]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    status, pids = json.loads(done.stdout)
    assert status == "correct"
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_uses_workers_of_its_own(pool: VerifierPool) -> None:
    [mine] = pool.ask([{}], limit=20)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        [reply] = pool.ask([{}], limit=20)
        os.write(writing, json.dumps(reply.result).encode())
        pool.close()
        os._exit(0)
    os.waitpid(child, 0)
    theirs = json.loads(os.read(reading, 1000))
    [again] = pool.ask([{}], limit=20)
    assert mine.result == again.result
    assert mine.result is not None
    assert theirs["pid"] != mine.result["pid"]
