"""Servers are brought in from other clients, shown, and nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.edit_servers import ImportOptions, import_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.main import main
from isthmus.config.client_formats import CLIENTS
from isthmus.config.importing import transport_of
from isthmus.upstream.server_settings import (
    AgentSettings,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    StdioSettings,
    WebSocketSettings,
)

OWN = "# mine\n[hub]\nport = 9000  # kept\n"
ENTRIES: dict[str, dict[str, object]] = {
    "files": {"command": "npx", "args": ["-y", "x"]},
    "search": {"url": "https://a.example/mcp"},
}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("ISTHMUS_CONFIG", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def written(file: Path, entries: dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"mcpServers": entries}))
    return file


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def servers_in(file: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(file.read_text())["servers"]
    return table


def test_a_client_s_servers_are_merged_and_the_rest_stays_byte_for_byte(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(folder / ".cursor/mcp.json", ENTRIES)
    file = folder / "isthmus.toml"
    file.write_text(OWN)
    file.chmod(0o640)
    assert import_servers(ImportOptions(["cursor"])) == Exit.SUCCESS
    assert file.read_text().startswith(OWN)
    assert servers_in(file) == ENTRIES
    assert (folder / "isthmus.toml.bak").read_text() == OWN
    assert mode_of(file) == 0o640
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        f"files   stdio        new  {folder}/.cursor/mcp.json",
        f"search  http or sse  new  {folder}/.cursor/mcp.json",
    ]
    assert shown.err == f"Wrote 2 servers into {file}.\n"
    assert sorted(path.name for path in folder.iterdir()) == [".cursor", "isthmus.toml", "isthmus.toml.bak"]


def test_a_second_time_there_is_nothing_new(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder / ".cursor/mcp.json", ENTRIES)
    import_servers(ImportOptions(["cursor"]))
    before = (folder / "isthmus.toml").stat()  # when it was last read is of no concern
    capsys.readouterr()
    assert import_servers(ImportOptions(["cursor"])) == Exit.SUCCESS
    shown = capsys.readouterr()
    assert shown.out.count("already there") == 2
    assert "Nothing new" in shown.err
    after = (folder / "isthmus.toml").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_differing_entries_are_kept_unless_overridden(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder / ".cursor/mcp.json", ENTRIES)
    file = folder / "isthmus.toml"
    file.write_text(OWN + '\n[servers.files]\ncommand = "mine"\n')
    assert import_servers(ImportOptions(["cursor"])) == Exit.SUCCESS
    assert servers_in(file)["files"] == {"command": "mine"}
    shown = capsys.readouterr()
    assert "differs, left unchanged" in shown.out
    assert "--replace" in shown.err
    assert import_servers(ImportOptions(["cursor"], may_replace=True)) == Exit.SUCCESS
    assert servers_in(file) == ENTRIES
    assert file.read_text().startswith(OWN)


def test_a_dry_run_only_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder / ".cursor/mcp.json", ENTRIES)
    assert import_servers(ImportOptions(["cursor"], is_dry=True)) == Exit.SUCCESS
    assert not (folder / "isthmus.toml").exists()
    assert "Would write 2 servers" in capsys.readouterr().err


def test_a_file_with_secrets_is_for_its_owner_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder / ".cursor/mcp.json", {"a": {"command": "x", "env": {"API_KEY": "hunter22"}}})
    file = folder / "isthmus.toml"
    file.write_text(OWN)
    file.chmod(0o644)
    assert import_servers(ImportOptions(["cursor"])) == Exit.SUCCESS
    assert servers_in(file)["a"]["env"] == {"API_KEY": "hunter22"}
    assert (mode_of(file), mode_of(folder / "isthmus.toml.bak")) == (0o600, 0o600)
    shown = capsys.readouterr()
    assert "a contains plaintext secrets." in shown.err
    assert "hunter22" not in shown.out + shown.err


def test_a_new_file_is_private_and_hidden_files_are_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder / "mcp.json", ENTRIES)
    written(folder / ".cursor/mcp.json", {"a": {"command": "x"}})
    assert import_servers(ImportOptions(["cursor"])) == Exit.SUCCESS
    assert mode_of(folder / "isthmus.toml") == 0o600
    assert "mcp.json is no longer read now" in capsys.readouterr().err


def test_a_file_that_was_just_imported_need_not_be_imported_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(folder / "mcp.json", ENTRIES)
    assert import_servers(ImportOptions(["./mcp.json"])) == Exit.SUCCESS
    assert "import it too" not in capsys.readouterr().err


def test_two_clients_that_differ_do_not_take_turns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder / ".cursor/mcp.json", {"a": {"command": "one"}})
    written(folder / ".roo/mcp.json", {"a": {"command": "two"}})
    texts = []
    for _ in range(3):
        assert import_servers(ImportOptions(["all"], may_replace=True)) == Exit.SUCCESS
        texts.append((folder / "isthmus.toml").read_text())
    assert texts[0] == texts[1] == texts[2]
    assert capsys.readouterr().out.count("already there") == 2


def test_a_link_stays_a_link(folder: Path) -> None:
    written(folder / ".cursor/mcp.json", ENTRIES)
    real = folder.parent / "real.toml"
    real.write_text(OWN)
    (folder / "isthmus.toml").symlink_to(real)
    assert import_servers(ImportOptions(["cursor"])) == Exit.SUCCESS
    assert (folder / "isthmus.toml").is_symlink()
    assert servers_in(real).keys() == ENTRIES.keys()


def test_the_file_in_use_is_the_one_that_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder / ".cursor/mcp.json", ENTRIES)
    used = folder.parent / "used.toml"
    used.write_text(OWN)
    monkeypatch.setenv("ISTHMUS_CONFIG", str(used))
    assert import_servers(ImportOptions(["cursor"])) == Exit.SUCCESS
    # The file is for hubs that start anywhere; the client's file belongs to this folder.
    assert servers_in(used) == {**ENTRIES, "files": {**ENTRIES["files"], "cwd": str(folder)}}


def test_a_file_is_read_in_the_dialect_that_is_said(folder: Path) -> None:
    file = written(folder / "some.json", {"a": {"url": "https://a.example/x", "timeout": 45}})
    assert import_servers(ImportOptions([str(file)], dialect="cline", into=Path("other.toml"))) == Exit.SUCCESS
    assert servers_in(folder / "other.toml") == {"a": {"url": "https://a.example/x", "type": "sse", "timeout": 45}}


def test_findings_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(folder / ".cursor/mcp.json", {"a b": {"command": "${RUN_GONE}"}, "bad": {}})
    assert import_servers(ImportOptions(["cursor", "gone.json"], is_json=True)) == Exit.SUCCESS
    output = json.loads(capsys.readouterr().out)
    assert output["files"] == [{"file": str(file), "client": "cursor"}]
    assert [(server["name"], server["transport"], server["outcome"]) for server in output["servers"]] == [
        ("a-b", "stdio", "new"),
        ("bad", None, "broken"),
    ]
    assert [finding["code"] for finding in output["findings"]] == ["ISC-301", "ISC-208", "ISC-101", "ISC-204"]
    assert (output["written"], output["into"]) == (True, str(folder / "isthmus.toml"))


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (ImportOptions(["cursor"], dialect="cursr"), Exit.USAGE, "there is no dialect 'cursr'"),
        (ImportOptions(["cursor"], into=Path("x.json")), Exit.USAGE, "must be a TOML file"),
    ],
)
def test_wrong_usage_has_its_own_exit_code(wanted: ImportOptions, code: Exit, message: str) -> None:
    with pytest.raises(CommandFailed, match=message) as failed:
        import_servers(wanted)
    assert failed.value.exit == code


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[hub", "cannot be used"),
        ('servers = { a = { command = "x" } }', "cannot be added to"),
        ("servers = 5", "cannot be used"),
    ],
)
def test_a_file_that_cannot_be_added_to_is_left_alone(folder: Path, text: str, message: str) -> None:
    written(folder / ".cursor/mcp.json", ENTRIES)
    (folder / "isthmus.toml").write_text(text)
    with pytest.raises(CommandFailed, match=message) as failed:
        import_servers(ImportOptions(["cursor"]))
    assert failed.value.exit == Exit.CONFIGURATION
    assert (folder / "isthmus.toml").read_text() == text
    assert sorted(path.name for path in folder.iterdir()) == [".cursor", "isthmus.toml"]


def test_finding_nothing_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "all"]) == Exit.CONFIGURATION
    assert "No servers were found." in capsys.readouterr().err


def test_for_a_client_without_a_file_the_searched_places_are_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "cursor"]) == Exit.CONFIGURATION
    assert f"ISC-307: there is no file of Cursor to read (looked for {folder}/.cursor" in capsys.readouterr().err


def test_the_command_takes_all_its_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(folder / "x.json", ENTRIES)
    words = ["import", str(file), "--dialect", "cursor", "--into", "y.toml", "--dry-run", "--replace", "--json"]
    assert main(words) == Exit.SUCCESS
    assert json.loads(capsys.readouterr().out)["into"] == str(folder / "y.toml")


def test_the_help_names_every_client(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--help"]) == Exit.SUCCESS
    shown = capsys.readouterr().out
    assert [name for name in CLIENTS if name not in shown] == []


def test_a_terminal_gets_a_table_by_client(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(folder / ".cursor/mcp.json", ENTRIES)
    written(folder / ".roo/mcp.json", {"files": {"command": "other"}})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert import_servers(ImportOptions(["cursor", "roo"], is_dry=True)) == Exit.SUCCESS
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    lines = [line.split() for line in shown.splitlines()]
    assert lines == [
        ["Cursor:", f"{folder}/.cursor/mcp.json"],
        ["files", "stdio", "new"],
        ["search", "http", "or", "sse", "new"],
        [],
        ["Roo", "Code:", f"{folder}/.roo/mcp.json"],
        ["files", "stdio", "differs,", "left", "unchanged"],
    ]


def test_a_configuration_that_is_named_and_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_CONFIG", "gone.toml")
    with pytest.raises(CommandFailed, match=r"gone\.toml does not exist"):
        import_servers(ImportOptions(["cursor"]))


def test_a_folder_that_cannot_be_written_to_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder / ".cursor/mcp.json", ENTRIES)
    file = folder / "isthmus.toml"
    file.write_text(OWN)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CommandFailed, match="cannot be written: No space left on device") as failed:
        import_servers(ImportOptions(["cursor"]))
    assert failed.value.exit == Exit.CONFIGURATION
    assert file.read_text() == OWN
    assert sorted(path.name for path in folder.iterdir()) == [".cursor", "isthmus.toml", "isthmus.toml.bak"]


def test_our_own_file_is_not_imported_into_itself(folder: Path) -> None:
    file = folder / "isthmus.toml"
    file.write_text('[servers.a]\ncommand = "x"\n')
    assert import_servers(ImportOptions(["isthmus.toml"])) == Exit.CONFIGURATION
    assert file.read_text() == '[servers.a]\ncommand = "x"\n'


@pytest.mark.parametrize(
    ("reach", "word"),
    [
        (StdioSettings("x"), "stdio"),
        (HttpSettings("http://a"), "http or sse"),
        (HttpSettings("http://a", carrier="sse"), "sse"),
        (WebSocketSettings("ws://a"), "ws"),
        (JsonRpcSettings("http://a"), "rpc"),
        (AgentSettings("http://a"), "agent"),
        (PythonSettings("a"), "python"),
    ],
)
def test_every_way_has_its_word(reach: Reach, word: str) -> None:
    assert transport_of(reach) == word
