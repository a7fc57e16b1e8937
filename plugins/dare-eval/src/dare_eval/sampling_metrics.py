"""What several samples per problem say: pass@k and its stricter relatives. Exact, by counting subsets.

``pass_at_k`` is the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374); ``g_pass_at_k`` and ``mg_pass_at_k`` are
those of Liu et al. 2024 (arXiv 2412.13147).
"""

from __future__ import annotations

import math


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Probability that at least one of k samples, drawn from n of which c are right, is right. None if k > n."""
    return _at_least(1, n, c, k)


def g_pass_at_k(n: int, c: int, k: int, threshold: float) -> float | None:
    """Probability that at least ceil(threshold k), and at least one, of k samples are right. None if k > n."""
    return _at_least(max(1, math.ceil(k * threshold)), n, c, k)


def mg_pass_at_k(n: int, c: int, k: int) -> float | None:
    """Mean of ``g_pass_at_k`` over thresholds above one half: (2/k) sum over i in ceil(k/2)+1..k of P(>= i right)."""
    if k > n:
        return None
    return 2 / k * sum(_at_least(i, n, c, k) or 0.0 for i in range(math.ceil(k / 2) + 1, k + 1))


def _at_least(wanted: int, n: int, c: int, k: int) -> float | None:
    if not 0 <= c <= n or k < 1:
        raise ValueError(f"{c} right of {n} samples, {k} drawn: 0 <= right <= samples and drawn >= 1 must hold")
    if k > n:
        return None
    ways = sum(math.comb(c, right) * math.comb(n - c, k - right) for right in range(wanted, min(c, k) + 1))
    return ways / math.comb(n, k)
