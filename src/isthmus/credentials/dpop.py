"""DPoP (RFC 9449): the hub's key, the proof of each request, and servers' nonces.

Each login has one key, so a stolen token alone is useless. No I/O here: `grants` sends proofs to token endpoints,
`transport.http` sends them to servers, and `vault` stores the key encrypted with the login.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from isthmus.credentials.client_assertion import in_base64, signed_es256

ALGORITHM = "ES256"
"""The algorithm of proofs; every authorization server with DPoP supports it."""

USE_NONCE = "use_dpop_nonce"
SCHEME = "dpop"
UNAUTHORIZED = 401

NONCES_MAX = 16
"""How many origins' nonces are remembered: the authorization server, the server, and endpoints of an agent."""

_NONCE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,512}")


class ProofKey:
    """A P-256 key pair. Its `repr` reveals nothing; only `text` returns the private key."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self._private = private
        numbers = private.public_key().public_numbers()
        # In the order of RFC 7638, which defines the thumbprint.
        self._jwk = {
            "crv": "P-256",
            "kty": "EC",
            "x": in_base64(numbers.x.to_bytes(32)),
            "y": in_base64(numbers.y.to_bytes(32)),
        }
        canonical = json.dumps(self._jwk, separators=(",", ":")).encode()
        self.thumbprint = in_base64(hashlib.sha256(canonical).digest())

    @classmethod
    def make(cls) -> ProofKey:
        """Generate a key."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def read(cls, text: str) -> ProofKey:
        """Read a stored key. Raises `ValueError`, without quoting the text."""
        try:
            key = load_pem_private_key(text.encode(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ValueError("the key of its login cannot be read") from None
        if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)):
            raise ValueError("the key of its login is not a P-256 key")
        return cls(key)

    def text(self) -> str:
        """The private key for storage; only the vault uses it."""
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def sign(self, claims: Mapping[str, object]) -> str:
        """Sign a proof with these claims."""
        return signed_es256(self._private, {"typ": "dpop+jwt", "jwk": self._jwk}, claims)

    def __repr__(self) -> str:
        return "ProofKey()"


class Prover:
    """Creates the proofs of one login; see `core.ports.RequestSigner`."""

    def __init__(self, key: ProofKey, now: Callable[[], float] = time.time) -> None:
        self.key = key
        self._now = now
        self._nonces: dict[str, str] = {}
        """The latest nonce of each origin, least recently used first."""

    def proof(self, method: str, url: str, token: str = "") -> str:
        """Create the proof of one request, bound to its access token if there is one."""
        claims: dict[str, object] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": url.partition("#")[0].partition("?")[0],
            "iat": int(self._now()),
        }
        if token:
            claims["ath"] = in_base64(hashlib.sha256(token.encode("ascii")).digest())
        if nonce := self._nonces.get(_origin(url)):
            claims["nonce"] = nonce
        return self.key.sign(claims)

    def proof_for(self, method: str, url: str, authorization: str) -> str | None:
        """See `core.ports.RequestSigner`."""
        scheme, _, token = authorization.partition(" ")
        return self.proof(method, url, token) if scheme.lower() == SCHEME else None

    def take_nonce(self, url: str, headers: Mapping[str, str]) -> bool:
        """Remember a response's nonce for the next proof; return whether there was one."""
        nonce = headers.get("dpop-nonce", "")
        if _NONCE.fullmatch(nonce) is None:
            return False
        origin = _origin(url)
        self._nonces.pop(origin, None)
        self._nonces[origin] = nonce
        if len(self._nonces) > NONCES_MAX:
            del self._nonces[next(iter(self._nonces))]
        return True

    def wants_nonce(self, url: str, status: int, headers: Mapping[str, str]) -> bool:
        """See `core.ports.RequestSigner`."""
        has_nonce = self.take_nonce(url, headers)
        return has_nonce and status == UNAUTHORIZED and USE_NONCE in headers.get("www-authenticate", "")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()
