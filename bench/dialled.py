"""The cast of the relay's benches: a hub with a relay, and processes of servers that dial in. See `bench.processes`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import quote

import msgspec

from bench.processes import PORT_LOGGED, NotStarted, Program
from bench.tokens import RELAY_KEY

CONFIG = f"""
[hub]
state = "state"

[relay]
key = "{RELAY_KEY}"
compatible_agents = "any"
"""

DIALLED_SECONDS = 120.0
"""How long a process may take to have all its servers listed."""

LISTED_SECONDS = 30.0
POLL_SECONDS = 0.1

LOOK_SECONDS = 0.5
"""How often the hub is asked for its statistics: of ten thousand servers they are long."""

ANSWER_SECONDS = 30.0

READY = re.compile(r"^READY (\d+)$", re.MULTILINE)


class Connections(msgspec.Struct):
    """What is read of the hub's own statistics."""

    mcp_server_connections: int
    total_tools: int


class Statistics(msgspec.Struct):
    """The part of them that holds it."""

    connections: Connections


class Health(msgspec.Struct):
    """An answer with them."""

    result: Statistics


def start_relay(held: ExitStack, folder: Path) -> tuple[Program, int]:
    """Start a hub that has nothing but a relay; `folder` holds its configuration and what it keeps."""
    folder.mkdir(exist_ok=True)
    config = folder / "isthmus.toml"
    config.write_text(CONFIG)
    serve = ("serve", "--config", str(config), "--host", "127.0.0.1", "--port", "0")
    hub = held.enter_context(Program("isthmus", *serve))
    return hub, hub.port(PORT_LOGGED)


def start_diallers(held: ExitStack, crowds: Sequence[str], *, is_listening: bool = False) -> Program:
    """Start a process of servers that dial in; see `bench.diallers` for how a crowd is written."""
    diallers = held.enter_context(Program("bench.diallers", *crowds, *(["--listen"] if is_listening else [])))
    wait_until_dialled(diallers)
    return diallers


def wait_until_dialled(diallers: Program) -> None:
    """Return once all of its servers were listed. Raises `NotStarted`."""
    give_up = monotonic() + DIALLED_SECONDS
    while READY.search(diallers.output()) is None:
        if monotonic() > give_up or not diallers.is_running():
            raise NotStarted(f"not all servers could dial in:\n{diallers.output()[-2000:]}")
        sleep(POLL_SECONDS)


def statistics(port: int) -> Connections:
    """What a hub says of itself."""
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", f"/mcp_endpoint/health?key={quote(RELAY_KEY)}")
        return msgspec.json.decode(connection.getresponse().read(), type=Health).result.connections
    except msgspec.MsgspecError as error:
        raise NotStarted(f"the hub gives no statistics: {error}") from error
    finally:
        connection.close()


def wait_until_listed(port: int, servers: int, tools: int) -> None:
    """Return once a hub shows so many servers and tools. Raises `NotStarted`."""
    give_up = monotonic() + LISTED_SECONDS
    while (found := statistics(port)).mcp_server_connections != servers or found.total_tools != tools:
        if monotonic() > give_up:
            raise NotStarted(f"the hub shows {found}, not {servers} servers with {tools} tools")
        sleep(LOOK_SECONDS)
