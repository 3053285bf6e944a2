"""A configuration is looked at without starting anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.cli.config import check_configuration
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
    assert check_configuration(None, is_json=False) == Exit.SUCCESS
    assert capsys.readouterr().out == f"{file}: 1 server, 0 callers, listening on 127.0.0.1:8765\n"


def test_a_check_without_a_file_reports_builtin_tools_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_configuration(None, is_json=False) == Exit.SUCCESS
    assert "built-in tools only" in capsys.readouterr().out


def test_a_broken_entry_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "[servers.a]\nurl = 5\n")
    assert check_configuration(file, is_json=False) == Exit.CONFIGURATION
    output = capsys.readouterr()
    assert "warning: isthmus.toml: servers.a.url must be a text, not a number" in output.out
    assert "start and ignore" in output.err


def test_a_hub_that_would_be_open_to_a_network_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, '[hub]\nhost = "0.0.0.0"\nodd = 1\n')
    assert check_configuration(file, is_json=False) == Exit.CONFIGURATION
    output = capsys.readouterr()
    assert "error: hub.host must be loopback while no caller is configured" in output.out
    assert "warning: isthmus.toml: hub.odd" in output.out
    assert "refuse to start" in output.err


def test_a_key_that_was_made_is_as_good_as_a_caller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, '[hub]\nhost = "0.0.0.0"\nstate = "state"\n')
    assert main(["token", "create", "planner", "--allow", "*"]) == Exit.SUCCESS
    assert check_configuration(file, is_json=False) == Exit.SUCCESS
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
                "fix": "write what the finding asks for, then: isthmus config check",
            }
        ],
    }
    file.write_text("")
    assert check_configuration(file, is_json=True) == Exit.SUCCESS
    assert json.loads(capsys.readouterr().out) == {"file": str(file), "usable": True, "findings": []}


# -- show ----------------------------------------------------------------------------------------------------------

FILE = """import = ["one.json"]
[hub]
port = 9000

[servers.files]
command = "npx"
args = ["--token", "hunter22"]
env = { API_KEY = "xyz", MODE = "fast" }
enabled = true
autoApprove = ["x"]

[servers.plain]
rpc = "http://a/rpc"
user_headers = ["X-User-Id"]
include_tools = []
exclude_tools = ["x"]
cache = { tools = ["t"] }
[servers.plain.tools.t]
[servers.plain.defaults.t]
key = "k"

[servers.fun]
python = "a.b"

[servers.helper]
agent = "https://a.example/?token=hunter23"
origins = ["https://b.example"]

[storage]
url = "postgresql://hub:${TOKEN}@db/isthmus?password=hunter22"

[callers.planner]
key = "k3y-of-the-planner-0123"
allow = ["*"]
"""
OTHER = """{
  "mcpServers": {
    "search": {"url": "https://a.example/mcp",
      "headers": {"Authorization": "Bearer ${TOKEN}", "X-Team": "blue"}},
    "socket": {"url": "wss://a.example/"}
  }
}
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("ISTHMUS_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TOKEN", "s3cret-value-of-it")
    monkeypatch.setenv("MCP_CALL_TIMEOUT", "61")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "isthmus.toml").write_text(FILE)
    (tmp_path / "one.json").write_text(OTHER)
    return tmp_path


def rows(text: str) -> dict[str, str]:
    return {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines()}


@pytest.mark.usefixtures("folder")
def test_every_value_is_shown_and_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show"]) == Exit.SUCCESS
    shown = capsys.readouterr()
    values = rows(shown.out)
    assert values["hub.port"] == "9000"
    assert values["limits.call_seconds"] == "61.0"
    assert values["a2a.card"] == '"merged"'
    assert values["storage.url"] == '"postgresql://hub:***@db/isthmus"'
    assert values["servers.files.args"] == '["--token","***"]'
    assert values["servers.files.env"] == '{"API_KEY":"***","MODE":"fast"}'
    assert values["servers.files.extra"] == '["autoApprove"]'
    assert values["servers.search.headers"] == '{"Authorization":"***","X-Team":"blue"}'
    assert values["servers.search.type"] == '"auto"'
    assert values["servers.plain.user_headers"] == '["X-User-Id"]'
    assert values["servers.socket.type"] == '"ws"'
    assert values["servers.plain.tools"] == '["t"]'
    assert values["servers.plain.include_tools"] == '["(none)"]'
    assert values["servers.plain.defaults"] == '{"t":["key"]}'
    assert values["servers.fun.python"] == '"a.b"'
    assert values["servers.helper.agent"] == '"https://a.example/?token=***"'
    assert values["servers.helper.origins"] == '["https://b.example"]'
    assert values["callers.planner.key"] == '"***"'
    assert values["relay.key"] == "null"
    for secret in ("hunter22", "hunter23", "xyz", "s3cret-value-of-it", "k3y-of-the-planner-0123"):
        assert secret not in shown.out + shown.err
    assert "1 finding: `isthmus config check` lists them." in shown.err


def test_the_origin_of_each_value_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--origin"]) == Exit.SUCCESS
    values = rows(capsys.readouterr().out)
    own, other = folder / "isthmus.toml", folder / "one.json"
    assert values["hub.host"] == '"127.0.0.1" default'
    assert values["hub.port"] == f"9000 {own}:3 hub.port"
    assert values["limits.call_seconds"] == "61.0 variable MCP_CALL_TIMEOUT"
    assert values["servers.files.timeout"] == "61.0 variable MCP_CALL_TIMEOUT"
    assert values["servers.files.command"] == f'"npx" {own}:6 servers.files.command'
    assert values["servers.files.disabled"] == f"false {own}:9 servers.files.enabled"
    assert values["servers.files.extra"] == f'["autoApprove"] {own}:5 servers.files'
    assert values["servers.search.url"] == f'"https://a.example/mcp" {other}:3 mcpServers.search.url'
    assert values["servers.search.headers"].endswith(f"{other}:4 mcpServers.search.headers, with TOKEN")
    assert values["servers.files.isolation"] == '"shared" default'


def test_settings_of_callers_are_shown_with_their_origin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    caller = '\n[callers."the other"]\nkey = "${TOKEN}"\nallow = ["*"]\ntenant = "blue"\n'
    (folder / "isthmus.toml").write_text(FILE + caller)
    assert main(["config", "show", "--origin"]) == Exit.SUCCESS
    shown = capsys.readouterr().out
    file, line = folder / "isthmus.toml", len(FILE.splitlines()) + 3
    assert f'"***" {file}:{line - 4} callers.planner.key' in " ".join(shown.split())
    assert f'"***" {file}:{line} callers."the other".key, with TOKEN' in " ".join(shown.split())
    assert f'"blue" {file}:{line + 2} callers."the other".tenant' in " ".join(shown.split())
    assert rows(shown)["callers.planner.tenant"] == '"default" default'


def test_the_relay_is_shown_without_its_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = '\n[relay]\nkey = "${TOKEN}"\nwait = 2\n[relay.agents."acme/kitchen"]\ndeny = ["x"]\n'
    (folder / "isthmus.toml").write_text(FILE + table)
    assert main(["config", "show", "--origin"]) == Exit.SUCCESS
    shown = capsys.readouterr().out
    file, line = folder / "isthmus.toml", len(FILE.splitlines()) + 3
    values = rows(shown)
    assert values["relay.key"] == f'"***" {file}:{line} relay.key, with TOKEN'
    assert values["relay.wait"] == f"2 {file}:{line + 1} relay.wait"
    assert values["relay.forget"] == "86400.0 default"
    assert values["relay.compatible"] == "true default"
    assert f'["x"] {file}:{line + 3} relay.agents."acme/kitchen".deny' in " ".join(shown.split())
    assert "s3cret-value-of-it" not in shown


def test_passwords_in_addresses_and_numbers_are_hidden(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "isthmus.toml").write_text(SECRETS)
    assert main(["config", "show"]) == Exit.SUCCESS
    values = rows(capsys.readouterr().out)
    assert values["servers.db.args"] == '["run","--db=***","9"]'
    assert values["servers.db.env"] == '{"DATABASE_URL":"***","API_KEY":"***","DB_PASS":"***","PWD":"/tmp"}'


SECRETS = """[servers.db]
command = "x"
args = ["run", "--db=mysql://me:hunter22@db/x", 9]
env = { DATABASE_URL = "postgres://me:hunter33@db/x", API_KEY = 9876543210, DB_PASS = "abc", PWD = "/tmp" }
"""


def test_credentials_of_callers_for_a_server_are_shown_redacted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = 'callers = { planner = { headers = { A = "hunter22" } }, "acme/ann" = { oauth = { grant = "device" } } }'
    file = folder / "own.toml"
    file.write_text(f'[servers.s]\nurl = "https://a.example"\ncredentials = "caller"\n{own}\n')
    assert main(["config", "show", "--config", str(file)]) == Exit.SUCCESS
    out = capsys.readouterr().out
    shown = json.loads(rows(out)["servers.s.callers"])
    assert shown["default/planner"] == {"headers": {"A": "***"}}
    assert shown["acme/ann"]["oauth"]["grant"] == "device"
    assert rows(out)["servers.s.credentials"] == '"caller"'
    assert "hunter22" not in out


def test_programs_get_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--origin", "--json"]) == Exit.SUCCESS
    output = json.loads(capsys.readouterr().out)
    assert output["file"] == str(folder / "isthmus.toml")
    assert output["files"] == [str(folder / "isthmus.toml"), str(folder / "one.json")]
    assert {
        "path": "servers.search.url",
        "value": "https://a.example/mcp",
        "origin": {
            "file": str(folder / "one.json"),
            "line": 3,
            "path": "mcpServers.search.url",
            "borrowed": [],
        },
    } in output["values"]
    assert {"path": "hub.host", "value": "127.0.0.1", "origin": None} in output["values"]
    assert [finding["code"] for finding in output["findings"]] == ["ISC-202"]


def test_without_a_file_there_are_the_defaults(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "isthmus.toml").unlink()
    assert main(["config", "show", "--json"]) == Exit.SUCCESS
    assert json.loads(capsys.readouterr().out)["file"] is None
    assert main(["config", "show"]) == Exit.SUCCESS
    assert "these are the defaults" in capsys.readouterr().err


def test_a_configuration_that_cannot_be_used_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "isthmus.toml").write_text("[hub\n")
    assert main(["config", "show"]) == Exit.CONFIGURATION
    assert "cannot be used" in capsys.readouterr().err


def test_keys_of_the_state_folder_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "isthmus.toml").write_text('[servers.a]\ncommand = "x"\n')
    for name in ("ann", "bob"):
        assert main(["token", "create", name, "--allow", "*"]) == Exit.SUCCESS
    assert main(["token", "revoke", "bob"]) == Exit.SUCCESS
    capsys.readouterr()
    assert main(["config", "check"]) == Exit.SUCCESS
    assert ": 1 server, 1 key in the state folder, listening on" in " ".join(capsys.readouterr().out.split())


def test_issuers_are_shown_and_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = 'issuer = "https://login.example"\naudience = "https://hub.example"\nscopes = { "a" = ["files.*"] }\n'
    (folder / "isthmus.toml").write_text(f"[issuers.corp]\n{said}")
    assert main(["config", "show", "--json"]) == Exit.SUCCESS
    values = {each["path"]: each["value"] for each in json.loads(capsys.readouterr().out)["values"]}
    assert values["issuers.corp.issuer"] == "https://login.example"
    assert values["issuers.corp.scopes"] == {"a": ["files.*"]}
    assert main(["config", "check"]) == Exit.SUCCESS
    assert "0 servers, 0 callers, 1 issuer, listening on" in capsys.readouterr().out
