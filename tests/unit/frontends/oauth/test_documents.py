"""OAuth metadata of the hub for clients, by address."""

from __future__ import annotations

import pytest

from isthmus.frontends.oauth.documents import (
    RESOURCE_PATH,
    OwnAddresses,
    TrustedIssuer,
    is_own_resource,
    place_in,
    resource_document,
    server_document,
)

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
