"""Settings of tasks on the MCP frontend."""

from __future__ import annotations

import pytest

from isthmus.frontends.mcp.settings import TaskSettings


def test_tasks_are_provided_unless_said_otherwise() -> None:
    assert TaskSettings() == TaskSettings(provide=True, after=5.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 600.1, float("nan"), float("inf")])
def test_a_call_becomes_a_task_at_some_time_before_any_has_ended(seconds: float) -> None:
    with pytest.raises(ValueError, match="after must be above 0 and at most 600 seconds, not "):
        TaskSettings(after=seconds)
