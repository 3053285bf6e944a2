"""Shared behaviour of links over one stream: questions, subscriptions, held and sent messages.

The channel is a small double that remembers what was written and takes only as much as it is told to.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from isthmus.core.calls.running_call import InFlight
from isthmus.core.settings import Limits
from isthmus.model.calls import UNSURE, Answered, OnReply, Surface
from isthmus.model.fault_table import Cancelled, Lost, ServerError
from isthmus.upstream import base_link as link_module
from isthmus.upstream import questions, subscriptions
from isthmus.upstream.base_link import HOLD_ABOVE_BYTES, BaseLink, ChannelWriter
from isthmus.wire.mcp.forwarded_methods import ModernDialect
from isthmus.wire.mcp.messages import ServerCapabilities
from tests.unit.core.doubles import DONE, SERVER, Listener, Stage, call, raw
from tests.unit.upstream.doubles import ME, Scene, answer, message, text_of


class Pipe:
    """Takes `room` bytes; the rest stays in its buffer."""

    def __init__(self, room: int = 10**9) -> None:
        self.written = b""
        self.room = room
        self.is_killed = False
        self.is_closed = False
        self.was_written = asyncio.Event()
        """Set by whatever is written."""

    def write(self, data: bytes) -> int:
        self.written += data
        self.was_written.set()
        return len(self.written)

    def has_left(self, offset: int) -> bool:
        return offset <= self.room

    def buffered_bytes(self) -> int:
        return max(0, len(self.written) - self.room)

    def kill(self) -> None:
        self.is_killed = True

    async def aclose(self) -> None:
        self.is_closed = True

    def said(self) -> list[dict[str, Any]]:
        """The messages that were written since this was last asked."""
        lines, self.written = self.written.splitlines(), b""
        return [json.loads(line) for line in lines]


class Line(BaseLink):
    """A link over a pipe in the test's hands."""

    is_duplex = True
    takes_methods = True

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(SERVER, ME, Limits())
        self.pipe = pipe
        self._writer = ChannelWriter(lambda message: message + b"\n", pipe)

    def broken(self) -> None:
        self._on_broken("the wire broke")


async def turn() -> None:
    """Let this turn of the loop end."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def modern(pipe: Pipe) -> Line:
    line = Line(pipe)
    line.dialect = ModernDialect(ME)
    received = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
    line.capabilities = msgspec.convert(received, ServerCapabilities)
    return line


async def test_calls_of_one_turn_are_written_together_at_its_end() -> None:
    line = Line(pipe := Pipe())
    scene = Scene(line)
    scene.start()
    scene.start()
    assert pipe.written == b""
    await turn()
    assert [said["id"] for said in pipe.said()] == [1, 2]


async def test_with_too_much_unread_calls_wait_here_until_the_server_reads() -> None:
    line = Line(pipe := Pipe(room=0))
    scene = Scene(line)
    scene.start(arguments={"text": "x" * HOLD_ABOVE_BYTES})
    await turn()
    held, listener = scene.start()
    await turn()
    assert len(pipe.said()) == 1
    pipe.room = 10**9
    line.flush()
    (said,) = pipe.said()
    line.read(answer(said["id"]))
    assert text_of(listener) == "done"
    assert held.outcome is not None


async def test_held_calls_are_withdrawn_silently_and_sent_ones_are_cancelled() -> None:
    line = Line(pipe := Pipe())
    scene = Scene(line)
    first, listener = scene.start()
    await turn()
    pipe.said()
    held, other = scene.start()
    first.cancel("enough")
    held.cancel("enough")
    await turn()
    (said,) = pipe.said()
    assert (said["method"], said["params"]["requestId"]) == ("notifications/cancelled", 1)
    assert isinstance(listener.fault, Cancelled)
    assert (listener.fault.executed, other.fault.executed) == ("unknown", "no")


async def test_a_lost_link_notifies_its_owner_first_and_then_each_call_with_executed() -> None:
    line = Line(pipe := Pipe())
    scene = Scene(line)
    whole = scene.start()[1]
    await turn()
    pipe.room = len(pipe.written) + 10
    cut = scene.start()[1]
    await turn()
    held = scene.start()[1]
    line.on_lost = lambda _reason: scene.callbacks.append(f"{len(whole.ends)} ended")
    line.broken()
    assert scene.callbacks == ["0 ended"]
    faults = [listener.fault for listener in (whole, cut, held)]
    assert all(isinstance(fault, Lost) for fault in faults)
    assert [fault.executed for fault in faults] == ["unknown", "no", "no"]
    await turn()
    assert b'"id":3' not in pipe.written


async def test_bytes_written_to_a_living_server_may_still_be_read() -> None:
    line = Line(pipe := Pipe(room=0))
    scene = Scene(line)
    _, listener = scene.start()
    await turn()
    await line.aclose()
    assert listener.fault.executed == "unknown"
    assert pipe.is_closed


async def test_a_servers_questions_are_answered_while_it_reads_the_answers() -> None:
    line = Line(pipe := Pipe())
    line.read(message(id="a", method="ping"))
    line.read(message(id=7, method="sampling/createMessage"))
    ping, refusal = pipe.said()
    assert ping == {"jsonrpc": "2.0", "id": "a", "result": {}}
    assert (refusal["id"], refusal["error"]["code"]) == (7, -32601)
    pipe.room = 0
    for _ in range(10_000):
        line.read(message(id="a", method="ping"))
    assert len(pipe.written) < 2 * HOLD_ABOVE_BYTES


async def test_a_question_before_its_call_waits_for_the_call() -> None:
    line = Line(pipe := Pipe())
    line.questions.client_caps = frozenset({"roots"})
    line.read(message(id=7, method="roots/list"))
    assert pipe.said() == []
    stage = Stage()
    stage.server_queue.attach(line)
    _, listener = stage.start(call(client_caps=line.questions.client_caps))
    assert listener.asked == []  # its starter does not hold the call yet, and could not suspend it
    await turn()
    ((question, reply),) = listener.asked
    assert question.method == "roots/list"
    pipe.said()
    reply(Answered(raw({"roots": []})))
    assert (pipe.said(), line.questions.has_unanswered) == (
        [{"jsonrpc": "2.0", "id": 7, "result": {"roots": []}}],
        False,
    )


async def test_a_question_without_a_following_call_is_refused_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "EARLY_SECONDS", 0.0)
    line = Line(pipe := Pipe())
    line.questions.client_caps = frozenset({"roots"})
    line.read(message(id=7, method="roots/list"))
    async with asyncio.timeout(20):
        while not (said := pipe.said()):  # noqa: ASYNC110 - a timer of the loop's own
            await asyncio.sleep(0)
    assert (said[0]["id"], said[0]["error"]["message"]) == (7, UNSURE.message)
    assert line.questions.has_unanswered


# -- whose question it is, and until when ------------------------------------------------------------------------------

ABLE = frozenset({"roots", "elicitation"})
ASKS = message(id=7, method="elicitation/create", params={"message": "who?"})
TAKES_BACK = message(method="notifications/cancelled", params={"requestId": 7})
OVER = {"jsonrpc": "2.0", "id": 7, "error": {"code": -32603, "message": "The call is over"}}


class Spared(Listener):
    """A caller that receives retractions of questions."""

    def __init__(self) -> None:
        super().__init__()
        self.retracted: list[OnReply] = []

    def retract(self, reply: OnReply) -> None:
        self.retracted.append(reply)

    def retract_later(self, reply: OnReply) -> Callable[[], None]:
        return partial(self.retract, reply)


class Asking:
    """A server that asks over a pipe, and calls of those who can be asked."""

    def __init__(self) -> None:
        self.line = Line(Pipe())
        self.line.questions.client_caps = ABLE
        self.questions_received = 0
        self.line.questions.on_question = self._listen_first
        self._stage = Stage()
        self._stage.server_queue.attach(self.line)

    def _listen_first(self) -> None:
        self.questions_received += 1

    async def call(self, session: str = "") -> tuple[InFlight, Spared]:
        """A call that has gone."""
        listener = Spared()
        asked = msgspec.structs.replace(call(client_caps=ABLE), session=session)
        inflight = self._stage.hub.start(asked, listener)
        await turn()
        self.said()
        return inflight, listener

    def said(self) -> list[dict[str, Any]]:
        """The messages that the server received since the last look."""
        return self.line.pipe.said()

    def is_refused(self) -> bool:
        """Whether the question was just refused by the hub."""
        (refusal,) = self.said()
        return (refusal["id"], refusal["error"]["message"]) == (7, UNSURE.message)


async def test_a_question_among_calls_without_a_conversation_reaches_none_and_is_reported() -> None:
    asking = Asking()
    calls = [await asking.call() for _ in range(2)]
    asking.line.read(ASKS)
    assert asking.is_refused()
    assert [listener.asked for _, listener in calls] == [[], []]
    assert (asking.questions_received, asking.line.questions.has_asked, asking.line.questions.abandoned_session) == (
        1,
        True,
        None,
    )


class Sent(Spared):
    """A caller that is notified when its user is done on another page."""

    def __init__(self) -> None:
        super().__init__()
        self.done_with: list[bytes] = []

    def elicitation_completed(self, id: msgspec.Raw) -> None:
        self.done_with.append(bytes(id))

    def done_later(self) -> Callable[[msgspec.Raw], None]:
        return self.elicitation_completed


async def test_a_caller_with_a_failed_url_elicitation_learns_when_that_is_done() -> None:
    asking, listener = Asking(), Sent()
    asking._stage.hub.start(call(client_caps=ABLE), listener)
    await turn()
    (sent,) = asking.said()
    data = {"elicitations": [{"mode": "url", "elicitationId": "e1"}, {"elicitationId": "e2"}, {}]}
    asking.line.read(message(id=sent["id"], error={"code": -32042, "message": "log in", "data": data}))
    assert isinstance(listener.fault, ServerError)
    for id in ("e2", "e3", "e1"):
        asking.line.read(message(method="notifications/elicitation/complete", params={"elicitationId": id}))
    assert listener.done_with == [b'"e2"', b'"e1"']


async def test_a_caller_with_a_url_question_learns_that_its_user_is_done_there() -> None:
    asking, listener = Asking(), Sent()
    asking._stage.hub.start(call(client_caps=ABLE), listener)
    await turn()
    asking.line.read(message(id=7, method="elicitation/create", params={"mode": "url", "elicitationId": "e1"}))
    listener.asked[0][1](Answered(raw({"action": "accept"})))
    for params in ({"elicitationId": "e2"}, {}, {"elicitationId": "e1"}, {"elicitationId": "e1"}):
        asking.line.read(message(method="notifications/elicitation/complete", params=params))
    assert listener.done_with == [b'"e1"']


async def test_a_question_goes_to_the_only_call_and_to_the_latest_of_a_conversation() -> None:
    for session, calls in (("", 1), ("one", 1), ("one", 3)):
        asking = Asking()
        listeners = [(await asking.call(session))[1] for _ in range(calls)]
        asking.line.read(ASKS)
        assert [len(listener.asked) for listener in listeners] == [0] * (calls - 1) + [1]
        assert asking.questions_received == 1


@pytest.mark.parametrize(("session", "is_asked"), [("", False), ("one", True), ("two", False)])
async def test_a_server_that_may_ask_about_a_cancelled_call_asks_no_other_caller(
    session: str, *, is_asked: bool
) -> None:
    asking = Asking()
    (await asking.call("one"))[0].cancel("enough")
    _, listener = await asking.call(session)
    asking.line.read(ASKS)
    assert bool(listener.asked) == is_asked


async def test_a_call_that_never_left_cannot_be_asked_about() -> None:
    asking = Asking()
    listener = Spared()
    asking._stage.hub.start(call(client_caps=ABLE), listener).cancel("enough")
    assert asking.line.questions.abandoned_session is None


async def test_a_question_about_an_ended_call_does_not_wait_for_the_next_program() -> None:
    asking = Asking()
    asking.line.questions.can_wait = False
    asking.line.read(ASKS)
    assert asking.is_refused()
    _, listener = await asking.call()
    asking.line.read(ASKS)
    assert listener.asked == []


async def test_a_question_whose_call_is_over_before_it_was_put_is_refused() -> None:
    asking, listener = Asking(), Spared()
    asking.line.read(ASKS)
    asking._stage.hub.start(call(client_caps=ABLE), listener).cancel("enough")
    await turn()
    assert asking.is_refused()
    assert (listener.asked, asking.line.questions.has_unanswered) == ([], True)


async def test_a_waiting_question_is_asked_of_no_caller_when_two_programs_call_at_once() -> None:
    asking, listeners = Asking(), [Spared(), Spared()]
    asking.line.read(ASKS)
    for listener in listeners:
        asking._stage.hub.start(call(client_caps=ABLE), listener)
    await turn()
    assert [listener.asked for listener in listeners] == [[], []]
    assert [said["id"] for said in asking.said() if "error" in said] == [7]


async def test_few_questions_wait_and_one_that_is_asked_twice_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "EARLY_MAX", 2)
    asking = Asking()
    for id in (6, 6, 8, 7):
        asking.line.read(message(id=id, method="roots/list"))
    assert asking.is_refused()
    _, listener = await asking.call()
    assert (len(listener.asked), asking.line.questions.early) == (2, {})


async def test_a_question_that_is_taken_back_needs_no_answer_and_gets_none() -> None:
    asking = Asking()
    _, listener = await asking.call()
    asking.line.read(ASKS)
    asking.line.read(TAKES_BACK)
    asking.line.read(TAKES_BACK)
    ((_, reply),) = listener.asked
    assert listener.retracted == [reply]
    reply(Answered(raw({})))
    assert (asking.said(), asking.line.questions._open) == ([], {})


@pytest.mark.parametrize("named", [{}, {"requestId": 8}, {"requestId": "7"}, {"requestId": None}, {"requestId": [7]}])
async def test_a_cancellation_of_an_unknown_question_changes_nothing(named: dict[str, Any]) -> None:
    asking = Asking()
    _, listener = await asking.call()
    asking.line.read(ASKS)
    asking.line.read(message(method="notifications/cancelled", params=named))
    listener.asked[0][1](Answered(raw({"action": "decline"})))
    assert (listener.retracted, asking.said()) == ([], [{"jsonrpc": "2.0", "id": 7, "result": {"action": "decline"}}])


async def test_a_question_that_is_retracted_before_its_call_arrives_reaches_no_caller() -> None:
    asking = Asking()
    asking.line.read(ASKS)
    asking.line.read(TAKES_BACK)
    _, listener = await asking.call()
    assert (listener.asked, asking.line.questions.early) == ([], {})


async def test_a_call_that_ends_closes_its_open_question_and_the_server_learns_of_it() -> None:
    asking = Asking()
    inflight, listener = await asking.call()
    asking.line.read(ASKS)
    inflight.finish(DONE)
    assert (listener.retracted, asking.said()) == ([listener.asked[0][1]], [OVER])
    assert asking.line.questions._open == {}


async def test_a_server_that_got_a_cancel_gets_no_answer_about_that_call() -> None:
    asking = Asking()
    inflight, listener = await asking.call()
    asking.line.read(ASKS)
    inflight.cancel("enough")
    (received,) = asking.said()
    assert received["method"] == "notifications/cancelled"
    assert (listener.retracted, asking.line.questions._open) == ([listener.asked[0][1]], {})


async def test_a_question_that_outlasts_its_call_keeps_nothing_of_the_message_that_it_came_in() -> None:
    asking = Asking()
    inflight, listener = await asking.call("one")
    text = message(id=7, method="roots/list", params={"note": "x" * 1_000})
    holders = sys.getrefcount(text)
    asking.line.read(text)
    inflight.finish(DONE)
    assert (len(listener.asked), len(asking.line.questions._open)) == (1, 1)
    assert sys.getrefcount(text) == holders


async def test_a_lost_link_takes_its_open_questions_along() -> None:
    asking = Asking()
    inflight, listener = await asking.call("one")
    asking.line.read(message(id=7, method="roots/list"))
    inflight.finish(DONE)  # which the question, being about roots, outlasts
    assert listener.retracted == []
    asking.line.broken()
    assert (listener.retracted, asking.line.questions._open) == ([listener.asked[0][1]], {})


@pytest.mark.parametrize("text", [b"hello", b"[]", b"{", b"\xff", b'{"jsonrpc":"1.0","id":1}'])
async def test_too_much_nonsense_in_a_row_ends_the_link(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(link_module, "GARBAGE_MAX", 3)
    line = Line(pipe := Pipe())
    for _ in range(5):
        for _ in range(3):
            line.read(text)
        line.read(message(method="notifications/nothing"))
    assert not line.lost.done()
    for _ in range(4):
        line.read(text)
    assert "over 3 lines" in line.lost.result()
    assert pipe.is_killed


# -- subscriptions ---------------------------------------------------------------------------------------------------


def acknowledged(id: int | None, *uris: str) -> bytes:
    meta = {} if id is None else {"io.modelcontextprotocol/subscriptionId": id}
    honoured = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": uris}} if uris else {}
    return message(method="notifications/subscriptions/acknowledged", params={"_meta": meta, **honoured})


def refused(id: int) -> bytes:
    return message(id=id, error={"code": -32602, "message": "unknown resource"})


def watched(said: dict[str, Any]) -> list[str]:
    """The resources that a subscription names."""
    assert said["method"] == "subscriptions/listen"
    names: list[str] = said["params"]["notifications"].get("resourceSubscriptions", [])
    return names


@pytest.mark.parametrize("is_named", [True, False])
async def test_the_subscription_before_the_newest_ends_when_that_is_acknowledged(*, is_named: bool) -> None:
    line = modern(pipe := Pipe())
    line.listen()
    subscribing = asyncio.ensure_future(line.subscribe("file:///a"))
    await turn()
    await turn()
    assert [watched(said) for said in pipe.said()] == [[], ["file:///a"]]
    line.read(acknowledged(1))
    assert pipe.said() == []
    line.read(acknowledged(2 if is_named else None))
    assert [said["params"]["requestId"] for said in pipe.said()] == [1]
    async with asyncio.timeout(10):
        await subscribing


async def test_a_server_that_never_acknowledges_keeps_few_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "LISTEN_ACK_SECONDS", 0.0)
    line = modern(pipe := Pipe())
    async with asyncio.timeout(10):
        for n in range(50):
            await line.subscribe(f"file:///{n}")
    said = pipe.said()
    begun = sum(message["method"] == "subscriptions/listen" for message in said)
    ended = sum(message["method"] == "notifications/cancelled" for message in said)
    assert (begun, begun - ended) == (50, 2)


async def test_refused_subscriptions_leave_the_one_that_works_alone() -> None:
    line = modern(pipe := Pipe())
    subscription_sync = asyncio.ensure_future(line.subscribe("file:///good"))
    await turn()
    await turn()
    line.read(acknowledged(1))
    await subscription_sync
    for id in range(2, 14):
        refusing = asyncio.ensure_future(line.subscribe("file:///bad"))
        await turn()
        await turn()
        line.read(refused(id))
        with pytest.raises(ServerError, match="unknown resource"):
            await refusing
    assert all(watched(said)[-1] == "file:///good" for said in pipe.said())  # and none of them is withdrawn
    another = asyncio.ensure_future(line.subscribe("file:///next"))
    await turn()
    await turn()
    assert [watched(said) for said in pipe.said()] == [["file:///good", "file:///next"]]
    line.read(acknowledged(14))
    await another
    assert [said["params"]["requestId"] for said in pipe.said()] == [1]


async def test_a_refused_subscription_is_reported_without_credentials() -> None:
    line = modern(Pipe())
    line.redact = lambda text: text.replace("unknown", "***")
    refusing = asyncio.ensure_future(line.subscribe("file:///bad"))
    await turn()
    await turn()
    line.read(refused(1))
    with pytest.raises(ServerError, match=r"\*\*\* resource"):
        await refusing


async def test_resources_missing_from_an_acknowledgement_are_refused() -> None:
    line = modern(pipe := Pipe())
    good, bad = (asyncio.ensure_future(line.subscribe(f"file:///{name}")) for name in ("good", "bad"))
    await turn()
    await turn()
    line.read(acknowledged(1, "file:///good"))
    async with asyncio.timeout(10):
        await good
        with pytest.raises(ServerError, match="sends no updates"):
            await bad
    pipe.said()
    line.unsubscribe("file:///good")
    await turn()
    assert [watched(said) for said in pipe.said()] == [[]]


async def test_a_subscriber_waits_for_the_acknowledgement_or_the_end() -> None:
    line = modern(Pipe())
    subscribing = asyncio.ensure_future(line.subscribe("file:///a"))
    await turn()
    assert not subscribing.done()
    line.read(acknowledged(1))
    await subscribing
    again = asyncio.ensure_future(line.subscribe("file:///b"))
    await turn()
    line.broken()
    async with asyncio.timeout(10):
        await again


async def test_simultaneous_subscriptions_are_one_request() -> None:
    line = modern(pipe := Pipe())
    subscribing = asyncio.gather(*(line.subscribe(f"file:///{n}") for n in range(100)))
    await turn()
    await turn()
    (said,) = pipe.said()
    assert len(said["params"]["notifications"]["resourceSubscriptions"]) == 100
    line.read(acknowledged(1))
    async with asyncio.timeout(10):
        await subscribing


async def test_a_subscription_that_the_server_ends_is_asked_for_again_and_is_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "RELISTEN_SECONDS", 0.0)
    gaps: list[str] = []
    line = modern(pipe := Pipe())
    line.on_gap = lambda: gaps.append("gap")
    line.listen()
    await turn()
    line.read(acknowledged(1))
    line.read(message(id=1, result={}))
    async with asyncio.timeout(10):
        while len(pipe.written.splitlines()) < 2:  # noqa: ASYNC110 - a pipe has no notification
            await asyncio.sleep(0.001)
    assert gaps == []
    line.read(acknowledged(2))
    line.read(acknowledged(2))
    assert gaps == ["gap"]


@pytest.mark.parametrize("is_acknowledged", [True, False])
async def test_one_that_ends_in_an_error_is_asked_for_again_if_it_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch, *, is_acknowledged: bool
) -> None:
    monkeypatch.setattr(link_module, "RELISTEN_SECONDS", 0.0)
    line = modern(pipe := Pipe())
    line.listen()
    await turn()
    if is_acknowledged:
        line.read(acknowledged(1))
    pipe.was_written.clear()
    line.read(refused(1))
    if is_acknowledged:
        async with asyncio.timeout(10):
            await pipe.was_written.wait()
    await turn()
    assert len(pipe.said()) == (2 if is_acknowledged else 1)


async def test_a_subscription_that_the_server_ends_before_any_event_is_requested_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "RELISTEN_SECONDS", 0.0)
    line = modern(pipe := Pipe())
    subscribing = asyncio.ensure_future(line.subscribe("file:///a"))
    await turn()
    await turn()
    line.read(message(id=1, result={}))
    async with asyncio.timeout(10):
        while len(pipe.written.splitlines()) < 2:  # noqa: ASYNC110 - a pipe has no notification
            await asyncio.sleep(0.001)
        assert [watched(said) for said in pipe.said()] == [["file:///a"]] * 2
        line.read(acknowledged(2))
        await subscribing
    line._listen_requests.subscription_ended(1)  # which was over long ago
    assert not line._listen_requests._missed_changes


async def test_a_method_is_asked_for_by_its_name_with_its_parameters_and_its_error_comes_back_as_it_is() -> None:
    line = Line(pipe := Pipe())
    scene = Scene(line)
    asked = call("prompts/list", {"cursor": "a"}, kind="method", surface=Surface("own", SERVER))
    _, listener = scene.put(msgspec.structs.replace(asked, wants_progress=True))
    await turn()
    (said,) = pipe.said()
    assert (said["method"], said["params"]) == ("prompts/list", {"cursor": "a", "_meta": {"progressToken": said["id"]}})
    line.read(message(id=said["id"], error={"code": -32601, "message": "no prompts", "data": {"x": 1}}))
    fault = listener.fault
    assert isinstance(fault, ServerError)
    assert (fault.code, fault.message, bytes(fault.data or b"")) == (-32601, "no prompts", b'{"x": 1}')


LONG = "x" * (2 * 1024 * 1024)


async def turns(count: int = 1_000) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_call_that_is_cancelled_while_its_long_answer_is_read_is_not_sent_again() -> None:
    line = modern(pipe := Pipe())
    inflight, listener = Scene(line).start()
    await turn()
    pipe.said()
    line.read(message(id=1, result={"resultType": "input_required", "requestState": LONG}))
    inflight.cancel("enough")
    await turns()
    assert [sent.get("method") for sent in pipe.said() if sent.get("method") == "tools/call"] == []
    assert [type(end) for end in listener.ends] == [Cancelled]


@pytest.mark.parametrize("is_result_first", [True, False])
async def test_a_long_answer_is_read_in_several_turns_wherever_its_id_is(*, is_result_first: bool) -> None:
    line = Line(pipe := Pipe())
    _, listener = Scene(line).start()
    await turn()
    pipe.said()
    result = {"content": [{"type": "text", "text": LONG}]}
    members = {"result": result, "jsonrpc": "2.0", "id": 1} if is_result_first else {"id": 1, "result": result}
    line.read(json.dumps(members).encode() if is_result_first else message(**members))
    assert not listener.ends
    assert not line.requests.pending, "its request is known before it is read"
    await turns()
    assert len(listener.ends) == 1


# -- hubs that are servers here ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hubs", "executed"), [({}, "yes"), ({"behind": 0}, "no")])
async def test_a_hub_says_what_became_of_a_call_and_no_other_server_can(hubs: dict[str, int], executed: str) -> None:
    line = modern(Pipe())
    line.hubs = hubs
    _, listener = Scene(line).start()
    await turn()
    error = {"code": -32010, "message": "busy", "data": {"executed": "no", "reason": "overloaded"}}
    line.read(message(id=1, error=error))
    assert (listener.fault.executed, listener.fault.message) == (executed, "busy")
    assert listener.fault.reason == ("overloaded" if hubs else "server_error")
