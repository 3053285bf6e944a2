"""Public documents of a hub, for strangers and for callers with a key."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.frontends import odd_server
from tests.frontends.wire import BASE, Headers, Reply, connected, encoded, key_header, legacy
from tests.hubs import PATIENT, HubProcess, serving, stdio

pytestmark = pytest.mark.asyncio(loop_scope="module")

PUBLIC_URL = "https://hub.example/tools"
CATALOG = "/.well-known/ai-catalog.json"
AGENT = f"{PUBLIC_URL}/.well-known/agent-card.json"
ALL_KEY, SOME_KEY = "key-of-one-who-may-everything", "key-of-one-who-may-echo-only"
CALLERS = {"all": {"key": ALL_KEY, "allow": ["*"]}, "some": {"key": SOME_KEY, "allow": ["builtin.echo"]}}
ODD = stdio([sys.executable, odd_server.__file__])
SERVERS = {"odd": ODD, "server-card": ODD}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder = tmp_path_factory.mktemp("hub")
    async with serving(
        folder, {"odd": ODD}, callers=CALLERS, limits=PATIENT, hub={"public_url": PUBLIC_URL}
    ) as running:
        yield running


async def get(hub: HubProcess, path: str, key: str | None = None, *, method: str = "GET", more: Headers = ()) -> Reply:
    async with connected(hub.port) as wire:
        return await wire.request(b"", [("host", "localhost"), *key_header(key), *more], method=method, path=path)


def urls(reply: Reply) -> list[str]:
    return [entry["url"] for entry in reply.json["entries"]]


async def test_a_stranger_is_shown_the_hub_and_nothing_behind_it(hub: HubProcess) -> None:
    for key in (None, "wrong"):
        reply = await get(hub, CATALOG, key)
        assert (reply.status, reply.headers["content-type"]) == (200, "application/ai-catalog+json")
        assert reply.headers["cache-control"] == "public, max-age=3600"
        assert reply.headers["access-control-allow-origin"] == "*"
        assert reply.json == {
            "specVersion": "1.0",
            "entries": [
                {
                    "identifier": "urn:air:hub.example:mcp:isthmus",
                    "displayName": "Isthmus",
                    "type": "application/mcp-server-card+json",
                    "mediaType": "application/mcp-server-card+json",
                    "url": f"{PUBLIC_URL}/mcp/server-card",
                },
                {
                    "identifier": "urn:air:hub.example:a2a:isthmus",
                    "displayName": "Isthmus",
                    "type": "application/a2a-agent-card+json",
                    "mediaType": "application/a2a-agent-card+json",
                    "url": AGENT,
                },
            ],
        }


async def test_a_caller_with_a_key_sees_its_servers(hub: HubProcess) -> None:
    base = f"{PUBLIC_URL}/mcp"
    everything = await get(hub, CATALOG, ALL_KEY)
    own, builtin, odd = f"{base}/server-card", f"{base}/builtin/server-card", f"{base}/odd/server-card"
    assert urls(everything) == [own, builtin, odd, AGENT]
    assert urls(await get(hub, CATALOG, SOME_KEY)) == [own, builtin, AGENT]
    assert everything.headers["cache-control"].startswith("private")
    assert "authorization" in everything.headers["vary"]
    assert "access-control-allow-origin" not in everything.headers


async def test_no_page_reads_more_than_a_stranger(hub: HubProcess) -> None:
    reply = await get(hub, CATALOG, ALL_KEY, more=[("origin", "https://evil.test")])
    assert urls(reply) == [f"{PUBLIC_URL}/mcp/server-card", AGENT]


async def test_addresses_come_from_the_configuration(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(
            b"", [("host", "evil.test"), ("x-forwarded-host", "evil.test")], method="GET", path=CATALOG
        )
    assert urls(reply) == [f"{PUBLIC_URL}/mcp/server-card", AGENT]


async def test_a_card_says_where_to_connect_and_lists_nothing(hub: HubProcess) -> None:
    reply = await get(hub, "/mcp/server-card")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/mcp-server-card+json")
    card: dict[str, Any] = reply.json
    (remote,) = card["remotes"]
    assert (card["name"], remote["type"], remote["url"]) == (
        "example.hub/isthmus",
        "streamable-http",
        f"{PUBLIC_URL}/mcp",
    )
    assert remote["supportedProtocolVersions"][0] == "2026-07-28"
    assert remote["headers"][0]["name"] == "Authorization"
    assert card.keys().isdisjoint({"tools", "resources", "prompts", "capabilities"})


async def test_only_callers_that_may_see_a_server_get_its_card(hub: HubProcess) -> None:
    card = (await get(hub, "/mcp/odd/server-card", ALL_KEY)).json
    assert (card["name"], card["remotes"][0]["url"]) == ("example.hub/isthmus.odd", f"{PUBLIC_URL}/mcp/odd")
    hidden, absent = [await get(hub, f"/mcp/{name}/server-card", SOME_KEY) for name in ("odd", "none")]
    assert (hidden.status, hidden.body) == (absent.status, absent.body) == (404, b'{"error":"Not found"}')
    strange, nobodys = [await get(hub, f"/mcp/{name}/server-card") for name in ("odd", "none")]
    assert (strange.status, strange.body) == (nobodys.status, nobodys.body)
    assert strange.status == 401


async def test_other_methods(hub: HubProcess) -> None:
    assert (await get(hub, CATALOG, method="HEAD")).status == 200
    assert (await get(hub, "/mcp/server-card", method="OPTIONS")).status == 204
    assert (await get(hub, CATALOG, method="DELETE")).status == 405
    async with connected(hub.port) as wire:
        reply = await wire.request(encoded(legacy("ping")), [*BASE, *key_header(ALL_KEY)], path="/mcp/server-card")
    assert reply.status == 404  # there is no server of that name


async def test_without_a_public_address_nothing_is_published(tmp_path: Path) -> None:
    async with serving(tmp_path, {}) as hub:
        assert (await get(hub, CATALOG)).status == 404


async def test_a_server_that_is_called_like_the_card_keeps_its_path(tmp_path: Path) -> None:
    async with serving(tmp_path, SERVERS, limits=PATIENT, hub={"public_url": PUBLIC_URL}) as hub:
        async with connected(hub.port) as wire:
            listed = await wire.request(encoded(legacy("tools/list")), BASE, path="/mcp/server-card")
        assert [tool["name"] for tool in listed.json["result"]["tools"]] == ["odd.tool"]
        assert (await get(hub, "/mcp/server-card", more=[("accept", "application/json")])).status == 406
        card = (await get(hub, "/mcp/server-card/server-card")).json
        assert card["remotes"] == [
            {
                "type": "streamable-http",
                "url": f"{PUBLIC_URL}/mcp/server-card",
                "supportedProtocolVersions": card["remotes"][0]["supportedProtocolVersions"],
            }
        ]
