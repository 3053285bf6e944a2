"""A call that waits at one node is listed, decided and repeated at another: two nodes, NATS and PostgreSQL."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.cluster_hubs.balanced import database, start_nodes
from tests.cluster_hubs.nodes import nats_server
from tests.faults.watching import eventually
from tests.frontends.test_approvals import CALLERS, RULES, Person, client
from tests.hubs import PATIENT, HubProcess, stdio
from tests.property.echo_server import command

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("shared_approvals")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[HubProcess]]:
    folder = tmp_path_factory.mktemp("nodes")
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(folder / "nats"))
        storage = {"url": database().url(schema=f"s{secrets.token_hex(6)}")}
        tables: dict[str, Any] = {"callers": CALLERS, "limits": PATIENT, "storage": storage, "approvals": RULES}
        yield await start_nodes(folder, stack, nats.url, 2, {"bank": stdio(command())}, **tables)


async def test_a_call_that_waits_at_one_node_is_allowed_at_another(nodes: list[HubProcess]) -> None:
    a, b = nodes
    async with client(a, "agent") as agent, client(b, "boss") as boss, client(a, "boss") as beside:
        call = asyncio.ensure_future(agent.call({"n": 1}))
        id = await boss.id_of({"n": 1})
        decided = await boss.decide("allow", id)
        assert decided.status_code == 200, decided.text
        assert (await call)["structuredContent"] == {"n": 1}
        await _is_used(boss, id)
        await _is_used(beside, id)


async def test_a_call_allowed_at_one_node_runs_once_at_another(nodes: list[HubProcess]) -> None:
    a, b = nodes
    async with client(a, "agent") as here, client(b, "agent") as there, client(b, "boss") as boss:
        assert (await here.call({"n": 2}, seconds=0.5))["reason"] == "approval_pending"
        assert (await boss.decide("allow", await boss.id_of({"n": 2}))).status_code == 200
        assert (await there.call({"n": 2}))["structuredContent"] == {"n": 2}
        again = await there.call({"n": 2}, seconds=0.5)
        assert again["reason"] == "approval_pending", "it was allowed once"


async def test_a_call_denied_at_one_node_is_denied_at_another(nodes: list[HubProcess]) -> None:
    a, b = nodes
    async with client(a, "agent") as here, client(b, "agent") as there, client(b, "boss") as boss:
        call = asyncio.ensure_future(here.call({"n": 3}))
        assert (await boss.decide("deny", await boss.id_of({"n": 3}), reason="no")).status_code == 200
        assert (await call)["reason"] == "approval_denied"
        assert (await there.call({"n": 3}))["reason"] == "approval_denied"


async def test_of_two_decisions_at_once_the_first_counts_at_both_nodes(nodes: list[HubProcess]) -> None:
    a, b = nodes
    async with client(b, "agent") as agent, client(a, "boss") as one, client(b, "boss") as other:
        for number in range(100, 110):
            call = asyncio.ensure_future(agent.call({"n": number}))
            id = await one.id_of({"n": number})
            await other.id_of({"n": number})
            denied, allowed = await asyncio.gather(one.decide("deny", id), other.decide("allow", id))
            # What was allowed can be denied until it is used, and the call waits at the node that allowed it.
            assert {denied.status_code, allowed.status_code} <= {200, 409}, (denied.text, allowed.text)
            assert 200 in {denied.status_code, allowed.status_code}
            ended = await call
            if allowed.status_code == 409:
                assert ended["reason"] == "approval_denied"


async def _is_used(boss: Person, id: str) -> None:
    async def is_used() -> bool:
        return id not in [each["id"] for each in await boss.pending()]

    await eventually(is_used, "the approval is used at all nodes")
