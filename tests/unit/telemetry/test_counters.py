"""Counts of what happened."""

from __future__ import annotations

import msgspec

from isthmus.model.faults import TimedOut, UnknownTool
from isthmus.model.outcomes import Result
from isthmus.telemetry.counters import Counters, ServerCounts
from tests.unit.core.doubles import DONE, SERVER, call


def test_calls_are_counted_by_server_and_by_how_they_ended() -> None:
    counters = Counters()
    said_no = Result(msgspec.Raw(b"{}"), is_error=True)
    for outcome in (DONE, DONE, said_no, TimedOut(SERVER, 1.0, executed="unknown")):
        counters.ended(call(), SERVER, outcome, 0.5)
    counters.ended(call("nobody.knows"), None, UnknownTool("nobody.knows"), 0.0)
    counters.late(SERVER)
    assert counters.servers[SERVER] == ServerCounts(
        calls=4, seconds=2.0, late=1, outcomes={"result": 2, "tool_error": 1, "timed_out": 1}
    )
    assert counters.servers[None].outcomes == {"unknown_tool": 1}
