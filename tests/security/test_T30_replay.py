"""T30: a captured message is sent again, and accepted again.

What a device or a server shows when it dials in is a token: it is valid for every holder, and so it has an end and
can be revoked, and travels by TLS; there is no greeting beside it that could be captured. There are no one-time tickets
to replay, and no webhooks come in: the hub only sends them, each with an id that stays when it is sent again and the
time of what it tells, so that who receives them can tell one that is old or was seen. What a caller brings back to
go on with a call (`requestState`) is used once: T08. A proof that somebody has the key of a token is good once, too:
`tests/unit/identity/test_proofs.py` and, at every endpoint, `tests/frontends/test_dpop.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from isthmus.core.tasks.record import PushRecipient
from isthmus.frontends.a2a.push_notifications import ID_HEADER, TIME_HEADER, write_letters
from isthmus.frontends.relay.http import read_query, read_token
from isthmus.identity.keys import credential_of
from isthmus.identity.relay_tokens import EXPIRED, FORGED, REVOKED, RelayTokens, TokenSettings
from isthmus.model.relay import Claim
from tests.relay.tokens import KEY
from tests.security.endpoints import ENDPOINTS
from tests.unit.frontends.a2a.test_push_notifications import DONE, RECORD

MINUTE = 60.0


class Relay:
    """The relay's tokens, with a clock and a list of what was revoked."""

    def __init__(self) -> None:
        self.now = 1_900_000_000.0
        self.revoked: set[str] = set()
        self.tokens = RelayTokens(KEY, TokenSettings(), lambda: self.now, self.revoked.__contains__)

    def shake(self, request: Request) -> Claim | str:
        """What a captured request for a socket comes to now, as the frontend reads it."""
        query = read_query(request[1])
        assert isinstance(query, dict)
        token = read_token(request[0], query)
        assert isinstance(token, str)
        return self.tokens.read(token)


Request: TypeAlias = tuple[dict[bytes, bytes], bytes]
"""The headers of a request, and the query of its address."""

WAYS: dict[str, Callable[[bytes], Request]] = {
    "header": lambda token: ({b"authorization": b"Bearer " + token}, b""),
    "subprotocol": lambda token: ({b"sec-websocket-protocol": b"isthmus.bearer." + token}, b""),
    "address": lambda token: ({}, b"token=" + token),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_captured_handshake_expires_with_its_token(way: str) -> None:
    relay = Relay()
    token = relay.tokens.mint(Claim("kitchen", role="server", expires_at=relay.now + 5 * MINUTE))
    captured = WAYS[way](token.encode())
    claim = relay.shake(captured)
    assert isinstance(claim, Claim)
    assert claim.agent == "kitchen"
    relay.now += 1
    assert relay.shake(captured) == claim
    relay.now += 10 * MINUTE
    assert relay.shake(captured) == EXPIRED
    assert not relay.tokens.is_valid(claim), "what it had opened is cut"


def test_nor_after_it_was_revoked() -> None:
    relay = Relay()
    captured = WAYS["header"](relay.tokens.mint(Claim("kitchen")).encode())
    claim = relay.shake(captured)
    assert isinstance(claim, Claim)
    relay.revoked.add(claim.id)
    relay.now += 1
    assert relay.shake(captured) == REVOKED
    assert not relay.tokens.is_valid(claim)


def test_a_token_cannot_be_given_a_longer_life_or_another_end() -> None:
    relay = Relay()
    short = relay.tokens.mint(Claim("kitchen", role="device", expires_at=relay.now + 1))
    long = relay.tokens.mint(Claim("kitchen", role="server"))
    (_, _, signature), (_, payload, _) = short.split("."), long.split(".")
    assert relay.tokens.read(f"isr1.{payload}.{signature}") == FORGED
    for at in range(len("isr1."), len(short)):
        changed = short[:at] + ("A" if short[at] != "A" else "B") + short[at + 1 :]
        assert isinstance(relay.tokens.read(changed), str), at


def test_outgoing_tokens_differ_from_earlier_ones() -> None:
    """The id is that of the change, whenever it is sent, and the time is that of what is told."""
    recipient = PushRecipient("i", "https://a.example/hook", "1.0", "a-token", "", "")
    first = write_letters(recipient, DONE, "mark-of-this-change")
    again = write_letters(recipient, DONE, "mark-of-this-change")
    assert [(letter.headers, letter.body) for letter in first] == [(letter.headers, letter.body) for letter in again]
    ids = [letter.headers[ID_HEADER] for letter in first]
    assert len(set(ids)) == len(ids)
    later = write_letters(recipient, replace(DONE, version=3), "mark-of-the-next-change")
    assert not set(ids) & {letter.headers[ID_HEADER] for letter in later}
    (begun,) = write_letters(recipient, RECORD, "mark")
    assert begun.headers[TIME_HEADER] == "1970-01-01T00:00:01.000+00:00"
    assert {letter.headers[TIME_HEADER] for letter in first} == {"1970-01-01T00:00:02.000+00:00"}


def test_no_webhook_comes_in() -> None:
    paths = {endpoint.path for endpoint in ENDPOINTS.values()}
    assert not [path for path in paths if "hook" in path or "callback" in path or "notif" in path]


@pytest.mark.parametrize("scheme", [b"DPoP", b"Signature", b"Ticket", b"Digest", b"Negotiate"])
def test_no_scheme_is_half_understood(scheme: bytes) -> None:
    """A proof of freshness is useless if no code checks it."""
    assert credential_of({b"authorization": scheme + b" abc", b"dpop": b"proof"}) is None
