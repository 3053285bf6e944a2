"""Tasks of agents belong to the caller that they were given to, and are not remembered without end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from isthmus.model.names import ServerName
from isthmus.upstream.agent import given
from isthmus.upstream.agent.given import GivenTasks
from tests.unit.core.doubles import ANYONE, SERVER

OTHER = replace(ANYONE, name="other")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "TASKS_OF_CALLER_MAX", 2)
    monkeypatch.setattr(given, "TASKS_MAX", 3)


def test_a_task_is_its_callers_alone() -> None:
    tasks = GivenTasks()
    tasks.add(ANYONE, SERVER, "t")
    assert tasks.has(ANYONE, SERVER, "t")
    assert not tasks.has(OTHER, SERVER, "t")
    assert not tasks.has(replace(ANYONE, tenant="other"), SERVER, "t")
    assert not tasks.has(ANYONE, ServerName("other"), "t")
    assert not tasks.has(ANYONE, SERVER, "u")


@pytest.mark.usefixtures("few")
def test_a_caller_forgets_its_own_oldest() -> None:
    tasks = GivenTasks()
    tasks.add(OTHER, SERVER, "first")
    for id in ("a", "b", "a", "c"):
        tasks.add(ANYONE, SERVER, id)
    assert [tasks.has(ANYONE, SERVER, id) for id in "abc"] == [True, False, True]
    assert tasks.has(OTHER, SERVER, "first")


@pytest.mark.usefixtures("few")
def test_all_together_forget_the_oldest() -> None:
    tasks = GivenTasks()
    callers = [replace(ANYONE, name=str(number)) for number in range(5)]
    for caller in callers:
        tasks.add(caller, SERVER, "t")
    assert [tasks.has(caller, SERVER, "t") for caller in callers] == [False, False, True, True, True]
