"""Counts of what happened."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from isthmus.core.calls.inflight import InFlight
from isthmus.model.calls import Call, Result
from isthmus.model.faults import TimedOut, UnknownTool
from isthmus.model.names import ServerName
from isthmus.telemetry import counters as module
from isthmus.telemetry.counters import Counters, GroupedCounters, ServerCounts
from tests.unit.core.doubles import DONE, SERVER, Listener, call


def begun(asked: Call | None = None) -> InFlight:
    """A call in flight, of which only the data matters."""
    return InFlight(asked or call(), Listener(), Counters(), asyncio.get_running_loop())


async def test_calls_are_counted_by_server_and_by_how_they_ended() -> None:
    counters = Counters()
    said_no = Result(msgspec.Raw(b"{}"), is_error=True)
    for outcome in (DONE, DONE, said_no, TimedOut(SERVER, 1.0, executed="unknown")):
        counters.ended(begun(), SERVER, outcome, 0.5)
    counters.ended(begun(call("nobody.knows")), None, UnknownTool("nobody.knows"), 0.0)
    counters.late(SERVER)
    assert counters.servers[SERVER] == ServerCounts(
        calls=4, seconds=2.0, late=1, outcomes={"result": 2, "tool_error": 1, "timed_out": 1}
    )
    assert counters.servers[None].outcomes == {"unknown_tool": 1}


async def test_servers_that_come_and_go_can_be_counted_as_one() -> None:
    counters = Counters()
    grouped = GroupedCounters(counters, ServerName("#"))
    for name in ("a#1", "b#2"):
        grouped.ended(begun(), ServerName(name), DONE, 0.5)
        grouped.waited(begun(), 0.5)
        grouped.late(ServerName(name))
    grouped.ended(begun(), None, UnknownTool("x"), 0.0)
    assert {*counters.servers} == {"#", None}
    assert counters.servers[ServerName("#")] == ServerCounts(calls=2, seconds=1.0, late=2, outcomes={"result": 2})


async def test_ever_new_names_are_counted_as_others_from_some_number_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERVERS_MAX", 2)
    counters = Counters()
    for name in ("a", "b", "c", "d", "a"):
        counters.ended(begun(), ServerName(name), DONE, 0.5)
    assert {name: counts.calls for name, counts in counters.servers.items()} == {"a": 2, "b": 1, module.OTHERS: 2}
