"""T49: clients that send slowly, read slowly or say nothing, and take the room of others.

Heads, bodies, silence and unread answers have their time, and connections their number, in all and from one address.
Each time is shown by itself in `tests/unit/frontends/http/test_connection.py`; here it is a whole attack, on an
endpoint of little patience, and the room that a hub has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isthmus.frontends.http.settings import AddressCounts, HttpListenerSettings
from tests.frontends.wire import BASE, PING, PONG, Wire, connected, encoded, key_header, legacy, until
from tests.security.endpoints import ENDPOINTS, KEY, opened
from tests.unit.frontends.http.raw_client import Echo
from tests.unit.frontends.http.raw_client import opened as open_listener

SOCKETS = 200


def test_the_time_limits_match_the_threat_table() -> None:
    settings = HttpListenerSettings()
    assert settings.header_seconds <= 10
    assert settings.body_seconds <= 10
    assert settings.body_bytes_per_second >= 1024
    assert settings.stall_seconds <= 10
    assert settings.max_connections_per_address < settings.max_connections


@pytest.mark.parametrize(
    "addresses", [["10.0.0.1"] * 3, ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::3"], ["::ffff:10.0.0.1"] * 3]
)
def test_a_network_address_gets_no_more_room(addresses: list[str]) -> None:
    """Of IPv6 everybody has 2^64 addresses."""
    rooms = AddressCounts(2)
    assert [rooms.has_room_for(address) for address in addresses] == [True, True, False]
    for address in addresses:
        rooms.left(address)
    assert rooms.has_room_for(addresses[0])
    assert rooms.has_room_for("2001:db8:0:1::1")


async def test_rejected_websockets_get_no_more_room_than_others(tmp_path: Path) -> None:
    """An invalid token is answered on the socket, as earlier relays did."""
    upgrade = encoded_upgrade("/mcp_endpoint/mcp/?token=none")
    async with opened(tmp_path, limits={"connections_per_address": 20}) as (hub, _):
        async with attacking(hub.port, upgrade, 60) as wires:
            statuses = [(await wire.head())[0] for wire in wires]
        assert statuses.count(101) <= 20
        assert statuses.count(503) >= 40

        async def is_welcome() -> bool:
            async with attacking(hub.port, upgrade, 1) as (wire,):
                return bool((await wire.head())[0] == 101)

        await until(is_welcome)


def encoded_upgrade(path: str) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in ENDPOINTS["relay, server"].lines(None))
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


@asynccontextmanager
async def attacking(port: int, first: bytes, count: int = SOCKETS) -> AsyncIterator[list[Wire]]:
    """So many connections that have begun something and do not go on."""
    writers: list[asyncio.StreamWriter] = []
    wires: list[Wire] = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(first)
            wires.append(Wire(reader, writer))
        yield wires
    finally:
        for writer in writers:
            writer.transport.abort()


ATTACKS = {
    "slow heads": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-a: ",
    "slow bodies": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %b\r\nContent-Length: 1000\r\n\r\n{" % KEY.encode(),
    "silence": b"",
}


async def test_slow_clients_are_cut_and_others_are_served_meanwhile() -> None:
    patience = {"header_seconds": 1.0, "body_seconds": 1.0, "keep_alive_seconds": 30.0}
    async with open_listener(Echo(), **patience) as (_, port):
        attacks = [attacking(port, first) for first in ATTACKS.values()]
        async with attacks[0] as heads, attacks[1] as bodies, attacks[2] as silent, connected(port) as honest:
            slow = [*heads, *bodies, *silent]
            waiting = asyncio.gather(*(has_ended(wire) for wire in slow))
            served = 0
            while not waiting.done():
                assert (await honest.request(PING)).status == 200
                served += 1
                await asyncio.wait({waiting}, timeout=0.05)
            assert all(await waiting)
            assert served  # how often depends on how much else the machine has to do


async def has_ended(wire: Wire) -> bool:
    """Whether the hub ends a connection; it may say why first."""
    async with asyncio.timeout(30):
        try:
            while await wire.reader.read(4096):
                pass
        except ConnectionError:
            pass
    return True


async def test_a_client_that_does_not_read_is_disconnected_and_costs_little(tmp_path: Path) -> None:
    """Each requests a list again and again, and reads none of them."""
    ask = encoded(legacy("tools/list"))
    lines = "".join(f"{name}: {value}\r\n" for name, value in [*BASE, *key_header(KEY)])
    request = f"POST /mcp HTTP/1.1\r\n{lines}content-length: {len(ask)}\r\n\r\n".encode() + ask
    async with opened(tmp_path) as (hub, _):
        before = resident(hub.pid)
        async with attacking(hub.port, request * 2000, 20), connected(hub.port) as honest:
            for _ in range(50):
                assert (await honest.request(PING, [*BASE, *key_header(KEY)])).body == PONG
            assert resident(hub.pid) - before < 20 * 2 * 1024 * 1024 + 32 * 1024 * 1024


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def test_one_address_leaves_room_for_others(tmp_path: Path) -> None:
    async with opened(tmp_path, limits={"connections": 20, "connections_per_address": 10}) as (hub, _):
        async with attacking(hub.port, b"", 10), connected(hub.port) as wire:
            assert (await wire.head())[0] == 503

        async def is_served() -> bool:
            async with connected(hub.port) as wire:
                return (await wire.request(PING, [*BASE, *key_header(KEY)])).body == PONG

        await until(is_served)
