"""T01: a page of a foreign site, or a name that was pointed at this machine, makes a browser speak to the hub.

`Host` and `Origin` are checked on every way in, before a key is looked at and before a socket is opened; what has no
Origin is no page, and passes. What is published to everybody (cards, health) is not more to a page than to a stranger.
"""

from __future__ import annotations

import pytest

from isthmus.app.routes import is_rest
from tests.conftest import Ledger
from tests.frontends.wire import connected
from tests.hubs import HubProcess
from tests.security.endpoints import ENDPOINTS, KEY, NO_ENDPOINTS, Endpoint, knock, known_paths, spelt_paths

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOREIGN = {
    "another site": ("http://evil.test",),
    "a name that begins alike": ("http://localhost.evil.test",),
    "null": ("null",),
    "two": ("http://localhost", "http://evil.test"),
    "a user that looks like a host": ("http://localhost:80@evil",),
    "empty": ("",),
}
HOSTS = {
    "another host": (("evil.test",), 421),
    "a name that begins alike": (("localhost.evil.test",), 421),
    "two": (("localhost", "evil.test"), 400),
    "a user that looks like a host": (("localhost:80@evil",), 400),
    "none": ((), 400),
}


def is_published(endpoint: Endpoint) -> bool:
    """Whether every page may read it: not the relay's health, which is for its manager, and not the console."""
    return endpoint.is_public and not endpoint.path.startswith(("/mcp_endpoint/health", "/console/", "/docs"))


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_foreign_page_comes_in_nowhere_key_or_not(guarded: tuple[HubProcess, Ledger], name: str) -> None:
    endpoint = ENDPOINTS[name]
    for label, origins in FOREIGN.items():
        for key in (KEY, None):
            async with connected(guarded[0].port) as wire:
                reply = await knock(wire, endpoint, [*endpoint.lines(key), *(("origin", each) for each in origins)])
            assert reply.status == (200 if is_published(endpoint) else 403), label
            assert b"raw" not in reply.body, label  # as strangers are told it, whatever key the page has got hold of


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_no_other_name_of_this_machine_is_served(guarded: tuple[HubProcess, Ledger], name: str) -> None:
    endpoint = ENDPOINTS[name]
    for label, (hosts, status) in HOSTS.items():
        async with connected(guarded[0].port) as wire:
            reply = await knock(wire, endpoint, endpoint.lines(host=hosts))
        assert reply.status in ((200, 400) if is_published(endpoint) else (status,)), label
        assert b"raw" not in reply.body, label


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_pages_of_another_port_or_scheme_of_our_own_host_are_foreign(
    guarded: tuple[HubProcess, Ledger], name: str
) -> None:
    endpoint = ENDPOINTS[name]
    for origin in ("http://hub.example", "https://hub.example:8443"):
        async with connected(guarded[0].port) as wire:
            lines = [*endpoint.lines(host=("hub.example",)), ("origin", origin)]
            reply = await knock(wire, endpoint, lines)
        assert reply.status == (200 if is_published(endpoint) else 403)
        assert b"raw" not in reply.body


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_callers_that_are_not_pages_and_our_own_pages_get_further(
    guarded: tuple[HubProcess, Ledger], name: str
) -> None:
    endpoint = ENDPOINTS[name]
    for origin in (None, "http://localhost", "https://hub.example"):
        async with connected(guarded[0].port) as wire:
            reply = await knock(wire, endpoint, [*endpoint.lines(), *([] if origin is None else [("origin", origin)])])
        assert reply.status not in (403, 421), origin


async def test_no_way_in_is_missing_here() -> None:
    rows = {endpoint.path for endpoint in ENDPOINTS.values()}
    assert known_paths() <= rows
    assert {path for path in rows if is_rest(path)}
    missing = {path for path in spelt_paths() - NO_ENDPOINTS.keys() if not any(row.startswith(path) for row in rows)}
    assert not missing, "add a row to `endpoints.ENDPOINTS`, or say in `NO_ENDPOINTS` why it is no way in"
