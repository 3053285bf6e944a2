"""Run the hub as its users do, as a process of its own, and speak to it over its socket.

`serving` starts `isthmus serve` on a free port with the servers and callers a test names; leaving the block ends
the process and fails the test if it did not end by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from tests.fork_server import ForkedProcess, forked

CHECKOUT = Path(__file__).resolve().parents[1]
START_SECONDS = 60.0
END_SECONDS = 25.0
"""Less than the hub's patience with calls that still run: one that ends by running out of it has found a hang."""
PATIENT = {"listing_seconds": 30.0}
"""Limits for callers that list once and at once: on a busy machine a server takes more than a second to start."""
UNBRAKED = {"wrong_keys_per_minute": 1_000_000}
"""Limits of every hub whose test says nothing else: who asks again and again whether a key is good yet would be told
429 instead of 401 on a busy machine."""
ANY_AGENT = {"compatible_agents": "any"}
"""`[relay]` of every hub whose test says nothing else: tests make up agents."""
TRUSTED = ssl.create_default_context()
"""For every HTTP client here: each would otherwise read all certificate authorities by itself, which takes it 20 ms."""
OF_A_USER = {"HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "ISTHMUS_DEBUGGABLE"}
NODES = int(os.environ.get("TEST_NODES", "1"))
"""Nodes of every hub that `serving` starts."""
BALANCER = "the load balancer"
CARD_LEADS_HERE = {"public_url": BALANCER} if NODES > 1 else {}
"""`[hub]` for clients that use the addresses on a card: those of several nodes lead to their load balancer."""
MODERN = "2026-07-28"
_URL = re.compile(r"http://[^/\s\"]+:(\d+)")

META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


Process = asyncio.subprocess.Process | ForkedProcess


@dataclass(slots=True)
class HubProcess:
    """A running hub and what it said on standard error so far."""

    process: Process
    port: int
    said: list[str] = field(default_factory=list)
    is_killed: bool = False
    folder: Path = Path()
    """Where it runs."""

    @property
    def url(self) -> str:
        """Where all servers are."""
        return f"http://127.0.0.1:{self.port}/mcp"

    def url_of(self, server: str) -> str:
        """Where one server is, under its own names."""
        return f"{self.url}/{server}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    @property
    def config(self) -> Path:
        """Its file, if `write_config` wrote it."""
        return self.folder / "isthmus.json"

    @property
    def each(self) -> list[HubProcess]:
        """This hub, or the nodes of this cluster."""
        return [self]

    def terminate(self) -> None:
        """Ask it to end."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.is_killed = True
        self.process.send_signal(signal.SIGKILL)


def isthmus(*words: str, module: str = "isthmus") -> list[str]:
    """The words that run the command line of this checkout."""
    return [sys.executable, "-m", module, *words]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the checkout importable and nothing of the user's own configuration."""
    paths = os.pathsep.join([str(CHECKOUT / "src"), os.environ.get("PYTHONPATH", "")])
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ISTHMUS_")}
    # Tests count the hub's descriptors as the user that runs them.
    return {**clean, "PYTHONPATH": paths, "ISTHMUS_DEBUGGABLE": "1", **(extra or {})}


NODE_TABLES: dict[Path, dict[Path, dict[str, Any]]] = {}
"""By the folder of each running cluster: the folders of its nodes, and the tables that each has besides the test's."""

PLACED: set[Path] = set()
"""The folders of clusters that run each program once."""

NODE_PORTS: dict[int, list[int]] = {}
"""The ports of nodes, by that of their load balancer."""


def node_urls(url: str) -> list[str]:
    """The same address at each node, if it is that of a load balancer."""
    port = urlsplit(url).port or 0
    return [url.replace(f":{port}/", f":{each}/", 1) for each in NODE_PORTS.get(port, [port])]


def write_config(folder: Path, servers: Mapping[str, Any], **tables: Any) -> Path:
    """Write an `isthmus.json` with these servers and whatever other tables the test needs; its state is beside it.

    If a cluster runs in this folder, each node has such a file.
    """
    if folder in PLACED:
        servers = {
            name: {"placement": "one", **entry} if isinstance(entry, dict) and "command" in entry else entry
            for name, entry in servers.items()
        }
    if "relay" in tables:
        tables["relay"] = {**ANY_AGENT, **tables["relay"]}
    tables["limits"] = {**UNBRAKED, **tables.get("limits", {})}
    for own, added in NODE_TABLES.get(folder, {folder: {}}).items():
        hub = {"state": str(own / "state"), **added.get("hub", {}), **tables.get("hub", {})}
        (own / "isthmus.json").write_text(json.dumps({"servers": servers, **tables, **added, "hub": hub}))
    return folder / "isthmus.json"


def edit_config(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the file of a hub, or those of all nodes of its cluster."""
    for own in NODE_TABLES.get(folder, {folder: {}}):
        content = json.loads((own / "isthmus.json").read_text())
        edit(content)
        (own / "isthmus.json").write_text(json.dumps(content))


def stdio(command: Sequence[str], **more: Any) -> dict[str, Any]:
    """A server entry for a command."""
    return {"command": command[0], "args": list(command[1:]), **more}


@asynccontextmanager
async def serving(
    folder: Path, servers: Mapping[str, Any] | None = None, *, env: Mapping[str, str] | None = None, **tables: Any
) -> AsyncIterator[HubProcess]:
    """Run a hub with these servers; `tables` are further tables of its configuration (`callers`, `limits`, …).

    With `TEST_NODES` in the environment it is a cluster of so many nodes, and each request goes to a random one.
    """
    if NODES > 1 and env is None and "cluster" not in tables:
        from tests.cluster_hubs.balanced import serving_nodes  # noqa: PLC0415 - it uses this module

        # Tests look at what the only process of a server did.
        async with serving_nodes(folder, servers, nodes=NODES, runs_programs_once=True, **tables) as hub:
            yield hub
        return
    config = write_config(folder, servers or {}, **tables)
    async with started(folder, "--config", str(config), env=env) as hub:
        yield hub


@asynccontextmanager
async def started(
    folder: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    module: str = "isthmus",
    command: str = "serve",
    said: list[str] | None = None,
) -> AsyncIterator[HubProcess]:
    """Run a hub in a folder; without further options it looks for its file in the usual places.

    `command` is another one that serves: `record` or `replay`. A hub with an environment of its own, beyond a user's
    folders, is started as users start it; others are forked, which is quicker. What it says is added to `said`.
    """
    process: Process
    words = (command, *options, "--port", "0")
    if module == "isthmus" and set(env or ()) <= OF_A_USER:
        process = await forked(words, environment(env), folder)
    else:
        process = await asyncio.create_subprocess_exec(
            *isthmus(*words, module=module),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment(env),
            cwd=folder,
            limit=1 << 20,
        )
    said = [] if said is None else said
    try:
        port = await asyncio.wait_for(_listening_port(process, said), START_SECONDS)
        reader = asyncio.ensure_future(_keep_reading(process, said))
        yield (hub := HubProcess(process, port, said, folder=folder))
    finally:
        await _end(process)
    await reader
    assert process.returncode == 0 or hub.is_killed, f"the hub ended with {process.returncode}:\n" + "".join(said[-40:])


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


async def run(*words: str, folder: Path, env: Mapping[str, str] | None = None, given: bytes = b"") -> Ended:
    """Run a command of the hub to its end, in a process that is forked: quicker than to start one."""
    process = await forked(words, environment(env), folder, given=given)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            out, err, code = await asyncio.gather(process.stdout.read(), process.stderr.read(), process.wait())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return Ended(code, out.decode(), err.decode())


async def _listening_port(process: Process, said: list[str]) -> int:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        said.append(line.decode("utf-8", "replace"))
        # Servers are reached meanwhile, and what is said of them may name addresses too.
        if "listening" in said[-1] and (match := _URL.search(said[-1])) is not None:
            return int(match[1])
    raise RuntimeError("the hub did not start:\n" + "".join(said))


async def _keep_reading(process: Process, said: list[str]) -> None:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        said.append(line.decode("utf-8", "replace"))


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_SECONDS)
        return
    process.kill()
    await process.wait()
    # With what failed before: a test that fails in the middle of a call leaves a hub that waits for this call.
    raise AssertionError(f"the hub did not end within {END_SECONDS:g} s of SIGTERM")


async def at_all_nodes(client: httpx2.AsyncClient, path: str, **options: Any) -> list[Any]:
    """What each node of a client's hub answers to a GET, as JSON."""
    ports = NODE_PORTS.get(client.base_url.port or 0, [client.base_url.port])
    return [(await client.get(f"http://127.0.0.1:{port}{path}", **options)).json() for port in ports]


class Raw:
    """A caller that writes its requests by hand, so that a test sees exactly what the hub answers."""

    def __init__(self, url: str, *, key: str | None = None, seconds: float = 60.0) -> None:
        """`seconds` are how long an answer may take before the test fails instead of hanging."""
        self.url = url
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        limits = httpx2.Limits(max_connections=200)
        self.http = httpx2.AsyncClient(headers=headers, timeout=seconds, limits=limits, verify=TRUSTED)

    async def __aenter__(self) -> Raw:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def post(self, body: Any, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        """POST a body (bytes as they are, anything else as JSON)."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        base = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        return await self.http.post(self.url, content=content, headers={**base, **(headers or {})})

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1) -> dict[str, Any]:
        """Ask in the modern era and return the JSON-RPC answer."""
        named = {"mcp-name": params["name"]} if params and method == "tools/call" else {}
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method, **named}
        body = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**(params or {}), "_meta": META}}
        answer: dict[str, Any] = (await self.post(body, headers)).json()
        return answer

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, *, id: Any = 1) -> dict[str, Any]:
        """Call a tool in the modern era and return the JSON-RPC answer."""
        return await self.ask("tools/call", {"name": name, "arguments": dict(arguments or {})}, id=id)

    async def names(self) -> list[str]:
        """The names that are listed now."""
        answer = await self.ask("tools/list")
        return [tool["name"] for tool in answer["result"]["tools"]]
