"""Client assertions: a signed JWT instead of a client secret (RFC 7523).

`clients` sends them, and `config` checks their keys. This module imports nothing else of the hub, so that checking a
file stays fast.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Mapping

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from cryptography.hazmat.primitives.serialization import load_pem_private_key

ASSERTION_SECONDS = 60
"""How long an assertion is valid."""


def check_private_key(pem: str) -> None:
    """Raise `ValueError` if the key cannot sign. The message does not quote it."""
    try:
        key = load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("private_key must be an unencrypted PEM key (value hidden)") from None
    is_curve = isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
    if not (is_curve or isinstance(key, rsa.RSAPrivateKey)):
        raise ValueError("private_key must be an RSA or P-256 key")


def assertion_of(id: str, pem: str, audience: str) -> str:
    """Create a client assertion (RFC 7523)."""
    key = load_pem_private_key(pem.encode(), None)
    now = int(time.time())
    claims = {"iss": id, "sub": id, "aud": audience, "jti": secrets.token_urlsafe(16)}
    times = {"iat": now, "exp": now + ASSERTION_SECONDS}
    if isinstance(key, rsa.RSAPrivateKey):
        text = _unsigned({"alg": "RS256", "typ": "JWT"}, {**claims, **times})
        return f"{text.decode()}.{in_base64(key.sign(text, padding.PKCS1v15(), hashes.SHA256()))}"
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # ensured by `check_private_key`
    return signed_es256(key, {"typ": "JWT"}, {**claims, **times})


def signed_es256(key: ec.EllipticCurvePrivateKey, head: Mapping[str, object], claims: Mapping[str, object]) -> str:
    """Create a JWT signed with a P-256 key."""
    text = _unsigned({"alg": "ES256", **head}, claims)
    r, s = utils.decode_dss_signature(key.sign(text, ec.ECDSA(hashes.SHA256())))
    return f"{text.decode()}.{in_base64(r.to_bytes(32) + s.to_bytes(32))}"


def _unsigned(head: Mapping[str, object], claims: Mapping[str, object]) -> bytes:
    parts = (json.dumps(part, separators=(",", ":")).encode() for part in (head, claims))
    return ".".join(map(in_base64, parts)).encode()


def in_base64(raw: bytes) -> str:
    """Encode bytes as base64url without padding, as JWTs do."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
