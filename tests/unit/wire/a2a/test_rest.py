"""The bindings to plain HTTP."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.wire.a2a import rest
from isthmus.wire.a2a.operations import (
    Cancel,
    DeletePush,
    Get,
    GetPush,
    List,
    ListPush,
    Operation,
    Problem,
    ReadCard,
    Send,
    Subscribe,
)
from tests.unit.wire.a2a import captured
from tests.unit.wire.a2a.samples import HOOK, steady
from tests.unit.wire.a2a.test_v0_3 import ASKED_FOR as ASKED_FOR_0_3
from tests.unit.wire.a2a.test_v1_0 import ASKED_FOR as ASKED_FOR_1_0


def asked(verb: str, target: str, body: bytes = b"", header: str | None = None) -> Operation | Problem:
    path, _, query = target.partition("?")
    return rest.read(verb, path, query, body, header)[1]


def refused(verb: str, target: str, body: bytes = b"", header: str | None = None) -> tuple[str, int]:
    path, _, query = target.partition("?")
    binding, problem = rest.read(verb, path, query, body, header)
    assert isinstance(problem, Problem)
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
        if isinstance(expected, Send):
            # This form knows neither references nor whole numbers, and its empty configuration says that nobody waits.
            assert isinstance(operation, Send)
            assert (operation.message.id, len(operation.message.parts)) == ("m0", len(expected.message.parts))
            assert (operation.task, operation.push) == (expected.task, expected.push)
            assert operation.waits is (name == "send")
            assert operation.message.parts[2:] == expected.message.parts[2:]
        else:
            assert operation == expected


@pytest.mark.parametrize(
    ("verb", "target", "expected"),
    [
        ("GET", "/tasks/t", Get("t")),
        ("GET", "/tenant/tasks/t/", Get("t")),
        ("GET", "/tasks", List()),
        ("GET", "/tenant/tasks?A2A-Version=1.0", List()),
        ("GET", "/tasks?page_size=3&include_artifacts=false&history_length=1", List(page_size=3, history_length=1)),
        ("GET", "/tasks/a%2Fb%20c", Get("a/b c")),
        ("POST", "/tasks/t:cancel", Cancel("t")),
        ("GET", "/tasks/t:subscribe", Subscribe("t")),
        ("POST", "/tasks/t:subscribe", Subscribe("t")),
        ("GET", "/tasks/t/pushNotificationConfigs", ListPush("t")),
        ("GET", "/tasks/t/pushNotificationConfigs/p", GetPush("t", "p")),
        ("DELETE", "/tasks/t/pushNotificationConfigs/p", DeletePush("t", "p")),
        ("GET", "/extendedAgentCard", ReadCard()),
        ("GET", "/v1/card", ReadCard()),
        ("GET", "/v1/tasks/t?history_length=4", Get("t", 4)),
        ("GET", "/v1/tasks/t/pushNotificationConfigs", ListPush("t")),
        ("DELETE", "/v1/tasks/t/pushNotificationConfigs/p", DeletePush("t", "p")),
        ("POST", "/v1/tasks/t:cancel", Cancel("t")),
    ],
)
def test_a_path_says_what_is_asked(verb: str, target: str, expected: Operation) -> None:
    assert asked(verb, target) == expected


def test_a_path_says_more_than_a_body() -> None:
    assert asked("POST", "/tasks/t:cancel", b'{"id":"other","metadata":null}') == Cancel("t")
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
def test_what_cannot_be_read_has_a_status(verb: str, target: str, body: bytes, expected: tuple[str, int]) -> None:
    assert refused(verb, target, body) == expected


@pytest.mark.parametrize(
    ("target", "header"),
    [("/tasks", "99.0"), ("/tasks", "0.3"), ("/tasks?A2A-Version=2.0", None), ("/v1/card", "1.0")],
)
def test_a_version_other_than_that_of_the_path_is_refused(target: str, header: str | None) -> None:
    assert refused("GET", target, header=header) == ("version_not_supported", 400)


@pytest.mark.parametrize(("target", "header", "spoken"), [("/tasks", "0.3", "1.0"), ("/v1/card", "1.0", "0.3")])
def test_who_asks_the_wrong_path_is_told_what_is_spoken_there(target: str, header: str, spoken: str) -> None:
    problem = asked("GET", target, header=header)
    assert isinstance(problem, Problem)
    assert problem.message == f"A2A {header} is not spoken at this path, but A2A {spoken}"


def test_each_binding_writes_its_own_errors() -> None:
    problem = Problem("task_not_found", "no such task")
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
def test_what_is_below_v1_is_answered_as_0_3(path: str) -> None:
    binding, told = rest.read("GET", path, "", b"")
    assert binding is rest.V0_3
    assert isinstance(told, Problem)
    assert told.kind == "unknown_method"
