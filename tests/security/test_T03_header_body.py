"""T03: headers name a harmless tool, for routers that read them, and the body names another one.

A modern request whose headers do not say what its body says is answered 400 with -32020 and reaches no server.
`tests/frontends/test_bad_input.py` covers every way to disagree, with a tool of the hub itself; here a server
would have noted the call.
"""

from __future__ import annotations

import base64

import pytest

from tests.conftest import Ledger
from tests.frontends.test_bad_input import MISMATCHES
from tests.frontends.wire import connected, encoded, key_header, modern, modern_headers
from tests.hubs import META, MODERN, HubProcess
from tests.security.endpoints import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAY = {"name": "raw.pay", "arguments": {"nonce": "t03"}}


def sentinel(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def spoilt(label: str) -> list[tuple[str, str]]:
    """The headers of a row, about the server's tool."""
    paid = "raw.pay"
    swap = {sentinel("builtin.echo"): sentinel(paid), "builtin.echo": paid}
    return [(name, swap.get(value, value)) for name, value in MISMATCHES[label]]


@pytest.mark.parametrize("path", ["/mcp", "/mcp/raw"])
@pytest.mark.parametrize("label", MISMATCHES)
async def test_mismatching_headers_reach_no_server(guarded: tuple[HubProcess, Ledger], label: str, path: str) -> None:
    hub, ledger = guarded
    async with connected(hub.port) as wire:
        reply = await wire.request(encoded(modern("tools/call", PAY)), [*spoilt(label), *key_header(KEY)], path=path)
    assert (reply.status, reply.code) == (400, -32020), reply.body
    assert not ledger.ran()


async def test_a_version_in_the_body_that_the_header_does_not_have(guarded: tuple[HubProcess, Ledger]) -> None:
    hub, ledger = guarded
    meta = {**META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**PAY, "_meta": meta}}
    async with connected(hub.port) as wire:
        reply = await wire.request(encoded(body), [*modern_headers("tools/call", "raw.pay"), *key_header(KEY)])
    assert (reply.status, reply.code) == (400, -32020), reply.body
    assert not ledger.ran()


async def test_matching_headers_are_called(guarded: tuple[HubProcess, Ledger]) -> None:
    """Else the tests above could not fail."""
    hub, ledger = guarded
    async with connected(hub.port) as wire:
        headers = [*modern_headers("tools/call", "raw.pay"), *key_header(KEY)]
        assert (await wire.request(encoded(modern("tools/call", PAY)), headers)).status == 200
    assert ledger.ran() == {"t03": 1}
    assert MODERN
