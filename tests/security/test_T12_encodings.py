"""T12: an address is spelt so that a check reads it differently from the dialler.

The answer: nothing is concluded from how a host is spelt. What the system makes of it is checked, against a table that
knows every form of IPv6 with an IPv4 address inside, and the checked address itself is dialled. What two parsers could
read in two ways is no address at all: spaces, backslashes, control characters, a user name, zones, ports 0 and 65536.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as some

from isthmus.transport.egress import DialFailed, Egress, EgressRefused, parse_url, refusal_of
from isthmus.upstream.targets.settings import read_address
from tests.security.rebinding import Names
from tests.security.sink import Sink, dialled
from tests.security.vectors import SIXES, SPELLINGS, URLS

NO_ADDRESS = "127.0.0.1."
"""Not even the system reads it: digits with a dot behind are a name that nobody has."""


async def verdict(url: str) -> str:
    """How it ends to register an address and to dial it."""
    egress = Egress(resolver=Names({}))
    try:
        origin, _ = parse_url(url)
    except ValueError:
        return "no address"
    registered = await egress.refusal(origin, within=5.0)
    try:
        await egress.dial(origin, asyncio.Protocol, is_configured=False, within=5.0)
    except EgressRefused as refused:
        return "refused" if refused.reason == registered else "registered"
    except DialFailed:
        return "nobody"
    return "dialled"


@pytest.mark.parametrize("host", [*SPELLINGS, *SIXES])
async def test_however_it_is_spelt_it_is_refused(host: str) -> None:
    with Sink() as sink, dialled() as whom:
        found = await verdict(f"http://{host}:{sink.port}/")
    assert found == ("nobody" if host == NO_ADDRESS else "refused")
    assert whom == []


@pytest.mark.parametrize("url", URLS)
async def test_ambiguous_addresses_are_never_dialled(url: str) -> None:
    with Sink() as sink, dialled() as whom:
        assert await verdict(url.format(port=sink.port)) != "dialled"
    assert whom == []


@pytest.mark.parametrize("host", SPELLINGS)
def test_a_target_is_written_as_everybody_reads_it_or_not_at_all(host: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has its own sentence
        read_address(f"http://{host}/")


FORMS = {
    "mapped": "::ffff:{0:x}:{1:x}",
    "translated": "::ffff:0:{0:x}:{1:x}",
    "compatible": "::{0:x}:{1:x}",
    "NAT64": "64:ff9b::{0:x}:{1:x}",
    "local NAT64": "64:ff9b:1::{0:x}:{1:x}",
    "6to4": "2002:{0:x}:{1:x}::1",
    "Teredo": "2001:0:{0:x}:{1:x}::1",
}


@given(some.integers(0, 2**32 - 1), some.sampled_from(sorted(FORMS)))
def test_no_form_of_ipv6_hides_an_address_that_is_denied(number: int, form: str) -> None:
    inside = ipaddress.IPv4Address(number)
    outside = FORMS[form].format(number >> 16, number & 0xFFFF)
    if form == "mapped":
        assert (refusal_of(outside) is None) == (refusal_of(str(inside)) is None)
    else:
        assert refusal_of(outside) is not None, f"{outside} has {inside} inside"


@given(some.integers(0, 2**32 - 1), some.sampled_from(["{0}", "{0:#x}", "0{0:o}", "{1}.{2}", "{3:#x}.{4:#o}"]))
def test_our_verdict_matches_the_systems_reading_of_the_address(number: int, form: str) -> None:
    """Compared with `getaddrinfo` and the table, whatever a host is spelt like."""
    low, second = number & 0xFFFFFF, (number >> 16) & 0xFF
    host = form.format(number, number >> 24, low, number >> 24, low).replace("0o", "0")
    assert second <= 255
    try:
        read = socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4][0]
    except OSError:
        return
    origin, _ = parse_url(f"http://{host}/")
    found = asyncio.run(Egress(resolver=Names({})).refusal(origin, within=5.0))
    assert found == refusal_of(str(read))
