"""Every golden case holds, or is skipped because the work it belongs to is not built."""

from __future__ import annotations

import pytest

from dare_core.testing.goldens import GoldenCase
from tests.goldens.runner import NOT_BUILT, handler_for


def test_golden_case_holds(golden_case: GoldenCase) -> None:
    handler = handler_for(golden_case)
    if handler is None and golden_case.needed_by in NOT_BUILT:
        pytest.skip(NOT_BUILT[golden_case.needed_by])
    assert handler is not None, (
        f"no handler for {golden_case.group}/{golden_case.id} (kind {golden_case.kind}, topic {golden_case.topic!r})"
    )
    handler.check(golden_case)
