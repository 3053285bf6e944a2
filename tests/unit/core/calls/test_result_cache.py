"""Cached results: for which caller and call, for how long, and never an error."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.core.calls import result_cache as recall_module
from isthmus.core.calls.result_cache import (
    CACHED_KEY,
    CHANGES_MAX,
    ENTRY_BYTES,
    RESULT_BYTES_MAX,
    SECONDS_MAX,
    ResultCache,
)
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Call, Outcome, Result
from isthmus.model.fault_table import Lost
from tests.unit.core.doubles import ANYONE, DONE, SERVER, HeldLink, Listener, Stage, call, raw, ready, resource, tool

OTHER = Caller("other", "default", Grants(("*",)))
NAMESAKE = Caller("anyone", "elsewhere", Grants(("*",)))
NOTES = "file:///notes"
KEPT = ready(
    tool("read"),
    tool("write"),
    resources=[resource(NOTES), resource("file:///other")],
    rules=ToolRules(cached=("read",), cache_seconds=10.0, is_trusted=True),
)


def answer(stage: Stage, asked: Call, outcome: Outcome) -> Listener:
    """Start a call, have its server answer it if it got there, and listen."""
    inflight, listener = stage.start(asked)
    if inflight.outcome is None:
        inflight.finish(outcome)
    return listener


def fresh(stage: Stage, asked: Call) -> bool:
    """Whether a call goes to the server, and is not answered from memory."""
    inflight, listener = stage.start(asked)
    if inflight.outcome is None:
        inflight.cancel("only asking")
        return True
    assert isinstance(listener.ends[0], Result)
    return False


def read(uri: str = NOTES, caller: Caller = ANYONE) -> Call:
    return call(uri, kind="resource", caller=caller)


def payload_of(listener: Listener) -> Any:
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    return json.loads(bytes(outcome.payload))


# -- tools that the operator named ---------------------------------------------------------------------------------


async def test_a_named_tools_result_is_given_again_and_marked() -> None:
    stage = Stage.of(KEPT)
    first = answer(stage, call(arguments={"path": "/"}), Result(raw({"content": [], "_meta": {"own": 1}})))
    again = answer(stage, call(arguments={"path": "/"}), DONE)
    assert payload_of(first) == {"content": [], "_meta": {"own": 1}}
    received = payload_of(again)
    assert received["content"] == []
    assert received["_meta"]["own"] == 1
    assert received["_meta"][CACHED_KEY]["ageSeconds"] >= 0
    assert len(stage.link.sent) == 1
    assert stage.server_queue.running == 0


@pytest.mark.parametrize("value", [7, "text", {"sum": 3}])
async def test_a_plain_server_s_value_is_given_again_as_it_is(value: Any) -> None:
    stage = Stage.of(KEPT)
    received = [answer(stage, call(), Result(raw(value), is_bare=True)) for _ in range(2)]
    assert [payload_of(each) for each in received] == [value, value]
    assert len(stage.link.sent) == 1


async def test_a_call_answered_from_memory_is_recorded_like_any_other() -> None:
    stage = Stage.of(KEPT)
    answer(stage, call(), DONE)
    answer(stage, call(), DONE)
    assert [(name, server) for name, server, _ in stage.notes.ends] == [("files.read", SERVER)] * 2


async def test_a_tool_that_is_not_named_is_always_asked() -> None:
    stage = Stage.of(KEPT)
    answer(stage, call("files.write"), Result(raw({}), ttl_seconds=60.0))
    assert fresh(stage, call("files.write"))


async def test_a_users_result_is_given_again_to_that_user_alone() -> None:
    stage = Stage.of(KEPT)
    ann, bob = ({"X-User-Id": name} for name in ("ann", "bob"))
    answer(stage, msgspec.structs.replace(call(), headers=ann), DONE)
    assert fresh(stage, msgspec.structs.replace(call(), headers=bob))
    assert fresh(stage, call())
    assert not fresh(stage, msgspec.structs.replace(call(), headers={"x-user-id": "ann"}))


@pytest.mark.parametrize(
    "another",
    [
        call(caller=OTHER),
        call(caller=NAMESAKE),
        call(caller=msgspec.structs.replace(ANYONE, rights="few")),
        call(arguments={"path": "/"}),
        msgspec.structs.replace(call(), arguments=msgspec.Raw(b"{ }")),
        msgspec.structs.replace(call(), extra={"task": raw({})}),
        msgspec.structs.replace(call(), headers={"X-User-Id": "ann"}),
    ],
    ids=[
        "another caller",
        "another tenant's",
        "with other rights",
        "other arguments",
        "other bytes",
        "more members",
        "a user's",
    ],
)
async def test_a_result_is_the_callers_own_for_these_very_arguments(another: Call) -> None:
    stage = Stage.of(KEPT)
    answer(stage, call(), DONE)
    assert fresh(stage, another)
    assert not fresh(stage, call())


async def test_members_beside_the_arguments_are_distinguished_wherever_one_ends() -> None:
    stage = Stage.of(KEPT)
    one = msgspec.structs.replace(call(), extra={"a": raw("b"), "c": raw("d")})
    two = msgspec.structs.replace(call(), extra={'a\0"b"\0c': raw("d")})
    answer(stage, one, DONE)
    assert fresh(stage, two)


@pytest.mark.parametrize("outcome", [Result(raw({}), is_error=True), Lost(SERVER, "gone", executed="unknown")])
async def test_failures_are_never_cached(outcome: Outcome) -> None:
    stage = Stage.of(KEPT)
    answer(stage, call(), outcome)
    assert fresh(stage, call())


async def test_the_callers_own_metadata_makes_no_difference() -> None:
    stage = Stage.of(KEPT)
    answer(stage, msgspec.structs.replace(call(), meta={"traceparent": raw("1")}), DONE)
    assert not fresh(stage, msgspec.structs.replace(call(), meta={"traceparent": raw("2")}))


async def test_a_tool_that_is_described_anew_is_asked_anew() -> None:
    stage = Stage.of(KEPT)
    answer(stage, call(), DONE)
    stage.hub.publish(ready(tool("read", description="another"), rules=KEPT.rules))
    assert fresh(stage, call())


async def test_invalid_arguments_are_refused_despite_a_cached_result() -> None:
    strict = tool("read", inputSchema={"type": "object", "required": ["path"]})
    stage = Stage.of(ready(strict, rules=KEPT.rules))
    answer(stage, call(arguments={"path": 1}), DONE)
    assert stage.start(call())[1].fault.reason == "bad_arguments"


async def test_a_caller_that_may_not_see_a_tool_gets_no_cached_result_of_it() -> None:
    stage = Stage.of(KEPT)
    answer(stage, call(), DONE)
    stripped = Caller(ANYONE.name, ANYONE.tenant, Grants(("files.write",)))
    assert stage.start(call(caller=stripped))[1].fault.reason == "unknown_tool"


# -- resources, as their server says -------------------------------------------------------------------------------


async def test_a_resource_is_given_again_while_its_server_lets_it() -> None:
    stage = Stage.of(KEPT)
    answer(stage, read(), Result(raw({"contents": []}), ttl_seconds=60.0))
    assert not fresh(stage, read())
    assert fresh(stage, read("file:///other"))
    assert fresh(stage, read(caller=OTHER))


async def test_a_resource_without_cache_hints_is_always_read() -> None:
    stage = Stage.of(KEPT)
    answer(stage, read(), Result(raw({"contents": []})))
    assert fresh(stage, read())


async def test_public_results_are_returned_to_all_callers_that_may_read_them() -> None:
    stage = Stage.of(KEPT)
    answer(stage, read(), Result(raw({"contents": []}), ttl_seconds=60.0, is_public=True))
    assert not fresh(stage, read(caller=OTHER))
    limited = Caller("limited", "default", Grants(("files.read",)))
    assert stage.start(read(caller=limited))[1].fault.reason == "unknown_resource"


async def test_public_results_of_an_untrusted_server_stay_private() -> None:
    stage = Stage.of(msgspec.structs.replace(KEPT, rules=ToolRules(cached=("read",), cache_seconds=10.0)))
    for asked in (read(), call("files.read")):
        answer(stage, asked, Result(raw({"contents": []}), ttl_seconds=60.0, is_public=True))
        assert not fresh(stage, asked)
        assert fresh(stage, msgspec.structs.replace(asked, caller=OTHER))


async def test_a_callers_own_cached_result_precedes_a_public_one() -> None:
    stage = Stage.of(KEPT)
    answer(stage, read(), Result(raw({"whose": "mine"}), ttl_seconds=60.0))
    answer(stage, read(caller=OTHER), Result(raw({"whose": "everybody's"}), ttl_seconds=60.0, is_public=True))
    assert payload_of(answer(stage, read(), DONE))["whose"] == "mine"
    assert payload_of(answer(stage, read(caller=NAMESAKE), DONE))["whose"] == "everybody's"


async def test_an_update_makes_the_hub_forget_that_resource_and_no_other() -> None:
    stage = Stage.of(KEPT)
    for uri in (NOTES, "file:///other"):
        answer(stage, read(uri), Result(raw({}), ttl_seconds=60.0))
    stage.hub.result_cache.forget(SERVER, NOTES)
    stage.hub.result_cache.forget(SERVER, "file:///never-read")
    assert fresh(stage, read())
    assert not fresh(stage, read("file:///other"))


async def test_a_prompt_and_a_completion_are_always_asked() -> None:
    stage = Stage.of(KEPT)
    answer(stage, call("file:///notes", kind="uri_argument"), Result(raw({}), ttl_seconds=60.0))
    assert fresh(stage, call("file:///notes", kind="uri_argument"))


# -- servers that go -----------------------------------------------------------------------------------------------


async def test_cached_results_of_a_removed_server_are_dropped() -> None:
    stage = Stage.of(KEPT)
    answer(stage, call(), DONE)
    stage.hub.close_server_queue(SERVER)
    assert len(stage.hub.result_cache) == 0


@pytest.mark.parametrize("comes_back", [True, False])
async def test_late_results_of_a_replaced_server_are_not_cached(*, comes_back: bool) -> None:
    stage = Stage.of(KEPT)
    late, _ = stage.start()
    if comes_back:
        server_queue = ServerQueue(SERVER, stage.hub.limits)
        server_queue.attach(HeldLink())
        stage.hub.open_server_queue(server_queue, KEPT)
    else:
        stage.hub.close_server_queue(SERVER)
    late.finish(DONE)
    assert len(stage.hub.result_cache) == 0


# -- time and room, with the test's own clock ----------------------------------------------------------------------


async def a_call(asked: Call) -> InFlight:
    inflight, _ = Stage.of(KEPT).start(asked)
    return inflight


async def test_a_result_is_given_again_until_its_time_is_over() -> None:
    recall, asked = ResultCache(), await a_call(call())
    recall.store(asked, DONE, 10.0, 100.0)
    known = recall.find(asked, 107.5)
    assert known is not None
    assert json.loads(bytes(known.payload))["_meta"] == {CACHED_KEY: {"ageSeconds": 7.5}}
    assert recall.find(asked, 110.0) is None
    assert len(recall) == 0


async def test_nothing_is_kept_for_more_than_a_day() -> None:
    recall, asked = ResultCache(), await a_call(read())
    recall.store(asked, Result(raw({}), ttl_seconds=1e300), 0.0, 0.0)
    assert recall.find(asked, SECONDS_MAX - 1) is not None
    assert recall.find(asked, SECONDS_MAX) is None


@pytest.mark.parametrize("meta", [None, 7, "text", []])
async def test_invalid_metadata_is_replaced_by_the_cache_mark(meta: object) -> None:
    recall, asked = ResultCache(), await a_call(call())
    recall.store(asked, Result(raw({"_meta": meta}), is_typed=True), 10.0, 0.0)
    known = recall.find(asked, 1.0)
    assert known is not None
    assert known.is_typed
    assert json.loads(bytes(known.payload)) == {"_meta": {CACHED_KEY: {"ageSeconds": 1.0}}}


@pytest.mark.parametrize("changed", ["this name", "the server", "over a thousand others"])
async def test_a_result_is_not_kept_if_its_resource_changed_meanwhile(changed: str) -> None:
    recall, asked = ResultCache(), await a_call(read())
    before = recall.changes
    server, name = asked.target.feature.server, asked.name
    if changed == "over a thousand others":
        for number in range(CHANGES_MAX + 1):
            recall.forget(server, f"other:{number}")
    else:
        recall.forget(server, name if changed == "this name" else None)
    recall.store(asked, Result(raw({}), ttl_seconds=10.0), 0.0, 0.0, before)
    assert recall.find(asked, 1.0) is None
    recall.forget(server, "another")
    recall.store(asked, Result(raw({}), ttl_seconds=10.0), 0.0, 0.0, recall.changes - 1)
    assert recall.find(asked, 1.0) is not None


async def test_a_newer_result_takes_the_place_of_the_older() -> None:
    recall, asked = ResultCache(), await a_call(call())
    recall.store(asked, Result(raw({"n": 1})), 10.0, 0.0)
    recall.store(asked, Result(raw({"n": 2})), 10.0, 1.0)
    known = recall.find(asked, 2.0)
    assert known is not None
    assert json.loads(bytes(known.payload))["n"] == 2
    assert len(recall) == 1


async def test_with_no_room_the_one_unused_for_longest_goes() -> None:
    recall = ResultCache(limit_bytes=2 * (ENTRY_BYTES + 100))
    one, two, three = [await a_call(call(arguments={"n": n})) for n in range(3)]
    recall.store(one, DONE, 10.0, 0.0)
    recall.store(two, DONE, 10.0, 0.0)
    assert recall.find(one, 1.0) is not None
    recall.store(three, DONE, 10.0, 2.0)
    assert [recall.find(asked, 3.0) is not None for asked in (one, two, three)] == [True, False, True]


async def test_many_tiny_results_take_no_more_room_than_is_allowed() -> None:
    recall = ResultCache(limit_bytes=100 * ENTRY_BYTES)
    for n in range(500):
        recall.store(await a_call(call(arguments={"n": n})), DONE, 10.0, 0.0)
    assert 0 < len(recall) < 100


async def test_a_result_that_would_push_out_too_many_others_is_not_kept() -> None:
    recall, asked = ResultCache(), await a_call(call())
    recall.store(asked, Result(raw({"text": "x" * RESULT_BYTES_MAX})), 10.0, 0.0)
    assert recall.find(asked, 1.0) is None


async def test_forgetting_leaves_nothing_behind() -> None:
    recall = ResultCache()
    for uri in (NOTES, "file:///other"):
        recall.store(await a_call(read(uri)), DONE, 10.0, 0.0)
    recall.forget(SERVER, NOTES)
    assert len(recall) == 1
    recall.forget(SERVER)
    assert (len(recall), recall._size_bytes, recall._under) == (0, 0, {})


async def test_a_shorter_ttl_applies_to_cached_results() -> None:
    stage, recall = Stage.of(KEPT), ResultCache()
    asked, _ = stage.start(call())
    recall.store(asked, DONE, 10.0, 0.0)
    assert recall.find(asked, 5.0) is not None
    shorter = ready(tool("read"), rules=ToolRules(cached=("read",), cache_seconds=2.0))
    stage.hub.publish(shorter)
    again, _ = stage.start(call())
    assert again.target.keep_seconds == 2.0
    assert recall.find(again, 1.5) is not None
    assert recall.find(again, 5.0) is None
    assert len(recall) == 0


@pytest.mark.parametrize(
    ("said_ms", "age", "left"),
    [(10_000, 4.0, 6_000), (10_000, 9.9999, 0), (10_000.5, 1.0, 9_000), (1e18, 1.0, 86_399_000)],
)
def test_a_cached_result_has_the_remaining_ttl(said_ms: float, age: float, left: int) -> None:
    result = Result(raw({"contents": [], "ttlMs": said_ms, "cacheScope": "private"}), ttl_seconds=said_ms / 1000)
    response = json.loads(bytes(recall_module._with_age(result, age).payload))
    assert (response["ttlMs"], response["cacheScope"]) == (left, "private")


def test_a_result_without_a_usable_ttl_gets_none() -> None:
    odd = json.loads(bytes(recall_module._with_age(Result(raw({"ttlMs": "soon"})), 1.0).payload))
    assert odd["ttlMs"] == "soon"
    assert "ttlMs" not in json.loads(bytes(recall_module._with_age(Result(raw({}), ttl_seconds=5.0), 1.0).payload))


async def test_results_that_name_a_task_are_not_cached() -> None:
    stage = Stage.of(KEPT)
    answer(stage, call("files.read"), Result(raw({"taskId": "t"}), is_typed=True, task_of=SERVER))
    assert fresh(stage, call("files.read"))
