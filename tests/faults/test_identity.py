"""Every answer is its own caller's, whatever ids the callers choose (T05)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.conftest import Spawn
from tests.faults.caller import Caller, Era
from tests.faults.watching import IS_SOAK, eventually
from tests.hubs import serving, stdio
from tests.peers.launch import command

KEYS = {"ann": "ann-0123456789abcdef", "ben": "ben-0123456789abcdef"}
IDS = ["0", '""', '"0"', '"a"', "1", "1.0", "9007199254740993", "-1", "1e3", '"\\u0041 / \\/"']
"""The JSON texts of ids that callers use, among them some that careless readers take for nothing or for each other."""
SERVERS = ("over_stdio", "stateful", "stateless")
CALLS = 10_000 if IS_SOAK else 3_000
WORKERS = 16
"""For each of six callers: requests that are under way at the same time."""


async def test_thousands_of_calls_with_equal_ids_get_their_own_answers(tmp_path: Path, spawn: Spawn) -> None:
    stateful, stateless = await spawn("raw_server", "--era", "legacy"), await spawn("raw_server", "--stateless")
    servers = {
        "over_stdio": stdio(command("raw_server")),
        "stateful": {"url": stateful.url},
        "stateless": {"url": stateless.url},
    }
    callers = {name: {"key": key, "allow": ["*"]} for name, key in KEYS.items()}
    async with serving(tmp_path, servers, callers=callers) as hub:
        people = [Caller(hub.port, key=key, era=era) for key in KEYS.values() for era in ("modern", "legacy", "legacy")]
        for person in people[1::3]:
            await person.initialize()  # all of its calls then share one session, and in it the same few ids
        await eventually(lambda: hub_is_ready(people[0]), "all servers are there", within=20.0)
        counts = await asyncio.gather(
            *(
                call_on(person, seed=f"{who}-{worker}", calls=CALLS // (WORKERS * len(people)) + 1)
                for who, person in enumerate(people)
                for worker in range(WORKERS)
            )
        )
        for person in people:
            person.hang_up()
        assert sum(counts) >= CALLS


async def hub_is_ready(caller: Caller) -> bool:
    names = {tool["name"] for tool in (await caller.list_tools())["tools"]}
    return {f"{server}.echo" for server in SERVERS} <= names


async def call_on(caller: Caller, *, seed: str, calls: int) -> int:
    """Make calls one after the other; how many came back with what was asked, under the id it was asked with."""
    chance = random.Random(seed)
    for at in range(calls):
        id, nonce = chance.choice(IDS), f"{seed}-{at}"
        delay = f"sleep:{chance.choice((0, 0, 0.001, 0.005, 0.02))}"
        answer = await caller.call(f"{chance.choice(SERVERS)}.echo", {"text": nonce, "mode": delay}, id=id)
        assert answer.text == nonce, answer.body
        assert bytes(answer.message.id) == id.encode()
    return calls


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_one_id_many_times_at_once_in_one_session_is_served_every_time(era: Era, tmp_path: Path) -> None:
    """The second call of an id is answered while the first still runs, and the first is answered after it."""
    servers = {"raw": stdio(command("raw_server"))}
    async with serving(tmp_path, servers) as hub, Caller(hub.port, era=era) as caller:
        if era == "legacy":
            await caller.initialize()
        await eventually(lambda: is_up(caller), "the server is there", within=20.0)
        others_are_answered = tmp_path / "others are answered"
        held = {"text": "first", "mode": f"until:{others_are_answered}"}
        first = asyncio.ensure_future(caller.call("raw.echo", held, id="0"))
        await asyncio.gather(*(caller.call("raw.echo", {"text": "x"}, id="0") for _ in range(20)))
        assert not first.done()
        others_are_answered.touch()

        assert (await first).text == "first"


async def is_up(caller: Caller) -> bool:
    return (await caller.call("raw.echo", {"text": "?"})).reported == "ok"
