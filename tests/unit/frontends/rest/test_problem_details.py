"""Every failure has its status and says whether the tool ran."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.frontends.http.auth import Denied
from isthmus.frontends.rest.problem_details import REFUSALS, denial, problem_of, refusal
from isthmus.model import fault_table
from isthmus.model.fault_table import FAULTS, Fault, ServerError
from isthmus.model.names import ServerName
from tests.unit.core.doubles import raw
from tests.unit.model.fault_examples import EVERY_FAULT

FILES = ServerName("files")


def test_no_reason_stands_for_two_things() -> None:
    assert FAULTS.keys().isdisjoint(REFUSALS)


@pytest.mark.parametrize("fault", EVERY_FAULT, ids=lambda fault: fault.reason)
def test_a_fault_has_its_status_and_whether_the_tool_ran(fault: Fault) -> None:
    row = FAULTS[fault.reason]
    problem = problem_of(fault)
    response = json.loads(problem.body())
    assert problem.status == response["status"] == row.http
    assert response["executed"] == fault.executed
    assert response["type"] == f"urn:isthmus:problem:{fault.reason}"
    assert (response["detail"], response["reason"], response.get("server")) == (
        fault.message,
        fault.reason,
        fault.server,
    )
    assert (response["title"], response.get("retryAfter")) == (row.title, fault.retry_after)


def test_a_call_that_was_lost_before_it_was_sent_has_the_status_of_a_server_that_is_away() -> None:
    assert problem_of(fault_table.Lost(FILES, "gone", executed="no")).status == 503
    assert problem_of(fault_table.Lost(FILES, "gone", executed="unknown")).status == 504
    assert problem_of(fault_table.NodeLost("gone", executed="no")).status == 503
    assert problem_of(fault_table.NodeLost("gone", executed="unknown")).status == 502
    assert problem_of(fault_table.TimedOut(FILES, 1.0, executed="no")).status == 503
    assert problem_of(fault_table.TimedOut(FILES, 1.0, executed="unknown")).status == 504


@pytest.mark.parametrize(("seconds", "header"), [(0.2, b"1"), (2.5, b"3"), (4.0, b"4")])
def test_when_to_try_again_is_also_a_header_in_whole_seconds(seconds: float, header: bytes) -> None:
    problem = problem_of(fault_table.BreakerOpen(FILES, seconds))
    assert json.loads(problem.body())["retryAfter"] == seconds
    assert b"retry-after: %b\r\n" % header in problem.lines()
    assert b"content-type: application/problem+json\r\n" in problem.lines()


@pytest.mark.parametrize(
    ("error", "received"),
    [
        (ServerError(FILES, 1, "oh"), {"code": 1, "message": "oh"}),
        (
            ServerError(FILES, 1, "oh", raw({"executed": "no", "status": 200})),
            {"code": 1, "message": "oh", "data": {"executed": "no", "status": 200}},
        ),
    ],
)
def test_a_servers_own_error_is_kept_apart_and_cannot_speak_for_the_hub(
    error: ServerError, received: dict[str, Any]
) -> None:
    problem = json.loads(problem_of(error).body())
    assert problem["error"] == received
    assert (problem["executed"], problem["status"]) == ("yes", 502)


@pytest.mark.parametrize(("status", "reason"), [(400, "bad_request"), (401, "unauthenticated"), (403, "forbidden")])
def test_a_rejected_caller_learns_why(status: int, reason: str) -> None:
    problem = denial(Denied(status, "No.", ((b"www-authenticate", b"Bearer"),)))
    assert (problem.status, problem.reason, problem.detail) == (status, reason, "No.")
    assert b"www-authenticate: Bearer\r\n" in problem.lines()


def test_a_refusal_never_ran() -> None:
    assert all(json.loads(refusal(reason, "x").body())["executed"] == "no" for reason in REFUSALS)
