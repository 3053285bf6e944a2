"""What a call costs with 1 to 1,000 servers, and a stream of 10 to 10,000 events: two parts of `bench.peers`.

Only the hub is measured in them, beside the direct call and the bare relay. All servers are one echo process: the hub
keeps a link to each, and cannot tell. A stream is the answer to one call: events of progress, then the result. The
relay does not pass events on one by one; it hands over the whole answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.__main__ import ASKS_EACH, WARM_UP_SECONDS, Round, summary, take_turn
from bench.load import Check, complaint_about_event
from bench.messages import Ask, asks, call_body, call_headers, http_request, modern_meta
from bench.peers_report import KIB, Figures, Measured
from bench.processes import PORT_LOGGED, PORT_PRINTED, Program
from bench.stage import Scenario, Target, wait_until_served

CONNECTIONS = 16
SERVERS = (1, 10, 100, 1_000)
EVENTS = (10, 100, 1_000, 10_000)
ROWS = ("direct", "relay", "hub")


def with_servers(rounds: int, seconds: float) -> list[Measured]:
    """Calls that go to all servers in turn, over 16 connections."""
    settings: list[Measured] = []
    for count in SERVERS:
        tools = [f"s{number}.echo" for number in range(count)]
        with ExitStack() as held:
            programs = start(held, "http", [tool.partition(".")[0] for tool in tools])
            for tool in tools:
                wait(programs["hub"], tool, "ready?")
            asked = {name: calls(tools if name == "hub" else ["echo"]) for name in ROWS}
            figures = measure(programs, asked, complaint_about_event, rounds, seconds)
        settings.append(Measured(CONNECTIONS, 0, figures, servers=count))
    return settings


def with_events(rounds: int, seconds: float) -> list[Measured]:
    """Streams over one connection, one after the other."""
    settings: list[Measured] = []
    with ExitStack() as held:
        programs = start(held, "stream", ["s0"])
        wait(programs["hub"], "s0.echo", "0")
        for count in EVENTS:
            asked = {name: [[stream(name, id, count) for id in range(1, 9)]] for name in ROWS}
            figures = measure(programs, asked, complaint_about_stream, rounds, seconds)
            settings.append(Measured(1, 0, figures, events=count))
    return settings


def start(held: ExitStack, carrier: str, servers: Sequence[str]) -> dict[str, tuple[Program, int]]:
    """Start the server, the relay, and a hub that takes the server for all of these."""
    direct = held.enter_context(Program("bench.direct", "--carrier", carrier))
    port = direct.port(PORT_PRINTED)
    relay = held.enter_context(Program("bench.relay", str(port)))
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
    entries = [f'[servers.{server}]\nurl = "http://127.0.0.1:{port}/mcp"\n' for server in servers]
    config = folder / "isthmus.toml"
    config.write_text("".join(['[hub]\nstate = "state"\n', *entries]))
    hub = held.enter_context(Program("isthmus", "serve", "--config", str(config), "--host", "127.0.0.1", "--port", "0"))
    hub_port = hub.port(PORT_LOGGED, besides=(port,))
    return {"direct": (direct, port), "relay": (relay, relay.port(PORT_PRINTED)), "hub": (hub, hub_port)}


def wait(hub: tuple[Program, int], tool: str, text: str) -> None:
    """Return once the hub has reached the server of a tool."""
    ask = Ask(call_body(1, tool, text, "modern"), 1, text)
    headers = call_headers(tool, "modern", {})
    wait_until_served(Scenario("hub", "hub", tool), *hub, ask, "/mcp", headers, complaint_about_event)


def calls(tools: Sequence[str]) -> list[list[Ask]]:
    """Return what each connection asks; all connections together ask every tool."""
    made: list[list[Ask]] = []
    for number in range(CONNECTIONS):
        first = number * ASKS_EACH
        ids = range(first, first + ASKS_EACH)
        made.append([asks("/mcp", tools[id % len(tools)], "modern", {}, first_id=id, count=1)[0] for id in ids])
    return made


def stream(row: str, id: int, count: int) -> Ask:
    """Return a call that is answered by so many events."""
    tool, text = "s0.echo" if row == "hub" else "echo", f"{count}"
    meta = {**modern_meta(), "progressToken": 7}
    params = {"name": tool, "arguments": {"text": text}, "_meta": meta}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    return Ask(http_request("/mcp", call_headers(tool, "modern", {}), body), id, text)


def complaint_about_stream(body: bytes, ask: Ask) -> str | None:
    """Return None when all events and the right answer came, or what is wrong."""
    events = body.count(b'"notifications/progress"')
    return f"{events} of {ask.text} events came" if events != int(ask.text) else complaint_about_event(body, ask)


def measure(
    programs: Mapping[str, tuple[Program, int]],
    asked: Mapping[str, Sequence[Sequence[Ask]]],
    check: Check,
    rounds: int,
    seconds: float,
) -> dict[str, Figures]:
    """Let the rows take turns."""
    targets = {
        name: Target(Scenario(name, name, ""), program, port, asked[name], check)
        for name, (program, port) in programs.items()
    }
    taken: dict[str, list[Round]] = {name: [] for name in targets}
    for target in targets.values():
        take_turn(target, min(seconds, WARM_UP_SECONDS))
    for _ in range(rounds):
        for name, target in targets.items():
            taken[name].append(take_turn(target, seconds))
    return figures_of(taken, {name: program for name, (program, _) in programs.items()})


def figures_of(taken: Mapping[str, Sequence[Round]], programs: Mapping[str, Program]) -> dict[str, Figures]:
    """Return the medians of all rows."""
    return {
        row.scenario: Figures(
            row.cpu_microseconds,
            row.calls_per_second,
            row.p50_milliseconds,
            row.p99_milliseconds,
            row.times_relay,
            programs[row.scenario].memory_bytes() / KIB / KIB,
        )
        for row in summary(taken)
    }


GROWTH: Mapping[str, Callable[[int, float], list[Measured]]] = {"servers": with_servers, "events": with_events}
"""The parts by name."""
