"""The command as a person or a script runs it: real processes, real signals, real exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from isthmus.storage import audit_sqlite
from isthmus.storage.audit_log_folders import slot_file
from tests import hubs
from tests.conftest import Ledger
from tests.hubs import PATIENT, Ended, environment, isthmus, serving, stdio, write_config
from tests.peers.launch import command

pytestmark = pytest.mark.usefixtures("no_leftovers")

KEY = "k3y-of-the-planner-0123456789"
RUN_SECONDS = 60.0


async def start(
    *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdout: int = asyncio.subprocess.PIPE
) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *isthmus(*words), stdin=pipe, stdout=stdout, stderr=pipe, env=environment(env), cwd=cwd
    )


async def ended(process: asyncio.subprocess.Process, given: bytes = b"") -> Ended:
    try:
        out, err = await asyncio.wait_for(process.communicate(given if process.stdin else None), RUN_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return Ended(process.returncode, (out or b"").decode(), err.decode())


async def run(*words: str, given: bytes = b"", env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ended:
    return await hubs.run(*words, folder=cwd or Path.cwd(), env=env, given=given)


@pytest.fixture
def config(tmp_path: Path, ledger: Ledger) -> str:
    raw = stdio(command("raw_server", "--ledger", str(ledger.path)))
    return str(write_config(tmp_path, {"raw": raw, "dead": {"command": "/no/such/program"}}, limits=PATIENT))


# -- against a configuration ---------------------------------------------------------------------------------


async def test_help_comes_at_once_because_next_to_nothing_is_loaded_for_it() -> None:
    helped = await ended(await start("--help", env={"PYTHONPROFILEIMPORTTIME": "1"}))
    assert helped.code == 0
    loaded = {line.rpartition("|")[2].strip() for line in helped.err.splitlines()}
    assert "isthmus.cli.main" in loaded
    assert not loaded & {"asyncio", "httptools", "msgspec", "ssl", "structlog", "uvicorn", "isthmus.app"}


async def test_tools_and_calls_need_no_running_hub_and_calls_are_audited(config: str, tmp_path: Path) -> None:
    listed = await run("tools", "--config", config)
    assert (listed.code, "raw.echo" in listed.out, "dead" in listed.err) == (0, True, True)
    called = await run("call", "raw.echo", "text=hi", "--config", config)
    assert (called.code, called.out, called.err) == (0, "hi\n", "")
    given = await run("call", "raw.echo", "--args", "@-", "--config", config, given=b'{"text": "from stdin"}')
    assert (given.code, given.out) == (0, "from stdin\n")
    async with audit_sqlite.open_reader(slot_file(tmp_path / "state", 1)) as log:
        received = [json.loads(row.content) async for row in log.rows()]
    assert [(each["name"], each["frontend"]) for each in received if each["event"] == "call"] == [
        ("raw.echo", "command")
    ] * 2


async def test_the_usual_file_is_found(config: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    assert (await run("call", "echo", "text=hi", cwd=tmp_path, env={"HOME": str(tmp_path)})).out == "hi\n"


async def test_a_folder_without_a_configuration_is_said(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    listed = await run("tools", cwd=tmp_path, env=home)
    assert (listed.code, "builtin.echo" in listed.out) == (0, True)
    assert "No configuration found" in listed.err
    assert "--config" in listed.err
    assert (await run("call", "builtin.echo", "text=hi", cwd=tmp_path, env=home)).err == ""


async def test_faults_report_executed_and_a_fix(config: str) -> None:
    lost = await run("call", "raw.pay", "nonce=1", "mode=die_after_ledger", "--config", config)
    assert (lost.code, lost.out) == (1, "")
    assert "executed: unknown" in lost.err
    assert "isthmus doctor" in lost.err
    unknown = await run("call", "raw.ehco", "--config", config)
    assert unknown.code == 1
    assert "Did you mean raw.echo" in unknown.err
    server = await run("tools", "raw", "--config", config)
    assert (server.code, "isthmus tools --server raw" in server.err) == (1, True)
    wrong = await run("call", "raw.echo", "nothing", "--config", config)
    assert (wrong.code, "executed: no" in wrong.err) == (2, True)


async def test_doctor_and_config_check_have_their_codes(config: str, tmp_path: Path) -> None:
    assert (await run("doctor", "--config", config)).code == 1
    assert (await run("config", "check", config)).code == 0
    (tmp_path / "bad.toml").write_text("[hub]\nport = 99999\n")
    for words in (["doctor"], ["serve"], ["stdio"], ["config", "check"]):
        refused = await run(*words, "--config", str(tmp_path / "bad.toml"))
        assert refused.code == 3
        assert "hub.port must be 0 to 65535, not 99999" in refused.out + refused.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_withdraws_the_call_at_the_server(
    config: str, ledger: Ledger, number: signal.Signals, code: int
) -> None:
    process = await start("call", "raw.pay", "nonce=n", "mode=sleep:60", "--config", config)
    await until_noted(ledger, '"nonce": "n"')
    process.send_signal(number)
    stopped = await ended(process)
    assert (stopped.code, "executed: unknown" in stopped.err) == (code, True)
    assert '"cancelled": "n"' in ledger.lines()[-1]


async def until_noted(ledger: Ledger, text: str) -> None:
    async with asyncio.timeout(RUN_SECONDS):
        while text not in "".join(ledger.lines()):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("word", ["tools", "doctor"])
async def test_a_reader_that_has_seen_enough_is_no_error(config: str, word: str) -> None:
    reading, writing = os.pipe()
    process = await start(word, "--config", config, stdout=writing)
    os.close(writing)
    os.close(reading)
    gone = await ended(process)
    assert (gone.code, gone.err) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
async def test_output_that_cannot_be_written_is_said() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    process = await start("version", stdout=full)
    os.close(full)
    failed = await ended(process)
    assert (failed.code, failed.err.splitlines()[0]) == (
        1,
        "isthmus: cannot write the output: No space left on device",
    )


async def test_closed_standard_streams_are_no_fault(tmp_path: Path) -> None:
    """Cron jobs and supervisors close them."""

    async def closed(streams: str, *words: str) -> asyncio.subprocess.Process:
        shell = ("sh", "-c", f'exec "$@" {streams}', "sh", *isthmus(*words))
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*shell, stdout=pipe, stderr=pipe, env=environment(), cwd=tmp_path)

    (tmp_path / "isthmus.toml").write_text("")
    assert await ended(await closed("<&-", "call", "builtin.echo", "text=x")) == Ended(0, "x\n", "")
    assert await ended(await closed(">&-", "tools")) == Ended(0, "", "")
    hub = await closed("<&-", "serve", "--port", "0")
    assert hub.stderr is not None
    async with asyncio.timeout(RUN_SECONDS):
        while b"listening" not in await hub.stderr.readline():
            pass
    hub.send_signal(signal.SIGTERM)
    assert (await ended(hub)).code == 0


# -- at a terminal -------------------------------------------------------------------------------------------


async def test_a_tool_cannot_drive_the_terminal(config: str) -> None:
    ours, theirs = pty.openpty()
    process = await start("call", "raw.echo", "text=\x1b]0;owned\x07", "--config", config, stdout=theirs)
    os.close(theirs)
    assert (await ended(process)).code == 0
    shown = os.read(ours, 4096)
    os.close(ours)
    assert shown == b"\\u001b]0;owned\\u0007\r\n"


# -- against a running hub -----------------------------------------------------------------------------------


async def test_a_running_hub_is_used_like_ones_own(tmp_path: Path, ledger: Ledger) -> None:
    raw = stdio(command("raw_server", "--ledger", str(ledger.path)))
    callers = {"planner": {"key": KEY, "allow": ["raw.*"]}}
    async with serving(tmp_path, {"raw": raw}, callers=callers, limits=PATIENT) as served:
        hub = {"ISTHMUS_HUB": served.url.removesuffix("/mcp"), "ISTHMUS_KEY": KEY}
        listed = await run("tools", "--json", env=hub)
        assert [tool["name"] for tool in json.loads(listed.out)["tools"]] == [
            "raw.pay", "raw.echo", "raw.meta", "raw.grow",
        ]  # fmt: skip
        called = await run("call", "echo", "text=hi", "mode=progress:2", env=hub)
        assert (called.code, called.out) == (0, "hi\n")
        assert called.err == ""
        assert (await run("doctor", env=hub)).code == 0
        (tmp_path / "large").write_text("x" * 5_000_000)
        large = await run("call", "echo", f"text=@{tmp_path / 'large'}", env=hub)
        assert (large.code, large.out) == (1, "")
        assert "too large" in large.err
        assert "executed: no" in large.err
        assert (await run("call", "builtin.echo", "text=hi", env=hub)).code == 1
        refused = await run("tools", "--hub", served.url)
        assert (refused.code, refused.out) == (5, "")
        assert "ISTHMUS_KEY" in refused.err
        await withdraws(hub, ledger)


async def withdraws(hub: dict[str, str], ledger: Ledger) -> None:
    """Interrupt a call that a running hub carries."""
    process = await start("call", "raw.pay", "nonce=far", "mode=sleep:60", env=hub)
    await until_noted(ledger, '"nonce": "far"')
    process.send_signal(signal.SIGINT)
    assert (await ended(process)).code == 130
    await until_noted(ledger, '"cancelled": "far"')


async def test_a_hub_that_is_not_there_ends_with_4(deaf_port: int) -> None:
    away = await run("call", "x.y", "--hub", f"http://127.0.0.1:{deaf_port}")
    assert (away.code, away.out) == (4, "")
    assert "isthmus serve" in away.err


# -- serving -------------------------------------------------------------------------------------------------


async def test_serve_prints_its_address_and_warnings(tmp_path: Path) -> None:
    async with serving(tmp_path, {"bad": {"url": 5}}) as served:
        said = "".join(served.said)
        assert f'"url": "http://127.0.0.1:{served.port}/mcp"' in said
        assert "servers.bad.url must be a text" in said


async def test_an_address_that_is_taken_ends_with_3_and_advice(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        taken = await run("serve", "--port", str(served.port), cwd=tmp_path)
        assert taken.code == 3
        assert "in use" in taken.err
        assert "--port" in taken.err


async def test_a_hub_is_never_open_to_a_network(tmp_path: Path) -> None:
    refused = await run("serve", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert refused.code == 3
    assert "callers" in refused.err


# -- standard streams ----------------------------------------------------------------------------------------

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def asked(*requests: tuple[str, Mapping[str, Any]]) -> bytes:
    lines = (
        json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        for id, (method, params) in enumerate(requests, 1)
    )
    return "".join(f"{line}\n" for line in lines).encode()


ECHO = asked(
    ("initialize", HELLO), ("tools/call", {"name": "raw.echo", "arguments": {"text": "hi"}}), ("tools/list", {})
)


async def talk(*words: str, env: Mapping[str, str] | None = None) -> Ended:
    """Greet and call, and list when the call was answered: by then the server is there, however slow the machine."""
    process = await start("stdio", *words, env=env)
    assert process.stdin is not None
    assert process.stdout is not None
    *first, last = ECHO.splitlines(keepends=True)
    process.stdin.write(b"".join(first))
    said = b""
    async with asyncio.timeout(RUN_SECONDS):
        while b'"id":2' not in said:
            said += (line := await process.stdout.readline())
            assert line, said
    rest = await ended(process, last)
    return Ended(rest.code, said.decode() + rest.out, rest.err)


def assert_echoed(talked: Ended) -> None:
    assert talked.code == 0, talked.err
    messages = map(json.loads, talked.out.splitlines())
    answers = {message["id"]: message["result"] for message in messages if "id" in message}
    assert answers.keys() == {1, 2, 3}
    assert answers[2]["content"] == [{"type": "text", "text": "hi"}]
    assert "raw.echo" in [tool["name"] for tool in answers[3]["tools"]]


async def test_stdio_speaks_nothing_but_the_protocol(config: str) -> None:
    talked = await talk("--config", config)
    assert_echoed(talked)
    assert re.search(r"server not connected.*", talked.err)


async def test_stdio_can_stand_before_a_running_hub(tmp_path: Path) -> None:
    callers = {"planner": {"key": KEY, "allow": ["*"]}}
    async with serving(tmp_path, {"raw": stdio(command("raw_server"))}, callers=callers, limits=PATIENT) as served:
        assert_echoed(await talk("--hub", served.url, env={"ISTHMUS_KEY": KEY}))


async def test_stdio_ends_on_a_signal_and_answers_running_calls(config: str, ledger: Ledger) -> None:
    process = await start("stdio", "--config", config)
    assert process.stdin is not None
    call = {"name": "raw.pay", "arguments": {"nonce": "n", "mode": "sleep:60"}}
    process.stdin.write(asked(("initialize", HELLO), ("tools/call", call)))
    await until_noted(ledger, '"nonce": "n"')
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    output = (await asyncio.wait_for(process.stdout.read(), RUN_SECONDS)).decode()
    assert await process.wait() == 0
    assert json.loads(output.splitlines()[-1])["error"]["data"]["reason"] == "cancelled"
