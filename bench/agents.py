"""`python -m bench.agents`: what one task costs, as the hub's agent and as one of the official SDK of A2A, in one run.

The same client program sends the same messages to each. The hub keeps its tasks on SQLite, synced before they are
acknowledged, the SDK's agent in its own store on SQLite or in memory. Both echo by themselves; one row more shows the
hub with a tool on an MCP server, which takes a call over HTTP besides. Nobody keeps an audit log. With `--database`
both keep their tasks in the same PostgreSQL server, each in a schema of its own, and the hub is a node of a cluster;
the CPU of the server's processes is shown beside theirs. Ends with 1 when the hub breaks its promise, 2 when it could
not be measured. The SDK has an environment of its own (`.venv-a2a10`, or the interpreter that `ISTHMUS_A2A10_PYTHON`
names).
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from time import clock_gettime

import msgspec

from bench.__main__ import ASKS_EACH, NotMeasured, Round, Row, measure, ratio, summary, take_turn
from bench.bus import nats_server
from bench.load import WrongAnswer
from bench.messages import Ask, http_request
from bench.processes import PORT_PRINTED, NotStarted, Program, cpu_clock_of
from bench.stage import KEY, Scenario, Target, start_hub, wait_until_served
from tests import databases
from tests.databases import Database

PATH = "/a2a"
SCHEMA = "bench"

ORDINARY = {"fsync": "on", "autovacuum": "on", "shared_buffers": "128MB"}
"""What PostgreSQL has by default, and the tests' servers do not."""

UNIQUE = b"9f86d081884c7d65"
"""Stands for a message's id, of which each message has its own: the same one again would join the task of the first."""

SDK_PYTHON = "ISTHMUS_A2A10_PYTHON"

PROMISED_TIMES = {"SDK, SQLite": 50.0, "SDK, memory": 10.0, "SDK, PostgreSQL": 10.0}
"""How many times as much CPU the SDK's agent takes for a message, at least."""

HUB = Scenario("hub", "hub", "builtin.echo")
HUB_WITH_SERVER = Scenario("hub, MCP server", "hub", "modern.echo")
SDK_ON_SQLITE = Scenario("SDK, SQLite", "sdk on sqlite", "echo")
SDK_IN_MEMORY = Scenario("SDK, memory", "sdk in memory", "echo")
SDK_ON_POSTGRES = Scenario("SDK, PostgreSQL", "sdk on postgres", "echo")

SHARED_TABLES = """
[storage]
url = "{url}"

[cluster]
nats = "{nats}"
node = "bench"
"""


class Status(msgspec.Struct):
    """How a task stands."""

    state: str


class Task(msgspec.Struct):
    """What a task must hold to be checked; its artifacts are looked through as they are."""

    status: Status
    artifacts: msgspec.Raw = msgspec.Raw()


class Sent(msgspec.Struct):
    """What a message came to."""

    task: Task


class Answer(msgspec.Struct):
    """What an answer must hold to be checked."""

    id: int
    result: Sent


DECODER = msgspec.json.Decoder(Answer)


def complaint_about(body: bytes, ask: Ask) -> str | None:
    """Return None when `body` is a task that ended with the text of `ask`, or what is wrong with it."""
    try:
        answer = DECODER.decode(body)
    except msgspec.MsgspecError as error:
        return f"{error}: {body[:300]!r}"
    task = answer.result.task
    is_right = task.status.state == "TASK_STATE_COMPLETED" and ask.text.encode() in bytes(task.artifacts)
    return None if is_right and answer.id == ask.id else f"message {ask.id} was answered with {body[:500]!r}"


def message_body(id: int, tool: str, text: str) -> bytes:
    """Return the JSON-RPC body of one `SendMessage` that has the tool run, and waits for the end."""
    part = {"data": {"tool": tool, "arguments": {"text": text}}}
    message = {"messageId": UNIQUE.decode(), "role": "ROLE_USER", "parts": [part]}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": "SendMessage", "params": {"message": message}})


def headers() -> dict[str, str]:
    """Return the headers of a message; who does not know keys does not mind one."""
    return {
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
        "A2A-Version": "1.0",
        "Authorization": f"Bearer {KEY}",
    }


def asks(tool: str, first_id: int, count: int) -> list[Ask]:
    """Return `count` messages, each with a text of its own."""
    return [
        Ask(http_request(PATH, headers(), message_body(id, tool, text)), id, text, UNIQUE)
        for id in range(first_id, first_id + count)
        for text in [f"echo number {id}"]
    ]


def sdk_python() -> str:
    """Return the interpreter that has the SDK.

    Raises:
        NotStarted: there is none.
    """
    path = os.environ.get(SDK_PYTHON, str(Path(__file__).parent.parent / ".venv-a2a10" / "bin" / "python"))
    if not Path(path).exists():
        raise NotStarted(f"no interpreter with a2a-sdk at {path}; `make agents` builds it, or set {SDK_PYTHON}")
    return path


def set_stage(held: ExitStack, folder: Path, connections: int) -> list[Target]:
    """Start the agents and return them ready to be sent messages; `held` ends the processes.

    Raises:
        NotStarted: one of them did not start, or answers something else.
    """
    python = sdk_python()
    direct_port = held.enter_context(Program("bench.direct")).port(PORT_PRINTED)
    on_sqlite, in_memory = (
        held.enter_context(Program("bench.sdk_agent", place, python=python))
        for place in (str(folder / "sdk.db"), "memory")
    )
    hub = start_hub(held, direct_port, folder, "off")
    return [
        ready(HUB, *hub, connections),
        ready(HUB_WITH_SERVER, *hub, connections),
        ready(SDK_ON_SQLITE, on_sqlite, on_sqlite.port(PORT_PRINTED), connections),
        ready(SDK_IN_MEMORY, in_memory, in_memory.port(PORT_PRINTED), connections),
    ]


def set_database_stage(held: ExitStack, folder: Path, connections: int, database: Database) -> list[Target]:
    """The same with all tasks in one database."""
    socket = f"postgresql+asyncpg://hub@/postgres?host={database.folder}"
    sdk = held.enter_context(Program("bench.sdk_agent", socket, python=sdk_python()))
    direct_port = held.enter_context(Program("bench.direct")).port(PORT_PRINTED)
    nats, _ = held.enter_context(nats_server())
    tables = SHARED_TABLES.format(url=database.url(schema=SCHEMA), nats=nats)
    hub = start_hub(held, direct_port, folder, "off", tables=tables)
    return [
        ready(HUB, *hub, connections),
        ready(HUB_WITH_SERVER, *hub, connections),
        ready(SDK_ON_POSTGRES, sdk, sdk.port(PORT_PRINTED), connections),
    ]


class DatabaseCost:
    """CPU of the database's processes in the turns of each agent, in microseconds per message."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.taken: dict[str, list[float]] = {}

    def take_turn(self, target: Target, seconds: float) -> Round:
        """See `bench.take_turn`."""
        before = {pid: clock_gettime(cpu_clock_of(pid)) for pid in self._database.processes()}
        turn = take_turn(target, seconds)
        spent = sum(clock_gettime(cpu_clock_of(pid)) - before.get(pid, 0.0) for pid in self._database.processes())
        self.taken.setdefault(target.scenario.name, []).append(spent / turn.calls * 1e6)
        return turn


def ready(scenario: Scenario, program: Program, port: int, connections: int) -> Target:
    """Return once a message is answered as it should be."""
    ask = Ask(message_body(1, scenario.tool, "ready?"), 1, "ready?")
    wait_until_served(scenario, program, port, ask, PATH, headers(), complaint_about)
    asks_of = [asks(scenario.tool, 1 + number * ASKS_EACH, ASKS_EACH) for number in range(connections)]
    return Target(scenario, program, port, asks_of, complaint_about)


def check_stored(database: Database, table: str, calls: int) -> None:
    """Raises: NotMeasured if a table has fewer tasks than were acknowledged."""
    count = int(database.psql(f"SELECT count(*) FROM {table}"))
    if count < calls:
        raise NotMeasured(f"{table} has {count} tasks, and {calls} were acknowledged")


def check_kept(file: Path, text: str, calls: int) -> None:
    """Look into an agent's file.

    Raises:
        NotMeasured: it has fewer tasks than were acknowledged.
    """
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute(text).fetchone()
    if count < calls:
        raise NotMeasured(f"{file.name} has {count} tasks, and {calls} were acknowledged")


def times(taken: Mapping[str, Sequence[Round]]) -> dict[str, float]:
    """Return how many times as much CPU as the hub each of the others takes, within the same round."""
    found = {name: ratio(turns, taken[HUB.name]) for name, turns in taken.items() if name != HUB.name}
    return {name: value for name, value in found.items() if value is not None}


def broken_promises(found: Mapping[str, float]) -> list[str]:
    """Return a sentence for each promise that the hub does not keep."""
    return [
        f"{name} takes {found[name]:.1f} times the hub's CPU, and the hub promises at least {promised:g}"
        for name, promised in PROMISED_TIMES.items()
        if name in found and found[name] < promised
    ]


def table(rows: Sequence[Row], found: Mapping[str, float]) -> str:
    """Return the rows as text for a terminal."""
    heads = ("agent", "CPU µs/message", "messages/s", "p50 ms", "p99 ms", "× hub")
    lines = [f"{heads[0]:<20}" + "".join(f"{head:>16}" for head in heads[1:])]
    for row in rows:
        cells = (
            f"{row.cpu_microseconds:.0f}",
            f"{row.calls_per_second:.0f}",
            f"{row.p50_milliseconds:.2f}",
            f"{row.p99_milliseconds:.2f}",
            f"{found[row.scenario]:.1f}" if row.scenario in found else "",
        )
        lines.append(f"{row.scenario:<20}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and say whether the promise holds."""
    parser = argparse.ArgumentParser(prog="python -m bench.agents", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each agent (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn (default 3)")
    parser.add_argument("--connections", type=int, default=16, help="keep-alive connections (default 16)")
    parser.add_argument("--database", action="store_true", help="keep all tasks in one PostgreSQL server")
    options = parser.parse_args()
    try:
        if options.database:
            return on_database(options)
        with ExitStack() as held:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            targets = set_stage(held, folder, options.connections)
            taken = measure(targets, rounds=options.rounds, seconds=options.seconds)
            calls = {name: sum(turn.calls for turn in turns) for name, turns in taken.items()}
            kept = calls[HUB.name] + calls[HUB_WITH_SERVER.name]
            check_kept(folder / "state" / "journal.db", "SELECT count(*) FROM documents", kept)
            check_kept(folder / "sdk.db", "SELECT count(*) FROM tasks", calls[SDK_ON_SQLITE.name])
    except (NotMeasured, NotStarted, WrongAnswer) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return report(taken)


def on_database(options: argparse.Namespace) -> int:
    """Measure with PostgreSQL, which writes to the disk before it acknowledges."""
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        database = held.enter_context(databases.running(**ORDINARY))
        targets = set_database_stage(held, folder, options.connections, database)
        cost = DatabaseCost(database)
        taken = measure(targets, rounds=options.rounds, seconds=options.seconds, take=cost.take_turn)
        calls = {name: sum(turn.calls for turn in turns) for name, turns in taken.items()}
        check_stored(database, f"{SCHEMA}.documents", calls[HUB.name] + calls[HUB_WITH_SERVER.name])
        check_stored(database, "public.tasks", calls[SDK_ON_POSTGRES.name])
    status = report(taken)
    for name, turns in cost.taken.items():
        print(f"{name:<20}{median(turns):>16.0f} µs of the database's processes per message")
    return status


def report(taken: Mapping[str, Sequence[Round]]) -> int:
    """Print the table and what is above its limit; return the exit status."""
    found = times(taken)
    print(table(summary(taken), found))
    broken = broken_promises(found)
    for sentence in broken:
        print(f"bench: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
