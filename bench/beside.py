"""`python -m bench.beside`: how long ordinary calls take while scripts of other callers do their worst.

A hub has a server over HTTP. One caller calls it every few milliseconds. Two others keep every worker of the sandbox
busy with scripts that loop for ever, eat memory, recurse, print without end, and call tools. Calls of scripts are work
of the hub like any others, so in rounds of their own an ordinary caller makes as many. Quiet and busy rounds take
turns, and each has its p99. A busy round is compared with the quiet one just before it, because the quiet p99 of one
machine changes by half within minutes; the median of these ratios decides. Hub, server and caller have the usual
priority; the hub's sandbox and the callers of scripts have a low one, so the machine should have nothing else to do. On
one that has, `--real-time` runs hub, server and caller before all other programs, see `prefer`; workers then get little
time, and call few tools. Ends with 1 when a promise is not kept, or when other programs were too busy to tell. A
program that starts every second is enough to decide the p99: while scripts compute, Linux starts it on the hub's core.
So the processes and threads that the machine starts in quiet rounds are printed, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from threading import Thread
from typing import NamedTuple, Self

import httpx2

from bench.context import hub_of, key_of
from bench.messages import asks, call_body, call_headers, http_request
from bench.processes import PORT_PRINTED, Program
from isthmus.code.sandbox_in_child import yield_to_others

PROMISED = 1.2
BEAT_SECONDS = 0.003
WORKERS = 4
IDLE_LEAST = 0.6
"""How much of the quiet rounds the cores must be idle; with less, other programs compete with the hub. Chosen, not
measured."""

SCRIPTS = {
    "computing": (
        "while True:\n    pass",
        "found = []\nwhile True:\n    found.append('x' * 100_000)",
        "def deeper(n: int) -> int:\n    return deeper(n + 1) + 1\ndeeper(0)",
        "while True:\n    print('y' * 1000)",
        "found = {}\nfor n in range(10**9):\n    found[n] = [n] * 100",
        "2 ** (10 ** 9)",
    ),
    "calling": (
        "for n in range(150):\n    await echo_echo(text='x' * 1000)",
        "import asyncio\nwhile True:\n    await asyncio.gather(*[echo_echo(text='x') for n in range(50)])",
    ),
}
"""What the scripts do. Each ends by a limit, or by itself, and another one begins."""

ORDINARY = "ordinary"
AT_ONCE = 16
"""How many calls of a script run at once: `[code] calls_at_once`."""


class Figures(NamedTuple):
    """The median and the p99 of one round, in milliseconds."""

    p50: float
    p99: float


class Caller:
    """Calls from a process of its own, and says how long each call took."""

    def __init__(self, port: int, seconds: float) -> None:
        self._seconds = seconds
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.beside", "--call", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    async def p99(self) -> Figures:
        """Make one round."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self._seconds}\n")
        self._process.stdin.flush()
        line = await asyncio.to_thread(self._process.stdout.readline)
        cuts = quantiles(json.loads(line), n=100)
        return Figures(cuts[49] * 1e3, cuts[98] * 1e3)


def call_for_ever(port: int) -> None:
    """Be the caller: a line with seconds makes a round, and its latencies are printed."""
    wires = [ask.wire for ask in asks("/mcp", "echo.echo", "modern", _key("plain"), first_id=1, count=1000)]
    with connected(port) as connection:
        for line in sys.stdin:
            took: list[float] = []
            end = time.perf_counter() + float(line)
            while (began := time.perf_counter()) < end:
                connection.sendall(wires[len(took) % len(wires)])
                _read(connection)
                took.append(time.perf_counter() - began)
                time.sleep(max(0.0, BEAT_SECONDS - took[-1]))
            print(json.dumps(took), flush=True)


def connected(port: int) -> socket.socket:
    """A connection to the hub."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def call_like_scripts(port: int, singles: float, gathered: float) -> None:
    """Be an ordinary caller that calls so often a second, one after the other and many at once, until it is ended.

    What it computes itself disturbs no other program, like a script.
    """
    yield_to_others()
    long, short = "x" * 1000, "x"
    for text, rate, at_once in ((long, singles / 2, 1), (short, gathered / 2, AT_ONCE)):
        headers = call_headers("echo.echo", "modern", _key("plain"))
        wire = http_request("/mcp", headers, call_body(1, "echo.echo", text, "modern"))
        for _ in range(2):
            Thread(target=_call_at_rate, args=(port, wire, rate, at_once)).start()


def _call_at_rate(port: int, wire: bytes, rate: float, at_once: int) -> None:
    connections = [connected(port) for _ in range(at_once)]
    due = time.perf_counter()
    while True:
        for connection in connections:
            connection.sendall(wire)
        for connection in connections:
            _read(connection)
        due += at_once / max(rate, 1.0)
        time.sleep(max(0.0, due - time.perf_counter()))


def _read(connection: socket.socket) -> None:
    """Read one response."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += _more(connection)
    head, body = got.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200"), head
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    while len(body) < length:
        body += _more(connection)


def _more(connection: socket.socket) -> bytes:
    chunk = connection.recv(65536)
    if not chunk:
        raise ConnectionError("the hub closed the connection")
    return chunk


def _key(mode: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key_of(mode)}"}


class Scripts:
    """Keeps the sandbox busy while its `async with` block lasts."""

    def __init__(self, port: int, scripts: Sequence[str]) -> None:
        self._port = port
        self._scripts = scripts
        self._tasks: list[asyncio.Task[None]] = []
        self.ended = 0
        self.rates: list[float] = []
        """How many calls a second the scripts of each kind made."""
        self._calls = [0] * len(scripts)
        self._began = time.perf_counter()

    async def __aenter__(self) -> Self:
        # One caller has at most half of the workers.
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(WORKERS)]
        await asyncio.sleep(1.0)  # the first scripts compute
        return self

    async def __aexit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._began
        self.rates = [calls / seconds for calls in self._calls]
        failed = [task for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in failed:
            task.result()
        await asyncio.sleep(1.5)  # scripts end with their requests, and a new spare worker is warm

    async def _run(self, number: int) -> None:
        headers = _key("code" if number % 2 else "other")
        url = f"http://127.0.0.1:{self._port}/v1/tools/run_code"
        async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60.0) as http:
            while True:
                for turn in range(len(self._scripts)):
                    kind = (turn + 3 * number) % len(self._scripts)
                    answer = await http.post(url, json={"code": self._scripts[kind]})
                    assert answer.status_code == 200, answer.text
                    self._calls[kind] += answer.json()["structuredContent"]["calls"]
                    self.ended += 1


def prefer() -> bool:
    """Run this process, and what it starts, before everything else on the machine; not without the right to.

    Workers do not inherit it. So what other programs do, and what workers compute, delays no call, and what is left is
    what the hub itself does for scripts.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    return True


async def measure(rounds: int, seconds: float, *, real_time: bool) -> int:
    """Print the figures; 1 if a promise is not kept."""
    found: dict[str, list[Figures]] = {kind: [] for kind in ("quiet", *SCRIPTS, ORDINARY)}
    ended = dict.fromkeys(SCRIPTS, 0)
    rates: list[float] = []
    idles: list[float] = []
    starts: list[float] = []
    is_preferred = real_time and prefer()
    with ExitStack() as held:
        echo = held.enter_context(Program("bench.direct")).port(PORT_PRINTED)
        servers = {"echo": {"url": f"http://127.0.0.1:{echo}/mcp", "type": "http"}}
        url = held.enter_context(hub_of(servers, code={"cpu_seconds": 1.0, "workers": WORKERS}))
        port = int(url.split(":")[2].split("/")[0])
        caller = held.enter_context(Caller(port, seconds))
        await caller.p99()
        yield_to_others()  # what the scripts' caller computes is no work of the hub
        for _ in range(rounds):
            before, begun = idle_and_all(), started()
            found["quiet"].append(await caller.p99())
            after = idle_and_all()
            starts.append((started() - begun) / seconds)
            idles.append((after[0] - before[0]) / (after[1] - before[1]))
            made: list[float] = []
            for kind, scripts in SCRIPTS.items():
                async with Scripts(port, scripts) as running:
                    found[kind].append(await caller.p99())
                ended[kind] += running.ended
                made = running.rates
            rates.append(sum(made))
            found[ORDINARY].append(await _beside_ordinary_calls(caller, port, made))
    _print("quiet", found["quiet"])
    for kind in SCRIPTS:
        _print(f"beside scripts that are {kind}", found[kind])
        print(f"{'':34} {_ratio(found[kind], found['quiet'])} the quiet p99; {ended[kind]} scripts ended")
    _print("beside as many ordinary calls", found[ORDINARY])
    print(f"{'':34} {_ratio(found[ORDINARY], found['quiet'])} the quiet p99; {median(rates):.0f} calls a second")
    print(f"processes and threads that start in quiet rounds: {median(starts):.1f} a second")
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} cores, load average {load}, {'real-time' if is_preferred else 'usual'} priority")
    kept = {
        "computing, against quiet": median(_ratios(found["computing"], found["quiet"])),
        "calling, against as many ordinary calls": median(_ratios(found["calling"], found[ORDINARY])),
    }
    for name, ratio in kept.items():
        print(f"scripts that are {name}: {ratio:.2f} (promised: at most {PROMISED:g})")
    if (idle := median(idles)) < IDLE_LEAST and not is_preferred:
        print(f"void: the cores were idle for {idle:.0%} of the quiet rounds, so other programs decided the figures")
        return 1
    return int(max(kept.values()) > PROMISED)


def _ratios(busy: Sequence[Figures], other: Sequence[Figures]) -> list[float]:
    """The p99 of each busy round, as a multiple of that of the round beside it."""
    return sorted(one.p99 / two.p99 for one, two in zip(busy, other, strict=True))


def _ratio(busy: Sequence[Figures], quiet: Sequence[Figures]) -> str:
    """The median of these multiples, and the range of the middle half."""
    ratios = _ratios(busy, quiet)
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{middle:.2f} times ({low:.2f} to {high:.2f})"


async def _beside_ordinary_calls(caller: Caller, port: int, rates: Sequence[float]) -> Figures:
    """A round beside a caller that makes as many calls as scripts did."""
    command = ("-m", "bench.beside", "--like-scripts", str(port), *map(str, rates))
    load = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        await asyncio.sleep(2.0)  # it has started, and calls
        return await caller.p99()
    finally:
        load.kill()
        await load.wait()


def idle_and_all() -> tuple[int, int]:
    """The time that the cores have been idle, and all time, in hundredths of a second."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return ticks[3] + ticks[4], sum(ticks[:8])


def started() -> int:
    """How many processes and threads the machine has started."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes "))


def _print(name: str, rounds: Sequence[Figures]) -> None:
    p99s = sorted(each.p99 for each in rounds)
    print(
        f"{name:34} p50 {median(each.p50 for each in rounds):5.2f} ms, p99 {median(p99s):6.2f} ms"
        f" (rounds: {p99s[0]:.2f} to {p99s[-1]:.2f})"
    )


def main() -> int:
    """Measure, or be the caller."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--real-time", action="store_true", help="before all other programs; needs the right to")
    parser.add_argument("--call", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--like-scripts", type=float, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.like_scripts:
        port, singles, gathered = given.like_scripts
        call_like_scripts(int(port), singles, gathered)
        return 0
    if given.call:
        call_for_ever(given.call)
        return 0
    return asyncio.run(measure(given.rounds, given.seconds, real_time=given.real_time))


if __name__ == "__main__":
    sys.exit(main())
