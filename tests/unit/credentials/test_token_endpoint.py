"""Client authentication of the hub, and answers of a token endpoint."""

from __future__ import annotations

import base64
import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from isthmus.credentials.client_registration import OAuthClient
from isthmus.credentials.discovery import ServerMetadata
from isthmus.credentials.fetch import FetchFailed
from isthmus.credentials.server_logins import SubjectTokens
from isthmus.credentials.signed_jwts import check_private_key
from isthmus.credentials.token_endpoint import (
    GrantRefused,
    StoredToken,
    proof_of,
    read_refusal,
    read_token_response,
)
from isthmus.model.credentials import OAuthSettings, Subject
from isthmus.transport.http_client import HttpResponse

NOWHERE = ServerMetadata(issuer="https://login.example", token_endpoint="https://login.example/token")


def pem_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


P256 = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize(
    ("client", "known", "fields", "headers"),
    [
        (OAuthClient("me"), [], {"client_id": "me"}, {}),
        (OAuthClient("me", "se:cret"), [], {}, {"authorization": "Basic bWU6c2UlM0FjcmV0"}),
        (OAuthClient("me", "s"), ["client_secret_post"], {"client_id": "me", "client_secret": "s"}, {}),
        (
            OAuthClient("me", "s"),
            ["client_secret_post", "client_secret_basic"],
            {},
            {"authorization": "Basic bWU6cw=="},
        ),
        (OAuthClient("me", "s", "client_secret_post"), [], {"client_id": "me", "client_secret": "s"}, {}),
        (OAuthClient("me", "s", "none"), ["client_secret_basic"], {"client_id": "me"}, {}),
    ],
)
def test_a_client_proves_itself_as_the_server_wants_it(
    client: OAuthClient, known: list[str], fields: dict[str, str], headers: dict[str, str]
) -> None:
    server = ServerMetadata(token_endpoint="https://a/t", token_endpoint_auth_methods_supported=known)
    assert proof_of(client, OAuthSettings(), server) == (fields, headers)


@pytest.mark.parametrize(("key", "algorithm"), [(P256, "ES256"), (RSA, "RS256")])
def test_a_client_with_a_key_signs_its_identity(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, algorithm: str
) -> None:
    settings = OAuthSettings(client_id="me", private_key=pem_of(key))
    fields, headers = proof_of(OAuthClient("me"), settings, NOWHERE)
    claims = jwt.decode(fields["client_assertion"], key.public_key(), [algorithm], audience="https://login.example")
    assert (claims["iss"], claims["sub"], claims["exp"] - claims["iat"]) == ("me", "me", 60)
    assert headers == {}
    again, _ = proof_of(OAuthClient("me"), settings, NOWHERE)
    assert again["client_assertion"] != fields["client_assertion"], "each is good once"


@pytest.mark.parametrize(
    "pem",
    [
        "",
        "no key",
        pem_of(ec.generate_private_key(ec.SECP384R1())),
        pem_of(ed25519.Ed25519PrivateKey.generate()),
        pem_of(P256)[:60] + "x" + pem_of(P256)[61:],
    ],
)
def test_an_unusable_private_key_is_refused_and_not_quoted(pem: str) -> None:
    with pytest.raises(ValueError, match="private_key must") as refused:
        check_private_key(pem)
    assert not pem[40:50] or pem[40:50] not in str(refused.value)


def answered(status: int, **members: object) -> HttpResponse:
    return HttpResponse(status, {}, json.dumps(members).encode())


def test_a_token_is_read_with_how_long_it_holds() -> None:
    token = read_token_response(
        answered(200, access_token="a", token_type="bearer", expires_in="60", refresh_token="r", scope="s")
    )
    assert (token.access, token.refresh, token.scope) == ("a", "r", "s")
    assert token.expires_at is not None
    assert round(token.expires_at - token.obtained_at) == 60
    assert not token.is_good(token.expires_at)
    assert read_token_response(answered(200, access_token="a")).is_good(1e12)
    assert "access" not in repr(token) or "a'" not in repr(token)


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        (answered(200), FetchFailed),
        (answered(200, access_token=""), FetchFailed),
        (answered(200, access_token="a b"), FetchFailed),
        (answered(200, access_token="a\r\nX: y"), FetchFailed),
        (answered(200, access_token="x" * 20_000), FetchFailed),
        (answered(200, access_token="a", expires_in="soon"), FetchFailed),
        (answered(200, access_token="a", token_type="DPoP"), GrantRefused),
        (HttpResponse(200, {}, b"<html>"), FetchFailed),
        (HttpResponse(200, {}, b"\xff"), FetchFailed),
    ],
)
def test_an_invalid_token_response_is_rejected(said: HttpResponse, failure: type[Exception]) -> None:
    with pytest.raises(failure):
        read_token_response(said)


@pytest.mark.parametrize(
    ("said", "kind", "expected"),
    [
        (answered(400, error="invalid_grant", error_description="gone"), GrantRefused, "invalid_grant (gone)"),
        (answered(400, error="<b>"), GrantRefused, "HTTP 400"),
        (HttpResponse(403, {}, b"no"), FetchFailed, "the token endpoint answered HTTP 403"),
        (HttpResponse(401, {}, b"no"), GrantRefused, "HTTP 401"),
        (answered(400, error="x", error_description="you sent refresh-1234"), GrantRefused, "x"),
        (answered(400, error="x", error_description="a\x1b[31mb"), GrantRefused, "x (a[31mb)"),
        (answered(503, error="x"), FetchFailed, "the token endpoint answered HTTP 503"),
        (answered(429), FetchFailed, "the token endpoint answered HTTP 429"),
    ],
)
def test_a_refusal_has_a_reason_and_no_secret(said: HttpResponse, kind: type[Exception], expected: str) -> None:
    refusal = read_refusal(said, ["refresh-1234"])
    assert isinstance(refusal, kind)
    assert str(refusal) == expected


def test_tokens_of_callers_are_forgotten_when_they_end_and_never_shown() -> None:
    now = [0.0]
    subjects = SubjectTokens(lambda: now[0])
    subjects.note(Subject("t", "a"), "secret", 10.0)
    assert subjects.token_of(Subject("t", "a")) == "secret"
    assert subjects.token_of(Subject("other", "a")) is None
    now[0] = 10.0
    assert subjects.token_of(Subject("t", "a")) is None
    assert "secret" not in repr(subjects)
    assert "secret" not in repr(StoredToken("secret", refresh="secret")) + repr(OAuthClient("id", "secret"))
    assert base64.b64encode(b"secret").decode() not in repr(subjects)
