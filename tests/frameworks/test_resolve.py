"""What the check of the environments says of what pip found; pip itself is asked by `make resolve` alone."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.frameworks.resolve import CHECKOUT, EXTRAS, NotResolved, Versions, frameworks_of, look_at, table

NAMED = {"one": ["a"], "two": ["b"]}
NEWEST = {"a": "2.10", "b": "1.0"}


class Index:
    """Stands in for pip: the versions for the last word of what it is asked."""

    def __init__(self, **answers: dict[str, str]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def __call__(self, *words: str) -> Versions:
        if "--no-deps" in words:
            return _versions(NEWEST)
        asked = words[-1].removeprefix(f"{CHECKOUT}").strip("[]").replace(",", "_")
        self.asked.append(asked)
        if asked not in self._answers:
            raise NotResolved(asked)
        return _versions(self._answers[asked])


def _versions(of: dict[str, str]) -> Versions:
    return {name: Version(version) for name, version in of.items()}


def test_frameworks_that_are_the_newest_beside_the_hub_are_looked_for_no_further() -> None:
    index = Index(one_two=NEWEST)
    rows = look_at(NAMED, index)
    assert [(row.name, str(row.beside), row.is_older) for row in rows] == [("a", "2.10", False), ("b", "1.0", False)]
    assert index.asked == ["one_two"]


def test_a_framework_that_is_older_beside_the_hub_is_found_out() -> None:
    rows = look_at(NAMED, Index(one_two={"a": "2.9", "b": "1.0"}, one={"a": "2.9"}, a={"a": "2.10"}))
    first, second = rows
    assert (str(first.alone), str(first.beside), first.is_older) == ("2.10", "2.9", True)
    assert table(rows).splitlines()[1].endswith("older")
    assert not second.is_older


def test_a_framework_that_only_another_framework_holds_back_is_no_fault_of_the_hub() -> None:
    rows = look_at(NAMED, Index(one_two={"a": "2.9", "b": "1.0"}, one=NEWEST, a=NEWEST))
    assert not any(row.is_older for row in rows)


def test_a_framework_that_is_not_the_newest_even_alone_is_no_fault_of_the_hub() -> None:
    index = Index(one_two={"a": "2.9", "b": "1.0"}, a={"a": "2.9"})
    assert not any(row.is_older for row in look_at(NAMED, index))
    assert index.asked == ["one_two", "a"]


def test_frameworks_that_do_not_go_together_are_looked_at_one_by_one() -> None:
    rows = look_at(NAMED, Index(one=NEWEST, two=NEWEST, a=NEWEST, b=NEWEST))
    assert not any(row.is_older for row in rows)


def test_what_cannot_be_installed_beside_the_hub_is_no_success() -> None:
    with pytest.raises(NotResolved):
        look_at(NAMED, Index(one=NEWEST, a=NEWEST, b=NEWEST))


def test_every_extra_that_is_looked_at_names_frameworks_by_a_floor_alone() -> None:
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in EXTRAS:
        assert frameworks_of(extra)
        for wanted in map(Requirement, extras[extra]):
            assert [each.operator for each in wanted.specifier] == [">="], f"{extra} must not hold {wanted.name} back"
