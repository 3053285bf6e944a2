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
from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.watching import eventually
from tests.frontends.test_approvals import CALLERS, RULES, Person, client
from tests.frontends.test_rest import noted
from tests.hubs import PATIENT, HubProcess, stdio
from tests.property.echo_server import command

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("shared_approvals")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger.jsonl")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory, ledger: Ledger) -> AsyncIterator[list[HubProcess]]:
    folder = tmp_path_factory.mktemp("nodes")
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(folder / "nats"))
        storage = {"url": database().url(schema=f"s{secrets.token_hex(6)}")}
        tables: dict[str, Any] = {
            "callers": CALLERS,
            "limits": PATIENT,
            "storage": storage,
        }
        tables["approvals"] = {**RULES, "till": {"tools": ["till.pay"]}}
        busy = stdio(quick_server.command(ledger.path), max_calls=1, max_queued=0)
        yield await start_nodes(folder, stack, nats.url, 2, {"bank": stdio(command()), "till": busy}, **tables)


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


async def test_a_call_that_was_allowed_and_did_not_run_is_made_again_at_another_node(
    nodes: list[HubProcess], ledger: Ledger
) -> None:
    a, b = nodes
    async with client(a, "agent") as here, client(b, "agent") as there, client(b, "boss") as boss:

        async def pay(at: Person, seconds: float = 20.0) -> Any:
            return (await at.http.post(f"/v1/tools/till.pay?timeout={seconds}", json={"nonce": "n"})).json()

        holding = asyncio.ensure_future(here.http.post("/v1/tools/till.hold?timeout=60", json={"nonce": "held"}))
        await noted(ledger, '"nonce": "held"')  # the only slot at this node is taken
        call = asyncio.ensure_future(pay(here))
        id = await boss.id_of({"nonce": "n"})
        assert (await boss.decide("allow", id)).status_code == 200
        refused = await call
        assert (refused["reason"], refused["executed"]) == ("overloaded", "no"), refused
        assert (await pay(there))["content"][0]["text"] == "n"
        assert (await pay(there, seconds=0.5))["reason"] == "approval_pending", "it was allowed once"
        holding.cancel()


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
