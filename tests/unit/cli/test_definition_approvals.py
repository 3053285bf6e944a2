"""Definitions that wait for approval: their display to an operator, and the decision."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from isthmus.cli.definition_approvals import approve, show_changes
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.storage.definition_store import FILE, DefinitionStore, SeenDefinition


def seen(tool: str, description: str) -> SeenDefinition:
    definition = json.dumps({"name": tool, "description": description}, ensure_ascii=False).encode()
    return SeenDefinition("files", "", tool, definition, definition, 1.0)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "isthmus.json"
    file.write_text(json.dumps({"hub": {"state": str(tmp_path / "state")}, "servers": {}}))
    definitions = DefinitionStore(tmp_path / "state")
    definitions.store([(seen("read", "Reads."), False), (seen("read", "Reads.\u2028\x85  }\u202e"), True)])
    definitions.store([(seen("wri\u200bte", "Writes."), True)])
    definitions.close()
    return file


def test_characters_that_break_or_hide_a_line_are_escaped(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    approve(config, ["files.read"], is_sure=True, is_json=False)
    shown = capsys.readouterr().out
    assert '+  "description": "Reads.\\u2028\\u0085  }\\u202e"' in shown


def test_names_that_cannot_be_typed_are_accepted_as_printed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    approve(config, [], is_sure=False, is_json=False)
    name = next(line.split()[0] for line in capsys.readouterr().out.splitlines() if "new" in line)
    assert name == "files.wri\\u200bte"
    assert approve(config, [name], is_sure=True, is_json=False) is Exit.SUCCESS
    with pytest.raises(CommandFailed, match="no pending tool"):
        approve(config, [name], is_sure=True, is_json=False)


def test_json_output_lists_waiting_definitions_without_a_prompt(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert approve(config, ["files.read"], is_sure=False, is_json=True) is Exit.SUCCESS
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["before"]["description"], shown["tool"]) == ("Reads.", "read")
    approve(config, [], is_sure=False, is_json=True)
    assert len(json.loads(capsys.readouterr().out)) == 2, "nothing was approved"


@pytest.mark.parametrize("first", [0, 3])
def test_a_damaged_file_is_named(config: Path, first: int) -> None:
    """Whether it can be opened, or not even that."""
    file = config.parent / "state" / FILE
    pages = bytearray(file.read_bytes())
    for at in range(first * 4096, len(pages), 4096):
        pages[at : at + 200] = b"\xff" * 200
    file.write_bytes(pages)
    with pytest.raises(CommandFailed, match=FILE):
        approve(config, [], is_sure=False, is_json=False)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE pins SET definition = CAST(definition AS TEXT), fingerprint = 'x'",
        "UPDATE waiting SET definition = CAST(definition AS TEXT)",
        "UPDATE waiting SET definition = x'ff'",
        "UPDATE waiting SET at = 1e300",
        "UPDATE waiting SET at = 1e15",
        "UPDATE waiting SET at = 'x'",
        "UPDATE changes SET before = 'x', after = x'ff', at = 'x'",
        "ALTER TABLE waiting ADD COLUMN more",
    ],
)
def test_an_edited_file_is_shown_as_it_is(config: Path, statement: str, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(DefinitionStore(config.parent / "state")) as definitions:
        definitions.store([(seen("list", "Lists."), False), (seen("list", "Lists all."), False)])
    with closing(sqlite3.connect(config.parent / "state" / FILE, isolation_level=None)) as file:
        file.execute(statement)
    for is_json in (False, True):
        assert approve(config, [], is_sure=False, is_json=is_json) is Exit.SUCCESS
        assert show_changes(config, is_json=is_json) is Exit.SUCCESS
    capsys.readouterr()
    assert approve(config, ["files.read"], is_sure=True, is_json=False) is Exit.SUCCESS
    assert "files.read" in capsys.readouterr().out


def test_a_change_is_of_the_time_at_which_it_was_approved(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    approve(config, ["files"], is_sure=True, is_json=False)
    capsys.readouterr()
    show_changes(config, is_json=True)
    assert [each["at"][:4] for each in json.loads(capsys.readouterr().out)] != ["1970", "1970"]
