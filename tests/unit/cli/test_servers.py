"""How servers stand, a line each."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isthmus.cli.exits import Exit
from isthmus.cli.lists import list_servers
from isthmus.cli.hub import LocalSource, RemoteSource
from isthmus.upstream.settings import HttpSettings
from tests.hubs import serving, stdio, write_config
from tests.peers.launch import command


@pytest.fixture
def config(tmp_path: Path) -> LocalSource:
    servers = {"raw": stdio(command("raw_server")), "dead": {"command": "/no/such/program"}}
    return LocalSource(write_config(tmp_path, servers))


async def test_a_line_says_how_a_server_stands(config: LocalSource, capsys: pytest.CaptureFixture[str]) -> None:
    assert await list_servers(config, wait=30, is_json=False) == Exit.SUCCESS
    builtin, dead, raw = capsys.readouterr().out.splitlines()
    assert builtin.split() == ["builtin", "ready", "3", "tools"]
    assert dead.split()[:2] == ["dead", "retrying"]
    assert "'/no/such/program' could not be started" in dead
    assert raw.split() == ["raw", "ready", "stdio", "MCP", "2026-07-28", "4", "tools"]


async def test_what_is_no_mcp_is_not_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sums.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    async with listening() as port:
        plain = {"rpc": f"http://127.0.0.1:{port}/rpc", "tools": {"read": {}}}
        config = LocalSource(write_config(tmp_path, {"fun": {"python": "sums", "path": str(tmp_path)}, "plain": plain}))
        assert await list_servers(config, wait=30, is_json=False) == Exit.SUCCESS
    _, fun, plain_row = capsys.readouterr().out.splitlines()
    assert fun.split() == ["fun", "ready", "python", "Python", "1", "tool"]
    assert plain_row.split() == ["plain", "ready", "rpc", "JSON-RPC", "2.0", "1", "tool"]


@asynccontextmanager
async def listening() -> AsyncIterator[int]:
    """Somebody who takes connections and says nothing; yields the port."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_terminal_gets_a_table(
    config: LocalSource, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert await list_servers(config, wait=30, is_json=False) == Exit.SUCCESS
    assert "\x1b[1mraw" in capsys.readouterr().out


async def test_a_running_hub_tells_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path) as served:
        source = RemoteSource(HttpSettings(served.url), has_key=False)
        assert await list_servers(source, wait=30, is_json=True) == Exit.SUCCESS
    (builtin,) = json.loads(capsys.readouterr().out)["servers"]
    assert (builtin["name"], builtin["state"], builtin["tools"]) == ("builtin", "ready", 3)
