"""How the configuration and each server stand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.doctor import examine
from isthmus.cli.exits import Exit
from isthmus.cli.sources import Own, Running
from isthmus.upstream.settings import HttpSettings
from tests.hubs import PATIENT, serving, stdio, write_config
from tests.peers.launch import command

RAW = command("raw_server")
DEAD = {"command": "/no/such/program", "args": ["--token", "s3cret-of-mine"]}


def config(folder: Path, servers: dict[str, Any], **tables: Any) -> Own:
    return Own(write_config(folder, servers, **tables))


async def test_all_well_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers = {"raw": stdio(RAW), "off": {"command": "x", "disabled": True}}
    assert await examine(config(tmp_path, servers), wait=20, is_json=False) == Exit.WELL
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
        "slow": {"command": "sleep", "args": ["30"]},
        "odd": stdio([*RAW, "--mode", "lying_list:duplicates"]),
    }
    assert await examine(config(tmp_path, servers), wait=6, is_json=False) == Exit.CALL_FAILED
    out = capsys.readouterr().out
    assert "✗  dead     retrying" in out
    assert "  try: see what it says when run by hand: /no/such/program --token ***" in out
    assert "connection refused" in out
    assert "  try: check that its url is right" in out
    assert "  try: it is still starting" in out
    assert "  note: 'pay' is listed twice" in out
    assert out.endswith("broken: away, dead, slow\n")
    assert "s3cret" not in out


async def test_findings_in_the_configuration_end_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert await examine(config(tmp_path, {"bad": {"url": 5}}), wait=20, is_json=False) == Exit.CONFIGURATION
    assert "  isthmus.json: servers.bad.url must be a text, not a number" in capsys.readouterr().out


async def test_programs_get_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await examine(config(tmp_path, {"raw": stdio(RAW), "dead": DEAD}), wait=20, is_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["configuration"] == {"file": str(tmp_path / "isthmus.json"), "findings": []}
    builtin, dead, raw = told["servers"]
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
    assert await examine(Own(None), wait=20, is_json=False) == Exit.WELL
    assert capsys.readouterr().out.startswith("configuration: no file found")


async def test_a_running_hub_is_examined_by_what_it_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path, {"raw": stdio(RAW), "dead": DEAD}, limits=PATIENT) as served:
        source = Running(HttpSettings(served.url), has_key=False)
        assert await examine(source, wait=20, is_json=False) == Exit.CALL_FAILED
        out = capsys.readouterr().out
        assert out.startswith(f"hub: {served.url}, reached in ")
        assert "✓  raw      ready     4 tools" in out
        assert await examine(source, wait=20, is_json=True) == Exit.CALL_FAILED
        told = json.loads(capsys.readouterr().out)
        assert told["hub"]["url"] == served.url
        assert [server["server"] for server in told["servers"]] == ["builtin", "dead", "raw"]
