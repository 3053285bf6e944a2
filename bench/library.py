"""`python -m bench.library`: what a call costs the program that has the hub inside, beside the official SDK's client.

Functions of the program itself, a server over stdio and one over HTTP; each server is called by `ToolService` and by
the SDK's `ClientSession` from the same loop, sixteen calls at once and one at a time. The promises are about sixteen,
as those of `python -m bench` are: one at a time, most of the cost is that threads and processes sleep and wake each
other in turns, and what a wake-up costs is the machine's affair. Two rows without any hub show how much that is: a word
to another thread's loop and back, and to `cat` and back. `--one-core` keeps everything to one processor, where wake-ups
are cheap. CPU is all that this process spends, the hub's own thread included; what the servers spend is theirs. The
ways take turns in short rounds; figures are medians over the rounds, ratios are taken within a round. Ends with 1 when
a promise is broken, 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import msgspec
import uvloop
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from bench.processes import PORT_PRINTED, NotStarted, Program
from isthmus.library import MCPManager, ToolDef, ToolRegistry, ToolRequest, ToolService, ToolStatus, tool
from isthmus.library import run as run_on_hub

CHECKOUT = Path(__file__).parent.parent
STDIO = ["-m", "bench.direct", "--era", "legacy", "--carrier", "stdio"]
TEXT = "a text of some length"
WARM_UP_SECONDS = 0.3
LINE = TEXT.encode() + b"\n"
AT_ONCE = 16

PROMISED_MICROSECONDS = 100.0
"""At most this much CPU for a call of a function of the program itself."""

PROMISED_SHARE = 0.2
"""At most this share of the SDK's CPU for the same call of the same server, in the same run."""

PROMISED_MILLISECONDS = 1.0
"""At most this much longer for a call by the synchronous function of a tool than by the asynchronous one."""

SYNC, ASYNC = "ToolDef.func, from a thread", "ToolDef.async_func"

Call = Callable[[], Awaitable[object]]


class WrongAnswer(Exception):
    """A call that did not give the text back; its cost says nothing."""


@dataclass(frozen=True, slots=True)
class Way:
    """One row: how a call is made, and what is promised of it."""

    name: str
    call: Call
    is_function: bool = False
    base: str | None = None
    """The same call by the SDK."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one way cost in one round, per call."""

    many: float
    """Microseconds of CPU, with sixteen at once."""
    single: float
    """The same with one at a time."""
    milliseconds: float
    """How long one took by itself, the median."""


# -- functions of the program ------------------------------------------------------------------------------------------


@contextmanager
def own_functions() -> Iterator[None]:
    """Have them as tools: `builtin.bench_async`, `builtin.bench_plain` and `builtin.bench_inline`."""

    @tool
    async def bench_async(text: str) -> str:
        """Return the text it was given."""
        return text

    @tool
    def bench_plain(text: str) -> str:
        """Return the text it was given."""
        return text

    @tool(inline=True)
    def bench_inline(text: str) -> str:
        """Return the text it was given."""
        return text

    try:
        yield
    finally:
        for function in (bench_async, bench_plain, bench_inline):
            tool.remove(function)


# -- ways --------------------------------------------------------------------------------------------------------------


def by_service(service: ToolService, name: str) -> Call:
    """Call a tool as a program does that has the hub inside."""

    async def call() -> None:
        result = await service.execute_tool(ToolRequest(name, parameters={"text": TEXT}))
        if result.status is not ToolStatus.SUCCESS or TEXT not in str(result.result_data):
            raise WrongAnswer(f"{name} ended with {result.status}: {result.error_message or result.result_data}")

    return call


def by_session(session: ClientSession) -> Call:
    """Call the same tool as a program does that has the SDK."""

    async def call() -> None:
        match await session.call_tool("echo", {"text": TEXT}):
            case CallToolResult(is_error=False, content=[TextContent(text=text)]) if text == TEXT:
                return
            case other:
                raise WrongAnswer(f"the SDK was answered {other}")

    return call


@contextmanager
def to_thread_and_back() -> Iterator[Call]:
    """What two threads take to wake each other, as the hub's own is woken and wakes: a call with nothing in between."""
    other = uvloop.new_event_loop()
    thread = threading.Thread(target=other.run_forever, name="bench-other")
    thread.start()

    async def call() -> None:
        loop = asyncio.get_running_loop()
        back = loop.create_future()
        other.call_soon_threadsafe(loop.call_soon_threadsafe, back.set_result, None)
        await back

    try:
        yield call
    finally:
        other.call_soon_threadsafe(other.stop)
        thread.join()
        other.close()


@contextmanager
def to_cat_and_back() -> Iterator[Call]:
    """What two processes take to wake each other over pipes: a line there and back, which nobody reads."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        into, out = cat.stdin.fileno(), cat.stdout.fileno()
        waiting: deque[asyncio.Future[None]] = deque()

        def read() -> None:
            for _ in range(os.read(out, 65536).count(b"\n")):
                waiting.popleft().set_result(None)

        async def call() -> None:
            loop = asyncio.get_running_loop()
            if not waiting:
                loop.add_reader(out, read)
            waiting.append(back := loop.create_future())
            os.write(into, LINE)
            await back

        try:
            yield call
        finally:
            cat.kill()


def _check(said: object) -> None:
    if said != TEXT:
        raise WrongAnswer(f"the tool of the registry was answered {said!r}")


async def open_ways(held: AsyncExitStack, port: int) -> list[Way]:
    """Connect everything; `held` ends it again."""
    url = f"http://127.0.0.1:{port}/mcp"
    held.enter_context(own_functions())
    service = ToolService()
    await service.initialize(
        {
            "mcp_servers": [
                {"name": "pipe", "command": sys.executable, "args": STDIO, "cwd": str(CHECKOUT)},
                {"name": "web", "endpoint": url, "transport": "http"},
            ]
        }
    )
    held.push_async_callback(service.shutdown)
    if service.failures:
        raise NotStarted(f"the servers did not start: {service.failures}")
    program = StdioServerParameters(command=sys.executable, args=STDIO, cwd=str(CHECKOUT))
    piped = await _session(held, await held.enter_async_context(stdio_client(program)))
    dialled = await _session(held, await held.enter_async_context(streamable_http_client(url)))
    return [
        Way("a thread and back, no hub", held.enter_context(to_thread_and_back())),
        Way("cat and back, no hub", held.enter_context(to_cat_and_back())),
        Way("function, async def", by_service(service, "builtin.bench_async"), is_function=True),
        Way("function, def", by_service(service, "builtin.bench_plain"), is_function=True),
        Way("function, inline", by_service(service, "builtin.bench_inline"), is_function=True),
        Way("built-in echo", by_service(service, "builtin.echo"), is_function=True),
        Way("stdio server, SDK", by_session(piped)),
        Way("stdio server", by_service(service, "pipe.echo"), base="stdio server, SDK"),
        Way("HTTP server, SDK", by_session(dialled)),
        Way("HTTP server", by_service(service, "web.echo"), base="HTTP server, SDK"),
    ]


async def _session(held: AsyncExitStack, streams: Sequence[Any]) -> ClientSession:
    session = await held.enter_async_context(ClientSession(streams[0], streams[1]))
    await session.initialize()
    await session.list_tools()
    return session


async def open_definition(held: AsyncExitStack, folder: Path) -> ToolDef:
    """The stdio server's tool in a registry."""
    servers = {"pipe": {"transport": "stdio", "command": sys.executable, "args": STDIO, "cwd": str(CHECKOUT)}}
    (folder / "mcp.json").write_bytes(msgspec.json.encode({"mcpServers": servers}))
    registry, manager = ToolRegistry(), MCPManager(str(folder))
    await manager.initialize(registry)
    held.push_async_callback(manager.shutdown)
    if (made := registry.get("mcp_pipe_echo")) is None:
        raise NotStarted(f"the registry has no mcp_pipe_echo: {manager.failures}")
    return made


# -- turns -------------------------------------------------------------------------------------------------------------


class Stopwatch:
    """How long each call of a turn took, and what all of them cost this process."""

    def __init__(self, seconds: float) -> None:
        self._took: list[float] = []
        self._cpu = process_time()
        self._until = perf_counter() + seconds

    def note(self, began: float) -> bool:
        """A call is over; whether there is time for another."""
        now = perf_counter()
        self._took.append(now - began)
        return now < self._until

    @property
    def microseconds(self) -> float:
        """Of CPU a call."""
        return (process_time() - self._cpu) / len(self._took) * 1e6

    @property
    def milliseconds(self) -> float:
        """Of time, the median."""
        return median(self._took) * 1e3


async def take_turn(call: Call, seconds: float) -> Turn:
    """Call again and again, sixteen at once, and then one at a time."""
    many = Stopwatch(seconds)
    await asyncio.gather(*(_repeat(call, many) for _ in range(AT_ONCE)))
    cost = many.microseconds
    single = Stopwatch(seconds)
    await _repeat(call, single)
    return Turn(cost, single.microseconds, single.milliseconds)


async def _repeat(call: Call, watch: Stopwatch) -> None:
    began = perf_counter()
    await call()
    while watch.note(began):
        began = perf_counter()
        await call()


def take_turn_blocking(call: Callable[[], object], seconds: float) -> Turn:
    """The same for a function that stands still until it is done, from as many threads."""
    many = Stopwatch(seconds)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for done in [threads.submit(_repeat_blocking, call, many) for _ in range(AT_ONCE)]:
            done.result()
        cost = many.microseconds
    single = Stopwatch(seconds)
    _repeat_blocking(call, single)
    return Turn(cost, single.microseconds, single.milliseconds)


def _repeat_blocking(call: Callable[[], object], watch: Stopwatch) -> None:
    began = perf_counter()
    call()
    while watch.note(began):
        began = perf_counter()
        call()


async def measure(ways: Sequence[Way], made: ToolDef, *, rounds: int, seconds: float) -> dict[str, list[Turn]]:
    """Warm up, then give each way its turn, `rounds` times over."""
    assert made.async_func is not None
    later = made.async_func

    async def call_later() -> None:
        _check(await later(text=TEXT))

    taken: dict[str, list[Turn]] = {name: [] for name in (*(way.name for way in ways), ASYNC, SYNC)}
    for number in range(-1, rounds):
        print("warming up" if number < 0 else f"round {number + 1} of {rounds}", file=sys.stderr)
        length = WARM_UP_SECONDS if number < 0 else seconds
        turns = {way.name: await take_turn(way.call, length) for way in ways}
        turns[ASYNC] = await take_turn(call_later, length)
        turns[SYNC] = await asyncio.to_thread(take_turn_blocking, lambda: _check(made.func(text=TEXT)), length)
        if number >= 0:
            for name, turn in turns.items():
                taken[name].append(turn)
    return taken


# -- what came of it ---------------------------------------------------------------------------------------------------


def shares(
    ways: Sequence[Way], taken: Mapping[str, Sequence[Turn]], of: Callable[[Turn], float] = lambda turn: turn.many
) -> dict[str, float]:
    """For each way beside the SDK, the median over the rounds of its share of the SDK's CPU."""
    return {
        way.name: median(of(turn) / of(other) for turn, other in zip(taken[way.name], taken[way.base], strict=True))
        for way in ways
        if way.base is not None
    }


def delay(taken: Mapping[str, Sequence[Turn]]) -> float:
    """How many milliseconds a synchronous call takes longer."""
    return median(turn.milliseconds - other.milliseconds for turn, other in zip(taken[SYNC], taken[ASYNC], strict=True))


def table(ways: Sequence[Way], taken: Mapping[str, Sequence[Turn]]) -> str:
    """The figures as text for a terminal."""
    found, alone = shares(ways, taken), shares(ways, taken, lambda turn: turn.single)
    limits = {way.name: f"{PROMISED_MICROSECONDS:.0f} µs" for way in ways if way.is_function}
    limits |= dict.fromkeys(found, f"× {PROMISED_SHARE:g}") | {SYNC: f"+ {PROMISED_MILLISECONDS:g} ms"}
    heads = (f"{AT_ONCE} at once, µs", "× SDK", "at most", "singly, µs", "× SDK", "ms")
    lines = [f"{'call':<30}" + "".join(f"{head:>15}" for head in heads)]
    for name, turns in taken.items():
        cells = (
            f"{median(turn.many for turn in turns):.1f}",
            f"{found[name]:.3f}" if name in found else "",
            limits.get(name, ""),
            f"{median(turn.single for turn in turns):.1f}",
            f"{alone[name]:.3f}" if name in alone else "",
            f"{median(turn.milliseconds for turn in turns):.3f}",
        )
        lines.append(f"{name:<30}" + "".join(f"{cell:>15}" for cell in cells))
    lines.append(
        f"µs are CPU of this process a call, all threads together. A synchronous call: {delay(taken):+.3f} ms."
    )
    return "\n".join(lines)


def broken_promises(ways: Sequence[Way], taken: Mapping[str, Sequence[Turn]]) -> list[str]:
    """A sentence for each promise that is not kept."""
    costs = {way.name: median(turn.many for turn in taken[way.name]) for way in ways if way.is_function}
    broken = [
        f"{name}: {cost:.0f} µs of CPU a call, more than {PROMISED_MICROSECONDS:.0f}"
        for name, cost in costs.items()
        if cost > PROMISED_MICROSECONDS
    ]
    broken += [
        f"{name}: {share:.2f} of the SDK's CPU, more than {PROMISED_SHARE:g}"
        for name, share in shares(ways, taken).items()
        if share > PROMISED_SHARE
    ]
    if (longer := delay(taken)) > PROMISED_MILLISECONDS:
        broken.append(f"a synchronous call takes {longer:.2f} ms longer, more than {PROMISED_MILLISECONDS:g}")
    return broken


async def run(port: int, folder: Path, *, rounds: int, seconds: float) -> int:
    """Measure, print, and say whether the promises hold."""
    async with AsyncExitStack() as held:
        ways = await open_ways(held, port)
        made = await open_definition(held, folder)
        taken = await measure(ways, made, rounds=rounds, seconds=seconds)
    print(table(ways, taken))
    broken = broken_promises(ways, taken)
    for sentence in broken:
        print(f"bench: {sentence}", file=sys.stderr)
    return 1 if broken else 0


def main() -> int:
    """Start the HTTP server, and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.library", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each way (default 15)")
    parser.add_argument("--seconds", type=float, default=0.15, help="length of each half of a turn (default 0.15)")
    parser.add_argument("--one-core", action="store_true", help="keep everything to one processor")
    parser.add_argument("--on-hub", action="store_true", help="call from the hub's own loop, by `isthmus.library.run`")
    options = parser.parse_args()
    if options.one_core:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    begin = run_on_hub if options.on_hub else asyncio.run
    logging.getLogger("isthmus").setLevel(logging.WARNING)
    try:
        with ExitStack() as held:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            port = held.enter_context(Program("bench.direct", "--era", "legacy")).port(PORT_PRINTED)
            return begin(run(port, folder, rounds=options.rounds, seconds=options.seconds))
    except (NotStarted, WrongAnswer, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
