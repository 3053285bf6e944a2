"""`isthmus dial` as a process of its own with local servers behind it, and its output."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fork_server import ForkedProcess, forked
from tests.hubs import CHECKOUT, NODE_PORTS, environment

CHILD = str(Path(__file__).with_name("dial_child.py"))
PATIENCE = 30.0
END_SECONDS = 15.0


def child(name: str) -> list[str]:
    """The words that start a local server."""
    return [sys.executable, "-S", CHILD, name]


def write_servers(folder: Path, *names: str) -> Path:
    """Write an `mcp.json` with these local servers."""
    file = folder / "mcp.json"
    servers = {name: {"command": child(name)[0], "args": child(name)[1:]} for name in names}
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


class DialProcess:
    """A running `isthmus dial`, and what it said so far."""

    def __init__(self, process: ForkedProcess, nodes: Sequence[int] = ()) -> None:
        self.process = process
        self.nodes = nodes
        """The ports of the nodes of its hub, if that is a cluster."""
        self.said: list[str] = []
        self._news = asyncio.Event()

    async def listen(self) -> None:
        """Keep what it says."""
        while line := await self.process.stderr.readline():
            self.said.append(line.decode())
            self._news.set()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of this event so far."""
        lines = [json.loads(line) for line in self.said if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    async def logged(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait until it has logged this event so often; return the last line."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self.events(name)) < count:
                self._news.clear()
                await self._news.wait()
        return found[count - 1]

    async def end(self) -> int:
        """Tell it to end and wait until it has."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), END_SECONDS)


@asynccontextmanager
async def dialling(
    *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> AsyncIterator[DialProcess]:
    """Run `isthmus dial` with these words; it must end in good order with the block."""
    process = await forked(["dial", *words], environment(env), cwd or CHECKOUT)
    dialled = re.search(r"127\.0\.0\.1:(\d+)", " ".join((*words, *(env or {}).values())))
    dial = DialProcess(process, NODE_PORTS.get(int(dialled[1]), ()) if dialled else ())
    reader = asyncio.ensure_future(dial.listen())
    try:
        yield dial
    finally:
        try:
            code = await dial.end()
        except TimeoutError:
            process.kill()
            await process.wait()
            code = -9
        await reader
    assert code == 0, f"dial ended with {code}:\n" + "".join(dial.said[-40:])
