"""The model that lm-evaluation-harness talks to: its requests, answered by our decoder and our likelihoods.

Stop strings cut the text after decoding and never end it early. A task's ``max_gen_toks`` changes nothing: the response
length is the decoder's, and a difference is said once. ``is_greedy`` of a likelihood request is false unless asked
for: no metric that is reported needs it, and finding out costs a decoding per request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance  # type: ignore[import-untyped]
from lm_eval.api.model import LM  # type: ignore[import-untyped]

from dare_core.api import UserError
from dare_core.interfaces import RolloutBackend, RolloutRequest
from dare_core.types import Address, DecodingSettings, Message, Prompt
from dare_eval.greedy import would_write
from dare_eval.likelihood import LikelihoodSettings, Target, likelihoods, split_tokens

_log = logging.getLogger("dare")


class HarnessModel(LM):  # type: ignore[misc]
    """Answers requests with one backend.

    Args:
        backend: generates, and holds the adapter for likelihoods.
        decoding: protocol of generated text.
        likelihood: how continuations are scored.
        seed: of all draws; they are addressed by document.
        address: of sampling draws.
        greedy: whether ``is_greedy`` is found out.
    """

    def __init__(
        self,
        backend: RolloutBackend,
        decoding: DecodingSettings,
        likelihood: LikelihoodSettings,
        seed: int,
        address: Address,
        greedy: bool = False,
    ) -> None:
        super().__init__()
        self._backend = backend
        self._decoding = decoding
        self._likelihood = likelihood
        self._seed = seed
        self._address = address
        self._greedy = greedy
        self._chats: dict[str, tuple[Message, ...]] = {}
        self._said = False
        self.tokens: dict[int, int] = {}
        #: the documents of the present call; the harness numbers requests within them
        self.documents: Sequence[int] = ()

    @property
    def tokenizer_name(self) -> str:
        """What the harness's caches call the tokenizer."""
        return self._backend.adapter.facts.kind

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The harness records this; the family's own template is used."""
        return "the family's" if chat_template else ""

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The turns as text with an open answer header. The turns themselves are kept, so that they are encoded once
        by the family's codec and no special token is added twice."""
        messages = tuple(Message(turn["role"], turn["content"]) for turn in chat_history)
        text = self._backend.adapter.text.render(messages)
        self._chats[text] = messages
        return text

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Responses, cut at the first stop string."""
        prompts = [self._prompt(request.args[0], self.documents[request.doc_id]) for request in requests]
        rollout = self._backend.generate(
            RolloutRequest(prompts=prompts, samples=1, settings=self._decoding, address=self._address)
        )
        texts = []
        for row, (request, text) in enumerate(zip(requests, rollout.text, strict=True)):
            options = request.args[1]
            self._mention_length(options.get("max_gen_toks"))
            document = self.documents[request.doc_id]
            self.tokens[document] = self.tokens.get(document, 0) + int(rollout.completion[row].sum())
            texts.append(_cut(text, options.get("until") or ()))
        return texts

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation. Requests of one document share their masks and their batch."""
        adapter = self._backend.adapter
        end = adapter.facts.eos_ids[0] if self._likelihood.end_token else None
        by_document: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            by_document.setdefault(self.documents[request.doc_id], []).append(index)
        found: dict[int, tuple[float, bool]] = {}
        for document, own in by_document.items():
            targets = []
            for index in own:
                context, continuation = requests[index].args
                prompt = self._prompt(context, document)
                before, target = split_tokens(adapter.text, prompt, continuation, end)
                targets.append(Target(question=document, prompt=tuple(before), continuation=tuple(target)))
            rows = self._backend.config.rows_per_batch
            address = Address(self._seed, "eval/likelihood")
            estimates = likelihoods(adapter, targets, self._likelihood, address, rows_per_batch=rows)
            would = self._would_write(targets) if self._greedy else [False] * len(targets)
            found |= {index: (one.logp, is_so) for index, one, is_so in zip(own, estimates, would, strict=True)}
        return [found[index] for index in range(len(requests))]

    def _would_write(self, targets: Sequence[Target]) -> list[bool]:
        rows = self._backend.config.rows_per_batch
        return would_write(self._backend.adapter, targets, self._likelihood.guidance, rows_per_batch=rows)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Refused: a whole text has no order of tokens here.

        Raises:
            UserError: always.
        """
        raise UserError("perplexity of whole texts is not defined for diffusion models; this task cannot be evaluated")

    def _prompt(self, text: str, document: int) -> Prompt:
        messages = self._chats.get(text)
        if messages is not None:
            return Prompt(f"document {document}", document, messages=messages)
        return Prompt(f"document {document}", document, text=text)

    def _mention_length(self, wanted: int | None) -> None:
        if wanted is not None and wanted != self._decoding.new_tokens and not self._said:
            self._said = True
            _log.warning(
                "the task asks for %d new tokens; the decoder writes %d (rollout.new_tokens), and that holds",
                wanted,
                self._decoding.new_tokens,
            )


class StoredAnswers(LM):  # type: ignore[misc]
    """Answers requests with what was answered before.

    Args:
        answers: document -> per request of it the list of its answers, as items keep them.
    """

    def __init__(self, answers: Mapping[int, Sequence[Sequence[Any]]]) -> None:
        super().__init__()
        self._answers = answers
        #: as in :class:`HarnessModel`
        self.documents: Sequence[int] = ()

    @property
    def tokenizer_name(self) -> str:
        """What the harness's caches call the tokenizer."""
        return "stored"

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The harness records this."""
        return ""

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Any text does: nothing is encoded."""
        return "\n".join(turn["content"] for turn in chat_history)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The stored texts."""
        return [str(self._stored(request)) for request in requests]

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The stored log-likelihoods."""
        return [(float(logp), bool(greedy)) for logp, greedy in map(self._stored, requests)]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Refused, as when it is answered."""
        raise UserError("perplexity of whole texts is not defined for diffusion models; this task cannot be evaluated")

    def _stored(self, request: Instance) -> Any:
        return self._answers[self.documents[request.doc_id]][request.idx][0]


def _cut(text: str, stops: Sequence[str] | str) -> str:
    stops = [stops] if isinstance(stops, str) else stops
    ends = [at for stop in stops if stop and (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
