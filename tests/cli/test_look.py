"""What a person at a terminal of 80 columns sees of a running hub: its log, its tools, its servers, its figures."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import shlex
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults import light_server
from tests.hubs import PATIENT, Raw, environment, isthmus, serving, stdio, write_config

pytestmark = pytest.mark.usefixtures("no_leftovers")

SECONDS = 60.0
COLUMNS = 80


class Terminal:
    """A command on a terminal, and what it has shown so far."""

    def __init__(self, process: asyncio.subprocess.Process, descriptor: int) -> None:
        self.process = process
        self.text = ""
        self._descriptor = descriptor
        self._is_over = False
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # the command has ended
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._is_over = True
        self.text += data.decode("utf-8", "replace").replace("\r\n", "\n")
        self._changed.set()

    async def until(self, pattern: str) -> re.Match[str]:
        """Wait until the pattern has been shown."""
        async with asyncio.timeout(SECONDS):
            while (found := re.search(pattern, self.text, re.DOTALL)) is None:
                self._changed.clear()
                await self._changed.wait()
        return found

    async def at_end(self) -> None:
        """Wait until everything that it wrote has been read."""
        async with asyncio.timeout(SECONDS):
            while not self._is_over:
                self._changed.clear()
                await self._changed.wait()

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._descriptor, keys)

    async def ended(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def on_terminal(folder: Path, *words: str, env: dict[str, str] | None = None) -> AsyncIterator[Terminal]:
    """Run a command on a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *isthmus(*words),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environment({"TERM": "xterm", **(env or {})}),
        preexec_fn=lambda: _take_terminal(theirs),
    )
    os.close(theirs)
    terminal = Terminal(process, ours)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


def _take_terminal(descriptor: int) -> None:
    """Make the terminal that of the new process, so that Ctrl-C reaches it."""
    os.setsid()
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


# -- the log -----------------------------------------------------------------------------------------------------------

SERVERS = {
    "well": stdio(light_server.command("well")),
    "broken": stdio(["/bin/sh", "-c", "echo 'no licence' >&2; exit 3"]),
}


async def test_the_log_has_times_first_and_fits_the_terminal(tmp_path: Path) -> None:
    config = write_config(tmp_path, SERVERS)
    async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", "0", env={"NO_COLOR": "1"}) as hub:
        await hub.until(r"server ready +server=well")
        await hub.until(r'server not connected +server=broken reason="exited with code 3"\s+detail="no licence"')
        hub.process.terminate()
        assert await hub.ended() == 0
    lines = hub.text.splitlines()
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert [
        line for line in lines if not re.match(r"\d\d:\d\d:\d\d (info|warning) +[^ ]|                 [^ ]", line)
    ] == []
    assert "None" not in hub.text
    assert "\x1b" not in hub.text


async def test_quiet_logs_warnings_and_verbose_logs_each_call(tmp_path: Path) -> None:
    config = write_config(tmp_path, SERVERS)
    async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", "0", "-q") as hub:
        await hub.until("server not connected")
    assert "listening" not in hub.text
    assert "\x1b[33mwarning\x1b[0m" in hub.text
    async with on_terminal(tmp_path, "serve", "--config", str(config), "--port", "0", "-v") as hub:
        url = (await hub.until(r"url=(http://\S+)/mcp"))[1]
        async with on_terminal(tmp_path, "call", "--hub", url, "builtin.echo", "text=hello") as call:
            assert await call.ended() == 0
        await hub.until(r"call +tool=builtin.echo caller=local ms=[0-9.]+ outcome=result")


# -- tools, logs, restart, top -----------------------------------------------------------------------------------------

TALKATIVE = stdio(["/bin/sh", "-c", 'echo "opening the store" >&2; exec "$@"', "sh", *light_server.command("well")])
OPERATOR = "k3y-of-the-operator-0123456789"
CALLER = "k3y-of-a-caller-0123456789"


async def run(folder: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command on a terminal to its end, and return its exit code and what it showed."""
    async with on_terminal(folder, *words, env={"NO_COLOR": "1", **(env or {})}) as terminal:
        code = await terminal.ended()
        await terminal.at_end()
        return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.text)


async def test_a_tool_is_found_shown_and_called_as_shown(tmp_path: Path) -> None:
    config = str(write_config(tmp_path, {}))
    code, found = await run(tmp_path, "tools", "search", "current", "times", "--config", config)
    assert code == 0
    assert [line.split()[0] for line in found.splitlines()[:2]] == ["TOOL", "builtin.timestamp"]
    code, shown = await run(tmp_path, "tools", "echo", "--config", config)
    assert code == 0
    assert re.search(r"^  NAME +TYPE +NEEDED +DESCRIPTION\n  text +string +yes +What to say back$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= COLUMNS
    _, *example = shlex.split(shown.splitlines()[-1])
    assert await run(tmp_path, *example, "--config", config) == (0, "TEXT\n")
    code, refused = await run(tmp_path, "tools", "--server", "nobody", "--config", config)
    assert (code, refused.splitlines()) == (2, ["isthmus: there is no server 'nobody'", "Servers: builtin."])


async def test_an_operator_reads_logs_restarts_and_watches_and_others_do_not(tmp_path: Path) -> None:
    callers = {"boss": {"key": OPERATOR, "allow": ["*"], "operator": True}, "me": {"key": CALLER, "allow": ["*"]}}
    async with serving(tmp_path, {"shelf": TALKATIVE}, callers=callers, limits=PATIENT) as hub:
        me = {"ISTHMUS_HUB": f"http://127.0.0.1:{hub.port}", "ISTHMUS_KEY": CALLER}
        boss = {**me, "ISTHMUS_KEY": OPERATOR}
        for words in (["logs", "shelf"], ["restart", "shelf"], ["top"]):
            code, said = await run(tmp_path, *words, env=me)
            assert (code, "Only operators may" in said) == (5, True), said
        async with on_terminal(tmp_path, "logs", "shelf", "-f", env=boss) as following:
            await following.until(r"\d\d:\d\d:\d\d stderr  opening the store\n.*ready: \d+ tools")
            code, said = await run(tmp_path, "restart", "shelf", env=boss)
            assert (code, said.startswith("shelf is ready: ")) == (0, True), said
            await following.until(r"restarting.*opening the store.*ready: \d+ tools")
        assert "Unknown server: nobody" in (await run(tmp_path, "logs", "nobody", env=boss))[1]
        async with on_terminal(tmp_path, "top", env=boss) as top:
            await top.until("SERVER +STATE +CALLS")
            async with Raw(hub.url, key=CALLER) as caller:
                await caller.call("builtin.echo", {"text": "hello"})
            await top.until(r"builtin +ready +1 +[0-9.]+ +0 +0 +[0-9.]+ ms +[0-9.]+ ms +0")
            top.type(b"q")
            assert await top.ended() == 0
        async with on_terminal(tmp_path, "servers", "--watch", env=boss) as watching:
            await watching.until(r"SERVER.*STATE.*OFFERS.*shelf")
            watching.type(b"\x03")
            assert await watching.ended() == 0
