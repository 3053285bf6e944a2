"""The contract of `isthmus.cluster.bus`, over both implementations."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import cast

import pytest

from isthmus.cluster.bus import (
    ONE_SHOT_BYTES_MAX,
    BusChannel,
    ChannelClosed,
    ChannelFull,
    NodeAway,
    NodeId,
    NoResponse,
)
from isthmus.cluster.frames import HEADER, Kind
from isthmus.cluster.sessions import BaseBus
from isthmus.cluster.settings import BusSettings
from tests.cluster.nodes import CALM, Cluster, EchoInbox, Inbox, open_channel, present
from tests.cluster.servers import BUSY
from tests.faults.watching import eventually

ODD_NODE = "näch.ster > *\r\n" + "x" * 30


def forge(bus: BaseBus, to: str, kind: int, id: int, number: int = 0, payload: bytes = b"") -> None:
    """Send any frame as a peer's own."""
    bus.sessions[NodeId(to)].pipe.write(HEADER.pack(kind, 0, id, number), payload)


def id_of(channel: BusChannel) -> int:
    return cast("int", channel.id)  # type: ignore[attr-defined]


def void(_: object) -> None:
    """Drop a value."""


def fill(channel: BusChannel, message: bytes) -> int:
    """Send until nothing more is accepted; return the last offset."""
    offset = 0
    try:
        while True:
            offset = channel.send(message)
    except ChannelFull:
        return offset


# -- presence ----------------------------------------------------------------------------------------------------------


async def test_nodes_see_each_other_and_their_announcements(cluster: Cluster) -> None:
    a = await cluster.node("a", {"address": "here"})
    b = await cluster.node(ODD_NODE, {"address": "there"})
    c = await cluster.node("c")
    await present(a, ODD_NODE, "c")
    await present(b, "a", "c")
    await present(c, "a", ODD_NODE)
    assert c.peers()[NodeId("a")].attributes == {"address": "here"}
    assert c.state.is_connected
    changed = asyncio.Event()
    c.on_peers_changed(changed.set)
    a.announce({"address": "elsewhere"})
    async with asyncio.timeout(30):
        while c.peers()[NodeId("a")].attributes != {"address": "elsewhere"}:
            changed.clear()
            await changed.wait()
    with pytest.raises(ValueError, match="8192 bytes"):
        a.announce({"much": "x" * 9000})


async def test_a_node_that_leaves_is_gone_at_once_and_comes_back_in_a_new_epoch(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    before = a.peers()[NodeId("b")]
    await b.aclose()
    async with asyncio.timeout(5):  # long before its lease ends
        await present(a)
    assert not b.state.is_connected
    with pytest.raises(NodeAway):
        await a.request(NodeId("b"), "echo", b"", within=1)
    await cluster.node("b")
    await present(a, "b")
    assert a.peers()[NodeId("b")].epoch > before.epoch


async def test_a_killed_node_is_noticed_within_three_seconds(cluster: Cluster) -> None:
    a = await cluster.node("a", settings=BusSettings())
    program = await cluster.program("b")
    await present(a, "b")
    inbox = Inbox()
    channel = await a.connect(NodeId("b"), "silence", within=20)
    channel.start(inbox)
    hanging = asyncio.create_task(a.request(NodeId("b"), "hang", b"", within=60))
    await a.request(NodeId("b"), "echo", b"", within=20)
    program.send_signal(signal.SIGKILL)
    began = time.monotonic()
    end = await inbox.ended()
    with pytest.raises(NoResponse):
        await hanging
    assert time.monotonic() - began < 3.0 * BUSY
    assert end.how == "broken"
    assert a.peers() == {}
    assert not channel.is_open


async def test_a_node_that_stands_still_is_noticed_and_both_sides_agree_when_it_goes_on(cluster: Cluster) -> None:
    a = await cluster.node("a", settings=BusSettings())
    program = await cluster.program("b")
    await present(a, "b")
    inbox = Inbox()
    channel = await a.connect(NodeId("b"), "echo", within=20)
    channel.start(inbox)
    program.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert (await inbox.ended()).how == "broken"
    assert time.monotonic() - began < 3.0 * BUSY
    program.send_signal(signal.SIGCONT)
    await present(a, "b")
    async with asyncio.timeout(30):  # the other side has to notice, too
        while True:
            try:
                assert await a.request(NodeId("b"), "echo", b"again", within=5) == b"again"
                channel = await a.connect(NodeId("b"), "echo", within=5)
                break
            except (NodeAway, NoResponse):
                await present(a, "b")
    fresh = Inbox()
    channel.start(fresh)
    channel.send(b"hello")
    assert await fresh.next() == b"hello"


async def test_a_silent_node_is_reported_and_nothing_breaks(cluster: Cluster) -> None:
    a = await cluster.node("a", settings=BusSettings(silence_seconds=30.0))
    program = await cluster.program("b")
    await present(a, "b")
    inbox = Inbox()
    channel = await a.connect(NodeId("b"), "echo", within=20)
    channel.start(inbox)
    before = channel.send(b"one")
    assert await inbox.next() == b"one"
    program.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    sent = channel.send(b"two")
    await eventually(lambda: bool(inbox.silences), "the silence is reported")
    assert time.monotonic() - began < 1.0 * BUSY
    assert inbox.silences[0] <= before < sent
    with pytest.raises(NodeAway, match="answers no ping"):
        await a.request(NodeId("b"), "echo", b"", within=20)
    with pytest.raises(NoResponse, match="answers no ping"):
        await a.connect(NodeId("b"), "echo", within=20)
    reported = len(inbox.silences)
    assert not channel.is_confirmed()
    await eventually(lambda: len(inbox.silences) > reported, "the sender is notified at once")
    assert channel.is_open
    assert inbox.writables == 0
    assert not channel.is_confirmed()
    program.send_signal(signal.SIGCONT)
    assert await inbox.next() == b"two"
    await eventually(channel.is_confirmed, "the node lives")
    assert inbox.writables > 0
    assert await a.request(NodeId("b"), "echo", b"again", within=20) == b"again"


async def test_a_node_is_first_seen_with_its_services(cluster: Cluster) -> None:
    """The request leaves in the very callback that reports the node."""
    a = await cluster.node("a")
    answers: list[asyncio.Task[bytes]] = []

    def ask() -> None:
        if NodeId("b") in a.peers() and not answers:
            answers.append(asyncio.create_task(a.request(NodeId("b"), "echo", b"early", within=20)))

    a.on_peers_changed(ask)
    await cluster.node("b", prepare=lambda bus: void(bus.respond("echo", lambda _node, payload: payload)))
    await present(a, "b")
    assert await answers[0] == b"early"


# -- published messages ------------------------------------------------------------------------------------------------


async def test_published_messages_reach_the_subscribers_of_all_other_nodes(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    c = await cluster.node("c")
    await present(a, "b", "c")
    await present(c, "a", "b")
    received: asyncio.Queue[tuple[str, NodeId, bytes]] = asyncio.Queue()

    def fail(_node: NodeId, _payload: bytes) -> None:
        raise RuntimeError("a subscriber's defect")

    b.subscribe("news", fail)
    stop = b.subscribe("news", lambda node, payload: received.put_nowait(("b", node, payload)))
    c.subscribe("news", lambda node, payload: received.put_nowait(("c", node, payload)))
    a.subscribe("news", lambda node, payload: received.put_nowait(("a", node, payload)))
    big = os.urandom(ONE_SHOT_BYTES_MAX)
    a.publish("news", big)
    async with asyncio.timeout(30):
        got = [await received.get(), await received.get()]
    assert sorted(got) == [("b", "a", big), ("c", "a", big)]
    stop()
    stop()
    a.publish("other", b"")
    a.publish("news", b"")
    async with asyncio.timeout(30):
        assert await received.get() == ("c", "a", b"")
    assert received.empty()
    with pytest.raises(ValueError, match="at most"):
        a.publish("news", big + b"x")
    with pytest.raises(ValueError, match="topic"):
        a.publish("", b"")


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_requests_are_answered_at_once_or_later(cluster: Cluster) -> None:
    a, b = await cluster.pair()

    async def slow(node: NodeId, payload: bytes) -> bytes:
        await asyncio.sleep(0)
        return node.encode() + payload

    b.respond("quick", lambda node, payload: node.encode() + payload)
    b.respond("slow", slow)
    assert await a.request(b.node, "quick", b"1", within=20) == b"a1"
    assert await a.request(b.node, "slow", b"2", within=20) == b"a2"
    many = await asyncio.gather(*(a.request(b.node, "slow", str(n).encode(), within=20) for n in range(500)))
    assert many == [f"a{n}".encode() for n in range(500)]
    big = os.urandom(ONE_SHOT_BYTES_MAX - 1)
    assert await a.request(b.node, "quick", big, within=20) == b"a" + big
    with pytest.raises(ValueError, match="at most"):
        await a.request(b.node, "quick", b"x" * (ONE_SHOT_BYTES_MAX + 1), within=20)
    with pytest.raises(ValueError, match="already"):
        b.respond("slow", slow)


async def test_a_request_says_whether_it_may_have_been_handled(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(_node: NodeId, _payload: bytes) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    def fail(_node: NodeId, _payload: bytes) -> bytes:
        raise RuntimeError("secret")

    stop = b.respond("hang", hang)
    b.respond("fail", fail)
    b.respond("long", lambda _node, _payload: b"x" * (ONE_SHOT_BYTES_MAX + 1))
    with pytest.raises(NodeAway):
        await a.request(NodeId("nobody"), "hang", b"", within=20)
    with pytest.raises(NodeAway, match="does not answer 'other'"):
        await a.request(b.node, "other", b"", within=20)
    with pytest.raises(NoResponse, match=r"0\.2 s"):
        await a.request(b.node, "hang", b"", within=0.2)
    async with asyncio.timeout(20):
        await cancelled.wait()
    with pytest.raises(NoResponse) as failed:
        await a.request(b.node, "fail", b"", within=20)
    assert "secret" not in str(failed.value)
    with pytest.raises(NoResponse):
        await a.request(b.node, "long", b"", within=20)
    begun.clear()
    cancelled.clear()
    waiting = asyncio.create_task(a.request(b.node, "hang", b"", within=20))
    await begun.wait()
    waiting.cancel()
    async with asyncio.timeout(20):
        await cancelled.wait()
    stop()
    with pytest.raises(NodeAway):
        await a.request(b.node, "hang", b"", within=20)


async def test_a_repeated_request_is_handled_once(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    handled: list[bytes] = []

    def count(_node: NodeId, payload: bytes) -> bytes:
        handled.append(payload)
        return b""

    b.respond("count", count)
    await a.request(b.node, "count", b"1", within=20)
    session = a.sessions[b.node]
    last = a._last_id
    session.send_one_shot(Kind.REQUEST, last, b"\0\0\0\0\x05count1")
    await a.request(b.node, "count", b"2", within=20)
    assert handled == [b"1", b"2"]


# -- channels ----------------------------------------------------------------------------------------------------------


async def test_messages_of_any_size_arrive_once_and_in_order(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    here, there = await open_channel(a, b)
    inbox, answers = Inbox(), Inbox()
    here.start(answers)
    there.start(inbox)
    sizes = [1, 10, 65_535, 65_536, 65_537, 1_000_000, 3, 262_144, 10_000_000, 1]
    sent = [os.urandom(size) for size in sizes]
    offset = 0
    for message in sent:
        await here.drain()
        offset += len(message)
        assert here.send(message) == offset
        there.send(message[:100])
    for message in sent:
        assert await inbox.next() == message
        assert await answers.next() == message[:100]
    assert here.has_left(offset)
    assert here.buffered_bytes() == 0
    for number in range(20_000):
        await here.drain()
        here.send(number.to_bytes(4))
    assert [await inbox.next() for _ in range(20_000)] == [number.to_bytes(4) for number in range(20_000)]
    with pytest.raises(ValueError, match="1 to"):
        here.send(b"")


async def test_a_reader_that_stands_still_stops_its_writer_and_no_other_channel(cluster: Cluster) -> None:
    settings = BusSettings(silence_seconds=30.0, unsent_bytes_max=1_000_000)
    a, b = await cluster.pair(settings)
    still_here, still_there = await open_channel(a, b)
    lively_here, lively_there = await open_channel(a, b)
    writer, reader = Inbox(), Inbox()
    still_here.start(writer)
    still_there.start(reader)
    still_there.pause()
    lively_there.start(EchoInbox(lively_there))
    answers = Inbox()
    lively_here.start(answers)
    chunk = os.urandom(10_000)
    accepted = fill(still_here, chunk) // 10_000
    drained = asyncio.create_task(still_here.drain())
    for number in range(500):
        lively_here.send(number.to_bytes(4) * 1000)
        assert await answers.next() == number.to_bytes(4) * 1000
    assert not drained.done()
    assert reader.messages.empty()
    held = still_here.buffered_bytes()
    assert accepted * 10_000 - settings.window_bytes <= held <= 1_000_000
    assert not still_here.has_left(accepted * 10_000)
    assert still_here.has_left(10_000)
    still_there.resume()
    async with asyncio.timeout(30):
        await drained
    for _ in range(accepted):
        assert await reader.next() == chunk
    assert writer.writables == 1
    assert still_here.has_left(accepted * 10_000)


async def test_a_long_message_to_a_reader_that_stands_still_waits(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    here, there = await open_channel(a, b)  # nobody has started it
    big = os.urandom(5_000_000)
    here.send(big)
    lively_here, lively_there = await open_channel(a, b)
    lively_there.start(EchoInbox(lively_there))
    inbox, answers = Inbox(), Inbox()
    lively_here.start(answers)
    for _ in range(100):
        lively_here.send(b"x" * 1000)
        await answers.next()
    assert here.buffered_bytes() >= 5_000_000 - CALM.window_bytes
    assert not here.has_left(5_000_000)
    there.start(inbox)
    assert await inbox.next() == big


async def test_closing_delivers_everything_and_says_so_to_both(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    here, there = await open_channel(a, b)
    closer, reader = Inbox(), Inbox()
    here.start(closer)
    there.start(reader)
    there.pause()
    sent = [os.urandom(300_000) for _ in range(5)]
    for message in sent:
        here.send(message)
    here.close("done")
    assert not here.is_open
    with pytest.raises(ChannelClosed):
        here.send(b"x")
    assert not closer.end.done()
    there.resume()
    for message in sent:
        assert await reader.next() == message
    end = await reader.ended()
    assert (end.how, end.reason) == ("peer", "done")
    assert (await closer.ended()).how == "here"
    assert not there.is_open
    with pytest.raises(ChannelClosed):
        there.send(b"x")
    with pytest.raises(ChannelClosed):
        await there.drain()
    here.close()
    here.abort()


async def test_both_may_close_at_the_same_time(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    here, there = await open_channel(a, b)
    inbox, other = Inbox(), Inbox()
    here.start(inbox)
    there.start(other)
    here.close()
    there.close()
    assert (await inbox.ended()).how == "here"
    assert (await other.ended()).how == "here"


async def test_a_closed_channel_that_is_not_read_breaks_in_time(cluster: Cluster) -> None:
    settings = BusSettings(beat_seconds=0.05, silence_seconds=30.0, close_seconds=0.2)
    a, b = await cluster.pair(settings)
    here, there = await open_channel(a, b)
    inbox, reader = Inbox(), Inbox()
    here.start(inbox)
    here.send(os.urandom(1_000_000))
    here.close()
    assert (await inbox.ended()).how == "broken"
    there.start(reader)
    assert (await reader.ended()).how == "broken"


async def test_aborting_breaks_the_other_end(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    here, there = await open_channel(a, b)
    inbox, other = Inbox(), Inbox()
    here.start(inbox)
    there.start(other)
    there.pause()
    offset = here.send(os.urandom(1_000_000))
    here.abort("enough")
    assert not here.has_left(offset)
    end = await other.ended()
    assert (end.how, end.reason) == ("broken", "enough")
    assert not inbox.end.done()


async def test_a_channel_that_cannot_be_opened_says_so(cluster: Cluster) -> None:
    settings = BusSettings(silence_seconds=30.0, channels_max=2)
    a, b = await cluster.pair(settings)

    def fail(_channel: BusChannel) -> None:
        raise RuntimeError("a service's defect")

    b.serve("fail", fail)
    with pytest.raises(NodeAway):
        await a.connect(NodeId("nobody"), "talk", within=20)
    with pytest.raises(NodeAway, match="does not serve"):
        await a.connect(b.node, "talk", within=20)
    broken = await a.connect(b.node, "fail", within=20)
    inbox = Inbox()
    broken.start(inbox)
    assert (await inbox.ended()).how == "broken"
    first, _ = await open_channel(a, b)
    await open_channel(a, b)
    b.serve("talk", lambda _channel: None)
    with pytest.raises(NodeAway, match="2 channels"):
        await a.connect(b.node, "talk", within=20)
    first.abort()
    await a.connect(b.node, "talk", within=20)
    with pytest.raises(ValueError, match="already"):
        b.serve("talk", fail)


async def test_an_owner_that_fails_breaks_only_its_channel(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    here, there = await open_channel(a, b)
    other_here, other_there = await open_channel(a, b)

    class Failing(Inbox):
        def message(self, message: bytes) -> None:
            raise RuntimeError("an owner's defect")

    inbox, failing, echo = Inbox(), Failing(), Inbox()
    here.start(inbox)
    there.start(failing)
    other_here.start(echo)
    other_there.start(EchoInbox(other_there))
    here.send(b"x")
    assert (await inbox.ended()).how == "broken"
    assert (await failing.ended()).how == "broken"
    other_here.send(b"still here")
    assert await echo.next() == b"still here"


@pytest.mark.parametrize("number", [0, 2, 2**40])
async def test_a_frame_with_a_wrong_number_breaks_its_channel_on_both_sides(cluster: Cluster, number: int) -> None:
    a, b = await cluster.pair()
    here, there = await open_channel(a, b)
    other_here, other_there = await open_channel(a, b)
    inbox, reader, echo = Inbox(), Inbox(), Inbox()
    here.start(inbox)
    there.start(reader)
    other_here.start(echo)
    other_there.start(EchoInbox(other_there))
    here.send(b"first")
    forge(a, "b", Kind.DATA, id_of(here), number, b"forged")
    end = await reader.ended()
    assert end.how == "broken"
    assert "frames were" in end.reason
    assert (await inbox.ended()).reason == end.reason
    assert await reader.next() == b"first"
    assert reader.messages.empty()
    other_here.send(b"still here")
    assert await echo.next() == b"still here"


async def test_invalid_messages_cost_at_most_their_channel(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    here, there = await open_channel(a, b)
    other_here, other_there = await open_channel(a, b)
    inbox, reader, echo = Inbox(), Inbox(), Inbox()
    here.start(inbox)
    there.start(reader)
    other_here.start(echo)
    other_there.start(EchoInbox(other_there))
    for kind in range(256):
        if kind not in {Kind.HELLO, Kind.BYE, Kind.RESET}:
            forge(a, "b", kind, 2**63, 2**63, os.urandom(kind))
    forge(a, "b", Kind.HELLO, 0, 0, b"{")
    forge(a, "b", Kind.OPEN, id_of(here), 5, b"talk")
    assert (await inbox.ended()).how == "broken"
    assert (await reader.ended()).how == "broken"
    other_here.send(b"still here")
    assert await echo.next() == b"still here"


async def test_a_writer_that_ignores_credit_breaks_its_channel(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    here, there = await open_channel(a, b)
    inbox = Inbox()
    here.start(inbox)
    for number in range(10):
        forge(a, "b", Kind.DATA, id_of(here), number, bytes(60_000))
    assert "granted" in (await inbox.ended()).reason
    assert not there.is_open


async def test_the_loss_of_a_last_frame_is_noticed_with_the_next_heartbeat(cluster: Cluster) -> None:
    a, b = await cluster.pair(BusSettings(beat_seconds=0.05, silence_seconds=30.0))
    here, there = await open_channel(a, b)
    inbox, reader = Inbox(), Inbox()
    here.start(inbox)
    there.start(reader)
    here.seq += 1  # type: ignore[attr-defined]
    here.send(b"x")
    assert "lost" in (await inbox.ended()).reason
    assert "lost" in (await reader.ended()).reason


async def test_thousands_of_channels_live_side_by_side_and_end_with_their_peer(cluster: Cluster) -> None:
    a, b = await cluster.pair()
    b.serve("echo", lambda channel: channel.start(EchoInbox(channel)))
    inboxes: list[Inbox] = []
    for _ in range(20):
        for channel in await asyncio.gather(*(a.connect(b.node, "echo", within=30) for _ in range(150))):
            inbox = Inbox()
            channel.start(inbox)
            inboxes.append(inbox)
            channel.send(len(inboxes).to_bytes(4))
    for number, inbox in enumerate(inboxes, 1):
        assert await inbox.next() == number.to_bytes(4)
    await b.aclose()
    assert {(await inbox.ended()).how for inbox in inboxes} == {"broken"}
    assert a.sessions == {}


async def test_bytes_not_sent_when_the_peer_died_have_provably_not_left(cluster: Cluster) -> None:
    a = await cluster.node("a")
    program = await cluster.program("b", {"silence_seconds": 30.0})
    await present(a, "b")
    channel = await a.connect(NodeId("b"), "silence", within=20)
    inbox = Inbox()
    channel.start(inbox)
    first = channel.send(b"x" * 1000)
    last = fill(channel, b"x" * 50_000)
    await a.request(NodeId("b"), "echo", b"", within=20)
    assert channel.has_left(first)
    assert not channel.has_left(last)
    program.send_signal(signal.SIGKILL)
    await program.wait()
    if cluster.kind == "nats":  # its lease is long here
        a.leave(a.sessions[NodeId("b")], "test")
    await inbox.ended()
    assert channel.has_left(first)
    assert not channel.has_left(last)
