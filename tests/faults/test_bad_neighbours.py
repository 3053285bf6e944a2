"""Dead, hung, flooding and lying servers beside good ones, which are listed and called as if alone (T51, T52)."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.conftest import Spawn
from tests.faults.caller import Caller
from tests.faults.watching import IS_SOAK, Metronome, eventually, processor_seconds, resident_bytes
from tests.hubs import HubProcess, serving, stdio
from tests.peers.launch import command

GOOD = ("good_stdio", "good_stateful", "good_modern")
TOOLS = ("echo", "grow", "meta", "pay")
MIB = 1 << 20
HUGE = f"huge:{100 * MIB}"

PAUSE_SECONDS = 0.25
"""Between two lies of one server: their making costs far more than their hearing, and there are two cores for all."""
COSTLY = ("huge", "unended", "flood")
COSTLY_TIMES = 3 if IS_SOAK else 1

CALLS = 3_000 if IS_SOAK else 1_200
"""On the good ones while the bad misbehave."""

BEAT_SECONDS = 0.02
"""Between two beats of the pulse, and enough for a metronome to have ticked."""

Ending = Literal["ok", "lost", "bad_reply", "timed_out"]


async def good_servers(spawn: Spawn) -> dict[str, Any]:
    """Three that do as they should: over stdio, in sessions, and in the modern era by events."""
    stateful, modern = await asyncio.gather(
        spawn("raw_server", "--era", "legacy"), spawn("raw_server", "--era", "modern", "--mode", "sse")
    )
    return {
        "good_stdio": stdio(command("raw_server")),
        "good_stateful": {"url": stateful.url},
        "good_modern": {"url": modern.url},
    }


async def all_listed(caller: Caller, servers: Sequence[str] = GOOD) -> bool:
    names = {tool["name"] for tool in (await caller.list_tools())["tools"]}
    return {f"{server}.{tool}" for server in servers for tool in TOOLS} <= names


async def test_a_listing_comes_at_once_with_the_good_and_names_the_bad(
    tmp_path: Path, spawn: Spawn, deaf_port: int
) -> None:
    good = await good_servers(spawn)
    hung, zipped, moved, formless = await asyncio.gather(
        *(
            spawn("raw_server", "--mode", mode)
            for mode in ("hang_init", "gzip", "redirect:http://x.test/", "lying_list:not_list")
        )
    )
    bad = {
        "no_command": {"command": str(tmp_path / "no-such-program")},
        "no_listener": {"url": f"http://127.0.0.1:{deaf_port}/mcp"},
        "hung_process": stdio(command("raw_server", "--mode", "hang_init")),
        "hung_http": {"url": hung.url},
        "zipped": {"url": zipped.url},
        "moved": {"url": moved.url},
        "formless": {"url": formless.url},
    }
    clock = asyncio.get_running_loop().time
    async with serving(tmp_path, bad | good, limits={"listing_seconds": 1.0}) as hub, Caller(hub.port) as caller:
        started = clock()
        listing = await caller.list_tools()
        took = clock() - started

        assert took < 10.0  # one second of patience, and a busy machine's excuse
        assert {"builtin.echo", "builtin.timestamp"} <= {tool["name"] for tool in listing["tools"]}
        await eventually(lambda: all_listed(caller), "the good ones are listed", within=20.0)
        await eventually(lambda: names_all(caller, set(bad)), "the bad ones are named, with a reason")
        missing = (await caller.list_tools())["_meta"]["isthmus/missing"]
        assert set(missing) == set(bad)
        assert not any(received["listed"] for received in missing.values())
        for server, words in REASONS.items():
            assert words in missing[server]["reason"], missing[server]
        for server in bad:
            assert (await caller.call(f"{server}.echo", {"text": "x"})).error[:2] == (-32011, "no")
        for server in GOOD:
            assert (await caller.call(f"{server}.echo", {"text": "x"})).text == "x"


REASONS = {
    "no_command": "no-such-program",
    "no_listener": "refused",
    "zipped": "gzip",
    "moved": "it redirects to another address",
    "formless": "tools",
    "hung_process": "not answered",
    "hung_http": "not answered",
}
"""What the reason of each must mention."""


async def names_all(caller: Caller, servers: set[str]) -> bool:
    missing = (await caller.list_tools()).get("_meta", {}).get("isthmus/missing", {})
    return {server for server, received in missing.items() if received["reason"]} >= servers


async def test_a_lying_list_costs_the_lies_and_not_the_server(tmp_path: Path, spawn: Spawn) -> None:
    kinds = ("mixed", "nameless", "duplicates", "bad_schema", "cyclic")
    servers = {kind: {"url": (await spawn("raw_server", "--mode", f"lying_list:{kind}")).url} for kind in kinds}
    async with serving(tmp_path, servers) as hub, Caller(hub.port) as caller:
        await eventually(lambda: all_listed(caller, kinds), "what is right of each list", within=20.0)
        names = [tool["name"] for tool in (await caller.list_tools())["tools"]]

        assert len(names) == len(set(names))
        assert sorted(name for name in names if name.startswith("cyclic")) == [f"cyclic.{tool}" for tool in TOOLS]
        for kind in kinds:
            assert (await caller.call(f"{kind}.echo", {"text": kind})).text == kind


# -- lies --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lie:
    """One way for a server to answer, and what its caller is to hear."""

    mode: str
    by_stdio: Ending
    by_http: Ending


LIES = {
    "wrong_id": Lie("wrong_id", "timed_out", "bad_reply"),
    "wrong_id_event": Lie("wrong_id,sse", "timed_out", "lost"),
    "twice": Lie("dup_reply", "ok", "ok"),
    "late": Lie("late_reply:10", "timed_out", "timed_out"),
    "garbage": Lie("garbage", "ok", "ok"),
    "huge": Lie(HUGE, "lost", "bad_reply"),
    "unended": Lie("nonewline", "lost", "bad_reply"),
    "endless": Lie("endless_sse", "timed_out", "timed_out"),
    "flood": Lie("notify_flood:20000", "ok", "ok"),
    "silent": Lie("hang", "timed_out", "timed_out"),
    "dying": Lie("die_mid_reply:40", "lost", "lost"),
}


async def lying_servers(spawn: Spawn) -> dict[str, Any]:
    """Two entries for every lie, over stdio and over HTTP; those that are only words share a process."""
    shared, giant, dying = await asyncio.gather(*(spawn("raw_server") for _ in range(3)))
    own = {"huge": giant, "unended": giant, "dying": dying}
    servers: dict[str, Any] = {}
    for name, lie in LIES.items():
        servers[f"stdio_{name}"] = stdio(command("raw_server"), timeout=timeout_for(lie.by_stdio))
        servers[f"http_{name}"] = {"url": own.get(name, shared).url, "timeout": timeout_for(lie.by_http)}
    return servers


def timeout_for(end: Ending) -> float:
    """Short where it is to run out, and long where something else is to be seen, however busy the machine is."""
    return 1.0 if end == "timed_out" else 20.0


async def test_each_lie_ends_in_its_own_fault_and_the_next_call_is_well(tmp_path: Path, spawn: Spawn) -> None:
    servers = await lying_servers(spawn)
    async with serving(tmp_path, servers) as hub, Caller(hub.port) as caller, Pulse(hub) as pulse:
        await eventually(lambda: all_listed(caller, list(servers)), "all servers are there", within=30.0)
        ends = await asyncio.gather(*(end_of(caller, server) for server in servers))

        assert dict(zip(servers, ends, strict=True)) == {server: expected_of(server) for server in servers}
        honest = [server for server in servers if server != "http_dying"]
        for server in honest:
            await eventually(lambda: answers(caller, server), f"{server} answers again", within=20.0)  # noqa: B023
        gone = await caller.call("http_dying.echo", {"text": "x"})
        assert gone.error[1] == "no"
    pulse.check()


def expected_of(server: str) -> tuple[int, str, str] | str:
    carrier, _, name = server.partition("_")
    end = LIES[name].by_stdio if carrier == "stdio" else LIES[name].by_http
    return "ok" if end == "ok" else (-32012, "unknown", end)


async def end_of(caller: Caller, server: str) -> tuple[int, str, str] | str:
    mode = LIES[server.partition("_")[2]].mode
    answer = await caller.call(f"{server}.echo", {"text": server, "mode": mode})
    if answer.reported != "ok":
        return answer.error
    assert answer.text == server
    return "ok"


async def answers(caller: Caller, server: str) -> bool:
    answer = await caller.call(f"{server}.echo", {"text": server})
    assert answer.text in (server, None)
    return answer.reported == "ok"


# -- the good ones meanwhile -------------------------------------------------------------------------------------------


class Pulse:
    """Calls the hub's own echo without a pause: how long its loop stands still, and how much memory it takes.

    Time is the hub's own on the processor: on two cores with twenty busy servers it waits for its turn as well. What it
    worked while this process stood still does not count: its answer may have been there all the while.
    """

    WORK_SECONDS = 0.5
    WAIT_SECONDS = 15.0
    GROWTH_BYTES = 256 * MIB

    def __init__(self, hub: HubProcess) -> None:
        self._hub = hub
        self._is_done = False
        self.beats: list[float] = []
        self.work: list[float] = []
        self.resident: list[int] = []

    async def __aenter__(self) -> Pulse:
        self._task = asyncio.ensure_future(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_done = True
        await self._task

    async def _beat(self) -> None:
        clock = asyncio.get_running_loop().time
        async with Caller(self._hub.port) as caller, Metronome() as metronome:
            while not self._is_done:
                started, worked, late = clock(), processor_seconds(self._hub.pid), metronome.late_seconds
                assert (await caller.call("builtin.echo", {"text": "beat"})).reported == "ok"
                self.beats.append(clock() - started)
                self.work.append(processor_seconds(self._hub.pid) - worked)
                self.resident.append(resident_bytes(self._hub.pid))
                await asyncio.sleep(BEAT_SECONDS)
                self.work[-1] -= metronome.late_seconds - late

    def check(self) -> None:
        """The bounds, generous for a machine that has other things to do."""
        assert len(self.beats) > 10
        assert max(self.work) < self.WORK_SECONDS
        assert max(self.beats) < self.WAIT_SECONDS
        assert max(self.resident) - self.resident[0] < self.GROWTH_BYTES


@dataclass(slots=True)
class Load:
    """Calls on the good servers, each checked, and how long they took."""

    caller: Caller
    took: list[float] = field(default_factory=list)

    async def run(self, calls: int, abreast: int = 12) -> None:
        numbers = iter(range(calls))
        await asyncio.gather(*(self._worker(numbers) for _ in range(abreast)))

    async def _worker(self, numbers: Iterator[int]) -> None:
        clock = asyncio.get_running_loop().time
        for number in numbers:
            started = clock()
            answer = await self.caller.call(f"{GOOD[number % len(GOOD)]}.echo", {"text": str(number)})
            assert answer.text == str(number), answer.body
            self.took.append(clock() - started)


@asynccontextmanager
async def misbehaving(caller: Caller, servers: Sequence[str]) -> AsyncIterator[dict[str, int]]:
    """All of them are called and lie again and again; how often each was called."""
    counts = dict.fromkeys(servers, 0)
    is_done = False

    async def go_on(server: str) -> None:
        name = server.partition("_")[2]
        while not is_done and not (name in COSTLY and counts[server] == COSTLY_TIMES):
            await caller.call(f"{server}.echo", {"text": server, "mode": LIES[name].mode})
            counts[server] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    tasks = [asyncio.ensure_future(go_on(server)) for server in servers]
    yield counts
    is_done = True
    await asyncio.gather(*tasks)


async def test_the_good_are_called_as_if_alone_while_the_bad_misbehave(
    tmp_path: Path, spawn: Spawn, deaf_port: int
) -> None:
    good, lying = await good_servers(spawn), await lying_servers(spawn)
    bad = {
        "no_command": {"command": str(tmp_path / "no-such-program")},
        "no_listener": {"url": f"http://127.0.0.1:{deaf_port}/mcp"},
        "hung": stdio(command("raw_server", "--mode", "hang_init")),
        "noisy": stdio(command("raw_server", "--mode", f"stderr_flood:{256 * MIB}")),
    }
    async with (
        serving(tmp_path, good | lying | bad, limits={"listing_seconds": 5.0}) as hub,
        Caller(hub.port) as caller,
    ):
        await eventually(lambda: all_listed(caller, [*good, *lying]), "all that can be listed", within=30.0)
        alone, among = Load(caller), Load(caller)
        await alone.run(CALLS // 3)
        async with Pulse(hub) as pulse, misbehaving(caller, list(lying)) as counts:
            await among.run(CALLS)
            await eventually(lambda: all(counts.values()), "each lie was told at least once", within=30.0)
        await alone.run(CALLS // 6)

        assert len(among.took) == CALLS
        pulse.check()
        # Two cores are shared with twenty servers that do their worst, and perhaps with others; nobody waits for one
        # of the slow ones, whose calls take a second, all the same.
        assert statistics.median(among.took) < 20 * statistics.median(alone.took) + 0.5
        assert await all_listed(caller)
