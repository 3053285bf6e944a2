"""An authorization server on this machine: its keys, its metadata, its tokens, and the flows that clients go through.

It runs in a thread of the test. Tokens are made by PyJWT or by hand, never by the code under test.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

_SHAPES = {
    "RS": jwt.algorithms.RSAAlgorithm,
    "PS": jwt.algorithms.RSAAlgorithm,
    "ES": jwt.algorithms.ECAlgorithm,
    "Ed": jwt.algorithms.OKPAlgorithm,
}


@cache
def private_key(algorithm: str, number: int = 0) -> Private:
    """A key for an algorithm, the same for all tests of a run: to make one takes time."""
    match algorithm[:2]:
        case "ES":
            curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[algorithm]
            return ec.generate_private_key(curve)
        case "Ed":
            return ed25519.Ed25519PrivateKey.generate()
        case _:
            return rsa.generate_private_key(65537, 2048)


def jwk_of(key: Private, **members: Any) -> dict[str, Any]:
    """The public half, as an issuer publishes it."""
    kind = "RS" if isinstance(key, rsa.RSAPrivateKey) else "ES" if isinstance(key, ec.EllipticCurvePrivateKey) else "Ed"
    written: dict[str, Any] = _SHAPES[kind].to_jwk(key.public_key(), as_dict=True)  # type: ignore[attr-defined]
    written.pop("key_ops", None)
    return {**written, **members}


def thumbprint(jwk: Mapping[str, Any]) -> str:
    """The digest that a key is known by (RFC 7638)."""
    names = {"EC": ("crv", "kty", "x", "y"), "RSA": ("e", "kty", "n"), "OKP": ("crv", "kty", "x")}[jwk["kty"]]
    canonical = json.dumps({name: jwk[name] for name in names}, separators=(",", ":")).encode()
    return encoded(hashlib.sha256(canonical).digest())


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def encoded(value: object) -> str:
    """A value as a part of a token: JSON, unless it is bytes already."""
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


class Issuer:
    """What it publishes may be changed while it runs; `asked` are the requested paths."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, Private]] = {
            "one": ("RS256", private_key("RS256")),
            "two": ("ES256", private_key("ES256")),
        }
        self.is_away = False
        self.metadata: dict[str, Any] = {}
        """Members that replace its own."""
        self.asked: list[str] = []
        self._codes: dict[str, dict[str, list[str]]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/keys"

    def token(self, key: str = "one", header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """A token of this issuer; a claim that is None is left out."""
        algorithm, private = self.keys[key]
        given = {"iss": self.url, "sub": "alice", "exp": int(time.time()) + 600, "iat": int(time.time()), **claims}
        said = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(said, private, algorithm=algorithm, headers={"kid": key, **(header or {})})

    def document(self) -> bytes:
        return jwks(*(jwk_of(private, kid=kid, alg=alg, use="sig") for kid, (alg, private) in self.keys.items()))

    # -- over HTTP -------------------------------------------------------------------------------------------------

    def _handler(issuer: Issuer) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the handler's
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                path = urlsplit(self.path).path
                if issuer.is_away:
                    self._say(503, b"{}")
                elif path == "/keys":
                    self._say(200, issuer.document())
                elif path == "/authorize":
                    self._authorize(parse_qs(urlsplit(self.path).query))
                elif path in ("/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"):
                    self._say(200, json.dumps(issuer._described()).encode())
                else:
                    self._say(404, b"{}")

            def do_POST(self) -> None:
                issuer.asked.append(self.path)
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                if self.path == "/register":
                    self._say(201, json.dumps({**json.loads(body), "client_id": "a-client"}).encode())
                else:
                    form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
                    self._say(*issuer._exchanged(form, self.headers.get("dpop")))

            def _authorize(self, query: dict[str, list[str]]) -> None:
                code = secrets.token_hex(8)
                issuer._codes[code] = query
                place = f"{query['redirect_uri'][0]}?{urlencode({'code': code, 'state': query['state'][0]})}"
                self.send_response(302)
                self.send_header("location", place)
                self.send_header("content-length", "0")
                self.end_headers()

            def _say(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler

    def _described(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "jwks_uri": self.jwks_url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            **self.metadata,
        }

    def _exchanged(self, form: dict[str, str], proof: str | None) -> tuple[int, bytes]:
        """A token, which is bound to the key of a proof, if there is one (whose word is taken for it)."""
        kind, bound = "Bearer", None
        if proof is not None:
            kind, bound = "DPoP", {"jkt": thumbprint(jwt.get_unverified_header(proof)["jwk"])}
        if form["grant_type"] == "client_credentials":
            token = self.token(aud="hub", sub=form["client_id"], cnf=bound)
        else:
            query = self._codes.pop(form["code"])
            if [encoded(hashlib.sha256(form["code_verifier"].encode()).digest())] != query["code_challenge"]:
                return 400, b'{"error":"invalid_grant"}'
            token = self.token(aud=query["resource"][0], scope=query.get("scope", [None])[0], cnf=bound)
        return 200, json.dumps({"access_token": token, "token_type": kind, "expires_in": 600}).encode()

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def issuing() -> Iterator[Issuer]:
    """An issuer, for as long as the block lasts."""
    issuer = Issuer()
    issuer.start()
    try:
        yield issuer
    finally:
        issuer.stop()
