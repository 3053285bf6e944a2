"""Whatever a person pastes becomes servers with their text for the hub's file, or a sentence that says why not."""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config.client_file_reader import HostContext
from isthmus.config.client_formats import OWN
from isthmus.config.files import ParsedFile, read_document
from isthmus.config.formats import parse
from isthmus.config.importing import load_servers
from isthmus.config.pasting import PASTED_LENGTH_MAX, SERVERS_MAX, CannotPreview, Preview, preview
from isthmus.config.servers_in_file import ServerFile
from isthmus.upstream.server_settings import ServerSettings

HERE = Path("/hub")
AROUND = HostContext({"SEARCH_TOKEN": "token-of-the-search"}, HERE, Path("/home/ada"))
TOML = '# ours\n[servers.files]\ncommand = "npx"\nargs = ["-y", "files"]\n'


def own_file(folder: Path, name: str = "isthmus.toml", text: str = TOML) -> ServerFile:
    file = folder / name
    file.write_text(text)
    return ServerFile(file, text, read_document(file))


def servers_of(file: ServerFile) -> list[ServerSettings]:
    return list(load_servers(file.document, AROUND).servers.values())


def seen(text: str, folder: Path, name: str | None = None, target: ServerFile | None = None) -> Preview:
    target = target or own_file(folder)
    present = servers_of(target)
    return preview(text, name, target, present, {"builtin", *(each.name for each in present)}, AROUND)


def one(text: str, folder: Path) -> dict[str, Any]:
    """The entry of the only server, as the text for the file has it, under its name."""
    found = seen(text, folder)
    [server] = found.servers
    [(name, entry)] = tomllib.loads(found.text)["servers"].items()
    assert (server.name, server.outcome) == (name, "new")
    return {"name": name, **entry}


NPX = {"command": "npx", "args": ["-y", "notes"]}


@pytest.mark.parametrize(
    ("text", "form", "client", "entry"),
    [
        ('{"mcpServers": {"notes": {"command": "npx", "args": ["-y", "notes"]}}}', "json", None, NPX),
        ('// VS Code\n{"inputs": [], "servers": {"notes": {"command": "npx", "args": ["-y", "notes"]}},}',
         "json", "VS Code", NPX),
        ('{"context_servers": {"notes": {"command": {"path": "npx", "args": ["-y", "notes"]}}}}', "json", "Zed", NPX),
        ('{"notes": {"command": "npx", "args": ["-y", "notes"]}}', "json", None, NPX),
        ('"notes": {"command": "npx", "args": ["-y", "notes"]},', "json", None, NPX),
        ('"mcpServers": {"notes": {"command": "npx", "args": ["-y", "notes"]}}', "json", None, NPX),
        ('{"command": "npx", "args": ["-y", "notes"]}', "json", None, NPX),
        ('{"name": "notes", "config": {"command": "npx", "args": ["-y", "notes"]}}', "json", None, NPX),
        ('[{"name": "notes", "command": "npx", "args": ["-y", "notes"]}]', "json", None, NPX),
        ('[mcp_servers.notes]\ncommand = "npx"\nargs = ["-y", "notes"]', "toml", "Codex", NPX),
        ('[servers.notes]\ncommand = "npx"\nargs = ["-y", "notes"]', "toml", "Isthmus", NPX),
        ('command = "npx"\nargs = ["-y", "notes"]', "toml", None, NPX),
        ("extensions:\n  notes:\n    type: stdio\n    cmd: npx\n    args: [-y, notes]\n", "yaml", "Goose", NPX),
        ("npx -y notes", "command", None, NPX),
        ("$ npx \\\n  -y notes", "command", None, NPX),
        ("LEVEL=2 npx -y notes", "command", None, {**NPX, "env": {"LEVEL": "2"}}),
        ("claude mcp add -s user notes -- npx -y notes", "command", None, NPX),
        ("claude mcp add notes -e LEVEL=2 -- npx -y notes", "command", None, {**NPX, "env": {"LEVEL": "2"}}),
        ("codex mcp add notes --url https://notes.example/mcp", "command", None, {"url": "https://notes.example/mcp"}),
        ("isthmus add notes --no-check -- npx -y notes", "command", None, NPX),
        ("claude mcp add --transport sse notes https://notes.example/sse --header 'X-Id: 1'", "command", None,
         {"url": "https://notes.example/sse", "type": "sse", "headers": {"X-Id": "1"}}),
        ("claude mcp add-json notes '{\"command\": \"npx\", \"args\": [\"-y\", \"notes\"]}'", "command", None, NPX),
        ("https://mcp.notes.com/mcp", "url", None, {"url": "https://mcp.notes.com/mcp"}),
        ("  wss://notes.example/socket \n", "url", None, {"url": "wss://notes.example/socket", "type": "ws"}),
    ],
)  # fmt: skip
def test_every_form_becomes_the_entry_of_our_own_file(
    text: str, form: str, client: str | None, entry: dict[str, Any], tmp_path: Path
) -> None:
    assert one(text, tmp_path) == {"name": "notes", **entry}
    found = seen(text, tmp_path)
    assert (found.form, found.client, found.findings) == (form, client, ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "The text is empty"),
        ('{"mcpServers": {', "is not JSON"),
        ("[servers.x\ncommand = 1", "begins like a JSON list"),
        ("[servers.x]\ncommand = ", "is not TOML"),
        ("a:\n  - b\n c", "is not YAML"),
        ('{"hello": 1}', "has no server"),
        ('{"mcpServers": 5}', "mcpServers must be a table"),
        ("first line\nsecond line", "Paste one command"),
        ("npx 'unfinished", "a quote that does not end"),
        ("npx notes | tee log", "needs a shell"),
        ("LEVEL=x", "names no program"),
        ("claude mcp add notes", "needs a name and a URL or a command"),
        ("claude mcp add-json notes {", "add-json is not JSON"),
        ('{"command": "\\ud800"}', "no text"),
        ("x" * (PASTED_LENGTH_MAX + 1), "isthmus import FILE"),
        (json.dumps({str(n): {"command": "x"} for n in range(SERVERS_MAX + 1)}), "isthmus import FILE"),
    ],
)
def test_text_that_is_not_a_server_is_reported_with_advice(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(CannotPreview, match=says):
        seen(text, tmp_path)


def test_a_broken_entry_costs_only_itself(tmp_path: Path) -> None:
    text = '{"mcpServers": {"bad": {"type": "stdio"}, "good": {"url": "https://good.example/mcp"}}}'
    found = seen(text, tmp_path)
    assert [(each.name, each.outcome) for each in found.servers] == [("bad", "broken"), ("good", "new")]
    assert list(tomllib.loads(found.text)["servers"]) == ["good"]
    [finding] = found.findings
    assert (finding.file, finding.path) == (None, "mcpServers.bad")
    assert finding.fix


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://mcp.notion.com/mcp", "notion"),
        ("https://api.githubcopilot.com/mcp/", "githubcopilot"),
        ("http://localhost:3000/mcp", "local-3000"),
        ("http://127.0.0.1/mcp", "local"),
        ("npx -y @modelcontextprotocol/server-memory@latest", "memory"),
        ("npx -y @playwright/mcp@latest", "playwright"),
        ("uvx --from git+https://code.example/weather weather-mcp", "weather"),
        ("docker run -i --rm -e TOKEN ghcr.io/github/github-mcp-server", "github"),
        ("python -m weather_server", "weather"),
        ("node /opt/weather/weather.js", "weather"),
        ("./weather.sh", "weather"),
        ("天气", "server-"),
    ],
)
def test_a_server_without_a_name_gets_a_descriptive_one(text: str, name: str, tmp_path: Path) -> None:
    assert seen(text, tmp_path).servers[0].name.startswith(name)


def test_a_name_that_is_taken_gets_a_number_and_the_same_server_none(tmp_path: Path) -> None:
    other = seen('{"files": {"command": "other"}}', tmp_path)
    assert (other.servers[0].wanted, other.servers[0].name, other.servers[0].outcome) == ("files", "files-2", "new")
    assert [finding.code.name for finding in other.findings] == ["name-taken"]
    same = seen('{"mcpServers": {"files": {"command": "npx", "args": ["-y", "files"]}}}', tmp_path)
    assert (same.servers[0].name, same.servers[0].outcome, same.text) == ("files", "same", "")


def test_a_person_chooses_the_name_of_a_single_server(tmp_path: Path) -> None:
    assert seen("npx -y notes", tmp_path, "memo").servers[0].name == "memo"
    renamed = seen("npx -y notes", tmp_path, "my memo")
    assert renamed.servers[0].name == "my-memo"
    assert [finding.code.name for finding in renamed.findings] == ["server-renamed"]
    assert seen("npx -y notes", tmp_path, "builtin").servers[0].name != "builtin"
    with pytest.raises(CannotPreview, match="one server"):
        seen('{"a": {"command": "a"}, "b": {"command": "b"}}', tmp_path, "memo")


def test_a_variable_that_is_not_set_is_reported_once(tmp_path: Path) -> None:
    text = '{"s": {"url": "https://s.example/mcp", "headers": {"A": "${MISSING}", "B": "${SEARCH_TOKEN}"}}}'
    found = seen(text, tmp_path)
    assert [finding.code.name for finding in found.findings] == ["unresolved-variable"]
    assert "token-of-the-search" not in repr(found)


def test_secrets_in_plain_text_are_noticed(tmp_path: Path) -> None:
    assert seen("API_KEY=0123456789abcdef npx -y notes", tmp_path).servers[0].has_secrets
    assert not seen('{"s": {"command": "s", "env": {"API_KEY": "${KEY}"}}}', tmp_path).servers[0].has_secrets


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("isthmus.toml", TOML, "At the end of the file."),
        ("isthmus.json", '{"servers": {"files": {"command": "a"}}}', "Inside servers"),
        ("mcp.json", '{"mcpServers": {"files": {"command": "a"}}}', "Inside mcpServers"),
        ("isthmus.json", '{"hub": {"port": 1}}', "In the outermost object"),
        ("isthmus.json", '{"servers": {}}', "Inside servers."),
        ("isthmus.yaml", "servers:\n  files:\n    command: a\n", "Below servers"),
        ("isthmus.yaml", "hub:\n  port: 1\n", "In the outermost object"),
    ],
)
def test_the_text_fits_the_format_and_the_place_of_the_file(name: str, text: str, place: str, tmp_path: Path) -> None:
    target = own_file(tmp_path, name, text)
    found = seen('{"one": {"command": "x", "args": ["a b"]}, "two": {"command": "y"}}', tmp_path, target=target)
    assert found.place.startswith(place)
    assert (found.file, found.is_new_file) == (target.file, False)
    if name.endswith(".json"):
        # A person puts it behind the last member of the object that is there.
        at = text.rindex("}", 0, text.rindex("}")) if place.startswith("Inside") else text.rindex("}")
        comma = "" if text[at - 1] == "{" else ", "
        new = f"{text[:at]}{comma}{found.text}{text[at:]}"
    else:
        new = text + ("\n" if name.endswith(".toml") else "") + found.text
    table, _ = parse(target.file, new)
    root = "mcpServers" if name == "mcp.json" else "servers"
    added: Any = table[root]
    assert (added["one"], added["two"]) == ({"command": "x", "args": ["a b"]}, {"command": "y"})
    assert ("files" in added) == ("files" in text)


def test_an_empty_table_in_yaml_is_replaced(tmp_path: Path) -> None:
    found = seen("npx -y notes", tmp_path, target=own_file(tmp_path, "isthmus.yaml", "servers: {}\n"))
    assert found.place == "In place of the empty servers."
    assert parse(found.file, found.text)[0] == {"servers": {"notes": NPX}}


def test_a_file_that_is_yet_to_be_written_is_previewed_whole(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    target = ServerFile(file, "", read_document(own_file(tmp_path, "empty.json", "{}").file))
    found = seen("npx -y notes", tmp_path, target=target)
    assert found.is_new_file
    assert json.loads(found.text) == {"mcpServers": {"notes": NPX}}


def test_the_command_does_the_same_and_is_left_out_where_it_cannot(tmp_path: Path) -> None:
    option = f"--config {tmp_path / 'isthmus.toml'}"
    commands = {
        "npx -y 'my notes'": f"isthmus add my-notes {option} -- npx -y 'my notes'",
        '{"n": {"command": "n", "env": {"A": "1 2"}, "cwd": "/srv"}}':
            f"isthmus add n --env 'A=1 2' --cwd /srv {option} -- n",
        "https://notes.example/mcp": f"isthmus add notes https://notes.example/mcp {option}",
        '{"n": {"agent": "https://n.example"}}': f"isthmus add n https://n.example --type agent {option}",
        '{"n": {"url": "https://n.example/sse", "type": "sse", "headers": {"A": "b"}}}':
            f"isthmus add n https://n.example/sse --type sse --header 'A: b' {option}",
        '{"n": {"url": "https://n.example/mcp", "include_tools": ["a"]}}': None,
    }  # fmt: skip
    assert {text: seen(text, tmp_path).servers[0].command for text in commands} == commands


@given(st.text(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["mcpServers", "servers", "command", "url", "args", "env", "name", "config", "x"]),
        inner, max_size=4),
    max_leaves=12,
).map(json.dumps))  # fmt: skip
def test_nothing_that_is_pasted_breaks_the_preview(text: str) -> None:
    file = HERE / "isthmus.toml"
    target = ServerFile(file, "", ParsedFile(file, {}, OWN))
    with suppress(CannotPreview):
        found = preview(text, None, target, (), ("builtin",), AROUND)
        assert found.servers
        tomllib.loads(found.text)
