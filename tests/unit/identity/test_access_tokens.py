"""A token of the hub stands for a key: it is good for an hour, as long as the key is, and cannot be made by others."""

from __future__ import annotations

import re
import string

import pytest

from isthmus.identity.access_tokens import LIFETIME_SECONDS, AccessTokens
from isthmus.identity.keys import digest_of
from isthmus.model.callers import Caller, Grants, Unprovable

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


def test_a_token_with_anything_changed_is_nobodys() -> None:
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
def test_what_is_no_token_is_nobodys(credential: bytes) -> None:
    assert Keys().tokens().caller_of(credential) is None


def test_a_token_under_another_secret_is_nobodys() -> None:
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
