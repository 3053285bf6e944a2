"""Documents that all nodes share, in a real database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from isthmus.core.journal import StateDocument
from isthmus.storage import postgres_state
from isthmus.storage.journal_base import StateUnusable
from isthmus.storage.postgres_state import PostgresState
from isthmus.storage.settings import StorageSettings
from tests.databases import Database, running

SECONDS = 20.0


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with running() as made:
        yield made


@pytest.fixture
def url(database: Database) -> str:
    return database.url()


@pytest.fixture
def pair(url: str) -> Iterator[tuple[PostgresState, PostgresState]]:
    settings = StorageSettings(url)
    with closing(PostgresState(settings, "keys")) as one, closing(PostgresState(settings, "keys")) as other:
        yield one, other


def wait_until(is_so: Callable[[], bool], within: float = SECONDS) -> None:
    give_up = time.monotonic() + within
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def test_a_change_is_seen_by_the_other_node(pair: tuple[PostgresState, PostgresState]) -> None:
    one, other = pair
    assert one.write("keys", {"list": StateDocument(0, b"first")})
    wait_until(lambda: "list" in other.all("keys"))
    version, body = other.all("keys")["list"]
    assert (body, other.revision("keys"), other.revision("logins")) == (b"first", version, 0)
    assert other.write("keys", {"list": StateDocument(version, None)})
    assert "list" not in other.all("keys")
    wait_until(lambda: "list" not in one.all("keys"))
    assert one.write("keys", {"list": StateDocument(0, b"again")})


def test_of_two_writers_with_one_version_only_the_first_succeeds(pair: tuple[PostgresState, PostgresState]) -> None:
    one, other = pair
    assert one.write("keys", {"list": StateDocument(0, b"one")})
    assert not other.write("keys", {"list": StateDocument(0, b"other"), "open": StateDocument(0, b"")})
    assert {id: each.body for id, each in other.all("keys").items()} == {"list": b"one"}


def test_a_lost_notification_is_healed_by_the_poll(
    pair: tuple[PostgresState, PostgresState], database: Database, url: str
) -> None:
    one, other = pair
    assert one.write("keys", {"list": StateDocument(0, b"one")})
    wait_until(lambda: "list" in other.all("keys"))
    schema = StorageSettings(url).schema
    database.psql(
        f"UPDATE {schema}.documents SET version = version + 1 WHERE kind = 'revisions' AND id = 'keys';"
        f"UPDATE {schema}.documents SET version = version + 1, body = 'two' WHERE kind = 'keys'"
    )
    wait_until(lambda: other.all("keys")["list"].body == b"two")


def test_a_database_that_is_away_is_reported_and_found_again(database: Database, url: str) -> None:
    with closing(PostgresState(StorageSettings(url), "keys")) as state:
        assert state.write("keys", {"list": StateDocument(0, b"one")})
        database.stop()
        try:
            with pytest.raises(OSError, match="cannot be used"):
                state.write("keys", {"list": StateDocument(1, b"two")})
            wait_until(lambda: not state.is_current)
            assert state.all("keys")["list"].body == b"one"
            with pytest.raises(StateUnusable):
                PostgresState(StorageSettings(url))
        finally:
            database.start()
        wait_until(lambda: state.is_current)
        assert state.write("keys", {"list": StateDocument(state.all("keys")["list"].version, b"two")})


async def test_only_one_node_has_a_lock(
    pair: tuple[PostgresState, PostgresState], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    order: list[str] = []

    async def wait() -> None:
        async with other.lock("login"):
            order.append("other")

    async with asyncio.timeout(SECONDS):
        async with one.lock("login"):
            waiting = asyncio.ensure_future(wait())
            async with other.lock("another login"):
                order.append("another")
            order.append("one")
        await waiting
        assert order == ["another", "one", "other"]
        monkeypatch.setattr(postgres_state, "LOCK_SECONDS", 0.1)
        async with one.lock("login"), other.lock("login"):
            pass  # a node that hangs does not stop the others
