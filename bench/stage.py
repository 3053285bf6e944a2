"""The cast of one bench run: servers, relay and hub as processes, and what each scenario sends to whom.

Called by `python -m bench`. A scenario that the hub serves differs from another only in the tool it names
and in how it asks; all of them go through the same hub process, with a caller's key and permissions on and without an
audit log, as the relay that it is compared with keeps none. One goes through a second hub that keeps it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from time import monotonic, sleep

import msgspec

from bench.load import Check, complaint_about
from bench.messages import CLIENT, VERSIONS, Ask, Era, asks, call_body, call_headers
from bench.processes import PORT_LOGGED, PORT_PRINTED, NotStarted, Program

READY_SECONDS = 10.0
"""Time for the hub to reach its servers; on loopback it needs a fraction of a second."""

HUBS = {"hub": "off", "audited": "batched"}
"""The hubs there are, by what their audit is set to."""

KEY = "a-bench-key-that-protects-nothing"
HUB_MODULE = "isthmus"
HUB_CONFIG = """
[hub]
state = "state"
audit = "{audit}"

[servers.modern]
url = "http://127.0.0.1:{modern}/mcp"

[servers.legacy]
url = "http://127.0.0.1:{legacy}/mcp"

[servers.pipe]
command = {python}
args = ["-m", "bench.direct", "--carrier", "stdio"]
cwd = {folder}

[servers.events]
url = "http://127.0.0.1:{sse}/sse"
type = "sse"

[servers.socket]
url = "ws://127.0.0.1:{socket}/"
type = "ws"

[servers.plain]
rpc = "http://127.0.0.1:{legacy}/rpc"

[servers.plain.tools.echo]
description = "Return the text it was given."

[callers.bench]
key = "env:BENCH_KEY"
allow = ["modern.*", "legacy.echo", "pipe.*", "events.*", "socket.*", "plain.*", "builtin.*"]
deny = ["modern.forbidden"]
"""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table: who is measured, and how it is asked for what."""

    name: str
    measured: str
    tool: str
    era: Era = "modern"

    @property
    def needs_hub(self) -> bool:
        """Say whether the hub must be running for it."""
        return self.measured in HUBS


SCENARIOS = (
    Scenario("direct", "direct", "echo"),
    Scenario("relay", "relay", "echo"),
    Scenario("hub", "hub", "modern.echo"),
    Scenario("hub, stdio server", "hub", "pipe.echo"),
    Scenario("hub, legacy server", "hub", "legacy.echo"),
    Scenario("hub, legacy caller", "hub", "modern.echo", "legacy"),
    Scenario("hub, SSE server", "hub", "events.echo"),
    Scenario("hub, socket server", "hub", "socket.echo"),
    Scenario("hub, rpc server", "hub", "plain.echo"),
    Scenario("hub, audit log", "audited", "modern.echo"),
)
"""All rows, in the order of the table; `direct` and `relay` are what the others are compared with."""


@dataclass(frozen=True, slots=True)
class Target:
    """A scenario made ready: the process to watch, its port, and each connection's calls."""

    scenario: Scenario
    program: Program
    port: int
    asks_of: Sequence[Sequence[Ask]]
    check: Check = complaint_about


def set_stage(
    held: ExitStack, scenarios: Sequence[Scenario], *, connections: int, asks_each: int, text_bytes: int = 0
) -> list[Target]:
    """Start what the scenarios need and return them ready to be driven; `held` ends the processes.

    Raises:
        NotStarted: a program did not start, or the hub did not reach its servers.
    """
    hubs = {scenario.measured for scenario in scenarios if scenario.needs_hub}
    programs = start_programs(held, [name for name in HUBS if name in hubs])
    return [ready(scenario, *programs[scenario.measured], connections, asks_each, text_bytes) for scenario in scenarios]


def start_programs(held: ExitStack, hubs: Sequence[str]) -> dict[str, tuple[Program, int]]:
    """Start server, relay and these hubs; return each with its port."""
    direct = held.enter_context(Program("bench.direct"))
    direct_port = direct.port(PORT_PRINTED)
    relay = held.enter_context(Program("bench.relay", str(direct_port)))
    programs = {"direct": (direct, direct_port), "relay": (relay, relay.port(PORT_PRINTED))}
    for name in hubs:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        programs[name] = start_hub(held, direct_port, folder, HUBS[name])
    return programs


def start_hub(
    held: ExitStack,
    modern_port: int,
    folder: Path,
    audit: str,
    checkout: Path | None = None,
    module: str = HUB_MODULE,
    tables: str = "",
) -> tuple[Program, int]:
    """Start the hub on a configuration of its own, which is written to `folder`, as is what it keeps.

    It is the hub of another `checkout`, if one is given; `module` is the program that runs it; `tables` are added to
    its configuration.
    """
    ports = {"modern": modern_port, **{name: start_server(held, name) for name in ("legacy", "sse", "socket")}}
    config = folder / "isthmus.toml"
    config.write_text(hub_config(ports, audit) + tables)
    serve = ("serve", "--config", str(config), "--host", "127.0.0.1", "--port", "0")
    env = {"BENCH_KEY": KEY, "BENCH_STEPS": str(folder / "steps.json")}
    if checkout is not None:
        env["PYTHONPATH"] = os.pathsep.join((str(checkout / "src"), str(checkout)))
    hub = held.enter_context(Program(module, *serve, env=env))
    return hub, hub.port(PORT_LOGGED, besides=tuple(ports.values()))


def start_server(held: ExitStack, name: str) -> int:
    """Start a legacy server, over a carrier of its own if it is named after one; return its port."""
    carrier = () if name == "legacy" else ("--carrier", name)
    return held.enter_context(Program("bench.direct", "--era", "legacy", *carrier)).port(PORT_PRINTED)


def hub_config(ports: Mapping[str, int], audit: str) -> str:
    """Return the hub's configuration file; JSON strings are TOML strings too."""
    quoted = {"python": sys.executable, "folder": str(Path(__file__).parent.parent)}
    texts = {key: msgspec.json.encode(value).decode() for key, value in quoted.items()}
    return HUB_CONFIG.format(**ports, **texts, audit=audit)


def ready(
    scenario: Scenario, program: Program, port: int, connections: int, asks_each: int, text_bytes: int = 0
) -> Target:
    """Open a session where the scenario needs one, and return once a call succeeds."""
    extra = {"Authorization": f"Bearer {KEY}"} if scenario.needs_hub else {}
    if scenario.era == "legacy":
        extra |= open_session(port, extra)
    ask = Ask(call_body(1, scenario.tool, "ready?", scenario.era), 1, "ready?")
    wait_until_served(scenario, program, port, ask, "/mcp", call_headers(scenario.tool, scenario.era, extra))
    asks_of = [
        asks(
            "/mcp",
            scenario.tool,
            scenario.era,
            extra,
            first_id=1 + number * asks_each,
            count=asks_each,
            text_bytes=text_bytes,
        )
        for number in range(connections)
    ]
    return Target(scenario, program, port, asks_of)


def open_session(port: int, extra: Mapping[str, str], path: str = "/mcp") -> dict[str, str]:
    """Initialise as a legacy caller and return the session header, if the peer keeps sessions."""
    params = {"protocolVersion": VERSIONS["legacy"], "capabilities": {}, "clientInfo": CLIENT}
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    reply, _ = post(port, msgspec.json.encode(hello), call_headers("", "legacy", extra), path)
    session = reply.getheader("Mcp-Session-Id")
    header = {"Mcp-Session-Id": session} if session else {}
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    post(port, msgspec.json.encode(done), call_headers("", "legacy", {**extra, **header}), path)
    return header


def wait_until_served(
    scenario: Scenario,
    program: Program,
    port: int,
    ask: Ask,
    path: str,
    headers: Mapping[str, str],
    check: Check = complaint_about,
) -> None:
    """Call until the answer is right; a hub that has just started may still be dialling. The ask is a mere body."""
    give_up = monotonic() + READY_SECONDS
    while complaint := check(post(port, ask.wire, headers, path)[1], ask):
        if monotonic() > give_up:
            raise NotStarted(f"{scenario.name!r} is not served: {complaint}\n{program.output()[-2000:]}")
        sleep(0.1)


def post(port: int, body: bytes, headers: Mapping[str, str], path: str = "/mcp") -> tuple[HTTPResponse, bytes]:
    """Send one request outside the measured rounds and return the reply and its body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=READY_SECONDS)
    try:
        connection.request("POST", path, body, dict(headers))
        reply = connection.getresponse()
        return reply, reply.read()
    finally:
        connection.close()
