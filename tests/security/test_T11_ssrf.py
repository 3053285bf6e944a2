"""T11: a caller names an address of the hub's own network, and the hub goes there for it.

The answer: what a name resolves to is held against a deny table of our own, when it is registered and again when it is
dialled, and the verdict comes before any packet. So an open port, a closed one and one behind a firewall are told in
the same words and by the same path, and no timed test is needed: nobody was asked. Names of private networks are not
even looked up. Every place that takes an address: `test_ssrf_matrix.py`.
"""

from __future__ import annotations

import asyncio

import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.transport.egress import Egress, EgressRefused, parse_url
from isthmus.transport.push_client import PushClient
from tests.security.rebinding import PUBLIC, Names
from tests.security.sink import Sink, dialled
from tests.security.vectors import NETWORKS

INTERNAL = [
    "metadata.google.internal",
    "metadata.google.internal.",
    "a.b.internal",
    "localhost",
    "x.localhost",
    "nas.local",
]


async def refusals_of(egress: Egress, url: str) -> tuple[str, str]:
    """What is said when an address is registered, and when it is dialled."""
    origin, _ = parse_url(url)
    registered = await egress.refusal(origin, within=5.0)
    with pytest.raises(EgressRefused) as refused:
        await egress.dial(origin, asyncio.Protocol, is_configured=False, within=5.0)
    assert registered is not None
    return registered, refused.value.reason


@pytest.mark.parametrize("address", NETWORKS)
async def test_an_address_that_is_not_public_is_refused_when_registered_and_when_dialled(address: str) -> None:
    names = Names({"named.example": [[address]]})
    with dialled() as whom:
        for host in (address, "named.example"):
            registered, at_dial = await refusals_of(Egress(resolver=names), f"http://{host}:80/")
            assert registered == at_dial
    assert whom == []


@pytest.mark.parametrize("name", INTERNAL)
async def test_a_name_of_a_private_network_is_not_even_looked_up(name: str) -> None:
    names = Names({name.rstrip("."): [[PUBLIC]]})
    with dialled() as whom:
        registered, at_dial = await refusals_of(Egress(resolver=names), f"http://{name}/")
    assert registered == at_dial == "its name belongs to a private network"
    assert (whom, names.asked) == ([], {})


async def test_errors_do_not_distinguish_an_open_port_from_a_closed_one(deaf_port: int) -> None:
    background = BackgroundTasks("courier")
    courier = PushClient(Egress(), background, lambda _: False)
    with Sink() as sink, dialled() as whom:
        texts = {
            (await courier.post(f"http://127.0.0.1:{port}/", {}, b"", is_trusted=True)).reason.replace(f":{port}", "")
            for port in (sink.port, deaf_port, 9)
        }
        texts |= {str(await refusals_of(Egress(), f"http://127.0.0.1:{port}/")) for port in (sink.port, deaf_port, 9)}
    assert len(texts) == 2, "one text for each of the two who say it"
    assert whom == []
    await courier.aclose()
    await background.aclose()
