"""T13: a server, or its impostor, redirects the hub into its own network, or to where its credentials leak.

The answer: the client itself follows nothing. While a link is made, 307 and 308 to an address at the same origin are
believed, twice at most (and 301 and 302 of the earlier transport's stream, which is a GET); any other is told to the
operator as what it is, and nothing is sent there. `Refresh` and `Link` mean nothing. Cards, documents of logins and
pushes are never looked for elsewhere. All vectors: `test_ssrf_matrix.py`; recipients of pushes:
`tests/frontends/test_a2a_push.py`; targets of callers: `tests/frontends/test_a2a_targets.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from isthmus.app.links import Links
from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import ServerTasks
from isthmus.credentials.fetch import Fetcher
from isthmus.model.fault_table import Fault
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.server_settings import AgentSettings, Carrier, HttpSettings, Reach, ServerSettings
from tests.faults.scripted import ReceivedRequest, Scripted, reply
from tests.security.sink import Sink, dialled

SECRET = "Bearer secret-7f3a9c1e"
HEADERS = {"authorization": SECRET}
STATUSES = (301, 302, 303, 307, 308)
HOPS = 30


class Away(Scripted):
    """Sends everybody to one place, by header and by `Refresh`."""

    def __init__(self, status: int, place: str) -> None:
        super().__init__()
        self._status = status
        self._place = place

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        headers = {"location": self._place, "refresh": f"0; url={self._place}", "link": f"<{self._place}>; rel=next"}
        out.write(reply(None, status=self._status, headers=headers))


class Chain(Scripted):
    """Sends everybody one step further, at the same origin."""

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        step = int(request.path.rpartition("/")[2] or 0)
        if step >= HOPS:
            await super().on(request, out)
        else:
            out.write(reply(None, status=307, headers={"location": f"/step/{step + 1}"}))


@asynccontextmanager
async def links() -> AsyncIterator[Links]:
    background = BackgroundTasks("links")
    yield Links(Limits(connect_seconds=2.0), {}, background, ServerTasks(lambda: 0.0))
    await background.aclose()


async def fails(made: Links, reach: Reach, carrier: Carrier) -> str:
    """Why a server cannot be connected to."""
    link = await made.connect(ServerSettings(ServerName("s"), reach), carrier)
    try:
        with pytest.raises((ConnectFailed, Fault)) as failed:
            await link.handshake("legacy")
    finally:
        await link.aclose()
    return str(failed.value)


def url_of(server: Scripted) -> str:
    return str(server.entry["url"])


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("carrier", ["http", "sse"])
async def test_no_redirect_leads_to_another_origin_or_takes_the_credentials_there(
    status: int, carrier: Carrier
) -> None:
    with Sink() as sink:
        places = [
            "http://169.254.169.254/latest/meta-data/",
            "file:///etc/passwd",
            f"http://127.0.0.1:{sink.port}/mcp",
            f"http://localhost:{sink.port}/mcp",
            f"//127.0.0.1:{sink.port}/mcp",
            f"https://127.0.0.1:{sink.port}/mcp",
        ]
        for place in places:
            async with links() as made, Away(status, place) as server:
                with dialled() as whom:
                    await fails(made, HttpSettings(url_of(server), HEADERS), carrier)
                assert set(whom) == {url_of(server).removeprefix("http://").removesuffix("/mcp")}
                assert all(request.headers["authorization"] == [SECRET] for request in server.heard)


@pytest.mark.parametrize("carrier", ["http", "sse"])
async def test_a_chain_is_not_followed_to_its_end(carrier: Carrier) -> None:
    async with links() as made, Chain() as server:
        assert "redirects in circles" in await fails(made, HttpSettings(url_of(server)[:-3] + "step/0"), carrier)
        assert {request.path for request in server.heard} == {"/step/0", "/step/1", "/step/2"}


async def test_a_card_is_where_it_is_said_to_be() -> None:
    with Sink() as sink:
        async with links() as made, Away(307, f"http://127.0.0.1:{sink.port}/") as server:
            await fails(made, AgentSettings(url_of(server), HEADERS), "auto")
            assert [request.path for request in server.heard] == ["/mcp/.well-known/agent-card.json"]


@pytest.mark.parametrize("status", STATUSES)
async def test_a_document_of_a_login_is_where_it_is_said_to_be(status: int) -> None:
    background = BackgroundTasks("fetches")
    with Sink() as sink:
        async with Away(status, f"http://127.0.0.1:{sink.port}/") as server:
            fetched = await Fetcher(Egress(), background, lambda _: True).get("it", url_of(server), HEADERS)
            assert (fetched.status, len(server.heard)) == (status, 1)
    await background.aclose()
