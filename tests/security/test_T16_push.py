"""T16: a caller that names a push address makes the hub post into its network, or leak a credential.

The answer: an address is looked at when it is named, by whichever way and in whichever generation, and again each time
that something is sent there, which goes to the address that was looked at; no redirect is followed; an attempt takes
ten seconds at most, and after five the delivery is parked: kept as it is, and not tried any more. Nobody sees, changes
or adds to another's task.

Shown elsewhere: all vectors and all ways to name one, and names that change their mind, in `test_ssrf_matrix.py`; that
a redirect ends it and that B cannot attach to A's task, in `tests/frontends/test_a2a_push.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.core.ports import PushReceipt
from isthmus.core.tasks.push_delivery import ATTEMPTS_MAX, delivery_of
from isthmus.transport import push_client as module
from isthmus.transport.egress import DialAddress, Egress, HttpOrigin
from isthmus.transport.http_client import HttpClient
from isthmus.transport.push_client import PushClient
from tests.frontends.receiver import Receiver
from tests.security.rebinding import PUBLIC, Names
from tests.security.sink import Sink, dialled
from tests.unit.core.tasks.test_push_outbox import BUSY, sending


@asynccontextmanager
async def couriers(egress: Egress) -> AsyncIterator[PushClient]:
    """A courier to whom nothing private is allowed."""
    background = BackgroundTasks("courier")
    courier = PushClient(egress, background, lambda _: False)
    yield courier
    await courier.aclose()
    await background.aclose()


async def test_pushes_go_to_the_checked_address() -> None:
    """Named and looked at, then sent: each time the name leads elsewhere, and never in."""
    with Sink() as sink, dialled() as whom:
        for turns in ([[PUBLIC], ["127.0.0.1"]], [["127.0.0.1"], [PUBLIC]], [[PUBLIC], [PUBLIC], ["::1"], [PUBLIC]]):
            url = f"http://hook.example:{sink.port}/"
            async with couriers(Egress(resolver=Names({"hook.example": turns}))) as courier:
                await courier.refusal(url, is_trusted=True)
                for _ in turns:
                    await courier.post(url, {"authorization": "Bearer t"}, b"{}", is_trusted=True)
        assert set(whom) == {f"{PUBLIC}:{sink.port}"}


async def test_an_attempt_takes_no_more_than_ten_seconds_with_the_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.CARRY_SECONDS == 10.0
    monkeypatch.setattr(module, "CARRY_SECONDS", 0.2)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)

    async def slow(origin: HttpOrigin) -> list[DialAddress]:
        await asyncio.Event().wait()
        return []

    left: list[float] = []

    async def post(courier: PushClient, client: HttpClient, head: bytes, body: bytes, within: float) -> PushReceipt:
        left.append(within)
        return await send(courier, client, head, body, within)

    send = PushClient._post
    monkeypatch.setattr(PushClient, "_post", post)
    async with couriers(Egress(resolver=slow)) as courier:
        receipt = await courier.post("http://hook.example/", {}, b"{}", is_trusted=True)
    assert receipt == PushReceipt(None, "no whole answer within 0.2 s")
    assert left[0] <= 0.1, "the name server's time is part of it, not on top"


async def test_after_five_attempts_a_delivery_is_parked() -> None:
    async with sending() as office:
        office.post.receipts["http://a/"].extend([BUSY] * 99)
        await office.begin("http://a/")
        await office.until_carried(5)
        [(document, delivery)] = await office.kept()
        assert (document.state, len(delivery.attempts), ATTEMPTS_MAX) == ("failed", 5, 5)
        assert delivery_of(document) == delivery, "what became of each attempt is kept"


async def test_a_recipient_that_the_operator_removed_gets_no_more_pushes() -> None:
    """Not by the connection that is still there either."""
    listed = True
    background = BackgroundTasks("courier")
    courier = PushClient(Egress(), background, lambda _: listed)
    async with Receiver() as receiver:
        for path in ("/one", "/two"):
            assert (await courier.post(receiver.url(path), {}, b"{}", is_trusted=True)).status == 200
        listed = False
        refused = await courier.post(receiver.url("/three"), {}, b"{}", is_trusted=True)
        assert (refused.is_refused, [each.path for each in receiver.posted]) == (True, ["/one", "/two"])
        await courier.aclose()
    await background.aclose()
