"""The relay's status as a person and a script see it, asked of something that answers like a hub."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli import relay
from isthmus.cli.documents import DeviceInfo, DialledServerInfo
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.find_hub import source_of
from isthmus.cli.main import main
from isthmus.cli.relay import RelayOverview, duration_text, forget_servers, groups_of, show_status, watch_status
from isthmus.cli.rest_client import RemoteSource

NOW = time.time()
OVEN = {
    "agent": "kitchen", "serverId": "oven", "name": "kitchen_oven", "state": "ready", "since": NOW - 3.5 * 86_400,
    "reason": None, "title": "oven\x1b[2J 1.2", "tools": ["heat", "look"], "client": "192.0.2.7:5000", "shared": False,
    "calls": 0,
}  # fmt: skip
RACK = {**OVEN, "agent": "cellar", "serverId": "rack", "name": "cellar_rack", "state": "away", "reason": "it left"}
ROBOT = {
    "id": "d1",
    "agent": "kitchen",
    "since": NOW - 2.5 * 86_400,
    "title": "robot",
    "client": None,
    "calls": 1,
    "answered": 7,
}


class Hub:
    """Sends the configured answer until the block ends."""

    def __init__(self) -> None:
        self.servers: list[dict[str, Any]] = [OVEN, RACK]
        self.devices: list[dict[str, Any]] = [ROBOT]
        self.status = 200
        self.on_delete = 200, b"{}"
        self.deleted: list[str] = []
        self.asked = 0
        self.port = 0
        self.connections: list[tuple[asyncio.StreamWriter, Any]] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append((writer, asyncio.current_task()))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.asked += 1
                what = "devices" if b"/v1/relay/devices" in head else "servers"
                body, status = json.dumps({what: getattr(self, what)}).encode(), self.status
                if head.startswith(b"DELETE "):
                    self.deleted.append(head.split()[1].decode())
                    status, body = self.on_delete
                reply = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(reply.encode() + body)
                await writer.drain()
        writer.close()

    @property
    def source(self) -> RemoteSource:
        found = source_of(f"http://127.0.0.1:{self.port}", None)
        assert isinstance(found, RemoteSource)
        return found


@asynccontextmanager
async def hub() -> AsyncIterator[Hub]:
    received = Hub()
    server = await asyncio.start_server(received.answer, "127.0.0.1", 0)
    received.port = server.sockets[0].getsockname()[1]
    try:
        yield received
    finally:
        server.close()
        for writer, task in received.connections:
            writer.close()
            await task


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_for(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return shown


async def test_a_script_gets_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    async with hub() as here:
        assert await show_status(here.source, is_json=False) is Exit.SUCCESS
    rows = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["cellar", "rack", "cellar_rack", "away", "2 tools", "3 d", "192.0.2.7:5000", "it left"],
        ["kitchen", "oven", "kitchen_oven", "ready", "2 tools", "3 d", "192.0.2.7:5000", "oven\\u001b[2J 1.2"],
        ["kitchen", "d1", "device", "connected", "1 call now", "2 d", "-", "robot"],
    ]


async def test_tools_are_named_on_lines_of_their_own_if_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    async with hub() as here:
        here.servers = [{**OVEN, "tools": ["heat", "look\x1b[2J"]}]
        assert await show_status(here.source, is_json=False, has_tools=True) is Exit.SUCCESS
    rows = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    assert [row[:4] for row in rows] == [
        ["kitchen", "oven", "kitchen_oven", "ready"],
        ["kitchen", "oven", "kitchen_oven.heat", "tool"],
        ["kitchen", "oven", "kitchen_oven.look\\u001b[2J", "tool"],
        ["kitchen", "d1", "device", "connected"],
    ]


async def test_json_output_is_the_hubs_answer(capsys: pytest.CaptureFixture[str]) -> None:
    async with hub() as here:
        assert await show_status(here.source, is_json=True) is Exit.SUCCESS
    assert json.loads(capsys.readouterr().out) == {"servers": [OVEN, RACK], "devices": [ROBOT]}


async def test_a_person_sees_each_agent_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    async with hub() as here:
        await show_status(here.source, is_json=False)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert shown.index("cellar: 1 server, 0 devices") < shown.index("cellar_rack")
    assert shown.index("cellar_rack") < shown.index("kitchen: 1 server, 1 device") < shown.index("kitchen_oven")
    assert "\x1b[2J" not in terminal.getvalue()


async def test_on_a_narrow_terminal_no_name_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    long = {**OVEN, "serverId": "calculator_server", "name": "kitchen_calculator_server"}
    async with hub() as here:
        here.servers = [long]
        await show_status(here.source, is_json=False)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert lines[0].split() == ["ID", "STATE", "OFFERS", "SINCE", "REMARK"]
    assert lines[2].split()[:5] == ["calculator_server", "ready", "2", "tools", "3"]
    assert lines[3].startswith(f"device {ROBOT['id']}")


async def test_an_empty_relay_is_reported_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    async with hub() as here:
        here.servers, here.devices = [], []
        assert await show_status(here.source, is_json=False) is Exit.SUCCESS
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "No server or device is connected to the relay, and none is expected back.\n")


async def test_it_is_watched_until_interrupted_and_a_hub_that_goes_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_for(monkeypatch)
    monkeypatch.setattr(relay, "REFRESH_SECONDS", 0.01)

    async def until(text: str) -> None:
        async with asyncio.timeout(10):
            while text not in terminal.getvalue():  # noqa: ASYNC110 - it is another's terminal
                await asyncio.sleep(0.01)

    async with hub() as here:
        watching = asyncio.create_task(watch_status(here.source))
        await until("kitchen_oven")
        here.servers = [{**OVEN, "name": "kitchen_grill"}]
        await until("kitchen_grill")
        here.status = 500
        await until("cannot reach the hub")
        here.status, here.devices = 200, [{**ROBOT, "id": "d2"}]
        await until("d2")
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1  # the cursor is back


async def test_a_rejected_command_does_not_go_on_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_for(monkeypatch)
    async with hub() as here:
        here.status = 401
        with pytest.raises(CommandFailed) as failed:
            await watch_status(here.source)
    assert (failed.value.exit, here.asked) == (Exit.NOT_ALLOWED, 1)
    assert "requires a key" not in terminal.getvalue()


async def test_watching_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    async with hub() as here:
        with pytest.raises(CommandFailed, match="--watch needs a terminal"):
            await watch_status(here.source)
    assert main(["relay", "status", "--watch", "--json"]) == Exit.USAGE
    assert "exclude each other" in capsys.readouterr().err


def test_the_hub_at_the_configured_port_may_be_that_of_another_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "isthmus.toml"
    file.write_text("[hub]\nport = 1\n")
    assert main(["relay", "status", "--config", str(file)]) == Exit.UNREACHABLE
    said = capsys.readouterr().err
    assert f"no hub runs for {file}\n" in said
    assert f"`isthmus serve --config {file}`" in said
    assert "--hub URL" in said


def test_rows_and_spans_of_time() -> None:
    server = DialledServerInfo("a", "s", "a_s", "connecting", 0.0)
    device = DeviceInfo("d", "a", 0.0, answered=3)
    assert groups_of(RelayOverview([server], [device]), 100.0) == [
        (
            "a: 1 server, 1 device",
            [
                ("s", "a_s", "connecting", "0 tools", "100 s", "-", ""),
                ("d", "device", "connected", "3 answered", "100 s", "-", ""),
            ],
        )
    ]
    spans = (-1, 0, 119.9, 120, 7199, 7200, 172_799, 172_800)
    assert [duration_text(span) for span in spans] == ["0 s", "0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]


# -- forgetting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server_id", [None, "rack"])
async def test_absent_servers_are_forgotten_and_named(
    server_id: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    async with hub() as here:
        here.servers = [OVEN, RACK, {**OVEN, "agent": "cellar", "name": "cellar_oven"}]
        assert await forget_servers(here.source, "cellar", server_id) is Exit.SUCCESS
        assert here.deleted == ["/v1/relay/servers/cellar_rack"]
    assert capsys.readouterr().out == "forgot cellar_rack\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kitchen", None), "nothing was forgotten: every server of the agent 'kitchen' is connected"),
        (("kitchen", "oven"), "nothing was forgotten: the server 'oven' of the agent 'kitchen' is connected"),
        (("kitchen", "rack"), "the hub does not know the server 'rack' of the agent 'kitchen'"),
        (("attic", None), "the hub does not know the agent 'attic'"),
    ],
)
async def test_no_other_server_is_forgotten(words: tuple[str, str | None], said: str) -> None:
    async with hub() as here:
        with pytest.raises(CommandFailed, match=re.escape(said)) as failed:
            await forget_servers(here.source, *words)
        assert (failed.value.exit, here.deleted) == (Exit.CALL_FAILED, [])


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("celler", None), "Did you mean cellar?"),
        (("cellar", "rak"), "Did you mean rack?"),
        (("kitchn", "oven"), "Did you mean kitchen?"),
        (("attic", None), relay.STATUS_ADVICE),
    ],
)
async def test_a_misspelt_name_gets_the_one_that_is_meant(words: tuple[str, str | None], advice: str) -> None:
    async with hub() as here:
        with pytest.raises(CommandFailed, match="the hub does not know") as failed:
            await forget_servers(here.source, *words)
    assert failed.value.advice == (advice,)


@pytest.mark.parametrize(
    ("status", "body", "exit", "said"),
    [
        (409, b'{"detail": "it is back", "reason": "not_away", "executed": "no"}', Exit.CALL_FAILED, "it is back"),
        (403, b"{}", Exit.NOT_ALLOWED, "requires a key|rejected the key|refused access"),
        (
            401,
            b'{"detail": "No", "reason": "x", "executed": "no"}',
            Exit.NOT_ALLOWED,
            "requires a key|rejected the key|refused access",
        ),
        (403, b'{"detail": "Ask an operator", "reason": "forbidden", "executed": "no"}', Exit.NOT_ALLOWED, "operator"),
        (500, b"", Exit.UNREACHABLE, "HTTP 500"),
    ],
)
async def test_a_hub_that_does_not_forget_says_why(status: int, body: bytes, exit: Exit, said: str) -> None:
    async with hub() as here:
        here.on_delete = status, body
        with pytest.raises(CommandFailed, match=said) as failed:
            await forget_servers(here.source, "cellar", None)
        assert failed.value.exit is exit
