"""What links over one stream share: questions, subscriptions, what is held and what has left.

The channel is a small double that remembers what was written and takes only as much as it is told to.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from isthmus.core.settings import Limits
from isthmus.model.faults import Cancelled, Lost
from isthmus.model.questions import Answered
from isthmus.upstream import duplex
from isthmus.upstream.corked import HOLD_ABOVE_BYTES, CorkedLink
from isthmus.upstream.dialect import ModernDialect
from isthmus.wire.mcp.capabilities import Capabilities
from tests.unit.core.doubles import SERVER, Stage, call, raw
from tests.unit.upstream.doubles import ME, Scene, answer, message, text_of


class Pipe:
    """Takes `room` bytes; the rest stays in its buffer."""

    def __init__(self, room: int = 10**9) -> None:
        self.written = b""
        self.room = room
        self.is_killed = False
        self.is_closed = False

    def write(self, data: bytes) -> int:
        self.written += data
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


class Line(CorkedLink):
    """A link over a pipe in the test's hands."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(SERVER, ME, Limits())
        self.pipe = self._channel = pipe

    def _frame(self, message: bytes) -> bytes:
        return message + b"\n"

    def broken(self) -> None:
        self._broke("the wire broke")


async def turn() -> None:
    """Let this turn of the loop end."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def modern(pipe: Pipe) -> Line:
    line = Line(pipe)
    line.dialect = ModernDialect(ME)
    told = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
    line.capabilities = msgspec.convert(told, Capabilities)
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


async def test_what_is_held_is_withdrawn_without_a_word_and_the_rest_in_words() -> None:
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


async def test_a_lost_link_tells_its_owner_first_and_each_call_what_left_of_it() -> None:
    line = Line(pipe := Pipe())
    scene = Scene(line)
    whole = scene.start()[1]
    await turn()
    pipe.room = len(pipe.written) + 10
    cut = scene.start()[1]
    await turn()
    held = scene.start()[1]
    line.on_lost = lambda _reason: scene.told.append(f"{len(whole.ends)} ended")
    line.broken()
    assert scene.told == ["0 ended"]
    faults = [listener.fault for listener in (whole, cut, held)]
    assert all(isinstance(fault, Lost) for fault in faults)
    assert [fault.executed for fault in faults] == ["unknown", "no", "no"]
    await turn()
    assert b'"id":3' not in pipe.written


async def test_what_was_written_to_a_server_that_lives_on_may_yet_be_read() -> None:
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


async def test_what_is_asked_before_its_call_waits_for_it() -> None:
    line = Line(pipe := Pipe())
    line.profile = frozenset({"roots"})
    line.read(message(id=7, method="roots/list"))
    assert pipe.said() == []
    stage = Stage()
    stage.lane.attach(line)
    _, listener = stage.start(call(profile=line.profile))
    ((question, reply),) = listener.asked
    assert question.method == "roots/list"
    reply(Answered(raw({"roots": []})))
    assert [said for said in pipe.said() if said.get("id") == 7] == [
        {"jsonrpc": "2.0", "id": 7, "result": {"roots": []}}
    ]


async def test_what_is_asked_and_no_call_follows_is_refused_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplex, "EARLY_SECONDS", 0.0)
    line = Line(pipe := Pipe())
    line.profile = frozenset({"roots"})
    line.read(message(id=7, method="roots/list"))
    async with asyncio.timeout(20):
        while not (said := pipe.said()):  # noqa: ASYNC110 - a timer of the loop's own
            await asyncio.sleep(0)
    assert (said[0]["id"], said[0]["error"]["code"]) == (7, -32601)


@pytest.mark.parametrize("text", [b"hello", b"[]", b"{", b"\xff", b'{"jsonrpc":"1.0","id":1}'])
async def test_too_much_nonsense_in_a_row_ends_the_link(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(duplex, "GARBAGE_MAX", 3)
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


def acknowledged(id: int | None) -> bytes:
    meta = {} if id is None else {"io.modelcontextprotocol/subscriptionId": id}
    return message(method="notifications/subscriptions/acknowledged", params={"_meta": meta})


@pytest.mark.parametrize("is_named", [True, False])
async def test_subscriptions_before_the_newest_end_when_it_is_acknowledged(*, is_named: bool) -> None:
    line = modern(pipe := Pipe())
    line.listen()
    line.listen()
    line.listen()
    await turn()
    assert [said["method"] for said in pipe.said()] == ["subscriptions/listen"] * 3
    line.read(acknowledged(2))
    assert pipe.said() == []
    line.read(acknowledged(3 if is_named else None))
    assert [said["params"]["requestId"] for said in pipe.said()] == [1, 2]


async def test_a_server_that_never_acknowledges_keeps_few_subscriptions() -> None:
    line = modern(pipe := Pipe())
    for _ in range(50):
        line.listen()
    await turn()
    said = pipe.said()
    begun = sum(message["method"] == "subscriptions/listen" for message in said)
    ended = sum(message["method"] == "notifications/cancelled" for message in said)
    assert begun - ended <= duplex.SUPERSEDED_MAX + 1


async def test_who_subscribes_waits_for_the_acknowledgement_or_the_end() -> None:
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


async def test_what_is_subscribed_to_together_is_asked_for_at_once() -> None:
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
    monkeypatch.setattr(duplex, "RELISTEN_SECONDS", 0.0)
    gaps: list[str] = []
    line = modern(pipe := Pipe())
    line.on_gap = lambda: gaps.append("gap")
    line.listen()
    await turn()
    line.read(acknowledged(1))
    line.read(message(id=1, result={}))
    async with asyncio.timeout(10):
        while len(pipe.written.splitlines()) < 2:  # noqa: ASYNC110 - a pipe tells nobody
            await asyncio.sleep(0.001)
    assert gaps == []
    line.read(acknowledged(2))
    line.read(acknowledged(2))
    assert gaps == ["gap"]
