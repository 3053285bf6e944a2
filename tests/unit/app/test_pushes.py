"""The outbox of a running hub: who may have what sent where, and that it starts and ends with the hub."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest

from isthmus.app.hub import LOCAL, RunningHub
from isthmus.app.pushes import Pushes
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.ports.journal import Document
from isthmus.core.tasks.pushes import DELIVERY
from isthmus.model.callers import Caller, Grants
from isthmus.upstream.targets.settings import TargetSettings
from isthmus.wire.a2a.operations import PushTarget

URL = "http://127.0.0.1:9/hook"
SOME = Caller("some", "default", Grants(("*",)))
PLANNER = Caller("planner", "default", Grants(("*",)), may_name_targets=True)


@pytest.fixture
async def running() -> AsyncIterator[RunningHub]:
    made = RunningHub(Configuration(None, HubSettings()), {})
    yield made
    await made.aclose()


async def test_a_private_address_is_for_those_who_may_name_it_while_it_is_listed(running: RunningHub) -> None:
    pushes = Pushes(running)
    target = PushTarget(URL)
    assert await pushes.pushing.check(PLANNER, target) is not None
    listed = TargetSettings(allow=("http://127.0.0.1:9",))
    running.configuration = dataclasses.replace(running.configuration, targets=listed)
    assert await pushes.pushing.check(PLANNER, target) is None
    assert await pushes.pushing.check(LOCAL, target) is None
    assert await pushes.pushing.check(SOME, target) is not None
    await pushes.aclose()


async def test_what_was_due_is_looked_at_when_it_starts(running: RunningHub) -> None:
    pushes = Pushes(running)
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
