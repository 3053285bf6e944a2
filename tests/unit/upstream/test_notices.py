"""Messages that nobody answers: bounded in number and in time."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.transport.egress import Egress
from isthmus.transport.http import HttpClient, Sink, Ticket, request_head
from isthmus.upstream import notices as module
from isthmus.upstream.notices import Notices
from tests.unit.transport.doubles import Recorder, Server
from tests.unit.upstream.doubles import ACCEPTED


@pytest.mark.parametrize("is_taken", [True, False])
async def test_quiet_comes_when_all_were_taken_or_lost(*, is_taken: bool) -> None:
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True)
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
    await background.aclose()


async def test_one_that_is_never_acknowledged_gives_its_connection_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.05)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True)
        notices = Notices(client)
        notices.send(request_head("POST", "/", server.origin, {}), b"{}")
        async with asyncio.timeout(10):
            await notices.quiet()
        await (await server.accept()).rest()
        await client.aclose()
    await background.aclose()


async def test_beyond_the_limit_none_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICES_MAX", 2)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True)
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
    await background.aclose()


async def test_answers_are_sent_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICES_MAX", 2)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True, limit=1)
        notices = Notices(client)
        numbers = [b"%d" % number for number in range(9)]
        for number in numbers:
            notices.answer(request_head("POST", "/", server.origin, {}), number)
        assert notices.has_room()  # they do not count
        seen = []
        for _ in numbers:
            peer = await server.accept()
            seen.append((await peer.request())[-1:])
            await peer.say(ACCEPTED)
        assert seen == numbers
        await client.aclose()
    await background.aclose()


async def test_an_answers_time_begins_when_a_connection_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.01)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True, limit=1)
        notices = Notices(client)
        head = request_head("POST", "/", server.origin, {})
        client.send(head, b"a call", Recorder())
        first = await server.accept()
        notices.answer(head, b"an answer")
        notices.send(head, b"a notice")
        async with asyncio.timeout(10):
            await notices.quiet()  # its time was over before there was a connection for it
        monkeypatch.setattr(module, "NOTICE_SECONDS", 30.0)
        await first.request()
        await first.say(ACCEPTED)
        second = await server.accept()
        assert (await second.request()).endswith(b"an answer")
        await client.aclose()
    await background.aclose()


async def test_an_answer_that_is_never_acknowledged_gives_its_connection_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.01)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True)
        Notices(client).answer(request_head("POST", "/", server.origin, {}), b"{}")
        await (await server.accept()).rest()
        await client.aclose()
    await background.aclose()


async def test_an_answer_does_not_wait_for_a_connection_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.01)
    background = BackgroundTasks("test")
    async with Server() as server:
        client = HttpClient(server.origin, Egress(), background, is_configured=True, limit=1)
        notices = Notices(client)
        head = request_head("POST", "/", server.origin, {})
        client.send(head, b"a call", Recorder())
        first = await server.accept()
        notices.answer(head, b"an answer")
        notices.send(head, b"a notice")
        async with asyncio.timeout(10):
            await notices.quiet()
        monkeypatch.setattr(module, "NOTICE_SECONDS", 30.0)
        later = Recorder()
        client.send(head, b"another call", later)
        await first.request()
        await first.say(ACCEPTED)
        assert (await (await server.accept()).request()).endswith(b"another call")
        await client.aclose()
    await background.aclose()


async def test_an_answer_that_provably_did_not_leave_is_sent_once_more_and_no_more() -> None:
    class Counting(HttpClient):
        """A client that remembers what it was given."""

        sent: ClassVar[list[bytes | None]] = []

        def send(self, head: bytes, body: bytes | None, sink: Sink) -> Ticket:
            self.sent.append(body)
            return super().send(head, body, sink)

    background = BackgroundTasks("test")
    async with Server() as server:
        client = Counting(server.origin, Egress(), background)
        await client.aclose()
        Notices(client).answer(request_head("POST", "/", server.origin, {}), b"an answer")
        for _ in range(10):
            await asyncio.sleep(0)
        assert client.sent == [b"an answer", b"an answer"]
    await background.aclose()
