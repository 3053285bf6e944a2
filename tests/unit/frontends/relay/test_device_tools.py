"""A table gives each tool one name, and its pages are whole."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.catalog.view import Route
from isthmus.frontends.relay.agents import DeviceTool, DeviceTools, exposed_names, sanitised
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from tests.unit.core.doubles import tool


def entry(name: str, server_id: str = "s1", **members: Any) -> DeviceTool:
    server = ServerName(f"kitchen_{server_id}")
    return DeviceTool(server_id, Surface("own", server), Route(tool(name, server, **members), name))


def names_on(table: DeviceTools, position: int) -> list[str]:
    return [json.loads(text)["name"] for text in table.page(position)]


def test_an_exposed_name_leads_to_the_tools_own() -> None:
    table = DeviceTools([entry("add"), entry("add", "s2")], 4096)
    assert list(table.entries) == ["add", "s2.add"]
    assert (table.entries["s2.add"].tool, table.entries["s2.add"].surface.server) == ("add", "kitchen_s2")


def test_pages_hold_everything_once_and_none_is_too_long() -> None:
    table = DeviceTools([entry(f"t{number}", text="x" * 1000) for number in range(10)], 4096)
    pages = [names_on(table, position) for position in range(20) if table.has_page(position)]
    assert [name for page in pages for name in page] == [f"t{number}" for number in range(10)]
    assert len(pages) > 1
    assert all(sum(map(len, table.page(position))) <= 4096 * 3 // 4 for position in range(len(pages)))
    assert table.page(len(pages)) == ()


def test_an_empty_table_has_no_page() -> None:
    assert not DeviceTools([], 4096).has_page(0)
    assert DeviceTools([], 4096).page(0) == ()


def test_a_digest_changes_with_names_servers_and_descriptions() -> None:
    tables = [
        DeviceTools([entry("add")], 4096),
        DeviceTools([entry("sub")], 4096),
        DeviceTools([entry("add", "s2")], 4096),
        DeviceTools([entry("add", description="adds")], 4096),
        DeviceTools([], 4096),
    ]
    assert len({table.digest for table in tables}) == len(tables)
    assert DeviceTools([entry("add")], 4096).digest == tables[0].digest


def test_a_cursor_stands_for_its_page_as_long_as_the_table_is_the_same() -> None:
    table, other = DeviceTools([entry("add")], 4096), DeviceTools([entry("sub")], 4096)
    assert table.position(table.cursor(3)) == 3
    assert other.position(table.cursor(3)) == 0
    assert [table.position(nonsense) for nonsense in ("", "-", "AAAA", "é", table.cursor(3)[:-4])] == [None] * 5


def as_devices_do(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_\-\u4e00-\u9fff]", "_", name)


def test_the_first_keeps_the_bare_name_and_later_ones_say_whose_they_are() -> None:
    assert exposed_names([("a", "add"), ("b", "add"), ("b", "sub")]) == ["add", "b.add", "sub"]


def test_names_that_a_device_would_make_equal_are_kept_apart() -> None:
    names = exposed_names([("a", "get.time"), ("a", "get_time"), ("a", "get time")])
    assert names[:2] == ["get.time", "a.get_time"]
    assert re.fullmatch(r"a\.get time_[0-9a-f]{6}", names[2])


def test_chinese_names_stay_unchanged() -> None:
    assert exposed_names([("厨房", "计算器"), ("客厅", "计算器")]) == ["计算器", "客厅.计算器"]
    assert sanitised("计算器!") == "计算器_"


def test_a_name_that_looks_like_anothers_full_name_does_not_take_it() -> None:
    assert exposed_names([("a", "t"), ("b", "t"), ("c", "b.t")]) == ["t", "b.t", "c.b.t"]


WORDS = st.text("ab._-! 中", min_size=1, max_size=4)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=30))
def test_exposed_names_are_unique_for_devices(tools: list[tuple[str, str]]) -> None:
    names = exposed_names(tools)
    assert len({as_devices_do(name) for name in names}) == len(names) == len(tools)
    assert [sanitised(name) for name in names] == [as_devices_do(name) for name in names]
