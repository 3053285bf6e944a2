"""Nodes of a cluster as processes, their callers, and a history of everything that they wrote into the database."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.conftest import Ledger
from tests.databases import Database
from tests.faults import quick_server
from tests.faults.test_tasks_crash import SECONDS, Load, task_message
from tests.faults.watching import eventually
from tests.fork_server import forked
from tests.hubs import HubProcess, _keep_reading, _listening_port, environment, stdio, write_config

LEASE = 2.0
SLOTS = 8
RUNNING = 3
"""How many tasks of one caller run at once at a server with so many slots."""

TAKEOVER_SECONDS = LEASE + 15.0
"""From a node's death until another one has taken it over: 2 s after the lease, on a machine that is not busy."""

HISTORY = """
CREATE TABLE {schema}.history (
    number bigint GENERATED ALWAYS AS IDENTITY, at timestamptz DEFAULT clock_timestamp(), kind text, id text,
    version bigint, state text, node bigint, old_version bigint, old_state text, old_node bigint, old_heir bigint,
    is_fenced boolean);
CREATE FUNCTION {schema}.note_history() RETURNS trigger AS $$
DECLARE heir_then bigint;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO {schema}.history (kind, id, version, state, node, is_fenced)
        VALUES (NEW.kind, encode(NEW.id, 'escape'), NEW.version, NEW.state, NEW.node,
            NEW.node IS NOT NULL AND NOT EXISTS (
                SELECT FROM {schema}.nodes WHERE nodes.number = NEW.node AND heir IS NULL));
    ELSE
        SELECT heir INTO heir_then FROM {schema}.nodes WHERE nodes.number = OLD.node;
        INSERT INTO {schema}.history
            (kind, id, version, state, node, old_version, old_state, old_node, old_heir, is_fenced)
        VALUES (NEW.kind, encode(NEW.id, 'escape'), NEW.version, NEW.state, NEW.node, OLD.version, OLD.state, OLD.node,
            heir_then, NEW.node IS NOT NULL AND NOT EXISTS (
                SELECT FROM {schema}.nodes WHERE nodes.number = NEW.node AND heir IS NULL));
    END IF;
    RETURN NULL;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER history AFTER INSERT OR UPDATE ON {schema}.documents
FOR EACH ROW EXECUTE FUNCTION {schema}.note_history();
"""
SHARED_KINDS = ("keys", "logins", "relay", "definitions", "configuration")
"""Their versions count the writes of the whole kind (`storage.postgres_state`)."""
ENDED = ("completed", "failed", "canceled", "rejected")


@asynccontextmanager
async def forked_hub(config: Path, *options: str) -> AsyncIterator[HubProcess]:
    """Run a hub that ends by SIGKILL, in the block or at its end; forked, because that is quicker."""
    words = ("serve", "--config", str(config), "--port", "0", *options)
    process = await forked(words, environment(), config.parent)
    said: list[str] = []
    try:
        port = await asyncio.wait_for(_listening_port(process, said), SECONDS)
        reading = asyncio.ensure_future(_keep_reading(process, said))
        yield HubProcess(process, port, said)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    await reading


class Cluster:
    """Nodes that share a schema of a database; each has a folder of its own."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        ledger: Ledger,
        *,
        slots: int = SLOTS,
        lease: float = LEASE,
        **tables: Any,
    ) -> None:
        self._folder = folder
        self._lease = lease
        self._ledger = ledger
        self._slots = slots
        self._tables = tables
        self.database = database
        self.schema = "shared"
        self.url = database.url(user="hub:${PG_PASSWORD:-none}", schema=self.schema)

    def config(self, name: str, **tables: Any) -> Path:
        """The configuration of a node."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        made = {
            "cluster": {"node": name, "lease_seconds": self._lease},
            "storage": {"url": self.url},
            "limits": {"listing_seconds": 30.0, "drain_seconds": 0.2},
            **self._tables,
            **tables,
        }
        server = stdio(quick_server.command(self._ledger.path), max_calls=self._slots)
        return write_config(folder, {"quick": server}, **{key: each for key, each in made.items() if each is not None})

    @asynccontextmanager
    async def node(self, name: str, **tables: Any) -> AsyncIterator[Node]:
        """Run a node, which ends by SIGKILL at the latest."""
        async with forked_hub(self.config(name, **tables)) as hub, Load(hub, 1) as load:
            yield Node(name, hub, load)

    @asynccontextmanager
    async def nodes(self, *names: str) -> AsyncIterator[list[Node]]:
        """Run several nodes, the first one first: it makes the tables, and the history begins."""
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(self.node(names[0]))
            self.keep_history()
            others = [stack.enter_async_context(self.node(name)) for name in names[1:]]
            yield [first, *[await other for other in others]]

    # -- what the database has ---------------------------------------------------------------------------------------

    def keep_history(self) -> None:
        """Note every change of a document from now on."""
        self.database.psql(HISTORY.format(schema=self.schema))

    def rows(self, text: str) -> list[dict[str, Any]]:
        """What a query returns; `{schema}` is replaced."""
        query = f"SELECT coalesce(json_agg(found), '[]') FROM ({text.format(schema=self.schema)}) AS found"
        rows: list[dict[str, Any]] = json.loads(self.database.psql(query))
        return rows

    def numbers(self) -> dict[str, int]:
        """The number of each node that nobody has taken over."""
        return {row["name"]: row["number"] for row in self.rows("SELECT * FROM {schema}.nodes WHERE heir IS NULL")}

    def check_history(self) -> int:
        """Every change was allowed; return how many there were.

        Versions grow by one. A node that was taken over wrote nothing after that, its documents were changed only by
        its heir, and only to move them. What has ended stays as it is.
        """
        rows = self.rows("SELECT * FROM {schema}.history ORDER BY number")
        for row in rows:
            assert not row["is_fenced"], row
            if row["old_version"] is None:
                continue
            is_move = row["version"] == row["old_version"]
            assert is_move or row["version"] == row["old_version"] + 1 or row["kind"] in SHARED_KINDS, row
            if row["old_node"] is not None and row["node"] != row["old_node"]:
                assert row["old_heir"] == (row["node"] if is_move else None), row
            if row["kind"] == "task" and row["old_state"] in ENDED:
                assert row["state"] == row["old_state"], row
        return len(rows)


class Node:
    """A running node and a caller of it."""

    def __init__(self, name: str, hub: HubProcess, load: Load) -> None:
        self.name = name
        self.hub = hub
        self.load = load

    def kill(self) -> None:
        """End it as a lost machine would."""
        self.hub.process.send_signal(signal.SIGKILL)

    async def send(self, nonce: str, tool: str = "pay", *, waits: bool = False) -> dict[str, Any]:
        """Send a message, and return the task."""
        params = {**task_message(nonce, tool), "configuration": {"returnImmediately": not waits}}
        task: dict[str, Any] = await self.load.send(params)
        return task

    async def get(self, task: str) -> dict[str, Any]:
        """A task as this node shows it."""
        found: dict[str, Any] = await self.load.ask("GetTask", {"id": task})
        return found

    async def state(self, task: str) -> str:
        """The state of a task as this node shows it."""
        state: str = (await self.get(task))["status"]["state"].removeprefix("TASK_STATE_")
        return state

    async def ends(self, task: str, within: float = SECONDS) -> dict[str, Any]:
        """Wait until a task has ended, and return it."""

        async def has_ended() -> bool:
            return (await self.state(task)).lower() in ENDED

        await eventually(has_ended, f"{task} ends on {self.name}", within)
        return await self.get(task)

    async def fails(self, method: str, params: Any) -> dict[str, Any]:
        """The error of a request."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self.load._client.post("/a2a", json=body)).json()
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        return error

    async def ready(self) -> tuple[int, str]:
        """What its readiness probe says."""
        response = await self.load._client.get("/readyz")
        return response.status_code, response.json()["status"]

    async def says(self, words: str, within: float = 20.0) -> None:
        """Wait for a line of its log."""
        await eventually(lambda: any(words in line for line in self.hub.said), f"{self.name} says {words!r}", within)


def executed(task: dict[str, Any]) -> str:
    """The `executed` that the caller of a failed task gets."""
    received: str = task["artifacts"][0]["parts"][0]["data"]["error"]["details"]["executed"]
    return received


async def all_end(node: Node, tasks: list[str], within: float = SECONDS) -> list[dict[str, Any]]:
    """Wait until all of these have ended, as this node sees it."""
    async with asyncio.timeout(within):
        return [await node.ends(task, within) for task in tasks]
