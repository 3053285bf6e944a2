"""`python -m bench.ways`: the interpreter steps of one call on every way through a live hub.

Each frontend calls the same echo, and the hub calls it over each carrier. Calls are made one at a time, so that no two
of them share work. `bench.gate` compares the steps with its baseline. The audit log is off: when its records are
encoded depends on the clock, and `bench.scenarios` has a scenario for them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import grpc
import msgspec
from google.protobuf import json_format

from bench import agents
from bench.compare import read_when_written
from bench.counted_hub import SHARED
from bench.devices import HELLO, READY, line_of
from bench.dialled import start_diallers
from bench.diallers import agent_name
from bench.frames import TEXT, FrameReader, frame, request
from bench.messages import Era, call_body, call_headers
from bench.processes import PORT_LOGGED, PORT_PRINTED, NotStarted, Program
from bench.stage import KEY, hub_config, open_session, start_server
from bench.tokens import RELAY_KEY
from isthmus.wire.a2a.protobuf import CLASSES, METHODS, SERVICE

CALLS = 16
COUNTS = 5
"""Counts of each way, of which the least of each package is taken: timers that come due only add to a count."""

WARM_UPS = 8
WAIT_SECONDS = 30.0
HOST = "127.0.0.1"
BEARER = {"Authorization": f"Bearer {KEY}"}

TABLES = """
[servers.functions]
python = "echo_functions"
path = {folder}

[servers.agent]
agent = "http://127.0.0.1:{agent}"

[a2a]
grpc_port = 0

[relay]
key = "{relay_key}"
compatible_agents = "any"
"""

FUNCTIONS = '''
async def echo(text: str) -> str:
    """Return the text it was given."""
    return text
'''

Call = Callable[[str], bytes]
"""Has the echo return a text; the answer in whatever form it came."""


class Way(NamedTuple):
    """One way of a call, and the process whose steps count."""

    name: str
    call: Call
    signal: Callable[[int], object]
    report: Path


def count_ways() -> dict[str, float]:
    """Return the steps of one call on each way.

    Raises:
        NotStarted: a program did not start, or a way does not lead to the echo.
    """
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        return {way.name: steps_of(way) for way in open_ways(held, folder)}


def steps_of(way: Way) -> float:
    """Count the calls of one way."""
    give_up = time.monotonic() + WAIT_SECONDS
    while b"ready?" not in (answer := way.call("ready?")):  # the hub may not have reached a server yet
        if time.monotonic() > give_up:
            raise NotStarted(f"no way over {way.name!r}: {answer[:500]!r}")
        time.sleep(0.1)
    for _ in range(WARM_UPS):
        echo(way)
    counts = [count_calls(way) for _ in range(COUNTS)]
    return round(sum(min(count.get(package, 0.0) for count in counts) for package in counts[0]), 1)


def count_calls(way: Way) -> dict[str, float]:
    """Return the steps of one call by package."""
    way.signal(signal.SIGUSR1)
    for _ in range(1 + CALLS):  # the signal has arrived with the first at the latest
        echo(way)
    way.signal(signal.SIGUSR2)
    echo(way)
    counted = read_when_written(way.report)
    way.report.unlink()
    return {name: steps / counted.calls for name, steps in counted.packages.items() if name != SHARED}


def echo(way: Way) -> None:
    """Call once, and check the answer."""
    text = f"echo {uuid4().hex}"
    if text.encode() not in (answer := way.call(text)):
        raise NotStarted(f"a call over {way.name!r} was answered with {answer[:500]!r}")


def open_ways(held: ExitStack, folder: Path) -> Iterator[Way]:
    """Start everything, and yield one way after the other."""
    (folder / "echo_functions.py").write_text(FUNCTIONS)
    ports = {"modern": held.enter_context(Program("bench.direct")).port(PORT_PRINTED)}
    ports |= {name: start_server(held, name) for name in ("legacy", "sse", "socket")}
    (folder / "agent.toml").write_text('[hub]\nstate = "agent"\naudit = "off"\n')
    serve = ("serve", "--host", HOST, "--port", "0", "--config")
    agent = held.enter_context(Program("isthmus", *serve, str(folder / "agent.toml")))
    place = msgspec.json.encode(str(folder)).decode()  # a JSON string is a TOML string
    tables = TABLES.format(agent=agent.port(PORT_LOGGED), relay_key=RELAY_KEY, folder=place)
    config = folder / "isthmus.toml"
    config.write_text(hub_config(ports, "off").replace('"builtin.*"', '"builtin.*", "functions.*", "agent.*"') + tables)
    report = folder / "steps.json"
    env = {"BENCH_KEY": KEY, "BENCH_STEPS": str(report)}
    hub = held.enter_context(Program("bench.counted_hub", *serve, str(config), env=env))
    port = hub.port(PORT_LOGGED, besides=tuple(ports.values()))
    start_diallers(held, [f"{port}:0:1"])
    http = held.enter_context(closing_connection(port))

    def way(name: str, call: Call) -> Way:
        return Way(name, call, hub.signal, report)

    for carrier, tool in CARRIERS.items():
        yield way(f"to {carrier}", mcp_call(http, tool, "modern", {}))
    session = open_session(port, BEARER)
    yield way("from MCP, legacy", mcp_call(http, "modern.echo", "legacy", session))
    yield way("from MCP, HTTP+SSE", held.enter_context(sse_call(port)))
    yield way("from A2A, JSON-RPC", agent_call(http, "/a2a"))
    yield way("from A2A, HTTP+JSON", agent_call(http, "/a2a/rest/message:send"))
    yield way("from A2A, gRPC", held.enter_context(grpc_call(http)))
    yield way("from REST", rest_call(http))
    yield way("from a device to dial-in", held.enter_context(device_call(port)))
    yield held.enter_context(stdio_way(config, folder))
    yield held.enter_context(library_way(f"http://{HOST}:{ports['modern']}/mcp", folder))


CARRIERS: Mapping[str, str] = {
    "Streamable HTTP": "modern.echo",
    "Streamable HTTP, legacy": "legacy.echo",
    "HTTP+SSE": "events.echo",
    "WebSocket": "socket.echo",
    "stdio": "pipe.echo",
    "plain JSON-RPC": "plain.echo",
    "an A2A agent": "agent.builtin.echo",
    "a Python function": "functions.echo",
}
"""The carriers, and the tool that is called over each."""


@contextmanager
def closing_connection(port: int) -> Iterator[HTTPConnection]:
    """A connection that is closed at the end."""
    connection = HTTPConnection(HOST, port, timeout=WAIT_SECONDS)
    try:
        yield connection
    finally:
        connection.close()


def post(http: HTTPConnection, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Send one request, and return the body of the answer."""
    http.request("POST", path, body, dict(headers))
    return http.getresponse().read()


def mcp_call(http: HTTPConnection, tool: str, era: Era, extra: Mapping[str, str]) -> Call:
    """Calls over Streamable HTTP."""
    headers = call_headers(tool, era, {**BEARER, **extra})
    return lambda text: post(http, "/mcp", call_body(7, tool, text, era), headers)


@contextmanager
def sse_call(port: int) -> Iterator[Call]:
    """Calls over HTTP+SSE: requests by POST, all answers on one stream."""
    with closing_connection(port) as stream, closing_connection(port) as http:
        stream.request("GET", "/sse", headers={**BEARER, "Accept": "text/event-stream"})
        events = stream.getresponse()
        path = next_data(events).decode()
        headers = call_headers("", "legacy", BEARER)
        post(http, path, HELLO, headers)
        next_data(events)
        post(http, path, READY, headers)

        def call(text: str) -> bytes:
            post(http, path, call_body(7, "modern.echo", text, "legacy"), headers)
            return next_data(events)

        yield call


def next_data(events: HTTPResponse) -> bytes:
    """Return the data of the next event."""
    while not (line := events.readline()).startswith(b"data:"):
        if not line:
            raise NotStarted("the stream of events ended")
    return line.removeprefix(b"data:").strip()


def message(text: str) -> dict[str, object]:
    """A message that has the echo called."""
    part = {"data": {"tool": "modern.echo", "arguments": {"text": text}}}
    return {"message": {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [part]}}


def agent_call(http: HTTPConnection, path: str) -> Call:
    """Messages to the agent, each of which waits for the end of its task."""

    def call(text: str) -> bytes:
        params = message(text)
        body = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": params} if path == "/a2a" else params
        return post(http, path, msgspec.json.encode(body), agents.headers())

    return call


@contextmanager
def grpc_call(http: HTTPConnection) -> Iterator[Call]:
    """The same over gRPC, at the address that the card names."""
    http.request("GET", "/.well-known/agent-card.json")
    card = msgspec.json.decode(http.getresponse().read())
    (address,) = (each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC")
    given, _ = (CLASSES[name] for name in METHODS["SendMessage"])
    metadata = (("authorization", f"Bearer {KEY}"), ("a2a-version", "1.0"))
    with grpc.insecure_channel(address) as channel:
        made = channel.unary_unary(f"/{SERVICE}/SendMessage", lambda sent: sent.SerializeToString(), bytes)
        yield lambda text: made(json_format.ParseDict(message(text), given()), metadata=metadata, timeout=WAIT_SECONDS)


def rest_call(http: HTTPConnection) -> Call:
    """Calls over plain HTTP and JSON."""
    headers = {**BEARER, "Content-Type": "application/json"}
    return lambda text: post(http, "/v1/tools/modern.echo", msgspec.json.encode({"text": text}), headers)


@contextmanager
def device_call(port: int) -> Iterator[Call]:
    """Calls of a relay device, to a server that has dialled in."""
    with socket.create_connection((HOST, port), timeout=WAIT_SECONDS) as connected:
        connected.sendall(request(*line_of(port, agent_name(0))))
        head = b""
        while b"\r\n\r\n" not in head:
            head += connected.recv(1)
        frames = FrameReader()

        def send(text: bytes) -> None:
            connected.sendall(frame(TEXT, text, is_client=True))

        def receive() -> bytes:
            while not (received := frames.feed(connected.recv(65_536))):
                pass
            return received[0][1]

        send(HELLO)
        receive()
        send(READY)

        def call(text: str) -> bytes:
            send(call_body(7, "echo", text, "legacy"))
            return receive()

        yield call


@contextmanager
def piped(arguments: Sequence[str], folder: Path, name: str) -> Iterator[tuple[Callable[[bytes], bytes], Way]]:
    """A counted process that answers each line with a line; its way has yet to call something."""
    report = folder / f"{name}.json"
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "BENCH_STEPS": str(report), "BENCH_KEY": KEY, "ISTHMUS_STATE": str(folder / name)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    sink, source = process.stdin, process.stdout

    def ask(line: bytes) -> bytes:
        sink.write(line + b"\n")
        sink.flush()
        return source.readline()

    try:
        yield ask, Way(name, ask_nothing, process.send_signal, report)
    finally:
        process.kill()
        process.wait()
        sink.close()
        source.close()


def ask_nothing(_: str) -> bytes:
    """Replaced by the ways of `piped`."""
    raise AssertionError("no call")


@contextmanager
def stdio_way(config: Path, folder: Path) -> Iterator[Way]:
    """Calls of a caller that has started the hub."""
    with piped(["bench.counted_hub", "stdio", "--config", str(config)], folder, "from MCP, stdio") as (ask, way):
        ask(HELLO)
        yield way._replace(call=lambda text: ask(call_body(7, "modern.echo", text, "legacy")))


@contextmanager
def library_way(url: str, folder: Path) -> Iterator[Way]:
    """Calls of a program that has the hub inside, from the hub's own loop."""
    with piped(["bench.counted_library", url], folder, "from a program") as (ask, way):
        yield way._replace(call=lambda text: ask(text.encode()))


def main() -> int:
    """Print the steps of each way."""
    for name, steps in count_ways().items():
        print(f"{name:<28}{steps:>10,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
