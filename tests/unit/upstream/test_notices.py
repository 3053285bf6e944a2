"""Messages that nobody answers: bounded in number and in time."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.core.crew import Crew
from isthmus.transport.egress import Egress
from isthmus.transport.http import HttpClient, request_head
from isthmus.upstream import notices as module
from isthmus.upstream.notices import Notices
from tests.unit.transport.doubles import Server
from tests.unit.upstream.doubles import ACCEPTED


@pytest.mark.parametrize("is_taken", [True, False])
async def test_quiet_comes_when_all_were_taken_or_lost(*, is_taken: bool) -> None:
    crew = Crew("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), crew)
        notices = Notices(client)
        await notices.quiet()  # nothing is under way
        notices.send(request_head("POST", "/", server.origin, {}), b"{}")
        quiet = asyncio.ensure_future(notices.quiet())
        peer = await server.accept()
        assert (await peer.request()).endswith(b"\r\n\r\n{}")
        assert not quiet.done()
        if is_taken:
            await peer.say(ACCEPTED)
        else:
            peer.reset()
        async with asyncio.timeout(10):
            await quiet
        await client.aclose()
    await crew.aclose()


async def test_one_that_is_never_acknowledged_gives_its_connection_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.05)
    crew = Crew("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), crew)
        notices = Notices(client)
        notices.send(request_head("POST", "/", server.origin, {}), b"{}")
        async with asyncio.timeout(10):
            await notices.quiet()
        await (await server.accept()).rest()
        await client.aclose()
    await crew.aclose()


async def test_beyond_the_limit_none_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICES_MAX", 2)
    crew = Crew("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), crew)
        notices = Notices(client)
        head = request_head("POST", "/", server.origin, {})
        for number in (b"1", b"2", b"3"):
            notices.send(head, number)
        assert not notices.has_room()
        seen = []
        for _ in range(2):
            peer = await server.accept()
            seen.append((await peer.request())[-1:])
            await peer.say(ACCEPTED)
        async with asyncio.timeout(10):
            await notices.quiet()
        assert sorted(seen) == [b"1", b"2"]
        assert server.accepted == 2
        await client.aclose()
    await crew.aclose()
