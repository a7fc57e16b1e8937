"""Watching a decoder, talking to a model, and measuring decoders: one decoder, seen from several sides."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import torch
from tests.executor.families import FAMILIES
from tests.executor.toy_runs import TOYS, online_spec, write_spec

from dare_core.cli.denoising import MASK, LiveView, wrapped
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed
from dare_core.types import DenoisingStep


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny LLaDA, prompts, and a spec."""
    place = tmp_path_factory.mktemp("here")
    family = FAMILIES[0]
    family.write(place / "model", **family.spread)
    (place / "rows.jsonl").write_text("".join(f'{{"q": "{word}", "a": "x"}}\n' for word in ("one", "two", "three")))
    (place / "spec.yaml").write_text(
        "dare: 1\nrun: {name: r, steps: 1}\nmodel: {path: model}\n"
        "data: {kind: jsonl, path: rows.jsonl, prompt: '{q}', reference: '{a}'}\n"
        "reward: {kind: match}\nalgorithm: {kind: d1, group_size: 2}\noptim: {batch_size: 2}\n"
        "rollout: {new_tokens: 8, block_length: 4, steps_total: 8, temperature: 0.9}\n"
    )
    return place


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(tokens: list[int], decided: list[bool], changed: list[bool], forward: int = 0) -> DenoisingStep:
    return DenoisingStep(
        row=torch.tensor([0]),
        forward=torch.tensor([forward]),
        tokens=torch.tensor([tokens]),
        response=torch.tensor([[False, True, True, True]]),
        decided=torch.tensor([decided]),
        changed=torch.tensor([changed]),
        probability=torch.tensor([[0.0, 0.99, 0.01, 0.0]]) * torch.tensor([decided]),
        finished=torch.tensor([False]),
    )


def letters(tokens):
    return "".join(chr(96 + token) for token in tokens)


BEFORE = step([9, 1, 0, 0], [False, True, False, False], [False, True, False, False])
AFTER = step([9, 1, 2, 0], [False, True, True, False], [False, False, True, False], 1)


def test_piped_denoising_is_a_plain_line_per_forward():
    piped = io.StringIO()
    view = LiveView(letters, ["p"], piped)
    view(BEFORE)
    view(AFTER)
    assert piped.getvalue() == (f"p  forward 1, 1 committed: a{MASK}{MASK}\np  forward 2, 1 committed: ab{MASK}\n")


def test_a_terminal_shows_confidence_as_colour_and_redraws(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    view = LiveView(letters, ["p"], terminal)
    view(BEFORE)
    view(AFTER)
    colours = re.findall(r"38;5;(\d+)m(\w)", terminal.getvalue())
    assert colours == [("46", "a"), ("46", "a"), ("196", "b")]
    assert "\x1b[1F\x1b[J" in terminal.getvalue()


def test_without_colour_the_cells_stay(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    LiveView(letters, ["p"], terminal)(BEFORE)
    assert "38;5" not in terminal.getvalue()
    assert f"a{MASK}{MASK}" in terminal.getvalue()


def test_colour_takes_no_room_in_a_line():
    assert wrapped("\x1b[38;5;46mab\x1b[0mcd", 3) == ["\x1b[38;5;46mab\x1b[0mc", "d"]


def lines(result):
    assert result.code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_watching_and_tracing_change_no_token_and_tell_every_one(folder: Path):
    arguments = ("generate", "--spec", "spec.yaml", "--samples", "2", "hello")
    plain = lines(run_dare_here(*arguments, folder=folder))
    watched = run_dare_here(*arguments, "--watch", "--trace", "trace.jsonl", folder=folder)
    assert lines(watched) == plain
    assert "forward 1" in watched.stderr
    assert MASK in watched.stderr
    trace = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    for row in plain:
        written = {
            commit["position"]: commit["token_id"]
            for line in trace
            if line["sample"] == row["sample"]
            for commit in line["commits"]
        }
        kept = row["token_ids"]
        assert len(written) == 8
        assert [written[position] for position in range(len(kept))] == kept


def test_chat_answers_as_generate_does_and_remembers_turns(folder: Path, monkeypatch):
    def talk(*typed: str) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in typed)))
        said = run_dare_here("chat", "--spec", "spec.yaml", "--set", "rollout.temperature=0.0001", folder=folder)
        assert said.code == 0, said.stderr
        return said.stdout

    arguments = ("generate", "--spec", "spec.yaml", "--set", "rollout.temperature=0.0001", "hello")
    answer = lines(run_dare_here(*arguments, folder=folder))[0]["response"] + "\n"
    assert talk("hello") == answer
    assert talk("hello", "/quit", "never read") == answer
    remembering = talk("hello", "hello")
    assert remembering.startswith(answer)
    assert talk("hello", "/reset", "hello") == answer * 2 != remembering


def test_bench_compares_decoders_with_the_reference(folder: Path):
    decoders = ("--decoder", "fastdllm,cache=dual", "--decoder", "fastdllm,cache=none,selection.kind=low-confidence")
    result = run_dare_here("bench", "rollout", "spec.yaml", *decoders, "--rows", "2", "--json", folder=folder)
    assert result.code == 0, result.stderr
    found = json.loads(result.stdout)["decoders"]
    assert list(found) == ["reference", "native", *decoders[1::2]]
    assert found["reference"]["agreement"] == found["native"]["agreement"] == 1.0
    assert found[decoders[3]]["agreement"] == 1.0
    assert (found[decoders[1]]["exactness"], found["native"]["exactness"]) == ("approximate", "exact")
    assert found["native"]["tokens"] == 16
    assert found["native"]["forwards"] == 16
    for one in found.values():
        assert one["tokens_per_second"] > 0
        assert one["peak_memory_bytes"] > 1e6
    table = run_dare_here("bench", "rollout", "spec.yaml", "--rows", "1", folder=folder)
    assert table.stdout.splitlines()[0].split()[:2] == ["decoder", "tokens/s"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench", "rollout", "spec.yaml", "--decoder", "fastdlm"), "did you mean"),
        (("bench", "rollout", "spec.yaml", "--decoder", "fastdllm,cache"), "write KIND,KEY=VALUE"),
        (("bench", "rollout", "spec.yaml", "--decoder", "fastdllm,cache=full"), "cache"),
        (("generate", "--model", "model", "--set", "rollout.new_tokens=0", "a"), "new_tokens"),
        (("generate", "--model", "model", "--set", "rollout.steps_per_block=200", "a"), "exceeds block_length"),
        (("generate", "--model", "model", "--set", "rollout.selection.kind=factr", "a"), "did you mean factor?"),
        (("generate", "--model", "model", "--set", "rollout.new_tokens=500", "a" * 50), "the model takes 512"),
        (("generate", "--model", "model", "--plain", ""), "is empty"),
        (("chat",), "give either --model"),
    ],
)
def test_bad_input_is_explained_before_weights_are_read(folder: Path, arguments, said, monkeypatch):
    import dare_core.loops.placement as placement

    monkeypatch.setattr(placement, "load_model", lambda *_: pytest.fail("weights were read"))
    result = run_dare_here(*arguments, folder=folder)
    assert result.code == 2, result.stderr
    assert said in result.stderr


def test_a_backend_that_the_model_cannot_serve_is_refused_before_weights_are_read(tmp_path: Path):
    with installed(tmp_path / "site", TOYS):
        write_spec(tmp_path, online_spec())
        result = run_dare_here("bench", "rollout", "spec.yaml", "--decoder", "fastdllm", folder=tmp_path)
    assert result.code == 2
    assert "needs 'kv-approx'" in result.stderr
