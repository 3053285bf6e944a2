"""`python -m bench.console`: whether the console stays quick at 1,000 servers, 10,000 tools and 500 calls a second.

A hub, a load of a steady rate, and a real Chromium with the console open. The servers are Python functions in the hub's
process: what is measured is the console, and these cost the least. CPU is that of the hub's process; the same rate is
measured without a page, before and after. Ends with 1 when a limit does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from itertools import cycle, islice
from pathlib import Path
from time import monotonic
from typing import cast

import httptools
import msgspec
import uvloop
from playwright.async_api import CDPSession, Page, async_playwright

from bench.load import WrongAnswer
from bench.messages import call_body, call_headers, http_request
from bench.processes import PORT_LOGGED, NotStarted, Program

SERVERS = 1_000
TOOLS = ("search", "summarize", "translate", "classify", "extract", "index", "compare", "spell", "count", "fail")
CALLERS = ("planner", "reviewer", "support", "nightly", "mobile")
KEY = "the-key-of-{}-for-the-bench"
OPERATOR = "ops"
RATE = 500
CONNECTIONS = 20
READY_SECONDS = 120.0
WARM_SECONDS = 8.0
"""Time until the page's memory of calls is full (2,000 of them), and its code is compiled."""

FIRST_VIEW_BYTES = 60_000
USABLE_SECONDS = 0.3
HEAP_GROWTH = 0.2
CPU_SHARE = 0.05
LONG_TASK_SHARE = 0.01
"""Share of the time in tasks of over 50 ms."""
MAIN_THREAD_SHARE = 0.3
KEYSTROKE_SECONDS = 0.016
ELEMENTS = 3_000

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chromium-headless-shell")
VIEWS = ("overview", "activity", "servers", "tools", "overview")
"""What the operator looks at in turns."""

TURN_SECONDS = 12.0


# -- load ------------------------------------------------------------------------------------------------------------


class SteadyCaller(asyncio.Protocol):
    """One keep-alive connection that sends a call at each beat, if the last one has been answered."""

    def __init__(self, requests: Sequence[tuple[bytes, bytes]]) -> None:
        """Each request comes with a piece of its right answer."""
        self._requests = cycle(requests)
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self._expected = b""
        self.answered = 0
        self.late = 0
        self.problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def beat(self) -> None:
        """Send the next call."""
        if self._expected:
            self.late += 1
            return
        wire, self._expected = next(self._requests)
        self._transport.write(wire)

    def data_received(self, data: bytes) -> None:
        """Let the parser call back."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Gather the answer's body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Check the answer."""
        if self._expected not in self._body:
            self.problem = self.problem or self._body[:300].decode(errors="replace")
        self._body = self._expected = b""
        self.answered += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that goes during a run is a failure."""
        self.problem = self.problem or f"the connection was lost ({exc or 'closed by the hub'})"

    def close(self) -> None:
        """Call no more."""
        self._transport.abort()


def requests_of(connection: int) -> list[tuple[bytes, bytes]]:
    """The calls of one connection, which is one caller: spread over all servers; one in fifty fails."""
    extra = {"Authorization": f"Bearer {KEY.format(CALLERS[connection % len(CALLERS)])}"}
    found = []
    for turn in range(SERVERS // CONNECTIONS):
        number = (turn * CONNECTIONS + connection) * 7 % SERVERS
        tool = f"server-{number:04}.{TOOLS[-1] if turn % 50 == 25 else TOOLS[turn % 9]}"
        text = f"text {turn} of connection {connection}"
        body = call_body(turn + 1, tool, text, "modern")
        found.append((http_request("/mcp", call_headers(tool, "modern", extra), body), text.encode()))
    return found


@asynccontextmanager
async def calling(port: int, rate: int) -> AsyncIterator[list[SteadyCaller]]:
    """Call at this rate for as long as the block lasts."""
    loop = asyncio.get_running_loop()
    callers: list[SteadyCaller] = []
    for connection in range(CONNECTIONS):
        make = partial(SteadyCaller, requests_of(connection))
        callers.append((await loop.create_connection(make, "127.0.0.1", port))[1])

    async def beat() -> None:
        beats, begun = 0, loop.time()
        while True:
            callers[beats % CONNECTIONS].beat()
            beats += 1
            if (wait := begun + beats / rate - loop.time()) > 0:
                await asyncio.sleep(wait)

    beating = asyncio.ensure_future(beat())
    try:
        yield callers
    finally:
        beating.cancel()
        for caller in callers:
            caller.close()
    if problem := next((caller.problem for caller in callers if caller.problem), ""):
        raise WrongAnswer(problem)


# -- what is measured ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Found:
    """The figures of a run."""

    first_bytes: int = 0
    data_bytes: int = 0
    usable_seconds: float = 0.0
    keystroke_seconds: float = 0.0
    heaps: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the start, and bytes of the overview after a garbage collection."""
    elements: int = 0
    nodes: int = 0
    watched_seconds: float = 0.0
    main_thread_seconds: float = 0.0
    long_tasks: list[float] = field(default_factory=list)
    rows: int = 0
    calls: int = 0
    late: int = 0
    alone: list[float] = field(default_factory=list)
    """The hub's share of a core, of each stretch without a page."""
    watched: float = 0.0

    @property
    def growth(self) -> float:
        """How much the heap has grown, as a share of its first size; by a line through all samples."""
        times = [at for at, _ in self.heaps]
        slope, start = statistics.linear_regression(times, [size for _, size in self.heaps])
        return slope * times[-1] / start

    @property
    def more_cpu(self) -> float:
        """The share of a core that the page costs the hub."""
        return self.watched - statistics.fmean(self.alone)


class Meter:
    """Measures a share of a core over a stretch of time."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._at, self._cpu = monotonic(), program.cpu_seconds()

    def share(self) -> float:
        """CPU seconds of each second since the start."""
        return (self._program.cpu_seconds() - self._cpu) / (monotonic() - self._at)


async def heap_bytes(devtools: CDPSession) -> int:
    """The page's heap after a garbage collection."""
    await devtools.send("HeapProfiler.collectGarbage")
    found: int = (await devtools.send("Runtime.getHeapUsage"))["usedSize"]
    return found


async def metrics(devtools: CDPSession) -> dict[str, float]:
    """Chromium's own counters of a page."""
    found = await devtools.send("Performance.getMetrics")
    return {each["name"]: each["value"] for each in found["metrics"]}


FIRST_VIEW = """() => {
  const usable = performance.getEntriesByName("console-usable")[0].startTime;
  const loaded = [performance.getEntriesByType("navigation")[0], ...performance.getEntriesByType("resource")]
    .filter((each) => each.responseEnd <= usable);
  const bytes = (found) => found.reduce((sum, each) => sum + each.transferSize, 0);
  const isData = (each) => each.name.includes("/v1/");
  const [files, data] = [loaded.filter((each) => !isData(each)), loaded.filter(isData)];
  return { usable: usable / 1000, files: bytes(files), data: bytes(data) };
}"""

UNTIL_USABLE = """() => new Promise((done) => {
  const isMarked = (list) => list.getEntriesByName("console-usable").length && done();
  new PerformanceObserver(isMarked).observe({ type: "mark", buffered: true });
})"""

WATCH_LONG_TASKS = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((each) => each.duration / 1000)))
    .observe({ type: "longtask" });
}"""

TYPE = """async (words) => {
  const input = document.querySelector("input[aria-label='Filter tools']");
  let longest = 0;
  for (let end = 0; end <= words.length; end += 1) {
    const begun = performance.now();
    input.value = words.slice(0, end);
    input.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((resolve) => queueMicrotask(() => queueMicrotask(resolve)));
    document.body.offsetHeight;
    longest = Math.max(longest, performance.now() - begun);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  input.value = "";
  input.dispatchEvent(new Event("input", { bubbles: true }));
  return longest / 1000;
}"""


async def show(page: Page, view: str) -> None:
    """Go to a view, and wait until it is drawn."""
    await page.evaluate("view => { location.hash = `#/${view}`; }", view)
    await page.get_by_role("heading", level=1, name=view, exact=False).wait_for()
    if view != "overview":
        await page.locator("[data-keys] tbody tr.pick").first.wait_for()


async def look(page: Page, found: Found, seconds: float, hub: Program) -> None:
    """Look at the console for so long, in all views in turn."""
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("Performance.enable")
    for view in VIEWS[:-1]:
        await show(page, view)
    # The best of three, as for the first view: the machine is shared.
    found.keystroke_seconds = min([await page.evaluate(TYPE, "summarize names") for _ in range(3)])
    await show(page, "overview")
    await asyncio.sleep(WARM_SECONDS)
    await page.evaluate(WATCH_LONG_TASKS)
    found.heaps.append((0.0, await heap_bytes(devtools)))
    before, begun, meter = await metrics(devtools), monotonic(), Meter(hub)
    tasks: list[float] = []
    for view in islice(cycle(VIEWS), max(len(VIEWS), round(seconds / TURN_SECONDS))):
        await show(page, view)
        await asyncio.sleep(min(TURN_SECONDS, seconds / len(VIEWS)))
        found.rows = max(found.rows, await page.locator("tbody tr").count())
        found.elements = max(found.elements, await page.evaluate("document.querySelectorAll('*').length"))
        # A forced collection stops the page itself: the tasks until now are read before, and those during it dropped.
        tasks += await page.evaluate("window.longTasks.splice(0)")
        if view == VIEWS[0]:  # views differ in size
            found.heaps.append((monotonic() - begun, await heap_bytes(devtools)))
        await page.evaluate("new Promise((done) => setTimeout(done, 100)).then(() => window.longTasks.splice(0))")
    found.watched, found.watched_seconds = meter.share(), monotonic() - begun
    after = await metrics(devtools)
    found.nodes = int(after["Nodes"])
    found.main_thread_seconds = after["TaskDuration"] - before["TaskDuration"]
    found.long_tasks = tasks


# -- the run -----------------------------------------------------------------------------------------------------------


def start_hub(held: ExitStack) -> tuple[Program, int]:
    """Start the hub and wait until it has all tools."""
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-console-")))
    callers = {
        name: {"key": KEY.format(name), "allow": ["*"], "operator": name == OPERATOR} for name in (*CALLERS, OPERATOR)
    }
    config = {
        "hub": {"state": str(folder / "state")},
        "callers": callers,
        "servers": {f"server-{number:04}": {"python": "bench.console_tools"} for number in range(SERVERS)},
    }
    (folder / "isthmus.json").write_text(json.dumps(config))
    words = ("serve", "--config", str(folder / "isthmus.json"), "--host", "127.0.0.1", "--port", "0")
    env = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    hub = held.enter_context(Program("isthmus", *words, env=env))
    return hub, hub.port(PORT_LOGGED)


async def wait_for_tools(hub: Program, port: int) -> None:
    """Wait until the hub lists all tools; say how many bytes both lists have."""
    give_up = monotonic() + READY_SECONDS
    headers = {"Authorization": f"Bearer {KEY.format(OPERATOR)}"}
    while True:
        connection = HTTPConnection("127.0.0.1", port, timeout=READY_SECONDS)
        connection.request("GET", "/v1/tools?fields=title,description", headers=headers)
        short = connection.getresponse().read()
        if len(msgspec.json.decode(short)["tools"]) >= SERVERS * len(TOOLS):
            break
        if monotonic() > give_up or not hub.is_running():
            raise NotStarted(f"the hub does not list all tools:\n{hub.output()[-2000:]}")
        await asyncio.sleep(0.5)
    connection.request("GET", "/v1/tools", headers=headers)
    whole = connection.getresponse().read()
    print(f"list of tools: {len(short):,} bytes for the console, {len(whole):,} bytes with schemas")
    connection.close()


async def measure(seconds: float, rate: int) -> Found:
    """Run it all."""
    found = Found()
    flags = ["--disable-gpu", "--no-first-run", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    path = next((each for name in BROWSERS if (each := shutil.which(name))), None)
    if path is None:
        raise NotStarted("there is no Chromium; install it: sudo apt-get install chromium")
    with ExitStack() as held:
        hub, port = start_hub(held)
        await wait_for_tools(hub, port)
        async with async_playwright() as playwright, calling(port, rate) as callers:
            await asyncio.sleep(3)
            quiet = min(60.0, max(20.0, seconds / 6))
            await alone(found, hub, quiet)
            browser = await playwright.chromium.launch(executable_path=path, args=flags)
            context = await browser.new_context(viewport={"width": 1440, "height": 900})
            context.set_default_timeout(60_000)
            page = await context.new_page()
            origin = f"http://127.0.0.1:{port}/console/"
            await page.goto(origin)
            await page.get_by_label("Key").fill(KEY.format(OPERATOR))
            await page.keyboard.press("Enter")
            await page.locator("[data-keys]").wait_for()
            await measure_first_view(page, found)
            await look(page, found, seconds, hub)
            await browser.close()
            await asyncio.sleep(1)
            await alone(found, hub, quiet)
            found.calls, found.late = sum(each.answered for each in callers), sum(each.late for each in callers)
    return found


async def alone(found: Found, hub: Program, seconds: float) -> None:
    """Measure the hub's CPU with nobody looking."""
    meter = Meter(hub)
    await asyncio.sleep(seconds)
    found.alone.append(meter.share())


async def measure_first_view(page: Page, found: Found) -> None:
    """Open the console signed in, with an empty cache; the best time of three, because the machine is shared."""
    devtools = await page.context.new_cdp_session(page)
    views = []
    for _ in range(3):
        await devtools.send("Network.clearBrowserCache")
        await page.reload()
        await page.evaluate(UNTIL_USABLE)
        views.append(await page.evaluate(FIRST_VIEW))
    found.first_bytes = max(view["files"] for view in views)
    found.data_bytes = max(view["data"] for view in views)
    found.usable_seconds = min(view["usable"] for view in views)
    await devtools.detach()


def rows(found: Found) -> list[tuple[str, str, str, bool]]:
    """Each figure with its limit, and whether that holds."""
    share = found.main_thread_seconds / found.watched_seconds
    long = sum(found.long_tasks) / found.watched_seconds
    heap = f"{found.heaps[0][1] / 1e6:.1f} and {found.heaps[-1][1] / 1e6:.1f} MB"
    tasks = f"{len(found.long_tasks)}, the longest {max(found.long_tasks, default=0.0) * 1000:.0f} ms"
    cpu = f"{found.watched:.1%} and {statistics.fmean(found.alone):.1%}"
    drawn = f"{found.elements:,} and {found.rows}"
    typed = found.keystroke_seconds
    return [
        ("first view, files", f"{found.first_bytes / 1000:.1f} KB", "60 KB", found.first_bytes <= FIRST_VIEW_BYTES),
        ("first view, data", f"{found.data_bytes / 1000:.0f} KB", "", True),
        ("usable after", f"{found.usable_seconds * 1000:.0f} ms", "300 ms", found.usable_seconds <= USABLE_SECONDS),
        ("slowest keystroke of a search", f"{typed * 1000:.1f} ms", "16 ms", typed <= KEYSTROKE_SECONDS),
        ("JS heap at the start and at the end", heap, "", True),
        ("growth of the heap, by its slope", f"{found.growth:+.1%}", "20 %", found.growth <= HEAP_GROWTH),
        ("main thread of the page", f"{share:.1%}", f"{MAIN_THREAD_SHARE:.0%}", share <= MAIN_THREAD_SHARE),
        ("tasks over 50 ms", tasks, f"{LONG_TASK_SHARE:.0%} of the time", long <= LONG_TASK_SHARE),
        ("elements and table rows, at most", drawn, f"{ELEMENTS:,}", found.elements <= ELEMENTS),
        ("CPU of the hub with a page and without", cpu, "", True),
        ("difference, of a core", f"{found.more_cpu:.1%}", f"{CPU_SHARE:.0%}", found.more_cpu <= CPU_SHARE),
    ]


def main() -> int:
    """Measure, print, and say whether the limits hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the page is open (default 60)")
    parser.add_argument("--rate", type=int, default=RATE, help=f"calls a second (default {RATE})")
    options = parser.parse_args()
    try:
        found = uvloop.run(measure(options.seconds, options.rate))
    except (NotStarted, WrongAnswer, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(f"{found.calls:,} calls; {found.late:,} beats without a call, because the last one was not answered yet\n")
    table = rows(found)
    for name, figure, limit, holds in table:
        print(f"{name:<46}{figure:>28}{limit:>20}{'' if holds else '  ← too much'}")
    return 0 if all(holds for *_, holds in table) else 1


if __name__ == "__main__":
    sys.exit(main())
