"""The reference of the configuration is generated from the declarations, and complete."""

from __future__ import annotations

import re

from isthmus.config.tables import HUB_TABLES
from isthmus.upstream.server_settings import SERVER_KEYS
from tests.reference import PAGE, updated


def test_the_reference_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert updated(page) == page, "run: make reference"


def test_the_reference_has_every_table_and_every_key_of_a_server() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table: (\S+) -->", page)) == {
        *HUB_TABLES,
        "servers",
        "callers",
        "sets",
        "set-tools",
        "findings",
    }
    assert [key for key in SERVER_KEYS if f"| `{key}` |" not in page] == []


def test_a_table_is_written_between_its_marks() -> None:
    page = "before\n<!-- table: tasks -->\nold\n<!-- end of table -->\nafter\n"
    assert "| `provide` | `true` |" in updated(page)
    assert updated(page).startswith("before\n<!-- table: tasks -->\n\n| Key of `[tasks]` |")
    assert updated(page).endswith("|\n\n<!-- end of table -->\nafter\n")
