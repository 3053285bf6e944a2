"""T04: a body that two parsers read differently, one that authorises and one that executes.

A protocol member that is there twice, or in two spellings of its case, is refused; so is what is not one JSON object in
UTF-8. What goes to a server is written anew from what was decided on. `tests/property/test_smuggling.py` makes 100,000
such bodies and has parsers that disagree read what would be sent; here it is every endpoint and a server that notes.
"""

from __future__ import annotations

import json

import pytest

from tests.conftest import Ledger
from tests.frontends.wire import BASE, connected, key_header
from tests.hubs import HubProcess
from tests.security.endpoints import KEY, POSTS, knock

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAY = '{"nonce":"t04"}'


def call(params: str, *, outer: str = "") -> bytes:
    return f'{{"jsonrpc":"2.0","id":1,"method":"tools/call",{outer}"params":{params}}}'.encode()


FINE = call(f'{{"name":"raw.pay","arguments":{PAY}}}')

AMBIGUOUS: dict[str, bytes] = {
    "a name twice": call(f'{{"name":"builtin.echo","name":"raw.pay","arguments":{PAY}}}'),
    "a name in two cases": call(f'{{"name":"builtin.echo","Name":"raw.pay","arguments":{PAY}}}'),
    "a name and its escape": call(f'{{"name":"builtin.echo","\\u006eame":"raw.pay","arguments":{PAY}}}'),
    "arguments twice": call(f'{{"name":"raw.pay","arguments":{{}},"arguments":{PAY}}}'),
    "parameters twice": call(f'{{"name":"raw.pay","arguments":{PAY}}}', outer='"params":{"name":"builtin.echo"},'),
    "a method twice": call(f'{{"name":"raw.pay","arguments":{PAY}}}', outer='"method":"ping",'),
    "a method in two cases": call(f'{{"name":"raw.pay","arguments":{PAY}}}', outer='"Method":"ping",'),
    "an id twice": call(f'{{"name":"raw.pay","arguments":{PAY}}}', outer='"id":2,'),
    "two objects": FINE + FINE,
    "an object and more": FINE + b"x",
    "a NaN": call('{"name":"raw.pay","arguments":{"nonce":NaN}}'),
    "a half of a character": call('{"name":"raw.pay","arguments":{"nonce":"\\ud800"}}'),
    "a byte order mark": b"\xef\xbb\xbf" + FINE,
    "UTF-16": FINE.decode().encode("utf-16"),
    "UTF-16 without a mark": FINE.decode().encode("utf-16-le"),
    "UTF-32": FINE.decode().encode("utf-32"),
    "no UTF-8": FINE.replace(b"t04", b"t\xff4"),
    "an overlong form": FINE.replace(b"t04", b"t\xc0\xb04"),
    "a comment": FINE.replace(b"{", b"{/**/", 1),
    "a comma too much": FINE[:-1] + b",}",
    "a raw control character": FINE.replace(b"t04", b"t\x004"),
}


@pytest.mark.parametrize("label", AMBIGUOUS)
async def test_ambiguous_bodies_are_refused_and_reach_no_server(guarded: tuple[HubProcess, Ledger], label: str) -> None:
    hub, ledger = guarded
    for path in ("/mcp", "/mcp/raw", "/messages", "/a2a"):
        async with connected(hub.port) as wire:
            reply = await wire.request(AMBIGUOUS[label], [*BASE, *key_header(KEY)], path=path)
        if path != "/messages":
            assert reply.code in (-32600, -32602, -32700), (path, reply.body)
        assert not ledger.ran(), path


@pytest.mark.parametrize("name", [name for name in POSTS if POSTS[name].path.startswith(("/a2a", "/v1", "/mcp"))])
async def test_a_member_that_is_there_twice_is_refused_on_every_endpoint(
    guarded: tuple[HubProcess, Ledger], name: str
) -> None:
    endpoint = POSTS[name]
    first = next(iter(json.loads(endpoint.body)))
    twice = endpoint.body.replace(b"{", b'{"%b":null,' % first.encode(), 1)
    async with connected(guarded[0].port) as wire:
        reply = await knock(wire, endpoint, endpoint.lines(), twice)
    if endpoint.path.startswith("/v1"):
        assert reply.status == 400, reply.body
    elif reply.status == 200:
        assert reply.code in (-32600, -32602, -32700), reply.body
    else:
        assert reply.status == 400, reply.body


async def test_an_unambiguous_body_is_called(guarded: tuple[HubProcess, Ledger]) -> None:
    """Else the tests above could not fail."""
    hub, ledger = guarded
    async with connected(hub.port) as wire:
        assert (await wire.request(FINE, [*BASE, *key_header(KEY)])).status == 200
    assert ledger.ran() == {"t04": 1}
