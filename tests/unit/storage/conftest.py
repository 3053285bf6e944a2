"""One PostgreSQL server for all tests of the journals; each has a schema of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.databases import Database, running


@pytest.fixture(scope="session")
def database() -> Iterator[Database]:
    with running() as made:
        yield made
