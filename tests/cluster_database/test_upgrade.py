"""A migration of the tables that is killed between its steps continues, and lets those go on that use the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from isthmus.storage import postgres
from isthmus.storage.postgres import STEPS, PostgresJournal
from isthmus.storage.settings import StorageSettings
from tests.cluster_database.nodes import Cluster
from tests.conftest import Ledger
from tests.databases import Database, running
from tests.faults.test_tasks_crash import SECONDS
from tests.faults.watching import eventually
from tests.fork_server import forked
from tests.hubs import environment


@pytest.fixture
def database() -> Iterator[Database]:
    with running() as made:
        yield made


async def test_a_migration_that_is_killed_between_its_steps_continues(
    no_leftovers: None, tmp_path: Path, database: Database, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, database, ledger)
    cluster.url = url = database.url(schema=cluster.schema)
    with monkeypatch.context() as then:
        then.setattr(postgres, "STEPS", STEPS[:2])
        await (await PostgresJournal.open(StorageSettings(url))).aclose()

    def version() -> str:
        return database.psql(f"SELECT version FROM {cluster.schema}.about")

    assert version() == "2"
    # Somebody reads the documents: the fourth step cannot change their table meanwhile.
    reader = await asyncpg.connect(url.partition("&schema")[0])
    async with asyncio.timeout(2 * SECONDS):
        async with reader.transaction():
            await reader.fetch(f"SELECT FROM {cluster.schema}.documents")
            config = cluster.config("a")
            words = ("serve", "--config", str(config), "--port", "0")
            node = await forked(words, environment(), config.parent)
            try:
                await eventually(lambda: version() == "3", "the third step is done", SECONDS)
                waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%nodes%'"
                await eventually(lambda: database.psql(waits) != "0", "the fourth one waits", SECONDS)
                # It lets others go on before it tries again.
                assert await asyncio.to_thread(database.psql, f"SELECT count(*) FROM {cluster.schema}.documents") == "0"
            finally:
                node.kill()
                await node.wait()
            assert version() == "3"
        await reader.close()
        async with cluster.node("a") as a:
            assert version() == str(len(STEPS))
            assert (await a.send("1-1", waits=True))["status"]["state"] == "TASK_STATE_COMPLETED"
