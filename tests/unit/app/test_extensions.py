"""Extensions in their places: whatever one does wrong is a refusal, and none allows more than grants do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from isthmus.app.caller_identity import LiveCallers
from isthmus.app.extensions import JOURNAL_METHODS, ContainedVerifier, extension_policy, verifiers_of
from isthmus.app.hub import RunningHub
from isthmus.app.reload_diff import keep_fixed_settings
from isthmus.app.serve import open_journal
from isthmus.config.extensions import Extension, Extensions
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.access.tenants import Tenants
from isthmus.core.journal import ClosableJournal, Journal
from isthmus.model.callers import Caller, Grants, Unprovable
from isthmus.model.calls import EVERYTHING
from isthmus.storage.settings import StorageSettings
from tests.packages import install, on_path

GUEST = Caller("guest", "default", Grants(("*",)))

SOURCE = """
from isthmus.model.callers import Caller, Grants

class Guests:
    def __init__(self, settings): pass
    def caller_of(self, credential):
        return Caller("guest", "default", Grants(("*",))) if credential == b"guest" else None
    def knows(self, caller): return caller.name == "guest"

class Half:
    def __init__(self, settings): self.half = settings.get("half", "")
    def allows(self, tenant, caller, server, tool):
        if self.half == "raise":
            raise LookupError("no")
        return (tenant, caller, tool[:1] < "m") if self.half == "tuple" else caller != "nobody" and tool != "timestamp"

def opener(settings):
    async def open_journal(url):
        if url == "guests:half":
            return object()
        raise OSError(f"no way to {url}")
    return open_journal
"""


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    points = {"isthmus.identity": "Guests", "isthmus.policy": "Half", "isthmus.storage": "opener"}
    named = {group: {"guests": f"guests_of_tests:{name}"} for group, name in points.items()}
    install(tmp_path / "packages", "guests_of_tests", SOURCE, named)
    yield from on_path(tmp_path / "packages", monkeypatch)


def configured(folder: Path, *extensions: Extension, **more: object) -> Configuration:
    hub = HubSettings(state=str(folder / "state"))
    tenants = Tenants(has_policies=any(each.group == "policy" for each in extensions))
    return Configuration(None, hub, extensions=Extensions(extensions), tenants=tenants, **more)  # type: ignore[arg-type]


class Strange:
    """A verifier that returns or raises whatever it was made with."""

    def __init__(self, found: object) -> None:
        self.found = found

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found  # type: ignore[return-value]

    def knows(self, caller: Caller) -> bool:
        return self.caller_of(b"")  # type: ignore[return-value]


# -- identity ----------------------------------------------------------------------------------------------------------


def test_callers_that_an_extension_knows_are_admitted_and_others_are_not(tmp_path: Path) -> None:
    configuration = configured(tmp_path, Extension("identity", "guests"))
    access = LiveCallers(configuration)
    access.open(verifiers_of(configuration))
    assert access.identities.wants_proof  # though no caller is configured
    assert access.identities.identify({b"authorization": b"Bearer guest"}) == GUEST
    assert access.identities.identify({b"authorization": b"Bearer other"}) is None
    assert access.identities.identify({}) is None
    assert GUEST in access.identities


@pytest.mark.parametrize(
    "found",
    [
        True,
        "guest",
        LookupError("guest-token-0123"),
        Caller("guest", "default", Grants(("*",)), is_anyone=True),
        Caller("guest", "default", Grants(("a.*.b",))),
        Caller("guest", "default", Grants((7,))),  # type: ignore[arg-type]
        Caller("guest", "default", Grants(("*",)), frontends=(("rest", Grants((".",))),)),
        Caller("guest", "default", Grants(("*",)), frontend="rest"),
        Caller("guest", "default", Grants(["*"])),  # type: ignore[arg-type]
        Caller("guest", "default", Grants("notes.*")),  # type: ignore[arg-type]
        Caller("guest", "default", Grants(("*",), deny="pay")),  # type: ignore[arg-type]
        Caller("guest", "default", None),  # type: ignore[arg-type]
        Caller("guest", "default", Grants(("*",)), key=7),  # type: ignore[arg-type]
        Caller("guest", "default", Grants(("*",)), frontends=[("rest", Grants(("*",)))]),  # type: ignore[arg-type]
        Unprovable(7),  # type: ignore[arg-type]
        Caller("", "default", Grants(("*",))),
        Caller("a\nb", "default", Grants(("*",))),
    ],
)
def test_any_other_result_of_an_extension_is_no_caller(found: object) -> None:
    contained = ContainedVerifier("strange", Strange(found))
    with capture_logs() as logs:
        assert contained.caller_of(b"guest-token-0123") is None
        assert contained.caller_of(b"guest-token-0123") is None
    assert len(logs) <= 1  # logged once
    assert "guest-token-0123" not in str(logs)


def test_a_temporary_failure_of_an_extension_is_passed_on() -> None:
    doubt = Unprovable("its directory does not answer")
    assert ContainedVerifier("strange", Strange(doubt)).caller_of(b"x") == doubt


@pytest.mark.parametrize(("found", "is_known"), [(True, True), (1, False), ("yes", False), (LookupError(), False)])
def test_only_true_keeps_a_callers_sessions_open(found: object, is_known: bool) -> None:  # noqa: FBT001
    assert ContainedVerifier("strange", Strange(found)).knows(GUEST) is is_known


# -- policy ------------------------------------------------------------------------------------------------------------


async def seen(configuration: Configuration, caller: Caller) -> set[str]:
    running = RunningHub(configuration, {})
    try:
        await running.hub.wait_connected(EVERYTHING)
        return set(running.hub.snapshot.view(configuration.tenants.bound(caller).grants, EVERYTHING).routes)
    finally:
        await running.aclose()


async def test_a_policy_narrows_each_callers_view(tmp_path: Path) -> None:
    everything = await seen(configured(tmp_path), GUEST)
    assert "builtin.timestamp" in everything
    with_policy = configured(tmp_path, Extension("policy", "guests"))
    assert await seen(with_policy, GUEST) == everything - {"builtin.timestamp"}
    assert await seen(with_policy, Caller("nobody", "default", Grants(("*",)))) == set()
    assert (
        await seen(with_policy, Caller("poor", "default", Grants(()))) == set()
    )  # it allows nothing that grants do not


@pytest.mark.parametrize("half", ["raise", "tuple"])
def test_a_policy_that_does_not_say_yes_refuses(tmp_path: Path, half: str) -> None:
    narrowing = extension_policy(configured(tmp_path, Extension("policy", "guests", {"half": half})))
    assert narrowing is not None
    with capture_logs() as logs:
        assert not narrowing(None, "files", "read")  # type: ignore[arg-type]
        assert not narrowing(None, "files", "read")  # type: ignore[arg-type]
    assert len(logs) <= 1


def test_without_policies_no_policy_is_consulted(tmp_path: Path) -> None:
    assert extension_policy(configured(tmp_path)) is None


# -- storage, and changes ----------------------------------------------------------------------------------------------


async def test_a_journal_that_cannot_be_opened_is_reported_without_its_address(tmp_path: Path) -> None:
    storage = StorageSettings("guests:password", is_foreign=True)
    configuration = configured(tmp_path, Extension("storage", "guests"), storage=storage)
    with pytest.raises(ConfigError, match=r"isthmus\.storage guests failed with OSError") as refused:
        await asyncio.wait_for(open_journal(configuration), 5)
    assert "password" not in str(refused.value)


async def test_an_object_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    storage = StorageSettings("guests:half", is_foreign=True)
    configuration = configured(tmp_path, Extension("storage", "guests"), storage=storage)
    with pytest.raises(ConfigError, match="lacks write, read, page"):
        await asyncio.wait_for(open_journal(configuration), 5)


def test_the_required_methods_of_a_journal_match_the_port() -> None:
    ports = {name for port in (Journal, ClosableJournal) for name in vars(port) if not name.startswith("_")}
    assert set(JOURNAL_METHODS) == ports


def test_other_extensions_need_a_restart_and_nothing_else_of_the_file_is_taken(tmp_path: Path) -> None:
    running = configured(tmp_path, Extension("policy", "guests", {"a": 1}))
    same = configured(tmp_path, Extension("policy", "guests", {"a": 1}))
    assert keep_fixed_settings(running, same).extensions == running.extensions
    for other in (
        (),
        (Extension("policy", "guests", {"a": 2}),),
        (*running.extensions.named, Extension("identity", "guests")),
    ):
        with pytest.raises(ConfigError, match="restart the hub"):
            keep_fixed_settings(running, configured(tmp_path, *other))
