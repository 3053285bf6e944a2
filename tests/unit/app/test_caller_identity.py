"""Known callers: from the file, from the changing list of keys, and by other proofs."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import structlog

from isthmus.app.caller_identity import KEYS_UNREADABLE, LOCAL_OPERATOR, Identities
from isthmus.app.hub import LOCAL
from isthmus.app.key_files import TRUST_SECONDS, KeyFile
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.access.tenants import NO_TENANTS, Tenants, TenantSettings
from isthmus.identity.keys import digest_of
from isthmus.identity.minted_keys import MintedKey, mint, revoked
from isthmus.identity.settings import IssuerSettings
from isthmus.model.callers import Caller, Grants, Unprovable

KEY, OTHER_KEY = "k3y-of-the-planner-0123456789", "an0ther-key-of-the-planner"
PLANNER = Caller("planner", "default", Grants(("*",)))
GUEST = Caller("guest", "acme", Grants(("files",)), key="jwt")


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Guests:
    """A verifier that knows one token."""

    def __init__(self, guest: Caller = GUEST) -> None:
        self.guest = guest
        self.is_reachable = True
        self.is_gone = False

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        if not credential.startswith(b"guest"):
            return None
        return self.guest if self.is_reachable else Unprovable("the issuer cannot be reached")

    def knows(self, caller: Caller) -> bool:
        return caller == self.guest and not self.is_gone


class World:
    """A hub's state folder, its clock, and who is known."""

    def __init__(self, state: Path, **configured: object) -> None:
        self.clock = Clock()
        self.file = KeyFile(state)
        self.configuration = replace(Configuration(None, HubSettings(state=str(state))), **configured)  # type: ignore[arg-type]
        self.known: Identities

    def start(self, *, is_insecure: bool = False) -> Identities:
        self.known = Identities(self.configuration, is_insecure=is_insecure, now=self.clock, clock=self.clock)
        self.known.decide()
        return self.known

    def mint(
        self, name: str = "reader", tenant: str = "default", expires_at: float | None = None
    ) -> tuple[str, MintedKey]:
        key, made = mint(name, Grants(("files",)), tenant, targets=False, now=self.clock.now, expires_at=expires_at)
        self.file.change(lambda keys: (*keys, made))
        return key, made

    def revoke(self, id: str) -> None:
        self.file.change(lambda keys: tuple(revoked(key, self.clock.now) if key.id == id else key for key in keys))

    def reload_keys(self) -> bool:
        self.known._live_keys.reload()
        return self.known.refresh()

    def who(self, key: str) -> Caller | Unprovable | None:
        return self.known.identify({b"authorization": f"Bearer {key}".encode()})


def keyed(*keys: str) -> dict[str, object]:
    return {"callers": tuple((digest_of(key), PLANNER) for key in keys)}


def test_without_callers_everybody_on_this_machine_is_the_local_one(tmp_path: Path) -> None:
    known = World(tmp_path).start()
    assert known.identify({}) is LOCAL
    assert (known.callers(), known.wants_proof, LOCAL in known) == (frozenset({LOCAL}), False, True)


def test_before_the_decision_no_caller_is_admitted(tmp_path: Path) -> None:
    assert Identities(World(tmp_path).configuration).identify({}) is None


def test_with_callers_everybody_needs_a_key(tmp_path: Path) -> None:
    world = World(tmp_path, **keyed(KEY))
    known = world.start()
    assert known.identify({}) is None
    assert world.who(OTHER_KEY) is None
    found = world.who(KEY)
    assert isinstance(found, Caller)
    assert msgspec.structs.replace(found, key="") == PLANNER
    assert known.callers() == {found}
    assert known.find("default", "planner") == found
    assert known.find("other", "planner") is None


def test_the_local_operator_is_let_in_and_counts_as_no_caller(tmp_path: Path) -> None:
    world = World(tmp_path, **keyed(KEY))
    world.known = Identities(world.configuration)
    world.known.operator_key = OTHER_KEY
    world.known.decide()
    assert world.who(OTHER_KEY) == LOCAL_OPERATOR
    assert LOCAL_OPERATOR in world.known
    assert world.known.callers() == {world.who(KEY)}
    world.known.prepare(world.configuration)()
    assert world.who(OTHER_KEY) == LOCAL_OPERATOR


def test_the_first_key_closes_a_hub_and_only_the_operators_word_opens_it_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    known = world.start()
    key, made = world.mint()
    assert (world.reload_keys(), known.identify({})) == (True, None)
    world.revoke(made.id)
    assert (world.reload_keys(), known.identify({}), world.who(key)) == (True, None, None)
    world.file.change(lambda keys: keys, to_open=True)
    assert (world.reload_keys(), known.identify({})) == (True, LOCAL)
    world.mint("another")
    world.file.change(lambda keys: keys, to_open=False)
    assert (world.reload_keys(), known.identify({})) == (True, None)


def test_a_hub_that_others_can_reach_stays_closed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.configuration = replace(world.configuration, hub=replace(world.configuration.hub, host="0.0.0.0"))
    _, made = world.mint()
    known = world.start()
    world.revoke(made.id)
    world.file.change(lambda keys: keys, to_open=True)
    with structlog.testing.capture_logs() as logs:
        world.reload_keys()
    assert known.identify({}) is None
    assert "hub rejects all requests: keys unreadable" in [line["event"] for line in logs]


def test_sessions_of_one_key_do_not_belong_to_another(tmp_path: Path) -> None:
    world = World(tmp_path, **keyed(KEY, OTHER_KEY))
    known = world.start()
    first, second = world.who(KEY), world.who(OTHER_KEY)
    assert first != second
    assert first in known
    known.prepare(replace(world.configuration, callers=world.configuration.callers[1:]))()
    assert first not in known
    assert second in known
    assert world.who(KEY) is None


def test_the_mark_of_a_key_says_nothing_of_it(tmp_path: Path) -> None:
    world = World(tmp_path, **keyed(KEY))
    world.start()
    found = world.who(KEY)
    assert isinstance(found, Caller)
    assert found.key.startswith("file:")
    assert digest_of(KEY).hex()[:8] not in found.key


def test_a_key_that_was_made_lets_its_caller_in(tmp_path: Path) -> None:
    world = World(tmp_path)
    key, made = world.mint()
    known = world.start()
    assert known.wants_proof
    assert world.who(key) == made.caller
    assert known.by_key(key.encode()) == known.by_digest(digest_of(key)) == made.caller


def test_a_hub_that_runs_takes_keys_as_they_come_and_go(tmp_path: Path) -> None:
    world = World(tmp_path, **keyed(KEY))
    known = world.start()
    key, made = world.mint()
    assert world.who(key) is None
    assert world.reload_keys()
    assert (world.who(key), made.caller in known) == (made.caller, True)
    assert not world.reload_keys()
    world.revoke(made.id)
    assert world.reload_keys()
    assert (world.who(key), made.caller in known) == (None, False)


def test_the_first_key_closes_a_hub_that_was_open(tmp_path: Path) -> None:
    world = World(tmp_path)
    known = world.start()
    _, made = world.mint()
    with structlog.testing.capture_logs() as logs:
        assert world.reload_keys()
    assert (known.wants_proof, LOCAL in known, known.identify({})) == (True, False, None)
    assert "now requires keys" in logs[0]["event"]
    world.revoke(made.id)
    assert world.reload_keys()
    assert known.identify({}) is None, "a hub that wanted keys does not open again"


def test_a_key_that_expires_ends_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path)
    key, made = world.mint(expires_at=world.clock.now + 10)
    known = world.start()
    world.clock.now += 9.9
    assert (world.who(key), world.reload_keys()) == (made.caller, False)
    world.clock.now += 0.1
    assert world.who(key) is None
    assert world.reload_keys()
    assert made.caller not in known


def test_so_does_one_of_the_file(tmp_path: Path) -> None:
    world = World(tmp_path, **keyed(KEY))
    world.configuration = replace(world.configuration, expiries={digest_of(KEY): world.clock.now + 10})
    known = world.start()
    found = world.who(KEY)
    assert found in known
    world.clock.now += 10
    assert world.who(KEY) is None
    assert world.reload_keys()
    assert found not in known
    assert known.wants_proof


def test_all_callers_of_a_tenant_are_bounded_by_it(tmp_path: Path) -> None:
    bounds = Grants(("files.read",))
    world = World(tmp_path, tenants=Tenants({"acme": TenantSettings(bounds)}))
    key, _ = world.mint(tenant="acme")
    stranger, _ = world.mint("stranger", tenant="acne")
    world.start()
    found = world.who(key)
    assert isinstance(found, Caller)
    assert found.grants == Grants(("files",)).bounded_by(bounds)
    assert world.who(stranger) is None, "of a tenant that is none, nobody knows the bounds"


def test_a_caller_of_the_file_is_not_another_one_of_the_list(tmp_path: Path) -> None:
    world = World(tmp_path, **keyed(KEY))
    key, made = world.mint("planner")
    with structlog.testing.capture_logs() as logs:
        world.start()
    assert world.who(key) is None
    assert [line for line in logs if line.get("key") == made.id]


def test_a_key_that_the_file_has_by_its_digest_is_the_files(tmp_path: Path) -> None:
    world = World(tmp_path)
    key, _ = world.mint("reader")
    world.configuration = replace(world.configuration, **keyed(key))  # type: ignore[arg-type]
    world.start()
    found = world.who(key)
    assert isinstance(found, Caller)
    assert found.name == PLANNER.name


def test_no_caller_has_the_name_of_an_issuers_caller(tmp_path: Path) -> None:
    """They would own each other's tasks and sessions."""
    corp = IssuerSettings("corp", "https://login.example", ("https://hub.example",))
    world = World(tmp_path, issuers=(corp,), **keyed(KEY))
    key, _ = world.mint("corp/alice")
    other, _ = world.mint("team/alice")
    world.start()
    assert world.who(key) is None
    assert world.who(other) is not None


def test_a_caller_of_the_file_that_was_left_out_is_not_another_one_of_the_list_either(tmp_path: Path) -> None:
    world = World(tmp_path, named=frozenset({"reader"}), **keyed(KEY))
    key, _ = world.mint("reader")
    world.start()
    assert world.who(key) is None, "a mistake in the file must not let in whom the file kept out"


# -- what else proves it ---------------------------------------------------------------------------------------------


def test_credentials_that_are_no_keys_go_to_the_verifiers(tmp_path: Path) -> None:
    world = World(tmp_path, **keyed(KEY))
    known, guests = world.start(), Guests()
    known.verifiers.append(guests)
    assert world.who("guest-token") == GUEST
    assert GUEST in known
    assert known.by_key(b"guest-token") is None
    guests.is_reachable = False
    assert world.who("guest-token") == Unprovable("the issuer cannot be reached")
    assert world.who("other-token") is None
    assert world.who(KEY) is not None


def test_a_caller_of_a_verifier_is_bound_to_its_tenant_and_dropped_when_that_changes(tmp_path: Path) -> None:
    first, second = (Tenants({GUEST.tenant: TenantSettings(Grants((name,)))}) for name in ("files", "web"))
    world = World(tmp_path, tenants=first, **keyed(KEY))
    known = world.start()
    known.verifiers.append(Guests())
    found = world.who("guest")
    assert found == first.bound(GUEST) != GUEST
    assert found in known
    assert GUEST not in known, "nobody has more than the tenant"
    for tenants in (second, NO_TENANTS, first):
        known.prepare(replace(world.configuration, tenants=tenants))()
        assert world.who("guest") == tenants.bound(GUEST)
        assert [each in known for each in (GUEST, first.bound(GUEST), second.bound(GUEST))] == [
            tenants is NO_TENANTS, tenants is first, tenants is second
        ]  # fmt: skip


def test_a_caller_that_its_verifier_no_longer_knows_is_dropped_though_no_key_changed(tmp_path: Path) -> None:
    bounds = Tenants({GUEST.tenant: TenantSettings(Grants(("files",)))})
    for number, tenants in enumerate((NO_TENANTS, bounds)):
        world = World(tmp_path / str(number), tenants=tenants, **keyed(KEY))
        known, guests = world.start(), Guests()
        known.verifiers.append(guests)
        found = world.who("guest-token")
        assert isinstance(found, Caller)
        world.clock.now += 1
        assert not world.reload_keys()
        guests.is_gone = True
        world.clock.now += 1
        assert world.reload_keys(), "what it has opened is to be ended"
        assert found not in known
        world.clock.now += 1
        assert not world.reload_keys(), "once"


def test_a_verified_caller_is_found_by_name_while_its_credential_is_valid(tmp_path: Path) -> None:
    tenants = Tenants({GUEST.tenant: TenantSettings(Grants(("files",)))})
    world = World(tmp_path, tenants=tenants, **keyed(KEY))
    known, guests = world.start(), Guests()
    known.verifiers.append(guests)
    assert known.find(GUEST.tenant, GUEST.name) is None
    world.who("guest-token")
    assert known.find(GUEST.tenant, GUEST.name) == tenants.bound(GUEST), "what it waits for may still be done"
    known.prepare(replace(world.configuration, tenants=NO_TENANTS))()
    assert known.find(GUEST.tenant, GUEST.name) is None, "it is not who it was"
    world.who("guest-token")
    assert known.find(GUEST.tenant, GUEST.name) == GUEST
    guests.is_gone = True
    assert known.find(GUEST.tenant, GUEST.name) is None


def test_a_verified_caller_is_known_on_each_frontend(tmp_path: Path) -> None:
    guest = msgspec.structs.replace(GUEST, frontends=(("rest", Grants(("files.read",))),))
    world = World(tmp_path, **keyed(KEY))
    known = world.start()
    known.verifiers.append(Guests(guest))
    assert world.who("guest-token") == guest
    assert guest.on("rest") != guest
    assert guest.on("rest") in known
    assert guest.on("mcp") in known


class Tickets:
    """A verifier of what was given out for a key: good as long as that is."""

    def __init__(self, known: Identities, key: str) -> None:
        self._known = known
        self._digest = digest_of(key)

    def caller_of(self, credential: bytes) -> Caller | Unprovable | None:
        return self._known.by_digest(self._digest) if credential == b"ticket" else None

    def knows(self, _: Caller) -> bool:
        return False


def test_a_token_for_a_key_is_valid_as_long_as_the_key(tmp_path: Path) -> None:
    world = World(tmp_path, tenants=Tenants({"acme": TenantSettings(Grants(("files.read",)))}))
    key, made = world.mint(tenant="acme")
    known = world.start()
    known.verifiers.append(Tickets(known, key))
    found = world.who("ticket")
    assert found == world.who(key)
    assert found in known
    world.revoke(made.id)
    assert world.reload_keys()
    assert (world.who("ticket"), found in known) == (None, False)


def test_a_hub_with_callers_of_a_verifier_is_not_open(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.configuration = replace(world.configuration, hub=replace(world.configuration.hub, host="0.0.0.0"))
    with pytest.raises(ConfigError):
        world.start()
    known = Identities(world.configuration)
    known.verifiers.append(Guests())
    known.has_other_callers = True
    known.decide()
    assert known.wants_proof


# -- a list that cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["", "[]", None])
def test_a_hub_does_not_start_with_a_list_that_cannot_be_read(tmp_path: Path, damage: str | None) -> None:
    world = World(tmp_path, **keyed(KEY))
    world.mint()
    if damage is None:
        world.file.path.unlink()
    else:
        world.file.path.write_text(damage)
    with pytest.raises(ConfigError, match=r"keys\.json cannot be used"):
        world.start()


@pytest.mark.parametrize("damage", ["", None])
def test_a_lost_list_is_used_for_a_while_and_then_admits_no_caller(tmp_path: Path, damage: str | None) -> None:
    world = World(tmp_path, **keyed(KEY))
    key, made = world.mint()
    known = world.start()
    if damage is None:
        world.file.path.unlink()
    else:
        world.file.path.write_text(damage)
    with structlog.testing.capture_logs() as logs:
        assert not world.reload_keys()
        assert not world.reload_keys()
        world.clock.now += TRUST_SECONDS
        assert world.who(key) == made.caller
        world.clock.now += 0.1
        assert world.reload_keys()
    assert [line["log_level"] for line in logs] == ["error", "error"], "each is logged once"
    assert (world.who(key), known.by_key(key.encode()), made.caller in known) == (
        KEYS_UNREADABLE,
        KEYS_UNREADABLE,
        False,
    )
    assert world.who("something-else") is KEYS_UNREADABLE, "nobody can tell whether it was made meanwhile"
    assert known.identify({}) is None
    assert isinstance(world.who(KEY), Caller), "the keys of the file are known as before"
    assert known.wants_proof


def test_a_list_that_can_be_read_again_is_gone_by_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    key, made = world.mint()
    world.start()
    content = world.file.path.read_bytes()
    world.file.path.unlink()
    world.reload_keys()
    world.clock.now += TRUST_SECONDS + 1
    assert world.reload_keys()
    world.file._write(world.file.path, content)
    assert world.reload_keys()
    assert world.who(key) == made.caller


def test_even_the_whole_folder_gone_opens_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    world.mint()
    known = world.start()
    for path in sorted((tmp_path / "state").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    world.clock.now += TRUST_SECONDS + 1
    assert world.reload_keys()
    assert (known.wants_proof, known.identify({})) == (True, None)


async def test_a_disk_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.app.caller_identity.CHECK_SECONDS", 0.005)
    world = World(tmp_path)
    key, made = world.mint()
    known = world.start()
    answers, changed = threading.Event(), asyncio.Event()
    monkeypatch.setattr(known._live_keys, "reload", answers.wait)
    running = asyncio.ensure_future(known.run(changed.set))
    try:
        world.clock.now += TRUST_SECONDS + 1
        await asyncio.wait_for(changed.wait(), 10)
        assert (world.who(key), made.caller in known) == (KEYS_UNREADABLE, False)
    finally:
        answers.set()
        running.cancel()
        await asyncio.wait({running})


async def test_a_defect_met_once_does_not_end_the_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.app.caller_identity.CHECK_SECONDS", 0.005)
    world = World(tmp_path, **keyed(KEY))
    known = world.start()
    changed = asyncio.Event()
    reload_keys, defects = known._live_keys.reload, [ZeroDivisionError()]

    def stumble() -> None:
        if defects:
            raise defects.pop()
        reload_keys()

    monkeypatch.setattr(known._live_keys, "reload", stumble)
    with structlog.testing.capture_logs() as logs:
        running = asyncio.ensure_future(known.run(changed.set))
        key, made = world.mint()
        await asyncio.wait_for(changed.wait(), 10)
    running.cancel()
    await asyncio.wait({running})
    assert world.who(key) == made.caller
    assert [line["log_level"] for line in logs if "defect" in line["event"]] == ["error"]


async def test_a_key_is_revoked_while_all_threads_of_the_loop_wait(tmp_path: Path) -> None:
    """As they do where a name server does not answer: a lookup for each server that is tried."""
    world = World(tmp_path)
    key, made = world.mint()
    known = world.start()
    loop, changed, answers = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    waiting = [loop.run_in_executor(None, answers.wait) for _ in range(40)]
    running = asyncio.ensure_future(known.run(changed.set))
    try:
        world.revoke(made.id)
        await asyncio.wait_for(changed.wait(), 10)
        assert world.who(key) is None
    finally:
        answers.set()
        running.cancel()
        await asyncio.gather(running, *waiting, return_exceptions=True)
