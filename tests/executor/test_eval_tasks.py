"""Tasks, judges and metrics: a scripted model gets exactly the scores it should."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from dare_core.api import UserError
from dare_core.interfaces import EvaluationContext, RolloutBackend
from dare_core.rollout.config import NativeSection
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import DecodingSettings, Prompt, Rollout
from dare_eval.config import TaskSection
from dare_eval.measures import mean, measures_of_responses, share, wilson
from dare_eval.scoring.judges import build_judge
from dare_eval.scoring.letters import chosen_letter
from dare_eval.task_evaluator import TaskEvaluator
from dare_eval.tasks import library
from dare_eval.tasks.rows import read_questions

DATA = Path(__file__).parents[2] / "examples" / "data"
OURS = [
    name
    for name in library.names()
    if not name.startswith("aime") and name != "sudoku-d1"  # their files are not in examples/data
]


class ScriptedBackend(RolloutBackend):
    """Answers what it was told, per prompt id and sample."""

    def __init__(self, answers: dict[str, Sequence[str]]) -> None:
        super().__init__(NativeSection(new_tokens=8, rows_per_batch=4), ToyMasked(8, 16))
        self.answers = answers
        self.asked: list[str] = []

    def generate(self, request):
        prompts = [prompt for prompt in request.prompts for _ in range(request.samples)]
        texts = [self.answers[prompt.id][row % request.samples] for row, prompt in enumerate(prompts)]
        self.asked += [prompt.id for prompt in request.prompts]
        rows = len(prompts)
        tokens = torch.zeros((rows, 2), dtype=torch.int64)
        response = torch.tensor([[False, True]]).expand(rows, 2)
        return Rollout(
            tokens=tokens,
            prompt=~response,
            response=response,
            completion=response,
            sample_id=torch.arange(rows),
            group=torch.tensor([prompt.index for prompt in prompts]),
            example_id=tuple(prompt.id for prompt in prompts),
            finish=("eos",) * rows,
            text=tuple(texts),
            policy_version=0,
            forwards=torch.ones(rows, dtype=torch.int64),
        )


def evaluated(task: str, answers: dict[str, Sequence[str]], **options):
    """The evaluation of a scripted model, and its evaluator."""
    evaluator = TaskEvaluator(TaskSection(task=task, data_folder=str(DATA), **options))
    evaluator.prepare((), ToyMasked(8, 16).text, None)
    backend = ScriptedBackend(answers)
    context = EvaluationContext(
        backend=backend,
        decoding=DecodingSettings(new_tokens=8, block_length=8, steps_per_block=8),
        reward=None,
        seed=0,
        step=0,
    )
    try:
        return evaluator.evaluate(context), evaluator
    finally:
        evaluator.close()


@pytest.mark.parametrize("name", OURS)
def test_our_tasks_read_the_example_data(name):
    task = library.find(name)
    found = read_questions(task, data_folder=str(DATA), limit=4)
    assert len(found.questions) == 4
    for question in found.questions:
        assert "{" not in (question.prompt.text or "") or "\\" in (question.prompt.text or "")
        assert question.prompt.reference or task.scoring.rule.startswith("python")


def scripted(name: str, limit: int, right: int, answer) -> dict[str, Sequence[str]]:
    questions = read_questions(library.find(name), data_folder=str(DATA), limit=limit).questions
    return {
        question.prompt.id: [answer(question.prompt) if number < right else "no idea"]
        for number, question in enumerate(questions)
    }


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("gsm8k", lambda prompt: f"so \\boxed{{{prompt.reference}}}"),
        ("gsm8k-5shot", lambda prompt: f" #### {prompt.reference}\n\nQuestion: what is 7?"),
        ("gsm8k-d1", lambda prompt: f"<answer>\\boxed{{{prompt.reference}}}</answer>"),
        ("math500", lambda prompt: f"\\boxed{{{prompt.reference}}}"),
        ("math500-d1", lambda prompt: f"\\boxed{{{prompt.reference}}}"),
        ("sudoku", lambda prompt: f"<answer>{prompt.reference}</answer>"),
        ("multiple-choice-generate", lambda prompt: f"It must be \\boxed{{{prompt.reference}}}."),
    ],
)
def test_a_scripted_model_gets_exactly_its_score(name, answer):
    result, _ = evaluated(name, scripted(name, 8, 5, answer), limit=8)
    assert result.metrics["accuracy"] == 5 / 8
    assert result.metrics["errors"] == 0
    assert result.protocol["items"] == 8


def test_countdown_takes_any_right_expression():
    rows = [json.loads(line) for line in (DATA / "countdown_test.jsonl").read_text().splitlines()[:6]]
    answers = {row["id"]: [f"\\boxed{{{row['metadata']['example_solution']}}}"] for row in rows}
    for name in ("countdown", "countdown-d1"):
        assert evaluated(name, answers, limit=6)[0].metrics["accuracy"] == 1


def test_code_tasks_run_the_reference_solutions():
    questions = read_questions(library.find("humaneval"), data_folder=str(DATA), limit=4).questions
    rows = {row["id"]: row for row in read("humaneval_test.jsonl.gz")}
    answers = {q.prompt.id: [rows[q.prompt.id]["metadata"]["canonical_solution"]] for q in questions}
    answers[questions[0].prompt.id] = ["    return None"]
    result, _ = evaluated("humaneval", answers, limit=4, allow_code_execution=True)
    assert result.metrics["accuracy"] == 0.75
    rows = {row["id"]: row for row in read("mbpp_test.jsonl.gz")}
    answers = {key: [f"```python\n{row['metadata']['reference_code']}\n```"] for key, row in list(rows.items())[:4]}
    assert evaluated("mbpp", answers, limit=4, allow_code_execution=True)[0].metrics["accuracy"] == 1


def read(name: str):
    from dare_eval.tasks.files import read_rows

    return [row for _, row in read_rows(DATA / name)]


def test_several_samples_give_pass_avg_and_majority():
    questions = read_questions(library.find("gsm8k"), data_folder=str(DATA), limit=2).questions
    right = [f"\\boxed{{{question.prompt.reference}}}" for question in questions]
    answers = {
        questions[0].prompt.id: [right[0], "\\boxed{-1}", right[0], "\\boxed{-2}"],
        questions[1].prompt.id: ["\\boxed{-1}", right[1], "\\boxed{-1}", "?"],
    }
    result, evaluator = evaluated("gsm8k", answers, limit=2, samples=4, temperature=1.0)
    metrics = result.metrics
    assert metrics["accuracy"] == metrics["pass@1"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert metrics["pass@2"] == pytest.approx(((1 - 1 / 6) + (1 - 3 / 6)) / 2)
    assert metrics["pass@4"] == 1
    assert metrics["maj@4"] == 0.5
    assert metrics["unparsed_rate"] == 1 / 8
    again = evaluator.judged_again(result.items)
    assert again == list(result.items)
    evaluator.close()


def test_equal_samples_are_refused():
    with pytest.raises(UserError, match="equal responses"):
        TaskEvaluator(TaskSection(task="gsm8k", samples=8))


def test_a_failing_judge_stops_the_evaluation_and_never_counts_as_wrong():
    items = [
        {
            "responses": [
                {"status": status, "score": score, "finish": "eos", "tokens": 3, "answer": "x", "parts": {}}
            ]
        }
        for status, score in (("correct", 1.0), ("wrong", 0.0), ("error", None))
    ]  # fmt: skip
    found = measures_of_responses(items, "accuracy")
    assert (found["accuracy"].value, found["accuracy"].count, found["errors"].value) == (0.5, 2, 1)


def test_wilson_matches_published_values():
    low, high = wilson(81, 263)  # Newcombe 1998, table I
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert wilson(0, 20)[0] == 0
    assert share([True] * 10).high == pytest.approx(1)


def test_bootstrap_interval_is_near_the_normal_one_and_repeatable():
    values = [float(i % 10) for i in range(400)]
    found = mean(values)
    half = 1.96 * torch.tensor(values).std().item() / 20
    assert found.low == pytest.approx(found.value - half, abs=0.05)
    assert found == mean(values)


def test_macro_accuracy_weighs_groups_equally():
    rows = read("mcq_tiny.jsonl")
    science = [row["id"] for row in rows if row["metadata"]["subject"] == rows[0]["metadata"]["subject"]]
    answers = {row["id"]: [row["answer"] if row["id"] in science else "no"] for row in rows[:12]}
    result, _ = evaluated("multiple-choice-generate", answers, limit=12)
    assert result.metrics["accuracy"] == 8 / 12
    assert result.metrics["macro_accuracy"] == 0.5


def test_shots_stand_before_the_question():
    task = library.find("gsm8k-5shot")
    one = read_questions(task, data_folder=str(DATA), limit=1, shots=2).questions[0].prompt
    assert one.text is not None
    assert one.text.count("Question:") == 3
    assert one.text.endswith("Answer:")
    assert (
        read_questions(task, data_folder=str(DATA), limit=1, shots=0).questions[0].prompt.text.count("Question:") == 1
    )


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("(c)", "C"),
        ("B. because", "B"),
        ("The answer is D.", "D"),
        ("Answer: **A**", "A"),
        ("I think \\boxed{C} fits", "C"),
        ("<answer>\nb\n</answer>", "B"),
        ("A long story about nothing", None),
        ("E", None),
        ("", None),
        ("Because of this, none", None),
    ],
)
def test_our_letter_rule_finds_marked_announced_and_leading_letters(response, letter):
    assert chosen_letter(response, 4) == letter


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scoring": {"rule": "gsm9k"}}, "did you mean gsm8k"),
        ({"scoring": {"rule": "gsm8k", "options": {"scor": "d1"}}}, "scoring.options.scor"),
        ({"promt": "x"}, "Extra inputs"),
        ({"meta": ["puzzle"]}, "not among them: puzzle"),
        ({"prompt": "{wrong}"}, "has no 'wrong'"),
    ],
)
def test_a_wrong_task_file_is_told_with_its_name(tmp_path, change, said):
    text = {
        "task": "mine",
        "version": 1,
        "summary": "x",
        "data": {"file": "gsm8k_test.jsonl", "fields": {"question": ["prompt"], "answer": ["answer"]}},
        "prompt": "{question}",
        "reference": "{answer}",
        "scoring": {"rule": "gsm8k"},
    } | change
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(text))
    with pytest.raises(UserError) as error:
        TaskEvaluator(TaskSection(task=str(path), data_folder=str(DATA), limit=2)).prepare(
            (), ToyMasked(8, 16).text, None
        )
    assert said in str(error.value)


def test_a_rule_reads_only_what_the_prompt_holds():
    judge = build_judge("d1-countdown", {})
    with pytest.raises(UserError, match="has no numbers"):
        judge.check([Prompt("x", 0, text="a")])
