"""A client that guesses keys must wait, at every endpoint. Clients elsewhere and callers with a key need not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.frontends.wire import Reply, Wire
from tests.hubs import HubProcess
from tests.security.endpoints import CLOSED, ENDPOINTS, KEY, Endpoint, knock, opened

WRONG = "a-key-of-nobody-at-all-0001"
GUESSES = 3
FORM = (("content-type", "application/x-www-form-urlencoded"),)
SECRET = "grant_type=client_credentials&client_id=one&client_secret="

KEYS_GUESSED: dict[str, Endpoint] = {
    **CLOSED,
    "card": ENDPOINTS["card"],
    "catalog": ENDPOINTS["catalog"],
}
"""Endpoints at which a key in a header is looked at."""

TOKENS: dict[str, Endpoint] = {
    "OAuth, a token": Endpoint("POST", "/oauth/token", f"{SECRET}{WRONG}".encode(), FORM, takes_body=True),
    "relay, health": Endpoint("GET", f"/mcp_endpoint/health?key={WRONG}"),
    "relay, server": Endpoint("GET", f"/mcp_endpoint/mcp/?token={WRONG}", headers=ENDPOINTS["relay, server"].headers),
    "relay, device": Endpoint("GET", f"/mcp_endpoint/call/?token={WRONG}", headers=ENDPOINTS["relay, device"].headers),
}
"""Endpoints with credentials of their own."""


@asynccontextmanager
async def coming_from(address: str, port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


async def ask(
    hub: HubProcess, endpoint: Endpoint, key: str | None, *, address: str = "127.0.0.1", by: str = ""
) -> Reply:
    async with coming_from(address, hub.port) as wire:
        return await knock(wire, endpoint, [*endpoint.lines(None if by else key), *([(by, key)] if by and key else [])])


@pytest.mark.one_process("a load balancer hides the addresses of clients")
async def test_wrong_keys_are_limited_at_every_endpoint_and_right_ones_at_none(tmp_path: Path) -> None:
    async with opened(tmp_path, limits={"wrong_keys_per_minute": GUESSES}, relay={"enabled": True}) as (hub, _):
        first = ENDPOINTS["REST, tools"]
        for _ in range(GUESSES):
            assert (await ask(hub, first, WRONG)).status == 401
        for name, endpoint in {**KEYS_GUESSED, **TOKENS}.items():
            for by in ("authorization", "x-api-key") if name in KEYS_GUESSED else ("",):
                sent = f"Bearer {WRONG}" if by == "authorization" else WRONG if by else None
                reply = await ask(hub, endpoint, sent, by=by)
                assert (name, by, reply.status) == (name, by, 429)
                assert 1 <= int(reply.headers["retry-after"]) <= 60 // GUESSES

        for name, endpoint in KEYS_GUESSED.items():  # who has a key comes in, though it has the guesser's address
            assert (await ask(hub, endpoint, KEY)).status not in (401, 429), name
        token = Endpoint("POST", "/oauth/token", f"{SECRET}{KEY}".encode(), FORM, takes_body=True)
        assert (await ask(hub, token, None)).status == 200
        assert (await ask(hub, first, None)).status == 401  # who shows none does not guess
        assert (await ask(hub, Endpoint("GET", "/mcp_endpoint/health"), None)).status == 200
        assert (await ask(hub, first, WRONG, address="127.0.0.2")).status == 401  # nor is it somewhere else
    said = [line for line in hub.said if "too many wrong keys" in line]
    assert len(said) == 1
    assert "127.0.0.1" in said[0]
    assert WRONG not in "".join(hub.said)
    kept = b"".join(file.read_bytes() for file in (tmp_path / "state").rglob("*") if file.is_file())
    assert b'"keys.guessed"' in kept
    assert b'"status":429' in kept
    assert WRONG.encode() not in kept
