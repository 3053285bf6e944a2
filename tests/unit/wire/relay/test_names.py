"""Tools keep their names towards devices as long as these are free, and no two are the same to a device."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from isthmus.frontends.relay.device_tools import exposed_names, sanitised


def as_devices_do(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_\-\u4e00-\u9fff]", "_", name)


def test_the_first_keeps_the_bare_name_and_later_ones_say_whose_they_are() -> None:
    assert exposed_names([("a", "add"), ("b", "add"), ("b", "sub")]) == ["add", "b.add", "sub"]


def test_names_that_a_device_would_make_equal_are_told_apart() -> None:
    names = exposed_names([("a", "get.time"), ("a", "get_time"), ("a", "get time")])
    assert names[:2] == ["get.time", "a.get_time"]
    assert re.fullmatch(r"a\.get time_[0-9a-f]{6}", names[2])


def test_chinese_names_stay_what_they_are() -> None:
    assert exposed_names([("厨房", "计算器"), ("客厅", "计算器")]) == ["计算器", "客厅.计算器"]
    assert sanitised("计算器!") == "计算器_"


def test_a_name_that_looks_like_anothers_full_name_does_not_take_it() -> None:
    assert exposed_names([("a", "t"), ("b", "t"), ("c", "b.t")]) == ["t", "b.t", "c.b.t"]


WORDS = st.text("ab._-! 中", min_size=1, max_size=4)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=30))
def test_whatever_comes_no_two_names_are_equal_to_a_device(tools: list[tuple[str, str]]) -> None:
    names = exposed_names(tools)
    assert len({as_devices_do(name) for name in names}) == len(names) == len(tools)
    assert [sanitised(name) for name in names] == [as_devices_do(name) for name in names]
