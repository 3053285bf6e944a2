"""Every fault says what happened, whether the tool ran, and what to do."""

from __future__ import annotations

import json

import pytest

from isthmus.cli.exits import Exit
from isthmus.cli.faults import Told, as_json, failed, told_in, told_of
from isthmus.frontends.rest.faults import problem_of
from isthmus.model.faults import FAULTS, NotConnected, ServerError, TimedOut
from isthmus.model.names import ServerName
from tests.unit.core.doubles import raw

FILES = ServerName("files")


def test_a_fault_tells_all_three() -> None:
    told = failed(told_of(TimedOut(FILES, 30, executed="unknown")))
    assert told.exit == Exit.CALL_FAILED
    assert told.message == "Server files did not answer within 30 s"
    assert told.advice == (
        "executed: unknown (it may have run: look before you call it again)",
        FAULTS["timed_out"].advice,
    )


def test_a_running_hubs_problem_tells_the_same_as_the_fault_itself() -> None:
    fault = NotConnected(FILES, "gone")
    told = told_in(problem_of(fault).body())
    assert told == told_of(fault)
    assert told is not None
    assert json.loads(as_json(told))["error"] == {
        "message": "Server files is not connected: gone",
        "executed": "no",
        "reason": "not_connected",
        "server": "files",
    }


def test_a_servers_own_claims_are_not_believed() -> None:
    error = ServerError(FILES, 1, "oh", raw({"executed": "no", "reason": "lost"}))
    for told in (told_of(error), told_in(problem_of(error).body())):
        assert told is not None
        assert failed(told).advice[0].startswith("executed: yes")


def test_a_reason_that_this_version_does_not_know_is_no_trouble() -> None:
    assert failed(Told("oh", "no", "of tomorrow")).advice[1] == FAULTS["server_error"].advice


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"{}", b'{"detail":"x","executed":"perhaps","reason":"y"}', b"[" * 9999]
)
def test_what_is_no_problem_of_a_hub_tells_nothing(body: bytes) -> None:
    assert told_in(body) is None
