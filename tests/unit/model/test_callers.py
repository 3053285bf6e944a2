"""Callers and grants are values."""

from __future__ import annotations

import pytest

from isthmus.model.callers import Caller, Grants


def test_equal_grants_are_one_key_of_a_table() -> None:
    views = {Grants(("files.*",), ("files.delete",)): "compiled"}
    assert views[Grants(allow=("files.*",), deny=("files.delete",))] == "compiled"


def test_grants_deny_nothing_unless_said() -> None:
    assert Grants(("*",)).deny == ()


def test_a_caller_cannot_be_changed() -> None:
    caller = Caller("planner", "default", Grants(()))
    with pytest.raises(AttributeError):
        caller.name = "root"  # type: ignore[misc]
