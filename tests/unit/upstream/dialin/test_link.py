"""One link for all callers of a dial-in server: questions, notifications, cancellations and bounds on it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from isthmus.core.watch.log_levels import LogLevels
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Answered, Call, LogMessage, Progress
from isthmus.model.fault_table import BadArguments, Lost, NotConnected
from isthmus.upstream import base_link as link_module
from isthmus.upstream.dialin import link as module
from isthmus.upstream.dialin.link import CallerMarkDialect, NodeServer, mark_of
from isthmus.upstream.dialin.settings import DialInSettings
from isthmus.wire.jsonrpc import object_members
from isthmus.wire.mcp.forwarded_methods import passed_meta
from isthmus.wire.mcp.messages import CONVERSATION_KEY, ConversationMark, Implementation, read_mark
from tests.unit.core.doubles import ANYONE, Listener, call, raw
from tests.unit.upstream.dialin.scene import Dialler, Json, Scene, scene, until
from tests.unit.upstream.doubles import text_of

ANN = Caller("ann", "default", Grants(("*",)))
FORMS = frozenset({"elicitation"})
NOW = "kitchen_clock.now"
QUESTION = {"method": "elicitation/create", "params": {"message": "when?", "requestedSchema": {}}}


async def holding(at: Scene) -> Dialler:
    server = Dialler()
    server.holds_calls = True
    server.capabilities["logging"] = {}
    return await at.agent_server(server)


async def sent(server: Dialler, calls: int = 1) -> Json:
    """The so many-th call that the server was sent."""
    await until(lambda: len(server.calls()) == calls)
    return server.calls()[-1]


def replies(server: Dialler) -> list[Json]:
    """What the hub answered to the server's own requests."""
    return [message for message in server.asked if "method" not in message]


def methods(server: Dialler) -> list[str]:
    """The requests and notifications that the server received, by name."""
    return [message["method"] for message in server.asked if "method" in message]


async def test_progress_and_logs_reach_the_call() -> None:
    async with scene() as at:
        server = await holding(at)
        listener = Listener()
        at.hub.start(msgspec.structs.replace(call(NOW), wants_progress=True), listener)
        request = await sent(server)
        token = request["params"]["_meta"]["progressToken"]
        server.say(method="notifications/progress", params={"progressToken": token, "progress": 1})
        server.say(method="notifications/message", params={"level": "info", "data": "ticking"})
        server.answer(request["id"])
        assert [type(event) for event in listener.events] == [Progress, LogMessage]
        assert listener.ends


async def test_a_question_goes_to_the_only_caller_with_calls() -> None:
    async with scene() as at:
        server = await holding(at)
        _, first = at.start(NOW, client_caps=FORMS)
        await sent(server)
        server.say(id="q1", **QUESTION)
        ((question, reply),) = first.asked
        assert question.method == "elicitation/create"
        reply(Answered(raw({"action": "accept"})))
        assert replies(server) == [{"jsonrpc": "2.0", "id": "q1", "result": {"action": "accept"}}]
        at.start(NOW, caller=ANN, client_caps=FORMS)
        await sent(server, 2)
        server.say(id="q2", **QUESTION)
        assert "error" in replies(server)[-1]
        assert len(first.asked) == 1


async def test_a_caller_that_cannot_be_asked_is_not() -> None:
    async with scene() as at:
        server = await holding(at)
        _, listener = at.start(NOW)
        await sent(server)
        server.say(id=1, **QUESTION)
        assert not listener.asked
        assert "error" in replies(server)[-1]


async def test_a_question_between_calls_is_declined_and_soon_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as at:
        server = await holding(at)
        _, first = at.start(NOW, client_caps=FORMS)
        server.answer((await sent(server))["id"])
        assert first.ends
        server.say(id="idle", method="roots/list")
        assert "error" in replies(server)[-1]
        _, second = at.start(NOW, client_caps=FORMS)
        await sent(server, 2)
        server.say(id="q", **QUESTION)
        assert not second.asked
        await pong(server)
        monkeypatch.setattr(module, "STRAY_SECONDS_AFTER_PING", -1.0)
        server.say(id="q2", **QUESTION)
        assert len(second.asked) == 1


async def pong(server: Dialler) -> None:
    """Wait until the server is asked whether it is there, and say so."""
    await until(lambda: "ping" in methods(server))
    server.say(id=next(each["id"] for each in server.asked if each.get("method") == "ping"), result={})


async def given_up(at: Scene, server: Dialler) -> tuple[int, Listener]:
    """A call that was given up, and another caller's that is under way."""
    inflight, _ = at.start(NOW, client_caps=FORMS)
    request = await sent(server)
    inflight.cancel("nobody wants to know any more")
    _, other = at.start(NOW, caller=ANN, client_caps=FORMS)
    await sent(server, 2)
    server.say(id="q", **QUESTION)
    assert not other.asked
    return request["id"], other


async def test_once_a_call_that_was_given_up_is_answered_all_the_same_others_can_be_asked() -> None:
    async with scene() as at:
        server = await holding(at)
        id, other = await given_up(at, server)
        server.say(id=id, error={"code": 0, "message": "Request cancelled"})
        server.say(id="q2", **QUESTION)
        assert len(other.asked) == 1


async def test_others_can_be_asked_a_moment_after_a_server_has_read_that_a_call_was_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene() as at:
        server = await holding(at)
        server.answers_pings = False
        _, other = await given_up(at, server)
        await until(lambda: "ping" in methods(server))
        assert methods(server).index("notifications/cancelled") < methods(server).index("ping")
        monkeypatch.setattr(module, "STRAY_SECONDS_AFTER_PING", -1.0)
        server.say(id="q2", **QUESTION)
        assert not other.asked
        await pong(server)
        server.say(id="q3", **QUESTION)
        assert len(other.asked) == 1


async def test_calls_over_the_watched_number_are_taken_for_ended_by_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene() as at:
        server = await holding(at)
        monkeypatch.setattr(module, "STRAYS_MAX", 0)
        id, other = await given_up(at, server)
        server.say(id=id, error={"code": 0, "message": "Request cancelled"})
        server.say(id="q2", **QUESTION)
        assert not other.asked
        monkeypatch.setattr(module, "STRAY_SECONDS_AFTER_PING", -1.0)
        await pong(server)
        server.say(id="q3", **QUESTION)
        assert len(other.asked) == 1


async def test_a_question_that_comes_with_the_greeting_waits_for_the_first_call() -> None:
    async with scene() as at:
        server = await holding(at)
        server.say(id="roots", method="roots/list")
        _, listener = at.start(NOW, client_caps=frozenset({"roots"}))
        await until(lambda: len(listener.asked) == 1)
        listener.asked[0][1](Answered(raw({"roots": []})))
        assert replies(server) == [{"jsonrpc": "2.0", "id": "roots", "result": {"roots": []}}]


async def test_a_call_that_is_given_up_is_cancelled_at_the_server() -> None:
    async with scene() as at:
        server = await holding(at)
        inflight, listener = at.start(NOW)
        request = await sent(server)
        inflight.cancel("nobody wants to know any more")
        await until(lambda: "notifications/cancelled" in methods(server))
        (received,) = (each for each in server.asked if each.get("method") == "notifications/cancelled")
        assert received["params"]["requestId"] == request["id"]
        assert listener.ends


async def test_a_line_break_inside_a_call_makes_no_second_message() -> None:
    async with scene() as at:
        server = await holding(at)
        at.hub.start(Call(ANYONE, EVERYTHING, NOW, msgspec.Raw(b'{"a":\n{"jsonrpc":\r\n"2.0"}}')), Listener())
        assert (await sent(server))["params"]["arguments"] == {"a": {"jsonrpc": "2.0"}}


async def test_arguments_that_would_end_a_pipes_connection_are_refused() -> None:
    async with scene() as at:
        server = await holding(at)
        _, other = at.start(NOW)
        await sent(server)
        huge = raw({"text": "x" * module.MESSAGE_BYTES_MAX})
        listener = Listener()
        at.hub.start(Call(ANYONE, EVERYTHING, NOW, huge), listener)
        assert isinstance(listener.fault, BadArguments)
        assert "1047552 at most" in listener.fault.message
        server.answer(server.calls()[0]["id"])
        assert text_of(other) == "done"


async def test_a_server_that_only_writes_garbage_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "GARBAGE_MAX", 3)
    async with scene() as at:
        server = await holding(at)
        _, listener = at.start(NOW)
        await sent(server)
        for text in (b"[1]", b"7", b"\xff", b"x"):
            server.receiver.read(text)
        assert isinstance(listener.fault, Lost)
        assert server.closed == [(1008, "it wrote over 3 lines in a row that are not messages")]
        assert at.servers() == {"kitchen_clock": "away"}


async def test_a_welcome_of_any_length_and_kind_is_no_reason_to_do_without_it() -> None:
    async with scene() as at:
        server = Dialler()
        server.capabilities["experimental"] = {"x": "y" * module.WELCOME_BYTES_MAX}
        await at.agent_server(server)
        (agent_server,) = at.book.roster("kitchen").servers()
        assert (agent_server.welcome, agent_server.server_id, agent_server.title) == (b"", "clock", "clock 1")


async def test_levels_that_callers_choose_reach_it() -> None:
    async with scene() as at:
        levels: LogLevels = at.hub.levels
        server = await holding(at)
        levels.want("somebody", "warning")
        await until(lambda: server.asked[-1]["method"] == "logging/setLevel")
        server.leave()
        again = await holding(at)
        await until(lambda: again.asked[-1]["method"] == "logging/setLevel")
        assert again.asked[-1]["params"]["level"] == "warning"


async def test_log_lines_outside_calls_go_to_the_operator() -> None:
    async with scene() as at:
        server = await holding(at)
        server.say(method="notifications/message", params={"level": "info", "data": "ticking"})
        (line,) = at.hub.server_queues[at.book.roster("kitchen").servers()[0].server].log_lines
        assert (line.level, line.text) == ("info", '"ticking"')


# -- silence ---------------------------------------------------------------------------------------------------------


def kept(at: Scene) -> module.DialInLink:
    """The link of the one server that is there."""
    (agent_server,) = at.book.roster("kitchen").servers()
    assert agent_server.reconnector.link is not None
    return agent_server.reconnector.link


def pings(server: Dialler) -> int:
    """How often the server was nudged."""
    return sum(message.get("method") == "ping" for message in server.asked)


async def test_a_server_is_nudged_while_a_call_waits_and_need_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUDGE_SECONDS", 0.01)
    async with scene() as at:
        server = await holding(at)
        assert pings(server) == 0
        _, waiting = at.start(NOW)
        request = await sent(server)
        server.is_mute = True  # it is busy with the call
        await until(lambda: pings(server) >= 3)
        assert not waiting.ends
        assert not server.closed
        server.answer(request["id"])
        assert waiting.ends
        link = kept(at)
        await until(lambda: link._nudge is None)
        assert len(link.requests.pending) == 0


async def looks(link: module.DialInLink, times: int) -> None:
    """Wait until it was looked so often whether a call waits."""
    for _ in range(times):
        await until(partial(_has_looked, link, link._nudge))


def _has_looked(link: module.DialInLink, before: asyncio.TimerHandle | None) -> bool:
    return link._nudge is not before


async def test_a_server_that_is_too_busy_to_read_is_nudged_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUDGE_SECONDS", 0.004)
    async with scene() as at:
        server = await holding(at)
        at.start(NOW)
        await sent(server)
        server.is_mute = True
        link = kept(at)

        await looks(link, 80)
        unread = pings(server)
        assert 5 <= unread <= 60
        server.say(id=server.asked[-1]["id"], result={})  # which shows that it has read those before, too
        await looks(link, 8)
        assert pings(server) - unread >= 3


async def test_a_server_that_does_not_read_is_not_nudged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUDGE_SECONDS", 0.01)
    async with scene() as at:
        server = await holding(at)
        at.start(NOW)
        await sent(server)
        server.unread_bytes = 1 << 20
        link = kept(at)
        before, looked = pings(server), link._nudge
        await until(lambda: link._nudge is not looked)
        assert pings(server) == before


def a_call(
    name: str = "alice", tenant: str = "home", session: str = "", client_caps: frozenset[str] = frozenset()
) -> Call:
    caller = Caller(name, tenant, Grants(("*",)))
    return Call(caller, EVERYTHING, "pay", msgspec.Raw(b"{}"), session=session, client_caps=client_caps)


def meta_of(call: Call) -> dict[str, msgspec.Raw]:
    params = object_members(CallerMarkDialect(Implementation("hub", "1"), "robot").call_params(call, "pay", 1)) or {}
    return object_members(params["_meta"]) or {}


def test_the_same_caller_always_has_the_same_mark_of_its_own() -> None:
    others = [a_call("berta"), a_call(tenant="work"), a_call("ali", "homece")]
    marks = {mark_of("robot", call).caller for call in (a_call(), a_call(session="s"), *others)}
    assert len(marks) == 4
    assert mark_of("another", a_call()).caller not in marks


def test_conversations_differ_by_caller_and_a_call_without_a_session_has_none() -> None:
    assert mark_of("robot", a_call()).session == ""
    assert len({mark_of("robot", a_call(name, session=s)).session for name in ("alice", "berta") for s in "ab"}) == 4


def test_a_mark_says_whether_its_conversation_shares_links() -> None:
    contexts = msgspec.structs.replace(a_call(session="s"), shares_link=True)
    marks = [read_mark(meta_of(call)[CONVERSATION_KEY]) for call in (a_call(session="s"), contexts)]
    assert [mark is not None and mark.shares for mark in marks] == [False, True]


def test_a_call_carries_its_mark_and_neither_a_name_nor_that_a_caller_has_folders() -> None:
    call = a_call(session="s1", client_caps=frozenset({"elicitation", "roots"}))
    meta = meta_of(call)
    assert read_mark(meta[CONVERSATION_KEY]) == mark_of("robot", call)
    text = b"".join(bytes(value) for value in meta.values())
    assert not [word for word in (b"alice", b"home", b"s1", b"roots") if word in text]
    assert b"elicitation" in text


def test_no_caller_brings_its_own() -> None:
    given = {
        CONVERSATION_KEY: msgspec.Raw(b'{"caller":"x"}'),
        CONVERSATION_KEY.upper(): msgspec.Raw(b"1"),
        "own": msgspec.Raw(b"2"),
    }
    assert passed_meta(given, lambda id: id) == {"own": msgspec.Raw(b"2")}


@pytest.mark.parametrize(
    "text", [b"5", b'"x"', b"{}", b'{"caller":""}', b'{"caller":1}', b'{"caller":"%b"}' % (b"x" * 99)]
)
def test_an_invalid_conversation_mark_is_ignored(text: bytes) -> None:
    assert read_mark(msgspec.Raw(text)) is None
    assert read_mark(None) is None
    assert read_mark(msgspec.Raw(b'{"caller":"x"}')) == ConversationMark("x")


class OtherNode(Dialler):
    """A node of the cluster with the server's socket. It refuses calls as not sent."""

    def __init__(self) -> None:
        super().__init__()
        self.is_modern = self.holds_calls = True

    def is_confirmed(self) -> bool:
        return True

    def refuse(self, id: Any) -> None:
        data = {"executed": "no", "reason": "not_connected", "server": "clock"}
        self.say(id=id, error={"code": -32002, "message": "Server clock is not connected: gone", "data": data})


async def at_other_node(at: Scene) -> OtherNode:
    other = OtherNode()
    announced = NodeServer("kitchen", "default", "clock", "kitchen_clock", is_named=True, came=1.0)
    other.receiver, arrival = at.book.accept_node(other, announced)
    assert arrival is not None
    await arrival
    return other


async def test_a_call_that_another_node_refuses_is_not_sent_there_again() -> None:
    async with scene(DialInSettings(grace=5.0)) as at:
        other = await at_other_node(at)
        _, listener = at.start(NOW)
        other.refuse((await sent(other))["id"])
        await until(lambda: bool(listener.ends))
        assert isinstance(listener.ends[0], NotConnected)
        assert len(other.calls()) == 1


async def test_a_call_that_a_node_refuses_while_its_server_moves_waits_for_another_link() -> None:
    async with scene(DialInSettings(grace=5.0)) as at:
        other = await at_other_node(at)
        _, listener = at.start(NOW)
        request = await sent(other)
        asyncio.get_running_loop().call_soon(other.say_goodbye)  # as a directory that was read in the same turn
        other.refuse(request["id"])
        await until(lambda: at.server_status("kitchen_clock").state == "away")
        new = await at_other_node(at)
        new.answer((await sent(new))["id"])
        assert text_of(listener) == "done"
        assert len(other.calls()) == 1
