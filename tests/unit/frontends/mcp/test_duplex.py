"""A conversation in both eras: every method, notifications, and that nothing is left when it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.event_loop import LONG_BYTES
from isthmus.core.watch import log_levels as levels
from isthmus.frontends.mcp.exchange import JsonRpcReply
from isthmus.frontends.mcp.methods import McpMethods
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import LOG_LEVELS, LogMessage, Surface
from isthmus.model.fault_table import Cancelled, ServerError
from isthmus.model.names import ServerName
from isthmus.wire.jsonrpc import Request
from isthmus.wire.mcp.messages import Implementation
from tests.unit.core.doubles import PROGRESS, SERVER, HeldPool, prompt, raw, ready, resource, template, tool
from tests.unit.frontends.mcp.doubles import (
    LOG_KEY,
    META,
    NOTES,
    OFFER,
    SUBSCRIPTION_KEY,
    TREE,
    Hosted,
    Talk,
    outcome,
)

SLOW = ServerName("slow")
NOT_FOUND = -32601
INVALID = -32602
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
UPDATED = "notifications/resources/updated"


def talking(server_status: ServerStatus = OFFER, **more: Any) -> tuple[Hosted, Talk]:
    hosted = Hosted(server_status)
    return hosted, Talk(hosted, **more)


def starting(hosted: Hosted, server: ServerName = SLOW) -> None:
    """A server whose first attempt to connect takes its time."""
    hosted.hub.open_server_queue(ServerQueue(server, hosted.hub.limits), ServerStatus(server))


def logged(level: str) -> LogMessage:
    return LogMessage(level, {"level": raw(level), "data": raw("x")})  # type: ignore[arg-type]


# -- greetings and lists -------------------------------------------------------------------------------------------


PLAIN = ready(tool(), abilities=frozenset({"tools"}))
TOOLS_ONLY = {"tools": {"listChanged": True}}
ALL_OF_IT = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}


@pytest.mark.parametrize(("server_status", "capabilities"), [(PLAIN, TOOLS_ONLY), (OFFER, ALL_OF_IT)])
async def test_a_caller_gets_the_real_capabilities_of_the_servers(
    server_status: ServerStatus, capabilities: Any
) -> None:
    _, talk = talking(server_status)
    assert (await talk.ask("initialize", HELLO, id=1))["capabilities"] == capabilities
    assert (await talk.ask_modern("server/discover", id=2))["capabilities"] == capabilities


async def test_a_caller_gets_only_the_capabilities_of_servers_that_it_sees() -> None:
    _, talk = talking(caller=Caller("limited", "default", Grants(("other",))))
    assert (await talk.ask("initialize", HELLO))["capabilities"] == TOOLS_ONLY


@pytest.mark.parametrize(
    ("method", "member", "entry"),
    [
        ("tools/list", "tools", {"name": "files.read", "inputSchema": {"type": "object"}}),
        ("prompts/list", "prompts", {"name": "files.ask"}),
        ("resources/list", "resources", {"uri": NOTES, "name": NOTES}),
        ("resources/templates/list", "resourceTemplates", {"uriTemplate": TREE, "name": TREE}),
    ],
)
async def test_every_list_is_returned_in_both_eras_and_names_the_missing_servers(
    method: str, member: str, entry: dict[str, Any]
) -> None:
    hosted, talk = talking()
    hosted.hub.open_server_queue(
        ServerQueue(SLOW, hosted.hub.limits), ServerStatus(SLOW, "retrying", "gone", is_settled=True)
    )
    missing = {"isthmus/missing": {"slow": {"state": "retrying", "reason": "gone", "listed": False}}}
    assert await talk.ask(method, id=1) == {member: [entry], "_meta": missing}
    modern = {"resultType": "complete", member: [entry], "ttlMs": 0, "cacheScope": "private", "_meta": missing}
    assert await talk.ask_modern(method, id=2) == modern
    assert await talk.ask(method, {"cursor": "x"}, id=3) == INVALID
    assert await talk.ask_modern(method, {"cursor": None}, id=4) == modern


async def test_a_greeting_needs_a_version() -> None:
    _, talk = talking()
    assert await talk.ask("initialize", {}) == INVALID
    assert (
        await talk.ask("tools/list", {"_meta": {**META, "io.modelcontextprotocol/protocolVersion": "1"}}, id=2)
        == -32022
    )


async def test_on_one_servers_surface_everything_has_its_own_name() -> None:
    _, talk = talking(surface=Surface("own", SERVER))
    assert [entry["name"] for entry in (await talk.ask("prompts/list"))["prompts"]] == ["ask"]


# -- calls ---------------------------------------------------------------------------------------------------------


ARGUMENT = {"name": "path", "value": "/"}
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("tools/call", {"name": "files.read", "arguments": {}}, "read"),
    ("prompts/get", {"name": "files.ask"}, "ask"),
    ("resources/read", {"uri": NOTES}, NOTES),
    ("resources/read", {"uri": "file:///new"}, "file:///new"),
    ("resources/read", {"uri": f"isthmus://hub/files/{NOTES}"}, NOTES),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "files.ask"}, "argument": ARGUMENT}, "ask"),
    ("completion/complete", {"ref": {"type": "ref/resource", "uri": TREE}, "argument": ARGUMENT}, TREE),
]


@pytest.mark.parametrize(("method", "params", "own"), CALLS)
async def test_every_call_of_the_earlier_era_reaches_its_server_and_comes_back(
    method: str, params: dict[str, Any], own: str
) -> None:
    hosted, talk = talking()
    talk.say(method, params, id=7)
    assert hosted.last_call.name == own
    hosted.answer(resultType="complete", ok=1)
    assert await talk.reply(7) == {"jsonrpc": "2.0", "id": 7, "result": {"ok": 1}}


@pytest.mark.parametrize(("method", "params", "own"), CALLS)
async def test_every_call_of_the_modern_era_reaches_its_server_and_comes_back(
    method: str, params: dict[str, Any], own: str
) -> None:
    hosted, talk = talking()
    talk.say(method, {**params, "_meta": META}, id=7)
    assert hosted.last_call.name == own
    hosted.answer(ok=1)
    hints = {"ttlMs": 0, "cacheScope": "private"} if method == "resources/read" else {}
    assert outcome(await talk.reply(7)) == {"resultType": "complete", **hints, "ok": 1}


@pytest.mark.parametrize(
    ("method", "params", "legacy"),
    [
        ("tools/call", {"name": "x"}, INVALID),
        ("prompts/get", {"name": "x"}, INVALID),
        ("resources/read", {"uri": "x:y"}, -32002),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {}}, INVALID),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "x:y"}, "argument": {}}, -32002),
    ],
)
async def test_unknown_names_have_the_code_of_the_callers_era(method: str, params: dict[str, Any], legacy: int) -> None:
    hosted, talk = talking()
    starting(hosted)  # the second server: a URI that nobody lists could be either's
    hosted.hub.publish(ready(server=SLOW))
    assert await talk.ask(method, params, id=1) == legacy
    assert await talk.ask_modern(method, params, id=2) == INVALID


async def test_a_resource_that_is_not_there_is_named() -> None:
    _, talk = talking(ready(abilities=frozenset({"tools"})))
    talk.say("resources/read", {"uri": "x:y"}, id=1)
    error = (await talk.reply(1))["error"]
    assert error["data"] == {"executed": "no", "reason": "unknown_resource", "uri": "x:y"}


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read", "completion/complete"])
async def test_a_call_that_cannot_be_read_is_refused(method: str) -> None:
    _, talk = talking()
    assert await talk.ask(method, id=1) == INVALID
    assert await talk.ask(method, {"_meta": {**META, "io.modelcontextprotocol/protocolVersion": "1"}}, id=2) == -32022


@pytest.mark.parametrize(
    ("era", "method"),
    [
        ("legacy", "server/discover"),
        ("legacy", "subscriptions/listen"),
        ("legacy", "nonsense"),
        ("modern", "initialize"),
        ("modern", "ping"),
        ("modern", "logging/setLevel"),
        ("modern", "resources/subscribe"),
        ("modern", "resources/unsubscribe"),
    ],
)
async def test_a_method_of_another_era_is_not_there(era: str, method: str) -> None:
    _, talk = talking()
    ask = talk.ask if era == "legacy" else talk.ask_modern
    assert await ask(method, {"level": "info", "uri": NOTES}) == NOT_FOUND


async def test_a_ping_is_answered() -> None:
    _, talk = talking()
    assert await talk.ask("ping") == {}


async def test_a_call_is_cancelled_by_its_id_and_by_nothing_else() -> None:
    hosted, talk = talking()
    talk.say("tools/call", {"name": "files.read"}, id="a")
    talk.say("notifications/cancelled", {"requestId": "b"})
    talk.say("notifications/cancelled", {})
    assert hosted.hub.running() == 1
    talk.say("notifications/cancelled", {"requestId": "a"})
    assert isinstance(hosted.last_call.outcome, Cancelled)
    assert outcome(await talk.reply("a")) == -32012


async def test_invalid_messages_are_returned_as_refused() -> None:
    _, talk = talking()
    for body, code in (
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0"}', -32600),
        (b'[{"jsonrpc":"2.0"}]', -32600),
    ):
        talk.receive(body)
        assert talk.refused.pop().code == code
    talk.receive(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert talk.refused == talk.messages == []


LONG = {"name": "files.read", "arguments": {"text": "x" * LONG_BYTES}}


async def test_messages_behind_a_long_one_wait_until_it_was_read() -> None:
    hosted, talk = talking()
    talk.say("tools/call", LONG, id="a")
    talk.say("tools/call", {"name": "files.read"}, id="b")
    talk.say("notifications/cancelled", {"requestId": "a"})
    talk.say("tools/call", LONG, id="c")
    talk.receive(b'"' + b"x" * LONG_BYTES)
    talk.say("ping", id="d")
    assert not talk.conversation.is_idle
    assert outcome(await talk.reply("d")) == {}
    assert talk.refused.pop().code == -32700
    assert outcome(await talk.reply("a")) == -32012
    assert hosted.hub.running() == 2, "b and c"


async def test_a_caller_that_leaves_during_a_long_message_has_nothing_run() -> None:
    hosted, talk = talking()
    talk.say("tools/call", LONG, id="a")
    talk.say("ping", id="b")
    talk.conversation.cancel_all("the caller has gone")
    assert talk.conversation.is_idle
    await talk.settle()
    assert hosted.stage.link.sent == talk.messages == []


async def test_the_bytes_of_long_calls_are_bounded_and_short_calls_are_not() -> None:
    hosted, talk = talking()
    hosted.hub.bytes_in_flight.caller_bytes = 3 * LONG_BYTES // 2
    talk.say("tools/call", LONG, id=1)
    talk.say("tools/call", LONG, id=2)
    assert (await talk.reply(2))["error"]["data"]["reason"] == "too_many_bytes"
    talk.say("tools/call", {"name": "files.read"}, id=3)
    assert hosted.hub.running() == 2
    talk.say("notifications/cancelled", {"requestId": 1})
    await talk.reply(1)
    talk.say("tools/call", LONG, id=4)
    assert await talk.ask("ping", id=5) == {}
    assert hosted.hub.running() == 2


async def test_a_defect_costs_one_answer() -> None:
    class Broken(McpMethods):
        async def answer(self, request: Request, *_: Any) -> JsonRpcReply:
            raise ZeroDivisionError

    hosted = Hosted()
    hosted.mcp_methods = Broken(hosted.hub, Implementation("isthmus", "1"))
    talk = Talk(hosted)
    assert await talk.ask("ping", id=1) == -32603
    async with asyncio.timeout(30):
        await talk.conversation.finish()


# -- servers that only start ---------------------------------------------------------------------------------------


async def test_a_call_waits_for_servers_that_only_start() -> None:
    hosted, talk = talking()
    starting(hosted)
    talk.say("tools/call", {"name": "slow.find"}, id=1)
    hosted.hub.publish(ready(tool("find", SLOW), server=SLOW))
    assert outcome(await talk.reply(1)) == -32011  # it was found; its server queue has no link in this test


async def test_a_call_withdrawn_while_it_waits_is_not_started() -> None:
    hosted, talk = talking()
    starting(hosted)
    talk.say("tools/call", {"name": "files.read"}, id=1)
    talk.say("notifications/cancelled", {"requestId": 1})
    hosted.hub.publish(ready(server=SLOW))
    assert outcome(await talk.reply(1)) == -32012
    assert hosted.stage.link.sent == []


async def test_a_call_that_waits_when_its_caller_leaves_is_not_started() -> None:
    hosted, talk = talking()
    starting(hosted)
    talk.say("tools/call", {"name": "files.read"}, id=1)
    talk.conversation.cancel_all("the caller has gone")
    hosted.hub.publish(ready(server=SLOW))
    await talk.settle()
    assert hosted.stage.link.sent == []


async def test_following_waits_for_servers_that_only_start() -> None:
    hosted, talk = talking(ServerStatus(SERVER))
    hosted.hub.close_server_queue(SERVER)
    starting(hosted, SERVER)
    talk.say("resources/subscribe", {"uri": NOTES}, id=1)
    hosted.hub.publish(OFFER)
    assert outcome(await talk.reply(1)) == {}
    assert hosted.announcer.asked == [f"+{NOTES}"]


# -- logs and progress ---------------------------------------------------------------------------------------------


def received_levels(talk: Talk) -> list[str]:
    return [
        received["params"]["level"]
        for received in talk.notifications()
        if received["method"] == "notifications/message"
    ]


async def hear_all(hosted: Hosted, talk: Talk, meta: dict[str, Any] | None = None) -> list[str]:
    """The levels that a caller hears of a call during which its server logs at every level."""
    talk.say("tools/call", {"name": "files.read", **({} if meta is None else {"_meta": meta})}, id="call")
    for level in LOG_LEVELS:
        hosted.last_call.emit(logged(level))
    hosted.answer()
    return received_levels(talk)


async def test_a_legacy_caller_without_a_level_gets_all_log_lines() -> None:
    hosted, talk = talking()
    assert await hear_all(hosted, talk) == list(LOG_LEVELS)
    assert hosted.last_call.call.log_level is None


async def test_a_legacy_caller_gets_its_level_and_servers_are_asked_for_it() -> None:
    hosted, talk = talking()
    talk.say("notifications/initialized")
    assert hosted.level() is None
    assert await talk.ask("logging/setLevel", {"level": "error"}) == {}
    assert hosted.level() == "error"
    assert await hear_all(hosted, talk) == ["error", "critical", "alert", "emergency"]
    assert hosted.last_call.call.log_level == "error"


async def test_a_level_is_not_held_up_by_a_server_that_the_caller_may_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "TAKE_SECONDS", 3600.0)
    hosted, talk = talking()
    silent = asyncio.get_running_loop().create_future()
    hosted.hub.levels.track(ServerName("hidden"), silent)
    assert await talk.ask("logging/setLevel", {"level": "error"}) == {}
    assert not silent.done()


@pytest.mark.parametrize("params", [{}, {"level": "loud"}, {"level": 3}])
async def test_an_invalid_log_level_is_refused(params: dict[str, Any]) -> None:
    hosted, talk = talking()
    assert await talk.ask("logging/setLevel", params) == INVALID
    assert hosted.level() is None


async def test_a_modern_caller_gets_the_level_of_each_call() -> None:
    hosted, talk = talking()
    assert await hear_all(hosted, talk, META) == []
    assert await hear_all(hosted, talk, {**META, LOG_KEY: "alert"}) == ["alert", "emergency"]
    assert hosted.last_call.call.log_level == "alert"
    assert LOG_KEY not in hosted.last_call.call.meta


async def test_a_line_is_passed_on_as_the_server_gave_it() -> None:
    hosted, talk = talking()
    talk.say("tools/call", {"name": "files.read"}, id=1)
    hosted.last_call.emit(LogMessage("info", {"level": raw("info"), "logger": raw("db"), "data": raw({"n": 1})}))
    params = {"level": "info", "logger": "db", "data": {"n": 1}}
    assert talk.notifications() == [{"jsonrpc": "2.0", "method": "notifications/message", "params": params}]


async def test_progress_comes_under_the_callers_own_token() -> None:
    hosted, talk = talking()
    talk.say("resources/read", {"uri": NOTES, "_meta": {"progressToken": "mine"}}, id=1)
    assert hosted.last_call.call.wants_progress
    hosted.last_call.emit(PROGRESS)
    assert talk.notifications()[0]["params"] == {"progressToken": "mine", "progress": 1}


async def test_a_caller_that_reads_slowly_misses_events_and_no_answer() -> None:
    hosted, talk = talking()
    talk.say("tools/call", {"name": "files.read"}, id=1)
    talk.is_crowded = True
    hosted.last_call.emit(logged("error"))
    hosted.answer(ok=1)
    assert outcome(await talk.reply(1)) == {"ok": 1}
    assert talk.notifications() == []


# -- changes of lists ----------------------------------------------------------------------------------------------


async def test_changes_are_notified_from_initialize_on_and_once_however_often_it_is_sent() -> None:
    hosted, talk = talking()
    hosted.hub.publish(ready(tool("early")))
    assert talk.messages == []
    talk.say("notifications/initialized")
    talk.say("notifications/initialized")
    hosted.hub.publish(ready(tool("late"), prompts=[prompt("late")], resources=[resource("late:")]))
    assert [received["method"] for received in talk.notifications()] == [
        f"notifications/{topic}/list_changed" for topic in ("tools", "prompts", "resources")
    ]
    talk.conversation.stop_notifying()
    assert hosted.is_forgotten()


# -- following resources, the earlier way --------------------------------------------------------------------------


async def test_an_update_is_sent_under_the_uri_that_was_followed() -> None:
    hosted, talk = talking()
    qualified = f"isthmus://hub/files/{NOTES}"
    assert await talk.ask("resources/subscribe", {"uri": qualified}, id=1) == {}
    assert await talk.ask("resources/subscribe", {"uri": qualified}, id=2) == {}
    assert hosted.announcer.asked == [f"+{NOTES}"]
    hosted.hub.subscriptions.updated(SERVER, NOTES)
    assert talk.notifications() == [{"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": qualified}}]
    assert await talk.ask("resources/unsubscribe", {"uri": qualified}, id=3) == {}
    assert await talk.ask("resources/unsubscribe", {"uri": "never:followed"}, id=4) == {}
    hosted.hub.subscriptions.updated(SERVER, NOTES)
    assert (hosted.announcer.asked, len(talk.notifications())) == ([f"+{NOTES}", f"-{NOTES}"], 1)


@pytest.mark.parametrize("is_modern", [False, True])
async def test_the_subscriber_is_the_caller(*, is_modern: bool) -> None:
    hosted, talk = talking()
    can: dict[str, Any] = {"roots": {}}
    if is_modern:
        meta = {"_meta": {**META, "io.modelcontextprotocol/clientCapabilities": can}}
        talk.say("subscriptions/listen", {"notifications": {"resourceSubscriptions": [NOTES]}, **meta}, id=1)
        await talk.until(lambda: len(talk.notifications()) == 1)
    else:
        meta = {}
        await talk.ask("initialize", {**HELLO, "capabilities": can}, id=0)
        await talk.ask("resources/subscribe", {"uri": NOTES}, id=1)
    talk.say("tools/call", {"name": "files.read", **meta}, id=2)
    call = hosted.last_call.call
    assert call.session
    (follower,) = hosted.hub.subscriptions.followers(SERVER)
    assert follower == (call.caller, call.client_caps, call.session)


@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
async def test_following_needs_a_uri(method: str) -> None:
    _, talk = talking()
    assert await talk.ask(method, {"uri": 7}) == INVALID


async def test_an_impossible_subscription_is_refused_with_the_reason() -> None:
    hosted, talk = talking(ready(tool(), abilities=frozenset({"tools"})))
    assert await talk.ask("resources/subscribe", {"uri": "x:y"}, id=1) == -32002
    hosted.hub.publish(OFFER)
    hosted.announcer.refusal = ServerError(SERVER, -32000, "not that one")
    assert await talk.ask("resources/subscribe", {"uri": NOTES}, id=2) == -32000
    assert hosted.is_forgotten()


async def test_a_conversation_that_ends_lets_go_of_everything() -> None:
    hosted, talk = talking()
    talk.say("notifications/initialized")
    await talk.ask("logging/setLevel", {"level": "debug"}, id=1)
    await talk.ask("resources/subscribe", {"uri": NOTES}, id=2)
    talk.say("subscriptions/listen", listen(resourceSubscriptions=[NOTES], toolsListChanged=True), id=3)
    await talk.until(lambda: len(talk.notifications()) == 1)
    talk.conversation.stop_notifying()
    talk.say("notifications/initialized")  # read late, too
    assert hosted.is_forgotten()
    assert hosted.announcer.asked == [f"+{NOTES}", f"-{NOTES}"]


async def test_servers_learn_that_a_conversation_has_ended() -> None:
    hosted, talk = talking()
    pool = HeldPool()
    hosted.stage.server_queue.pool = pool
    talk.conversation.cancel_all("the caller has left")
    assert pool.gone == [talk.conversation._client.session]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("logging/setLevel", {"level": "debug"}),
        ("resources/subscribe", {"uri": NOTES}),
        ("subscriptions/listen", None),
    ],
)
async def test_a_request_that_is_read_after_the_end_leaves_nothing(method: str, params: dict[str, Any] | None) -> None:
    hosted, talk = talking()
    talk.say(method, params or listen(resourceSubscriptions=[NOTES], toolsListChanged=True), id=1)
    talk.conversation.stop_notifying()  # before the request's turn has come
    await talk.settle()
    assert hosted.is_forgotten()


@pytest.mark.parametrize("method", ["resources/subscribe", "subscriptions/listen"])
async def test_a_request_that_is_under_way_at_the_end_leaves_nothing(method: str) -> None:
    hosted, talk = talking()
    hosted.announcer.opened.clear()
    params = {"uri": NOTES} if method == "resources/subscribe" else listen(resourceSubscriptions=[NOTES])
    talk.say(method, params, id=1)
    await until_asked(hosted)
    talk.conversation.stop_notifying()
    hosted.announcer.opened.set()
    await talk.settle()
    assert hosted.is_forgotten()
    assert talk.notifications() == []


async def until_asked(hosted: Hosted) -> None:
    async with asyncio.timeout(30):
        while not hosted.announcer.asked:  # noqa: ASYNC110 - the announcer has no notification
            await asyncio.sleep(0)


# -- subscriptions, the modern way ---------------------------------------------------------------------------------


def listen(**wanted: Any) -> dict[str, Any]:
    return {"notifications": wanted, "_meta": META}


def acknowledged(id: Any, **wanted: Any) -> dict[str, Any]:
    params = {"_meta": {SUBSCRIPTION_KEY: id}, "notifications": wanted}
    return {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}


async def test_a_subscription_is_acknowledged_and_everything_on_it_is_marked() -> None:
    hosted, talk = talking()
    talk.say(
        "subscriptions/listen", listen(promptsListChanged=True, resourceSubscriptions=[NOTES, "file:///b"]), id="s"
    )
    await talk.until(lambda: len(talk.notifications()) == 1)
    assert talk.messages == [acknowledged("s", promptsListChanged=True, resourceSubscriptions=[NOTES, "file:///b"])]
    hosted.hub.publish(ready(tool("new"), prompts=[prompt("new")], templates=[template(TREE)]))
    hosted.hub.subscriptions.updated(SERVER, NOTES)
    mark = {SUBSCRIPTION_KEY: "s"}
    assert talk.messages[1:] == [
        {"jsonrpc": "2.0", "method": "notifications/prompts/list_changed", "params": {"_meta": mark}},
        {"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": NOTES, "_meta": mark}},
    ]


async def test_an_impossible_subscription_is_not_acknowledged() -> None:
    hosted, talk = talking()
    starting(hosted)
    hosted.hub.publish(ready(server=SLOW))
    talk.say("subscriptions/listen", listen(resourceSubscriptions=["x:y", NOTES]), id=1)
    await talk.until(lambda: len(talk.messages) == 1)
    assert talk.messages == [acknowledged(1, resourceSubscriptions=[NOTES])]


async def test_an_update_before_the_acknowledgement_is_sent_after_it() -> None:
    hosted, talk = talking()
    hosted.announcer.opened.clear()
    talk.say("subscriptions/listen", listen(resourceSubscriptions=[NOTES]), id=1)
    await until_asked(hosted)
    for _ in range(3):
        hosted.hub.subscriptions.updated(SERVER, NOTES)
    assert talk.messages == []
    hosted.announcer.opened.set()
    await talk.until(lambda: len(talk.messages) == 2)
    assert [request["method"] for request in talk.messages] == ["notifications/subscriptions/acknowledged", UPDATED]


async def test_a_subscription_ends_when_it_is_cancelled() -> None:
    hosted, talk = talking()
    talk.say("subscriptions/listen", listen(toolsListChanged=True, resourceSubscriptions=[NOTES]), id=1)
    await talk.until(lambda: len(talk.messages) == 1)
    talk.say("notifications/cancelled", {"requestId": 1})
    assert hosted.is_forgotten()


async def test_a_subscription_that_is_cancelled_before_it_was_acknowledged_never_is() -> None:
    hosted, talk = talking()
    hosted.announcer.opened.clear()
    talk.say("subscriptions/listen", listen(resourceSubscriptions=[NOTES]), id=1)
    await until_asked(hosted)
    talk.say("notifications/cancelled", {"requestId": 1})
    hosted.announcer.opened.set()
    await talk.settle()
    assert talk.messages == []
    assert hosted.is_forgotten()


async def test_a_subscription_of_the_same_id_takes_the_others_place() -> None:
    hosted, talk = talking()
    for count in (1, 2):
        talk.say("subscriptions/listen", listen(resourceSubscriptions=[NOTES]), id=1)
        await talk.until(lambda expected=count: len(talk.messages) == expected)  # type: ignore[misc]
    hosted.hub.subscriptions.updated(SERVER, NOTES)
    assert len(talk.messages) == 3
    talk.conversation.stop_notifying()
    assert hosted.is_forgotten()


async def test_a_subscription_to_nothing_readable_is_refused() -> None:
    _, talk = talking()
    assert await talk.ask_modern("subscriptions/listen", {"notifications": 7}) == INVALID


# -- the end -------------------------------------------------------------------------------------------------------


async def test_finishing_waits_for_calls_and_not_for_subscriptions() -> None:
    hosted, talk = talking()
    talk.say("subscriptions/listen", listen(toolsListChanged=True), id=1)
    talk.say("tools/call", {"name": "files.read"}, id=2)
    await talk.until(lambda: len(talk.notifications()) == 1)
    finishing = asyncio.ensure_future(talk.conversation.finish())
    await asyncio.sleep(0)
    assert not finishing.done()
    hosted.answer()
    async with asyncio.timeout(30):
        await finishing
    assert outcome(await talk.reply(2)) == {}
    assert hosted.is_forgotten()


async def test_a_caller_that_has_gone_has_its_calls_withdrawn() -> None:
    hosted, talk = talking()
    for id in range(3):
        talk.say("tools/call", {"name": "files.read"}, id=id)
    talk.conversation.cancel_all("it has gone")
    assert all(isinstance(inflight.outcome, Cancelled) for inflight in hosted.stage.link.sent)
    assert hosted.hub.running() == 0


# -- batches -------------------------------------------------------------------------------------------------------


async def test_the_messages_of_a_batch_are_taken_one_by_one_where_the_revision_has_batches() -> None:
    hosted = Hosted()
    talk = Talk(hosted)
    hello = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    await talk.ask("initialize", hello, id=0)
    ping = {"jsonrpc": "2.0", "id": "a", "method": "ping"}
    call = {"jsonrpc": "2.0", "id": "b", "method": "tools/call", "params": {"name": "files.read"}}
    talk.receive(json.dumps([ping, call, [ping], 7]).encode())
    assert talk.refused == []
    hosted.answer(content=[])
    assert [outcome(await talk.reply(id)) for id in ("a", "b")] == [{}, {"content": []}]
    refused = [message["error"]["code"] for message in talk.messages if message.get("id", "") is None]
    assert refused == [-32600, -32600]


@pytest.mark.parametrize(("version", "count"), [("2025-06-18", 1), ("2025-03-26", 0), ("2025-03-26", 101)])
async def test_other_batches_are_refused(version: str, count: int) -> None:
    talk = Talk(Hosted())
    hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    await talk.ask("initialize", hello)
    talk.receive(json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "ping"}] * count).encode())
    assert talk.refused.pop().code == -32600
