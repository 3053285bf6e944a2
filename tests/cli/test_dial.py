"""`isthmus dial` at a terminal and in scripts: its output and its exit codes."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fork_server import quick_isthmus
from tests.hubs import environment, isthmus
from tests.relay.dialling import child, dialling, write_servers
from tests.relay.standin import PATIENCE, StandIn, standing_in

pytestmark = pytest.mark.usefixtures("no_leftovers")


async def run(*words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> tuple[int, str]:
    """How it ended and what it said."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("dial", *words), stdin=asyncio.subprocess.DEVNULL, stderr=pipe, env=environment(env), cwd=cwd
    )
    _, said = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_a_refused_token_is_reported_with_advice_and_never_printed() -> None:
    async with standing_in(refusal="token解密失败") as hub:
        code, said = await run(hub.url, "--", *child("one"))
    assert code == 5
    assert f"ws://127.0.0.1:{hub.port}/mcp_endpoint/mcp/ refused the connection: the token: " in said
    assert "the token: it was not made with this hub's key, or is damaged" in said
    assert "isthmus token relay" in said
    assert "a%2Bb" not in said
    assert "a+b" not in said


async def test_an_address_without_a_relay_is_reported() -> None:
    async with standing_in(status=404) as hub:
        code, said = await run(hub.url, "--", *child("one"))
    assert code == 4
    assert "there is no relay at this address" in said


async def test_impossible_options_are_reported_before_anything_starts(tmp_path: Path) -> None:
    assert (await run("ws://127.0.0.1:9", "--", "calc"))[0] == 2
    code, said = await run("ws://127.0.0.1:9?token=x", cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert (code, "there are no servers in" in said) == (3, True)


async def test_variables_and_files_of_the_pipe_are_enough(tmp_path: Path) -> None:
    write_servers(tmp_path, "one", "two").rename(tmp_path / "mcp_config.json")
    async with standing_in(shares=True) as hub:
        (tmp_path / ".env").write_text(f'export MCP_ENDPOINT="{hub.url}"\n')
        await brings_both(hub, tmp_path)


async def brings_both(hub: StandIn, folder: Path) -> None:
    async with dialling(cwd=folder):
        guest = await hub.arrives()
        assert {(await guest.opened())[1], (await guest.opened())[1]} == {"one", "two"}


async def test_on_a_terminal_it_shows_the_hub_and_each_server_and_ends_on_an_interrupt() -> None:
    ours, theirs = pty.openpty()
    screen = Screen()
    async with standing_in(shares=True) as hub:
        process = await asyncio.create_subprocess_exec(
            *isthmus("dial", hub.url, "--server-id", "calc", "--", *child("one")),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment({"TERM": "xterm", "COLUMNS": "100"}),
        )
        os.close(theirs)
        asyncio.get_running_loop().add_reader(ours, screen.read, ours)
        try:
            guest = await hub.arrives()
            number, _ = await guest.opened()
            await guest.greet(number)
            assert await guest.call("echo", channel=number, text="x") == "x"
            await guest.control({"opened": number, "server": "robot_calc"})
            await screen.until("1 call", "as robot_calc")
            await guest.control({"closed": number, "code": 1000, "reason": "新连接替换"})
            await screen.until("refused", "again in 60 s: another connection uses this server id", "--server-id")
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
        finally:
            asyncio.get_running_loop().remove_reader(ours)
            os.close(ours)
            if process.returncode is None:
                process.kill()
                await process.wait()
    text = screen.shown.decode()
    assert f"ws://127.0.0.1:{hub.port}/mcp_endpoint/mcp/" in text
    assert "connected for" in text
    assert re.search(r"\b[1-9]\d* tools", text)
    assert "a%2Bb" not in text
    assert '"event"' not in text


class Screen:
    """Everything that a terminal was sent."""

    def __init__(self) -> None:
        self.shown = bytearray()
        self._more = asyncio.Event()

    def read(self, descriptor: int) -> None:
        with suppress(OSError):  # the other end is closed
            self.shown += os.read(descriptor, 65536)
        self._more.set()

    async def until(self, *words: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not all(word.encode() in self.shown for word in words):
                self._more.clear()
                await self._more.wait()
