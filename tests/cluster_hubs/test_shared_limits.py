"""Limits that nodes count together: running calls of a tenant, and wrong keys of an address."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_hubs.nodes import PATIENCE, cluster
from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.watching import eventually
from tests.hubs import Raw, stdio

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

KEYS = {name: f"key-of-{name}-that-is-long-enough" for name in ("ann", "bob", "eve")}
CALLERS: dict[str, dict[str, Any]] = {
    name: {"key": key, "allow": ["*"], "tenant": "acme"} for name, key in KEYS.items()
}
WRONG = 40
CALLERS["eve"]["tenant"] = "other"
CALLERS["ann"]["operator"] = True


async def test_tenants_and_addresses_have_one_limit_at_all_nodes(tmp_path: Path, ledger: Ledger) -> None:
    tables = {
        "servers": {"quick": stdio(quick_server.command(ledger.path))},
        "callers": CALLERS,
        "tenants": {"acme": {"max_calls": 2}, "other": {}},
        "limits": {"wrong_keys_per_minute": WRONG},
    }
    async with (
        cluster(tmp_path, "a", "b", **tables) as (_, (a, b)),
        Raw(a.url, key=KEYS["ann"]) as ann,
        Raw(b.url, key=KEYS["bob"]) as bob,
        Raw(b.url, key=KEYS["eve"]) as eve,
        asyncio.timeout(4 * PATIENCE),
    ):
        for caller in (ann, bob):
            assert "result" in await caller.call("quick.pay", {"nonce": "0-0"})
        held = [asyncio.create_task(ann.call("quick.hold", {"nonce": f"1-{n}"}, id=n)) for n in range(2)]

        async def is_refused() -> bool:
            answer = await bob.call("quick.pay", {"nonce": "0-1"})
            return "error" in answer and answer["error"]["data"]["reason"] == "too_many_calls"

        late = await eventually(is_refused, "the other node counts them", PATIENCE)
        print(f"seconds until the other node counted a tenant's calls: {late:.2f}")
        assert "result" in await eve.call("quick.pay", {"nonce": "0-2"})
        for task in held:
            task.cancel()

        async def is_free() -> bool:
            return "result" in await bob.call("quick.pay", {"nonce": "0-3"})

        await eventually(is_free, "the other node counts them no longer", PATIENCE)

        async def status(url: str, key: str) -> int:
            async with Raw(url, key=key) as caller:
                return (await caller.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).status_code

        assert [await status(a.url, f"wrong-key-{n}-long-enough") for n in range(WRONG)] == [401] * WRONG
        tries = 1
        while await status(b.url, "another-wrong-key-long-enough") != 429:
            tries += 1
            assert tries < WRONG / 2, "its own limit would not be reached by so few"
            await asyncio.sleep(0.2)
        assert await status(b.url, KEYS["bob"]) != 429
