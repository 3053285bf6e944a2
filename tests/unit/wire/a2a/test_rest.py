"""The bindings to plain HTTP."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.wire.a2a import rest
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CancelTask,
    DeletePushConfig,
    GetExtendedCard,
    GetPushConfig,
    GetTask,
    ListPushConfigs,
    ListTasks,
    Operation,
    SendMessage,
    SubscribeToTask,
)
from tests.unit.wire.a2a import captured
from tests.unit.wire.a2a.samples import HOOK, steady
from tests.unit.wire.a2a.test_v0_3 import ASKED_FOR as ASKED_FOR_0_3
from tests.unit.wire.a2a.test_v1_0 import ASKED_FOR as ASKED_FOR_1_0


def asked(verb: str, target: str, body: bytes = b"", header: str | None = None) -> Operation | A2aProblem:
    path, _, query = target.partition("?")
    return rest.read(verb, path, query, body, header)[1]


def refused(verb: str, target: str, body: bytes = b"", header: str | None = None) -> tuple[str, int]:
    path, _, query = target.partition("?")
    binding, problem = rest.read(verb, path, query, body, header)
    assert isinstance(problem, A2aProblem)
    return problem.kind, binding.write_problem(problem)[0]


@pytest.mark.parametrize("name", ASKED_FOR_1_0)
def test_the_official_client_of_1_0_is_understood(name: str) -> None:
    binding, operation = rest.read(*captured.rest("sdk-1.3.0", name), "1.0")
    assert binding is rest.V1_0
    assert operation == ASKED_FOR_1_0[name]


def test_the_official_client_of_0_3_is_understood() -> None:
    for name, expected in ASKED_FOR_0_3.items():
        binding, operation = rest.read(*captured.rest("sdk-0.3.26", name))
        assert binding is rest.V0_3
        if isinstance(expected, SendMessage):
            # This form knows neither references nor whole numbers, and its empty configuration says that nobody waits.
            assert isinstance(operation, SendMessage)
            assert (operation.message.id, len(operation.message.parts)) == ("m0", len(expected.message.parts))
            assert (operation.task, operation.push) == (expected.task, expected.push)
            assert operation.waits is (name == "send")
            assert operation.message.parts[2:] == expected.message.parts[2:]
        else:
            assert operation == expected


@pytest.mark.parametrize(
    ("verb", "target", "expected"),
    [
        ("GET", "/tasks/t", GetTask("t")),
        ("GET", "/tenant/tasks/t/", GetTask("t")),
        ("GET", "/tasks", ListTasks()),
        ("GET", "/tenant/tasks?A2A-Version=1.0", ListTasks()),
        (
            "GET",
            "/tasks?page_size=3&include_artifacts=false&history_length=1",
            ListTasks(page_size=3, history_length=1),
        ),
        ("GET", "/tasks/a%2Fb%20c", GetTask("a/b c")),
        ("POST", "/tasks/t:cancel", CancelTask("t")),
        ("GET", "/tasks/t:subscribe", SubscribeToTask("t")),
        ("POST", "/tasks/t:subscribe", SubscribeToTask("t")),
        ("GET", "/tasks/t/pushNotificationConfigs", ListPushConfigs("t")),
        ("GET", "/tasks/t/pushNotificationConfigs/p", GetPushConfig("t", "p")),
        ("DELETE", "/tasks/t/pushNotificationConfigs/p", DeletePushConfig("t", "p")),
        ("GET", "/extendedAgentCard", GetExtendedCard()),
        ("GET", "/v1/card", GetExtendedCard()),
        ("GET", "/v1/tasks/t?history_length=4", GetTask("t", 4)),
        ("GET", "/v1/tasks/t/pushNotificationConfigs", ListPushConfigs("t")),
        ("DELETE", "/v1/tasks/t/pushNotificationConfigs/p", DeletePushConfig("t", "p")),
        ("POST", "/v1/tasks/t:cancel", CancelTask("t")),
    ],
)
def test_a_path_names_the_operation(verb: str, target: str, expected: Operation) -> None:
    assert asked(verb, target) == expected


def test_a_path_says_more_than_a_body() -> None:
    assert asked("POST", "/tasks/t:cancel", b'{"id":"other","metadata":null}') == CancelTask("t")
    operation = asked("POST", "/tasks/t/pushNotificationConfigs", b'{"taskId":"other","url":"%b"}' % HOOK.encode())
    assert getattr(operation, "task", None) == "t"


@pytest.mark.parametrize(
    ("verb", "target", "body", "expected"),
    [
        ("GET", "/nothing", b"", ("unknown_method", 404)),
        ("GET", "/", b"", ("unknown_method", 404)),
        ("GET", "/v1/tasks", b"", ("unknown_method", 404)),
        ("PUT", "/tasks/t", b"", ("unknown_method", 404)),
        ("GET", "/message:send", b"", ("unknown_method", 404)),
        ("POST", "/message:send", b"", ("invalid_params", 400)),
        ("POST", "/message:send", b"{", ("parse", 400)),
        ("POST", "/message:send", b"\xff", ("parse", 400)),
        ("POST", "/message:send", b"[]", ("invalid_request", 400)),
        ("POST", "/message:send", b'{"message":1,"message":2}', ("invalid_request", 400)),
        ("POST", "/message:send", b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", ("invalid_request", 400)),
        ("POST", "/v1/message:send", b'{"message":{}}', ("invalid_params", 422)),
        ("GET", "/tasks?pageSize=150", b"", ("invalid_params", 400)),
        ("GET", "/tasks?pageSize=ten", b"", ("invalid_params", 400)),
        ("GET", "/tasks?pageSize=007", b"", ("invalid_params", 400)),
        ("GET", "/tasks?includeArtifacts=yes", b"", ("invalid_params", 400)),
        ("GET", "/tasks/t?historyLength=-5", b"", ("invalid_params", 400)),
        ("GET", "/tasks?" + "a=b&" * 60, b"", ("invalid_request", 400)),
        ("GET", "/tasks/" + "x" * 300, b"", ("invalid_params", 400)),
    ],
)
def test_an_unreadable_request_has_a_status(verb: str, target: str, body: bytes, expected: tuple[str, int]) -> None:
    assert refused(verb, target, body) == expected


@pytest.mark.parametrize(
    ("target", "header"),
    [("/tasks", "99.0"), ("/tasks", "0.3"), ("/tasks?A2A-Version=2.0", None), ("/v1/card", "1.0")],
)
def test_a_version_other_than_that_of_the_path_is_refused(target: str, header: str | None) -> None:
    assert refused("GET", target, header=header) == ("version_not_supported", 400)


@pytest.mark.parametrize(("target", "header", "spoken"), [("/tasks", "0.3", "1.0"), ("/v1/card", "1.0", "0.3")])
def test_a_request_to_the_wrong_path_gets_the_version_of_that_path(target: str, header: str, spoken: str) -> None:
    problem = asked("GET", target, header=header)
    assert isinstance(problem, A2aProblem)
    assert problem.message == f"this path is for A2A {spoken}, not {header}"


def test_each_binding_writes_its_own_errors() -> None:
    problem = A2aProblem("task_not_found", "no such task")
    assert "details" in json.loads(rest.V1_0.write_problem(problem)[1])["error"]
    assert json.loads(rest.V0_3.write_problem(problem)[1])["error"] == "TaskNotFoundError"


@given(
    st.sampled_from(["GET", "POST", "DELETE"]),
    st.sampled_from(["", "/v1"]),
    st.sampled_from(["/tasks", "/tasks/%ff", "/message:send", "/tasks/%d8%00:cancel", "/x"]),
    st.text(max_size=20),
    st.binary(max_size=20),
)
@steady
def test_nothing_that_can_be_sent_makes_it_raise(verb: str, prefix: str, path: str, query: str, body: bytes) -> None:
    binding, _ = rest.read(verb, prefix + path, query, body)
    assert binding in (rest.V1_0, rest.V0_3)


@pytest.mark.parametrize("path", ["v1", "v1/", "/v1/nothing"])
def test_paths_below_v1_are_answered_as_0_3(path: str) -> None:
    binding, received = rest.read("GET", path, "", b"")
    assert binding is rest.V0_3
    assert isinstance(received, A2aProblem)
    assert received.kind == "unknown_method"
