"""Public ids of tasks, and the routing of calls about them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.catalog.view import View
from isthmus.core.watch.server_tasks import LinkSession, ServerTasks
from isthmus.frontends.mcp.tasks import (
    is_task_method,
    is_visible,
    public_id,
    public_params,
    route_task_call,
    server_id,
    server_meta,
    server_result,
    status_notification,
    with_public_id,
    with_public_related,
    with_supported_task,
)
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING, Call, Kind, Progress, Question, Result, Surface
from isthmus.model.features import Ability, Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.tasks import ServerTaskState
from isthmus.wire.mcp.messages import Era
from isthmus.wire.mcp.tasks import RELATED
from tests.unit.core.doubles import ANYONE, raw

OLD, NEW, PLAIN = ServerName("old"), ServerName("new"), ServerName("plain")
STRANGER = Caller("stranger", ANYONE.tenant, ANYONE.grants)
ABILITIES: dict[ServerName, Ability] = {OLD: "tasks", NEW: "task_handles", PLAIN: "tools"}


def server_status(server: ServerName, ability: Ability) -> ServerStatus:
    slow = Tool.of(server, FeatureName("slow"), {})
    return ServerStatus(server, "ready", tools=(slow,), abilities=frozenset({"tools", ability}))


def view(surface: Surface = EVERYTHING) -> View:
    server_statuses = {server: server_status(server, ability) for server, ability in ABILITIES.items()}
    return Snapshot(1, server_statuses, CheckCache(limit_bytes=4096)).view(ANYONE.grants, surface)


def known() -> ServerTasks:
    return ServerTasks(lambda: 0.0)


def state(id: str, **more: Any) -> ServerTaskState:
    members = {"taskId": raw(id), "status": raw("working"), **{key: raw(value) for key, value in more.items()}}
    return ServerTaskState(id, "working", is_terminal=False, ttl_seconds=None, members=members)


def call(name: str, kind: Kind = "task", surface: Surface = EVERYTHING, **extra: Any) -> Call:
    return Call(ANYONE, surface, name, raw({}), kind=kind, extra={key: raw(value) for key, value in extra.items()})


# -- ids -----------------------------------------------------------------------------------------------------------


@given(own=st.text())
def test_a_public_id_maps_back_to_the_servers_id(own: str) -> None:
    assert server_id(ANYONE, public_id(ANYONE, OLD, own)) == (OLD, own)


def test_public_ids_are_stable_and_differ_by_caller_server_and_task() -> None:
    given_out = [
        public_id(ANYONE, OLD, "t"),
        public_id(ANYONE, OLD, "t"),
        public_id(STRANGER, OLD, "t"),
        public_id(ANYONE, NEW, "t"),
        public_id(ANYONE, OLD, "u"),
    ]
    assert len(set(given_out)) == 4


@given(text=st.text())
def test_invented_ids_match_nothing(text: str) -> None:
    assert server_id(ANYONE, text) is None


def test_an_id_with_one_character_changed_stands_for_nothing() -> None:
    shown_to_me = public_id(ANYONE, OLD, "task-1")
    for place in range(len(shown_to_me)):
        for other in "A.=0é":
            if shown_to_me[place] != other:
                assert server_id(ANYONE, shown_to_me[:place] + other + shown_to_me[place + 1 :]) is None


def test_an_id_is_of_no_use_to_anybody_else() -> None:
    assert server_id(STRANGER, public_id(ANYONE, OLD, "t")) is None


# -- calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "era", "is_spoken"),
    [
        ("tasks/get", "legacy", True),
        ("tasks/result", "legacy", True),
        ("tasks/update", "legacy", False),
        ("tasks/get", "modern", True),
        ("tasks/update", "modern", True),
        ("tasks/result", "modern", False),
    ],
)
def test_each_era_has_methods_of_its_own(method: str, era: Era, *, is_spoken: bool) -> None:
    assert is_task_method(method, era, view()) is is_spoken
    assert not is_task_method(method, era, view(Surface("own", PLAIN)))


@pytest.mark.parametrize("surface", [EVERYTHING, Surface("own", OLD)])
def test_a_call_about_a_task_goes_to_the_tasks_server(surface: Surface) -> None:
    found = route_task_call(call(public_id(ANYONE, OLD, "t"), surface=surface), view(surface), known())
    assert found is not None
    assert (found.name, found.surface) == ("t", Surface("own", OLD))


@pytest.mark.parametrize(
    ("id", "surface"),
    [
        ("t", EVERYTHING),
        (public_id(STRANGER, OLD, "t"), EVERYTHING),
        (public_id(ANYONE, OLD, "t"), Surface("own", NEW)),
        (public_id(ANYONE, ServerName("gone"), "t"), EVERYTHING),
    ],
    ids=["plain", "a stranger's", "another server's", "of a server that is gone"],
)
def test_a_task_that_is_not_there_for_the_caller_leads_nowhere(id: str, surface: Surface) -> None:
    assert route_task_call(call(id, surface=surface), view(surface), known()) is None


def test_an_id_that_its_server_gave_to_another_caller_leads_nowhere() -> None:
    tasks = known()
    tasks.created(STRANGER, OLD, LinkSession(), state("t"))
    asked = call(public_id(ANYONE, OLD, "t"))
    assert route_task_call(asked, view(), tasks) is None
    tasks.created(ANYONE, OLD, LinkSession(), state("t"))
    assert route_task_call(asked, view(), tasks) is not None


@pytest.mark.parametrize(
    ("name", "era", "is_asked"),
    [
        ("old.slow", "legacy", True),
        ("old.slow", "modern", False),
        ("new.slow", "legacy", False),
        ("plain.slow", "legacy", False),
        ("gone.slow", "legacy", False),
    ],
)
def test_a_task_is_asked_for_only_where_that_is_known(name: str, era: Era, *, is_asked: bool) -> None:
    asked = with_supported_task(call(name, "tool", task={"ttl": 1}, other=2), view(), era)
    assert ("task" in asked.extra, "other" in asked.extra) == (is_asked, True)


# -- task ids of callers -------------------------------------------------------------------------------------------


def test_a_result_names_the_task_as_its_caller_knows_it() -> None:
    result = Result(raw({"task": {"taskId": "t"}}), task_of=OLD)
    received = with_public_id(result, ANYONE, OLD)
    assert json.loads(bytes(received.payload)) == {"task": {"taskId": public_id(ANYONE, OLD, "t")}}


def test_a_question_names_the_task_that_it_is_about() -> None:
    params = raw({"message": "?", "_meta": {RELATED: {"taskId": "t"}}})
    received = public_params(Question("elicitation/create", params, OLD), call("old.slow", "tool"))
    assert msgspec.json.decode(received)["_meta"] == {RELATED: {"taskId": public_id(ANYONE, OLD, "t")}}
    assert public_params(Question("elicitation/create", params), call("old.slow", "tool")) is params


def test_an_event_names_the_task_that_it_relates_to() -> None:
    members = {"progress": raw(1), "_meta": raw({RELATED: {"taskId": "t"}, "x": 1})}
    received = with_public_related(Progress(members, OLD), ANYONE)
    assert json.loads(bytes(received.members["_meta"])) == {RELATED: {"taskId": public_id(ANYONE, OLD, "t")}, "x": 1}
    plain = Progress(members)
    assert with_public_related(plain, ANYONE) is plain


def test_the_metadata_of_a_request_gets_the_servers_task_id() -> None:
    mine, anothers = ({RELATED: raw({"taskId": public_id(who, OLD, "t")})} for who in (ANYONE, STRANGER))
    assert json.loads(bytes(server_meta(mine, ANYONE)[RELATED])) == {"taskId": "t"}
    assert server_meta({**anothers, "x": raw(1)}, ANYONE) == {"x": raw(1)}
    plain = {"x": raw(1)}
    assert server_meta(plain, ANYONE) == plain


def test_the_metadata_of_an_answer_gets_the_servers_task_id() -> None:
    answer = raw({"action": "accept", "_meta": {RELATED: {"taskId": public_id(ANYONE, OLD, "t")}}})
    response = json.loads(bytes(server_result(answer, ANYONE)))
    assert response == {"action": "accept", "_meta": {RELATED: {"taskId": "t"}}}
    for plain in (raw({"action": "accept"}), raw([1]), raw({"_meta": 1})):
        assert server_result(plain, ANYONE) is plain


# -- tasks that are known ------------------------------------------------------------------------------------------


def test_how_a_task_stands_is_said_under_its_callers_id() -> None:
    tasks = known()
    tasks.created(ANYONE, OLD, LinkSession(), state("t", more=1))
    (task,) = tasks.tasks_for(ANYONE)
    message = json.loads(status_notification(task, ANYONE))
    assert message["method"] == "notifications/tasks/status"
    assert message["params"] == {"taskId": public_id(ANYONE, OLD, "t"), "status": "working", "more": 1}


@pytest.mark.parametrize(
    ("server", "surface", "is_so"),
    [
        (OLD, EVERYTHING, True),
        (OLD, Surface("own", OLD), True),
        (OLD, Surface("own", NEW), False),
        (NEW, EVERYTHING, False),
        (ServerName("gone"), EVERYTHING, False),
    ],
)
def test_a_task_is_seen_where_it_can_be_asked_about(server: ServerName, surface: Surface, *, is_so: bool) -> None:
    tasks = known()
    tasks.created(ANYONE, server, LinkSession(), state("t"))
    (task,) = tasks.tasks_for(ANYONE)
    assert is_visible(task, view(surface), surface) is is_so
