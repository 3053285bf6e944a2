"""States of the hub's tasks, in the form of each era."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.core.tasks.engine import LOST
from isthmus.core.tasks.record import StoredOutcome, StoredQuestion, TaskRecord, owner_of, state_after, stored_outcome
from isthmus.frontends.mcp.hub_tasks import (
    ENDED_SECONDS,
    REALM,
    HubTaskInfo,
    created_legacy,
    created_modern,
    expiry_of,
    is_info_visible,
    legacy_status,
    modern_status,
    notified_state,
    question_of,
    result_of,
)
from isthmus.frontends.mcp.tasks import is_hub_task_id
from isthmus.model.calls import EVERYTHING, Outcome, Result, Surface
from isthmus.model.fault_table import Cancelled, Overloaded, ServerError
from isthmus.model.names import ServerName
from isthmus.model.tasks import TaskState
from isthmus.wire.mcp.tasks import RELATED
from tests.unit.core.doubles import ANYONE, DONE, SERVER, Stage, raw

ID = "0123456789abcdef0123456789abcdef"
SAID_NO = Result(raw({"content": [], "isError": True}), is_error=True)
TYPED = Result(raw({"resultType": "complete", "content": [], "_meta": {"a": 1}}), is_typed=True)
REFUSED = ServerError(SERVER, -32099, "not today", raw({"why": 1}))


def record(
    state: TaskState = "working", *, asked: StoredQuestion | None = None, ending: StoredOutcome | None = None
) -> TaskRecord:
    brief = msgspec.Raw(msgspec.json.encode(HubTaskInfo(SERVER, 120.0)))
    return TaskRecord(
        ID, owner_of(ANYONE, REALM), "", REALM, state, 10.0, 20.0, asked=asked, ending=ending, brief=brief
    )


def ended(outcome: Outcome) -> TaskRecord:
    return record(state_after(outcome), ending=stored_outcome(outcome))


def as_json(result: Outcome) -> Any:
    assert isinstance(result, Result)
    return json.loads(bytes(result.payload))


ASKING = record("input_required", asked=StoredQuestion("roots/list", raw({"x": 1}), 3))
BOTH = msgspec.structs.replace(ASKING, besides=(StoredQuestion("roots/list", raw({}), 5),))


@pytest.mark.parametrize(
    ("kept", "earlier", "modern"),
    [
        (record("submitted"), "working", "working"),
        (record(), "working", "working"),
        (record("auth_required"), "working", "working"),
        (ASKING, "input_required", "input_required"),
        (ended(DONE), "completed", "completed"),
        (ended(SAID_NO), "failed", "completed"),
        (ended(REFUSED), "failed", "failed"),
        (ended(Overloaded(SERVER, 1, 1)), "failed", "failed"),
        (record("failed", ending=LOST), "failed", "failed"),
        (ended(Cancelled("enough", executed="unknown")), "cancelled", "cancelled"),
        (record("canceled"), "cancelled", "cancelled"),
    ],
)
def test_every_state_has_a_word_in_each_era(kept: TaskRecord, earlier: str, modern: str) -> None:
    assert as_json(legacy_status(kept))["status"] == notified_state(kept).status == earlier
    assert as_json(modern_status(kept))["status"] == modern
    assert notified_state(kept).is_terminal == kept.is_terminal


def test_a_modern_task_includes_the_members_of_its_state() -> None:
    assert as_json(modern_status(ASKING))["inputRequests"] == {"q3": {"method": "roots/list", "params": {"x": 1}}}
    assert list(as_json(modern_status(BOTH))["inputRequests"]) == ["q3", "q5"]
    assert as_json(modern_status(ended(DONE)))["result"] == {"resultType": "complete", "content": []}
    error = as_json(modern_status(ended(REFUSED)))["error"]
    assert (error["code"], error["message"], error["data"]["why"]) == (-32099, "not today", 1)
    lost = as_json(modern_status(record("failed", ending=LOST)))["error"]
    assert (lost["code"], lost["data"]["executed"]) == (-32012, "unknown")
    for kept in (record(), ended(Cancelled("enough", executed="no"))):
        assert as_json(modern_status(kept)).keys().isdisjoint({"inputRequests", "result", "error"})


def test_a_task_begins_as_one_that_is_worked_on() -> None:
    for kept in (record(), ended(DONE)):
        assert as_json(created_legacy(kept))["task"]["status"] == "working"
        made = as_json(created_modern(kept))
        assert (made["resultType"], made["status"], made["ttlMs"]) == ("task", "working", 120_000)


def test_a_task_that_was_not_sent_is_worked_on_and_says_that_it_waits() -> None:
    waiting = msgspec.structs.replace(record(), phase="waiting")
    for state in (
        as_json(legacy_status(waiting)),
        as_json(modern_status(waiting)),
        as_json(created_legacy(waiting))["task"],
    ):
        assert (state["status"], "not been sent" in state["statusMessage"]) == ("working", True)
    assert "statusMessage" not in as_json(legacy_status(record()))


def test_the_result_of_a_task_is_that_of_the_call() -> None:
    related = {RELATED: {"taskId": ID}}
    assert as_json(result_of(ended(DONE))) == {"content": [], "_meta": related}
    typed = result_of(ended(TYPED))
    assert as_json(typed)["_meta"] == {"a": 1, **related}
    assert isinstance(typed, Result)
    assert typed.is_typed
    said_no = result_of(ended(SAID_NO))
    assert isinstance(said_no, Result)
    assert said_no.is_error
    refused = result_of(ended(REFUSED))
    assert isinstance(refused, ServerError)
    assert (refused.code, refused.message) == (-32099, "not today")
    assert isinstance(result_of(record("canceled")), Cancelled)


def test_a_plain_servers_result_is_returned_as_a_result_of_mcp() -> None:
    kept = ended(Result(raw(7), is_bare=True))
    for result in (as_json(result_of(kept)), as_json(modern_status(kept))["result"]):
        assert (result["content"], result["structuredContent"]) == ([{"type": "text", "text": "7"}], {"result": 7})


def test_a_question_says_for_which_task_it_is() -> None:
    asked = question_of(ASKING)
    assert asked is not None
    assert (asked.method, json.loads(bytes(asked.params))) == (
        "roots/list",
        {"x": 1, "_meta": {RELATED: {"taskId": ID}}},
    )
    assert question_of(record()) is None


def test_an_ended_task_is_kept_as_long_as_was_asked_for_and_a_while_at_least() -> None:
    assert expiry_of(record("completed")) == 10.0 + 120.0
    late = msgspec.structs.replace(record("completed"), updated=500.0)
    assert expiry_of(late) == 500.0 + ENDED_SECONDS


@pytest.mark.parametrize(
    ("id", "is_kept"), [(ID, True), (ID[1:], False), (ID.upper(), False), ("a.b.c", False), (ID + "\n", False)]
)
def test_an_id_of_the_hubs_own_is_known_by_its_form(id: str, *, is_kept: bool) -> None:
    assert is_hub_task_id(id) == is_kept


async def test_a_task_is_seen_where_its_server_is() -> None:
    hub = Stage().hub
    seen = [
        is_info_visible(HubTaskInfo(ServerName(server), 1.0), hub.snapshot.view(ANYONE.grants, surface), surface)
        for server, surface in (
            ("files", EVERYTHING),
            ("files", Surface("own", SERVER)),
            ("gone", EVERYTHING),
            ("files", Surface("own", ServerName("gone"))),
        )
    ]
    assert seen == [True, True, False, False]
