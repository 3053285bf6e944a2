"""One POST behind the guard, and a receipt for it, whatever the other side does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.core.ports import PushReceipt
from isthmus.transport import push_client as module
from isthmus.transport.egress import DialAddress, Egress, HttpOrigin
from isthmus.transport.push_client import ANSWER_BYTES_MAX, CLIENTS_MAX, PushClient, read_retry_after
from tests.unit.transport.doubles import OK, PATIENCE_SECONDS, Peer, Server
from tests.unit.transport.test_egress import Names

NOW = 1_700_000_000.0


@asynccontextmanager
async def couriers(
    *, is_allowed: Callable[[str], bool] = lambda _: True, egress: Egress | None = None
) -> AsyncIterator[PushClient]:
    """A courier; by default every address was listed by the operator."""
    background = BackgroundTasks()
    made = PushClient(egress or Egress(), background, is_allowed)
    yield made
    await made.aclose()
    await background.aclose()


@asynccontextmanager
async def carrying(
    courier: PushClient, server: Server, url: str = ""
) -> AsyncIterator[tuple[Peer, asyncio.Future[PushReceipt]]]:
    """A POST that has arrived and waits for its answer."""
    carried = asyncio.ensure_future(
        courier.post(url or f"{server.origin}/hook?a=b", {"x-token": "t"}, b"{}", is_trusted=True)
    )
    peer = await server.accept()
    await peer.request()
    async with asyncio.timeout(PATIENCE_SECONDS):
        yield peer, carried


async def test_the_push_client_posts_and_returns_the_status(server: Server) -> None:
    async with couriers() as courier:
        carried = asyncio.ensure_future(
            courier.post(f"{server.origin}/hook?a=b", {"x-token": "t"}, b"{}", is_trusted=True)
        )
        peer = await server.accept()
        head, _, body = (await peer.request()).partition(b"\r\n\r\n")
        assert head.startswith(b"POST /hook?a=b HTTP/1.1\r\n")
        assert b"\r\nx-token: t\r\n" in head
        assert body == b"{}"
        await peer.say(OK)
        assert await carried == PushReceipt(200)


async def test_the_next_one_to_the_same_origin_goes_by_the_same_connection(server: Server) -> None:
    async with couriers() as courier:
        async with carrying(courier, server) as (peer, carried):
            await peer.say(OK)
            await carried
        again = asyncio.ensure_future(courier.post(f"{server.origin}/other", {}, b"", is_trusted=True))
        assert (await peer.request()).startswith(b"POST /other ")
        await peer.say(OK)
        assert await again == PushReceipt(200)
        assert server.accepted == 1


@pytest.mark.parametrize(
    ("answer", "receipt"),
    [
        (b"503 Busy\r\nretry-after: 7", PushReceipt(503, retry_after=7.0)),
        (b"307 Elsewhere\r\nlocation: http://169.254.169.254/", PushReceipt(307)),
        (b"410 Gone", PushReceipt(410)),
    ],
)
async def test_the_response_is_reported_and_nothing_follows_from_it(
    server: Server, answer: bytes, receipt: PushReceipt
) -> None:
    async with couriers() as courier, carrying(courier, server) as (peer, carried):
        await peer.say(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % answer)
        assert await carried == receipt
        assert server.accepted == 1


async def test_an_answer_without_an_end_is_not_read_to_it(server: Server) -> None:
    async with couriers() as courier, carrying(courier, server) as (peer, carried):
        await peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + b"x" * (ANSWER_BYTES_MAX + 1))
        assert await carried == PushReceipt(200)
        await peer.rest()


async def test_a_silent_receiver_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CARRY_SECONDS", 0.05)
    async with couriers() as courier:
        receipt = await courier.post(f"{server.origin}/", {}, b"", is_trusted=True)
        assert (receipt.status, receipt.is_refused) == (None, False)
        assert "no whole answer within" in receipt.reason
        await (await server.accept()).rest()


async def test_a_receiver_that_hangs_up_has_not_accepted_unless_it_said_so(server: Server) -> None:
    async with couriers() as courier:
        async with carrying(courier, server) as (peer, carried):
            peer.close()
            assert (await carried).status is None
        async with carrying(courier, server) as (peer, carried):
            await peer.say(b"HTTP/1.1 202 Accepted\r\ncontent-length: 9\r\n\r\n")
            peer.close()
            assert (await carried).status == 202


async def test_an_absent_receiver_is_reported_as_such() -> None:
    async with Server() as gone:
        pass
    async with couriers() as courier:
        receipt = await courier.post(f"{gone.origin}/", {}, b"", is_trusted=True)
        assert (receipt.status, receipt.is_refused) == (None, False)
        assert "connection refused" in receipt.reason


# -- where it does not go ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "http://localhost/", "http://169.254.169.254/", "ftp://a.example/", "http://a b/"]
)
async def test_where_nothing_may_be_sent_nothing_is(url: str) -> None:
    async with couriers(is_allowed=lambda _: False) as courier:
        reason = await courier.refusal(url, is_trusted=True)
        assert reason
        assert await courier.post(url, {}, b"", is_trusted=True) == PushReceipt(reason=reason, is_refused=True)


async def test_only_addresses_listed_by_the_operator_may_be_private(server: Server) -> None:
    listed = f"{server.origin}/hook?a=b"
    async with couriers(is_allowed=lambda url: url == listed) as courier:
        assert await courier.refusal(listed, is_trusted=True) is None
        assert "loopback" in (await courier.refusal(f"{server.origin}/other", is_trusted=True) or "")
        assert "loopback" in (await courier.refusal(listed, is_trusted=False) or "")
        assert (await courier.post(listed, {}, b"", is_trusted=False)).is_refused
        async with carrying(courier, server, listed) as (peer, carried):
            await peer.say(OK)
            assert await carried == PushReceipt(200)


async def test_a_refused_private_address_names_the_setting_that_permits_it() -> None:
    setting = '[targets] allow = ["http://127.0.0.1:9000"]'
    async with couriers(is_allowed=lambda _: False) as courier:
        response = await courier.refusal("http://127.0.0.1:9000/hook", is_trusted=True)
        why = "127.0.0.1 may not be dialled: its address is loopback"
        assert response == f"{why}; to permit it, the operator sets {setting}"
        response = await courier.refusal("http://127.0.0.1:9000/hook", is_trusted=False) or ""
        assert response.endswith(f"{setting}, and targets = true for the caller")
        assert "allow" not in (await courier.refusal("ftp://a.example/", is_trusted=True) or "")


async def test_a_name_that_leads_elsewhere_by_the_time_it_is_dialled_leads_nowhere(server: Server) -> None:
    names = Names(["93.184.216.34"], ["127.0.0.1"])
    url = f"http://rebinding.example:{server.origin.port}/"
    async with couriers(is_allowed=lambda _: False, egress=Egress(resolver=names)) as courier:
        receipt = await courier.post(url, {}, b"", is_trusted=True)
        assert "may not be dialled" in receipt.reason
        assert (await courier.post(url, {}, b"", is_trusted=True)).is_refused
        assert server.accepted == 0


async def test_a_name_without_an_address_may_have_one_later() -> None:
    async def unknown(origin: HttpOrigin) -> list[DialAddress]:
        raise OSError(f"nobody knows {origin.host}")

    async with couriers(is_allowed=lambda _: False, egress=Egress(resolver=unknown)) as courier:
        assert await courier.refusal("https://later.example/", is_trusted=True) is None
        receipt = await courier.post("https://later.example/", {}, b"", is_trusted=True)
        assert (receipt.status, receipt.is_refused) == (None, False)


async def test_header_values_with_line_breaks_are_not_sent(server: Server) -> None:
    async with couriers() as courier:
        receipt = await courier.post(f"{server.origin}/", {"x-token": "a\r\nx-evil: b"}, b"", is_trusted=True)
        assert receipt.is_refused
        assert "evil" not in receipt.reason
        assert server.accepted == 0


async def test_clients_kept_per_origin_are_bounded() -> None:
    async with couriers() as courier:
        for port in range(1, CLIENTS_MAX + 10):
            courier._client(HttpOrigin("http", "127.0.0.1", port), is_configured=True)
        assert len(courier._clients) == CLIENTS_MAX


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("9" * 400, 999_999_999.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2000 22:13:50 GMT", 0.0),
        ("", None),
        ("-1", None),
        ("soon", None),
        ("٣", None),
        ("Tue, 99 Nov 2023 99:99:99 GMT", None),
    ],
)
def test_when_to_come_again_is_said_in_two_ways(text: str, seconds: float | None) -> None:
    assert read_retry_after(text, NOW) == seconds
