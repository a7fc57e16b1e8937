"""MDPO on a toy: rewards of guesses, the choice of steps, and what must hold whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.policy_objectives import drifted, loss_inputs_of
from tests.executor.toy_runs import TOYS, metrics_of, online_spec, write_spec
from tests.executor.toy_training import toy_rows
from tests.made_inputs import plan_context

from dare_algos_grpo.config import MdpoSection, SnapshotsSection
from dare_algos_grpo.estimators.snapshots import StepGuesses
from dare_algos_grpo.mdpo import Mdpo, StepTable, step_key
from dare_core.errors import UserError
from dare_core.interfaces import Objective, PlanContext, Reward, RolloutRequest
from dare_core.loops.prefixes import with_prefix_scores
from dare_core.objectives.steps import most_important, step_values
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import Address, DecodingSettings, Progress, Prompt, Rollout, Verdict, VerdictStatus

PROMPTS = [Prompt(id="p", index=0, text="ab"), Prompt(id="q", index=1, text="bcd")]


class CountA(Reward):
    """The share of 'a'; fails on texts that hold 'f'. Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def judge(self, prompts, responses):
        self.asked += [(prompt.id, text) for prompt, text in zip(prompts, responses, strict=True)]
        return [
            Verdict(None, VerdictStatus.ERROR) if "f" in text else Verdict(text.count("a") / 6, VerdictStatus.WRONG)
            for text in responses
        ]


@pytest.fixture
def adapter() -> ToyMasked:
    return ToyMasked(8, 12, seed=5)


def sampled(adapter: ToyMasked, *, steps: int = 3) -> Rollout:
    settings = DecodingSettings(new_tokens=6, block_length=6, steps_per_block=steps, temperature=0.8)
    request = RolloutRequest(
        prompts=PROMPTS, samples=3, settings=settings, address=Address(3, "rollout", 0), snapshots=True
    )
    return NativeBackend(NativeSection(new_tokens=6), adapter).generate(request)


def repeated(rollout: Rollout) -> list[Prompt]:
    return [PROMPTS[group] for group in rollout.group.tolist()]


def made_verdicts(rollout: Rollout, *, failed: int | None = None) -> list[Verdict]:
    """Verdicts whose guesses' rewards differ between rows and steps."""
    verdicts = []
    for row, count in enumerate(rollout.forwards.tolist()):
        scores = [((row * 7 + step * 3) % 5) / 4 for step in range(count)]
        if row == failed:
            scores[0] = float("nan")
        verdicts.append(Verdict(scores[-1], VerdictStatus.WRONG, prefix_scores=tuple(scores)))
    return verdicts


def objective_of(adapter, rollout, verdicts, *, old=None, reference=None, **options) -> Objective:
    algorithm, estimator = Mdpo(MdpoSection(**{"train_steps": 2, **options})), StepGuesses(SnapshotsSection())
    advantages = algorithm.advantages(rollout, verdicts)
    context = PlanContext(
        facts=adapter.facts,
        address=Address(7, "corruption", 0),
        layout=adapter.facts.layout,
        selection=algorithm.select(rollout, advantages),
        temperature=0.8,
    )
    views = estimator.plan(rollout, context)

    def estimate(policy):
        return None if policy is None else estimator.reduce(views, policy.token_logp(views), rollout).detached()

    return Objective(
        estimator=estimator,
        algorithm=algorithm,
        rows=rollout,
        views=views,
        progress=Progress(0, 1),
        advantages=advantages,
        old=estimate(old),
        reference=estimate(reference),
    )


def gradient_of(objective: Objective, adapter: ToyMasked):
    out = objective(adapter.token_logp(objective.views))
    return out, torch.autograd.grad(out.loss, list(adapter.module.parameters()), allow_unused=True)


def test_step_values_by_hand_for_rows_of_different_lengths():
    rewards = torch.tensor([[0.0, 1.0, 0.5], [1.0, 0.0, 9.0]])
    present = torch.tensor([[True, True, True], [True, True, False]])
    # Differences 0, 1, -0.5 and 1, -1; plus 1; plus the mean of later rewards 0.75, 0.5, own 0.5 and 0, own 0.
    expected = torch.tensor([[1.75, 2.5, 1.0], [2.0, 0.0, 0.0]])
    torch.testing.assert_close(step_values(rewards, present), expected)


def test_equally_important_steps_are_taken_in_their_order():
    assert most_important(torch.tensor([1.0, 2.0, 1.0, 2.0]), torch.tensor([3, 1, 0, 2]), 3).tolist() == [1, 2, 0]


def test_every_guess_is_judged_once_and_the_last_one_is_the_answer(adapter):
    rollout, reward = sampled(adapter), CountA()
    verdicts = reward.judge(repeated(rollout), rollout.text)
    final = list(reward.asked)
    scored = with_prefix_scores(reward, adapter.text, adapter.facts, repeated(rollout), rollout, verdicts)
    guessed = reward.asked[len(final) :]
    assert len(set(guessed)) == len(guessed)
    assert not set(guessed) & set(final)
    for row, verdict in enumerate(scored):
        assert len(verdict.prefix_scores) == int(rollout.forwards[row])
        last = verdict.prefix_scores[-1]
        assert last == verdict.score if verdict.score is not None else last != last


def test_a_guess_is_the_canvas_filled_with_proposals_up_to_its_end_token(adapter):
    rollout = sampled(adapter)
    seen = {}

    class Remember(CountA):
        def judge(self, prompts, responses):
            seen.update(dict.fromkeys(responses))
            return super().judge(prompts, responses)

    verdicts = [Verdict(0.0, VerdictStatus.WRONG)] * len(rollout)
    with_prefix_scores(Remember(), adapter.text, adapter.facts, repeated(rollout), rollout, verdicts)
    snapshots, end = rollout.trace.snapshots, adapter.facts.eos_ids[0]
    for row, guess in zip(snapshots.row.tolist(), snapshots.predicted, strict=True):
        tokens = guess[rollout.response[row]].tolist()
        text = adapter.text.decode(tokens[: tokens.index(end)] if end in tokens else tokens)
        assert text in seen or text == rollout.text[row]


def test_snapshot_views_score_the_decoders_own_choices(adapter):
    rollout = sampled(adapter)
    context = PlanContext(facts=adapter.facts, address=Address(7, "corruption", 0), layout=adapter.facts.layout)
    estimator = StepGuesses(SnapshotsSection(temperature=1.0))
    views = estimator.plan(rollout, context)
    assert len(views) == int(rollout.forwards.sum())
    value = estimator.reduce(views, adapter.token_logp(views), rollout).value
    committed = rollout.trace.commit_step[views.row] == views.draw[:, None]
    torch.testing.assert_close(value[committed], rollout.logp[views.row][committed], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(views.weight[committed], rollout.logp[views.row][committed].exp())


def test_guesses_are_scored_at_the_sampling_temperature_unless_told(adapter):
    rollout, context = sampled(adapter), replace(plan_context(7), facts=adapter.facts, temperature=0.8)
    assert StepGuesses(SnapshotsSection()).plan(rollout, context).temperature == 0.8
    assert StepGuesses(SnapshotsSection(temperature=1.0)).plan(rollout, context).temperature == 1.0


def test_rows_without_snapshots_are_refused(adapter):
    with pytest.raises(UserError, match="states of single denoising forwards"):
        StepGuesses(SnapshotsSection()).plan(toy_rows(), plan_context(7))


def test_verdicts_without_scores_of_guesses_are_refused(adapter):
    rollout = sampled(adapter)
    with pytest.raises(ValueError, match="3 recorded forwards and 0 scores"):
        Mdpo(MdpoSection()).advantages(rollout, [Verdict(1.0, VerdictStatus.CORRECT)] * len(rollout))


@pytest.mark.parametrize("select_per", ["group", "batch"])
def test_the_steps_with_the_largest_advantages_are_trained(adapter, select_per):
    rollout = sampled(adapter, steps=6)
    objective = objective_of(adapter, rollout, made_verdicts(rollout), select_per=select_per, train_steps=2)
    snapshots, size = rollout.trace.snapshots, objective.advantages.value.abs()
    groups = rollout.group[snapshots.row]
    for group in (0, 1):
        members = groups == group if select_per == "group" else groups >= 0
        total = torch.zeros(6).index_add(0, snapshots.step[members], size[members])
        mine = rollout.group[objective.views.row] == group
        assert set(objective.views.draw[mine].tolist()) == set(total.topk(2).indices.tolist())


def test_lambda_times_hidden_positions_is_the_length_and_shown_ones_have_no_gradient(adapter):
    rollout = sampled(adapter)
    objective = objective_of(adapter, rollout, made_verdicts(rollout), count_eps=0.0)
    views = objective.views
    algorithm = objective.algorithm
    scores = adapter.token_logp(views).leaves()
    inputs = loss_inputs_of(objective, scores)
    length = rollout.response.sum(dim=1)[views.row]
    torch.testing.assert_close(algorithm.length_scale(inputs) * views.scored.sum(dim=1), length.float())
    objective(scores).loss.backward()
    assert (scores.logp.grad[~views.scored] == 0).all()
    assert (scores.logp.grad != 0).any()


def test_equal_rewards_give_no_gradient_without_kl(adapter):
    rollout = sampled(adapter)
    flat = [Verdict(0.3, VerdictStatus.WRONG, prefix_scores=(0.3,) * int(n)) for n in rollout.forwards]
    out, found = gradient_of(objective_of(adapter, rollout, flat, kl_weight=0.0), adapter)
    assert float(out.loss.detach()) == 0.0
    assert all(torch.equal(g, torch.zeros_like(g)) for g in found)


def test_the_first_update_has_ratio_one_and_no_kl(adapter):
    rollout = sampled(adapter)
    out, _ = gradient_of(objective_of(adapter, rollout, made_verdicts(rollout), reference=adapter), adapter)
    assert out.metrics["ratio"].value == 1.0
    assert out.metrics["kl"].value == 0.0


def test_a_row_with_a_guess_that_was_not_judged_leaves_the_batch(adapter):
    rollout = sampled(adapter)
    policies = {"old": drifted(adapter, 0.3), "reference": drifted(adapter, -0.2)}
    # Which steps are chosen depends on the group's advantages, so all are trained here.
    whole = objective_of(adapter, rollout, made_verdicts(rollout, failed=1), **policies, train_steps=99)
    rows = torch.tensor([0, 2, 3, 4, 5])
    mine = torch.isin(whole.views.row, rows)
    assert not whole.advantages.usable[rollout.trace.snapshots.row == 1].any()
    scores = adapter.token_logp(whole.views).leaves()
    whole(scores).loss.backward()
    assert (scores.logp.grad[~mine] == 0).all()
    assert (scores.logp.grad[mine] != 0).any()


def test_a_table_finds_the_snapshot_of_a_row_and_step(adapter):
    snapshots = sampled(adapter).trace.snapshots
    table = StepTable.of(snapshots, 6)
    assert torch.equal(table.find(snapshots.row, snapshots.step), torch.arange(len(snapshots.row)))
    assert step_key(torch.tensor([9, 9, 4]), torch.tensor([0, 1, 1])).tolist() == [2, 3, 1]


def test_a_run_trains_on_rewards_of_guesses(tmp_path):
    with installed(tmp_path / "site", TOYS):
        spec = online_spec(algorithm={"kind": "mdpo", "group_size": 4, "train_steps": 2}, run__steps=3)
        write_spec(tmp_path, spec)
        result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0, result.stderr
    metrics = metrics_of(tmp_path / "runs/toy")
    assert all("advantage/guess_reward_mean" in line for line in metrics)
    assert metrics[-1]["optim/updates"] == 1


def test_a_block_model_is_refused_before_loading(tmp_path):
    with installed(tmp_path / "site", TOYS):
        spec = online_spec(algorithm={"kind": "mdpo", "group_size": 4}, model__kind="toy-block")
        spec["model"]["config"]["block_length"] = 3
        write_spec(tmp_path, spec)
        result = run_dare_here("validate", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert "'masked'" in result.stderr
