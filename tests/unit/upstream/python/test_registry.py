"""The table of functions that are tools: their owners, and notifications of changes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from isthmus.upstream.python.registry import FunctionOrigin, FunctionRegistry, NameTaken
from isthmus.upstream.python.signatures import Function


def function(name: str = "add") -> Function:
    def run(a: int) -> int:
        return a

    return Function(name, run)


def origin(module: str = "shop", qualname: str = "add", file: str = "") -> FunctionOrigin:
    return FunctionOrigin(module, qualname, file)


def test_a_function_is_found_by_its_name_until_it_is_removed() -> None:
    registry, added = FunctionRegistry(), function()
    registry.add(added, origin())
    assert registry.functions() == {"add": added}
    assert registry.remove("add")
    assert not registry.remove("add")
    assert registry.functions() == {}


@pytest.mark.parametrize(
    "again",
    [origin(), origin(file="/shop.py"), origin("__main__", "add", "/lib/shop.py")],
    ids=["the same", "another cell", "the program itself"],
)
def test_the_same_text_run_again_takes_its_own_place(again: FunctionOrigin) -> None:
    registry, second = FunctionRegistry(), function()
    registry.add(function(), origin(file="/lib/shop.py"))
    registry.add(second, again)
    assert registry.functions() == {"add": second}


def test_a_name_has_one_function() -> None:
    registry, first = FunctionRegistry(), function()
    registry.add(first, origin())
    with pytest.raises(NameTaken, match=r"'add' is already the tool of shop\.add"):
        registry.add(function(), origin("store"))
    with pytest.raises(NameTaken, match=r"builtin\.echo is a tool that every hub has"):
        registry.add(function("echo"), origin(qualname="echo"))
    assert registry.functions() == {"add": first}


def test_one_function_may_have_two_names() -> None:
    registry = FunctionRegistry()
    registry.add(function("one"), origin())
    registry.add(function("two"), origin())
    assert list(registry.functions()) == ["one", "two"]


def test_the_functions_of_a_claimed_module_are_its_own_and_take_no_names_from_others() -> None:
    registry, own, other = FunctionRegistry(), function(), function()
    registry.claim("shop")
    registry.add(own, origin())
    registry.add(function("echo"), origin(qualname="echo"))
    registry.add(other, origin("store"))
    assert registry.functions() == {"add": other}
    assert registry.of_module("shop")[0] is own
    assert registry.remove("add")
    assert len(registry.of_module("shop")) == 2


def test_claiming_a_name_removes_builtin_functions() -> None:
    registry = FunctionRegistry()
    registry.add(function(), origin())
    registry.claim("shop")
    assert registry.functions() == {}


def test_a_module_that_is_imported_anew_is_forgotten_first() -> None:
    registry = FunctionRegistry()
    registry.add(function(), origin())
    registry.add(function("sub"), origin("shop.parts", "sub"))
    registry.forget("shop")
    assert list(registry.functions()) == ["sub"]
    assert registry.has_any_below("shop")
    assert not registry.has_any_below("sho")


def test_a_watcher_is_notified_of_every_change_and_of_nothing_else() -> None:
    registry = FunctionRegistry()
    received: list[int] = []
    stop = registry.watch(lambda: received.append(registry.version))
    registry.add(function(), origin())
    registry.remove("none")
    registry.forget("none")
    registry.claim("shop")
    registry.claim("shop")
    registry.forget("shop")
    assert received == [1, 2, 3]
    stop()
    registry.add(function(), origin())
    assert received == [1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_the_functions_and_no_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = FunctionRegistry()
    received: list[Any] = []
    registry.watch(lambda: received.append(None))
    registry.add(function(), origin())
    with registry._lock:  # held by a thread that is not there in the child
        registry.forked()
    registry.add(function("sub"), origin(qualname="sub"))
    assert list(registry.functions()) == ["add", "sub"]
    assert len(received) == 1
