"""What of other files is new to ours."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from isthmus.config import codes
from isthmus.config.dialects.clients import CLINE, CURSOR
from isthmus.config.dialects.dialect import OWN, Dialect
from isthmus.config.files import Document
from isthmus.config.imports import Around
from isthmus.config.merging import Merging

URL = "https://a.example/mcp"


def document(folder: Path, name: str, dialect: Dialect, entries: dict[str, Any]) -> Document:
    root = "servers" if dialect.is_own else "mcpServers"
    return Document(folder / name, {root: entries}, dialect)


def begun(folder: Path, own: dict[str, Any] | None, *, may_replace: bool = False, **environment: str) -> Merging:
    merging = Merging(folder / "isthmus.toml", Around(environment, folder, folder / "home"), may_replace)
    merging.begin(None if own is None else document(folder, "isthmus.toml", OWN, own))
    return merging


def outcomes(merging: Merging) -> list[tuple[str, str]]:
    return [(candidate.name, candidate.outcome) for candidate in merging.candidates]


def test_what_is_new_the_same_different_or_broken_is_told_apart(tmp_path: Path) -> None:
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
    assert [str(finding) for finding in merging.findings] == [
        "mcp.json: mcpServers.broken must have a command or a url, not neither"
    ]


def test_only_what_is_in_the_file_is_replaced_and_by_the_first(tmp_path: Path) -> None:
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


def test_a_variable_that_only_the_other_file_sees_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.env").write_text("TOKEN=hunter22")
    merging = begun(tmp_path, None)
    entries = {"a": {"url": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}}}
    merging.add([document(tmp_path / "sub", "mcp.json", CURSOR, entries)])
    [told] = merging.findings
    assert told.code is codes.UNRESOLVED_VARIABLE
    assert str(told) == (
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
    merging.add([Document(tmp_path / "odd.json", {"mcpServers": 5}, CURSOR)])
    assert (merging.candidates, [finding.code for finding in merging.findings]) == ([], [codes.BAD_VALUE])


def test_replacing_again_and_again_comes_to_an_end(tmp_path: Path) -> None:
    found = [
        document(tmp_path, "one.json", CURSOR, {"a": {"command": "one"}}),
        document(tmp_path, "two.json", CLINE, {"a": {"command": "two"}}),
    ]
    own: dict[str, Any] = {}
    told = []
    for _ in range(3):
        merging = begun(tmp_path, own, may_replace=True)
        merging.add(found)
        told.append(outcomes(merging))
        text = merging.merged_into("".join(f'[servers.{name}]\ncommand = "{own[name]["command"]}"\n' for name in own))
        own = tomllib.loads(text)["servers"]
        assert not merging.can_replace
    assert told == [[("a", first), ("a", "differs")] for first in ("new", "same", "same")]
    assert own == {"a": {"command": "one"}}
