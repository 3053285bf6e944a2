"""The table of tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.dialects.clients import CODEX
from isthmus.config.dialects.dialect import OWN, STANDARD
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError
from isthmus.config.tasks import read_tasks
from isthmus.frontends.mcp.settings import TaskSettings

FILE = Path("/etc/hub/isthmus.toml")


def document(tasks: object) -> Document:
    return Document(FILE, {"tasks": tasks}, OWN)


def test_without_a_file_or_a_table_the_defaults_hold() -> None:
    assert read_tasks(None) == (TaskSettings(), ())
    assert read_tasks(Document(FILE, {}, OWN)) == (TaskSettings(), ())


def test_the_table_fills_the_settings() -> None:
    assert read_tasks(document({"provide": False, "after": "0.5"})) == (TaskSettings(provide=False, after=0.5), ())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"provide": 5}, "isthmus.toml: tasks.provide must be true or false, not 5"),
        ({"after": "soon"}, "isthmus.toml: tasks.after must be a number, not 'soon'"),
        ({"after": 0}, "isthmus.toml: tasks.after must be above 0 and at most 600 seconds, not 0"),
        ({"after": 601}, "isthmus.toml: tasks.after must be above 0 and at most 600 seconds, not 601"),
        ({"after": "nan"}, "isthmus.toml: tasks.after must be above 0 and at most 600 seconds, not nan"),
        (5, "isthmus.toml: tasks must be a table, not 5"),
    ],
)
def test_a_bad_value_refuses_the_file(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_tasks(document(table))
    assert str(refused.value) == message


def test_an_unknown_key_is_told_of() -> None:
    settings, (finding,) = read_tasks(document({"provides": True}))
    assert settings == TaskSettings()
    assert "provide" in str(finding)


def test_it_is_read_where_the_hub_has_a_place_and_nowhere_else() -> None:
    assert not read_tasks(Document(FILE, {"tasks": {"provide": False}}, STANDARD))[0].provide
    assert read_tasks(Document(FILE, {"tasks": {"provide": 5}}, CODEX)) == (TaskSettings(), ())
