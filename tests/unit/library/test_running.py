"""Who is given no service finds the only one of the process, if there is one."""

from __future__ import annotations

import os

import pytest

from isthmus.library import running
from isthmus.library.errors import ServiceClosedError
from isthmus.library.running import begun, ended, only_service
from tests.unit.library.catalogs import Shelf

NONE = "no initialized ToolService: initialize one"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have begun is not seen."""
    monkeypatch.setattr(running, "_services", {})


def test_the_only_service_is_found_while_it_is_there() -> None:
    with pytest.raises(ServiceClosedError, match=NONE):
        only_service()
    service = Shelf("builtin.echo")
    begun(service)
    assert only_service() is service
    ended(service)
    ended(service)
    with pytest.raises(ServiceClosedError, match=NONE):
        only_service()


def test_of_several_one_has_to_be_named() -> None:
    first, second = Shelf("builtin.echo"), Shelf("builtin.echo")
    begun(first)
    begun(second)
    with pytest.raises(ServiceClosedError, match="2 services: say which one"):
        only_service()
    ended(first)
    assert only_service() is second


def test_a_service_that_nobody_holds_any_more_does_not_count() -> None:
    begun(Shelf("builtin.echo"))
    with pytest.raises(ServiceClosedError, match=NONE):
        only_service()


def test_the_parents_service_is_not_that_of_a_forked_child(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = Shelf("builtin.echo")
    begun(parents)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ServiceClosedError, match=NONE):
        only_service()
