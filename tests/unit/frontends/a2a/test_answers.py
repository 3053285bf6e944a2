"""What an outcome is told as, in the words of the instruction."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from isthmus.core.tasks.record import StoredOutcome, stored_outcome
from isthmus.frontends.a2a.task_view import (
    ErrorKind,
    StoredInstruction,
    answer_parts,
    kind_of,
    summary,
)
from isthmus.model.faults import (
    BadReply,
    BreakerOpen,
    Bug,
    Cancelled,
    Draining,
    Fault,
    Lost,
    NotConnected,
    Overloaded,
    ServerError,
    TimedOut,
    TooManyTargets,
    UnknownTool,
)
from isthmus.model.tasks import DataPart, TextPart
from tests.unit.core.doubles import SERVER, raw

RESULT = {"content": [{"type": "text", "text": "hi"}]}
GOOD, BAD = StoredOutcome(raw(RESULT)), StoredOutcome(raw({**RESULT, "isError": True}), is_error=True)
EXECUTE, COMMAND = StoredInstruction("execute", "read"), StoredInstruction("command", "read", Raw(b"17"))


def told(ending: StoredOutcome, brief: StoredInstruction) -> Any:
    (part,) = answer_parts(ending, brief)
    assert isinstance(part, DataPart)
    return json.loads(bytes(part.data))


def test_our_own_form_is_answered_with_the_content_itself() -> None:
    assert answer_parts(GOOD, StoredInstruction()) == (TextPart("hi"),)
    assert answer_parts(StoredOutcome(message="no", reason="lost"), StoredInstruction()) == (TextPart("no"),)
    assert summary(GOOD, StoredInstruction()) is None
    assert summary(BAD, StoredInstruction("tool", "read")) == "read reported an error"


def test_an_execution_is_answered_with_success_or_who_is_to_blame() -> None:
    assert told(GOOD, EXECUTE) == {"success": True, "mcp_result": RESULT}
    assert told(BAD, EXECUTE)["error"] == {
        "source": "MCP_TOOL",
        "code": "TOOL_EXECUTION_FAILED",
        "message": "Execution failed for tool 'read'",
        "details": {"mcp_tool_error_content": RESULT["content"]},
    }
    assert summary(BAD, EXECUTE) == "[MCP_TOOL/TOOL_EXECUTION_FAILED] Execution failed for tool 'read'"


@pytest.mark.parametrize(
    ("ending", "source", "code"),
    [
        (stored_outcome(ServerError(SERVER, -32050, "no", raw({"x": 1}))), "MCP_PROTOCOL", "-32050"),
        (stored_outcome(TimedOut(SERVER, 1.0, executed="unknown")), "A2A_PROXY", "MCP_TIMEOUT"),
        (stored_outcome(NotConnected(SERVER, "down")), "A2A_PROXY", "MCP_CONNECTION_ERROR"),
        (stored_outcome(UnknownTool("x")), "A2A_PROXY", "-32601"),
        (stored_outcome(TooManyTargets(64)), "A2A_PROXY", "MCP_CONNECTION_ERROR"),
        (stored_outcome(Draining()), "A2A_PROXY", "MCP_CONNECTION_ERROR"),
        (StoredOutcome(reason="unknown_server", message="?"), "A2A_PROXY", "MCP_SERVER_NOT_FOUND"),
        (StoredOutcome(reason="of another version", message="?"), "A2A_PROXY", "PROXY_INTERNAL_ERROR"),
    ],
)
def test_a_failed_execution_always_has_its_data(ending: StoredOutcome, source: str, code: str) -> None:
    error = told(ending, EXECUTE)["error"]
    assert (error["source"], error["code"]) == (source, code)
    assert error["details"]["executed"] == ending.executed
    assert error["details"].get("mcp_protocol_error_data") == ({"x": 1} if ending.data else None)


def test_a_command_repeats_its_id_with_its_type() -> None:
    assert told(GOOD, COMMAND) == {"mcp_request_id_echo": 17, "mcp_response_id": 17, "mcp_result": RESULT}
    assert told(BAD, COMMAND)["mcp_result"]["isError"] is True
    error = told(stored_outcome(Lost(SERVER, "gone", executed="unknown")), COMMAND)["mcp_error"]
    assert (error["code"], error["data"]["kind"], error["data"]["executed"]) == (-32012, "network", "unknown")
    own = told(stored_outcome(ServerError(SERVER, -32050, "no", raw([1]))), COMMAND)["mcp_error"]
    assert (own["code"], own["data"]["kind"], own["data"]["mcp_data"]) == (-32050, "mcp", [1])


@pytest.mark.parametrize(
    ("fault", "code", "after"),
    [
        (Overloaded(SERVER, 1, 1), -32010, 1.0),
        (BreakerOpen(SERVER, 2.5), -32010, 2.5),
        (Draining(), -32010, 1.0),
        (NotConnected(SERVER, "down"), -32011, None),
        (Lost(SERVER, "gone", executed="no"), -32011, None),
        (TimedOut(SERVER, 1.0, executed="no"), -32011, None),
        (TimedOut(SERVER, 1.0, executed="unknown"), -32012, None),
        (Cancelled("given up", executed="unknown", server=SERVER), -32012, None),
        (BadReply(SERVER, "no JSON"), -32012, None),
        (UnknownTool("x"), -32602, None),
        (Bug("7"), -32603, None),
    ],
)
def test_a_command_s_error_has_the_code_that_it_has_everywhere(fault: Fault, code: int, after: float | None) -> None:
    error = told(stored_outcome(fault), COMMAND)["mcp_error"]
    assert (error["code"], error["data"]["reason"]) == (code, fault.reason)
    assert (error["data"].get("server"), error["data"].get("retryAfter")) == (fault.server, after)


@pytest.mark.parametrize("reason", ["bad_instruction", "unknown_tool", "bad_arguments"])
def test_what_is_wrong_with_an_instruction_of_our_own_form_is_data_too(reason: str) -> None:
    error = told(StoredOutcome(reason=reason, message="no", executed="no"), StoredInstruction())["error"]
    assert error == {"kind": "request", "message": "no", "reason": reason, "executed": "no"}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("unknown_task", "request"),
        ("task_ended", "request"),
        ("too_many_subscriptions", "request"),
        ("bad_instruction", "request"),
        ("timed_out", "network"),
        ("server_error", "mcp"),
        ("internal", "internal"),
    ],
)
def test_failures_are_of_four_kinds(reason: str, kind: ErrorKind) -> None:
    assert kind_of(StoredOutcome(reason=reason)) == kind
