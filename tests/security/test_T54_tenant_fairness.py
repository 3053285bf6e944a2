"""T54: one tenant takes all of a server, or all of the hub, and the others wait.

Answer: where several tenants share the hub, one has at most three quarters of a server's slots and of its queue, and in
the whole hub as many calls as `[tenants.NAME] max_calls` says, or `[limits] tenant_calls`. What is more is refused at
once: -32010 with `retryAfter`, or 429 with `Retry-After`. What was refused did not run. Others are answered as if
alone. The server queue's own rules are in `tests/unit/core/calls/test_lane.py`.
"""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import httpx2

from isthmus.model.callers import Caller as Known
from isthmus.model.callers import Grants
from tests.conftest import Ledger
from tests.faults.caller import Answer, Caller
from tests.faults.scripted import InProcess, hub_of
from tests.faults.watching import Tail, eventually
from tests.hubs import TRUSTED, HubProcess, serving, stdio
from tests.peers.launch import command

KEYS = {"ann": "key-of-ann-0123456789abcdef", "bob": "key-of-bob-0123456789abcdef"}
CALLERS = {
    "ann": {"key": KEYS["ann"], "allow": ["*"], "tenant": "acme"},
    "bob": {"key": KEYS["bob"], "allow": ["*"], "tenant": "other"},
}
GREEDY = 500
SLOTS, QUEUE = 64 * 3 // 4, 256 * 3 // 4
"""What one of several tenants may have of a server."""


async def answers(caller: Caller, server: str = "shop") -> bool:
    return (await caller.call(f"{server}.echo", {"text": "?"})).reported == "ok"


async def latencies(caller: Caller, calls: int = 200) -> list[float]:
    """How long each call took, eight at a time; all of them must be right."""
    clock = asyncio.get_running_loop().time

    async def one(at: int) -> float:
        started = clock()
        assert (await caller.call("shop.echo", {"text": str(at)})).text == str(at)
        return clock() - started

    return [took for start in range(0, calls, 8) for took in await asyncio.gather(*map(one, range(start, start + 8)))]


async def refusal_of(hub: HubProcess) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=20, verify=TRUSTED) as http:
        headers = {"authorization": f"Bearer {KEYS['ann']}"}
        return await http.post(f"http://127.0.0.1:{hub.port}/v1/tools/shop.pay", json={"nonce": "r"}, headers=headers)


def check(refused: Answer, reason: str) -> None:
    assert refused.error == (-32010, "no", reason)
    assert refused.message.error is not None
    assert refused.message.error["data"]["retryAfter"] > 0


async def test_five_hundred_slow_calls_of_one_tenant_hold_up_no_other(tmp_path: Path, ledger: Ledger) -> None:
    servers = {"shop": stdio(command("raw_server", "--ledger", str(ledger.path)))}
    async with (
        serving(tmp_path, servers, callers=CALLERS) as hub,
        Caller(hub.port, key=KEYS["ann"]) as ann,
        Caller(hub.port, key=KEYS["bob"]) as bob,
    ):
        await eventually(lambda: answers(bob), "the server is there", within=20.0)
        alone = await latencies(bob)
        slow = [{"nonce": str(at), "mode": "sleep:60"} for at in range(GREEDY)]
        calls = [asyncio.ensure_future(ann.call("shop.pay", each)) for each in slow]
        refused = GREEDY - SLOTS - QUEUE
        await eventually(lambda: sum(call.done() for call in calls) == refused, "what is too much is refused")
        for call in calls:
            if call.done():
                check(call.result(), "overloaded")
        assert statistics.median(await latencies(bob)) < 5 * statistics.median(alone) + 0.1
        response = await refusal_of(hub)
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert sum(call.done() for call in calls) == refused
        ann.hang_up()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_in_the_whole_hub_a_tenant_has_as_many_calls_as_is_said(tmp_path: Path, ledger: Ledger) -> None:
    raw = stdio(command("raw_server", "--ledger", str(ledger.path)))
    tenants = {"acme": {"max_calls": 3}, "other": {}}
    async with (
        serving(tmp_path, {"shop": raw, "bank": raw}, callers=CALLERS, tenants=tenants) as hub,
        Caller(hub.port, key=KEYS["ann"]) as ann,
        Caller(hub.port, key=KEYS["bob"]) as bob,
    ):
        await eventually(lambda: answers(bob), "one server is there", within=20.0)
        await eventually(lambda: answers(bob, "bank"), "the other is there", within=20.0)
        names = ["shop.pay", "bank.pay", "shop.pay"]
        slow = [
            asyncio.ensure_future(ann.call(name, {"nonce": str(at), "mode": "sleep:60"}))
            for at, name in enumerate(names)
        ]
        tail = Tail(ledger.path)
        await eventually(lambda: len(tail.look().ran) == len(names), "three are under way")
        check(await ann.call("shop.echo", {"text": "x"}), "too_many_calls")
        response = await refusal_of(hub)
        assert (response.status_code, response.json()["title"]) == (429, "Too many calls at once")
        assert await answers(bob)
        ann.hang_up()
        await asyncio.gather(*slow, return_exceptions=True)
        await eventually(lambda: answers(ann), "there is room again")


def are_several(hub: InProcess) -> bool:
    return hub.running.hub.tenants.are_several


async def test_tenants_are_several_before_they_call_however_they_are_known(tmp_path: Path) -> None:
    ann, ben, eve = (Known(name, tenant, Grants(("*",))) for name, tenant in (("a", "x"), ("b", "x"), ("c", "y")))
    async with hub_of(tmp_path, {}) as hub:
        hub.running.configure_tenants([ann, ben])
        assert not are_several(hub)
        hub.running.configure_tenants([ann, eve])
        assert are_several(hub)
    corp = {"issuer": "https://login.example", "audience": "hub", "allow": ["*"], "tenant_claim": "org"}
    async with hub_of(tmp_path, {}, issuers={"corp": corp}) as hub:
        assert are_several(hub)
