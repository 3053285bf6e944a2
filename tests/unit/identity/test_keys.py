"""From headers to a caller."""

from __future__ import annotations

import hashlib
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.frontends.http.request_cycle import join_headers
from isthmus.identity.keys import LIFETIME_SECONDS, AccessTokens, KeyRing, bound_of, credential_of, digest_of, parse_key
from isthmus.model.callers import Caller, Grants, Unprovable

KEY = "k3y-of-the-planner-0123"
PLANNER = Caller("planner", "default", Grants(("*",)))
READER = Caller("reader", "default", Grants(("files.*",)))


def test_a_key_leads_to_its_caller_as_text_or_bytes() -> None:
    ring = KeyRing([(digest_of(KEY), PLANNER), (digest_of("another-key-0123456789"), READER)])
    assert ring.caller_of(KEY) is PLANNER
    assert ring.caller_of(KEY.encode()) is PLANNER
    assert ring.caller_of(b"another-key-0123456789") is READER


def test_a_short_key_opens_nothing_though_its_digest_is_known() -> None:
    """A digest does not reveal the length of its key."""
    keys = ("changeme", "a" * 15, "a" * 16)
    ring = KeyRing([(parse_key(f"sha256:{digest_of(key).hex()}"), PLANNER) for key in keys])
    assert [ring.caller_of(key) for key in (*keys, b"changeme")] == [None, None, PLANNER, None]


@given(st.one_of(st.text(), st.binary()))
def test_no_other_key_leads_anywhere(key: str | bytes) -> None:
    assert KeyRing([(digest_of(KEY), PLANNER)]).caller_of(key) is None


def test_the_digest_itself_opens_nothing() -> None:
    ring = KeyRing([(digest_of(KEY), PLANNER)])
    assert ring.caller_of(digest_of(KEY)) is None
    assert ring.caller_of(f"sha256:{digest_of(KEY).hex()}") is None


def test_one_key_cannot_belong_to_two() -> None:
    with pytest.raises(ValueError, match="two callers have the same key"):
        KeyRing([(digest_of(KEY), PLANNER), (digest_of(KEY), READER)])


def test_a_configured_digest_stands_for_its_key() -> None:
    assert parse_key(f"sha256:{hashlib.sha256(KEY.encode()).hexdigest().upper()}") == parse_key(KEY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "key must not be empty"),
        ("fifteen-letters", "key must have 16 characters or more, not 15"),
        ("two words", "key must be printable ASCII without spaces (value hidden)"),
        ("schlüssel", "key must be printable ASCII without spaces (value hidden)"),
        ("sha256:abc", "key must have 64 hex digits after sha256: (value hidden)"),
        ("SHA256:" + "0" * 64, "key must have 64 hex digits after sha256: (value hidden)"),
    ],
)
def test_a_key_that_is_too_short_or_cannot_be_sent_is_refused_without_being_quoted(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="key must") as refused:
        parse_key(text)
    assert str(refused.value) == message


def test_a_key_is_good_until_it_expires() -> None:
    now = [100.0]
    keys = [(digest_of(KEY), PLANNER), (digest_of("other"), READER)]
    ring = KeyRing(keys, {digest_of(KEY): 200.0}, lambda: now[0])
    assert (ring.caller_of(KEY), ring.callers()) == (PLANNER, frozenset({PLANNER, READER}))
    now[0] = 200.0
    assert (ring.caller_of(KEY), ring.callers()) == (None, frozenset({READER}))
    assert ring.holder(digest_of("other")) is READER


@pytest.mark.parametrize("text", ["changeme-changeme", "your-api-key-goes-here", "a" * 16])
def test_a_key_is_tried_for_its_length_and_nothing_else(text: str) -> None:
    assert parse_key(text) == digest_of(text)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], None),
        ([(b"host", b"hub")], None),
        ([(b"authorization", b"Bearer abc")], b"abc"),
        ([(b"authorization", b"bEARER   abc ")], b"abc"),
        ([(b"authorization", b"Bearer  abc")], b"abc"),
        ([(b"authorization", b"Bearer abc def")], None),
        ([(b"x-api-key", b" abc ")], b"abc"),
        ([(b"authorization", b"Bearer abc"), (b"x-api-key", b"abc")], b"abc"),
        ([(b"authorization", b"Bearer abc"), (b"x-api-key", b"def")], None),
        ([(b"authorization", b"Bearer abc"), (b"authorization", b"Bearer abc")], None),
        ([(b"x-api-key", b"abc"), (b"x-api-key", b"def")], None),
        ([(b"authorization", b"Basic abc")], None),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"def")], b"def"),
        ([(b"authorization", b"Bearer")], None),
        ([(b"authorization", b"Bearer "), (b"x-api-key", b"def")], None),
        ([(b"x-api-key", b"")], None),
        ([(b"authorization", b"abc")], None),
    ],
)
def test_a_request_with_several_keys_has_no_credential(headers: list[tuple[bytes, bytes]], key: bytes | None) -> None:
    assert credential_of(join_headers(headers)) == key


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ([(b"authorization", b"DPoP a.b.c"), (b"dpop", b"p")], (b"a.b.c", b"p")),
        ([(b"authorization", b"  dpop   a.b.c "), (b"dpop", b"p")], (b"a.b.c", b"p")),
        ([(b"authorization", b"DPoP a.b.c")], (b"a.b.c", b"")),
        ([(b"authorization", b"DPoP a.b.c"), (b"dpop", b"p"), (b"dpop", b"q")], (b"a.b.c", b"p, q")),
        ([(b"authorization", b"DPoP a.b.c"), (b"authorization", b"DPoP d.e.f")], None),
        ([(b"authorization", b"DPoP "), (b"dpop", b"p")], None),
        ([(b"authorization", b"Bearer a.b.c"), (b"dpop", b"p")], None),
        ([(b"authorization", b"DPoP a.b.c"), (b"x-api-key", KEY.encode())], None),
        ([(b"dpop", b"p")], None),
    ],
)
def test_a_token_that_is_bound_to_a_key_is_found_with_its_proof(
    headers: list[tuple[bytes, bytes]], shown: tuple[bytes, bytes] | None
) -> None:
    assert bound_of(join_headers(headers)) == shown


def test_a_key_beside_a_bound_token_is_no_credential() -> None:
    assert credential_of({b"authorization": b"DPoP a.b.c", b"x-api-key": KEY.encode()}) is None


SECRET = b"s" * 32
ALICE = Caller("alice", "acme", Grants(("*",)))
DIGEST = digest_of("a-key-of-alice-alone")


class Keys:
    """The keys that are good now, and the time."""

    def __init__(self) -> None:
        self.held: dict[bytes, Caller | Unprovable] = {DIGEST: ALICE}
        self.now = 1_700_000_000.0

    def tokens(self, secret: bytes = SECRET) -> AccessTokens:
        return AccessTokens(lambda: secret, self.held.get, lambda: self.now)


def test_a_token_is_its_keys_callers() -> None:
    keys = Keys()
    token = keys.tokens().make(DIGEST)

    assert re.fullmatch(r"ist1_[A-Za-z0-9_-]{91}", token)
    assert keys.tokens().caller_of(token.encode()) is ALICE
    assert keys.tokens().make(DIGEST) != token
    assert DIGEST.hex() not in token


def test_a_token_outlasts_the_process_that_made_it_and_not_its_hour() -> None:
    keys = Keys()
    token = keys.tokens().make(DIGEST).encode()
    later = keys.tokens()

    keys.now += LIFETIME_SECONDS - 1
    assert later.caller_of(token) is ALICE
    keys.now += 2
    assert later.caller_of(token) is None
    assert later.has_made(token), "who shows it does not guess"
    assert not later.has_made(token[:-8] + b"AAAAAAAA")


def test_a_token_ends_with_its_key() -> None:
    keys = Keys()
    tokens = keys.tokens()
    token = tokens.make(DIGEST).encode()

    keys.held[DIGEST] = Unprovable("nobody knows")
    assert tokens.caller_of(token) == Unprovable("nobody knows")
    del keys.held[DIGEST]
    assert tokens.caller_of(token) is None
    assert not tokens.knows(ALICE)


def test_a_token_with_any_change_is_invalid() -> None:
    keys = Keys()
    tokens = keys.tokens()
    token = tokens.make(DIGEST).encode()
    for position in range(len(token)):
        for change in (1, 2, 16):
            other = bytearray(token)
            other[position] ^= change
            assert tokens.caller_of(bytes(other)) is None


def test_a_token_has_one_spelling() -> None:
    """Its last letter has two bits more than are needed."""
    tokens = Keys().tokens()
    token = tokens.make(DIGEST)
    letters = string.ascii_letters + string.digits + "-_"
    assert [letter for letter in letters if tokens.has_made((token[:-1] + letter).encode())] == [token[-1]]


@pytest.mark.parametrize(
    "credential", [b"", b"ist1_", b"ist1_" + b"A" * 91, b"ist1_" + b"=" * 91, b"ist1_" + b"A" * 92]
)
def test_a_text_that_is_not_a_token_is_invalid(credential: bytes) -> None:
    assert Keys().tokens().caller_of(credential) is None


def test_a_token_under_another_secret_is_invalid() -> None:
    keys = Keys()
    assert keys.tokens(b"t" * 32).caller_of(keys.tokens().make(DIGEST).encode()) is None


def test_the_secret_is_not_asked_for_before_it_is_needed() -> None:
    keys = Keys()
    secrets = iter([SECRET])
    tokens = AccessTokens(lambda: next(secrets), keys.held.get, lambda: keys.now)
    tokens.caller_of(b"0123456789abcdef")
    assert next(iter([*secrets])) == SECRET, "not asked for by somebody's key"

    secrets = iter([SECRET])
    tokens.make(DIGEST)
    tokens.make(DIGEST)
    assert not [*secrets], "asked for once"
