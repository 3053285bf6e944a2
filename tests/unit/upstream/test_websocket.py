"""The link over a WebSocket: both eras, real servers, and the outcome of calls when it breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.credentials.server_logins import StaticCredentials
from isthmus.credentials.signed_jwts import ProofKey, Prover
from isthmus.model.calls import LogMessage
from isthmus.model.fault_table import Lost, ServerError
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.websocket import SocketLink
from tests.conftest import Ledger, Spawn
from tests.faults.watching import eventually
from tests.peers.launch import HttpPeer, quick_command
from tests.security.authority import checked
from tests.unit.core.doubles import SERVER
from tests.unit.transport.doubles import Server
from tests.unit.upstream.doubles import DISCOVERY, ME, SOMEBODY, WELCOME, Scene, answer, message, over, reply, text_of


@pytest_asyncio.fixture
async def background() -> AsyncIterator[BackgroundTasks]:
    background = BackgroundTasks("test")
    yield background
    await background.aclose()


def dial(url: str, background: BackgroundTasks) -> SocketLink:
    credentials = StaticCredentials({SERVER: {"Authorization": "Bearer secret"}})
    return SocketLink(SERVER, ME, Limits(), url=url, credentials=credentials, egress=Egress(), background=background)


async def greeted(url: str, background: BackgroundTasks) -> Scene:
    link = dial(url, background)
    await link.start()
    await link.handshake("auto")
    return Scene(link)


def socket_url(peer: HttpPeer) -> str:
    return peer.at("/mcp").replace("http", "ws", 1)


class Scripted:
    """A server of the `websockets` library that answers greetings and leaves the rest to the test."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sockets: list[ServerConnection] = []
        self.is_modern = False
        self.is_mute = False

    async def talk(self, socket: ServerConnection) -> None:
        self.sockets.append(socket)
        if self.is_mute:
            await socket.wait_closed()
        while True:
            try:
                asked = json.loads(await socket.recv())
            except ConnectionClosed:
                return
            if asked.get("method") == "initialize":
                await self.say(message(id=asked["id"], result=WELCOME))
            elif asked.get("method") == "server/discover":
                answered = {"result": DISCOVERY} if self.is_modern else {"error": {"code": -32601, "message": "no"}}
                await self.say(message(id=asked["id"], **answered))
            else:
                self.received.put_nowait(asked)

    async def say(self, text: bytes) -> None:
        await self.sockets[-1].send(text, text=True)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            return await self.received.get()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async with serve(self.talk, "127.0.0.1", 0, max_size=None, max_queue=1) as server:
            yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"
            for socket in self.sockets:
                socket.transport.abort()


# -- real servers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("era", "version"), [("legacy", "2025-11-25"), ("modern", "2026-07-28")])
async def test_servers_of_both_eras_are_greeted_listed_and_called(
    spawn: Spawn, background: BackgroundTasks, ledger: Ledger, era: str, version: str
) -> None:
    peer = await spawn("raw_server", "--transport", "websocket", "--era", era, "--ledger", str(ledger.path))
    scene = await greeted(socket_url(peer), background)
    assert scene.link.dialect.version == version
    assert scene.link.carrier == "websocket"
    listing = await scene.link.list_features()
    assert {"pay", "echo"} <= {tool.name for tool in listing.tools}
    await scene.link.ping(5.0)
    assert text_of(await scene.call("echo", text="héllo")) == "héllo"
    listeners = [scene.start("pay", {"nonce": f"n{at}"})[1] for at in range(50)]
    assert [text_of(await over(listener)) for listener in listeners] == [f"n{at}" for at in range(50)]
    assert ledger.ran() == {f"n{at}": 1 for at in range(50)}
    await scene.link.aclose()
    assert scene.callbacks == ["lost: closed by the hub"]


@pytest.mark.parametrize("peer", ["server_sdk1", "server_sdk2"])
async def test_an_official_server_behind_a_socket_is_called(background: BackgroundTasks, peer: str) -> None:
    async with bridged(quick_command(peer)) as url:
        scene = await greeted(url, background)
        assert "echo" in {tool.name for tool in (await scene.link.list_features()).tools}
        assert text_of(await scene.call("echo", text="hi")) == "hi"
        await scene.link.aclose()


@asynccontextmanager
async def bridged(words: list[str]) -> AsyncIterator[str]:
    """A WebSocket to a server that speaks over its standard streams."""

    async def talk(socket: ServerConnection) -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.TaskGroup() as group:
                down = group.create_task(pass_down(process.stdout, socket))
                async for text in socket:
                    process.stdin.write(str(text).encode() + b"\n")
                down.cancel()
        finally:
            process.kill()
            await process.communicate()  # `wait` may return before the pipes are closed

    async def pass_down(lines: asyncio.StreamReader, socket: ServerConnection) -> None:
        while line := await lines.readline():
            await socket.send(line.rstrip().decode())

    async with serve(talk, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"


async def test_a_server_killed_during_calls_loses_the_link_with_executed_unknown(
    spawn: Spawn, background: BackgroundTasks, ledger: Ledger
) -> None:
    options = ("--ledger", str(ledger.path), "--mode", "sleep:60")
    peer = await spawn("raw_server", "--transport", "websocket", *options)
    scene = await greeted(socket_url(peer), background)
    listeners = [scene.start("pay", {"nonce": f"n{at}"})[1] for at in range(5)]
    await eventually(lambda: len(ledger.ran()) == 5, "all calls run")
    await peer.kill()
    for listener in listeners:
        fault = (await over(listener)).fault
        assert isinstance(fault, Lost)
        assert fault.executed == "unknown"
    assert [received[:5] for received in scene.callbacks] == ["lost:"]
    assert scene.start("pay", {"nonce": "late"})[1].fault.executed == "no"
    await scene.link.aclose()


# -- opening ---------------------------------------------------------------------------------------------------------


async def test_an_unreachable_server_is_reported(background: BackgroundTasks) -> None:
    with pytest.raises(ConnectFailed, match="connection refused"):
        await dial("ws://127.0.0.1:1/", background).start()


@pytest.mark.parametrize(
    ("status", "words"), [("404 Not Found", "HTTP 404"), ("401 Unauthorized", "HTTP 401.*check the credentials")]
)
async def test_an_address_without_a_websocket_is_reported(background: BackgroundTasks, status: str, words: str) -> None:
    async with Server() as server:
        starting = asyncio.ensure_future(dial(f"ws://127.0.0.1:{server.origin.port}/", background).start())
        peer = await server.accept()
        request = await peer.request()
        await peer.say(reply(status))
        with pytest.raises(ConnectFailed, match=words):
            await starting
    assert b"Authorization: Bearer secret\r\n" in request


class Bound:
    """Credentials that need a proof with each request."""

    generation = 0

    def __init__(self) -> None:
        self.signer = Prover(ProofKey.make())

    def headers_for(self, server: ServerName) -> Mapping[str, str]:
        return {"authorization": "DPoP token-1"}


async def test_a_handshake_is_proven_and_asked_for_once_more_with_the_nonce_that_a_server_wants(
    background: BackgroundTasks,
) -> None:
    async with Server() as server:
        url = f"127.0.0.1:{server.origin.port}/mcp"
        link = SocketLink(
            SERVER, ME, Limits(), url=f"ws://{url}?a=b", credentials=Bound(), egress=Egress(), background=background
        )
        starting = asyncio.ensure_future(link.start())
        nonces = []
        for _ in range(2):
            peer = await server.accept()
            (line,) = (each for each in (await peer.request()).split(b"\r\n") if each.startswith(b"dpop: "))
            proof = checked(line.removeprefix(b"dpop: ").decode(), "GET", f"http://{url}", "token-1")
            nonces.append(proof.claims.get("nonce"))
            words = b'www-authenticate: DPoP error="use_dpop_nonce"\r\ndpop-nonce: n\r\n'
            await peer.say(reply("401 Unauthorized").replace(b"\r\n", b"\r\n" + words, 1))
        with pytest.raises(ConnectFailed, match="HTTP 401"):
            await starting
    assert nonces == [None, "n"]


# -- calls -----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[tuple[Scripted, str]]:
    made = Scripted()
    async with made.serving() as url:
        yield made, url


async def test_text_and_binary_messages_are_read_alike(
    scripted: tuple[Scripted, str], background: BackgroundTasks
) -> None:
    server, url = scripted
    scene = await greeted(url, background)
    assert (await server.next())["method"] == "notifications/initialized"
    first, second = scene.start()[1], scene.start()[1]
    ids = [(await server.next())["id"], (await server.next())["id"]]
    await server.sockets[-1].send(answer(ids[1], "second"))
    await server.say(answer(ids[0], "first"))
    assert (text_of(await over(first)), text_of(await over(second))) == ("first", "second")
    await scene.link.aclose()


async def test_nonsense_between_messages_is_passed_over(
    scripted: tuple[Scripted, str], background: BackgroundTasks
) -> None:
    server, url = scripted
    scene = await greeted(url, background)
    _, listener = scene.start()
    await server.next()
    id = (await server.next())["id"]
    await server.say(b"hello, I am a server")
    await server.say(message(id=id + 100, result={}))
    await server.say(message(id=id, error={"code": -32000, "message": "no"}))
    fault = (await over(listener)).fault
    assert isinstance(fault, ServerError)
    await scene.link.aclose()


async def test_a_log_line_goes_to_the_only_caller_and_else_to_the_operator(
    scripted: tuple[Scripted, str], background: BackgroundTasks
) -> None:
    server, url = scripted
    scene = await greeted(url, background)
    line = message(method="notifications/message", params={"level": "info", "data": "hm"})
    mine = scene.start()[1]
    await server.next()
    first = (await server.next())["id"]
    await server.say(line)
    await eventually(lambda: bool(mine.events), "the line is received")
    scene.start(caller=SOMEBODY)
    second = (await server.next())["id"]
    await server.say(line)
    await server.say(answer(first))
    await over(mine)
    assert [type(seen) for seen in mine.events] == [LogMessage]
    assert len(scene.logs) == 1
    assert second == first + 1
    await scene.link.aclose()


async def test_a_withdrawn_call_that_is_still_held_never_leaves(
    scripted: tuple[Scripted, str], background: BackgroundTasks
) -> None:
    server, url = scripted
    scene = await greeted(url, background)
    await server.next()
    inflight, listener = scene.start()
    inflight.cancel("changed my mind")
    assert listener.fault.executed == "no"
    later, _ = scene.start()
    asked = await server.next()
    assert asked["method"] == "tools/call"
    later.cancel("changed my mind again")
    notice = await server.next()
    assert notice["method"] == "notifications/cancelled"
    assert notice["params"]["requestId"] == asked["id"]
    await scene.link.aclose()


async def test_held_and_buffered_calls_did_not_run(scripted: tuple[Scripted, str], background: BackgroundTasks) -> None:
    server, url = scripted
    server.is_mute = True
    link = dial(url, background)
    await link.start()
    scene = Scene(link)
    await eventually(lambda: bool(server.sockets), "the server has the socket")
    _, small = scene.start()
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the end of the turn in which it is written
    _, large = scene.start(arguments={"text": "x" * 50_000_000})
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    _, held = scene.start()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    server.sockets[-1].transport.write(b"\x88\x00")  # a goodbye, while the request is still being written
    for listener in (small, large, held):
        await over(listener)
    assert [listener.fault.executed for listener in (small, large, held)] == ["unknown", "no", "no"]
    await link.aclose()


async def test_a_modern_server_is_asked_again_for_each_subscription_and_never_left_deaf(
    scripted: tuple[Scripted, str], background: BackgroundTasks
) -> None:
    server, url = scripted
    server.is_modern = True
    scene = await greeted(url, background)
    scene.link.listen()
    first = await server.next()
    assert first["params"]["notifications"] == {"toolsListChanged": True, "resourcesListChanged": True}
    subscribing = asyncio.ensure_future(scene.link.subscribe("file:///a"))
    second = await server.next()
    assert second["params"]["notifications"]["resourceSubscriptions"] == ["file:///a"]
    await server.say(acknowledged(first["id"]))
    await server.say(message(method="notifications/resources/updated", params={"uri": "file:///a"}))
    await eventually(lambda: scene.callbacks == ["updated: file:///a"], "an update is received")
    assert not subscribing.done()  # the acknowledgement was of the one before
    await server.say(acknowledged(second["id"]))
    async with asyncio.timeout(10):
        await subscribing
    cancelled = await server.next()
    assert cancelled["params"]["requestId"] == first["id"]  # only now, so that nothing is missed
    await scene.link.aclose()


async def test_a_refused_subscription_is_reported_to_its_requester(
    scripted: tuple[Scripted, str], background: BackgroundTasks
) -> None:
    server, url = scripted
    server.is_modern = True
    scene = await greeted(url, background)
    subscribing = asyncio.ensure_future(scene.link.subscribe("file:///a"))
    asked = await server.next()
    await server.say(message(id=asked["id"], error={"code": -32601, "message": "no such method"}))
    with pytest.raises(ServerError, match="no such method"):
        await subscribing
    await scene.link.aclose()


def acknowledged(id: int) -> bytes:
    meta = {"io.modelcontextprotocol/subscriptionId": id}
    return message(method="notifications/subscriptions/acknowledged", params={"notifications": {}, "_meta": meta})


@pytest.mark.parametrize(
    "end",
    [
        lambda socket: socket.transport.abort(),
        lambda socket: socket.transport.write(b"\x88\x02\x03\xe9"),
        lambda socket: socket.transport.write(b"\x83\x00"),
    ],
    ids=["abort", "goodbye", "nonsense"],
)
async def test_calls_end_after_the_owner_is_notified(
    scripted: tuple[Scripted, str], background: BackgroundTasks, end: Callable[[ServerConnection], None]
) -> None:
    server, url = scripted
    scene = await greeted(url, background)
    await server.next()
    _, listener = scene.start()
    await server.next()
    scene.link.on_lost = lambda _reason: scene.callbacks.append(f"ended {len(listener.ends)}")
    end(server.sockets[-1])
    assert (await over(listener)).fault.executed == "unknown"
    assert scene.callbacks == ["ended 0"]
    await scene.link.aclose()
