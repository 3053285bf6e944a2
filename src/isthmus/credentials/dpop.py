"""Tokens that are bound to a key of the hub (DPoP, RFC 9449): the key, the proof of each request, and servers' nonces.

A login has one key for as long as it lasts; whoever steals its token has not got the key. No I/O: `grants` sends proofs
to token endpoints, `transport.http` to servers, and `vault` seals the key with the login.
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
"""What proofs are signed with: every authorization server that knows DPoP knows it."""

USE_NONCE = "use_dpop_nonce"
SCHEME = "dpop"
UNAUTHORIZED = 401

NONCES_MAX = 16
"""Origins of which a nonce is remembered: the authorization server, the server, and places that an agent names."""

_NONCE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,512}")


class ProofKey:
    """A key pair on P-256. Its `repr` tells nothing, and only `text` gives the private half."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self._private = private
        numbers = private.public_key().public_numbers()
        # The order of these members is that of RFC 7638, which a thumbprint is made over.
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
        """A new key."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def read(cls, text: str) -> ProofKey:
        """A key that was written down. Raises `ValueError`, without a word of what the text holds."""
        try:
            key = load_pem_private_key(text.encode(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ValueError("the key of its login cannot be read") from None
        if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)):
            raise ValueError("the key of its login is of another kind")
        return cls(key)

    def text(self) -> str:
        """The key to be written down, which only the vault does."""
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def sign(self, claims: Mapping[str, object]) -> str:
        """A proof with these claims."""
        return signed_es256(self._private, {"typ": "dpop+jwt", "jwk": self._jwk}, claims)

    def __repr__(self) -> str:
        return "ProofKey()"


class Prover:
    """Makes the proofs of one login; see `core.ports.RequestSigner`."""

    def __init__(self, key: ProofKey, now: Callable[[], float] = time.time) -> None:
        self.key = key
        self._now = now
        self._nonces: dict[str, str] = {}
        """The latest nonce of each origin, the longest unused first."""

    def proof(self, method: str, url: str, token: str = "") -> str:
        """The proof of one request; of one that shows a token, for that token alone."""
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
        """Remember the nonce of a reply for the next proof; whether there was one."""
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
