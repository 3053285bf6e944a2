"""Metadata documents and challenges name the hub, its issuers, and what is wrong with a token."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from isthmus.frontends.http.auth import Authenticator, Denied, OriginGuard
from isthmus.frontends.oauth.discovery import (
    RESOURCE_PATH,
    Challenges,
    OwnAddresses,
    RejectedCredential,
    TrustedIssuer,
    is_own_resource,
    place_in,
    resource_document,
    server_document,
)
from isthmus.model.callers import FrontendName

BASE = "https://hub.example"
CORP = TrustedIssuer("https://login.example", (BASE,), ("files:read",))


def test_a_published_address_is_the_only_one() -> None:
    addresses = OwnAddresses("https://hub.example/tools/", "127.0.0.1", 8765, ["other.example"])
    for host in (b"127.0.0.1:8765", b"other.example", b"evil.example"):
        assert addresses.base({b"host": host}) == "https://hub.example/tools"


@pytest.mark.parametrize(
    ("host", "called", "expected"),
    [
        ("127.0.0.1", b"127.0.0.1:8765", "http://127.0.0.1:8765"),
        ("127.0.0.1", b"LOCALHOST:8765", "http://localhost:8765"),
        ("127.0.0.1", b"[::1]:8765", "http://[::1]:8765"),
        ("127.0.0.1", b"localhost", "http://localhost:8765"),
        ("127.0.0.1", b"evil.example:8765", "http://localhost:8765"),
        ("127.0.0.1", b"hub.internal", "http://hub.internal"),
        ("127.0.0.1", b"Hub.internal:8765", "http://hub.internal:8765"),
        ("127.0.0.1", b"hub.internal:99", "http://localhost:8765"),
        ("127.0.0.1", b"proxy.internal:99", "http://proxy.internal:99"),
        ("127.0.0.1", b"proxy.internal:8765", "http://localhost:8765"),
        ("127.0.0.1", b"", "http://localhost:8765"),
        ("0.0.0.0", b"127.0.0.1:8765", "http://127.0.0.1:8765"),
        ("10.0.0.7", b"localhost:8765", "http://10.0.0.7:8765"),
        ("fd00::7", b"[fd00::7]:8765", "http://[fd00::7]:8765"),
    ],
)
def test_a_request_chooses_among_the_hubs_own_names_and_brings_none(host: str, called: bytes, expected: str) -> None:
    assert OwnAddresses(None, host, 8765, ["hub.internal", "proxy.internal:99"]).base({b"host": called}) == expected


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (RESOURCE_PATH, ""),
        (f"{RESOURCE_PATH}/mcp", "/mcp"),
        (f"{RESOURCE_PATH}/mcp/files", "/mcp/files"),
        (f"{RESOURCE_PATH}/sse", "/sse"),
        (f"{RESOURCE_PATH}/", None),
        (f"{RESOURCE_PATH}/elsewhere", None),
        (f"{RESOURCE_PATH}/mcp/", None),
        (f'{RESOURCE_PATH}/mcp/a"b', None),
        (f"{RESOURCE_PATH}/mcp/a/b", None),
        (f"{RESOURCE_PATH}s", None),
        ("/mcp", None),
    ],
)
def test_only_own_paths_are_resources(path: str, place: str | None) -> None:
    assert place_in(path) == place


def test_a_resource_names_its_issuers_and_the_hub() -> None:
    assert resource_document(BASE, "/mcp", (CORP,), gives_tokens=True) == {
        "resource": BASE,
        "authorization_servers": ["https://login.example", BASE],
        "bearer_methods_supported": ["header"],
        "resource_name": "Isthmus",
        "scopes_supported": ["files:read"],
    }


def test_without_issuers_a_resource_is_its_address() -> None:
    received = resource_document(BASE, "/mcp/files", (), gives_tokens=True)
    assert (received["resource"], received["authorization_servers"]) == (f"{BASE}/mcp/files", [BASE])
    assert "scopes_supported" not in received


@pytest.mark.parametrize(
    ("audiences", "resource"),
    [
        ((BASE,), BASE),
        ((BASE, f"{BASE}/mcp"), f"{BASE}/mcp"),
        ((f"{BASE}/mcp/files", f"{BASE}/mcp"), f"{BASE}/mcp"),
        (("api://hub",), f"{BASE}/mcp"),
        (("https://hub.example.evil", "http://hub.example", f"{BASE}/mc"), f"{BASE}/mcp"),
        ((f"{BASE}/",), f"{BASE}/"),
    ],
)
def test_a_resource_is_named_like_the_audience_of_its_tokens(audiences: tuple[str, ...], resource: str) -> None:
    issuer = TrustedIssuer("https://login.example", audiences, ())
    assert resource_document(BASE, "/mcp", (issuer,), gives_tokens=False)["resource"] == resource


def test_tokens_may_be_requested_for_the_hub_and_its_paths() -> None:
    api = TrustedIssuer("https://login.example", ("api://hub",), ())
    for resource in (BASE, f"{BASE}/", f"{BASE}/mcp", f"{BASE}/mcp/files", "api://hub"):
        assert is_own_resource(resource, BASE, (api,))
    strange = ("http://[", "https://hub.example]", "//[", "https://hub.\u2100.example")
    for resource in (
        "https://other.example", "https://hub.example.evil", "http://hub.example", "", "api://other", *strange
    ):  # fmt: skip
        assert not is_own_resource(resource, BASE, (api,))


def test_the_hub_says_where_it_gives_tokens() -> None:
    received = server_document(BASE)
    assert received["issuer"] == BASE
    assert received["token_endpoint"] == f"{BASE}/oauth/token"
    assert received["grant_types_supported"] == ["client_credentials"]


def test_a_resource_says_how_proofs_may_be_signed_and_whether_all_tokens_need_one() -> None:
    strict = TrustedIssuer("https://other.example", (BASE,), (), binds_all=True)

    def said(*issuers: TrustedIssuer, gives_tokens: bool = False) -> dict[str, object]:
        document = resource_document(BASE, "", issuers, gives_tokens=gives_tokens, algorithms=["ES256"])
        return {name: value for name, value in document.items() if name.startswith("dpop")}

    algorithms = {"dpop_signing_alg_values_supported": ["ES256"]}
    assert said() == {}, "no token can be bound where there is no issuer"
    assert said(CORP) == said(CORP, strict) == said(strict, gives_tokens=True) == algorithms
    assert said(strict) == {**algorithms, "dpop_bound_access_tokens_required": True}


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
