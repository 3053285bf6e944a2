"""The field and the tours through it, and the gallery, opened once for all tests of the matrix."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from tests.matrix.agency import Agency
from tests.matrix.field import open_field
from tests.matrix.gallery import Gallery, open_gallery
from tests.peers.sdk1_steps import Sdk1Client


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def agency(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agency]:
    async with open_field(tmp_path_factory.mktemp("field")) as field, aclosing(Sdk1Client()) as sdk1:
        yield Agency(field, tmp_path_factory.mktemp("agency"), sdk1)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def gallery(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gallery]:
    async with open_gallery(tmp_path_factory.mktemp("gallery"), shared=tmp_path_factory.mktemp("shared")) as opened:
        yield opened
