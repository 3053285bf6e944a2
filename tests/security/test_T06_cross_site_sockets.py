"""T06: a foreign page opens a WebSocket with its visitor's rights, or a token in an address ends up in a log.

A socket is refused before it is opened if its Origin is foreign; no cookie counts. The relay's addresses carry their
token, because the programs that use them know no other way: such a token opens one agent and nothing else, and is in no
log, whatever becomes of the socket.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Ledger
from tests.frontends.wire import connected
from tests.hubs import HubProcess
from tests.security.endpoints import ENDPOINTS, KEY, Endpoint, knock, opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOCKETS = [name for name, endpoint in ENDPOINTS.items() if endpoint.is_socket]
TOKEN = "a-token-that-nobody-may-see-in-a-log"


@pytest.mark.parametrize("name", SOCKETS)
@pytest.mark.parametrize("origin", ["https://evil.test", "null", "http://localhost.evil.test"])
async def test_no_page_of_others_opens_a_socket(guarded: tuple[HubProcess, Ledger], name: str, origin: str) -> None:
    endpoint = ENDPOINTS[name]
    cookie = ("cookie", f"token={TOKEN}; key={KEY}")
    async with connected(guarded[0].port) as wire:
        reply = await knock(wire, endpoint, [*endpoint.lines(KEY), ("origin", origin), cookie])
    assert reply.status == 403


@pytest.mark.parametrize("name", SOCKETS)
async def test_other_paths_do_not_upgrade_to_a_socket(guarded: tuple[HubProcess, Ledger], name: str) -> None:
    endpoint = ENDPOINTS[name]
    for path in ("/mcp", "/v1/tools", "/a2a", "/sse", "/nowhere"):
        async with connected(guarded[0].port) as wire:
            reply = await knock(wire, Endpoint("GET", path, headers=endpoint.headers), endpoint.lines(KEY))
        assert reply.status != 101


async def test_a_token_in_an_address_is_in_no_log(tmp_path: Path) -> None:
    async with opened(tmp_path, log={"level": "debug"}) as (hub, _):
        for name in SOCKETS:
            for query in (f"?token={TOKEN}", f"?x=1&token={TOKEN}&server_id=a", f"?token=%61{TOKEN}"):
                endpoint = ENDPOINTS[name]
                asked = Endpoint("GET", endpoint.path + query, headers=endpoint.headers, is_socket=True)
                async with connected(hub.port) as wire:
                    await knock(wire, asked, asked.lines(None))
        for path in ("/mcp_endpoint/health?key=", "/v1/tools?token=", "/mcp?key="):
            async with connected(hub.port) as wire:
                await knock(wire, Endpoint("GET", path + TOKEN), [("host", "localhost")])
    assert hub.said
    assert not [line for line in hub.said if TOKEN in line]
