"""A configuration is looked at without starting anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.cli.check import check_configuration
from isthmus.cli.exits import Exit
from isthmus.cli.main import main


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ISTHMUS_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def written(folder: Path, text: str) -> Path:
    file = folder / "isthmus.toml"
    file.write_text(text)
    return file


def test_a_good_file_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, '[servers.a]\ncommand = "x"\n')
    assert check_configuration(None, is_json=False) == Exit.WELL
    assert capsys.readouterr().out == f"{file}: 1 server, 0 callers, listening on 127.0.0.1:8765\n"


def test_no_file_is_said_to_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_configuration(None, is_json=False) == Exit.WELL
    assert "built-in tools only" in capsys.readouterr().out


def test_a_broken_entry_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "[servers.a]\nurl = 5\n")
    assert check_configuration(file, is_json=False) == Exit.CONFIGURATION
    told = capsys.readouterr()
    assert "warning: isthmus.toml: servers.a.url must be a text, not a number" in told.out
    assert "start without" in told.err


def test_a_hub_that_would_be_open_to_a_network_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, '[hub]\nhost = "0.0.0.0"\nodd = 1\n')
    assert check_configuration(file, is_json=False) == Exit.CONFIGURATION
    told = capsys.readouterr()
    assert "error: hub.host must be loopback while no caller is configured" in told.out
    assert "warning: isthmus.toml: hub.odd" in told.out
    assert "refuse to start" in told.err


def test_a_key_that_was_made_is_as_good_as_a_caller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, '[hub]\nhost = "0.0.0.0"\nstate = "state"\n')
    assert main(["token", "create", "planner", "--allow", "*"]) == Exit.WELL
    assert check_configuration(file, is_json=False) == Exit.WELL
    (tmp_path / "state" / "keys" / "keys.json").unlink()
    assert check_configuration(file, is_json=False) == Exit.CONFIGURATION
    assert "keys.json cannot be used: it is gone" in capsys.readouterr().out


def test_findings_for_programs_name_file_path_and_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "[hub]\nport = 99999\n")
    assert check_configuration(file, is_json=True) == Exit.CONFIGURATION
    assert json.loads(capsys.readouterr().out) == {
        "file": None,
        "usable": False,
        "findings": [
            {
                "weight": "error",
                "file": str(file),
                "path": "hub.port",
                "value": "99999",
                "message": "must be 0 to 65535",
                "advice": "",
                "code": "ISC-201",
                "kind": "bad-value",
                "mend": "write what the finding asks for, then: isthmus config check",
            }
        ],
    }
    file.write_text("")
    assert check_configuration(file, is_json=True) == Exit.WELL
    assert json.loads(capsys.readouterr().out) == {"file": str(file), "usable": True, "findings": []}
