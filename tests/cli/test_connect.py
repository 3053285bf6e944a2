"""The hub written into each client's real file, read back as that client writes it, and taken out again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import isthmus
from isthmus.app.state_folder import RunningHubInfo, announced
from isthmus.cli import connect
from isthmus.cli.find_hub import is_taken
from isthmus.cli.main import main
from isthmus.config.client_file_reader import HostContext
from isthmus.config.client_formats import CLIENTS, WRITTEN_FORMS, project_files, user_files
from isthmus.config.files import read_document
from isthmus.config.importing import load_servers
from isthmus.upstream.server_settings import HttpSettings, ServerSettings, StdioSettings

SAMPLES = Path(__file__).parents[1] / "unit" / "config" / "samples"
URL = "http://127.0.0.1:8765/mcp"
AS_MEANT = {"cursor", "vscode", "windsurf", "zed", "kiro", "opencode"}
"""Clients whose files do not say which transport an address has."""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean home, and a project to work in."""
    for name in [name for name in os.environ if name.startswith(("ISTHMUS_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SEARCH_TOKEN", "t")
    monkeypatch.setattr(sys, "argv", ["/opt/isthmus/bin/isthmus"])
    monkeypatch.setattr(connect, "is_taken", is_taken_elsewhere)
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "work" / "isthmus.toml").write_text(f'[hub]\nstate = "{tmp_path}/state"\n')
    return tmp_path / "work"


async def is_taken_elsewhere(url: str) -> bool:
    """The machine may have a hub at the usual address, which is nothing to these tests."""
    return url != URL and await is_taken(url)


def file_of(client: str, work: Path) -> Path:
    """The client's file, with what a user of that client may have in it."""
    samples = [path for path in (SAMPLES / client).rglob("*") if path.is_file() and path.name != ".env"]
    sample = max(samples, key=lambda path: path.stat().st_size)
    paths = user_files(CLIENTS[client], work.parent / "home", {})
    file = next(path for path in paths if path.suffix == sample.suffix)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(sample.read_bytes())
    return file


def read_back(client: str, file: Path, name: str = "hub") -> ServerSettings:
    """The hub as `isthmus import` reads it from the client's file."""
    home = Path.home()
    loaded = load_servers(read_document(file, CLIENTS[client]), HostContext(os.environ, Path.cwd(), home))
    [server] = [server for each, server in loaded.servers.items() if each == name]
    return server


@pytest.mark.parametrize("client", WRITTEN_FORMS)
def test_a_round_trip(client: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = file_of(client, work)
    before = file.read_bytes()
    assert main(["connect", client, "--name", "hub", "--yes"]) == 0, capsys.readouterr().err
    assert f"Wrote hub into {file}." in capsys.readouterr().out
    reach = read_back(client, file).reach
    if WRITTEN_FORMS[client].http is None:
        assert isinstance(reach, StdioSettings)
        assert [reach.command, *reach.args] == [
            "/opt/isthmus/bin/isthmus", "stdio", "--config", str(work / "isthmus.toml")
        ]  # fmt: skip
    else:
        assert isinstance(reach, HttpSettings)
        assert (reach.url, reach.carrier) == (URL, "auto" if client in AS_MEANT else "http")
    lines = [line.rstrip(",") for line in before.decode().splitlines()]
    now = [line.rstrip(",") for line in file.read_text().splitlines()]
    assert all(line in now for line in lines)
    assert main(["connect", client, "--name", "hub", "--yes"]) == 0
    assert "has the hub already" in capsys.readouterr().out
    assert main(["connect", client, "--name", "hub", "--undo", "--yes"]) == 0
    assert file.read_bytes() == before
    assert not list(file.parent.glob("*isthmus*"))


@pytest.mark.parametrize("client", WRITTEN_FORMS)
def test_a_client_without_a_file_gets_one_and_loses_it_again(client: str, work: Path) -> None:
    assert main(["connect", client, "--stdio", "--name", "hub", "--yes"]) == 0
    [file] = [path for path in (work.parent / "home").rglob("*") if path.is_file()]
    reach = read_back(client, file).reach
    assert isinstance(reach, StdioSettings)
    assert reach.command == "/opt/isthmus/bin/isthmus"
    assert main(["connect", client, "--name", "hub", "--undo", "--yes"]) == 0
    assert not file.exists()


def test_claude_desktop_starts_the_hub(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(Path(isthmus.__file__).with_name("__main__.py"))])
    file = file_of("claude-desktop", work)
    assert main(["connect", "claude-desktop", "--yes"]) == 0
    entry = json.loads(file.read_text())["mcpServers"]["isthmus"]
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    # From another folder and with hardly any variables, as the program of a desktop does.
    with subprocess.Popen(
        [entry["command"], *entry["args"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdin.writelines(json.dumps(line).encode() + b"\n" for line in lines)
        started.stdin.flush()
        answers = [json.loads(started.stdout.readline()) for _ in range(2)]
        started.stdin.close()
    assert answers[0]["result"]["serverInfo"]["name"] == "isthmus"
    assert "builtin.echo" in {tool["name"] for tool in answers[1]["result"]["tools"]}


@pytest.mark.parametrize("client", [name for name in WRITTEN_FORMS if project_files(CLIENTS[name], Path())])
def test_a_project_s_file_has_no_key(
    client: str, work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["token", "create", "me", "--allow", "*"]) == 0
    capsys.readouterr()
    assert main(["connect", client, "--project", "--name", "hub", "--yes"]) == 0
    [file] = [path for path in work.rglob("*") if path.is_file() and path.name != "isthmus.toml"]
    said = capsys.readouterr().err
    if WRITTEN_FORMS[client].variable:
        assert f"Set ISTHMUS_KEY for {CLIENTS[client].title} to this key" in said
        key = said.partition("not stored: ")[2].split()[0]
        assert key not in file.read_text()
        monkeypatch.setenv("ISTHMUS_KEY", key)
    reach = read_back(client, file).reach
    assert isinstance(reach, HttpSettings)
    assert reach.headers["Authorization"].startswith("Bearer isk_")


def test_a_key_is_made_where_the_hub_wants_one(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of("cursor", work)
    assert main(["token", "create", "cursor", "--allow", "*"]) == 0
    capsys.readouterr()
    assert main(["connect", "cursor", "--print"]) == 0
    shown = capsys.readouterr()
    assert '"Authorization": "Bearer ***"' in shown.out
    assert "isthmus token create cursor --allow '*'" in shown.err
    assert main(["connect", "cursor", "--name", "hub", "--yes"]) == 0
    said = capsys.readouterr().err
    assert "this makes one for the caller cursor-2, which may call everything" in said
    reach = read_back("cursor", file).reach
    assert isinstance(reach, HttpSettings)
    key = reach.headers["Authorization"].removeprefix("Bearer ")
    assert key not in said
    assert file.stat().st_mode & 0o777 == 0o600
    # Again: the client keeps its key, and no other is made.
    assert main(["connect", "cursor", "--name", "hub", "--yes"]) == 0
    assert capsys.readouterr().out == f"Cursor has the hub already: {file}\n"
    assert main(["connect", "cursor", "--name", "hub", "--undo"]) == 2
    assert key not in capsys.readouterr().err
    monkeypatch.setenv("ISTHMUS_KEY", "mine")
    assert main(["connect", "cursor", "--name", "hub", "--yes"]) == 0
    assert '"Bearer mine"' in file.read_text()


def test_nothing_is_written_without_a_yes(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = file_of("vscode", work)
    before = file.read_bytes()
    assert main(["connect", "vscode"]) == 2
    said = capsys.readouterr().err
    assert '+    "isthmus": {' in said
    assert "Confirm with --yes" in said
    assert file.read_bytes() == before


def test_the_address_is_that_of_the_hub_that_runs(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = work.parent / "state"
    running = RunningHubInfo(os.getpid(), "http://127.0.0.1:9999", "k", str(work / "isthmus.toml"))
    assert main(["connect", "cursor", "--yes"]) == 0
    assert "The hub does not run yet: `isthmus serve` serves http://127.0.0.1:8765/mcp." in capsys.readouterr().err
    with announced(state, running):
        assert main(["connect", "cursor", "--yes"]) == 0
    assert "does not run" not in capsys.readouterr().err
    assert '"http://127.0.0.1:9999/mcp"' in (work.parent / "home/.cursor/mcp.json").read_text()


def test_a_key_does_not_go_to_another_hub_at_the_port(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = work / "isthmus.toml"
    with socket.create_server(("127.0.0.1", 0)) as other:
        origin = f"http://127.0.0.1:{other.getsockname()[1]}"
        config.write_text(config.read_text() + f"port = {other.getsockname()[1]}\n")
        assert main(["connect", "cursor", "--yes"]) == 3
        said = capsys.readouterr().err
        assert f"the hub of {config} does not run, and another program listens at {origin}" in said
        assert main(["token", "create", "me", "--allow", "*"]) == 0
        assert main(["connect", "cursor", "--yes"]) == 3
        said = capsys.readouterr().err
        assert "would send its key there" in said
        assert "isthmus serve --port N" in said
        assert not (work.parent / "home/.cursor").exists()
        assert main(["connect", "cursor", "--hub", origin, "--yes"]) == 0


def test_later_changes_of_the_client_stay(work: Path) -> None:
    file = file_of("claude-code", work)
    assert main(["connect", "claude-code", "--yes"]) == 0
    file.write_text(file.read_text().replace("{", '{\n  "meanwhile": true,', 1))
    assert main(["connect", "claude-code", "--undo", "--yes"]) == 0
    assert "meanwhile" in file.read_text()
    assert "isthmus" not in file.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["connect", "curser"], "Did you mean cursor?"),
        (["connect", "goose", "--project"], "Goose has no file for a project"),
        (["connect", "codex", "--file", "x.json"], "--file must be a file of Codex, such as config.toml, got x.json"),
        (["connect", "cursor", "--hub", "x", "--config", "y"], "--hub and --config exclude each other"),
    ],
)
def test_mistakes_are_named(words: list[str], says: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_a_file_that_is_not_understood_is_left_alone(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = file_of("cursor", work)
    file.write_text("{nonsense")
    assert main(["connect", "cursor", "--yes"]) == 3
    assert "Nothing was changed. `--print` prints what to write" in capsys.readouterr().err
    assert file.read_text() == "{nonsense"


@pytest.mark.parametrize(
    ("words", "is_skipped"),
    [
        (["cursor"], True),
        (["cursor", "--stdio"], True),
        (["opencode", "--stdio"], True),
        (["cursor", "--hub", "https://hub.example"], False),
    ],
)
def test_the_hub_does_not_read_itself_back(words: list[str], is_skipped: bool, work: Path) -> None:  # noqa: FBT001
    """After `connect cursor`, an `import = ["cursor"]` would make the hub its own server."""
    file = file_of(words[0], work)
    assert main(["connect", *words, "--yes"]) == 0
    assert "isthmus" in file.read_text()
    assert main(["import", words[0]]) == 0
    assert ("isthmus" in tomllib.loads((work / "isthmus.toml").read_text())["servers"]) is not is_skipped


@pytest.mark.parametrize("client", WRITTEN_FORMS)
def test_the_page_shows_the_written_snippets(client: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
    snippet = page.partition(f"### {CLIENTS[client].title}\n")[2].partition("\n### ")[0].split("```")[1]
    snippet = snippet.partition("\n")[2].replace("/home/me/.local", "/opt/isthmus").replace("/home/me", str(work))
    assert main(["connect", client, "--print"]) == 0
    assert capsys.readouterr().out == snippet
    assert f"| `isthmus connect {client}` |" in page


def test_the_clients_are_listed(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file_of("cursor", work)
    assert main(["connect", "cursor", "--yes"]) == 0
    capsys.readouterr()
    assert main(["connect"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cursor", "connected", "~/.cursor/mcp.json"] in rows
    assert [row[0] for row in rows] == list(WRITTEN_FORMS)


def test_a_replaced_hub_is_named(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = work.parent / "other"
    other.mkdir()
    (other / "isthmus.toml").write_text(f'[hub]\nport = 9999\nstate = "{other}/state"\n')
    assert main(["connect", "codex", "-y"]) == 0
    assert "replaces" not in capsys.readouterr().err
    assert main(["connect", "codex", "-y", "--config", str(other / "isthmus.toml")]) == 0
    assert f"which pointed to {URL}; --name gives this hub another name." in capsys.readouterr().err
    assert main(["connect", "codex", "-y", "--stdio"]) == 0
    capsys.readouterr()
    assert main(["connect", "codex", "-y", "--stdio", "--config", str(other / "isthmus.toml")]) == 0
    assert f"which pointed to {work / 'isthmus.toml'};" in capsys.readouterr().err
