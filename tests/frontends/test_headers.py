"""Headers that repeat a call's arguments, and blanks around headers' values."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.frontends import app_server
from tests.frontends.wire import BASE, Reply, connected, encoded, legacy, modern, modern_headers
from tests.hubs import PATIENT, HubProcess, serving, stdio

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = "=?base64?SGVsbG8=?="
MISMATCH = -32020
SERVERS = {"app": stdio([sys.executable, app_server.__file__])}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    async with serving(tmp_path_factory.mktemp("hub"), SERVERS, limits=PATIENT) as running:
        yield running


async def call(hub: HubProcess, arguments: dict[str, Any], *regions: str, path: str = "/mcp") -> Reply:
    name = "app.clock" if path == "/mcp" else "clock"
    headers = [*modern_headers("tools/call", name), *(("Mcp-Param-Region", region) for region in regions)]
    async with connected(hub.port) as wire:
        body = encoded(modern("tools/call", {"name": name, "arguments": arguments}))
        return await wire.request(body, headers, path=path)


@pytest.mark.parametrize("path", ["/mcp", "/mcp/app"])
@pytest.mark.parametrize(
    ("value", "header"), [("eu", "eu"), ("eu", " eu\t "), ("Hello", HELLO), ("SGVsbG8=", "SGVsbG8="), (None, None)]
)
async def test_a_header_that_repeats_its_argument_passes(
    hub: HubProcess, path: str, value: str | None, header: str | None
) -> None:
    reply = await call(hub, {"region": value}, *([] if header is None else [header]), path=path)
    assert reply.status == (400 if value is None else 200)  # null is no string, as the tool's schema says
    if value is None:
        assert reply.code == -32602
    else:
        assert reply.json["result"]["structuredContent"]["arguments"] == {"region": value}


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "missing": ({"region": "eu"}, ()),
    "another": ({"region": "eu"}, ("us",)),
    "without its argument": ({}, ("eu",)),
    "no padding": ({"region": "Hello"}, ("=?base64?SGVsbG8?=",)),
    "no base64": ({"region": "Hello"}, ("=?base64?SGVs!!!bG8=?=",)),
    "twice": ({"region": "eu"}, ("eu", "eu")),
    "twice as a list": ({"region": "eu, eu"}, ("eu", "eu")),
}


@pytest.mark.parametrize("path", ["/mcp", "/mcp/app"])
@pytest.mark.parametrize("label", REFUSED)
async def test_a_header_that_contradicts_its_argument_is_refused(hub: HubProcess, label: str, path: str) -> None:
    arguments, regions = REFUSED[label]
    reply = await call(hub, arguments, *regions, path=path)
    assert (reply.status, reply.code) == (400, MISMATCH), reply.body


async def test_a_caller_of_the_earlier_era_needs_no_such_header(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        body = encoded(legacy("tools/call", {"name": "app.clock", "arguments": {"region": "eu"}}))
        assert (await wire.request(body, [*BASE, ("mcp-param-region", "us")])).status == 200


@pytest.mark.parametrize("name", ["  app.clock  ", "\tapp.clock\t", "app.clock "])
async def test_blanks_around_a_value_are_no_part_of_it(hub: HubProcess, name: str) -> None:
    headers = modern_headers("tools/call", name)
    async with connected(hub.port) as wire:
        body = encoded(modern("tools/call", {"name": "app.clock", "arguments": {}}))
        assert (await wire.request(body, headers)).status == 200


async def test_an_unknown_method_is_not_found(hub: HubProcess) -> None:
    async with connected(hub.port) as wire:
        reply = await wire.request(encoded(modern("tools/unheard-of")), modern_headers("tools/unheard-of"))
    assert (reply.status, reply.code) == (404, -32601)
