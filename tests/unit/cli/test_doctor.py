"""How the configuration and each server stand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.doctor import CODES, NOT_STARTED, examine, show_codes
from isthmus.cli.exits import Exit
from isthmus.cli.hub import LocalSource, RemoteSource
from isthmus.config import codes
from isthmus.upstream.settings import HttpSettings
from tests.hubs import PATIENT, serving, stdio, write_config
from tests.peers.launch import command

RAW = command("raw_server")
DEAD = {"command": "/no/such/program", "args": ["--token", "s3cret-of-mine"]}


def config(folder: Path, servers: dict[str, Any], **tables: Any) -> LocalSource:
    return LocalSource(write_config(folder, servers, **tables))


async def test_all_well_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers = {"raw": stdio(RAW), "off": {"command": "x", "disabled": True}}
    assert await examine(config(tmp_path, servers), wait=20, is_json=False) == Exit.SUCCESS
    out = capsys.readouterr().out
    assert out.startswith(f"configuration: {tmp_path / 'isthmus.json'}\n")
    assert "✓  raw      ready     4 tools" in out
    assert "MCP 2026-07-28" in out
    assert out.endswith("all servers are well\n")


async def test_a_broken_server_ends_with_1_and_says_what_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], deaf_port: int
) -> None:
    servers = {
        "dead": DEAD,
        "away": {"url": f"http://127.0.0.1:{deaf_port}/mcp"},
        "odd": stdio([*RAW, "--mode", "lying_list:duplicates"]),
    }
    assert await examine(config(tmp_path, servers), wait=20, is_json=False) == Exit.CALL_FAILED
    out = capsys.readouterr().out
    assert "✗  dead     retrying" in out
    place = f"of {tmp_path / 'isthmus.json'}"
    assert "✗ ISD-102 dead: '/no/such/program' could not be started" in out
    assert f"    mend: in servers.dead {place}, correct command, or install /no/such/program\n" in out
    assert "✗ ISD-103 away: connection refused" in out
    assert f"    mend: in servers.away {place}, start the server, or correct url\n" in out
    assert "· ISD-401 odd: 'pay' is listed twice" in out
    assert out.endswith("broken: away, dead\n")
    assert "s3cret" not in out


async def test_a_server_that_has_not_answered_yet_is_to_be_given_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = {"slow": stdio(["/bin/sh", "-c", "while read line; do :; done"])}
    assert await examine(config(tmp_path, servers), wait=0.2, is_json=False) == Exit.CALL_FAILED
    out = capsys.readouterr().out
    assert "✗ ISD-109 slow: it has not answered yet\n    mend: give it longer" in out
    assert out.endswith("broken: slow\n")


async def test_findings_in_the_configuration_end_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert await examine(config(tmp_path, {"bad": {"url": 5}}), wait=20, is_json=False) == Exit.CONFIGURATION
    out = capsys.readouterr().out
    assert "  ISC-201 isthmus.json: servers.bad.url must be a text, not a number\n    mend: write what" in out


async def test_programs_get_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await examine(config(tmp_path, {"raw": stdio(RAW), "dead": DEAD}), wait=20, is_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["configuration"] == {"file": str(tmp_path / "isthmus.json"), "findings": [], "access": "open"}
    builtin, dead, raw = told["servers"]
    not_started, told_secret = told["findings"]
    assert not_started == {
        "code": "ISD-102",
        "kind": "command-not-started",
        "server": "dead",
        "message": dead["reason"],
        "mend": f"in servers.dead of {tmp_path / 'isthmus.json'}, correct command, or install /no/such/program",
    }
    assert (told_secret["code"], told_secret["server"]) == ("ISD-203", "dead")
    assert (builtin["state"], builtin["seconds"]) == ("ready", None)
    assert (dead["state"], dead["tools"]) == ("retrying", 0)
    assert (raw["tools"], raw["era"]) == (4, "2026-07-28")
    assert raw["seconds"] > 0


async def test_without_a_file_there_are_the_built_in_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISTHMUS_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert await examine(LocalSource(None), wait=20, is_json=False) == Exit.SUCCESS
    said = capsys.readouterr().out
    assert said.startswith("configuration: no file found, so there are only the built-in tools\n")
    assert "access: open: every program on this machine may call everything" in said


async def test_without_a_file_the_servers_of_the_environment_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, deaf_port: int
) -> None:
    monkeypatch.delenv("ISTHMUS_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_SERVER_MAP", f'{{"files": "http://127.0.0.1:{deaf_port}"}}')
    monkeypatch.chdir(tmp_path)
    await examine(LocalSource(None), wait=5, is_json=False)
    assert capsys.readouterr().out.startswith("configuration: no file found; servers are those of MCP_SERVER_MAP\n")


async def test_a_running_hub_is_examined_by_what_it_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path, {"raw": stdio(RAW), "dead": DEAD}, limits=PATIENT) as served:
        source = RemoteSource(HttpSettings(served.url), has_key=False)
        assert await examine(source, wait=20, is_json=False) == Exit.CALL_FAILED
        out = capsys.readouterr().out
        assert out.startswith(f"hub: {served.url}, reached in ")
        assert "✓  raw      ready     4 tools" in out
        assert await examine(source, wait=20, is_json=True) == Exit.CALL_FAILED
        told = json.loads(capsys.readouterr().out)
        assert told["hub"]["url"] == served.url
        assert [server["server"] for server in told["servers"]] == ["builtin", "dead", "raw"]
        assert [(found["code"], found["mend"]) for found in told["findings"]] == [("ISD-102", NOT_STARTED.mend)]


@pytest.mark.parametrize("is_json", [True, False])
def test_every_kind_of_finding_can_be_listed(capsys: pytest.CaptureFixture[str], *, is_json: bool) -> None:
    assert show_codes(is_json=is_json) == Exit.SUCCESS
    out = capsys.readouterr().out
    assert all(code.number in out and code.name in out for code in (*CODES, *codes.CODES))
    assert not is_json or len(json.loads(out)["codes"]) == len(CODES) + len(codes.CODES)
