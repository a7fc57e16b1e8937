"""Generated programs: each costs at most its limit, is counted as what it is, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dare_core.types import Prompt, VerdictStatus
from dare_eval.config import CodeSection
from dare_eval.programs.isolation import Isolation, candidates
from dare_eval.programs.runner import ProgramRunner, run_program
from dare_eval.scoring import code_text
from dare_eval.scoring.python_judges import build_python_judge

LIMIT = 3.0


@pytest.fixture(scope="module")
def runner():
    opened = ProgramRunner(time_limit=LIMIT, memory_mb=512, workers=2)
    yield opened
    opened.close()


HOSTILE = {
    "passes": ("x = 1\nassert x == 1", "passed"),
    "fails": ("assert 1 == 2, 'no'", "failed"),
    "raises": ("{}['k']", "failed"),
    "syntax": ("def f(:", "syntax_error"),
    "null bytes": ("x = 1\0", "syntax_error"),
    "exits": ("import sys\nsys.exit(0)", "failed"),
    "exits hard": ("import os\nos._exit(0)", "crashed"),
    "kills itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "crashed"),
    "claims to pass": (
        "import os\nprint('passed')\nfor fd in range(3, 64):\n  try: os.write(fd, b'passed\\n')\n"
        "  except OSError: pass\nos._exit(0)",
        "crashed",
    ),
    "sleeps": ("import time\ntime.sleep(60)", "timeout"),
    "spins": ("while True: pass", "timeout"),
    "ignores signals": ("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass", "timeout"),
    "eats memory": ("x = bytearray(1 << 33)", "failed"),
    "fills the disk": ("f = open('big', 'wb')\nwhile True: f.write(b'x' * (1 << 20))", "failed"),
    "prints without end": ("while True: print('x' * 1000)", "timeout"),
    "deletes its folder": ("import os, shutil\nshutil.rmtree(os.getcwd())", "passed"),
    "reads input": ("input()", "failed"),
    "error without text": ("class E(Exception):\n  def __str__(self): raise E\nraise E", "failed"),
}

#: what else is right, by the kernel's and the interpreter's version
ACCEPTED = {
    "fills the disk": {"crashed"},
    "null bytes": {"crashed", "failed"},
    "kills itself": {"passed"},  # the first process of a process namespace cannot
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_program_is_counted_as_what_it_is(runner, name):
    program, status = HOSTILE[name]
    start = time.monotonic()
    found = runner.run([program])[0]
    accepted = {status} | ACCEPTED.get(name, set())
    assert found.status in accepted, found
    assert time.monotonic() - start < LIMIT + 2
    assert len(found.output) <= 4096


def test_children_of_a_program_end_with_it(runner, tmp_path):
    mark = f"dare-orphan-{os.getpid()}"
    program = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time\\ntime.sleep(300)", "{mark}"], start_new_session=False)
"""
    assert runner.run([program])[0].status == "passed"
    time.sleep(0.3)
    alive = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    alive += [entry] if mark.encode() in file.read() else []
            except OSError:
                continue
    assert not alive


def test_forks_without_end_are_ended_by_the_clock(runner):
    program = "import os\nfor _ in range(200):\n  try:\n    if os.fork() == 0:\n      while True: pass\n  except OSError:\n    break\nwhile True: pass"  # noqa: E501
    start = time.monotonic()
    assert runner.run([program])[0].status in ("timeout", "failed")
    assert time.monotonic() - start < LIMIT + 5
    assert runner.run(["x = 1"])[0].status == "passed"


def test_a_program_has_at_most_so_many_processes(runner):
    if runner.isolation.network:
        pytest.skip(f"{runner.isolation.name} does not limit processes for every account")
    program = "import os, time\nfor _ in range(100):\n  if os.fork() == 0:\n    time.sleep(9)\n"
    found = runner.run([program])[0]
    assert "Resource temporarily unavailable" in found.detail


def test_a_program_sees_an_empty_environment_and_folder(runner, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "x")
    program = """
import os, sys
assert "SECRET_OF_THE_CALLER" not in os.environ
assert not [name for name in os.environ if name not in ("LC_CTYPE", "PWD", "SHLVL", "OLDPWD", "_")], os.environ
assert os.listdir() == ["program.py"], os.listdir()
assert sys.stdin is None or sys.stdin.read() == ""
"""
    found = runner.run([program])[0]
    assert found.status == "passed", found


def test_where_the_fence_has_no_network_connections_fail(runner):
    if runner.isolation.network:
        pytest.skip(f"{runner.isolation.name} leaves the network open on this system")
    program = "import socket\nsocket.create_connection(('127.0.0.1', 1), timeout=1)"
    found = runner.run([program])[0]
    assert found.status == "failed"
    assert "unreachable" in found.detail.lower() or "Network" in found.detail


def test_plain_processes_hold_the_same_limits():
    plain = next(one for one in reversed(candidates()) if one.account is None)
    for program, status in (HOSTILE["passes"], HOSTILE["exits hard"], HOSTILE["eats memory"]):
        assert run_program(program, plain, time_limit=LIMIT, memory_mb=512).status == status
    start = time.monotonic()
    assert run_program(HOSTILE["sleeps"][0], plain, time_limit=0.5, memory_mb=512).status == "timeout"
    assert time.monotonic() - start < 2


def test_a_child_that_cannot_be_started_is_a_fault_of_the_runner():
    broken = Isolation("none", True, "read", None, ("/no/such/command",))
    assert run_program("x = 1", broken, time_limit=1, memory_mb=512).status == "runner_fault"


def test_results_are_equal_from_main_thread_worker_thread_and_event_loop(runner):
    programs = [HOSTILE[name][0] for name in ("passes", "fails", "exits hard")]
    want = ["passed", "failed", "crashed"]

    def statuses():
        return [found.status for found in runner.run(programs)]

    async def inside_a_loop():
        return statuses()

    assert threading.current_thread() is threading.main_thread()
    assert statuses() == want
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(statuses).result() == want
    assert asyncio.run(inside_a_loop()) == want


STUB = 'from typing import List\n\n\ndef add(a: int, b: int) -> int:\n    """Sum."""\n'
TASK = Prompt(
    "h", 0, text="", meta={"stub": STUB, "tests": "def check(f):\n    assert f(1, 2) == 3", "entry_point": "add"}
)


@pytest.mark.parametrize(
    "response",
    [
        "    return a + b",
        "return a + b",
        "```python\ndef add(a, b):\n    return a + b\n```",
        "Here it is:\n```\n    return a + b\n```\nDone.",
        "```python\ndef add(a: int, b: List) -> int:\n    return a + b",
        "c = a + b\n    return c",
    ],
)
def test_functions_and_bodies_complete_a_stub(response):
    judge = build_python_judge("python-function", {}, CodeSection(time_limit=LIMIT))
    try:
        found = judge.judge([TASK], [response])[0]
        assert found.status is VerdictStatus.CORRECT, (found, code_text.program_text(response))
    finally:
        judge.close()


def test_statuses_become_verdicts():
    judge = build_python_judge("python-function", {}, CodeSection(time_limit=1.0))
    responses = ["    return 0", "    while True: pass", "", "    import os; os._exit(0)", "```python\ndef add(:\n```"]
    want = ["wrong", "timeout", "empty", "wrong", "wrong"]
    try:
        found = judge.judge([TASK] * len(responses), responses)
        assert [one.status.value for one in found] == want
        assert [one.detail.split(":")[0] for one in found] == ["failed", "timeout", "", "crashed", "syntax_error"]
    finally:
        judge.close()
