"""One socket to a hub, as conversations write to it."""

from __future__ import annotations

import asyncio

from isthmus.app.dial_sessions import BatchedSocket


class Socket:
    """Keeps written messages unread."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_killed = False

    def frame(self, message: bytes) -> bytes:
        return b"<%b>" % message

    def write(self, data: bytes) -> int:
        self.writes.append(data)
        return self.buffered_bytes()

    def buffered_bytes(self) -> int:
        return sum(map(len, self.writes))

    def kill(self) -> None:
        self.is_killed = True


async def test_early_messages_of_the_hub_are_read_once_the_protocol_is_agreed() -> None:
    received: list[bytes] = []
    wire = BatchedSocket(100, 1000)
    wire.read(b"a")
    wire.send(b"early")
    wire.begin(Socket(), received.append)
    wire.read(b"b")
    assert received == [b"a", b"b"]


async def test_messages_of_one_turn_are_written_together() -> None:
    wire, socket = BatchedSocket(100, 1000), Socket()
    wire.begin(socket, lambda _message: None)
    wire.send(b"a")
    wire.send(b"b")
    assert socket.writes == []
    await asyncio.sleep(0)
    assert socket.writes == [b"<a><b>"]


async def test_a_hub_that_does_not_read_is_crowded_and_then_given_up() -> None:
    wire, socket = BatchedSocket(100, 1000), Socket()
    wire.begin(socket, lambda _message: None)
    assert not wire.is_backed_up()
    wire.send(b"x" * 200)
    await asyncio.sleep(0)
    assert wire.is_backed_up()
    assert not wire.ended.done()
    wire.send(b"x" * 900)
    await asyncio.sleep(0)
    assert socket.is_killed
    assert await wire.ended == "it does not read its messages"
    wire.send(b"more")
    await asyncio.sleep(0)
    assert len(socket.writes) == 2


async def test_it_ends_once() -> None:
    wire = BatchedSocket(100, 1000)
    wire.connection_ended("first")
    wire.connection_ended("second")
    wire.fail("third")
    assert await wire.ended == "first"
