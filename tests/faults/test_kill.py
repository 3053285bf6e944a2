"""A stdio server that is killed or stopped in the middle of its calls (R01, R02)."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
from pathlib import Path

from tests.conftest import Ledger, zombies
from tests.faults import quick_server
from tests.faults.caller import Caller, pay
from tests.faults.oracle import Record, judge
from tests.faults.watching import (
    IS_SOAK,
    Tail,
    eventually,
    family,
    is_alive,
    open_descriptors,
    watches_files,
    with_mark,
)
from tests.hubs import HubProcess, serving, stdio
from tests.peers.launch import command

SERVERS = 4
ROUNDS = 25 if IS_SOAK else 8
"""Of each server; the servers die side by side."""
HELD = 50
DEADLINE = 3.0
"""Of a server that is stopped: short enough to run out, and long enough for it to answer when it runs."""


async def test_calls_on_a_killed_server_are_answered_at_once_and_it_comes_back(
    tmp_path: Path, ledger: Ledger, no_leftovers: None
) -> None:
    names = [f"victim{at}" for at in range(SERVERS)]
    servers = {name: stdio(quick_server.command(ledger.path, name)) for name in names}
    async with serving(tmp_path, servers) as hub, Caller(hub.port) as caller:
        await eventually(lambda: watches_files(hub.pid), "the hub is all there", within=20.0)
        history = [await pay_when_up(caller, name, f"{name}-first") for name in names]
        descriptors, tail = open_descriptors(hub.pid), Tail(ledger.path)

        async def rounds(name: str) -> list[tuple[float, float]]:
            return [await kill_once(hub, caller, name, str(at), tail, history) for at in range(ROUNDS)]

        timed = [pair for pairs in await asyncio.gather(*map(rounds, names)) for pair in pairs]

        answered, back = ([pair[at] for pair in timed] for at in (0, 1))
        print(f"answered after {statistics.median(answered):.3f} s, back after {statistics.median(back):.3f} s")
        assert len(timed) == SERVERS * ROUNDS
        # They had thirty seconds: calls that ended earlier ended because the server died, on a busy machine too.
        assert max(answered) < 10.0
        assert statistics.median(back) < 10.0
        assert judge(history, ledger.ran()) == []
        assert not zombies(hub.pid)
        assert len(family(hub.pid)) == SERVERS
        caller.hang_up()  # of its own connections the hub had one then, and now none
        await eventually(lambda: open_descriptors(hub.pid) <= descriptors, "descriptors as before")
        mine = set(family(hub.pid))
    assert not [pid for pid in mine if is_alive(pid)]


async def kill_once(
    hub: HubProcess,
    caller: Caller,
    name: str,
    at: str,
    tail: Tail,
    history: list[Record],
) -> tuple[float, float]:
    """Kill a server with calls in flight; how long until all were answered, and until it answered again."""
    clock = asyncio.get_running_loop().time
    history.append(await pay_when_up(caller, name, f"{name}-{at}-up"))
    nonces = [f"{name}-{at}-{call}" for call in range(HELD)]
    calls = [asyncio.ensure_future(pay(caller, f"{name}.hold", nonce)) for nonce in nonces]
    await eventually(lambda: tail.look().ran >= set(nonces), "all calls at the server")
    [pid] = with_mark(hub.pid, name)
    killed = clock()
    os.kill(pid, signal.SIGKILL)
    records = await asyncio.gather(*calls)
    answered = clock() - killed
    assert {record.reported for record in records} == {"unknown"}
    history.extend(records)
    history.append(await pay_when_up(caller, name, f"{name}-{at}-back"))
    return answered, clock() - killed


async def pay_when_up(caller: Caller, name: str, nonce: str) -> Record:
    """Call until the server takes it; what was refused before was honestly refused, or the oracle sees it run."""
    found: list[Record] = []

    async def is_answered() -> bool:
        found.append(await pay(caller, f"{name}.pay", nonce))
        assert found[-1].reported in ("ok", "no")
        return found[-1].reported == "ok"

    await eventually(is_answered, f"{name} answers", within=20.0)
    return found[-1]


async def test_queued_calls_of_a_killed_server_end_as_not_executed(tmp_path: Path, ledger: Ledger) -> None:
    async with (
        serving(tmp_path, {"victim": stdio(quick_server.command(ledger.path, "victim"))}) as hub,
        Caller(hub.port) as caller,
    ):
        await pay_when_up(caller, "victim", "up")
        # 64 run, 256 wait, and of the rest it is known by their refusal that the queue is full.
        calls = [asyncio.ensure_future(pay(caller, "victim.hold", str(at))) for at in range(330)]
        await eventually(lambda: sum(call.done() for call in calls) == 10, "the ten too many are refused")
        await eventually(lambda: len(ledger.ran()) == 65, "64 calls at the server")
        [pid] = with_mark(hub.pid, "victim")
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            records = await asyncio.gather(*calls)

        received = [record.reported for record in records]
        assert (received.count("unknown"), received.count("no")) == (64, 266)
        records.append(await pay_when_up(caller, "victim", "back"))
        ran = ledger.ran()
        assert ran.pop("up") == 1
        assert judge(records, ran) == []
        assert not [line for line in hub.said if "Traceback" in line or "exception" in line]


async def test_a_killed_server_says_so_with_its_code_and_words(tmp_path: Path, ledger: Ledger) -> None:
    servers = {"victim": stdio(quick_server.command(ledger.path, "victim"))}
    async with serving(tmp_path, servers) as hub, Caller(hub.port) as caller:
        await pay_when_up(caller, "victim", "up")
        call = asyncio.ensure_future(caller.call("victim.hold", {"nonce": "held"}))
        await eventually(lambda: "held" in ledger.ran(), "the call at the server")
        os.kill(with_mark(hub.pid, "victim")[0], signal.SIGKILL)

        answer = await call

        assert answer.error == (-32012, "unknown", "lost")
        assert b"killed by signal 9 (SIGKILL)" in answer.body


async def test_calls_to_a_stopped_server_end_at_their_deadline(tmp_path: Path, ledger: Ledger) -> None:
    words = command("raw_server", "--ledger", str(ledger.path))
    servers = {
        "stopped": stdio(words, timeout=DEADLINE),
        "other": stdio(quick_server.command(ledger.path, "other")),
    }
    limits = {"breaker_open_seconds": DEADLINE}
    async with serving(tmp_path, servers, limits=limits) as hub, Caller(hub.port) as caller:
        history = [await pay_when_up(caller, "stopped", "first"), await pay_when_up(caller, "other", "o")]
        [pid] = with_mark(hub.pid, "raw_server")
        os.kill(pid, signal.SIGSTOP)

        stopped = (pay(caller, "stopped.pay", f"stopped{at}", deadline=DEADLINE) for at in range(5))
        for record in await asyncio.gather(*stopped):
            assert record.ended is not None
            assert 0.9 * DEADLINE < record.ended - record.started < DEADLINE + 10
            assert record.reported == "unknown"
            history.append(record)
        refused = await caller.call("stopped.pay", {"nonce": "refused"})

        assert refused.error == (-32010, "no", "breaker_open")
        assert refused.message.error is not None
        assert 0 < refused.message.error["data"]["retryAfter"] <= DEADLINE
        history.append(await pay(caller, "other.pay", "unharmed"))
        assert history[-1].reported == "ok"

        os.kill(pid, signal.SIGCONT)
        # It now reads everything it was sent, and answers late; those answers belong to no call.
        await eventually(lambda: "stopped4" in ledger.ran(), "the late calls have run")
        history.append(await pay_when_up(caller, "stopped", "after"))
        more = await asyncio.gather(*(pay(caller, "stopped.pay", f"more{at}") for at in range(20)))
        assert {record.reported for record in more} == {"ok"}
        assert "refused" not in ledger.ran()
        assert judge([*history, *more], ledger.ran()) == []
        assert with_mark(hub.pid, "raw_server") == [pid]
