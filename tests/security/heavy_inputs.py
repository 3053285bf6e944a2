"""The kinds of legal input of T71: each frontend, and each kind of server, with each shape of payload.

`open_field` starts a hub with a server of every kind, a device, a server that dialled in and a channel of gRPC. `KINDS`
names what is driven through it. `tests/security/test_T71_held_loop.py` drives each once, and for long in a soak.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import grpc
import httpx2
from google.protobuf import json_format

from isthmus.wire.a2a.protobuf import CLASSES, METHODS, SERVICE
from tests.frontends.wire import until
from tests.hubs import (
    CHECKOUT,
    META,
    MODERN,
    PATIENT,
    TRUSTED,
    HubProcess,
    environment,
    isthmus,
    started,
    stdio,
    write_config,
)
from tests.peers.launch import listening_peer
from tests.relay.peers import Wire, agent_call_url, agent_url, wired
from tests.relay.tokens import KEY
from tests.security import heavy_shapes
from tests.security.fickle import Fickle
from tests.security.fickle_server import tool
from tests.security.heavy_server import Heavy

SECONDS = 60.0
PROGRAM = str(Path(__file__).with_name("heavy_server.py"))
IS_SOAK = bool(os.environ.get("ISTHMUS_SOAK"))
MIB = 1_000_000 if IS_SOAK else 500_000
BODY = 3_900_000 if IS_SOAK else 1_900_000
"""Just below `limits.request_bytes` in `make soak`. `make test` halves all sizes: a slower machine must not fail it."""
RESULT = 9 * MIB
PIPELINED = 800 * MIB // 1_000_000
FRAME = 900_000
"""Just below what a device may send or be sent."""
_META = json.dumps(META, separators=(",", ":"))


class Dialled(Wire):
    """The heavy server, dialled in."""

    def __init__(self, socket: Any) -> None:
        super().__init__(socket)
        self.heavy = Heavy()
        self.is_listed = asyncio.Event()

    async def on_frame(self, frame: str | bytes) -> None:
        """Answer."""
        self.frames.clear()
        message = json.loads(frame)

        async def send(text: bytes) -> None:
            await self.socket.send(text, text=True)

        await self.heavy.take(message, send)
        if message.get("method") == "tools/list":
            self.is_listed.set()


class Caller(Wire):
    """A device, which counts what it is answered and keeps nothing."""

    def __init__(self, socket: Any) -> None:
        super().__init__(socket)
        self.waiting: dict[int, asyncio.Future[int]] = {}

    async def on_frame(self, frame: str | bytes) -> None:
        """Note the length of an answer."""
        self.frames.clear()
        head = frame[:200] if isinstance(frame, str) else frame[:200].decode()
        for id, waiting in list(self.waiting.items()):
            if f'"id":{id},' in head.replace(" ", "") and not waiting.done():
                waiting.set_result(len(frame))

    async def ask_text(self, id: int, text: str) -> int:
        """Send a request and return how long the answer is."""
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.waiting[id] = waiting
        await self.say(text)
        try:
            async with asyncio.timeout(SECONDS):
                return await waiting
        finally:
            del self.waiting[id]


class StdioHub:
    """A hub on standard streams, a process of its own: `isthmus stdio`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask_text(self, id: int, text: str) -> bytes:
        """Send a request in one line and return the line of the answer; one request at a time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(text.replace("\n", " ").encode() + b"\n")
        async with asyncio.timeout(SECONDS):
            while line := await self._process.stdout.readline():
                if f'"id":{id},'.encode() in line[:200]:
                    return line
        raise AssertionError("the hub on standard streams has ended")

    async def busy(self) -> dict[str, int]:
        """As `Field.busy`."""
        answer = json.loads(await self.ask_text(1, _rpc(1, "tools/call", '{"name":"python.busy","arguments":{}}')))
        found: dict[str, int] = answer["result"]["structuredContent"]
        return found


@asynccontextmanager
async def stdio_hub(config: Path) -> AsyncIterator[StdioHub]:
    """Start it and say hello."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *isthmus("stdio", "--config", str(config)),
        stdin=pipe,
        stdout=pipe,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment({"PYTHONPATH": f"{CHECKOUT / 'src'}{os.pathsep}{CHECKOUT}"}),
        cwd=config.parent,
        limit=64 << 20,
    )
    try:
        hub = StdioHub(process)
        await hub.ask_text(1, _rpc(1, "initialize", json.dumps(_HELLO)))
        await hub.busy()
        yield hub
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


@dataclass
class Field:
    """A running hub with everything around it."""

    hub: HubProcess
    http: httpx2.AsyncClient
    paced_caller: httpx2.AsyncClient
    device: Caller
    dialled: Dialled
    channel: Any
    stack: AsyncExitStack
    peer: int
    """The process of the servers over the network."""
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1000, 10**9)))
    stream: EventStream | None = None
    stdio: StdioHub | None = None
    session: str = ""

    @property
    def origin(self) -> str:
        """Where the hub is."""
        return f"http://127.0.0.1:{self.hub.port}"

    async def post(self, path: str, body: str | bytes, **headers: str) -> bytes:
        """POST a body and return the answer, which must not be a failure of the hub."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        both = {"content-type": "application/json", "accept": "application/json, text/event-stream", **named}
        content = body.encode() if isinstance(body, str) else body
        answer = await self.http.post(self.origin + path, content=content, headers=both)
        assert answer.status_code != 500, answer.text[:500]
        return answer.content

    async def get(self, path: str) -> bytes:
        """GET something."""
        answer = await self.http.get(self.origin + path)
        assert answer.status_code != 500, answer.text[:500]
        return answer.content

    async def loop_figures(self) -> dict[str, Any]:
        """What the hub knows of its event loop."""
        answer = await self.paced_caller.get(f"{self.origin}/v1/hub")
        figures: dict[str, Any] = json.loads(answer.content)["event_loop"]
        return figures

    async def busy(self) -> dict[str, int]:
        """How often the loop's thread was busy for longer than so many seconds."""
        figures: dict[str, int] = (await self.loop_figures())["busy_over"]
        beside = {} if self.stdio is None else await self.stdio.busy()
        return {bound: count + beside.get(bound, 0) for bound, count in figures.items()}

    async def echo(self) -> None:
        """The paced caller's call."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        params = {"name": "builtin.echo", "arguments": {"text": "hi"}, "_meta": META}
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "builtin.echo"}
        both = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
        answer = await self.paced_caller.post(
            self.hub.url, content=json.dumps({**body, "params": params}).encode(), headers=both
        )
        assert answer.json()["result"]["content"][0]["text"] == "hi", answer.text[:300]

    async def batching(self) -> str:
        """A session of the one version that has batches."""
        if not self.session:
            hello = json.dumps({**_HELLO, "protocolVersion": "2025-03-26"})
            headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
            answer = await self.http.post(self.hub.url, content=_rpc(1, "initialize", hello).encode(), headers=headers)
            self.session = answer.headers["mcp-session-id"]
            await self.post(
                "/mcp", '{"jsonrpc":"2.0","method":"notifications/initialized"}', mcp_session_id=self.session
            )
        return self.session

    async def is_well(self) -> None:
        """The probe's question."""
        answer = await self.paced_caller.get(f"{self.origin}/healthz")
        assert answer.status_code == 200, answer.text


class EventStream:
    """A session of HTTP+SSE, whose stream is read and not kept."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self.path = ""
        self._is_open = asyncio.Event()
        self._lengths: dict[int, asyncio.Future[int]] = {}

    async def read(self) -> None:
        """Take events until the hub ends the stream."""
        tail, length = b"", 0
        async with self._field.http.stream("GET", f"{self._field.origin}/sse", timeout=None) as stream:
            async for chunk in stream.aiter_bytes():
                tail, length = (tail + chunk)[-400:] if len(chunk) < 400 else chunk[:400], length + len(chunk)
                if not self.path and b"data: " in tail:
                    self.path = tail.partition(b"data: ")[2].split()[0].decode()
                    self._is_open.set()
                if chunk.endswith(b"\n\n"):
                    self._tell(length)
                    length = 0

    def _tell(self, length: int) -> None:
        waiting, self._lengths = self._lengths, {}
        for each in waiting.values():
            if not each.done():
                each.set_result(length)

    async def opened(self) -> None:
        """Wait until it says where to speak."""
        async with asyncio.timeout(SECONDS):
            await self._is_open.wait()
        version = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await self.ask(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": version}))
        await self._field.post(self.path, '{"jsonrpc":"2.0","method":"notifications/initialized"}')

    async def ask(self, body: str) -> int:
        """Say something, and return how long the answer is; one question at a time."""
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._lengths[next(self._field.numbers)] = waiting
        refused = await self._field.post(self.path, body)
        if refused:
            return len(refused)
        async with asyncio.timeout(SECONDS):
            return await waiting


@asynccontextmanager
async def open_field(
    folder: Path, module: str = "isthmus", env: Mapping[str, str] | None = None
) -> AsyncIterator[Field]:
    """Start everything; `module` is the program of the hub."""
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(listening_peer([sys.executable, PROGRAM, "net"]))
        assert peer.process.stdout is not None
        sockets = int((await peer.process.stdout.readline()).split()[1])
        functions = {"python": "tests.security.heavy_functions", "path": str(CHECKOUT)}
        checked = Fickle(folder / "checked.json")
        checked.lists(*(tool(name.replace(" ", "_"), inputSchema=schema) for name, (schema, _) in SCHEMAS.items()))
        servers: dict[str, Any] = {
            "stdio": stdio([sys.executable, PROGRAM, "stdio"]),
            "json": {"url": peer.at("/json"), "type": "http"},
            "stream": {"url": peer.at("/stream"), "type": "http"},
            "sse": {"url": peer.at("/sse"), "type": "sse"},
            "socket": {"url": f"ws://127.0.0.1:{sockets}/"},
            "rpc": {"rpc": peer.at("/rpc"), "tools": {"give": {}, "blocks": {}, "take": {}}},
            "agent": {"agent": peer.at("/agent")},
            "python": functions,
            "checked": checked.entry,
        }
        limits = {**PATIENT, "lag_bytes": 64 << 20}
        tables = {"limits": limits, "relay": {"key": KEY, "enabled": True}, "a2a": {"grpc_port": 0}}
        config = write_config(folder, servers, **tables)
        hub = await stack.enter_async_context(started(folder, "--config", str(config), env=env, module=module))
        field = await _furnished(hub, stack, peer.process.pid)
        if module == "isthmus":  # the soak measures one hub
            beside = folder / "stdio"
            beside.mkdir()
            config = write_config(beside, {name: servers[name] for name in ("stdio", "python")}, limits=limits)
            field.stdio = await stack.enter_async_context(stdio_hub(config))
        yield field


async def _furnished(hub: HubProcess, stack: AsyncExitStack, peer: int) -> Field:
    http, paced_caller = [
        await stack.enter_async_context(
            httpx2.AsyncClient(timeout=SECONDS, verify=TRUSTED, limits=httpx2.Limits(max_connections=200))
        )
        for _ in range(2)
    ]
    options: dict[str, Any] = {"max_size": None, "compression": None, "ping_interval": None}
    dialled = await stack.enter_async_context(wired(agent_url(hub.port, "home", "dialled"), Dialled, **options))
    assert isinstance(dialled, Dialled)
    async with asyncio.timeout(SECONDS):
        await dialled.is_listed.wait()
    device = await stack.enter_async_context(wired(agent_call_url(hub.port, "home"), Caller, **options))
    assert isinstance(device, Caller)
    card = (await http.get(f"http://127.0.0.1:{hub.port}/.well-known/agent-card.json")).json()
    (address,) = (each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
    channel = await stack.enter_async_context(
        grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", 64 << 20)])
    )
    made = Field(hub, http, paced_caller, device, dialled, channel, stack, peer)
    await device.ask_text(1, _rpc(1, "initialize", json.dumps(_HELLO)))
    made.stream = EventStream(made)
    reading = asyncio.create_task(made.stream.read())
    stack.callback(reading.cancel)
    await made.stream.opened()
    names = json.loads(await made.post("/mcp", _modern("tools/list", "{}"), **_head("tools/list")))
    listed = {tool["name"] for tool in names["result"]["tools"]}
    assert {f"{server}.give" for server in SERVERS} <= listed, listed
    return made


_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "heavy", "version": "1"}}


def _rpc(id: int, method: str, params: str) -> str:
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}'


def _modern(method: str, params: str) -> str:
    inner = params[1:-1]
    return _rpc(1, method, f'{{{inner}{"," if inner else ""}"_meta":{_META}}}')


def _head(method: str, name: str = "") -> dict[str, str]:
    named = {"mcp_name": name} if name else {}
    return {"mcp_protocol_version": MODERN, "mcp_method": method, **named}


# -- endpoints: each calls a tool with arguments and returns how long the answer is -----------------------------------

Endpoint = Callable[[Field, str, str], Awaitable[int]]


async def by_modern(field: Field, tool: str, arguments: str) -> int:
    """MCP of 2026."""
    params = f'{{"name":"{tool}","arguments":{arguments}}}'
    return len(await field.post("/mcp", _modern("tools/call", params), **_head("tools/call", tool)))


async def by_legacy(field: Field, tool: str, arguments: str) -> int:
    """MCP of 2025, without a session."""
    params = f'{{"name":"{tool}","arguments":{arguments}}}'
    return len(await field.post("/mcp", _rpc(1, "tools/call", params), mcp_protocol_version="2025-06-18"))


async def by_one_server(field: Field, tool: str, arguments: str) -> int:
    """MCP at the address of one server."""
    server, _, name = tool.partition(".")
    params = f'{{"name":"{name}","arguments":{arguments}}}'
    path = f"/mcp/{server}"
    return len(await field.post(path, _modern("tools/call", params), **_head("tools/call", name)))


async def by_batch(field: Field, tool: str, arguments: str) -> int:
    """A batch of MCP of 2025-03-26."""
    params = f'{{"name":"{tool}","arguments":{arguments}}}'
    body = f"[{_rpc(1, 'tools/call', params)},{_rpc(2, 'ping', '{}')}]"
    answer = await field.post("/mcp", body, mcp_session_id=await field.batching())
    assert b"Batches are not supported" not in answer[:200]
    return len(answer)


async def by_sse(field: Field, tool: str, arguments: str) -> int:
    """HTTP+SSE."""
    assert field.stream is not None
    return await field.stream.ask(_rpc(7, "tools/call", f'{{"name":"{tool}","arguments":{arguments}}}'))


async def by_rest(field: Field, tool: str, arguments: str) -> int:
    """REST."""
    return len(await field.post(f"/v1/tools/{tool}", arguments))


async def by_device(field: Field, tool: str, arguments: str) -> int:
    """A device of the relay."""
    id = next(field.numbers)
    return await field.device.ask_text(id, _rpc(id, "tools/call", f'{{"name":"{tool}","arguments":{arguments}}}'))


def _tool_request(tool: str, arguments: str) -> str:
    return f'{{"tool":"{tool}","arguments":{arguments}}}'


async def by_a2a_1(field: Field, tool: str, arguments: str) -> int:
    """A2A 1.0."""
    part = f'{{"data":{_tool_request(tool, arguments)}}}'
    message = f'{{"messageId":"m{next(field.numbers)}","role":"ROLE_USER","parts":[{part}]}}'
    return len(await field.post("/a2a", _rpc(1, "SendMessage", f'{{"message":{message}}}'), a2a_version="1.0"))


async def by_a2a_rest(field: Field, tool: str, arguments: str) -> int:
    """A2A 1.0 over plain HTTP."""
    part = f'{{"data":{_tool_request(tool, arguments)}}}'
    message = f'{{"messageId":"m{next(field.numbers)}","role":"ROLE_USER","parts":[{part}]}}'
    return len(await field.post("/a2a/rest/message:send", f'{{"message":{message}}}', a2a_version="1.0"))


async def by_a2a_03(field: Field, tool: str, arguments: str) -> int:
    """A2A 0.3."""
    part = f'{{"kind":"data","data":{_tool_request(tool, arguments)}}}'
    message = f'{{"kind":"message","messageId":"m{next(field.numbers)}","role":"user","parts":[{part}]}}'
    return len(await field.post("/a2a", _rpc(1, "message/send", f'{{"message":{message}}}')))


async def by_a2a_01(field: Field, tool: str, arguments: str) -> int:
    """The first A2A."""
    part = f'{{"type":"data","data":{_tool_request(tool, arguments)}}}'
    message = f'{{"role":"user","parts":[{part}]}}'
    params = f'{{"id":"t{next(field.numbers)}","message":{message}}}'
    return len(await field.post("/a2a", _rpc(1, "tasks/send", params)))


async def by_agentvault(field: Field, tool: str, arguments: str) -> int:
    """AgentVault."""
    server, _, name = tool.partition(".")
    content = f'{{"target_mcp_server_id":"{server}","tool_name":"{name}","arguments":{arguments}}}'
    message = f'{{"role":"user","parts":[{{"type":"data","content":{content}}}]}}'
    return len(await field.post("/a2a", _rpc(1, "tasks/send", f'{{"message":{message}}}')))


async def by_stdio(field: Field, tool: str, arguments: str) -> int:
    """A hub on standard streams."""
    if field.stdio is None:
        return 1
    id = next(field.numbers)
    text = _rpc(id, "tools/call", f'{{"name":"{tool}","arguments":{arguments}}}')
    return len(await field.stdio.ask_text(id, text))


async def by_a2a_1_stream(field: Field, tool: str, arguments: str) -> int:
    """A2A 1.0, answered as a stream."""
    part = f'{{"data":{_tool_request(tool, arguments)}}}'
    message = f'{{"messageId":"m{next(field.numbers)}","role":"ROLE_USER","parts":[{part}]}}'
    body = _rpc(1, "SendStreamingMessage", f'{{"message":{message}}}')
    return len(await field.post("/a2a", body, a2a_version="1.0"))


async def by_a2a_03_stream(field: Field, tool: str, arguments: str) -> int:
    """A2A 0.3, answered as a stream."""
    part = f'{{"kind":"data","data":{_tool_request(tool, arguments)}}}'
    message = f'{{"kind":"message","messageId":"m{next(field.numbers)}","role":"user","parts":[{part}]}}'
    return len(await field.post("/a2a", _rpc(1, "message/stream", f'{{"message":{message}}}')))


_PLACE = b"m000000000"


@lru_cache(maxsize=16)
def _grpc_request(tool: str, arguments: str) -> bytes:
    """A message of gRPC. To write one takes the driver far longer than the hub to read it."""
    part = {"data": json.loads(_tool_request(tool, arguments))}
    message = {"messageId": _PLACE.decode(), "role": "ROLE_USER", "parts": [part]}
    given, _ = (CLASSES[name] for name in METHODS["SendMessage"])
    sent: bytes = json_format.ParseDict({"message": message}, given()).SerializeToString()
    return sent


async def by_grpc(field: Field, tool: str, arguments: str) -> int:
    """A2A 1.0 over gRPC."""
    sent = _grpc_request(tool, arguments).replace(_PLACE, b"m%09d" % next(field.numbers), 1)
    made = field.channel.unary_unary(f"/{SERVICE}/SendMessage")
    try:
        return len(await made(sent, metadata=(("a2a-version", "1.0"),), timeout=SECONDS))
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.INTERNAL:
            raise
        return len(str(error.details()))


ENDPOINTS: dict[str, Endpoint] = {
    "modern": by_modern,
    "legacy": by_legacy,
    "one server": by_one_server,
    "batch": by_batch,
    "sse": by_sse,
    "rest": by_rest,
    "device": by_device,
    "a2a 1.0": by_a2a_1,
    "a2a plain": by_a2a_rest,
    "a2a 0.3": by_a2a_03,
    "a2a 0.1": by_a2a_01,
    "agentvault": by_agentvault,
    "grpc": by_grpc,
}
MORE_ENDPOINTS: dict[str, Endpoint] = {
    "stdio frontend": by_stdio,
    "a2a 1.0 stream": by_a2a_1_stream,
    "a2a 0.3 stream": by_a2a_03_stream,
}
"""Endpoints that read like others, each with a few shapes."""
A2A_ENDPOINTS = ("a2a 1.0", "a2a plain", "a2a 0.3", "a2a 0.1", "agentvault", "grpc")
SERVERS = ("stdio", "json", "stream", "sse", "socket", "rpc", "python")


# -- kinds -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """One way in or one kind of server, with one shape."""

    name: str
    family: str
    drive: Callable[[Field], Awaitable[Any]]


def _size_at(endpoint: str) -> int:
    """How long a request may be at an endpoint."""
    return FRAME if endpoint == "device" else BODY


async def _sends(field: Field, endpoint: str, tool: str, shape: str) -> None:
    text = heavy_shapes.value(shape, _size_at(endpoint))
    assert await ENDPOINTS[endpoint](field, tool, f'{{"text":"x","v":{text}}}'), "there is an answer"


def _family_of(shape: str) -> str:
    if shape.startswith("deep"):
        return "deep bodies"
    return "strings" if heavy_shapes.is_text(shape) or shape in {"blanks", "line breaks"} else "dense bodies"


SENT_EVERYWHERE = (
    "ascii", "non-ascii", "backslashes", "numbers", "objects", "members", "long strings", "deep objects", "line breaks",
)  # fmt: skip


def _requests() -> Iterator[Kind]:
    """Every shape at one endpoint of each family of protocols, and what differs most at each other."""
    for endpoint in ENDPOINTS:
        for shape in heavy_shapes.SHAPES if endpoint in {"modern", "a2a 1.0"} else SENT_EVERYWHERE:
            tool = "take" if endpoint == "device" else "stdio.take"
            family = "relay frames" if endpoint == "device" else _family_of(shape)
            family = "A2A parts" if endpoint in A2A_ENDPOINTS else family
            yield Kind(
                f"request / {endpoint} / {shape}", family, partial(_sends, endpoint=endpoint, tool=tool, shape=shape)
            )


async def _more_sends(field: Field, endpoint: str, shape: str) -> None:
    text = heavy_shapes.value(shape, BODY)
    answer = await MORE_ENDPOINTS[endpoint](field, "stdio.take", f'{{"text":"x","v":{text}}}')
    assert answer, "there is an answer"


async def _more_gives(field: Field, endpoint: str, shape: str) -> None:
    length = await MORE_ENDPOINTS[endpoint](field, "stdio.give", json.dumps({"shape": shape, "size": RESULT // 2}))
    if field.stdio is not None or endpoint != "stdio frontend":
        _check_length(length, shape, RESULT // 2)


def _more_endpoints() -> Iterator[Kind]:
    for endpoint in MORE_ENDPOINTS:
        family = "standard streams" if endpoint == "stdio frontend" else "A2A parts"
        for shape in ("ascii", "backslashes", "objects", "members", "deep objects"):
            yield Kind(f"request / {endpoint} / {shape}", family, partial(_more_sends, endpoint=endpoint, shape=shape))
        for shape in ("ascii", "escapes", "rows"):
            yield Kind(f"result by {endpoint} / {shape}", family, partial(_more_gives, endpoint=endpoint, shape=shape))


async def _says(field: Field, path: str, body: str, version: str) -> None:
    headers = {"a2a_version": version} if version else {}
    assert await field.post(path, body.replace("%n", str(next(field.numbers))), **headers)


def _words() -> Iterator[Kind]:
    """Parts of messages to the agent that are texts and files."""
    for shape in ("ascii", "non-ascii", "escapes", "quotes", "base64"):
        text = heavy_shapes.value(shape, BODY)
        sent = '{"jsonrpc":"2.0","id":1,"method":"%s","params":{"message":%s}}'
        bodies = {
            "1.0 text": (sent % ("SendMessage", _v1(f'{{"text":{text}}}')), "1.0"),
            "1.0 file": (sent % ("SendMessage", _v1(f'{{"raw":{text},"mediaType":"a/b"}}')), "1.0"),
            "0.3 text": (sent % ("message/send", _v03(f'{{"kind":"text","text":{text}}}')), ""),
            "0.3 file": (sent % ("message/send", _v03(f'{{"kind":"file","file":{{"bytes":{text}}}}}')), ""),
            "0.1 text": (
                f'{{"jsonrpc":"2.0","id":1,"method":"tasks/send","params":{{"id":"w%n","message":{{"role":"user",'
                f'"parts":[{{"type":"text","text":{text}}}]}}}}}}',
                "",
            ),
        }
        for name, (body, version) in bodies.items():
            drive = partial(_says, path="/a2a", body=body, version=version)
            yield Kind(f"words / a2a {name} / {shape}", "A2A parts", drive)


def _v1(part: str) -> str:
    return f'{{"messageId":"w%n","role":"ROLE_USER","parts":[{part}]}}'


def _v03(part: str) -> str:
    return f'{{"kind":"message","messageId":"w%n","role":"user","parts":[{part}]}}'


async def _gives(field: Field, endpoint: str, server: str, shape: str) -> None:
    tool = "tell" if server == "python" and heavy_shapes.is_text(shape) else "give"
    name = tool if server == "dialled" else f"{server}.{tool}"
    size = FRAME if server == "dialled" else RESULT
    if len(heavy_shapes.result(shape, size)) > 16_000_000:  # escapes make it longer than the hub accepts
        size //= 2
    length = await ENDPOINTS[endpoint](field, name, json.dumps({"shape": shape, "size": size}))
    # The stream of `sse` is read in pieces of any length, and a dial-in server's answer may have a megabyte.
    is_refused = server == "dialled" and len(heavy_shapes.result(shape, size)) > 1_000_000
    # AgentVault answers with the id of a task.
    if endpoint not in {"sse", "agentvault"} and not is_refused:
        _check_length(length, shape, size)


def _check_length(length: int, shape: str, size: int) -> None:
    """Check that an answer is as long as the value that was asked for: a refusal is short."""
    # Blanks may be left out, characters may be escaped or not, and some frontends read and write the value.
    expected = 0 if shape in {"blanks", "line breaks"} else len(heavy_shapes.value(shape, size)) // 4
    assert length > expected, f"{length} bytes of {shape}, {expected} expected"


GIVEN_EVERYWHERE = (
    "ascii", "non-ascii", "escapes", "backslashes", "base64", "numbers", "rows", "long strings", "members", "deep",
)  # fmt: skip


def _results() -> Iterator[Kind]:
    for server in (*SERVERS, "dialled"):
        endpoint = "device" if server == "dialled" else "modern"
        family = "relay frames" if server == "dialled" else "results"
        # Each line of it is a line of an event there.
        shapes = [shape for shape in heavy_shapes.SHAPES if shape != "line breaks" or server in {"json", "rpc"}]
        for shape in shapes if server in {"stdio", "json", "dialled"} else GIVEN_EVERYWHERE:
            yield Kind(
                f"result / {server} / {shape}", family, partial(_gives, endpoint=endpoint, server=server, shape=shape)
            )
    for endpoint in ENDPOINTS:
        for shape in (
            () if endpoint in {"modern", "device"} else ("ascii", "non-ascii", "escapes", "rows", "line breaks")
        ):
            drive = partial(_gives, endpoint=endpoint, server="json", shape=shape)
            yield Kind(f"result by {endpoint} / {shape}", "results", drive)


async def _asks(field: Field, tool: str, arguments: str) -> None:
    assert await by_modern(field, tool, arguments)


def _blocks() -> Iterator[Kind]:
    for server in ("stdio", "json", "stream", "socket"):
        arguments = json.dumps({"size": 4 * MIB, "text": "é" if server == "json" else "hi"})
        yield Kind(f"blocks / {server}", "results", partial(_asks, tool=f"{server}.blocks", arguments=arguments))


async def _agent(field: Field, kind: str, shape: str) -> None:
    length = await by_modern(field, "agent.give", json.dumps({"message": f"{kind} {shape} {4 * MIB}"}))
    _check_length(length, shape, 4 * MIB)


def _agents() -> Iterator[Kind]:
    for kind, shapes in {
        "text": ("ascii", "non-ascii", "escapes"),
        "raw": ("base64",),
        "data": ("numbers", "rows", "members", "deep objects", "long strings"),
    }.items():
        for shape in shapes:
            yield Kind(f"agent / {kind} / {shape}", "A2A parts", partial(_agent, kind=kind, shape=shape))


async def _reads(field: Field, server: str, shape: str, endpoint: str) -> None:
    uri = f"heavy://{shape}/{RESULT}"
    if endpoint == "rest":
        uri = f"isthmus://hub/{server}/{uri}"
        _check_length(len(await field.get(f"/v1/resources/read?uri={uri}")), shape, RESULT)
        return
    body = _modern("resources/read", json.dumps({"uri": uri}))
    headers = _head("resources/read", uri)
    _check_length(len(await field.post(f"/mcp/{server}", body, **headers)), shape, RESULT)


def _resources() -> Iterator[Kind]:
    for server in ("stdio", "json", "socket"):
        for shape in ("ascii", "non-ascii", "escapes", "base64"):
            for endpoint in ("modern", "rest"):
                drive = partial(_reads, server=server, shape=shape, endpoint=endpoint)
                yield Kind(f"resource / {server} / {endpoint} / {shape}", "resources", drive)


async def _floods(field: Field, server: str, kind: str, count: int) -> None:
    given = {"kind": kind, "count": count, "size": 100}
    params = {"name": f"{server}.flood", "arguments": given}
    meta = {**META, "progressToken": 7}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": meta}})
    assert await field.post("/mcp", body, **_head("tools/call", f"{server}.flood"))


def _floods_of_servers() -> Iterator[Kind]:
    for server in ("stdio", "stream", "sse", "socket"):
        for kind in ("progress", "logs", "changes", "updates", "unknown", "answers"):
            drive = partial(_floods, server=server, kind=kind, count=500 if kind == "changes" else 3000)
            yield Kind(f"flood / {server} / {kind}", "floods", drive)


async def _pipelines(field: Field, body: str, path: str, count: int) -> None:
    """Send requests one behind the other on one connection, and take the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", field.hub.port)
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    head += f"accept: application/json, text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    try:
        for _ in range(count // PIPELINED):
            writer.write((head + body).encode() * PIPELINED)
            for _ in range(PIPELINED):
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
                await reader.readexactly(length)
    finally:
        writer.close()


PIPELINED = 16
"""What a client may have waiting on a connection."""


async def _frames(field: Field, count: int, method: str) -> None:
    """Send many small frames as a device, and wait for the answer to the last."""
    for _ in range(count):
        await field.device.say(f'{{"jsonrpc":"2.0","method":"{method}"}}')
    id = next(field.numbers)
    assert await field.device.ask_text(id, _rpc(id, "ping", "{}"))


async def _batches(field: Field, count: int) -> None:
    body = "[" + ",".join(_rpc(at, "ping", "{}") for at in range(count)) + "]"
    assert await field.post("/mcp", body, mcp_session_id=await field.batching())


async def _form(field: Field, body: str) -> None:
    answer = await field.http.post(
        f"{field.origin}/oauth/token",
        content=body.encode(),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code < 500, answer.text[:300]


def _floods_of_callers() -> Iterator[Kind]:
    echo = '{"text":"hi"}'
    yield Kind(
        "pipeline / rest", "floods", partial(_pipelines, body=echo, path="/v1/tools/builtin.echo", count=PIPELINED)
    )
    yield Kind(
        "pipeline / legacy", "floods", partial(_pipelines, body=_rpc(1, "ping", "{}"), path="/mcp", count=PIPELINED)
    )
    yield Kind("pipeline / not JSON", "floods", partial(_pipelines, body="{", path="/mcp", count=PIPELINED))
    for method in ("notifications/initialized", "notifications/cancelled", "ping"):
        yield Kind(f"frames / {method}", "relay frames", partial(_frames, count=2000, method=method))
    for count in (10, 100, 20_000):
        yield Kind(f"batch of {count}", "floods", partial(_batches, count=count))
    for name, body in {
        "long": "grant_type=client_credentials&x=" + "y" * BODY,
        "many": "grant_type=client_credentials&" + "a=1&" * 100_000,
        "escaped": "grant_type=client_credentials&x=" + "%C3%A9" * 600_000,
    }.items():
        yield Kind(f"form / {name}", "strings", partial(_form, body=body))


async def _parallel(field: Field, endpoint: str, shape: str, size: int, count: int) -> None:
    text = f'{{"text":"x","v":{heavy_shapes.value(shape, size)}}}'

    async def call() -> int:
        try:
            return await ENDPOINTS[endpoint](field, "builtin.echo", text)
        except (httpx2.ReadError, httpx2.WriteError):
            return 1  # refused as too much at once, and reset because this busy process sent on for over two seconds

    assert all(await asyncio.gather(*(call() for _ in range(count))))


async def _parallel_results(field: Field, size: int, count: int) -> None:
    arguments = json.dumps({"shape": "ascii", "size": size})
    for length in await asyncio.gather(*(by_modern(field, "json.give", arguments) for _ in range(count))):
        _check_length(length, "ascii", size)


def _crowds() -> Iterator[Kind]:
    for endpoint in ("modern", "rest", "a2a 1.0"):
        for shape in ("ascii", "rows"):
            count = 60 if endpoint == "modern" else 12
            drive = partial(_parallel, endpoint=endpoint, shape=shape, size=3_500_000, count=count)
            yield Kind(f"{count} at once / {endpoint} / {shape}", "parallel large calls", drive)
    drive = partial(_parallel_results, size=RESULT, count=12)
    yield Kind("12 results at once", "parallel large calls", drive)


async def _lists(field: Field, server: str, what: str, count: int, size: int) -> None:
    """Have a server list much, wait until it is listed, and have it listed by every endpoint."""
    name = f"n{next(field.numbers)}_"
    given = {"what": what, "count": count, "size": size, "name": name}
    assert await by_modern(field, f"{server}.relist", json.dumps(given))
    method = {"templates": "resources/templates/list"}.get(what, f"{what}/list")
    wanted = f'"{name}{count - 1}"' if what in {"resources", "templates"} else f'"{server}.{name}{count - 1}"'

    async def is_listed() -> bool:
        cursor, seen = "{}", b""
        while True:
            page = await field.post("/mcp", _modern(method, cursor), **_head(method))
            seen += page
            more = json.loads(page)["result"].get("nextCursor")
            if more is None:
                return wanted.encode() in seen
            cursor = json.dumps({"cursor": more})

    await until(is_listed)
    path = {"templates": "resources/templates"}.get(what, what)
    for _ in range(2):
        assert await field.get(f"/v1/{path}")
    assert await field.get("/.well-known/agent-card.json")
    given = {"what": what, "count": 0, "size": 0, "name": name}
    assert await by_modern(field, f"{server}.relist", json.dumps(given))


def _listings() -> Iterator[Kind]:
    for server in ("stdio", "sse", "socket"):
        for what in ("tools", "prompts", "resources", "templates") if server == "stdio" else ("tools", "resources"):
            longer = ((10_000, 300), (1_600, 4_000)) if (server, what) == ("stdio", "tools") else ()
            for count, size in ((900 * MIB // 1_000_000, 4_000), (20, MIB // 5), *longer):
                drive = partial(_lists, server=server, what=what, count=count, size=size)
                yield Kind(f"list / {server} / {count} {what} of {size}", "lists", drive)


WIDE = {"type": "object", "properties": {"x": {"items": {"allOf": [{"type": "number"}] * 50}}}}
SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "a wide schema": (WIDE, "numbers"),
    "a loose schema": ({"type": "object"}, "rows"),
    "a pattern": ({"type": "object", "properties": {"x": {"pattern": "^[a-z]*$"}}}, "ascii"),
    "a format": ({"type": "object", "properties": {"x": {"format": "uri"}}}, "ascii"),
    "unique items": ({"type": "object", "properties": {"x": {"uniqueItems": True}}}, "numbers"),
    "an enumeration": ({"type": "object", "properties": {"x": {"enum": list(range(5000))}}}, "long strings"),
    "many choices": (
        {"type": "object", "properties": {"x": {"items": {"anyOf": [{"const": at} for at in range(100)]}}}}, "numbers",
    ),
    "names of members": ({"type": "object", "properties": {"x": {"propertyNames": {"pattern": "^k"}}}}, "members"),
    "multiples": ({"type": "object", "properties": {"x": {"items": {"multipleOf": 0.01}}}}, "floats"),
}  # fmt: skip


async def _checks(field: Field, name: str, endpoint: str, size: int) -> None:
    shape = SCHEMAS[name][1]
    tool = "checked." + name.replace(" ", "_")
    assert await ENDPOINTS[endpoint](field, tool, f'{{"x":{heavy_shapes.value(shape, size)}}}')


def _schemas() -> Iterator[Kind]:
    for name in SCHEMAS:
        for endpoint in ("modern", "rest"):
            yield Kind(
                f"schema / {endpoint} / {name}", "schemas", partial(_checks, name=name, endpoint=endpoint, size=1 * MIB)
            )


KINDS: tuple[Kind, ...] = (
    *_requests(), *_more_endpoints(), *_words(), *_results(), *_blocks(), *_agents(), *_resources(),
    *_floods_of_servers(), *_floods_of_callers(), *_crowds(), *_schemas(), *_listings(),
)  # fmt: skip
FAMILIES = tuple(dict.fromkeys(kind.family for kind in KINDS))


# -- beside them -------------------------------------------------------------------------------------------------------

HELD = "0.05"
"""The bound in the hub's own histogram: how often the loop was busy for over so many seconds."""

BEAT_SECONDS = 0.005 if IS_SOAK else 0.02
"""The paced caller's own pace. Only `make soak` looks at how long it waits, so there it calls more often."""


async def driven(field: Field, kind: Kind) -> list[float]:
    """Drive a kind, and return how long each call of the paced caller took meanwhile."""
    driving, waits = asyncio.ensure_future(kind.drive(field)), [await timed(field)]
    while not driving.done():
        await asyncio.sleep(BEAT_SECONDS)
        waits.append(await timed(field))
    await driving
    return waits


async def timed(field: Field) -> float:
    """How long a call of the paced caller takes; the probe asks afterwards."""
    begun = time.perf_counter()
    await field.echo()
    waited = time.perf_counter() - begun
    await field.is_well()
    return waited


def longest(before: dict[str, int], after: dict[str, int]) -> str:
    """The largest bound that the loop was busy beyond, between two looks."""
    return next((bound for bound in reversed(after) if after[bound] > before[bound]), "0")
