"""The parts of serving that decide: who is known, and what a new configuration means at the door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.app.hub import LOCAL, RunningHub
from isthmus.app.serve import callers_of, change_access, identify
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.faces.http.gate import Denied, Gate
from isthmus.faces.http.origin import OriginGuard
from isthmus.identity.keys import digest_of
from isthmus.model.callers import Caller, Grants

KEY = "k3y-of-the-planner-0123456789"
PLANNER = Caller("planner", "default", Grants(("*",)))
OPEN = Configuration(None, HubSettings())
CLOSED = replace(OPEN, callers=((digest_of(KEY), PLANNER),))
HOST = (b"host", b"127.0.0.1")


class Face:
    """Remembers whom it was told to keep."""

    def __init__(self) -> None:
        self.kept: Container[Caller] = ()

    def retain(self, callers: Container[Caller]) -> None:
        self.kept = callers


@pytest.fixture
async def running() -> AsyncIterator[RunningHub]:
    made = RunningHub(OPEN, {})
    yield made
    await made.aclose()


@pytest.fixture
def gate() -> Gate:
    return Gate(OriginGuard(bind_host="127.0.0.1"), identify(OPEN))


def test_without_callers_everybody_on_this_machine_is_the_local_one() -> None:
    assert identify(OPEN)(dict([HOST])) == LOCAL
    assert callers_of(OPEN) == {LOCAL}


def test_with_callers_everybody_needs_a_key() -> None:
    assert identify(CLOSED)(dict([HOST])) is None
    assert identify(CLOSED)(dict([HOST, (b"x-api-key", KEY.encode())])) == PLANNER
    assert callers_of(CLOSED) == {PLANNER}


def test_a_hub_is_not_opened_to_a_network() -> None:
    with pytest.raises(ConfigError):
        identify(replace(OPEN, hub=HubSettings(host="0.0.0.0")))


async def test_a_new_configuration_holds_for_the_next_request(running: RunningHub, gate: Gate) -> None:
    face = Face()
    assert gate.admit(dict([HOST])) == LOCAL
    change_access(running, gate, [face], replace(CLOSED, hub=HubSettings(allowed_hosts=("hub.example",))))
    assert isinstance(gate.admit(dict([HOST])), Denied)
    assert gate.admit({b"host": b"hub.example", b"x-api-key": KEY.encode()}) == PLANNER
    assert face.kept == {PLANNER}


@pytest.mark.parametrize(
    "hub",
    [HubSettings(host="0.0.0.0"), HubSettings(allowed_hosts=("a:b:c",)), HubSettings(log_file="/proc/no/such.log")],
)
async def test_one_that_cannot_be_taken_changes_nothing(running: RunningHub, gate: Gate, hub: HubSettings) -> None:
    face = Face()
    with pytest.raises((ConfigError, ValueError)):
        change_access(running, gate, [face], replace(OPEN, hub=hub))
    assert gate.admit(dict([HOST])) == LOCAL
    assert face.kept == ()


async def test_a_hub_that_wants_keys_is_not_opened_by_a_file(gate: Gate) -> None:
    running, face = RunningHub(CLOSED, {}), Face()
    gate.change(OriginGuard(bind_host="127.0.0.1"), identify(CLOSED))
    with pytest.raises(ConfigError, match="restart the hub if it is to be open"):
        change_access(running, gate, [face], OPEN)
    assert isinstance(gate.admit(dict([HOST])), Denied)
    assert face.kept == ()
    await running.aclose()


async def test_logging_is_set_up_anew_only_if_it_changed(
    running: RunningHub, gate: Gate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, str, str | None]] = []
    monkeypatch.setattr("isthmus.telemetry.logs.configure", lambda *given: asked.append(given))
    change_access(running, gate, [], OPEN)
    assert asked == []
    file = str(tmp_path / "hub.log")
    change_access(running, gate, [], replace(OPEN, hub=HubSettings(log_level="debug", log_file=file)))
    assert asked == [("debug", "auto", file)]
