"""A new configuration takes effect at the listener, and its effect on access is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from isthmus.app.caller_identity import ANYONE, LiveCallers, log_changed_callers
from isthmus.app.hub import LOCAL, RunningHub
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.settings import Limits
from isthmus.frontends.http.auth import Authenticator, Denied
from isthmus.identity.keys import digest_of
from isthmus.model.callers import Caller, Grants

KEY = "k3y-of-the-planner-0123456789"
PLANNER = Caller("planner", "default", Grants(("*",)))
HOST = {b"host": b"127.0.0.1"}


class RecordingFrontend:
    """Records the callers that stay."""

    def __init__(self) -> None:
        self.kept: Container[Caller] = ()

    def retain(self, callers: Container[Caller]) -> None:
        self.kept = callers


@pytest.fixture
def opened(tmp_path: Path) -> Configuration:
    return Configuration(None, HubSettings(state=str(tmp_path / "state")))


@pytest.fixture
def closed(opened: Configuration) -> Configuration:
    return replace(opened, callers=((digest_of(KEY), PLANNER),))


@pytest.fixture
async def running(opened: Configuration) -> AsyncIterator[RunningHub]:
    made = RunningHub(opened, {})
    yield made
    await made.aclose()


def admitted(auth: Authenticator, key: str | None = None, host: bytes = b"127.0.0.1") -> Caller | Denied:
    return auth.admit({b"host": host, **({} if key is None else {b"x-api-key": key.encode()})}, "mcp")


async def test_a_new_configuration_holds_for_the_next_request(
    running: RunningHub, opened: Configuration, closed: Configuration
) -> None:
    access, frontend = LiveCallers(opened), RecordingFrontend()
    auth = access.open()
    access.follow(running, [frontend])
    assert admitted(auth) == LOCAL
    limits = Limits(wrong_keys_per_minute=7)
    access.change(replace(closed, hub=replace(closed.hub, hosts=("hub.example",), limits=limits)))
    assert auth.failed_auth_limit.per_minute == 7
    assert isinstance(admitted(auth), Denied)
    found = admitted(auth, KEY, b"hub.example")
    assert isinstance(found, Caller)
    assert (found.name, found.grants) == (PLANNER.name, PLANNER.grants)
    assert found in frontend.kept
    assert LOCAL not in frontend.kept
    assert running.callers is access.identities


@pytest.mark.parametrize(
    "hub", [{"host": "0.0.0.0"}, {"hosts": ("a:b:c",)}, {"log_file": "/proc/no/such.log"}], ids=str
)
async def test_one_that_cannot_be_taken_changes_nothing(
    running: RunningHub, opened: Configuration, hub: dict[str, Any]
) -> None:
    access, frontend = LiveCallers(opened), RecordingFrontend()
    auth = access.open()
    access.follow(running, [frontend])
    with pytest.raises((ConfigError, ValueError)):
        access.change(replace(opened, hub=replace(opened.hub, **hub)))
    assert admitted(auth) == LOCAL
    assert frontend.kept == ()


async def test_a_hub_that_wants_keys_is_not_opened_by_a_file(
    running: RunningHub, opened: Configuration, closed: Configuration
) -> None:
    access, frontend = LiveCallers(closed), RecordingFrontend()
    auth = access.open()
    access.follow(running, [frontend])
    with pytest.raises(ConfigError, match="restart the hub if it is to be open"):
        access.change(opened)
    assert isinstance(admitted(auth), Denied)
    assert frontend.kept == ()


async def test_logging_is_set_up_anew_only_if_it_changed(
    opened: Configuration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, str, str | None]] = []
    monkeypatch.setattr("isthmus.telemetry.logs.configure", lambda *given: asked.append(given))
    access = LiveCallers(opened)
    access.open()
    access.change(opened)
    assert asked == []
    file = str(tmp_path / "hub.log")
    access.change(replace(opened, hub=replace(opened.hub, log_level="debug", log_file=file)))
    assert asked == [("debug", "auto", file)]


def warnings_of(configuration: Configuration, *, is_insecure: bool = False) -> list[str]:
    with structlog.testing.capture_logs() as logs:
        LiveCallers(configuration, is_insecure=is_insecure).open()
    return [line["event"] for line in logs if line["log_level"] == "warning"]


def test_a_hub_that_is_open_says_so_once(opened: Configuration, closed: Configuration) -> None:
    (said,) = warnings_of(opened)
    assert said.startswith("open: every program on this machine may call everything")
    assert warnings_of(closed) == []


def test_a_hub_that_is_open_to_a_network_was_configured_so_and_says_so(opened: Configuration) -> None:
    everywhere = replace(opened, hub=replace(opened.hub, host="0.0.0.0"))
    with pytest.raises(ConfigError, match="isthmus token create"):
        LiveCallers(everywhere).open()
    (said,) = warnings_of(everywhere, is_insecure=True)
    assert said.startswith("INSECURE: everybody who can reach this address may call everything")
    auth = LiveCallers(everywhere, is_insecure=True).open()
    assert admitted(auth) is ANYONE


def test_a_published_open_hub_treats_no_caller_as_the_local_user(opened: Configuration) -> None:
    """Behind a proxy everybody comes from here."""
    published = replace(opened, hub=replace(opened.hub, public_url="https://hub.example"))
    (said,) = warnings_of(published)
    assert said.startswith("INSECURE: everybody who can reach this address may call everything")
    assert admitted(LiveCallers(published).open()) is ANYONE
    here = replace(opened, hub=replace(opened.hub, public_url="http://localhost:8765"))
    assert warnings_of(here)[0].startswith("open: every program on this machine")


def test_an_open_hub_with_callers_is_reported_as_not_open(closed: Configuration) -> None:
    (said,) = warnings_of(closed, is_insecure=True)
    assert said.startswith("--insecure has no effect")


async def test_added_and_removed_keys_are_logged_with_their_callers(
    running: RunningHub, opened: Configuration, closed: Configuration
) -> None:
    access = LiveCallers(opened)
    access.open()
    access.follow(running, [])
    with structlog.testing.capture_logs() as logs:
        access.change(closed)
        access.change(closed)
    assert [(line["event"], line.get("caller")) for line in logs] == [
        ("a key is now valid", "planner"),
        ("requests without a key are refused", None),
    ]
    planner = next(caller for caller in access.identities.callers() if caller.name == "planner")
    with structlog.testing.capture_logs() as logs:
        log_changed_callers({planner}, {msgspec.structs.replace(planner, is_operator=True)})
    assert [line["event"] for line in logs] == ["the permissions of a caller have changed"]
    assert KEY not in str(logs)
