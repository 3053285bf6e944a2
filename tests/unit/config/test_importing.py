"""Servers of other files written into ours."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config import finding_codes, values
from isthmus.config.client_entries_to_hub import Entry, entry_of
from isthmus.config.client_file_reader import HostContext
from isthmus.config.client_formats import CLINE, CURSOR, OWN, ClientDialect
from isthmus.config.entries_to_settings import EntryContext, read_server
from isthmus.config.files import ParsedFile
from isthmus.config.findings import Place
from isthmus.config.importing import ImportPlan, own_fields
from isthmus.config.text_editing import CannotEdit, merge_tables, toml_table
from isthmus.config.variables import Variables
from isthmus.core.settings import Limits
from isthmus.upstream.server_settings import ServerSettings

# -- What of other files is new to ours ---------------------------------------------------------------------

URL = "https://a.example/mcp"


def document(folder: Path, name: str, dialect: ClientDialect, entries: dict[str, Any]) -> ParsedFile:
    root = "servers" if dialect.is_own else "mcpServers"
    return ParsedFile(folder / name, {root: entries}, dialect)


def begun(folder: Path, own: dict[str, Any] | None, *, may_replace: bool = False, **environment: str) -> ImportPlan:
    merging = ImportPlan(folder / "isthmus.toml", HostContext(environment, folder, folder / "home"), may_replace)
    merging.begin(None if own is None else document(folder, "isthmus.toml", OWN, own))
    return merging


def outcomes(merging: ImportPlan) -> list[tuple[str, str]]:
    return [(candidate.name, candidate.outcome) for candidate in merging.candidates]


def test_new_equal_different_and_broken_entries_are_distinguished(tmp_path: Path) -> None:
    merging = begun(tmp_path, {"same": {"url": URL}, "other": {"command": "mine"}, "bad": {"url": 5}})
    entries = {
        "same": {"url": URL, "autoApprove": []},
        "other": {"command": "theirs"},
        "new": {"command": "x"},
        "broken": {},
        "bad": {"command": "x"},
    }
    merging.add([document(tmp_path, "mcp.json", CURSOR, entries)])
    assert outcomes(merging) == [
        ("same", "same"),
        ("other", "differs"),
        ("new", "new"),
        ("broken", "broken"),
        ("bad", "differs"),
    ]
    assert merging.can_replace
    assert [str(finding) for finding in merging.findings] == ["mcp.json: mcpServers.broken needs `command` or `url`"]


def test_only_entries_of_the_file_are_replaced_by_the_first_import(tmp_path: Path) -> None:
    merging = begun(tmp_path, {"a": {"command": "mine"}}, may_replace=True)
    merging.add([
        document(tmp_path, "one.json", CURSOR, {"a": {"command": "one"}, "b": {"command": "one"}}),
        document(tmp_path, "two.json", CURSOR, {"a": {"command": "two"}, "b": {"command": "one"}}),
    ])  # fmt: skip
    assert outcomes(merging) == [("a", "replaced"), ("b", "new"), ("a", "differs"), ("b", "same")]
    assert not merging.can_replace
    text = merging.merged_into('[servers.a]\ncommand = "mine"\n')
    assert tomllib.loads(text)["servers"] == {"a": {"command": "one"}, "b": {"command": "one"}}


def test_a_client_s_habits_are_written_out(tmp_path: Path) -> None:
    merging = begun(tmp_path, None)
    merging.add([document(tmp_path, "mcp.json", CLINE, {"My Server": {"url": URL, "timeout": 45}})])
    assert tomllib.loads(merging.merged_into(""))["servers"] == {
        "My-Server": {"url": URL, "type": "sse", "timeout": 45}
    }


def test_a_variable_that_only_the_other_file_sees_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.env").write_text("TOKEN=hunter22")
    merging = begun(tmp_path, None)
    entries = {"a": {"url": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}}}
    merging.add([document(tmp_path / "sub", "mcp.json", CURSOR, entries)])
    [received] = merging.findings
    assert received.code is finding_codes.UNRESOLVED_VARIABLE
    assert str(received) == (
        "isthmus.toml: servers.a.headers.Authorization has '${TOKEN}', which is not set; it stays as it is"
    )


@pytest.mark.parametrize(
    ("entry", "has_secrets"),
    [
        ({"command": "x", "env": {"TOKEN": "literal"}}, True),
        ({"command": "x", "env": {"TOKEN": "${TOKEN}", "MODE": "fast"}}, False),
        ({"command": "x", "args": ["--token", "literal"]}, True),
        ({"url": URL, "auth": {"CLIENT_SECRET": "literal"}}, True),
        ({"url": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}}, False),
    ],
)
def test_a_secret_that_stands_in_the_file_is_noticed(
    tmp_path: Path, entry: dict[str, Any], *, has_secrets: bool
) -> None:
    merging = begun(tmp_path, None, TOKEN="x")
    merging.add([document(tmp_path, "mcp.json", CURSOR, {"a": entry})])
    assert merging.candidates[0].has_secrets == has_secrets


def test_a_file_whose_servers_are_no_table_costs_only_itself(tmp_path: Path) -> None:
    merging = begun(tmp_path, None)
    merging.add([ParsedFile(tmp_path / "odd.json", {"mcpServers": 5}, CURSOR)])
    assert (merging.candidates, [finding.code for finding in merging.findings]) == ([], [finding_codes.BAD_VALUE])


def test_replacing_again_and_again_comes_to_an_end(tmp_path: Path) -> None:
    found = [
        document(tmp_path, "one.json", CURSOR, {"a": {"command": "one"}}),
        document(tmp_path, "two.json", CLINE, {"a": {"command": "two"}}),
    ]
    own: dict[str, Any] = {}
    received = []
    for _ in range(3):
        merging = begun(tmp_path, own, may_replace=True)
        merging.add(found)
        received.append(outcomes(merging))
        text = merging.merged_into("".join(f'[servers.{name}]\ncommand = "{own[name]["command"]}"\n' for name in own))
        own = tomllib.loads(text)["servers"]
        assert not merging.can_replace
    assert received == [[("a", first), ("a", "differs")] for first in ("new", "same", "same")]
    assert own == {"a": {"command": "one"}}


# -- Servers are written down so that they read back the same, and nothing else in a file changes -----------

FOLDER = Path("/etc/hub")
READING = EntryContext(Variables({"TOKEN": "hunter22"}, FOLDER, Path("/home/me")), FOLDER, Path("/home/me"), Limits())


def made(fields: dict[str, Any], dialect: ClientDialect) -> tuple[Entry, ServerSettings]:
    entry = entry_of("a", fields, Place(FOLDER / "x", "servers.a"), dialect)
    server, _ = read_server(entry, READING)
    assert server is not None
    return entry, server


ENTRIES: list[dict[str, Any]] = [
    {"command": "npx", "args": ["-y", 'quo"te', "ünï"], "env": {"A": "b", "C D": 5}, "timeout": 5},
    {"command": "x", "cwd": "sub", "env": {"DB": "file:data.db", "K": "${TOKEN}"}, "enabled": False},
    {"url": "https://a.example/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
    {"url": "https://a.example/mcp", "type": "http"},
    {"url": "https://a.example/sse", "type": "sse", "autoApprove": ["x"], "meta": {"n": None, "l": [1, None]}},
    {"url": "ws://a.example/"},
]
OWN_ENTRIES: list[dict[str, Any]] = [
    {"rpc": "http://a/rpc", "tools": {"t": {"description": "d", "input_schema": {"type": "object"}}}},
    {"url": "http://a/rpc", "type": "rpc", "era": "auto", "isolation": "call"},
    {"agent": "https://a.example", "headers": {"A": "env:TOKEN"}, "origins": ["https://b.example:8443"]},
    {"url": "https://a.example/mcp", "user_headers": ["X-User-Id"]},
    {"rpc": "https://a.example/rpc", "user_headers": ["X-User-Id"]},
    {"python": "a.b:c", "path": "lib", "max_calls": 2, "max_queued": 0},
    {"command": "x", "env": {"K": "env:TOKEN"}, "include_tools": [], "defaults": {"t": {"k": [1, {"z": 2.5}]}}},
    {"command": "x", "cache": {"tools": ["t"], "ttl": 5}, "extra": {"autoApprove": []}},
]


@pytest.mark.parametrize(
    ("fields", "dialect"),
    [*((fields, CURSOR) for fields in ENTRIES), *((fields, OWN) for fields in (*ENTRIES[2:4], *OWN_ENTRIES))],
)
def test_a_written_entry_reads_back_as_the_same_server(fields: dict[str, Any], dialect: ClientDialect) -> None:
    entry, server = made(fields, dialect)
    table = tomllib.loads(toml_table("a", own_fields(entry, server)))["servers"]["a"]
    _, again = made(table, OWN)
    assert (again.reach, again.timeout, again.disabled, again.rules) == (
        server.reach,
        server.timeout,
        server.disabled,
        server.rules,
    )
    assert (again.isolation, again.max_calls, again.max_queued) == (
        server.isolation,
        server.max_calls,
        server.max_queued,
    )


def test_unknown_keys_survive_the_round_trip() -> None:
    entry, server = made({"command": "x", "autoApprove": ["read"], "meta": {"since": 2026, "on": True}}, CURSOR)
    table = tomllib.loads(toml_table("a", own_fields(entry, server)))["servers"]["a"]
    assert made(table, OWN)[1].extra == server.extra == {"autoApprove": ["read"], "meta": {"since": 2026, "on": True}}


def test_values_that_toml_cannot_express_survive() -> None:
    odd = {"l": [1, None, 2.0], "n": None, "v": 2.0, "home": "$HOME/${x}", "t": "\ud800", "deep": [[{"x": None}]]}
    entry, server = made({"command": "x", **odd}, CURSOR)
    table = tomllib.loads(toml_table("a", own_fields(entry, server)))["servers"]["a"]
    assert (table["extra"], list(table)) == ({"v": 2.0, "home": "$HOME/${x}"}, ["command", "extra", "extra_json"])
    assert type(table["extra"]["v"]) is float
    assert made(table, OWN)[1].extra == server.extra == odd


def test_kept_keys_that_are_not_json_are_reported() -> None:
    entry = entry_of("a", {"command": "x", "extra_json": "{"}, Place(FOLDER / "x", "servers.a"), OWN)
    assert [str(received) for received in entry.findings] == [
        "x: servers.a.extra_json must be a JSON object in a text, not another value"
    ]


def test_a_number_that_is_an_argument_is_written_in_its_letters() -> None:
    entry, server = made({"command": "x", "args": [values.keep_written("1.10", 1.1), 5], "timeout": 5.0}, CURSOR)
    text = toml_table("a", own_fields(entry, server))
    assert text == '[servers.a]\ncommand = "x"\nargs = ["1.10", 5]\ntimeout = 5\n'


def test_a_secret_is_written_by_the_name_of_its_variable() -> None:
    entry, server = made({"url": "https://a", "headers": {"Authorization": "Bearer ${TOKEN}"}}, CURSOR)
    text = toml_table("a", own_fields(entry, server))
    assert "${TOKEN}" in text
    assert "hunter22" not in text


PLAIN = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.just(datetime(2026, 1, 1, tzinfo=UTC)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), PLAIN))
def test_every_value_is_written_as_it_is(fields: dict[str, Any]) -> None:
    assert tomllib.loads(toml_table("a", fields))["servers"]["a"] == fields


@given(st.text(), PLAIN)
def test_every_written_entry_is_valid_toml(name: str, value: object) -> None:
    odd = {"x": [value, None, "\ud800"], "y": {name: None}}
    assert "a" in tomllib.loads(toml_table("a", odd))["servers"]


FILE = """# my hub
[hub]
port = 9000 # mine

# files
[servers.files]
command = "npx"

[servers.files.env]
# a comment of its own
A = "b"

# and this is about limits
[limits]
depth = 9
"""


def test_tables_are_added_below_and_the_rest_stays_byte_for_byte() -> None:
    text = merge_tables(FILE, {"new": toml_table("new", {"command": "x"})})
    assert text == FILE + '\n[servers.new]\ncommand = "x"\n'


@pytest.mark.parametrize("text", ["", "[hub]", "a = 1", "# nothing"])
def test_a_file_without_a_last_line_end_or_without_anything_can_be_added_to(text: str) -> None:
    made = merge_tables(text, {"new": toml_table("new", {"command": "x"})})
    assert tomllib.loads(made)["servers"] == {"new": {"command": "x"}}
    assert made.startswith(text)


def test_line_ends_stay_unchanged() -> None:
    text = merge_tables("[hub]\r\nport = 1\r\n", {"a": toml_table("a", {"command": "x"})})
    assert text == '[hub]\r\nport = 1\r\n\r\n[servers.a]\r\ncommand = "x"\r\n'


def test_a_replaced_server_goes_with_its_tables_and_nothing_else() -> None:
    text = merge_tables(FILE, {"files": toml_table("files", {"command": "y"})}, ["files"])
    assert text == (
        "# my hub\n[hub]\nport = 9000 # mine\n\n# files\n"
        "\n# and this is about limits\n[limits]\ndepth = 9\n"
        '\n[servers.files]\ncommand = "y"\n'
    )


@pytest.mark.parametrize(
    ("text", "replaced", "why"),
    [
        ('servers = { a = { command = "x" } }\n', [], "cannot be added to"),
        ('[servers]\na = { command = "x" }\n', ["a"], "cannot be added to"),
        ('[servers.a]\ncommand = """\n[servers.b]\n"""\n[servers.b]\ncommand = "z"\n', ["b"], "cannot be added to"),
        ('x = """\n[servers.b]\n#"""\n[hub]\n[servers.b]\ncommand = "z"\n', ["b"], "something else in it would change"),
    ],
)
def test_a_file_that_would_change_otherwise_is_left_alone(text: str, replaced: list[str], why: str) -> None:
    name = replaced[0] if replaced else "new"
    with pytest.raises(CannotEdit, match=why):
        merge_tables(text, {name: toml_table(name, {"command": "y"})}, replaced)


def test_lines_that_only_look_like_headers_are_no_hindrance() -> None:
    text = 'x = """\n[hm, well]\n"""\n[servers.b]\ncommand = "z"\n[[list]]\ny = 1\n'
    made = merge_tables(text, {"b": toml_table("b", {"command": "y"})}, ["b"])
    assert tomllib.loads(made) == {"x": "[hm, well]\n", "list": [{"y": 1}], "servers": {"b": {"command": "y"}}}


def test_a_server_under_the_other_root_is_replaced_too() -> None:
    text = merge_tables('[mcpServers.a]\ncommand = "x"\n', {"a": toml_table("a", {"command": "y"})}, ["a"])
    assert tomllib.loads(text) == {"servers": {"a": {"command": "y"}}}
