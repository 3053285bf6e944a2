"""Measure tool search: how often the right tool is found, and what a search costs. `make search` prints the table.

The tools and the queries are in `tests/search`: tools of real servers, and queries with their right answers. The
ranking is compared with two plain ones over the same texts: every word as a substring, and BM25 as FTS5 has it without
stemming, synonyms or weights. One half of the queries is for tuning. Nobody looks at the ranks of the other half, whose
figures count.

What a search costs among 10,000 tools is measured twice: the CPU time of the index alone, and the time by the clock of
a call of `search_tools` at a running hub, over HTTP with a connection of its own. Ends with 1 if the slowest query
takes longer than promised, in either way.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from bench.lists import Hub, until_listed
from bench.processes import Program
from isthmus.core.catalog.search_ranking import ToolIndex
from isthmus.core.catalog.view import Route
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName

DATA = Path(__file__).parent.parent / "tests" / "search"
FOUND = 10
"""How many tools a search returns."""
MANY = 10_000
ROUNDS = 3
PROMISED_MILLISECONDS = 5.0
"""No search among `MANY` tools takes longer, in the quickest of `ROUNDS` tries."""

SERVER = Path(__file__).parent.parent / "tests" / "security" / "fickle_server.py"
"""Lists the tools that a file has."""

Search = Callable[[str], Sequence[str]]


class Query(msgspec.Struct, frozen=True):
    """One line of `queries.jsonl`."""

    query: str
    answers: tuple[str, ...]
    """Any of these is right."""
    half: Literal["tuning", "held-out"]
    """Weights and synonyms are chosen by the first half alone."""


class Quality(msgspec.Struct, frozen=True):
    """How well a ranking answers queries: each figure is between 0 and 1."""

    hit_1: float
    """How often the first tool is right."""
    hit_5: float
    """How often one of the first five is."""
    mrr: float
    """The mean of one divided by the rank of the first right tool; 0 if none of the first ten is."""


def read_queries() -> list[Query]:
    """All queries."""
    lines = (DATA / "queries.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Query) for line in lines]


def read_routes() -> dict[str, Route]:
    """All tools, as the hub has them."""
    routes: dict[str, Route] = {}
    for line in (DATA / "tools.jsonl").read_bytes().splitlines():
        members = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        server, name = (msgspec.json.decode(members.pop(key), type=str) for key in ("server", "name"))
        exposed = f"{server}.{name}"
        routes[exposed] = Route(Tool.of(ServerName(server), FeatureName(name), members), exposed)
    return routes


def many_routes(routes: Mapping[str, Route], count: int = MANY) -> dict[str, Route]:
    """So many tools: the same ones, at servers of other names."""
    many: dict[str, Route] = {}
    number = 0
    while len(many) < count:
        for route in routes.values():
            server = ServerName(f"{route.feature.server}-{number}")
            exposed = f"{server}.{route.feature.name}"
            if len(many) < count:
                many[exposed] = Route(Tool.of(server, route.feature.name, route.feature.definition), exposed)
        number += 1
    return many


# -- rankings ------------------------------------------------------------------------------------------------------


def by_index(routes: Mapping[str, Route]) -> Search:
    """The hub's own."""
    index = ToolIndex()
    index.update(routes)
    return lambda query: index.search(query, FOUND)


def by_substring(routes: Mapping[str, Route]) -> Search:
    """Tools whose texts contain every word of the query, in the order of the list."""
    texts = {name: " ".join(_texts(name, route)).lower() for name, route in routes.items()}

    def search(query: str) -> list[str]:
        words = query.lower().split()
        return [name for name, text in texts.items() if all(word in text for word in words)][:FOUND]

    return search


def by_plain_bm25(routes: Mapping[str, Route]) -> Search:
    """BM25 of FTS5 with its default tokenizer, over the same texts."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE tools USING fts5(name, title, description, arguments)")
    names = list(routes)
    rows = (_texts(name, routes[name]) for name in names)
    database.executemany("INSERT INTO tools VALUES (?, ?, ?, ?)", rows)

    def search(query: str) -> list[str]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        found = database.execute("SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY rank LIMIT ?", (words, FOUND))
        return [names[row - 1] for (row,) in found]

    return search


def _texts(name: str, route: Route) -> tuple[str, str, str, str]:
    definition = route.feature.definition
    title, description = (msgspec.json.decode(definition.get(key, b'""'), type=str) for key in ("title", "description"))
    schema = msgspec.json.decode(definition.get("inputSchema", b"{}"), type=dict[str, object])
    properties = schema.get("properties")
    return name, title, description, " ".join(properties) if isinstance(properties, dict) else ""


RANKINGS: Mapping[str, Callable[[Mapping[str, Route]], Search]] = {
    "`search_tools`": by_index,
    "BM25 alone": by_plain_bm25,
    "substrings": by_substring,
}


def quality_of(search: Search, queries: Sequence[Query]) -> Quality:
    """How well a ranking answers these queries."""
    ranks = []
    for query in queries:
        found = search(query.query)
        ranks.append(next((rank for rank, name in enumerate(found, 1) if name in query.answers), None))
    count = len(queries)
    return Quality(
        sum(rank == 1 for rank in ranks) / count,
        sum(rank is not None and rank <= 5 for rank in ranks) / count,
        sum(1 / rank for rank in ranks if rank is not None) / count,
    )


def quality_table() -> list[str]:
    """The figures of all rankings, as the documentation has them."""
    routes, queries = read_routes(), read_queries()
    lines = ["| ranking | queries | hit@1 | hit@5 | MRR |", "|---|---|---|---|---|"]
    for name, ranking in RANKINGS.items():
        search = ranking(routes)
        for kind in ("tuning", "held-out"):
            chosen = [query for query in queries if query.half == kind]
            quality = quality_of(search, chosen)
            figures = f"{quality.hit_1:.2f} | {quality.hit_5:.2f} | {quality.mrr:.2f}"
            lines.append(f"| {name} | {len(chosen)} ({kind}) | {figures} |")
    return lines


# -- cost ----------------------------------------------------------------------------------------------------------


def index_cost() -> tuple[str, float]:
    """The CPU time of building an index of many tools, and of searching it; and that of the slowest search, in ms."""
    routes, queries = many_routes(read_routes()), read_queries()
    index = ToolIndex()
    built, held = asyncio.run(_build(index, routes))
    took = _quickest(queries, lambda query: index.search(query, FOUND), time.thread_time)
    line = (
        f"{len(routes):,} tools: {built * 1e3:,.0f} ms of CPU to build the index, in a thread, at most"
        f" {held * 1e3:.1f} ms of it between two turns of the event loop; a search takes {_spread(took)} of CPU"
    )
    return line, took[-1]


def call_cost() -> tuple[str, float]:
    """What a call of `search_tools` takes by the clock at a hub with many tools; and the slowest, in ms."""
    routes, queries = many_routes(read_routes()), read_queries()
    # Names at one server: 600 servers would be 600 processes.
    tools = [{**each.feature.definition, "name": name.replace(".", "_")} for name, each in routes.items()]
    with tempfile.TemporaryDirectory() as folder:
        listed, config = Path(folder) / "lists.json", Path(folder) / "isthmus.json"
        listed.write_bytes(msgspec.json.encode({"tools": tools}))
        tables = {
            "servers": {"many": {"command": sys.executable, "args": [str(SERVER), str(listed)]}},
            "hub": {"state": str(Path(folder) / "state")},
            "sets": {"found": {"tools": ["*"], "expose": "search"}},
            "limits": {"tools_per_server": 2 * MANY},
        }
        config.write_bytes(msgspec.json.encode(tables))
        with Program("isthmus", "serve", "--config", str(config), "--port", "0") as program:
            hub = Hub(program)
            until_listed(hub, len(tools))

            def search(query: str) -> None:
                hub.ask("tools/call", {"name": "search_tools", "arguments": {"query": query}}, "/mcp/found")

            search(queries[0].query)  # builds the index
            took = _quickest(queries, search, time.perf_counter)
    return f"a call of `search_tools` at a hub with these tools takes {_spread(took)}, by the clock", took[-1]


def _quickest(queries: Sequence[Query], search: Callable[[str], object], clock: Callable[[], float]) -> list[float]:
    """The milliseconds of each query in the quickest of its tries, sorted."""
    took = []
    for query in queries:
        times = []
        for _ in range(ROUNDS):
            began = clock()
            search(query.query)
            times.append(clock() - began)
        took.append(min(times) * 1e3)
    return sorted(took)


def _spread(took: Sequence[float]) -> str:
    middle, most = took[len(took) // 2], took[len(took) * 95 // 100]
    return f"{middle:.2f} ms (median), {most:.2f} ms (95 %), {took[-1]:.2f} ms (slowest of {len(took)} queries)"


async def _build(index: ToolIndex, routes: Mapping[str, Route]) -> tuple[float, float]:
    """Build an index in a thread, as the hub does.

    Returns its CPU time, and how much of that it took at most between two turns of the event loop, which wants a turn
    every millisecond. Not the time by the clock: other programs on the machine would count too.
    """
    loop, ready, held = asyncio.get_running_loop(), threading.Event(), 0.0
    thread = 0

    def build() -> None:
        nonlocal thread
        thread = time.pthread_getcpuclockid(threading.get_ident())
        ready.set()
        began = time.thread_time()
        index.update(routes)
        took.append(time.thread_time() - began)

    took: list[float] = []
    building = loop.run_in_executor(None, build)
    ready.wait()
    before = time.clock_gettime(thread)
    while not building.done():
        await asyncio.sleep(0.001)
        now = time.clock_gettime(thread)
        held, before = max(held, now - before), now
    await building
    return took[0], held


def main() -> int:
    """Print the table of rankings and what a search costs; the exit code."""
    print(*quality_table(), "", sep="\n", flush=True)
    code = 0
    for measure in (index_cost, call_cost):
        line, slowest = measure()
        print(line, flush=True)
        if slowest > PROMISED_MILLISECONDS:
            print(f"The slowest took {slowest:.2f} ms, over the {PROMISED_MILLISECONDS:g} ms promised.")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
