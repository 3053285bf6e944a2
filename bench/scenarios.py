"""The parts of the hub that the gate watches, each as one function.

A scenario sets up, yields the piece of work that is repeated and timed, and tidies up after the yield.
Adding one is writing one decorated function here and then `python -m bench.gate --save`. The work must be
the same at each repetition and must wait for nothing; work that needs an event loop drives one inside.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from secrets import token_hex

import msgspec
import uvloop

from bench.messages import call_body
from isthmus.core.audit import RecordBatch, RecordEncoder
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.argument_validation import CheckCache
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.ports import PushReceipt, Recorder, StrictAudit
from isthmus.core.settings import Limits
from isthmus.core.tasks.engine import TaskEngine
from isthmus.frontends.a2a.cards import AgentCards
from isthmus.frontends.a2a.http import A2aHttp
from isthmus.frontends.a2a.push_notifications import PushNotifications
from isthmus.frontends.a2a.service import A2aService
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.http.auth import Authenticator, OriginGuard
from isthmus.frontends.http.request_cycle import PEER, Message
from isthmus.frontends.mcp.http import McpHttp
from isthmus.frontends.mcp.methods import McpMethods
from isthmus.identity.keys import KeyRing, credential_of, digest_of
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Call, Event, OnReply, Outcome, Question, Result
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.storage.sqlite import SqliteJournal
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Text
from isthmus.wire.mcp.messages import Implementation

Work = Callable[[], object]
Scenario = Callable[[], AbstractContextManager[Work]]

SCENARIOS: dict[str, Scenario] = {}
"""Every watched scenario by the name of its function, in the order of the table."""

SERVER = ServerName("files")
CALLER = Caller("bench", "bench", Grants(allow=("files.*", "search.query"), deny=("files.delete",)))
RESULT = msgspec.Raw(b'{"content":[{"type":"text","text":"a text of some length"}],"resultType":"complete"}')
DEFINITION = {
    "description": msgspec.Raw(b'"Return the text it was given."'),
    "inputSchema": msgspec.Raw(b'{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}'),
}


def scenario(function: Callable[[], Iterator[Work]]) -> Scenario:
    """Have the gate watch `function`."""
    made = contextmanager(function)
    SCENARIOS[function.__name__] = made
    return made


@scenario
def decode_request() -> Iterator[Work]:
    """A caller's modern `tools/call`, from bytes to a checked envelope and its members."""
    body = call_body(7, "files.echo", "a text of some length", "modern")
    yield lambda: jsonrpc.decode(body)


@scenario
def decode_reply() -> Iterator[Work]:
    """A server's answer, from bytes to a checked envelope."""
    body = jsonrpc.result(b"7", RESULT)
    yield lambda: jsonrpc.decode(body)


@scenario
def encode_both() -> Iterator[Work]:
    """The request towards a server and the answer towards a caller."""
    params = msgspec.Raw(b'{"name":"echo","arguments":{"text":"a text of some length"}}')
    id = msgspec.Raw(b"7")
    yield lambda: (jsonrpc.request(7, "tools/call", params), jsonrpc.result(id, RESULT))


@scenario
def find_caller() -> Iterator[Work]:
    """Whose key a request carries, among a hundred callers."""
    ring = KeyRing([(digest_of(f"a-key-for-caller-{number}"), CALLER) for number in range(100)])
    fields = {
        b"host": b"127.0.0.1",
        b"content-type": b"application/json",
        b"accept": b"application/json, text/event-stream",
        b"authorization": b"Bearer a-key-for-caller-50",
    }
    yield lambda: ring.caller_of(credential_of(fields) or b"")


@scenario
def compile_view() -> Iterator[Work]:
    """The table of one permission set over ten servers with ten tools each, as after every `list_changed`."""
    server_statuses = {}
    for server in (SERVER, *(ServerName(f"server-{number}") for number in range(9))):
        tools = tuple(Tool.of(server, FeatureName(f"tool_{number}"), DEFINITION) for number in range(10))
        server_statuses[server] = ServerStatus(server, "ready", tools=tools, is_settled=True)
    checks = CheckCache(limit_bytes=Limits().schema_bytes)
    everything = Grants(allow=("*",))
    yield lambda: Snapshot(1, server_statuses, checks).view(everything, EVERYTHING)


@scenario
def audit_records() -> Iterator[Work]:
    """The audit log's records of sixteen calls: encoded, and joined to the chain."""
    encoder = RecordEncoder(b"a key of the audit log")
    call = Call(CALLER, EVERYTHING, "files.echo", msgspec.Raw(b'{"text":"a text of some length"}'))
    fact = (1_800_000_000.0, call, SERVER, Result(RESULT), 0.001, True, "")

    def record() -> None:
        batch = RecordBatch()
        for _ in range(16):
            batch.add(*encoder.record(fact))

    yield record


class Silent:
    """An exchange and a recorder that do nothing, so that what is measured is the core's own cost."""

    strict_audit: StrictAudit | None = None
    started: Callable[[InFlight], None] | None = None

    def emit(self, event: Event) -> None:
        raise AssertionError(f"nothing happens during this call, yet {event} came")

    def ask(self, question: Question, reply: OnReply) -> None:
        raise AssertionError(f"nobody asks during this call, yet {question} came")

    def end(self, outcome: Outcome) -> None:
        assert isinstance(outcome, Result), outcome

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        pass

    def waited(self, inflight: InFlight, seconds: float) -> None:
        pass

    def late(self, server: ServerName) -> None:
        raise AssertionError(f"{server} was answered for twice")


class Instant:
    """A link to a server that has answered before `send` returns."""

    def send(self, inflight: InFlight) -> None:
        inflight.finish(Result(RESULT))

    def may_have_run(self, inflight: InFlight) -> bool:
        return True

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        raise AssertionError(f"an instant call was withdrawn: {reason}")


@scenario
def core_call() -> Iterator[Work]:
    """The core alone: all stages, the server queue, the deadline's timer and the end of sixteen times sixteen calls."""
    loop = uvloop.new_event_loop()
    hub = loop.run_until_complete(hub_with_instant_server())
    silent = Silent()
    call = Call(CALLER, EVERYTHING, "files.echo", msgspec.Raw(b'{"text":"a text of some length"}'))

    async def turns() -> None:
        # Several in one go: what uvloop opens and closes around each is not ours, and costs now this and now that.
        for _ in range(16):
            for _ in range(16):
                hub.start(call, silent)
            # Cancelled timers are swept by the loop, which is part of what they cost.
            await asyncio.sleep(0)

    yield lambda: loop.run_until_complete(turns())
    loop.close()


class Slow(Instant):
    """A link to a server that answers when it is told to, the oldest call first."""

    def __init__(self) -> None:
        self._sent: deque[InFlight] = deque()

    def send(self, inflight: InFlight) -> None:
        self._sent.append(inflight)

    def answer_all(self) -> None:
        while self._sent:
            self._sent.popleft().finish(Result(RESULT))


@scenario
def queued_call() -> Iterator[Work]:
    """The core alone, for a relay device with 64 calls on the way: most wait for its share of the server's slots."""
    loop = uvloop.new_event_loop()
    slow = Slow()
    hub = loop.run_until_complete(hub_with_instant_server(slow))
    silent = Silent()
    call = Call(CALLER, EVERYTHING, "files.echo", msgspec.Raw(b'{"text":"a text of some length"}'), sharer="device")

    async def turns() -> None:
        for _ in range(4):
            for _ in range(64):
                hub.start(call, silent)
            slow.answer_all()
            await asyncio.sleep(0)

    yield lambda: loop.run_until_complete(turns())
    loop.close()


async def hub_with_instant_server(link: Instant | None = None, recorder: Recorder | None = None) -> Hub:
    """Return a hub with one server, attached and ready; with `link`, it answers over that."""
    hub = Hub(Limits(), recorder or Silent())
    server_queue = ServerQueue(SERVER, hub.limits)
    tools = (Tool.of(SERVER, FeatureName("echo"), DEFINITION),)
    hub.open_server_queue(server_queue, ServerStatus(SERVER, "ready", tools=tools, is_settled=True))
    server_queue.attach(link or Instant())
    return hub


class Arrived:
    """A request that has arrived whole, from a client that takes whatever it is answered."""

    def __init__(self, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.scope: Message = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers}
        self.body = body

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        assert status == 200, body

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        raise AssertionError("an instant call needs no farewell")

    def take_body(self) -> bytes | None:
        raise AssertionError("the body is read without being taken")

    def begin(self, status: int, lines: bytes) -> None:
        raise AssertionError("nothing precedes the answer")

    def push(self, chunk: bytes) -> None:
        raise AssertionError("nothing precedes the answer")

    def end(self, chunk: bytes) -> None:
        raise AssertionError("nothing precedes the answer")

    def buffered_bytes(self) -> int:
        return 0

    def abort(self) -> None:
        raise AssertionError("nobody is cut")


@scenario
def frontend_call() -> Iterator[Work]:
    """Sixteen times sixteen calls of a caller with a key: from a request's bytes to its answer's, without a server."""
    loop = uvloop.new_event_loop()
    frontend = loop.run_until_complete(frontend_with_instant_server())
    headers = [
        (b"host", b"127.0.0.1"),
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"mcp-protocol-version", b"2026-07-28"),
        (b"mcp-method", b"tools/call"),
        (b"mcp-name", b"files.echo"),
        (b"authorization", b"Bearer a-key-for-the-bench"),
    ]
    arrived = Arrived(call_body(7, "files.echo", "a text of some length", "modern"), headers)

    async def turns() -> None:
        for _ in range(16):
            for _ in range(16):
                assert frontend.take(EVERYTHING, arrived)
            await asyncio.sleep(0)

    yield lambda: loop.run_until_complete(turns())
    loop.close()


async def frontend_with_instant_server() -> McpHttp:
    """Return the MCP frontend of a hub with one server and one caller."""
    hub = await hub_with_instant_server()
    ring = KeyRing([(digest_of("a-key-for-the-bench"), CALLER)])
    auth = Authenticator(
        OriginGuard(bind_host="127.0.0.1"), lambda fields: ring.caller_of(credential_of(fields) or b"")
    )
    return McpHttp(McpMethods(hub, Implementation("isthmus", "0")), auth)


class SentMessage(Arrived):
    """A message to the agent, whose sender waits for the end of its task."""

    def __init__(self, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(body, headers)
        extensions = {PEER: self}
        self.scope = {**self.scope, "path": "/a2a", "query_string": b"", "extensions": extensions}

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        assert b"TASK_STATE_COMPLETED" in b"".join([body] if isinstance(body, bytes) else body), body

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """It stays connected."""

    def on_taken(self, callback: Callable[[], None]) -> None:
        raise AssertionError("only callers of 0.1 have to be known to have read")

    def take_body(self) -> bytes | None:
        return self.body


class NoPush:
    """A sender of push notifications that nobody asks for."""

    async def refusal(self, url: str, *, is_trusted: bool) -> str | None:
        raise AssertionError(f"nobody pushes to {url}")

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, is_trusted: bool) -> PushReceipt:
        raise AssertionError(f"nobody pushes to {url}")


@scenario
def agent_message() -> Iterator[Work]:
    """Sixteen messages at once, each a task of its own: stored on SQLite before its call and again at its end.

    Only what the event loop's thread does counts. The thread that writes is the same for every message.
    """
    loop = uvloop.new_event_loop()
    headers = [
        (b"host", b"127.0.0.1"),
        (b"content-type", b"application/json"),
        (b"a2a-version", b"1.0"),
        (b"authorization", b"Bearer a-key-for-the-bench"),
    ]
    part = {"data": {"tool": "files.echo", "arguments": {"text": "a text of some length"}}}

    def message() -> SentMessage:
        params = {"message": {"messageId": token_hex(8), "role": "ROLE_USER", "parts": [part]}}
        body = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": params}
        return SentMessage(msgspec.json.encode(body), headers)

    async def receive() -> Message:
        raise AssertionError("the body has arrived")

    async def send(_: Message) -> None:
        raise AssertionError("the peer is answered")

    # In memory, where there is such a folder: a sync takes no CPU, and would make the sample ten times as long.
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=in_memory if in_memory.is_dir() else None) as folder:
        frontend, journal = loop.run_until_complete(agent_with_instant_server(Path(folder)))

        async def turn(messages: list[SentMessage]) -> None:
            await asyncio.gather(*(frontend.serve(each.scope, receive, send) for each in messages))

        yield lambda: loop.run_until_complete(turn([message() for _ in range(16)]))
        loop.run_until_complete(journal.aclose())
    loop.close()


async def agent_with_instant_server(folder: Path) -> tuple[A2aHttp, SqliteJournal]:
    """Return the A2A frontend of a hub with one server and one caller, and its journal in this folder."""
    hub, journal = await hub_with_instant_server(), SqliteJournal(folder)
    ring = KeyRing([(digest_of("a-key-for-the-bench"), CALLER)])
    auth = Authenticator(
        OriginGuard(bind_host="127.0.0.1"), lambda fields: ring.caller_of(credential_of(fields) or b"")
    )
    engine, settings = TaskEngine(hub, journal, time.time), A2aSettings()
    pushing = PushNotifications(engine, NoPush(), lambda _: False)
    service = A2aService(hub, engine, journal, settings, time.time, pushing)
    cards = AgentCards(hub, settings, "0", lambda: "http://127.0.0.1", lambda: True, time.time)
    return A2aHttp(service, auth, cards), journal
