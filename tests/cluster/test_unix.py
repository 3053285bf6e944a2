"""The bus over Unix sockets: its files, their modes, and unknown peers that connect."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from isthmus.cluster import unix
from isthmus.cluster.bus import NodeId
from isthmus.cluster.frames import HEADER, LENGTH, Hello, Kind, encode_hello
from isthmus.cluster.unix import UnixBus, socket_name
from tests.cluster.nodes import CALM, present, until


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    with TemporaryDirectory() as made:
        yield Path(made) / "bus"


async def start(folder: Path, node: str) -> UnixBus:
    return await UnixBus.start(folder, NodeId(node), settings=CALM)


def frame(kind: int, payload: bytes) -> bytes:
    return LENGTH.pack(HEADER.size + len(payload)) + HEADER.pack(kind, 0, 0, 0) + payload


async def test_only_this_user_can_reach_the_sockets(folder: Path) -> None:
    bus = await start(folder, "a")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert os.listdir(folder) == ["a.sock"]
    assert stat.S_IMODE(os.stat(folder / "a.sock").st_mode) == 0o600
    await bus.aclose()
    assert os.listdir(folder) == []
    os.chmod(folder, 0o755)
    with pytest.raises(ValueError, match="mode 0700"):
        await start(folder, "a")


async def test_one_node_id_is_one_process(folder: Path) -> None:
    bus = await start(folder, "a")
    with pytest.raises(OSError, match="another process"):
        await start(folder, "a")
    assert bus.state.is_connected
    await bus.aclose()


async def test_the_socket_of_a_dead_process_is_taken_over(folder: Path) -> None:
    os.mkdir(folder, 0o700)
    for name in ("a.sock", "b.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / name))
    a = await start(folder, "a")
    c = await start(folder, "c")
    await present(a, "c")
    await a.aclose()
    await c.aclose()


async def test_a_path_that_is_too_long_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="107 bytes"):
        await start(folder / ("x" * 100), "a")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(100),
        LENGTH.pack(2**31) + b"x",
        frame(Kind.DATA, b"x"),
        frame(Kind.HELLO, b"{"),
        frame(Kind.HELLO, encode_hello(Hello("a", 1, "", {}))),  # its own id
        frame(Kind.HELLO, encode_hello(Hello("b", 1, "", {}, version=99))),
    ],
    ids=["http", "zeros", "long", "data", "not-json", "own-id", "version"],
)
async def test_a_stranger_is_disconnected_and_affects_no_other_node(folder: Path, garbage: bytes) -> None:
    a, b = await start(folder, "a"), await start(folder, "b")
    await present(a, "b")
    b.respond("echo", lambda _node, payload: payload)
    reader, writer = await asyncio.open_unix_connection(str(folder / "a.sock"))
    writer.write(garbage)
    async with asyncio.timeout(20):
        with suppress(ConnectionError):
            await reader.read()
    writer.close()
    assert set(a.peers()) == {"b"}
    assert await a.request(NodeId("b"), "echo", b"well", within=20) == b"well"
    await a.aclose()
    await b.aclose()


async def test_a_peer_that_sends_garbage_loses_its_connection_and_comes_back(folder: Path) -> None:
    a, b = await start(folder, "a"), await start(folder, "b")
    await present(a, "b")
    await present(b, "a")
    before = a.sessions[NodeId("b")]
    pipe = b.sessions[NodeId("a")].pipe
    assert isinstance(pipe, unix.UnixPipe)
    pipe._transport.write(os.urandom(4) + b"\xff" * 100)
    await until(lambda: a.sessions.get(NodeId("b")) not in {before, None})
    await a.aclose()
    await b.aclose()


async def test_silent_strangers_are_disconnected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix, "HANDSHAKE_SECONDS", 0.1)
    a = await start(folder, "a")
    strangers = [await asyncio.open_unix_connection(str(folder / "a.sock")) for _ in range(unix.HANDSHAKES_MAX + 5)]
    async with asyncio.timeout(20):
        for reader, writer in strangers:
            assert await reader.read() == b""
            writer.close()
    assert a.handshakes == set()
    await a.aclose()


def test_socket_names_keep_nodes_apart() -> None:
    names = {socket_name(node) for node in ("a", "A", "a/b", "a.b", "..", "=a", "b32", "ä", "\0")}
    assert len(names) == 9
    assert all("/" not in name and not name.startswith(".") for name in names)
