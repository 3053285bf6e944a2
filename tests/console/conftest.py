"""One hub and one browser for all tests of the console's pages."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.console.pages import chromium
from tests.hubs import PATIENT, HubProcess, serving, stdio

SERVER = Path(__file__).with_name("tools_server.py")


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    servers = {
        "desk": stdio([sys.executable, str(SERVER)]),
        "narrow": stdio([sys.executable, str(SERVER)], max_calls=1),
        "broken": {"command": "/no/such/program"},
    }
    async with serving(tmp_path_factory.mktemp("hub"), servers, limits=PATIENT) as running:
        yield running
