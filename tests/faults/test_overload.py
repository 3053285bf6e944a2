"""A full server refuses at once, and other servers are unaffected (R05)."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

from tests.conftest import Ledger, Spawn
from tests.faults.caller import Answer, Caller, pay
from tests.faults.oracle import judge
from tests.faults.watching import Tail, eventually
from tests.hubs import serving, stdio
from tests.peers.launch import command

RUNNING, QUEUED, OVER = 64, 256, 40


async def test_calls_beyond_the_queue_are_refused_at_once_and_others_are_unaffected(
    tmp_path: Path, ledger: Ledger, spawn: Spawn
) -> None:
    full = await spawn("raw_server", "--ledger", str(ledger.path))
    servers = {"full": {"url": full.url}, "other": stdio(command("raw_server"))}
    async with (
        serving(tmp_path, servers) as hub,
        Caller(hub.port) as crowd,
        Caller(hub.port) as caller,
    ):
        tail = Tail(ledger.path)
        await eventually(lambda: answers(caller, "other"), "the other server is there", within=20.0)
        await eventually(lambda: answers(caller, "full"), "the full one as well", within=20.0)
        assert (await pay(caller, "full.pay", "first")).reported == "ok"
        alone = await latencies(caller)

        arguments = [{"nonce": str(at), "mode": "sleep:60"} for at in range(RUNNING + QUEUED + OVER)]
        calls = [asyncio.ensure_future(crowd.call("full.pay", each)) for each in arguments]
        await eventually(lambda: sum(call.done() for call in calls) == OVER, "those too many are refused")
        await eventually(lambda: len(tail.look().ran) == 1 + RUNNING, "as many run as may")
        async with asyncio.timeout(20):  # and not the minute for which the server is full
            refused = await caller.call("full.pay", {"nonce": "too many"})
        for answer in [refused, *(call.result() for call in calls if call.done())]:
            check_refusal(answer)
        crowded = await latencies(caller)

        # On a busy machine they may take longer by themselves; who waited for the full server would wait a minute.
        assert statistics.median(crowded) < 5 * statistics.median(alone) + 1.0
        assert sum(call.done() for call in calls) == OVER

        crowd.hang_up()  # a modern caller's going cancels: what ran is stopped, and the slots come back
        await asyncio.gather(*calls, return_exceptions=True)
        await eventually(lambda: tail.look().cancelled == tail.ran - {"first"}, "what ran is stopped")
        assert (await pay(caller, "full.pay", "room again")).reported == "ok"


def check_refusal(answer: Answer) -> None:
    assert answer.error == (-32010, "no", "overloaded")
    assert answer.message.error is not None
    assert answer.message.error["data"]["retryAfter"] > 0


async def answers(caller: Caller, server: str) -> bool:
    return (await caller.call(f"{server}.echo", {"text": "?"})).reported == "ok"


async def latencies(caller: Caller) -> list[float]:
    """How long each of a thousand calls took on the other server, sixteen at a time; all of them must be right."""
    clock = asyncio.get_running_loop().time

    async def one(at: int) -> float:
        started = clock()
        assert (await caller.call("other.echo", {"text": str(at)})).text == str(at)
        return clock() - started

    return [took for start in range(0, 1008, 16) for took in await asyncio.gather(*map(one, range(start, start + 16)))]


async def test_calls_that_wait_for_a_slot_run_once(tmp_path: Path, ledger: Ledger) -> None:
    words = command("raw_server", "--ledger", str(ledger.path))
    servers = {"small": stdio(words, max_calls=2, max_queued=6)}
    async with serving(tmp_path, servers) as hub, Caller(hub.port) as caller, Caller(hub.port) as first:
        await eventually(lambda: answers(caller, "small"), "the server is there", within=20.0)
        holders = [first.call("small.pay", {"nonce": nonce, "mode": "sleep:60"}) for nonce in ("held0", "held1")]
        holding = asyncio.gather(*holders, return_exceptions=True)
        await eventually(lambda: len(ledger.ran()) == 2, "both slots are taken")
        calls = [asyncio.ensure_future(pay(caller, "small.pay", str(at))) for at in range(18)]
        await eventually(lambda: sum(call.done() for call in calls) == 12, "those too many are refused")
        first.hang_up()
        await holding
        records = await asyncio.gather(*calls)

        received = [record.reported for record in records]
        assert (received.count("ok"), received.count("no")) == (6, 12)
        ran = ledger.ran()
        assert (ran.pop("held0"), ran.pop("held1")) == (1, 1)
        assert judge(records, ran) == []


async def test_a_deadline_holds_in_the_queue_too(tmp_path: Path, ledger: Ledger) -> None:
    words = command("raw_server", "--ledger", str(ledger.path))
    servers = {"small": stdio(words, max_calls=1, timeout=0.4)}
    limits = {"breaker_open_seconds": 0.1}
    async with serving(tmp_path, servers, limits=limits) as hub, Caller(hub.port) as caller:
        await eventually(lambda: answers(caller, "small"), "the server is there", within=20.0)
        calls = (pay(caller, "small.pay", str(at), mode="sleep:60", deadline=0.4) for at in range(5))
        records = await asyncio.gather(*calls)

        # Each slot comes free just as the next one's time is up: it may have been sent or not, but never both.
        assert {record.reported for record in records} <= {"no", "unknown"}
        assert "unknown" in {record.reported for record in records}
        await eventually(lambda: answers(caller, "small"), "the slot is free again")
        assert judge(records, ledger.ran()) == []
