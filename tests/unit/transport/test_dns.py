"""Names that callers chose, looked up beside those of everybody else."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from isthmus.transport import dns
from isthmus.transport.dns import PLACES, SHARE, Found, Lookups, TooManyNames, domain_of
from isthmus.transport.egress import Egress, HttpOrigin
from tests.unit.transport.doubles import Server

ADDRESS = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 80))]
SECONDS = 5


class NameServer:
    """Answers names at once, but for those that begin with `slow`."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked: list[str] = []
        self._really = socket.getaddrinfo

    def look(self, host: str, port: int) -> Found:
        self.asked.append(host)
        if host.startswith("slow"):
            self.release.wait()
        if host.startswith("no"):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return ADDRESS

    def getaddrinfo(self, host: str, port: int, *args: int, **named: int) -> Found:
        """As the system is asked."""
        return self.look(host, port) if host.endswith(".example") else self._really(host, port, *args, **named)


@pytest.fixture
def names() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.release.set()


@asynccontextmanager
async def stuck(names: NameServer, found: Lookups, count: int) -> AsyncIterator[list[asyncio.Task[Found]]]:
    """So many callers who wait for names that are not answered."""
    tasks = [asyncio.create_task(found.find(f"slow{number}", 80)) for number in range(count)]
    async with asyncio.timeout(SECONDS):
        while len(names.asked) < min(count, PLACES):  # noqa: ASYNC110 - threads ask
            await asyncio.sleep(0)
    try:
        yield tasks
    finally:
        names.release.set()
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_name_is_looked_up_or_has_no_address(names: NameServer) -> None:
    found = Lookups(names.look)
    assert await found.find("quick.example", 80) == ADDRESS
    with pytest.raises(socket.gaierror):
        await found.find("no.example", 80)


async def test_the_system_is_asked_unless_somebody_else_is() -> None:
    (first, *_) = await Lookups().find("127.0.0.1", 80)
    assert first[4] == ("127.0.0.1", 80)


async def test_only_so_many_are_looked_up_at_once_and_the_next_in_its_turn(names: NameServer) -> None:
    found = Lookups(names.look)
    async with stuck(names, found, PLACES + 1) as tasks:
        assert len(names.asked) == PLACES
        names.release.set()
        async with asyncio.timeout(SECONDS):
            assert await tasks[-1] == ADDRESS


async def test_who_goes_frees_no_place_before_the_name_server_has_answered(names: NameServer) -> None:
    found = Lookups(names.look)
    async with stuck(names, found, PLACES) as tasks:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        another = asyncio.create_task(found.find("quick.example", 80))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(names.asked) == PLACES
        names.release.set()
        async with asyncio.timeout(SECONDS):
            assert await another == ADDRESS


def test_a_domain_is_the_same_however_it_is_spelt() -> None:
    assert {domain_of(host) for host in ("a.one.example", "B.ONE.Example", "c.d.one.example.", "one.example")} == {
        "one.example"
    }


async def test_the_names_of_one_domain_keep_nobody_else_waiting(names: NameServer) -> None:
    """Whoever owns it may let each of its names take half a minute."""
    found = Lookups(names.look)
    slow = [asyncio.create_task(found.find(f"slow{number}.a.Evil.example.", 80)) for number in range(3 * PLACES)]
    async with asyncio.timeout(SECONDS):
        assert await found.find("quick.example", 80) == ADDRESS
        assert await found.find("evil.example.org", 80) == ADDRESS
        assert len([name for name in names.asked if name.startswith("slow")]) <= SHARE
        names.release.set()
        assert await asyncio.gather(*slow) == [ADDRESS] * len(slow)
    assert not found._shares, "nothing is remembered of a domain that nobody asks for"


async def test_who_waits_for_the_names_of_one_domain_leaves_room_for_others(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "WAITING_MAX", 8)
    found = Lookups(names.look)
    slow = [asyncio.create_task(found.find(f"slow{number}.evil.example", 80)) for number in range(SHARE + 2)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyNames):
        await found.find("one-more.evil.example", 80)
    async with asyncio.timeout(SECONDS):
        assert await found.find("quick.example", 80) == ADDRESS
        for task in slow:
            task.cancel()
        names.release.set()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_who_gives_up_while_it_waits_leaves_its_domains_places_to_the_next(names: NameServer) -> None:
    found = Lookups(names.look)
    async with stuck(names, found, PLACES):
        *gone, stays = [asyncio.create_task(found.find(f"quick{n}.one.example", 80)) for n in range(SHARE + 1)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        names.release.set()
        assert await asyncio.wait_for(stays, SECONDS) == ADDRESS


async def test_not_everybody_can_wait(names: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "WAITING_MAX", 1)
    found = Lookups(names.look)
    async with stuck(names, found, PLACES + 1):
        with pytest.raises(TooManyNames, match="try again later"):
            await found.find("quick.example", 80)


async def test_where_the_system_gives_no_thread_a_place_is_free_again(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    found = Lookups(names.look)
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", refuse)
        for number in range(PLACES + 1):
            with pytest.raises(TooManyNames):
                await asyncio.wait_for(found.find(f"quick{number}.example", 80), SECONDS)
    assert await asyncio.wait_for(found.find("quick.example", 80), SECONDS) == ADDRESS


def test_a_name_that_is_answered_when_nobody_is_there_any_more_hurts_nobody(names: NameServer) -> None:
    failed: list[object] = []

    async def leave() -> None:
        found = Lookups(names.look)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(found.find("slow.example", 80), 0.01)

    threading.excepthook, before = failed.append, threading.excepthook
    try:
        asyncio.run(leave())
        names.release.set()
        for thread in threading.enumerate():
            if thread.name == "look-up":
                thread.join(SECONDS)
    finally:
        threading.excepthook = before
    assert not failed


async def test_slow_names_of_callers_keep_nobody_from_a_configured_server(
    server: Server, names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    egress = Egress()
    wanted = [HttpOrigin("https", f"slow{number}.example", 443) for number in range(50)]
    looks = [asyncio.create_task(egress.refusal(origin, within=SECONDS)) for origin in wanted]
    async with asyncio.timeout(SECONDS):
        while not names.asked:  # noqa: ASYNC110 - threads ask
            await asyncio.sleep(0)
        configured = HttpOrigin("http", "localhost", server.origin.port)
        transport, _ = await egress.dial(configured, asyncio.Protocol, is_configured=True, within=SECONDS)
    transport.abort()
    names.release.set()
    await asyncio.gather(*looks)
