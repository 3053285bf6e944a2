"""T28: a token that chooses its own algorithm, its own key or its own rules.

Every key has one algorithm, fixed when it is fetched, and all of them are asymmetric: there is nothing to confuse it
with, and no way to sign nothing. What a header says of keys (`jku`, `x5u`, `jwk`, `x5c`) is never read; a `kid` is
looked up among the issuer's keys and used for nothing else; what must be understood (`crit`) is refused.
`tests/unit/identity/test_jwt.py` and `test_jwt_callers.py` go through all forms of header, claim and key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.issuer import encoded, jwk_of, private_key
from tests.security.issuer_hub import HUB, IssuerHub, issuer_hub

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("signed_tokens")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[IssuerHub]:
    async with issuer_hub(tmp_path_factory.mktemp("tokens")) as running:
        yield running


def _claims(here: IssuerHub, **more: Any) -> dict[str, Any]:
    now = int(time.time())
    return {"iss": here.issuer.url, "aud": HUB, "sub": "mallory", "exp": now + 600, "iat": now, **more}


def _unsigned(here: IssuerHub, algorithm: str, kid: str = "one") -> str:
    return f"{encoded({'alg': algorithm, 'kid': kid})}.{encoded(_claims(here))}."


def _by_secret(here: IssuerHub, secret: bytes, algorithm: str = "HS256") -> str:
    signed = f"{encoded({'alg': algorithm, 'kid': 'one'})}.{encoded(_claims(here))}"
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def _public(
    here: IssuerHub, form: PublicFormat = PublicFormat.SubjectPublicKeyInfo, how: Encoding = Encoding.PEM
) -> bytes:
    return here.issuer.keys["one"][1].public_key().public_bytes(how, form)


def _with_header(here: IssuerHub, **header: Any) -> str:
    """Signed by a key of the attacker's own, which the header recommends."""
    own = private_key("RS256", 7)
    return jwt.encode(_claims(here), own, algorithm="RS256", headers={"kid": "one", **header})


def _psychic(here: IssuerHub) -> str:
    return f"{encoded({'alg': 'ES256', 'kid': 'two'})}.{encoded(_claims(here))}.{encoded(bytes(64))}"


def _nested(here: IssuerHub) -> str:
    """Of the right form, but encrypted with an unknown key."""
    header = {"alg": "RSA-OAEP", "enc": "A128GCM", "cty": "JWT", "kid": "one"}
    return ".".join([encoded(header), *(encoded(os.urandom(size)) for size in (256, 12, 400, 16))])


ATTACKS: dict[str, Callable[[IssuerHub], str]] = {
    "alg none": lambda here: _unsigned(here, "none"),
    "alg None": lambda here: _unsigned(here, "None"),
    "alg NONE": lambda here: _unsigned(here, "NONE"),
    "alg empty": lambda here: _unsigned(here, ""),
    "RS256 without a signature": lambda here: _unsigned(here, "RS256"),
    "public key in PEM as secret": lambda here: _by_secret(here, _public(here)),
    "public key in DER as secret": lambda here: _by_secret(here, _public(here, how=Encoding.DER)),
    "public key in PKCS1 as secret": lambda here: _by_secret(here, _public(here, PublicFormat.PKCS1)),
    "published key as secret": lambda here: _by_secret(here, json.dumps(jwk_of(here.issuer.keys["one"][1])).encode()),
    "empty secret": lambda here: _by_secret(here, b""),
    "HMAC under the name of RS256": lambda here: _by_secret(here, _public(here), "RS256"),
    "another algorithm of the same key": lambda here: jwt.encode(
        _claims(here), private_key("RS256"), algorithm="PS256", headers={"kid": "one"}
    ),
    "ES256 with the id of an RSA key": lambda here: jwt.encode(
        _claims(here), private_key("ES256"), algorithm="ES256", headers={"kid": "one"}
    ),
    "unknown crit": lambda here: here.token(header={"crit": ["isthmus"], "isthmus": True}),
    "crit of a known member": lambda here: here.token(header={"crit": ["kid"]}),
    "unencoded payload": lambda here: here.token(header={"crit": ["b64"], "b64": True}),
    "kid as a path": lambda here: here.token(header={"kid": "../../../../dev/null"}),
    "kid as a path, signed with nothing": lambda here: _by_secret(here, b"").replace(
        encoded({"alg": "HS256", "kid": "one"}), encoded({"alg": "HS256", "kid": "/dev/null"})
    ),
    "kid as a query": lambda here: here.token(header={"kid": "x' UNION SELECT 'secret' --"}),
    "kid as a command": lambda here: here.token(header={"kid": "|cat /etc/passwd"}),
    "kid of another type": lambda here: f"{encoded({'alg': 'RS256', 'kid': 1})}.{encoded(_claims(here))}.AA",
    "own key in the header": lambda here: _with_header(here, jwk=jwk_of(private_key("RS256", 7), kid="one")),
    "own certificate in the header": lambda here: _with_header(here, x5c=["MIIB"]),
    "psychic signature": _psychic,
    "exp as a text": lambda here: _signed_by_hand(here, {**_claims(here), "exp": str(int(time.time()) + 600)}),
    "no exp": lambda here: here.token(exp=None),
    "exp long ago": lambda here: here.token(exp=int(time.time()) - 61),
    "nbf far ahead": lambda here: here.token(nbf=int(time.time()) + 120),
    "iat far ahead": lambda here: here.token(iat=int(time.time()) + 120),
    "no iss": lambda here: here.token(iss=None),
    "another iss": lambda here: here.token(iss="https://other.example"),
    "no aud": lambda here: here.token(aud=None),
    "another aud": lambda here: here.token(aud="https://other.example"),
    "no sub": lambda here: here.token(sub=None),
    "nested in an encrypted one": _nested,
    "another key": _with_header,
    "a member twice": lambda here: _signed_by_hand(here, _twice(here)),
    "7.9 KiB of nothing": lambda here: here.token(padding="x" * 7900),
    "a token for another purpose": lambda here: here.token(header={"typ": "dpop+jwt"}),
}


def _twice(here: IssuerHub) -> bytes:
    first = {**_claims(here), "aud": "https://other.example"}
    return (json.dumps(first)[:-1] + f',"aud":"{HUB}"}}').encode()


def _signed_by_hand(here: IssuerHub, claims: object) -> str:
    """By the issuer's own key, whatever PyJWT thinks of the claims."""
    signed = f"{encoded({'alg': 'RS256', 'kid': 'one'})}.{encoded(claims)}"
    algorithm = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256)
    return f"{signed}.{encoded(algorithm.sign(signed.encode(), here.issuer.keys['one'][1]))}"  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_token_is_refused_if_made_by(here: IssuerHub, attack: str) -> None:
    answer = await here.ask(ATTACKS[attack](here))

    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "resource_metadata=" in answer.headers["www-authenticate"]


async def test_valid_tokens_are_accepted(here: IssuerHub) -> None:
    for token in (
        here.token(),
        here.token(key="two"),
        _signed_by_hand(here, _claims(here)),
        here.token(padding="x" * 4000),
        here.token(header={"typ": "at+jwt", "jku": "https://evil.example", "x5u": "https://evil.example"}),
    ):
        assert (await here.ask(token)).status_code == 200


@pytest.mark.parametrize("kib", [9, 100])
async def test_a_token_that_is_too_long_is_not_read(here: IssuerHub, kib: int) -> None:
    answer = await here.ask(here.token(padding="x" * (kib << 10)))
    assert answer.status_code in (401, 431)
    assert (await here.ask(here.token())).status_code == 200


@pytest.mark.parametrize("member", ["jku", "x5u"])
async def test_no_key_is_fetched_from_where_a_token_says(here: IssuerHub, member: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sink:
        address = f"http://127.0.0.1:{sink.getsockname()[1]}/keys"
        answer = await here.ask(_with_header(here, **{member: address, "kid": os.urandom(4).hex()}))
        assert answer.status_code == 401
        sink.setblocking(False)
        with pytest.raises(BlockingIOError):
            sink.accept()


@pytest.mark.parametrize("path", ["/mcp", "/mcp/files", "/v1/tools", "/a2a", "/sse"])
async def test_every_frontend_refuses_alike(here: IssuerHub, path: str) -> None:
    for token in (_unsigned(here, "none"), _by_secret(here, _public(here)), here.token(aud="https://other.example")):
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        method = "GET" if path in ("/v1/tools", "/sse") else "POST"
        answer = await here.http.request(method, here.base + path, headers=headers, content=b"{}")
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith('Bearer realm="isthmus", resource_metadata="')
