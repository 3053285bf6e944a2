"""T09: a form, or a plain text, that a page may send anywhere without being asked, taken for a request.

Every way in that takes a body takes exactly JSON, and no cookie proves anything.
"""

from __future__ import annotations

import pytest

from tests.conftest import Ledger
from tests.frontends.wire import connected
from tests.hubs import HubProcess
from tests.security.endpoints import CLOSED, KEY, POSTS, knock

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/json-evil",
    "application/jsonp",
    "text/json",
    "xapplication/json",
    "application/json, text/plain",
    "",
]


@pytest.mark.parametrize("name", POSTS)
async def test_bodies_without_a_json_media_type_are_not_read(guarded: tuple[HubProcess, Ledger], name: str) -> None:
    hub, ledger = guarded
    endpoint = POSTS[name]
    headers = [pair for pair in endpoint.lines() if pair[0] != "content-type"]
    for kind in (*KINDS, None):
        async with connected(hub.port) as wire:
            reply = await knock(wire, endpoint, headers if kind is None else [*headers, ("content-type", kind)])
        if endpoint.path.startswith("/messages"):
            assert reply.status == 404, kind  # there is no such session, whatever is sent to it
        elif reply.status == 200:
            assert reply.code == -32005, kind  # as A2A says the same
        else:
            assert reply.status in (400, 415), (kind, reply.body)
        assert not ledger.lines(), kind


@pytest.mark.parametrize("name", CLOSED)
async def test_a_cookie_is_no_key(guarded: tuple[HubProcess, Ledger], name: str) -> None:
    endpoint = CLOSED[name]
    cookie = ("cookie", f"key={KEY}; authorization=Bearer {KEY}; x-api-key={KEY}; token={KEY}")
    async with connected(guarded[0].port) as wire:
        reply = await knock(wire, endpoint, [*endpoint.lines(None), cookie])
    assert reply.status == 401
    assert "set-cookie" not in reply.headers
