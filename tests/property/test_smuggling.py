"""No body makes the hub authorise one call and send another.

In process and without sockets: bytes through what the frontend reads, the hub with a caller of few rights, and what
both dialects would write to a server; then parsers that disagree on duplicates and case read what was written.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.settings import Limits
from isthmus.frontends.mcp.exchange import JsonRpcReply
from isthmus.frontends.mcp.methods import McpMethods
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.telemetry.call_metrics import CallMetrics
from isthmus.wire import jsonrpc, lines
from isthmus.wire.jsonrpc import Request
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.forwarded_methods import LegacyDialect, McpDialect, ModernDialect
from isthmus.wire.mcp.messages import Implementation
from tests.choices import IS_FULL
from tests.property.bodies import any_body
from tests.unit.core.doubles import DONE, Listener

CASES = 100_000 if IS_FULL else 20_000
ME = Implementation("isthmus", "0")
GRANTED = {"files.read", "web.search"}
LIMITED = Caller("limited", "default", Grants(tuple(GRANTED)))
NAMES = ("files.read", "files.delete", "web.search", "web.admin")
REQUEST_ID = 7
_EXOTIC_LINES = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")

Parse = Callable[[bytes], Any]


def keeping(*, first: bool, folded: bool) -> Parse:
    """A parser that keeps the first or last of equal keys, and may take keys for equal whatever their case."""

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        ordered = reversed(members) if first else members
        return {key.casefold() if folded else key: value for key, value in ordered}

    return lambda text: json.loads(text, object_pairs_hook=pairs)


class Params(msgspec.Struct):
    """What a typed reader takes of the parameters."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    meta: dict[str, msgspec.Raw] = msgspec.field(name="_meta", default_factory=dict)


class Envelope(msgspec.Struct):
    """What a typed reader takes of a message."""

    jsonrpc: str
    id: int | str
    method: str
    params: Params


def typed(text: bytes) -> Any:
    """Read as a strictly typed server does, which looks only at what it knows."""
    read = msgspec.json.decode(text, type=Envelope)
    meta = {key: json.loads(bytes(value)) for key, value in read.params.meta.items()}
    params = {"name": read.params.name, "arguments": bytes(read.params.arguments), "_meta": meta}
    return {"jsonrpc": read.jsonrpc, "id": read.id, "method": read.method, "params": params}


PARSERS: dict[str, Parse] = {
    "last wins": keeping(first=False, folded=False),
    "first wins": keeping(first=True, folded=False),
    "any case, last wins": keeping(first=False, folded=True),
    "any case, first wins": keeping(first=True, folded=True),
}


class Sent(msgspec.Struct, frozen=True):
    """What went to a server for one call, and what it was authorised as."""

    exposed: str
    tool: str
    arguments: bytes
    wants_progress: bool
    messages: tuple[bytes, ...]


class Recording:
    """A link that writes each call as every kind of link would."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self._dialects: tuple[McpDialect, ...] = (LegacyDialect(), ModernDialect(ME))

    def send(self, inflight: InFlight) -> None:
        name = inflight.target.feature.name
        call = inflight.call
        params = [dialect.call_params(call, name, REQUEST_ID) for dialect in self._dialects]
        messages = tuple(jsonrpc.request(REQUEST_ID, "tools/call", each) for each in params)
        self.sent.append(Sent(call.name, name, bytes(call.arguments), call.wants_progress, messages))
        inflight.finish(DONE)

    def may_have_run(self, inflight: InFlight) -> bool:
        return True

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        pass


class Bench:
    """A hub with some tools that the caller may call and some that it may not."""

    def __init__(self) -> None:
        self.link = Recording()
        self.hub = Hub(Limits(), CallMetrics())
        self.mcp_methods = McpMethods(self.hub, ME)
        for server in ("files", "web"):
            server_queue = ServerQueue(ServerName(server), self.hub.limits)
            server_queue.attach(self.link)
            names = [name.partition(".")[2] for name in NAMES if name.startswith(server)]
            tools = tuple(Tool.of(ServerName(server), FeatureName(name), {}) for name in names)
            self.hub.open_server_queue(
                server_queue, ServerStatus(ServerName(server), "ready", tools=tools, is_settled=True)
            )

    def feed(self, body: bytes, claims: modern.RoutingHeaders | None = None) -> tuple[Sent, ...]:
        """Take a body, with what its headers claim, as the frontend does; what was sent because of it."""
        self.link.sent.clear()
        message = jsonrpc.decode(body)
        if isinstance(message, Request) and message.method == "tools/call":
            self._call(message, claims)
        return tuple(self.link.sent)

    def _call(self, request: Request, claims: modern.RoutingHeaders | None) -> None:
        meta = modern.check(request, claims)
        if isinstance(meta, modern.Rejection):
            return
        read = self.mcp_methods.read_call(request, LIMITED, EVERYTHING, meta)
        if not isinstance(read, JsonRpcReply):
            self.hub.start(read[0], Listener())


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    async def make() -> Bench:
        return Bench()

    with asyncio.Runner() as runner:
        yield runner.run(make())


def judge(body: bytes, sent: tuple[Sent, ...]) -> None:
    """Fail if anybody could read another call in what was sent, or in what came, than was authorised."""
    assert len(sent) <= 1
    for call in sent:
        assert call.exposed in GRANTED
        assert call.exposed.endswith(f".{call.tool}")
        for label, parse in PARSERS.items():
            for message in call.messages:
                judge_message(label, parse(message), parse(call.arguments), call)
            came = parse(body)
            assert (came["method"], came["params"]["name"]) == ("tools/call", call.exposed), label
        for message in call.messages:
            judge_message("typed", typed(message), call.arguments, call)
            judge_frame(message)


def judge_message(label: str, read: Any, arguments: Any, call: Sent) -> None:
    params = read["params"]
    assert set(read) == {"jsonrpc", "id", "method", "params"}, label
    assert (read["jsonrpc"], read["id"], read["method"]) == ("2.0", REQUEST_ID, "tools/call"), label
    assert params["name"] == call.tool, label
    assert params["arguments"] == arguments, label
    meta = params.get("_meta", {})
    token = meta.get("progressToken", meta.get("progresstoken"))
    assert token == (REQUEST_ID if call.wants_progress else None), label
    assert meta.get(modern.VERSION_KEY, meta.get(modern.VERSION_KEY.casefold())) in (None, modern.VERSION), label


def judge_frame(message: bytes) -> None:
    """One line on a pipe, for whatever somebody takes for a line."""
    framed = lines.frame(message)
    assert framed.endswith(b"\n")
    assert b"\n" not in framed[:-1]
    assert b"\r" not in framed
    assert json.loads(framed) == json.loads(message)
    pieces = _EXOTIC_LINES.split(framed[:-1].decode())
    assert len(pieces) == 1 or not any(map(is_message, pieces))


def is_message(text: str) -> bool:
    try:
        read = json.loads(text)
    except ValueError:
        return False
    return isinstance(read, dict) and bool({"method", "result", "error"} & {key.casefold() for key in read})


def test_tens_of_thousands_of_bodies_send_only_authorised_calls(bench: Bench) -> None:
    calls = 0
    for seed in range(CASES):
        body = any_body(Random(seed))
        try:
            sent = bench.feed(body)
            judge(body, sent)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {body!r}") from error
        calls += len(sent)
    # A generator whose bodies are all refused would prove nothing.
    assert calls > CASES // 20


@given(st.randoms(use_true_random=False))
@settings(max_examples=500 if IS_FULL else 100, deadline=None, derandomize=True)
def test_a_body_sends_only_authorised_calls(bench: Bench, random: Random) -> None:
    body = any_body(random)
    judge(body, bench.feed(body))


@given(st.binary(max_size=200))
@settings(max_examples=1000, deadline=None, derandomize=True)
def test_raw_bytes_send_nothing(bench: Bench, body: bytes) -> None:
    assert bench.feed(body) == ()


@given(st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from(["plain", "base64", "other base64", "none"]))
@settings(deadline=None, derandomize=True)
def test_a_modern_call_whose_header_names_another_tool_is_not_made(
    bench: Bench, said: str, meant: str, form: str
) -> None:
    meta = {modern.VERSION_KEY: modern.VERSION, modern.CAPABILITIES_KEY: {}}
    params = {"name": meant, "arguments": {}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    sentinel = f"=?base64?{base64.b64encode(said.encode()).decode()}?="
    value = {"plain": said, "base64": sentinel, "other base64": sentinel.replace("?=", "=?="), "none": None}[form]
    sent = bench.feed(body, modern.RoutingHeaders(modern.VERSION, "tools/call", value))
    agrees = said == meant and form in ("plain", "base64")
    assert [call.exposed for call in sent] == ([meant] if agrees and meant in GRANTED else [])


@given(st.text(max_size=300))
@settings(deadline=None, derandomize=True)
def test_any_name_survives_the_header(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    encoded = modern.encode_header(name)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert modern.decode_header(encoded) == name


BODY = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%s}}'


@pytest.mark.parametrize(
    "params",
    [
        '"name":"files.delete","name":"files.read"',
        '"name":"files.read","name":"files.delete"',
        '"name":"files.read","Name":"files.delete"',
        '"Name":"files.delete","name":"files.read"',
        '"name":"files.read","\\u006eame":"files.delete"',
        '"name":"files.read","NAME":"files.delete"',
        '"name":"files.read","argument\u017f":{"path":"/etc"}',
        '"name":"files.read","Arguments":{"path":"/etc"}',
        '"name":"files.read","_Meta":{"progressToken":1}',
    ],
)
def test_a_protocol_member_that_is_doubled_or_misspelt_calls_nothing(bench: Bench, params: str) -> None:
    assert bench.feed((BODY % params).encode()) == ()


@pytest.mark.parametrize("key", ["ProgressToken", "PROGRESSTOKEN", "progre\u017fsToken"])
def test_a_misspelt_progress_token_does_not_claim_the_progress_of_another_call(bench: Bench, key: str) -> None:
    body = (BODY % f'"name":"files.read","_meta":{{"{key}":3}}').encode()
    for call in bench.feed(body):
        for message in call.messages:
            assert key.encode() not in message


def test_line_breaks_between_tokens_stay_one_message(bench: Bench) -> None:
    inner = '{"a":"x"\n,\r\n"b":\n{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"delete"}}\n}'
    (call,) = bench.feed((BODY % f'"name":"files.read",\n"arguments":{inner}').encode())
    for message in call.messages:
        judge_frame(message)
