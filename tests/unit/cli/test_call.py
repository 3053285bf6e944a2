"""One call, from words to its outcome."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest

from isthmus.cli.call import FeatureRequest, call_tool, read_resource, read_text, write_prompt
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.hub import LocalSource, RemoteSource
from isthmus.upstream.settings import HttpSettings
from tests.conftest import Ledger
from tests.hubs import PATIENT, serving, stdio, write_config
from tests.peers import content
from tests.peers.launch import command

FAILING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    answers = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "f", "version": "1"}},
        "tools/list": {"tools": [{"name": "fail", "inputSchema": {"type": "object"}},
                                 {"name": "quiet", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [], "isError": False} if "quiet" in line else
                      {"content": [{"type": "text", "text": "no such file"}], "isError": True},
    }
    if "id" in asked:
        known = asked["method"] in answers
        ended = {"result": answers[asked["method"]]} if known else {"error": {"code": -32601, "message": "?"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **ended}), flush=True)
"""


@pytest.fixture
def config(tmp_path: Path, ledger: Ledger) -> LocalSource:
    servers = {
        "raw": stdio(command("raw_server", "--ledger", str(ledger.path))),
        "failing": stdio([sys.executable, "-c", FAILING]),
    }
    return LocalSource(write_config(tmp_path, servers))


def wanted(name: str, *words: str, is_json: bool = False) -> FeatureRequest:
    return FeatureRequest(name, words, None, is_json)


async def test_text_is_printed_and_progress_shown_beside_it(config: LocalSource, capsys: pytest.CaptureFixture[str]) -> None:
    call = wanted("raw.echo", "text=hello", "mode=progress:2")
    assert await call_tool(config, call, wait=20) == Exit.SUCCESS
    told = capsys.readouterr()
    assert told.out == "hello\n"
    assert told.err == "progress: 1/2\nprogress: 2/2\n"


async def test_json_is_the_result_as_the_server_gave_it(config: LocalSource, capsys: pytest.CaptureFixture[str]) -> None:
    assert await call_tool(config, wanted("raw.echo", "text=a", is_json=True), wait=20) == Exit.SUCCESS
    assert json.loads(capsys.readouterr().out)["content"] == [{"type": "text", "text": "a"}]


async def test_a_result_without_content_prints_nothing(config: LocalSource, capsys: pytest.CaptureFixture[str]) -> None:
    assert await call_tool(config, wanted("failing.quiet"), wait=20) == Exit.SUCCESS
    assert capsys.readouterr().out == ""


async def test_a_tool_that_says_no_ends_with_1_and_its_words_on_stderr(
    config: LocalSource, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandFailed) as failed:
        await call_tool(config, wanted("failing.fail"), wait=20)
    assert failed.value.exit == Exit.CALL_FAILED
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "no such file\n")
    assert await call_tool(config, wanted("failing.fail", is_json=True), wait=20) == Exit.CALL_FAILED
    assert json.loads(capsys.readouterr().out)["isError"] is True


async def test_a_fault_says_whether_the_tool_ran(config: LocalSource, capsys: pytest.CaptureFixture[str]) -> None:
    call = wanted("raw.pay", "nonce=1", "mode=die_after_ledger", is_json=True)
    with pytest.raises(CommandFailed) as failed:
        await call_tool(config, call, wait=20)
    assert failed.value.exit == Exit.CALL_FAILED
    assert failed.value.advice[0].startswith("executed: unknown")
    assert json.loads(capsys.readouterr().out)["error"]["reason"] == "lost"


async def test_a_running_hubs_fault_is_told_in_its_own_words(tmp_path: Path) -> None:
    async with serving(tmp_path, {"raw": stdio(command("raw_server"))}, limits=PATIENT) as served:
        source = RemoteSource(HttpSettings(served.url), has_key=False)
        with pytest.raises(CommandFailed) as failed:
            await call_tool(source, wanted("raw.pay", "nonce=1", "mode=die_after_ledger"), wait=20)
        assert failed.value.message.startswith("Lost server raw during the call")
        assert failed.value.advice[0].startswith("executed: unknown")


async def test_whoever_stops_waiting_withdraws_the_call_at_the_server(config: LocalSource, ledger: Ledger) -> None:
    calling = asyncio.ensure_future(call_tool(config, wanted("raw.pay", "nonce=1", "mode=sleep:60"), wait=20))
    async with asyncio.timeout(20):
        while not ledger.lines():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert '"cancelled": "1"' in ledger.lines()[-1]


def test_arguments_are_read_from_files_and_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "note").write_text("from a file")
    assert read_text(str(tmp_path / "note")) == "from a file"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from stdin")))
    assert read_text("-") == "from stdin"


async def test_a_prompt_is_written_out_and_a_resource_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = LocalSource(write_config(tmp_path, {"shelf": stdio(command("full_sdk2"))}))
    assert await write_prompt(source, wanted("greet", "name=Ada"), wait=30) == Exit.SUCCESS
    assert capsys.readouterr().out == f"user: {content.greeting('Ada', 'warm')}\n"
    assert await read_resource(source, content.UNLISTED_URI, wait=30, is_json=False) == Exit.SUCCESS
    assert capsys.readouterr().out == f"{content.UNLISTED}\n"
    with pytest.raises(CommandFailed) as failed:
        await read_resource(source, "memo://shelf/none", wait=30, is_json=True)
    assert failed.value.exit == Exit.CALL_FAILED
    assert json.loads(capsys.readouterr().out)["error"]["server"] == "shelf"
