"""The reference is generated from the code, complete, and as it is committed."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from isthmus import library
from isthmus.cli.main import COMMANDS
from isthmus.config.tables import HUB_TABLES
from isthmus.frontends.rest import openapi
from isthmus.upstream.server_settings import SERVER_KEYS
from tests.reference import PAGE, cli_page, generated_pages, library_page, rest_page, updated

PAGES = generated_pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path], "run: make reference"


def test_the_reference_has_every_command_and_its_options() -> None:
    page = cli_page()
    assert [name for name in COMMANDS if f"\n### isthmus {name}\n" not in page] == []
    assert "\n#### isthmus token create\n" in page
    assert "| `--port` `N` | `8765` | The port; 0 picks a free one. |" in page


def test_the_reference_has_every_operation_and_schema_of_the_api() -> None:
    page = rest_page()
    document = msgspec.json.decode(openapi.document())
    operations = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    assert [name for name in [*operations, *document["components"]["schemas"]] if f"\n### {name}\n" not in page] == []


def test_the_reference_has_every_public_name_of_the_library() -> None:
    page = library_page()
    assert [name for name in ["connect", *library.__all__] if f"\n### {name}\n" not in page] == []
    assert "| `MCPManager` |" in page


def test_the_reference_has_every_table_and_every_key_of_a_server() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table: (\S+) -->", page)) == {
        *HUB_TABLES,
        "servers",
        "callers",
        "sets",
        "set-changes",
        "fleets",
        "approvals",
        "budgets",
        "findings",
    }
    assert [key for key in SERVER_KEYS if f"| `{key}` |" not in page] == []


def test_a_table_is_written_between_its_marks() -> None:
    page = "before\n<!-- table: tasks -->\nold\n<!-- end of table -->\nafter\n"
    assert "| `provide` | `true` |" in updated(page)
    assert updated(page).startswith("before\n<!-- table: tasks -->\n\n| Key of `[tasks]` |")
    assert updated(page).endswith("|\n\n<!-- end of table -->\nafter\n")
