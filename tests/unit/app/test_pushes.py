"""The outbox of a running hub: permitted push addresses, and its start and end with the hub."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from isthmus.app.a2a import OwnerChecks, PushService
from isthmus.app.caller_identity import FILE_KEY_PREFIX
from isthmus.app.hub import LOCAL, RunningHub
from isthmus.app.key_files import TRUST_SECONDS
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.journal import Document
from isthmus.core.tasks.push_delivery import DELIVERY
from isthmus.core.tasks.record import TaskOwner
from isthmus.model.callers import Caller, Grants
from isthmus.upstream.targets.settings import TargetSettings
from isthmus.wire.a2a.operations import PushConfig
from tests.unit.app.test_caller_identity import GUEST, KEY, OTHER_KEY, Guests, World, keyed

URL = "http://127.0.0.1:9/hook"
SOME = Caller("some", "default", Grants(("*",)))
PLANNER = Caller("planner", "default", Grants(("*",)), may_name_targets=True)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningHub]:
    made = RunningHub(Configuration(None, HubSettings(state=str(tmp_path))), {})
    yield made
    await made.aclose()


async def test_a_private_address_is_for_callers_that_may_name_it_while_it_is_listed(running: RunningHub) -> None:
    pushes = PushService(running)
    target = PushConfig(URL)
    assert await pushes.pushing.check(PLANNER, "1.0", target) is not None
    listed = TargetSettings(allow=("http://127.0.0.1:9",))
    running.configuration = dataclasses.replace(running.configuration, targets=listed)
    assert await pushes.pushing.check(PLANNER, "1.0", target) is None
    assert await pushes.pushing.check(LOCAL, "1.0", target) is None
    assert await pushes.pushing.check(SOME, "1.0", target) is not None
    await pushes.aclose()


async def test_due_pushes_are_checked_at_the_start(running: RunningHub) -> None:
    pushes = PushService(running)
    body = b'{"task":"t","recipient":"r","number":1,"host":"h"}'
    kept = asyncio.Event()
    document = Document(DELIVERY, "default\nme", '["t","r",1]', 1, 1.0, body, "t", "due")
    running.journal.write((document,), lambda _: kept.set())
    await kept.wait()
    pushes.start()
    async with asyncio.timeout(30.0):
        while (found := await running.journal.read(DELIVERY, document.owner, document.id)) == document:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert found is not None
    assert found.state == "dropped"
    pushes.close()
    await pushes.aclose()


# -- who is gone -------------------------------------------------------------------------------------------------------

READER, PLANNING = TaskOwner("default", "reader"), TaskOwner("default", "planner")


def test_a_revoked_key_ends_the_pushes_that_it_requested(tmp_path: Path) -> None:
    world = World(tmp_path, **keyed(KEY, OTHER_KEY))
    _, first = world.mint()
    owners = OwnerChecks(world.start())
    mine = world.who(KEY)
    assert isinstance(mine, Caller)
    assert owners.status_of(READER, first.id) == owners.status_of(PLANNING, mine.key) == "known"
    assert (
        owners.status_of(TaskOwner("acme", "reader"), first.id)
        == owners.status_of(TaskOwner("default", "other"), "")
        == "gone"
    )
    _, second = world.mint()
    world.revoke(first.id)
    world.reload_keys()
    assert owners.status_of(READER, first.id) == "gone", "though its caller has another"
    assert owners.status_of(READER, second.id) == "known"
    assert owners.status_of(READER, "") == "known", "an earlier hub did not note by which"
    world.revoke(second.id)
    fewer = dataclasses.replace(world.configuration, callers=world.configuration.callers[1:])
    world.known.prepare(fewer)()
    world.reload_keys()
    assert owners.status_of(READER, second.id) == owners.status_of(READER, "") == "gone"
    assert owners.status_of(PLANNING, mine.key) == "gone"
    assert mine.key.startswith(FILE_KEY_PREFIX)
    assert owners.status_of(PLANNING, "file:00000000-0123456789abcdef") == "known", "which key that was, nobody can say"


def test_a_caller_that_may_yet_be_verified_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, **keyed(KEY))
    known = world.start()
    owners, guests, owner = OwnerChecks(known), Guests(), TaskOwner(GUEST.tenant, GUEST.name)
    known.verifiers.append(guests)
    assert owners.status_of(owner, GUEST.key) == "gone"
    known.has_other_callers = True
    assert owners.status_of(owner, GUEST.key) == "away"
    assert world.who("guest-token") == GUEST
    assert owners.status_of(owner, GUEST.key) == "known"
    guests.is_gone = True
    assert owners.status_of(owner, GUEST.key) == "away"


def test_while_the_list_of_keys_cannot_be_read_no_caller_is_gone_for_good(tmp_path: Path) -> None:
    world = World(tmp_path)
    _, made = world.mint()
    owners = OwnerChecks(world.start())
    world.file.path.write_bytes(b"damaged")
    world.clock.now += TRUST_SECONDS + 1
    world.reload_keys()
    assert owners.status_of(READER, made.id) == "away"


def test_the_person_at_an_open_hub_is_known_until_it_wants_keys(tmp_path: Path) -> None:
    world = World(tmp_path)
    owners, local = OwnerChecks(world.start()), TaskOwner(LOCAL.tenant, LOCAL.name)
    assert owners.status_of(local, LOCAL.key) == "known"
    world.mint()
    world.reload_keys()
    assert owners.status_of(local, LOCAL.key) == "gone"
