"""The JWTs that the hub signs: client assertions (RFC 7523), DPoP proofs (RFC 9449) and tokens of push notifications.

A client assertion replaces a client secret: `token_endpoint` sends it, and `config` checks its key. With DPoP, each
login has a key, so a stolen token alone is useless: `token_endpoint` sends proofs to token endpoints,
`transport.http_client` sends them to servers, and `vault` stores the key encrypted with the login. Push notifications
of the first A2A version have a JWT over the body's digest in `Authorization`; the receiver fetches the public key from
`/.well-known/jwks.json` and drops unsigned notifications. That key is stored in the state folder or in the database of
a cluster, so that it survives restarts; `app.a2a` owns the signer. Nothing is sent here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from isthmus.credentials.sealing import create_key_file

# -- client assertions ------------------------------------------------------------------------------------------


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


# -- DPoP proofs ------------------------------------------------------------------------------------------------


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
    """Creates the DPoP proofs (RFC 9449) of one login."""

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
        """The `DPoP` header for a request with this `Authorization`; None if that needs no proof."""
        scheme, _, token = authorization.partition(" ")
        return self.proof(method, url, token) if scheme.lower() == SCHEME else None

    def set_nonce(self, url: str, headers: Mapping[str, str]) -> bool:
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
        """Read a response; True if it rejects a request because the proof had no nonce, or an old one."""
        has_nonce = self.set_nonce(url, headers)
        return has_nonce and status == UNAUTHORIZED and USE_NONCE in headers.get("www-authenticate", "")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


# -- push notifications -----------------------------------------------------------------------------------------


PUSH_KEY_FILE = "push.key"
PUSH_KEY_BITS = 2048


class PushKeyStore(Protocol):
    """Where the key is."""

    def read(self) -> bytes:
        """The key as PEM. Raises `FileNotFoundError` if it was not created yet, or `OSError`."""

    def create(self, pem: bytes) -> None:
        """Store a new key, unless somebody else does it first. Raises `OSError`."""


class PushKeyFile:
    """The key in a state folder."""

    def __init__(self, state: Path) -> None:
        self._file = state / PUSH_KEY_FILE

    def read(self) -> bytes:
        """The key as PEM. Raises `FileNotFoundError` if it was not created yet, or `OSError`."""
        return self._file.read_bytes()

    def create(self, pem: bytes) -> None:
        """Store a new key, unless somebody else does it first. Raises `OSError`."""
        create_key_file(self._file, pem)

    def __str__(self) -> str:
        return str(self._file)


class PushSigner:
    """Signs with the stored key. `load` creates a missing key, which takes a fraction of a second."""

    def __init__(self, store: PushKeyStore) -> None:
        self._store = store
        self._key: RSAPrivateKey | None = None
        self._id = ""

    def load(self) -> None:
        """Load the key, or create it.

        Raises:
            OSError: the key can neither be read nor created.
            ValueError: the file does not contain a key.
        """
        if self._key is None:
            try:
                key = _rsa_key_in(self._store)
            except FileNotFoundError:
                made = generate_private_key(public_exponent=65537, key_size=PUSH_KEY_BITS)
                self._store.create(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
                key = _rsa_key_in(self._store)
            numbers = key.public_key().public_numbers()
            self._id = sha256(_octets(numbers.n)).hexdigest()[:32]
            self._key = key

    def key_set(self) -> bytes:
        """The public key as a JSON Web Key Set; raises like `load`."""
        self.load()
        assert self._key is not None
        numbers = self._key.public_key().public_numbers()
        own = {"n": in_base64(_octets(numbers.n)), "e": in_base64(_octets(numbers.e))}
        return json.dumps({"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self._id, **own}]}).encode()

    def token_for(self, body: bytes, now: float) -> str:
        """Create the token for a body; receivers refuse tokens older than five minutes.

        Raises:
            OSError: the key cannot be read.
            ValueError: the key cannot be used, or the receiver could not encode this body in the same way.
        """
        self.load()
        assert self._key is not None
        # The receiver hashes the JSON as Python encodes it again, not the bytes it received.
        again = json.dumps(json.loads(body), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        claims = {"iat": int(now), "request_body_sha256": sha256(again.encode()).hexdigest()}
        header = {"alg": "RS256", "kid": self._id, "typ": "JWT"}
        signed = ".".join(in_base64(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{in_base64(self._key.sign(signed.encode(), PKCS1v15(), SHA256()))}"


def _rsa_key_in(store: PushKeyStore) -> RSAPrivateKey:
    with suppress(ValueError, TypeError):  # not a PEM file, or an encrypted one
        if isinstance(key := load_pem_private_key(store.read(), None), RSAPrivateKey):
            return key
    raise ValueError(f"{store} does not contain an RSA key; move it away")


def _octets(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")
