"""Problems in every generation's words."""

from __future__ import annotations

import json
from typing import get_args

from isthmus.wire.a2a import operations as problems
from isthmus.wire.a2a.operations import A2aProblem, ProblemKind

KINDS = frozenset(get_args(ProblemKind))


def test_every_problem_has_a_row() -> None:
    assert problems.PROBLEMS.keys() == KINDS


def test_codes_of_the_latest_generation_distinguish_every_problem() -> None:
    # All but two of HTTP's: for A2A, matters of parameters and of content like any other.
    assert set(problems.KINDS_1_0.values()) == KINDS - {"key_reused", "not_json"}
    assert problems.KINDS_1_0[-32602] == "invalid_params"
    assert set(problems.REASONS_1_0.values()) == KINDS - {"not_json"}


def test_an_error_of_1_0_says_its_reason_and_the_field() -> None:
    problem = A2aProblem("invalid_params", "message.parts is required", {"field": "message.parts"})
    code, message, data = problems.error_1_0(problem)
    assert (code, message) == (-32602, "message.parts is required")
    info, bad = json.loads(bytes(data or b""))
    assert info == {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "INVALID_PARAMS",
        "domain": "a2a-protocol.org",
        "metadata": {"field": "message.parts"},
    }
    assert bad["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    assert bad["fieldViolations"] == [{"field": "message.parts", "description": "message.parts is required"}]


def test_a_problem_over_http_is_a_status_object_in_1_0() -> None:
    status, body = problems.status_1_0(A2aProblem("task_not_found", "no such task", {"taskId": "t"}))
    error = json.loads(body)["error"]
    assert (status, error["code"], error["status"], error["message"]) == (404, 404, "NOT_FOUND", "no such task")
    assert [detail["reason"] for detail in error["details"]] == ["TASK_NOT_FOUND"]


def test_a_problem_over_http_names_its_kind_in_0_3() -> None:
    status, body = problems.status_0_3(A2aProblem("task_not_cancelable", "it has ended"))
    assert status == 409
    assert json.loads(body) == {
        "error": "TaskNotCancelableError",
        "code": -32002,
        "message": "it has ended",
        "data": {},
    }


def test_errors_of_earlier_generations_may_have_an_object_as_data() -> None:
    assert problems.plain_error(-1, A2aProblem("internal", "m")) == (-1, "m", None)
    assert problems.plain_error(-1, A2aProblem("internal", "m", {"a": "b"})) == (-1, "m", b'{"a":"b"}')
