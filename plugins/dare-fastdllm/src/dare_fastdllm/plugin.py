"""What dare-fastdllm offers."""

from __future__ import annotations

from collections.abc import Iterable

from dare_core.api import Component, hookimpl


@hookimpl
def dare_rollout_backends() -> Iterable[Component]:
    """Decoding against prefix and dual caches."""
    return [
        Component(
            kind="fastdllm",
            target="dare_fastdllm.backend:FastBackend",
            config="dare_fastdllm.config:FastSection",
            summary="decodes masked models with the live model against prefix or dual caches, approximately",
            requires=("torch",),
            provides=frozenset({"sampling", "commit-step", "weight-sync", "adapters"}),
            needs=frozenset({"kv-approx"}),
            paper="arXiv:2505.22618",
        )
    ]
