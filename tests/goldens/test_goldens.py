"""Every golden case holds, or is skipped because the work it belongs to is not built."""

from __future__ import annotations

import pytest

from dare_core.testing.goldens import GoldenCase
from tests.goldens.runner import handler_for, not_built


def test_golden_case_holds(golden_case: GoldenCase) -> None:
    handler = handler_for(golden_case)
    if handler is None and (reason := not_built(golden_case)):
        pytest.skip(reason)
    assert handler is not None, (
        f"no handler for {golden_case.group}/{golden_case.id} (kind {golden_case.kind}, topic {golden_case.topic!r})"
    )
    handler.check(golden_case)
