"""T14: a name leads to a public address when it is checked, and to a private one when it is dialled.

The answer: there is one lookup for each new connection, in the guard; its answers are checked, and one of those that
passed is dialled by its number. A connection that is used again is the same socket, and every new one is looked up and
checked anew. What the operator configured is exempt from the table and pinned in the same way: dialled as it was
resolved, once. In a running hub: `test_ssrf_matrix.py`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.transport import egress as module
from isthmus.transport.egress import Egress, EgressRefused, HttpOrigin
from isthmus.transport.http_client import HttpClient, request_head
from tests.security.rebinding import Names
from tests.security.sink import Sink, dialled
from tests.unit.transport.doubles import OK, Recorder

CALLS = 10_000 if os.environ.get("ISTHMUS_SOAK") else 500
"""Two at a time."""
ALLOWED = "127.0.0.7"
"""Stands for a public address: the only one of this machine that the guard lets pass here."""
TURNS = [[ALLOWED], ["127.0.0.1"], [ALLOWED, "127.0.0.1"], ["::1"], ["127.0.0.1", ALLOWED]]


class Public:
    """A server at the address that may be dialled, on the sink's port; hangs up after a few requests."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.conversations: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert writer.get_extra_info("sockname")[0] == ALLOWED
        task = asyncio.current_task()
        assert task is not None
        self.conversations.add(task)
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            for _ in range(3):
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                writer.write(OK)
        writer.close()


@asynccontextmanager
async def public(port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Public]:
    """Such a server, and a guard that takes its address for a public one."""
    checks = module.refusal_of
    monkeypatch.setattr(module, "refusal_of", lambda address: None if address == ALLOWED else checks(address))
    server = Public()
    listener = await asyncio.start_server(server.serve, ALLOWED, port)
    try:
        yield server
    finally:
        listener.close()
        for conversation in server.conversations:
            conversation.cancel()
        await asyncio.gather(*server.conversations)


async def ask(client: HttpClient) -> Recorder:
    """One request, on whatever connection there is."""
    answer = Recorder()
    client.send(request_head("GET", "/", client.origin, {}), None, answer)
    return await answer.over()


async def test_the_dialled_address_is_the_checked_one_however_often_a_name_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    background, names = BackgroundTasks("calls"), Names({"rebinding.example": TURNS})
    with Sink() as sink:
        async with public(sink.port, monkeypatch) as server:
            origin = HttpOrigin("http", "rebinding.example", sink.port)
            client = HttpClient(origin, Egress(resolver=names), background, is_configured=False, limit=4)
            answered = refused = 0
            with dialled() as whom:
                for _ in range(CALLS):
                    answers = await asyncio.gather(*(ask(client) for _ in range(2)))
                    answered += sum(answer.status == 200 for answer in answers)
                    refused += sum(answer.lost is not None for answer in answers)
            await client.aclose()
        assert sink.connections() == []
    await background.aclose()
    assert set(whom) == {f"{ALLOWED}:{sink.port}"}
    assert answered == server.requests > server.connections > 0, "connections were used again"
    assert refused > 0, "and some calls met a name that had changed"
    assert names.asked["rebinding.example"] >= len(whom)


async def test_every_connection_makes_exactly_one_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names({"rebinding.example": [[ALLOWED], ["127.0.0.1"]]})
    egress = Egress(resolver=names)
    with Sink() as sink:
        async with public(sink.port, monkeypatch):
            origin = HttpOrigin("http", "rebinding.example", sink.port)
            for _ in range(10):
                transport, _ = await egress.dial(origin, asyncio.Protocol, is_configured=False, within=5.0)
                assert transport.get_extra_info("peername")[0] == ALLOWED
                transport.abort()
                with pytest.raises(EgressRefused):
                    await egress.dial(origin, asyncio.Protocol, is_configured=False, within=5.0)
        assert names.asked == {"rebinding.example": 20}


async def test_configured_addresses_are_dialled_as_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names({"server.example": [["127.0.0.1"], [ALLOWED]]})
    with Sink() as sink:
        async with public(sink.port, monkeypatch):
            origin = HttpOrigin("http", "server.example", sink.port)
            peers = []
            for _ in range(4):
                transport, _ = await Egress.dial(
                    Egress(resolver=names), origin, asyncio.Protocol, is_configured=True, within=5.0
                )
                peers.append(transport.get_extra_info("peername")[0])
                transport.abort()
        assert peers == ["127.0.0.1", ALLOWED] * 2
        assert {ipaddress.ip_address(peer) for peer in peers} == {ipaddress.ip_address(name) for name in names.checked}
        assert len(sink.connections()) == 2  # the operator's own word leads there, and was followed as it was resolved
