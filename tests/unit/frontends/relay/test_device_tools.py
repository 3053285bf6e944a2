"""A table gives each tool one name, and its pages are whole."""

from __future__ import annotations

import json
from typing import Any

from isthmus.core.catalog.view import Route
from isthmus.frontends.relay.device_tools import Entry, Table
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from tests.unit.core.doubles import tool


def entry(name: str, server_id: str = "s1", **members: Any) -> Entry:
    server = ServerName(f"kitchen_{server_id}")
    return Entry(server_id, Surface("own", server), Route(tool(name, server, **members), name))


def names_on(table: Table, position: int) -> list[str]:
    return [json.loads(text)["name"] for text in table.page(position)]


def test_an_exposed_name_leads_to_the_tools_own() -> None:
    table = Table([entry("add"), entry("add", "s2")], 4096)
    assert list(table.entries) == ["add", "s2.add"]
    assert (table.entries["s2.add"].tool, table.entries["s2.add"].surface.server) == ("add", "kitchen_s2")


def test_pages_hold_everything_once_and_none_is_too_long() -> None:
    table = Table([entry(f"t{number}", text="x" * 1000) for number in range(10)], 4096)
    pages = [names_on(table, position) for position in range(20) if table.has_page(position)]
    assert [name for page in pages for name in page] == [f"t{number}" for number in range(10)]
    assert len(pages) > 1
    assert all(sum(map(len, table.page(position))) <= 4096 * 3 // 4 for position in range(len(pages)))
    assert table.page(len(pages)) == ()


def test_an_empty_table_has_no_page() -> None:
    assert not Table([], 4096).has_page(0)
    assert Table([], 4096).page(0) == ()


def test_a_digest_changes_with_names_servers_and_descriptions() -> None:
    tables = [
        Table([entry("add")], 4096),
        Table([entry("sub")], 4096),
        Table([entry("add", "s2")], 4096),
        Table([entry("add", description="adds")], 4096),
        Table([], 4096),
    ]
    assert len({table.digest for table in tables}) == len(tables)
    assert Table([entry("add")], 4096).digest == tables[0].digest


def test_a_cursor_stands_for_its_page_as_long_as_the_table_is_the_same() -> None:
    table, other = Table([entry("add")], 4096), Table([entry("sub")], 4096)
    assert table.position(table.cursor(3)) == 3
    assert other.position(table.cursor(3)) == 0
    assert [table.position(nonsense) for nonsense in ("", "-", "AAAA", "é", table.cursor(3)[:-4])] == [None] * 5
