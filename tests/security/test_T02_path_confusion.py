"""T02: a path, or a Host, that one reader takes for another place than the next.

Which frontend a request is for is decided once, by the path as it came, and the key is asked for by that frontend;
nothing is normalised, and the Host header names no place.
"""

from __future__ import annotations

import pytest

from tests.conftest import Ledger
from tests.frontends.wire import PING, connected
from tests.hubs import HubProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTS = ["localhost/livez?", "localhost#", "[", "localhost/../v1", "localhost?x", "localhost\\@evil", "localhost:x"]
PATHS = [
    "//v1/tools",
    "/livez/../v1/tools",
    "/livez%2f..%2fv1%2ftools",
    "/v1%2ftools",
    "/v1/tools;x=/livez",
    "/v1/./tools",
    "/V1/tools",
    "/%76%31/tools",
    "/livez/..;/v1/tools",
    "/livez#/../v1/tools",
    "/mcp/../mcp",
    "/mcp%00",
    "/.well-known/../v1/tools",
    "http://localhost/v1/tools",
    "http://evil.test/livez",
    "*",
    "v1/tools",
]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", PATHS)
async def test_no_path_leads_past_the_key(guarded: tuple[HubProcess, Ledger], path: str, method: str) -> None:
    headers = [("host", "localhost"), ("content-type", "application/json"), ("accept", "*/*")]
    async with connected(guarded[0].port) as wire:
        reply = await wire.request(PING if method == "POST" else b"", headers, method=method, path=path)
        is_health = reply.body == b'{"status":"ok"}'  # all that anybody learns there
        assert is_health or reply.status in (400, 401, 404, 405), reply.body


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("path", ["/v1/tools", "/mcp", "/livez", "/.well-known/agent-card.json"])
async def test_a_host_is_no_part_of_the_place(guarded: tuple[HubProcess, Ledger], host: str, path: str) -> None:
    async with connected(guarded[0].port) as wire:
        reply = await wire.request(b"", [("host", host)], method="GET", path=path)
    is_published = path in ("/livez", "/.well-known/agent-card.json")
    assert reply.status in ((200, 400) if is_published else (400,))
    assert b"raw" not in reply.body
    assert reply.status == 400 or b"evil" not in reply.body


async def test_the_hubs_address_comes_from_the_configuration(
    guarded: tuple[HubProcess, Ledger],
) -> None:
    async with connected(guarded[0].port) as wire:
        card = await wire.request(b"", [("host", "127.0.0.1")], method="GET", path="/.well-known/agent-card.json")
    assert card.status == 200
    assert b"https://hub.example" in card.body
    assert b"127.0.0.1" not in card.body
