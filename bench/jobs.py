"""`python -m bench.jobs`: ten jobs, done by a scripted agent in plain, search and code mode.

Every job is one script that calls tools of a real hub: functions, and the filesystem, memory and everything servers
from npm. In code mode the hub runs it. In the other modes the agent runs it itself, and each call is one that a model
would make and whose result it would read. In plain mode all tools are listed. With search, and in code mode, the agent
first searches for each tool that it needs, in the words of the job. So the three do the same, and must return the same;
what differs is how often a model is asked, what it reads and writes, and how long tools and hub take. A model would
take seconds for each turn; that is not in the times.
"""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import msgspec
from mcp import Client
from mcp_types import CallToolResult

from bench.context import client_of, hub_of, key_of, listed, text_of
from isthmus.code.signatures import python_names
from tests.peers.node import FOLDER, find_node

Mode = Literal["plain", "search", "code"]
MODES: tuple[Mode, ...] = ("plain", "search", "code")
TOOLS = 43
"""All tools, three of the hub's own among them: the list is complete."""
FOUND = 5
"""How many tools a search of the agent returns."""


class Job(msgspec.Struct, frozen=True):
    """One job: what the agent searches for, and its script, whose last expression is the result."""

    name: str
    tools: Mapping[str, str]
    """The words that find each tool, by its Python name."""
    script: str


class Done(msgspec.Struct, frozen=True):
    """How a job went in one mode."""

    result: Any
    turns: int
    """Calls that a model makes."""
    read_bytes: int
    """What a model reads: the list of tools, and every answer."""
    written_bytes: int
    """What a model writes: the arguments of its calls."""
    seconds: float


STAFF = {"Ada": "Compilers", "Grace": "Compilers", "Edsger": "Proofs", "Barbara": "Types", "Tony": "Proofs"}

JOBS = (
    Job(
        "who owes most",
        {"shop_list_customers": "customers of the shop", "shop_list_orders": "orders of a customer"},
        """
owed = {}
for customer in (await shop_list_customers())['result']:
    orders = (await shop_list_orders(customer=customer['id']))['result']
    owed[customer['name']] = sum(order['cents'] for order in orders if not order['is_paid'])
sorted(owed.items(), key=lambda each: -each[1])[:3]
""",
    ),
    Job(
        "refund the lamps of one city",
        {
            "shop_list_customers": "list customers by city",
            "shop_list_orders": "list orders of a customer",
            "shop_refund_order": "refund an order",
        },
        """
refunded = []
for customer in (await shop_list_customers(city='Graz'))['result']:
    for order in (await shop_list_orders(customer=customer['id']))['result']:
        if order['item'] == 'lamp':
            done = await shop_refund_order(order=order['id'])
            refunded.append([done['id'], done['cents']])
refunded
""",
    ),
    Job(
        "price list in three currencies",
        {"shop_list_orders": "orders of a customer", "shop_convert_price": "convert a price to another currency"},
        """
prices = {}
for order in (await shop_list_orders(customer=7))['result']:
    for currency in ('USD', 'GBP', 'NOK'):
        converted = await shop_convert_price(cents=order['cents'], currency=currency)
        prices[f"{order['id']} {currency}"] = converted['result']
prices
""",
    ),
    Job(
        "longest of the notes",
        {"filesystem_list_directory": "list the files of a directory", "filesystem_read_text_file": "read a text file"},
        """
listing = (await filesystem_list_directory(path=folder + '/notes'))['content']
lengths = []
for name in sorted(line.split(' ', 1)[1] for line in listing.splitlines()):
    text = (await filesystem_read_text_file(path=folder + '/notes/' + name))['content']
    lengths.append([len(text.split()), name])
sorted(lengths)[-1]
""",
    ),
    Job(
        "collect the open points",
        {
            "filesystem_search_files": "search files by a pattern",
            "filesystem_read_text_file": "read a text file",
            "filesystem_write_file": "write a file",
        },
        """
found = (await filesystem_search_files(path=folder + '/notes', pattern='**/*.txt'))['content']
points = []
for path in sorted(found.splitlines()):
    text = (await filesystem_read_text_file(path=path))['content']
    points.extend(line for line in text.splitlines() if line.startswith('TODO'))
await filesystem_write_file(path=folder + '/points.txt', content='\\n'.join(points))
(await filesystem_read_text_file(path=folder + '/points.txt'))['content'].splitlines()
""",
    ),
    Job(
        "rename the drafts",
        {"filesystem_list_directory": "list directory", "filesystem_move_file": "rename a file"},
        """
listing = (await filesystem_list_directory(path=folder + '/drafts'))['content']
for line in listing.splitlines():
    name = line.split(' ', 1)[1]
    if name.endswith('.draft'):
        target = folder + '/drafts/' + name[:-6] + '.txt'
        await filesystem_move_file(source=folder + '/drafts/' + name, destination=target)
sorted((await filesystem_list_directory(path=folder + '/drafts'))['content'].splitlines())
""",
    ),
    Job(
        "remember the staff",
        {
            "filesystem_read_text_file": "read a text file",
            "memory_create_entities": "create entities in the knowledge graph",
            "memory_create_relations": "create relations between entities",
            "memory_read_graph": "read the knowledge graph",
        },
        """
rows = (await filesystem_read_text_file(path=folder + '/staff.csv'))['content'].splitlines()
people = [row.split(',') for row in rows]
teams = sorted({team for name, team in people})
await memory_create_entities(
    entities=[{'name': name, 'entityType': 'person', 'observations': ['on the staff']} for name, team in people]
)
await memory_create_entities(entities=[{'name': team, 'entityType': 'team', 'observations': []} for team in teams])
await memory_create_relations(
    relations=[{'from': name, 'to': team, 'relationType': 'works on'} for name, team in people]
)
graph = await memory_read_graph()
[len(graph['entities']), len(graph['relations'])]
""",
    ),
    Job(
        "who works on proofs",
        {"memory_search_nodes": "search the knowledge graph", "memory_open_nodes": "open nodes by name"},
        """
graph = await memory_search_nodes(query='Proofs')
names = []
for name in ('Ada', 'Grace', 'Edsger', 'Barbara', 'Tony'):
    node = await memory_open_nodes(names=[name, 'Proofs'])
    names.extend(each['from'] for each in node['relations'] if each['to'] == 'Proofs' and each['from'] == name)
[len(graph['entities']), sorted(names)]
""",
    ),
    Job(
        "add up a column",
        {"filesystem_read_text_file": "read a text file", "everything_get_sum": "sum of two numbers"},
        """
total = 0
for line in (await filesystem_read_text_file(path=folder + '/numbers.txt'))['content'].split():
    said = await everything_get_sum(a=total, b=int(line))
    total = int(said.rstrip('.').split(' ')[-1])
total
""",
    ),
    Job(
        "report by city",
        {
            "shop_list_customers": "list customers",
            "shop_list_orders": "list orders of a customer",
            "filesystem_create_directory": "create a directory",
            "filesystem_write_file": "write a file",
            "memory_add_observations": "add observations to entities",
        },
        """
await filesystem_create_directory(path=folder + '/reports')
sums = {}
for customer in (await shop_list_customers())['result']:
    orders = (await shop_list_orders(customer=customer['id']))['result']
    sums[customer['city']] = sums.get(customer['city'], 0) + sum(order['cents'] for order in orders)
for city, cents in sums.items():
    await filesystem_write_file(path=folder + '/reports/' + city + '.txt', content=str(cents))
best = sorted(sums, key=lambda city: sums[city])[-1]
await memory_add_observations(observations=[{'entityName': 'Ada', 'contents': ['sells best in ' + best]}])
[best, sums]
""",
    ),
)


def fill(place: Path) -> Path:
    """Write the files that the jobs work on into a new folder."""
    folder = place.resolve() / "files"
    for name in ("notes", "drafts"):
        (folder / name).mkdir(parents=True)
    for number in range(12):
        lines = [f"Note {number} says little, line {line}." for line in range(10 + number * 7 % 12)]
        (folder / "notes" / f"{number:02}.txt").write_text("\n".join([*lines, f"TODO {number}: ask again"]))
        (folder / "drafts" / f"{number:02}.{'draft' if number % 2 else 'txt'}").write_text("a draft")
    (folder / "staff.csv").write_text("\n".join(f"{name},{team}" for name, team in STAFF.items()))
    (folder / "numbers.txt").write_text("\n".join(str(number * number) for number in range(1, 16)))
    return folder


# -- the agent ---------------------------------------------------------------------------------------------------------


class ToolError(Exception):
    """A call failed."""


class Agent:
    """Does jobs in one mode, and counts what a model would read and write."""

    def __init__(self, client: Client, mode: Mode, tools: Mapping[str, str], listed_bytes: int) -> None:
        self._client = client
        self._mode = mode
        self._tools = tools
        """The names of all tools, by their Python names."""
        self._listed_bytes = listed_bytes
        self._turns = self._read = self._written = 0

    async def do(self, job: Job, folder: Path) -> Done:
        """Do a job."""
        self._turns, self._read, self._written = 0, self._listed_bytes, 0
        script = f"folder = {str(folder)!r}\n{job.script.strip()}"
        began = perf_counter()
        if self._mode != "plain":
            await self._find(job)
        result = await (self._run_there(job, script) if self._mode == "code" else self._run_here(job, script))
        return Done(result, self._turns, self._read, self._written, perf_counter() - began)

    async def _find(self, job: Job) -> None:
        """Search for every tool that the job needs."""
        detail = "full" if self._mode == "search" else "names"
        for name, words in job.tools.items():
            found = await self._ask("search_tools", {"query": words, "limit": FOUND, "detail": detail})
            names = [tool["name"] for tool in (found.structured_content or {})["tools"]]
            if self._tools[name] not in names:
                raise ToolError(f"{words!r} found {names}, and not {self._tools[name]}")

    async def _run_there(self, job: Job, script: str) -> Any:
        await self._ask("tool_signatures", {"names": list(job.tools)})
        done = await self._ask("run_code", {"code": script})
        return (done.structured_content or {})["result"]

    async def _run_here(self, job: Job, script: str) -> Any:
        """Run the script with a function for each of its tools."""
        tree = ast.parse(script)
        last = tree.body[-1]
        assert isinstance(last, ast.Expr)
        tree.body[-1] = ast.fix_missing_locations(ast.Assign([ast.Name("_result", ast.Store())], last.value, lineno=0))
        values: dict[str, Any] = {name: self._function(self._tools[name]) for name in job.tools}
        code = compile(tree, job.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, values)
        if running is not None:
            await running
        return json.loads(json.dumps(values["_result"]))

    def _function(self, tool: str) -> Any:
        async def call(**arguments: Any) -> Any:
            if self._mode == "search":
                result = await self._ask("call_tool", {"name": tool, "arguments": arguments})
            else:
                result = await self._ask(tool, arguments)
            # As a call in a script returns it.
            if result.structured_content is not None:
                return result.structured_content
            return "\n".join(part.text for part in result.content if part.type == "text")

        return call

    async def _ask(self, tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """One turn: the model writes a call, and reads its answer."""
        result = await self._client.call_tool(tool, dict(arguments))
        if result.is_error:
            raise ToolError(f"{tool}: {result.content}")
        self._turns += 1
        self._written += len(json.dumps({"name": tool, "arguments": arguments}).encode())
        self._read += sum(len(part.text.encode()) for part in result.content if part.type == "text")
        return result


@asynccontextmanager
async def agent_in(mode: Mode) -> AsyncIterator[tuple[Agent, Path]]:
    """An agent with a hub of its own, and the folder with its files."""
    node = find_node() or sys.exit("the servers need Node.js: install it with npm, and run `make jobs`")
    with tempfile.TemporaryDirectory() as name:
        folder = fill(Path(name))

        def from_npm(server: str, *arguments: str) -> dict[str, object]:
            script = FOLDER / "node_modules" / "@modelcontextprotocol" / f"server-{server}" / "dist" / "index.js"
            return {"command": node, "args": [str(script), *arguments]}

        memory = {**from_npm("memory"), "env": {"MEMORY_FILE_PATH": f"{name}/memory.json"}}
        servers = {
            "shop": {"python": "job_tools", "path": os.path.dirname(__file__)},
            "filesystem": from_npm("filesystem", str(folder)),
            "memory": memory,
            "everything": from_npm("everything"),
        }
        with hub_of(servers) as url:
            async with client_of(url, key_of("plain")) as client:
                tools = await listed(client, TOOLS)
            names = {python: exposed for exposed, python in python_names(tool["name"] for tool in tools).items()}
            async with client_of(url, key_of(mode)) as client:
                seen = await listed(client, 1)
                yield Agent(client, mode, names, sum(len(text_of(tool).encode()) for tool in seen)), folder


async def run_all() -> dict[str, dict[Mode, Done]]:
    """Do all jobs in all modes."""
    found: dict[str, dict[Mode, Done]] = {job.name: {} for job in JOBS}
    for mode in MODES:
        async with agent_in(mode) as (agent, folder):
            for job in JOBS:
                found[job.name][mode] = await agent.do(job, folder)
    return found


def table(found: Mapping[str, Mapping[Mode, Done]]) -> list[str]:
    """The table of the documentation: three figures in each cell."""
    lines = ["| job | " + " | ".join(MODES) + " |", "|---|---:|---:|---:|"]
    for name, done in found.items():
        cells = (
            f"{each.turns} · {each.read_bytes:,} · {each.seconds * 1e3:,.0f}" for each in map(done.get, MODES) if each
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    sums = []
    for mode in MODES:
        all_of = [done[mode] for done in found.values()]
        read, seconds = sum(each.read_bytes for each in all_of), sum(each.seconds for each in all_of)
        sums.append(f"{sum(each.turns for each in all_of)} · {read:,} · {seconds * 1e3:,.0f}")
    return [*lines, f"| all | {' | '.join(sums)} |"]


def main() -> int:
    """Print the table; 1 if two modes disagree."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # the SDK reports messages that arrive while it closes
    found = asyncio.run(run_all())
    print("calls of the model · bytes that it reads · ms of hub and tools\n")
    print("\n".join(table(found)))
    written = {mode: sum(done[mode].written_bytes for done in found.values()) for mode in MODES}
    print(f"\nbytes that the model writes: {', '.join(f'{mode} {written[mode]:,}' for mode in MODES)}")
    different = [name for name, done in found.items() if len({json.dumps(each.result) for each in done.values()}) > 1]
    print(f"results that differ between modes: {', '.join(different) or 'none'}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
