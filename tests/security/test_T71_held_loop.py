"""T71: something that anybody may send or answer holds the event loop, and with it every other call.

Hundreds of kinds of legal input go through every endpoint and come from every kind of server (`heavy_inputs`). Beside
each kind, a paced caller calls a tool on a connection of its own and a probe asks for `/healthz`. The hub itself
counts for how long its event loop was busy without a pause, in processor time: never for over 50 ms.

`make soak` drives each class of kinds for two minutes and prints how long the paced caller waits
(`tests.security.soak_held_loop`).
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx2
import pytest
import pytest_asyncio
from google.protobuf import json_format

from isthmus.wire.a2a.protobuf import CLASSES, METHODS, SERVICE
from tests.choices import representative
from tests.frontends.wire import (
    BASE,
    Reply,
    Wire,
    connected,
    encoded,
    key_header,
    legacy,
    modern,
    modern_headers,
    rendered,
    until,
)
from tests.hubs import CHECKOUT, TRUSTED, HubProcess, serving
from tests.relay.peers import Manner, device, raw_server
from tests.relay.tokens import KEY
from tests.security.heavy_inputs import FAMILIES, HELD, KINDS, Field, Kind, driven, longest, open_field
from tests.security.heavy_shapes import SHAPES, is_text

pytestmark = pytest.mark.xdist_group("held_loop")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def field(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with open_field(tmp_path_factory.mktemp("heavy")) as opened:
        yield opened


def _facts(kind: Kind) -> Iterator[tuple[object, ...]]:
    """Each way in with text and with structure, and each shape once in its family."""
    *way, shape = kind.name.split(" / ")
    yield *way, shape in SHAPES and is_text(shape)
    yield kind.family, *(word.partition(" by ")[0] for word in way[:1]), shape


CHOSEN = representative(KINDS, _facts)


def test_there_are_enough_kinds() -> None:
    names = [kind.name for kind in KINDS]
    assert len(names) == len(set(names)) >= 200


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
async def test_no_kind_of_input_holds_the_loop(field: Field, family: str) -> None:
    held: dict[str, str] = {}
    for kind in CHOSEN:
        if kind.family == family:
            before = await field.busy()
            await driven(field, kind)
            after = await field.busy()
            if after[HELD] > before[HELD]:
                held[kind.name] = f"over {longest(before, after)} s"
    assert not held, f"these kinds held the event loop: {held}"


CALLERS = {
    name: {"key": f"a-key-of-the-tests-{name}", "allow": ["*"], "tenant": tenant}
    for name, tenant in {"ann": "acme", "abe": "acme", "ben": "other"}.items()
}
ARGUMENTS = {"text": "hi", "more": "x" * 700_000}


def request(endpoint: str, caller: str) -> bytes:
    """A long request."""
    body, headers = encoded(ARGUMENTS), list(BASE)
    if endpoint == "/mcp":
        body = encoded(modern("tools/call", {"name": "builtin.echo", "arguments": ARGUMENTS}))
        headers = modern_headers("tools/call", "builtin.echo")
    elif endpoint == "/a2a":
        parts = [{"data": {"tool": "builtin.echo", "arguments": ARGUMENTS}}]
        message = {"messageId": caller, "role": "ROLE_USER", "parts": parts}
        body = encoded({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}})
        headers += [("a2a-version", "1.0")]
    headers += [*key_header(str(CALLERS[caller]["key"])), ("content-length", str(len(body)))]
    return rendered("POST", endpoint, headers, body)


async def asked(hub: HubProcess, sent: bytes) -> Reply:
    async with connected(hub.port) as wire:
        await wire.say(sent)
        return await wire.reply()


@pytest.mark.asyncio
async def test_bytes_over_grpc_count_together_with_those_over_http(tmp_path: Path) -> None:
    limits = {"caller_bytes": 1_000_000, "tenant_bytes": 1_500_000}
    part = {"data": {"tool": "builtin.echo", "arguments": ARGUMENTS}}
    given = CLASSES[METHODS["SendMessage"][0]]
    message = {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [part]}}
    sent: bytes = json_format.ParseDict(message, given()).SerializeToString()
    async with (
        serving(tmp_path, callers=CALLERS, limits=limits, a2a={"grpc_port": 0}) as hub,
        connected(hub.port) as holding,
        httpx2.AsyncClient(verify=TRUSTED) as http,
    ):
        card = (await http.get(f"http://127.0.0.1:{hub.port}/.well-known/agent-card.json")).json()
        (address,) = (each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
        async with grpc.aio.insecure_channel(address) as channel:
            send = channel.unary_unary(f"/{SERVICE}/SendMessage")

            def asking(caller: str) -> Awaitable[bytes]:
                metadata = (("authorization", f"Bearer {CALLERS[caller]['key']}"), ("a2a-version", "1.0"))
                answer: Awaitable[bytes] = send(sent, metadata=metadata, timeout=60.0)
                return answer

            assert len(await asking("ann")) > 700_000
            held = request("/mcp", "ann")
            await holding.say(held[:-1])

            async def is_refused() -> bool:
                try:
                    await asking("ann")
                except grpc.aio.AioRpcError as error:
                    said = f"{error.code()} {error.details()}"
                    return "RESOURCE_EXHAUSTED" in said and "too_many_bytes" in said
                return False

            await until(is_refused)
            assert len(await asking("ben")) > 700_000
            await holding.say(held[-1:])
            assert (await holding.reply()).status == 200
            assert len(await asking("ann")) > 700_000


@pytest.mark.asyncio
@pytest.mark.parametrize("endpoint", ["/mcp", "/v1/tools/builtin.echo", "/a2a"])
async def test_bytes_under_way_are_bounded_for_each_caller_and_tenant(endpoint: str, tmp_path: Path) -> None:
    limits = {"caller_bytes": 1_000_000, "tenant_bytes": 1_500_000}
    async with serving(tmp_path, callers=CALLERS, limits=limits) as hub, connected(hub.port) as holding:
        held = request(endpoint, "ann")
        await holding.say(held[:-1])  # all but its last byte: it is under way until that comes

        async def is_refused() -> bool:
            answer = await asked(hub, request(endpoint, "ann"))
            if answer.status == 429:
                said = json.loads(answer.body)
                facts = said if "error" not in said else said["error"]["data"]
                assert (facts["reason"], facts["executed"]) == ("too_many_bytes", "no"), said
                assert answer.headers["retry-after"] == "1"
            return answer.status == 429

        await until(is_refused)
        for other in ("abe", "ben"):
            assert (await asked(hub, request(endpoint, other))).status == 200, other
        await holding.say(held[-1:])
        assert (await holding.reply()).status == 200
        assert (await asked(hub, request(endpoint, "ann"))).status == 200


def call_of(caller: str, tool: str, arguments: object) -> bytes:
    body = encoded(arguments)
    headers = [*BASE, *key_header(str(CALLERS[caller]["key"])), ("content-length", str(len(body)))]
    return rendered("POST", f"/v1/tools/{tool}", headers, body)


@asynccontextmanager
async def unhurried(hub: HubProcess) -> AsyncIterator[Wire]:
    """A connection that takes little before the test reads."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    made.connect(("127.0.0.1", hub.port))
    reader, writer = await asyncio.open_connection(sock=made, limit=1024)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


@pytest.mark.asyncio
async def test_a_caller_with_too_much_unread_may_call_again_once_it_has_read(tmp_path: Path) -> None:
    limits = {"caller_bytes": 10_000_000, "tenant_bytes": 20_000_000, "lag_seconds": 60}
    functions = {"python": "tests.security.heavy_functions", "path": str(CHECKOUT)}
    async with serving(tmp_path, {"heavy": functions}, callers=CALLERS, limits=limits) as hub, unhurried(hub) as slow:
        await slow.say(call_of("ann", "heavy.tell", {"shape": "ascii", "size": 6_000_000}))

        async def is_refused() -> bool:
            answer = await asked(hub, call_of("ann", "builtin.echo", {"text": "hi"}))
            if answer.status == 429:
                assert (answer.json["reason"], answer.json["executed"]) == ("too_many_bytes", "no"), answer.json
            return answer.status == 429

        await until(is_refused)
        for other in ("abe", "ben"):
            assert (await asked(hub, call_of(other, "builtin.echo", {"text": "hi"}))).status == 200, other
        assert len((await slow.reply()).body) > 12_000_000, "nothing is lost"
        await until(lambda: _not(is_refused()))


async def _not(held: Awaitable[bool]) -> bool:
    return not await held


@pytest.mark.asyncio
async def test_bytes_of_all_devices_of_an_agent_count_together(tmp_path: Path) -> None:
    limits, relay = {"caller_bytes": 1_000_000}, {"key": KEY, "enabled": True}
    call = {"name": "hold", "arguments": ARGUMENTS}
    async with (
        serving(tmp_path, limits=limits, relay=relay) as hub,
        raw_server(hub.port, "home", manner=Manner(tools=("hold",))) as server,
        device(hub.port, "home") as first,
        device(hub.port, "home") as second,
    ):
        await first.ready()
        waiting = asyncio.ensure_future(first.ask("tools/call", call, id=7))
        await server.holds()
        refused = await second.ask("tools/call", call, id=8)
        assert "Too many bytes at once" in json.dumps(refused), refused
        await server.release()
        assert "result" in await waiting
        waiting = asyncio.ensure_future(second.ask("tools/call", call, id=9))
        await server.holds()
        await server.release()
        assert "result" in await waiting


@pytest.mark.asyncio
async def test_a_long_call_can_be_cancelled_before_it_was_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub, connected(hub.port) as first, connected(hub.port) as second:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        session = (await first.request(encoded(legacy("initialize", hello)))).headers["mcp-session-id"]
        headers = [*BASE, ("mcp-session-id", session)]
        body = encoded(legacy("tools/call", {"name": "builtin.echo", "arguments": ARGUMENTS}, id=5))
        sent = rendered("POST", "/mcp", [*headers, ("content-length", str(len(body)))], body)
        await first.say(sent[:-1])
        cancelled = encoded(legacy("notifications/cancelled", {"requestId": 5}, id=None))
        for _ in range(20):  # until the hub has seen the head of the request, at the latest
            assert (await second.request(cancelled, headers)).status == 202
        await first.say(sent[-1:])
        assert (await first.reply()).json["error"]["code"] == -32012
