"""The field of servers with a hub in front, opened once for all tests of the agents."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.agents.field import Field, open_field


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def field(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with open_field(tmp_path_factory.mktemp("agents")) as opened:
        yield opened
