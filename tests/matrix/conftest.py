"""All servers with one hub, and the sessions of clients with them, started once for all tests of the matrix."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from tests.matrix.field import open_field
from tests.matrix.full_servers import FullServerMatrix, open_full_servers
from tests.matrix.matrix_sessions import MatrixSessions
from tests.peers.sdk1_steps import Sdk1Client


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def sessions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MatrixSessions]:
    async with open_field(tmp_path_factory.mktemp("field")) as field, aclosing(Sdk1Client()) as sdk1:
        yield MatrixSessions(field, tmp_path_factory.mktemp("sessions"), sdk1)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def full_servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FullServerMatrix]:
    async with open_full_servers(
        tmp_path_factory.mktemp("full_servers"), shared=tmp_path_factory.mktemp("shared")
    ) as opened:
        yield opened
