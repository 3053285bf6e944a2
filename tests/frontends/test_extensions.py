"""The extensions that the hub announces, and apps (`ui://` resources, members of `_meta`) that pass through it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.frontends import app_server
from tests.frontends.wire import BASE, connected, encoded, legacy, modern, modern_headers
from tests.hubs import META, PATIENT, HubProcess, serving, stdio
from tests.peers.launch import command

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVERS = {"app": stdio([sys.executable, app_server.__file__]), "raw": stdio(command("raw_server"))}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    # The hub's own tasks would be an extension that no server has.
    alone = {"provide": False}
    async with serving(tmp_path_factory.mktemp("hub"), SERVERS, limits=PATIENT, tasks=alone) as running:
        yield running


async def ask_legacy(hub: HubProcess, method: str, params: dict[str, Any], path: str = "/mcp") -> Any:
    async with connected(hub.port) as wire:
        return (await wire.request(encoded(legacy(method, params)), BASE, path=path)).json["result"]


async def ask_modern(hub: HubProcess, method: str, params: dict[str, Any], path: str = "/mcp") -> Any:
    headers = modern_headers(method, params.get("name", params.get("uri")))
    async with connected(hub.port) as wire:
        return (await wire.request(encoded(modern(method, params)), headers, path=path)).json["result"]


@pytest.mark.parametrize(("path", "extensions"), [("/mcp", {app_server.UI: {}}), ("/mcp/app", {app_server.UI: {}})])
async def test_only_server_extensions_that_work_through_the_hub_are_advertised(
    hub: HubProcess, path: str, extensions: dict[str, Any]
) -> None:
    greeted = await ask_legacy(hub, "initialize", HELLO, path)
    found = await ask_modern(hub, "server/discover", {}, path)
    for received in (greeted["capabilities"], found["capabilities"]):
        assert received["extensions"] == extensions
        assert received.keys().isdisjoint({"tasks", "experimental"})


async def test_a_server_without_extensions_is_shown_without(hub: HubProcess) -> None:
    assert "extensions" not in (await ask_modern(hub, "server/discover", {}, "/mcp/raw"))["capabilities"]


async def test_an_app_passes_untouched(hub: HubProcess) -> None:
    for ask in (ask_legacy, ask_modern):
        tools = (await ask(hub, "tools/list", {}))["tools"]
        assert next(tool["_meta"] for tool in tools if tool["name"] == "app.clock") == app_server.META
        assert app_server.RESOURCE in (await ask(hub, "resources/list", {}))["resources"]
        assert (await ask(hub, "resources/read", {"uri": app_server.PANEL}))["contents"] == app_server.CONTENTS
        called = await ask(hub, "tools/call", {"name": "app.clock", "arguments": {}})
        assert (called["content"], called["_meta"]) == (app_server.RESULT["content"], app_server.RESULT["_meta"])


SHOWS_APPS = {"extensions": {app_server.UI: {"mimeTypes": [app_server.MIME]}, "com.example/own": {}}}
CALL = {"name": "app.clock", "arguments": {}}


async def test_a_server_learns_whether_its_caller_can_show_an_app(hub: HubProcess) -> None:
    received = {app_server.UI: {"mimeTypes": [app_server.MIME]}}
    async with connected(hub.port) as wire:
        greeting = await wire.request(encoded(legacy("initialize", {**HELLO, "capabilities": SHOWS_APPS})), BASE)
        session = [*BASE, ("mcp-session-id", greeting.headers["mcp-session-id"])]
        earlier = (await wire.request(encoded(legacy("tools/call", CALL)), session)).json["result"]
        meta = {**META, "io.modelcontextprotocol/clientCapabilities": SHOWS_APPS}
        body = encoded(legacy("tools/call", {**CALL, "_meta": meta}))
        later = (await wire.request(body, modern_headers("tools/call", "app.clock"))).json["result"]
    assert earlier["structuredContent"]["client"]["extensions"] == received
    assert later["structuredContent"]["client"]["extensions"] == received
    assert (await ask_modern(hub, "tools/call", CALL))["structuredContent"]["client"] == {}
