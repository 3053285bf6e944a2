"""Start peers from a test, talk to their process and end them; the fixtures of `conftest` stand on this.

A peer over stdio is started by its client (or the hub), so for that only its `command` is
here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.peers.forking import quickly

CHECKOUT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
"""How long a peer may take until it listens; an SDK alone imports for a second on a busy machine."""
LINE_BYTES = 64 * 1024
OFFICIAL = ("_sdk1", "_sdk2", "_fastmcp")
"""How the names of peers end that stand on an official SDK."""


Sdk = Literal["mcp1", "a2a10", "a2a03", "agentvault", "frameworks"]
"""What has an environment of its own, because it cannot share one with the tests; named as its requirements are."""


def mcp1_python() -> str:
    """The interpreter that has mcp 1.x."""
    return sdk_python("mcp1")


def sdk_python(sdk: Sdk) -> str:
    """The interpreter that has an SDK; without one a test is skipped with the reason, and in CI it fails."""
    default = CHECKOUT / f".venv-{sdk}" / "bin" / "python"
    variable = f"ISTHMUS_{sdk.upper()}_PYTHON"
    path = os.environ.get(variable, str(default))
    if Path(path).exists():
        return path
    reason = f"no interpreter with {sdk} at {path}; `make test` builds it, or set {variable}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def command(peer: str, *options: str) -> list[str]:
    """The words that start a peer: an absolute interpreter, this checkout's peers, its name and options."""
    python = mcp1_python() if peer.endswith("_sdk1") else sys.executable
    return [python, str(CHECKOUT / "tests" / "peers"), peer, *options]


def quick_command(peer: str, *options: str) -> list[str]:
    """The same for an official server, which is forked from a process that has its SDK: that takes a tenth."""
    words = command(peer, *options)
    return quickly(words) if peer.endswith(OFFICIAL) else words


@dataclass(frozen=True, slots=True)
class HttpPeer:
    """A peer that listens on loopback, for as long as the `http_peer` block lasts or until it is killed."""

    process: asyncio.subprocess.Process
    port: int

    @property
    def url(self) -> str:
        """Where its MCP endpoint is."""
        return self.at("/mcp")

    def at(self, path: str) -> str:
        """An address on it, such as `/sse`."""
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def socket_url(self) -> str:
        """Where a peer over WebSocket is."""
        return f"ws://127.0.0.1:{self.port}/mcp"

    @property
    def pid(self) -> int:
        """Its process, which also leads its process group."""
        return self.process.pid

    async def kill(self) -> None:
        """SIGKILL it and wait until it is gone."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def control(self, modes: str) -> None:
        """Give a raw server new modes; they hold for requests that arrive from now on."""
        request = urllib.request.Request(self.at("/control"), data=modes.encode(), method="POST")
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=20).close())


@asynccontextmanager
async def http_peer(peer: str, *options: str, env: Mapping[str, str] | None = None) -> AsyncIterator[HttpPeer]:
    """Run a peer on a free port, over HTTP unless `options` name another transport."""
    async with listening_peer(quick_command(peer, "--transport", "http", *options), env=env) as running:
        yield running


@asynccontextmanager
async def listening_peer(words: Sequence[str], *, env: Mapping[str, str] | None = None) -> AsyncIterator[HttpPeer]:
    """Run a program that says `PORT n` once it listens; leaving the block kills its whole process group."""
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
        start_new_session=True,
        limit=LINE_BYTES,
    )
    try:
        yield HttpPeer(process, await _listening_port(process))
    finally:
        await _end(process)


async def _listening_port(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
    if not line.startswith(b"PORT "):
        raise RuntimeError(f"the peer did not start: it said {line!r} (its errors are on stderr)")
    return int(line.split()[1])


async def _end(process: asyncio.subprocess.Process) -> None:
    # The leader may be long dead while its children live, so the group is told whatever its state.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # Not `wait`: from Python 3.12 on it may return before the pipes are closed.
    await process.communicate()
