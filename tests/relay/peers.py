"""The relay's clients, as the real programs behave, over real sockets.

`Device` is the xiaozhi server's client, `Manager` the Java manager's, `Pipe` is `mcp_pipe.py` with a real child behind
it, and `RawServer` an MCP server that does as a test says. All stand on `Wire`, which keeps every frame that came.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.faults.watching import Metronome
from tests.relay import tokens
from tests.relay.tokens import python_quoted, python_token

Json = dict[str, Any]

PATIENCE = 20.0
"""How long anything may take before a test fails instead of hanging."""

SERVERS_PATH = "/mcp_endpoint/mcp/"
DEVICES_PATH = "/mcp_endpoint/call/"

INITIALIZE = (
    '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2024-11-05", "capabilities": '
    '{"roots": {"listChanged": true}, "sampling": {}}, "clientInfo": {"name": "XiaozhiMCPEndpointClient", "version": '
    '"1.0.0"}}}'
)
INITIALIZED = '{"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}}'
TOOLS_LIST = '{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}'


def server_url(port: int, token: str | None, server_id: str | None = None) -> str:
    """Where servers dial in; the token is written as it is given, so quote it."""
    return _url(port, SERVERS_PATH, token, server_id)


def device_url(port: int, token: str | None) -> str:
    """Where devices call; the token is written as it is given, so quote it."""
    return _url(port, DEVICES_PATH, token, None)


def _url(port: int, path: str, token: str | None, server_id: str | None) -> str:
    tokens.shown.update([token] if token else [])
    query = [f"token={token}"] if token is not None else []
    query += [f"server_id={quote(server_id)}"] if server_id is not None else []
    return f"ws://127.0.0.1:{port}{path}" + ("?" + "&".join(query) if query else "")


def agent_url(port: int, agent: str, server_id: str | None = None) -> str:
    """Where an agent's servers dial in, with the token that its relay would give out."""
    return server_url(port, python_quoted(python_token(agent)), server_id)


def agent_call_url(port: int, agent: str) -> str:
    """Where an agent's devices call."""
    return device_url(port, python_quoted(python_token(agent)))


@dataclass(frozen=True, slots=True)
class Ending:
    """How a socket was closed."""

    code: int | None
    reason: str | None


class Wire:
    """An open WebSocket and every frame that came on it, in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[str | bytes] = []
        self._news = asyncio.Event()
        self._is_done = False

    @property
    def messages(self) -> list[Json]:
        """The frames as documents."""
        return [json.loads(frame) for frame in self.frames]

    async def say(self, message: Json | str | bytes) -> None:
        """Send one frame: text and bytes as they are, a document as Python writes it."""
        await self.socket.send(json.dumps(message) if isinstance(message, dict) else message)

    async def read(self) -> None:
        """Take frames until the socket ends."""
        try:
            with suppress(ConnectionClosed):
                while True:
                    frame = await self.socket.recv()
                    self.frames.append(frame)
                    await self.on_frame(frame)
                    self._news.set()
        finally:
            self._is_done = True
            self._news.set()

    async def on_frame(self, frame: str | bytes) -> None:
        """What a client does with a frame; this one does nothing."""

    async def until(self, holds: Callable[[], bool], what: str, within: float = PATIENCE) -> None:
        """Wait until something holds that a frame, or the end, brings about.

        Raises:
            AssertionError: it did not, in time or before the socket ended.
        """
        try:
            async with asyncio.timeout(within):
                while not holds():
                    assert not self._is_done, f"{what}: the socket ended before ({self.ending()})"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{what}: not within {within:g} s; heard {self.frames[-3:]}") from None

    async def frame(self, index: int, within: float = PATIENCE) -> Json:
        """The frame that came as the so many-th, from 0."""
        await self.until(lambda: len(self.frames) > index, f"frame {index}", within)
        document: Json = json.loads(self.frames[index])
        return document

    async def answer(self, id: Any, *, after: int = 0, within: float = PATIENCE) -> Json:
        """The first answer with exactly this id among the frames from `after` on."""
        found: list[Json] = []
        seen = after

        def has_come() -> bool:
            nonlocal seen
            for document in map(json.loads, self.frames[seen:]):
                seen += 1
                if isinstance(document, dict) and "method" not in document and _is_same(document.get("id", ...), id):
                    found.append(document)
            return bool(found)

        await self.until(has_come, f"an answer to {id!r}", within)
        return found[0]

    async def ask(self, method: str, params: Any = ..., *, id: Any = 77, within: float = PATIENCE) -> Json:
        """Send a request and wait for its answer."""
        after = len(self.frames)
        with_params = {} if params is ... else {"params": params}
        await self.say({"jsonrpc": "2.0", "id": id, "method": method, **with_params})
        return await self.answer(id, after=after, within=within)

    def ending(self) -> Ending:
        """How it was closed, if it was."""
        return Ending(self.socket.close_code, self.socket.close_reason)

    async def ended(self, within: float = PATIENCE) -> Ending:
        """How it was closed, once it is.

        Raises:
            AssertionError: it was not, in time.
        """
        await self.until(lambda: self._is_done, "its end", within)
        return self.ending()

    @property
    def is_open(self) -> bool:
        """Whether it still is."""
        return not self._is_done


@asynccontextmanager
async def at_once(seconds: float = 1.0) -> AsyncIterator[None]:
    """Fail if the block takes longer, a busy machine's own delays not counted."""
    clock = asyncio.get_running_loop().time
    async with Metronome() as metronome:
        started = clock()
        yield
        took = clock() - started
    assert took - metronome.late_seconds < seconds, f"it took {took:.2f} s"


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


@asynccontextmanager
async def wired(url: str, wire: Callable[[ClientConnection], Wire] = Wire, **options: Any) -> AsyncIterator[Wire]:
    """A socket that is read until the block ends. What real clients are by default it is too: 1 MiB, pings, deflate."""
    async with connect(url, proxy=None, **options) as socket:
        it = wire(socket)
        reading = asyncio.create_task(it.read())
        try:
            yield it
        finally:
            await socket.close()
            await reading


# -- devices -----------------------------------------------------------------------------------------------------------


class CallFailed(Exception):
    """The text that the device's program gives its model instead of a result."""


def sanitised(name: str) -> str:
    """What the device calls a tool towards its model."""
    return re.sub(r"[^a-zA-Z0-9_\-\u4e00-\u9fff]", "_", name)


class Device(Wire):
    """The xiaozhi server's client: what it sends, and what it makes of what comes."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__(socket)
        self.tools: dict[str, Json] = {}
        """By the name that its model sees."""
        self.is_ready = False
        self.errors: list[str] = []
        """What it logs as an error of its own: there should be none."""
        self.notified: list[str] = []
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._next_id = 1

    async def hello(self) -> None:
        """Say its three sentences, without waiting for any answer."""
        for frame in (INITIALIZE, INITIALIZED, TOOLS_LIST):
            await self.say(frame)

    async def ready(self, within: float = PATIENCE) -> Device:
        """Wait until it has its tools."""
        await self.until(lambda: self.is_ready, "the device is ready", within)
        return self

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, within: float = 30.0) -> str:
        """Call a tool by the name that its model sees; returns the text for the model.

        Raises:
            CallFailed: the model is told of a failure.
        """
        known = self.tools.get(name, {"name": name})
        return await self.call_unlisted(known["name"], arguments, within)

    async def call_unlisted(self, name: str, arguments: Mapping[str, Any] | None = None, within: float = 30.0) -> str:
        """Call a tool by the hub's name, listed or not.

        Raises:
            CallFailed: the model is told of a failure.
        """
        id, self._next_id = self._next_id, self._next_id + 1
        # By a name of its own: the answer may come, and take it from the table, while the call is still being written.
        answer = self._calls[id] = asyncio.get_running_loop().create_future()
        params = {"name": name, "arguments": dict(arguments or {})}
        await self.say({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
        try:
            async with asyncio.timeout(within):
                return _text_or_failure(await answer)
        except TimeoutError:
            raise CallFailed("工具调用请求超时") from None
        finally:
            self._calls.pop(id, None)

    async def on_frame(self, frame: str | bytes) -> None:
        """As the real one does, in its order: a result before an error, a call that waits before its own 1 and 2."""
        payload = json.loads(frame)
        try:
            if "result" in payload:
                await self._take_result(_number(payload.get("id")), payload["result"])
            elif "method" in payload:
                self.notified.append(payload["method"])
            elif "error" in payload:
                self._take_error(_number(payload.get("id")), payload["error"])
        except (ValueError, TypeError, AttributeError) as error:
            self.errors.append(f"{error!r} at {frame!r}")

    async def _take_result(self, id: int, result: Any) -> None:
        if (waiting := self._calls.pop(id, None)) is not None:
            waiting.set_result(result)
        elif id == 2 and isinstance(result, dict) and isinstance(result.get("tools"), list):
            for tool in result["tools"]:
                self.tools[sanitised(tool["name"])] = _kept(tool)
            if cursor := result.get("nextCursor"):
                await self.say({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"cursor": cursor}})
            else:
                self.is_ready = True

    def _take_error(self, id: int, error: Json) -> None:
        if (waiting := self._calls.pop(id, None)) is not None:
            waiting.set_exception(CallFailed(error.get("message", "未知错误")))


def _kept(tool: Json) -> Json:
    """A tool, if the device can do with it what it does with each; else the whole list is nothing to it."""
    tool.get("description", "").replace(tool["name"], sanitised(tool["name"]))
    schema = tool.get("inputSchema", {})
    schema["required"] = [name for name in schema.get("required", []) if isinstance(name, str)]
    return tool


def _number(id: Any) -> int:
    return int(id) if id is not None else 0


def _text_or_failure(result: Any) -> str:
    if isinstance(result, dict):
        if result.get("isError") is True:
            raise CallFailed(result.get("error", "工具调用返回错误，但未提供具体错误信息"))
        content = result.get("content")
        if isinstance(content, list) and content and isinstance(content[0], dict) and "text" in content[0]:
            return str(content[0]["text"])
    return str(result)


@asynccontextmanager
async def device(port: int, agent: str, *, url: str | None = None, **options: Any) -> AsyncIterator[Device]:
    """A device that has said its three sentences."""
    async with wired(url or agent_call_url(port, agent), Device, **options) as it:
        assert isinstance(it, Device)
        await it.hello()
        yield it


async def manage(port: int, agent: str, *, url: str | None = None) -> list[str]:
    """What the manager shows of an agent: it waits for each answer, and asks for the list with `params: null`.

    Raises:
        AssertionError: an answer is none that it would take.
    """
    initialize = {
        "jsonrpc": "2.0",
        "method": "initialize",
        "params": {
            "protocolVersion": "2024-11-05",
            "capabilities": {"roots": {"listChanged": False}, "sampling": {}},
            "clientInfo": {"name": "xz-mcp-broker", "version": "0.0.1"},
        },
        "id": 1,
    }
    async with wired(url or agent_call_url(port, agent)) as wire:
        await wire.say(json.dumps(initialize, separators=(",", ":")))
        _accepted(await wire.answer(1, within=10))
        await wire.say('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        await wire.say('{"jsonrpc":"2.0","method":"tools/list","params":null,"id":2}')
        tools: list[Json] = _accepted(await wire.answer(2, within=10))["tools"]
        return [tool["name"] for tool in tools]


def _accepted(answer: Json) -> Json:
    assert "result" in answer, answer
    assert "error" not in answer, answer
    assert isinstance(answer["result"], dict), answer
    return answer["result"]


# -- servers -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Manner:
    """How a raw server behaves."""

    name: str | None = "raw"
    """What it calls itself; None for a server that says nothing of itself."""
    tools: Sequence[str] = ("echo",)
    page: int = 0
    """How many tools it lists at a time; 0 for all at once."""
    silent_at: set[str] = field(default_factory=set)
    """Methods and tools that it never answers."""
    is_terminated: bool = False
    """Whether its frames end with a newline, as those of a pipe do."""
    results: dict[str, Json] = field(default_factory=dict)
    """What it answers to other methods."""
    definition: Json = field(default_factory=dict)
    """More members of each tool."""


class RawServer(Wire):
    """An MCP server on a socket. What a tool does, its name says: see `answer_of`; `asked` is all that the hub sent."""

    def __init__(self, socket: ClientConnection, manner: Manner | None = None) -> None:
        super().__init__(socket)
        self.manner = manner or Manner()
        self.held: list[Json] = []
        """Calls of `hold`, which wait for `release`."""

    @property
    def asked(self) -> list[str]:
        """The methods the hub asked for, in order, notifications too."""
        return [message["method"] for message in self.messages if "method" in message]

    @property
    def is_listed(self) -> bool:
        """Whether the hub has greeted it and asked for a list."""
        return "tools/list" in self.asked

    async def on_frame(self, frame: str | bytes) -> None:
        """Answer, unless it is silent at that."""
        message = json.loads(frame)
        method = message.get("method")
        if method is None or "id" not in message or method in self.manner.silent_at:
            return
        if (answer := self.answer_of(method, message)) is not None:
            await self.send_back(message, answer)

    async def send_back(self, message: Json, answer: Json) -> None:
        """Answer a request with `{"result": …}` or `{"error": …}`."""
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}, separators=(",", ":"))
        with suppress(ConnectionClosed):
            await self.say(text + "\n" if self.manner.is_terminated else text)

    def answer_of(self, method: str, message: Json) -> Json | None:
        """What it says; None for nothing, as yet."""
        match method:
            case "initialize":
                info = {} if self.manner.name is None else {"serverInfo": {"name": self.manner.name, "version": "1"}}
                version = message["params"]["protocolVersion"]
                capabilities = {"tools": {"listChanged": True}}
                return {"result": {"protocolVersion": version, "capabilities": capabilities, **info}}
            case "tools/list":
                return {"result": self._listing(message.get("params") or {})}
            case "tools/call":
                return self._called(message)
            case "ping":
                return {"result": {}}
            case _ if method in self.manner.results:
                return {"result": self.manner.results[method]}
            case _:
                return {"error": {"code": -32601, "message": f"no method {method}"}}

    def _listing(self, params: Json) -> Json:
        first = int(params.get("cursor", 0))
        size = self.manner.page or len(self.manner.tools)
        names = self.manner.tools[first : first + size]
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        tools = [{"name": name, "inputSchema": schema, **self.manner.definition} for name in names]
        return {"tools": tools} | ({"nextCursor": str(first + size)} if first + size < len(self.manner.tools) else {})

    def _called(self, message: Json) -> Json | None:
        name, arguments = message["params"]["name"], message["params"].get("arguments", {})
        text = str(arguments.get("text", ""))
        if name in self.manner.silent_at:
            return None
        match name.rpartition(".")[2]:
            case "hold":
                self.held.append(message)
                return None
            case "fail":
                return {"result": {"content": [{"type": "text", "text": text}], "isError": True}}
            case "refuse":
                return {"error": {"code": -32050, "message": text, "data": {"why": "it would not"}}}
            case "huge":
                return text_answer("x" * int(text))
            case "rich":
                return {
                    "result": text_answer(text)["result"] | {"structuredContent": {"said": text}, "_meta": {"a/b": 1}}
                }
            case _:
                return text_answer(text)

    async def release(self) -> None:
        """Answer the calls that are held."""
        held, self.held = self.held, []
        for message in held:
            await self.send_back(message, text_answer(str(message["params"].get("arguments", {}).get("text", ""))))

    async def holds(self, count: int = 1, within: float = PATIENCE) -> None:
        """Wait until so many calls are held."""
        await self.until(lambda: len(self.held) >= count, f"{count} calls are held", within)

    async def change(self, *tools: str) -> None:
        """Have other tools from now on, and say so."""
        self.manner.tools = tools
        await self.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


def text_answer(text: str) -> Json:
    """An answer with one text."""
    return {"result": {"content": [{"type": "text", "text": text}]}}


@asynccontextmanager
async def raw_server(
    port: int,
    agent: str,
    server_id: str | None = None,
    *,
    url: str | None = None,
    manner: Manner | None = None,
    is_awaited: bool = True,
    **options: Any,
) -> AsyncIterator[RawServer]:
    """A raw server that has dialled in; unless told otherwise, one that the hub has asked for its list."""
    address = url or agent_url(port, agent, server_id)
    async with wired(address, lambda socket: RawServer(socket, manner), **options) as it:
        assert isinstance(it, RawServer)
        if is_awaited:
            await it.until(lambda: it.is_listed, "the hub lists the server")
        yield it


def child(name: str, *tools: str) -> list[str]:
    """The words that start a small MCP server on stdin and stdout."""
    return [sys.executable, "-E", "-S", str(Path(__file__).with_name("stdio_child.py")), name, *tools]


BACKOFF_MAX = 600


class Pipe:
    """`mcp_pipe.py`: lines of a real child's stdout become frames, frames become lines of its stdin.

    It waits 2, 4, 8… seconds before it dials again, never less than before: `backoffs` are how long it would have,
    and it dials again when it is told to.
    """

    def __init__(self, url: str, command: Sequence[str]) -> None:
        self._url = url
        self._command = command
        self.backoffs: list[int] = []
        self.endings: list[Ending] = []
        self.process: subprocess.Popen[str] | None = None
        self.wire: Wire | None = None
        self.started = asyncio.Event()
        """Its socket is open and its child runs."""
        self.again = asyncio.Event()
        """Set by a test that lets it dial again."""

    async def run(self) -> None:
        """Dial for ever."""
        while True:
            try:
                await self._pipe()
            except (ConnectionClosed, InvalidStatus, OSError, ValueError):
                self.backoffs.append(min(2 ** (len(self.backoffs) + 1), BACKOFF_MAX))
            self.started.clear()
            await self.again.wait()
            self.again.clear()

    async def _pipe(self) -> None:
        async with connect(self._url, proxy=None) as socket:
            self.wire = Wire(socket)
            self.process = process = subprocess.Popen(  # noqa: ASYNC220 (the real one blocks its loop just so)
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", text=True
            )
            self.started.set()
            try:
                await asyncio.gather(self._to_process(socket, process), self._from_process(socket, process))
            finally:
                self._end(process)
                await socket.close(1011)  # as the library does when a block ends by an exception
                self.endings.append(Ending(socket.close_code, socket.close_reason))

    async def _to_process(self, socket: ClientConnection, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        while True:
            message = await socket.recv()
            process.stdin.write((message if isinstance(message, str) else message.decode()) + "\n")
            process.stdin.flush()

    async def _from_process(self, socket: ClientConnection, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        while line := await asyncio.to_thread(process.stdout.readline):
            await socket.send(line)

    def _end(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()


@asynccontextmanager
async def pipe(
    port: int, agent: str, command: Sequence[str], *, server_id: str | None = None, url: str | None = None
) -> AsyncIterator[Pipe]:
    """A pipe that has dialled in and started its child."""
    it = Pipe(url or agent_url(port, agent, server_id), command)
    running = asyncio.create_task(it.run())
    try:
        async with asyncio.timeout(PATIENCE):
            await it.started.wait()
        yield it
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
