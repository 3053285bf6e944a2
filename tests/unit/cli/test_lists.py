"""Lists: tools on stdout, missing servers on stderr."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isthmus.cli.documents import MissingServerInfo
from isthmus.cli.exits import Exit
from isthmus.cli.find_hub import LocalSource
from isthmus.cli.lists import list_features, list_servers, print_missing
from isthmus.cli.rest_client import RemoteSource
from isthmus.cli.tools import search_tools
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListShape
from tests.hubs import PATIENT, serving, stdio, write_config
from tests.peers import content
from tests.peers.launch import command, quick_command


@pytest.fixture
def config(tmp_path: Path) -> LocalSource:
    servers = {"raw": stdio(command("raw_server")), "dead": {"command": "/no/such/program"}}
    return LocalSource(write_config(tmp_path, servers))


async def test_a_pipe_gets_a_line_a_tool_and_nothing_else(
    config: LocalSource, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await list_features(config, TOOLS, wait=20, is_json=False) == Exit.SUCCESS
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "builtin.echo", "builtin.timestamp", "builtin.chat_log", "raw.pay", "raw.echo", "raw.meta", "raw.grow",
    ]  # fmt: skip
    assert lines[4] == "raw.echo           Give the text back."
    assert output.err.splitlines()[1] == "missing"
    assert output.err.splitlines()[2].startswith("dead  retrying  '/no/such/program' could not be started")


async def test_a_terminal_gets_tools_under_their_servers(
    config: LocalSource, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert await list_features(config, TOOLS, wait=20, is_json=False) == Exit.SUCCESS
    output = capsys.readouterr()
    assert "\x1b[1mraw\x1b[0m" in output.out
    assert "MISSING" in output.err


LONG = '''
def find(query: str) -> str:
    """Search the
    manual, and whatever it refers to. The query should have few words. Long queries find less than short
    ones do, because each word must be there.

    It takes a second.
    """
    return query
'''


async def test_a_line_has_the_first_sentences_of_a_long_description(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manual.py").write_text(LONG)
    config = LocalSource(write_config(tmp_path, {"manual": {"python": "manual", "path": str(tmp_path)}}))
    line = "manual.find        Search the manual, and whatever it refers to. The query should have few words."
    assert await list_features(config, TOOLS, wait=20, is_json=False) == Exit.SUCCESS
    assert capsys.readouterr().out.splitlines()[-1] == line
    assert await search_tools(config, ["manual"], None, 1, wait=20, is_json=False) == Exit.SUCCESS
    assert capsys.readouterr().out.split(maxsplit=1)[1] == line.split(maxsplit=1)[1] + "\n"


async def test_programs_get_whole_definitions_under_the_names_to_call(
    config: LocalSource, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await list_features(config, TOOLS, wait=20, is_json=True) == Exit.SUCCESS
    output = json.loads(capsys.readouterr().out)
    echo = next(tool for tool in output["tools"] if tool["name"] == "raw.echo")
    assert echo["inputSchema"]["properties"]["text"] == {"type": "string"}
    assert output["missing"]["dead"]["state"] == "retrying"


async def test_a_caller_without_any_tool_gets_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = "k3y-of-mine-0123456789"
    async with serving(tmp_path, callers={"me": {"key": key, "allow": ["files.*"]}}) as served:
        source = RemoteSource(served.url, {"Authorization": f"Bearer {key}"})
        assert await list_features(source, TOOLS, wait=20, is_json=False) == Exit.SUCCESS
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "There are no tools.\n")


LISTS: list[tuple[ListShape, set[str]]] = [
    (PROMPTS, {f"shelf.{name}" for name in content.PROMPTS}),
    (RESOURCES, set(content.LISTED)),
    (TEMPLATES, {content.TEMPLATE_URI}),
]


def check_shown(received: tuple[str, str], names: set[str]) -> None:
    out, err = received
    assert {line.split()[0] for line in out.splitlines()} == names
    assert err == ""


@pytest.mark.parametrize(("shape", "names"), LISTS)
async def test_every_list_is_shown_by_a_hub_of_ones_own(
    shape: ListShape, names: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = LocalSource(write_config(tmp_path, {"shelf": stdio(quick_command("full_sdk2"))}))
    await list_features(own, shape, wait=20, is_json=False)
    check_shown(capsys.readouterr(), names)


async def test_every_list_is_shown_by_a_running_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path, {"shelf": stdio(quick_command("full_sdk2"))}, limits=PATIENT) as served:
        for shape, names in LISTS:
            await list_features(RemoteSource(served.url), shape, wait=20, is_json=False)
            check_shown(capsys.readouterr(), names)


def test_a_server_that_is_away_but_listed_is_not_called_missing(capsys: pytest.CaptureFixture[str]) -> None:
    print_missing({"dead": MissingServerInfo("retrying", "no"), "oven": MissingServerInfo("away", "it left", True)})
    assert capsys.readouterr().err.splitlines() == [
        "", "missing", "dead  retrying  no",
        "", "listed, but away", "oven  away  it left",
        "`isthmus doctor` says more.",
    ]  # fmt: skip


# -- servers -------------------------------------------------------------------------------------------------------


async def test_a_line_says_how_a_server_stands(config: LocalSource, capsys: pytest.CaptureFixture[str]) -> None:
    assert await list_servers(config, wait=30, is_json=False) == Exit.SUCCESS
    builtin, dead, raw = capsys.readouterr().out.splitlines()
    assert builtin.split() == ["builtin", "ready", "3", "tools"]
    assert dead.split()[:2] == ["dead", "retrying"]
    assert "'/no/such/program' could not be started" in dead
    assert raw.split() == ["raw", "ready", "stdio", "MCP", "2026-07-28", "4", "tools"]


async def test_servers_without_mcp_are_labelled_by_their_protocol(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    """A server that accepts connections and stays silent; yields the port."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_terminal_gets_a_table(
    config: LocalSource, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert await list_servers(config, wait=30, is_json=False) == Exit.SUCCESS
    assert "\x1b[1mraw" in capsys.readouterr().out


async def test_a_running_hub_prints_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path) as served:
        source = RemoteSource(served.url)
        assert await list_servers(source, wait=30, is_json=True) == Exit.SUCCESS
    (builtin,) = json.loads(capsys.readouterr().out)["servers"]
    assert (builtin["name"], builtin["state"], builtin["tools"]) == ("builtin", "ready", 3)
