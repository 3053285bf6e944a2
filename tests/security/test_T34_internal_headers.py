"""T34: a request is accepted because of a header that only a proxy should send, or because of its address.

There are no such headers: nothing but a key or a token says who calls, and nothing that is sent beside it is believed.
Where callers are known, a program on the same machine has to show a key like everybody else. What the hub itself marks
calls with on their way to a client of its own is taken out of what callers send.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from msgspec import Raw

import isthmus
from isthmus.wire.mcp.forwarded_methods import passed_meta
from isthmus.wire.mcp.messages import CONVERSATION_KEY
from isthmus.wire.mcp.modern import OWN_KEYS
from tests.conftest import Ledger
from tests.frontends.wire import connected
from tests.hubs import HubProcess
from tests.security.endpoints import CLOSED, knock

SOURCE = Path(isthmus.__file__).parent
HEADER = re.compile(rb"[a-z][a-z0-9]*(-[a-z0-9]+)*")

PROOFS = {"authorization", "x-api-key", "cookie"}
"""What does say who calls. A cookie stands for a key of somebody who signed in at the console (T73)."""

PLACES = {"host", "origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest", "sec-fetch-user"}
"""Headers that claim an origin; even a right one admits nobody."""

SHAPES = {
    *("content-length", "transfer-encoding", "connection", "upgrade"),
    *("content-type", "content-encoding", "accept", "expect"),
}
"""What says how a request is to be read."""

BY_HABIT = """
    forwarded x-forwarded-for x-forwarded-host x-forwarded-proto x-forwarded-user x-forwarded-email x-real-ip via
    x-client-ip true-client-ip cf-connecting-ip x-remote-user remote-user x-user x-user-id x-auth-user
    x-auth-request-user x-authenticated-user x-webauth-user x-original-url x-rewrite-url x-http-method-override
    x-internal x-internal-token x-isthmus-caller x-isthmus-tenant x-isthmus-key x-tenant x-tenant-id x-mcp-caller
    mcp-caller x-admin cookie proxy-authorization x-amzn-oidc-identity x-ms-client-principal-name
    x-goog-authenticated-user-email
"""
"""Names by which others are told such things, whether or not anybody here reads them."""


def names_in(source: str) -> set[str]:
    """Every name of a header that code asks a request for: `fields.get(b"…")`, `fields[b"…"]`, `b"…" in headers`."""
    found: set[bytes] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[ast.Constant(value=bytes(name)), *_]):
                found.add(name)
            case ast.Subscript(slice=ast.Constant(value=bytes(name))):
                found.add(name)
            case ast.Compare(left=ast.Constant(value=bytes(name)), ops=[ast.In() | ast.NotIn()]):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Constant(value=str(text))) if "HEADER" in target:
                found.add(text.encode())
            case _:
                pass
    return {name.decode() for name in found if HEADER.fullmatch(name) and len(name) > 1}


@cache
def read_names() -> frozenset[str]:
    """All such names in what stands between a request and its caller."""
    files = [file for room in ("frontends", "identity", "app", "wire") for file in (SOURCE / room).rglob("*.py")]
    return frozenset(name for file in files for name in names_in(file.read_text()))


def other_names() -> list[str]:
    """Those of them that neither prove who calls, nor say from where or in which form."""
    return sorted(read_names() - PROOFS - PLACES - SHAPES)


VALUES = ("127.0.0.1", "one", "for=127.0.0.1;host=localhost;proto=https", "acme")


def test_the_names_are_found() -> None:
    assert {"authorization", "x-api-key", "host", "origin", "accept", "mcp-session-id"} <= read_names()
    assert names_in('fields.get(b"x-secret-way-in")') == {"x-secret-way-in"}


def test_no_header_that_is_read_names_the_caller() -> None:
    odd = re.compile(r"forward|real-ip|remote|user|caller|tenant|client-ip|internal|admin|isthmus|cookie|principal")
    assert [name for name in other_names() if odd.search(name)] == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CLOSED)
async def test_no_header_lets_anybody_in(guarded: tuple[HubProcess, Ledger], name: str) -> None:
    """From this machine, where callers are known: each header alone, with everything that it might be believed for."""
    hub, ledger = guarded
    before = len(ledger.lines())
    endpoint = CLOSED[name]
    async with connected(hub.port) as wire:
        refused = await knock(wire, endpoint, endpoint.lines(None))
        assert refused.status == 401
        for header in dict.fromkeys([*other_names(), *BY_HABIT.split()]):
            for value in VALUES:
                reply = await knock(wire, endpoint, [*endpoint.lines(None), (header, value)])
                assert reply.status == 401, (header, value)
    assert len(ledger.lines()) == before


@pytest.mark.parametrize(
    "key", [CONVERSATION_KEY, CONVERSATION_KEY.upper(), CONVERSATION_KEY.title(), *sorted(OWN_KEYS)]
)
def test_callers_cannot_send_the_hubs_own_markers(key: str) -> None:
    one, two = Raw(b"1"), Raw(b"2")
    assert passed_meta({key: one, "mine": two}, lambda _: None) == {"mine": two}
