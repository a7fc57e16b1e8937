"""One step of the denoising loop: score what is undecided, commit what the rule picks, see what has ended."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.diffusion.canvas import Canvas
from dare_core.diffusion.confidence import Ties
from dare_core.diffusion.draws import Places
from dare_core.diffusion.forwards import RowForwards
from dare_core.diffusion.proposal import Proposals, Proposer
from dare_core.diffusion.recording import Recorder
from dare_core.diffusion.rules import Rule
from dare_core.diffusion.schedules import commit_quota
from dare_core.diffusion.selection import edited, select
from dare_core.errors import NonFiniteError, PluginError
from dare_core.interfaces import ModelAdapter
from dare_core.types import AttentionLayout, DecodingSettings, DenoisingStep, EosRule, ModelFacts, Watch


@dataclass
class Loop:
    """The verbs of one step, on the active rows [R] of the canvas.

    Attributes:
        adapter: the model.
        settings: the protocol.
        rule: its selection rule, options applied.
        ties: form of confidences.
        layout: how rows attend.
        canvas: the rows.
        recorder: of snapshots and edits.
        cached: forwards of the rows against a key-value cache; None = every forward computes whole rows.
        watch: told of every forward.
    """

    adapter: ModelAdapter
    settings: DecodingSettings
    rule: Rule
    ties: Ties
    layout: AttentionLayout
    canvas: Canvas
    recorder: Recorder
    cached: RowForwards | None
    watch: Watch | None = None

    def step(self, active: Tensor, propose: Proposer) -> None:
        """One forward of the rows ``active`` [R]."""
        scored, logits = self.score(active)
        self.commit(active, scored, propose(logits, self.places(active, scored)))

    def score(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """Positions to score [R,L] (M in all) and their logits [M,V]."""
        canvas = self.canvas
        tokens, valid = canvas.tokens[active], canvas.valid(active)
        if self.layout.kind == "block":
            # Nothing that is scored sees a later block.
            valid &= canvas.column < (canvas.block_start(active) + canvas.block_length)[:, None]
        # Snapshots hold guesses of later blocks as well, where the model sees them.
        whole = self.recorder.takes_snapshots and self.layout.kind == "full"
        scored = canvas.in_response(active) if whole else canvas.in_block(active)
        if not self.rule.edits:
            scored = scored & (canvas.commit_step[active] < 0)
        if self.cached is not None:
            forced = self.cached.forced(active)
            if forced is not None:
                scored = forced.where(forced.any(dim=1, keepdim=True), scored)
            return scored, self.cached.logits(active, tokens, valid, scored)
        prompt_length = canvas.prompt_length[active]
        weight = self.settings.guidance
        if not weight:
            return scored, self._logits(tokens, valid, scored, prompt_length)
        in_prompt = canvas.column < prompt_length[:, None]
        blind = tokens.masked_fill(in_prompt, mask_id(self.adapter.facts))
        both = (torch.cat(pair) for pair in ((tokens, blind), (valid, valid), (scored, scored), (prompt_length,) * 2))
        seeing, unseeing = self._logits(*both).chunk(2)
        return scored, unseeing + (weight + 1) * (seeing - unseeing)

    def _logits(self, tokens: Tensor, valid: Tensor, scored: Tensor, prompt_length: Tensor) -> Tensor:
        return self.adapter.logits(tokens, valid, scored, layout=self.layout, prompt_length=prompt_length)

    def places(self, active: Tensor, scored: Tensor) -> Places:
        """Where the M scored positions stand."""
        at, column = scored.nonzero(as_tuple=True)
        rows = active[at]
        canvas = self.canvas
        return Places(rows, canvas.sample[rows], canvas.forwards[rows], column - canvas.prompt_length[rows])

    def commit(self, active: Tensor, scored: Tensor, proposals: Proposals) -> None:
        """Write the chosen proposals and move the rows on."""
        canvas, rule = self.canvas, self.rule
        block, forward, tokens = canvas.in_block(active), canvas.forwards[active], canvas.tokens[active]
        undecided = canvas.commit_step[active] < 0
        masked = block & undecided
        proposed = tokens.masked_scatter(scored, proposals.token)
        confidence = _spread(scored, proposals.confidence, -torch.inf)
        quota = commit_quota(self.settings, rule, block.sum(dim=1), masked.sum(dim=1), canvas.step[active])
        chosen = select(rule, self.ties)(confidence, masked, quota) & masked
        forced = None if self.cached is None else self.cached.forced(active)
        if forced is not None:
            chosen = forced.where(forced.any(dim=1, keepdim=True), chosen)
        self._check(active, proposals, scored, _idle(rule, masked, quota, chosen))
        rewritten = edited(rule, self.ties, confidence, block & ~masked & (proposed != tokens))
        self.recorder.forward(active, forward, tokens, scored & undecided, scored, proposals)
        self.recorder.edited(active, forward, tokens, proposed, rewritten)
        canvas.tokens[active] = proposed.where(chosen | rewritten, tokens)
        canvas.logp[active] = _spread(scored, proposals.logp, 0.0).where(chosen, canvas.logp[active])
        canvas.commit_step[active] = forward[:, None].where(chosen, canvas.commit_step[active])
        canvas.forwards[active] = forward + 1
        ended = self._ended(active, masked, chosen, rewritten)
        stopped = self._stopped(active, ended, block, chosen | rewritten)
        canvas.step[active] = (canvas.step[active] + 1) * ~ended
        canvas.block[active] += (ended | stopped).long()
        canvas.stopped[active] = stopped
        if self.watch is not None:
            self.watch(self._seen(active, forward, chosen | rewritten))

    def _seen(self, active: Tensor, forward: Tensor, changed: Tensor) -> DenoisingStep:
        canvas = self.canvas
        decided = canvas.commit_step[active] >= 0
        return DenoisingStep(
            row=active,
            forward=forward,
            tokens=canvas.tokens[active],
            response=canvas.in_response(active),
            decided=decided,
            changed=changed,
            probability=canvas.logp[active].exp() * decided,
            finished=canvas.finished(active),
        )

    def _ended(self, active: Tensor, masked: Tensor, chosen: Tensor, rewritten: Tensor) -> Tensor:
        """[R] bool rows whose block is done: no mask is left, and nothing is edited any more."""
        ended = ~(masked & ~chosen).any(dim=1)
        if self.rule.edits:
            had_masks = masked.any(dim=1)
            settled = self.canvas.settled[active] + (~had_masks).long()
            unchanged = ~had_masks & ~rewritten.any(dim=1)
            ended &= unchanged | (settled >= self.rule.max_post_steps)
            self.canvas.settled[active] = settled * ~ended
        return ended

    def _stopped(self, active: Tensor, ended: Tensor, block: Tensor, changed: Tensor) -> Tensor:
        """[R] bool rows that an end token stops here."""
        canvas, rule = self.canvas, self.settings.eos_rule
        if rule not in (EosRule.STOP, EosRule.STOP_EARLY):
            return torch.zeros_like(ended)
        tokens, response = canvas.tokens[active], canvas.in_response(active)
        decided = response & (canvas.commit_step[active] >= 0)
        ends = torch.isin(tokens, torch.tensor(self.adapter.facts.eos_ids, device=tokens.device)) & decided
        stopped = ended & (ends & block).any(dim=1)
        if rule is EosRule.STOP_EARLY:
            before_end = response & (ends.cumsum(dim=1) == 0)
            stopped |= (ends & changed).any(dim=1) & ~(before_end & ~decided).any(dim=1)
        return stopped

    def _check(self, active: Tensor, proposals: Proposals, scored: Tensor, idle: Tensor) -> None:
        # One look at the device for both: every look waits for it.
        bad = ~proposals.logp.isfinite()
        if not bool(bad.any() | idle.any()):
            return
        canvas = self.canvas
        if bool(bad.any()):
            at = active[scored.nonzero(as_tuple=True)[0][bad]][0]
            raise NonFiniteError(
                f"logits of sample {int(canvas.sample[at])} at denoising forward {int(canvas.forwards[at])} "
                "are NaN or infinite"
            )
        raise PluginError(f"selection rule {self.rule.kind!r} committed no token at a step")


def mask_id(facts: ModelFacts) -> int:
    """The mask token.

    Raises:
        ValueError: there is none.
    """
    if facts.mask_id is None:
        raise ValueError(f"{facts.kind} has no mask token")
    return facts.mask_id


def _idle(rule: Rule, masked: Tensor, quota: Tensor, chosen: Tensor) -> Tensor:
    """[R] bool rows in which the rule should have committed a token and did not."""
    if rule.selector == "independent":
        return torch.zeros_like(quota, dtype=torch.bool)
    return masked.any(dim=1) & (quota >= 1) & ~chosen.any(dim=1)


def _spread(where: Tensor, values: Tensor, fill: float) -> Tensor:
    """[R,L] ``values`` [M] at the positions ``where`` [R,L], ``fill`` elsewhere."""
    return torch.full(where.shape, fill, dtype=values.dtype, device=values.device).masked_scatter(where, values)
