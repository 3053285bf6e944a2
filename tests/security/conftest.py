"""A hub for tests that only knock at its endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conftest import Ledger
from tests.hubs import HubProcess
from tests.security.endpoints import opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[HubProcess, Ledger]]:
    """One hub for a module, and what its server was called; each test connects for itself."""
    async with opened(tmp_path_factory.mktemp("hub")) as running:
        yield running
