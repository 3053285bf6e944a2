"""Challenges name the authorization server, and the error of the rejected token."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from isthmus.frontends.http.auth import Authenticator, Denied, OriginGuard
from isthmus.frontends.oauth.challenges import Challenges, RejectedCredential
from isthmus.model.callers import FrontendName

BASE = "https://hub.example"


def refused(
    shown: RejectedCredential | None, frontend: FrontendName = "mcp", base: str | None = BASE
) -> tuple[int, str]:
    auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), lambda _: None)
    auth.refuse = Challenges(lambda _: base, lambda _: shown).refuse
    denied = auth.admit({b"host": b"localhost"}, frontend)
    assert isinstance(denied, Denied)
    [(name, value)] = denied.headers
    assert name == b"www-authenticate"
    return denied.status, value.decode()


@pytest.mark.parametrize(("frontend", "place"), [("mcp", "/mcp"), ("sse", "/sse"), ("a2a", ""), ("rest", "")])
def test_a_stranger_learns_where_to_ask(frontend: FrontendName, place: str) -> None:
    metadata = f"{BASE}/.well-known/oauth-protected-resource{place}"
    assert refused(None, frontend) == (401, f'Bearer realm="isthmus", resource_metadata="{metadata}"')


def test_where_there_is_nothing_to_be_found_nothing_is_named() -> None:
    assert refused(None, base=None) == (401, 'Bearer realm="isthmus"')


def test_an_unknown_credential_gets_an_error() -> None:
    status, said = refused(RejectedCredential())
    assert status == 401
    assert said.endswith('/mcp", error="invalid_token"')
    status, said = refused(RejectedCredential("it has expired"))
    assert said.endswith('error="invalid_token", error_description="it has expired"')


@pytest.mark.parametrize(
    ("shown", "is_guess"),
    [
        (None, False),
        (RejectedCredential(), True),
        (RejectedCredential("forged"), True),
        (RejectedCredential("it has expired", is_genuine=True), False),
    ],
)
def test_only_a_never_valid_credential_is_a_guess(shown: RejectedCredential | None, *, is_guess: bool) -> None:
    assert Challenges(lambda _: None, lambda _: shown).refuse({}, "mcp").is_guess == is_guess


def test_a_token_that_allows_nothing_is_answered_with_the_needed_scopes() -> None:
    status, said = refused(RejectedCredential("none allows anything", is_scope_missing=True, scopes=("a", "b")))
    assert status == 403
    assert said.endswith('error="insufficient_scope", error_description="none allows anything", scope="a b"')


def test_nothing_that_is_said_can_leave_its_quotes() -> None:
    _, said = refused(RejectedCredential('a"b\\c\r\nx-evil: 1\u00e9'))
    assert said.endswith('error_description="a?b?c??x-evil: 1?"')


def test_a_gate_by_itself_asks_for_a_key() -> None:
    auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), lambda _: None)
    denied = auth.admit({b"host": b"localhost"}, "mcp")
    assert isinstance(denied, Denied)
    assert denied.headers == ((b"www-authenticate", b'Bearer realm="isthmus"'),)


# -- tokens that are bound to a key (RFC 9449) -----------------------------------------------------------------------


def refused_bound(shown: RejectedCredential | None) -> Denied:
    return Challenges(lambda _: BASE, lambda _: shown, lambda: ("ES256", "EdDSA")).refuse({}, "mcp")


@pytest.mark.parametrize("shown", [None, RejectedCredential(), RejectedCredential("it has expired", is_genuine=True)])
def test_both_ways_to_show_a_token_are_offered_and_bearer_comes_first(shown: RejectedCredential | None) -> None:
    (_, bearer), bound = refused_bound(shown).headers
    assert bearer.startswith(b"Bearer ")
    assert bound == (b"www-authenticate", b'DPoP algs="ES256 EdDSA"')


def test_the_challenge_for_a_bound_token_names_its_error() -> None:
    denied = refused_bound(RejectedCredential("forged", is_bound=True))
    ((_, said),) = denied.headers
    assert (denied.status, denied.is_guess) == (401, True)
    assert said.startswith(b"DPoP realm=")
    assert said.endswith(b'algs="ES256 EdDSA", error="invalid_token", error_description="forged"')
    scope = refused_bound(
        RejectedCredential("none allows anything", is_scope_missing=True, is_genuine=True, is_bound=True)
    )
    assert scope.status == 403
    assert scope.headers[0][1].startswith(b"DPoP ")


def test_a_wrong_proof_is_answered_with_an_error_and_the_missing_nonce() -> None:
    wrong = RejectedCredential("it was used already", is_genuine=True, is_bound=True, is_proof_wrong=True)
    denied = refused_bound(wrong)
    ((_, said),) = denied.headers
    assert (denied.status, denied.is_guess) == (401, False)
    assert b'error="invalid_dpop_proof", error_description="it was used already"' in said
    lacking = refused_bound(replace(wrong, nonce="n1"))
    assert b'error="use_dpop_nonce"' in lacking.headers[0][1]
    assert lacking.headers[1] == (b"dpop-nonce", b"n1")
