"""A hub that exposes its tools as code, shared by the tests of this package."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.code.script_server import command
from tests.conftest import Ledger
from tests.hubs import PATIENT, HubProcess, Raw, serving, stdio

KEYS = {name: f"key-of-{name}-0123456789" for name in ("plain", "narrow", "listed", "operator")}
CALLERS: dict[str, Any] = {
    "plain": {"key": KEYS["plain"], "allow": ["*"], "deny": ["shop.secret"]},
    "narrow": {"key": KEYS["narrow"], "allow": ["shop.add"]},
    "listed": {"key": KEYS["listed"], "allow": ["*"], "expose": "all"},
    "operator": {"key": KEYS["operator"], "allow": ["*"], "operator": True},
}


class CodeHub(NamedTuple):
    """The hub, and what its server was called with."""

    process: HubProcess
    ledger: Ledger

    def raw(self, who: str = "plain") -> Raw:
        return Raw(self.process.url, key=KEYS[who])


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CodeHub]:
    folder = tmp_path_factory.mktemp("code")
    ledger = Ledger(folder / "ledger")
    limits = {"calls": 40, "cpu_seconds": 2.0, "result_bytes": 100_000, "output_bytes": 20_000, "script_bytes": 20_000}
    servers = {"shop": stdio(command(ledger.path))}
    tables: dict[str, Any] = {"hub": {"expose": "code"}, "code": limits, "callers": CALLERS, "limits": PATIENT}
    tables["approvals"] = {"orders": {"tools": ["shop.order"]}}
    async with serving(folder, servers, **tables) as running:
        yield CodeHub(running, ledger)
