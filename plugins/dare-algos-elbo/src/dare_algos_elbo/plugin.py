"""What this package offers. Defaults are those of the LLaDA report."""

from __future__ import annotations

from collections.abc import Iterable

from dare_core.api import Component, hookimpl


@hookimpl
def dare_algorithms() -> Iterable[Component]:
    """Likelihood training."""
    return [
        Component(
            kind="sft",
            target="dare_algos_elbo.sft:Sft",
            config="dare_algos_elbo.config:SftSection",
            summary="supervised fine-tuning on the masked-diffusion ELBO; with empty prompts, continued pre-training",
            requires=("torch",),
            needs=frozenset({"demonstrations", "row-estimate"}),
            defaults={
                "likelihood.kind": "bernoulli",
                "optim.lr": 2.5e-5,
                "optim.warmup_steps": 50,
                "optim.weight_decay": 0.1,
                "optim.batch_size": 256,
            },
            presets={
                "dare-2604": {
                    "algorithm.loss_normalizer": "noised-tokens",
                    "optim.lr": 1e-4,
                    "optim.schedule": "cosine",
                    "optim.betas": (0.9, 0.95),
                    "optim.weight_decay": 0.01,
                }
            },
            paper="arXiv:2502.09992",
        )
    ]


@hookimpl
def dare_likelihood_estimators() -> Iterable[Component]:
    """ELBO estimates."""
    return [
        Component(
            kind="bernoulli",
            target="dare_algos_elbo.estimators.bernoulli:Bernoulli",
            config="dare_algos_elbo.config:BernoulliSection",
            summary="ELBO from independently masked tokens at random times",
            requires=("torch",),
            provides=frozenset({"row-estimate"}),
            needs=frozenset({"token-logp"}),
            paper="arXiv:2502.09992",
        )
    ]
