"""The wall clock of the hub is wrong and steps: deadlines hold, tasks stay, and nothing runs twice (R19)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.conftest import Ledger
from tests.faults.caller import Caller, pay
from tests.faults.oracle import Record, judge
from tests.faults.probed_hub import ProbedHub, probed
from tests.faults.test_cut import BREAKER_OFF
from tests.faults.test_tasks_crash import ENDED, Load, task_message
from tests.faults.watching import Tail, eventually, note, times
from tests.hubs import stdio
from tests.peers.launch import command

STEPS = times(3, 60)
SEED = 19
HOURS = 2.0
"""The clock is wrong by at most so much."""
DEADLINE = 1.0
"""Of calls at a server that never answers."""


async def test_a_clock_that_steps_ends_no_call_early_and_repeats_none(tmp_path: Path, ledger: Ledger) -> None:
    chance, tail = random.Random(SEED), Tail(ledger.path)
    raw = command("raw_server", "--ledger", str(ledger.path))
    servers = {"quick": stdio(raw), "slow": stdio(raw, timeout=DEADLINE)}
    history: list[Record] = []
    received: dict[str, str] = {}
    """The task of each message."""
    for run in range(2):  # the second hub starts with the clock that the first one had last
        async with (
            probed(tmp_path, servers, limits=BREAKER_OFF) as hub,
            Caller(hub.hub.port) as caller,
            Load(hub.hub, run) as load,
        ):
            for number in range(STEPS):
                history += await step_once(hub, caller, tail, tmp_path, f"{run}-{number}", chance)
                await check_messages(load, received, f"{run}-{6 * number + 3}")
    history += [Record(nonce, "unknown") for nonce in received]
    ran = ledger.ran()
    assert all(ran[nonce] == 1 for nonce in received)
    assert judge(history, ran) == []
    note(seed=SEED, steps=2 * STEPS, hours=HOURS, calls=len(history))


async def step_once(
    hub: ProbedHub, caller: Caller, tail: Tail, folder: Path, name: str, chance: random.Random
) -> list[Record]:
    """Step the clock while one call runs and another one waits for its deadline."""
    gate = folder / f"gate-{name}"
    running = asyncio.ensure_future(pay(caller, "quick.pay", f"running-{name}", mode=f"until:{gate}"))
    late = asyncio.ensure_future(pay(caller, "slow.pay", f"late-{name}", mode="sleep:60", deadline=DEADLINE))
    await eventually(lambda: tail.look().ran >= {f"running-{name}", f"late-{name}"}, "both calls run")
    hub.step_clock(chance.uniform(-3600 * HOURS, 3600 * HOURS))
    ended = await late
    assert ended.reported == "unknown"
    assert ended.ended is not None
    assert ended.ended - ended.started > 0.9 * DEADLINE, "a step ended it early"
    assert not running.done(), "a step ended it"
    gate.touch()
    assert (await running).reported == "ok"
    return [ended, await running]


async def check_messages(load: Load, received: dict[str, str], nonce: str) -> None:
    """Send a message, and all before it again: each is the task that it was, and has ended.

    Odd ones have an `Idempotency-Key`, which holds for a day. Without one, a message is known for ten minutes by the
    clock that steps here.
    """
    for each in [*received, nonce]:
        task = await load.send(task_message(each, "pay"))
        assert received.setdefault(each, task["id"]) == task["id"], "a message that is sent again joins its task"
        found = await load.ask("GetTask", {"id": task["id"]})
        assert found["status"]["state"] in ENDED, found
