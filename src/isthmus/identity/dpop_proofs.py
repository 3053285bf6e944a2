"""Proofs of possession (DPoP, RFC 9449): does the sender of a bound token have its key, for this very request?

A proof is valid for one request. Accepted proofs are remembered until they would be too old anyway, so none can be
used twice. When there are too many, the oldest are forgotten, and proofs of that age are refused. Proofs from before
the hub's start are refused, too, because they may have been used then. Nothing here waits. `identity.jwt_callers` calls
this only for valid tokens, so that strangers cannot make the hub check signatures. What other nodes of a cluster have
accepted is not known here: `app.tokens` asks their database.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from isthmus.identity.jwt import base64url, read_proof
from isthmus.identity.settings import Algorithm

PROOF_ALGORITHMS: tuple[Algorithm, ...] = (
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "PS256",
    "PS384",
    "PS512",
    "RS256",
    "RS384",
    "RS512",
)
"""The signature algorithms of proofs; all are asymmetric."""

PROOF_SECONDS = 60.0
"""How far a proof's time may differ from the hub's clock: clocks differ, and requests take time."""

PROOFS_MAX = 100_000
"""How many proofs are remembered: enough for 800 requests a second while a proof is valid."""

ID_LENGTH_MAX = 256
NONCE_SECONDS = 300.0
"""How long a nonce of the hub is valid."""

_PURPOSE = b"isthmus: nonces of proofs"
_MAC_BYTES = 16
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ProvenRequest:
    """A request and its proof."""

    proof: bytes
    method: str
    urls: Sequence[str]
    """The request's URL under every address of the hub."""


@dataclass(frozen=True, slots=True)
class ProofRefused:
    """Why a proof is refused; `nonce` is set if the next proof must contain it."""

    reason: str
    nonce: str = ""


class Proofs:
    """Checks proofs and remembers accepted ones."""

    def __init__(self, now: Callable[[], float], secret: Callable[[], bytes]) -> None:
        """`secret` is read with the first nonce. Hubs with the same secret accept each other's nonces."""
        self._now = now
        self._secret = secret
        self._seen: OrderedDict[bytes, float] = OrderedDict()
        """The creation time of each accepted proof by a digest of key and id, in order of arrival."""
        self._oldest = float(int(now())) - 1.0
        """Proofs of this time and earlier are refused: the hub no longer knows which of them were used."""
        self.accepted = b""
        """A digest of key and id of the proof that was accepted last."""

    def check(self, request: ProvenRequest, token: bytes, thumbprint: str, *, wants_nonce: bool) -> ProofRefused | None:
        """Why a request does not prove a token that is bound to this key thumbprint; None if it does."""
        proof = read_proof(request.proof, PROOF_ALGORITHMS)
        if isinstance(proof, str):
            return ProofRefused(proof)
        if not hmac.compare_digest(proof.thumbprint, thumbprint):
            return ProofRefused("its key is not the key that the token is bound to")
        if (reason := _fault_in(proof.claims, request, token)) is not None:
            return ProofRefused(reason)
        made_at = proof.claims.get("iat")
        if isinstance(made_at, bool) or not isinstance(made_at, int | float):
            return ProofRefused("it has no iat")
        if not abs(self._now() - made_at) <= PROOF_SECONDS:
            return ProofRefused(f"its iat is not within {PROOF_SECONDS:g} seconds of the hub's clock")
        if made_at <= self._oldest:
            return ProofRefused("it is too old: the hub no longer knows which proofs of that time were used")
        if wants_nonce and not self._is_nonce(proof.claims.get("nonce")):
            return ProofRefused("it must contain the hub's nonce", self._nonce_of(int(self._now())))
        if not self._is_new(f"{thumbprint} {proof.claims['jti']}", float(made_at)):
            return ProofRefused("it was used already")
        return None

    # -- replays -----------------------------------------------------------------------------------------------------

    def _is_new(self, id: str, made_at: float) -> bool:
        mark = hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if mark in self._seen:
            return False
        self._seen[mark], self.accepted = made_at, mark
        # Proofs that are too old to be accepted are forgotten, and the earliest ones if there are too many.
        end = self._now() - PROOF_SECONDS
        while self._seen:
            first, time = next(iter(self._seen.items()))
            if time >= end and len(self._seen) <= PROOFS_MAX:
                break
            del self._seen[first]
            self._oldest = max(self._oldest, time)
        return True

    # -- nonces ------------------------------------------------------------------------------------------------------

    @cached_property
    def _key(self) -> bytes:
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(self._secret())

    def _nonce_of(self, made_at: int) -> str:
        """A signed time, so that issued nonces need no storage."""
        mac = hmac.digest(self._key, b"%d" % made_at, "sha256")[:_MAC_BYTES]
        return f"{made_at:x}.{base64url(mac)}"

    def _is_nonce(self, given: object) -> bool:
        text = given.partition(".")[0] if isinstance(given, str) else ""
        if not (isinstance(given, str) and given.isascii() and re.fullmatch("[0-9a-f]{1,12}", text)):
            return False
        made_at = int(text, 16)
        is_ours = hmac.compare_digest(given, self._nonce_of(made_at))
        return is_ours and abs(self._now() - made_at) <= NONCE_SECONDS


def _fault_in(claims: Mapping[str, Any], request: ProvenRequest, token: bytes) -> str | None:
    """Why a proof does not belong to this request, or has no id."""
    if claims.get("htm") != request.method:
        return "its htm is not the method of this request"
    # Without query and fragment (RFC 9449, section 4.3).
    htu = claims.get("htu")
    named_url = _normalized_url(htu) if isinstance(htu, str) else None
    if named_url is None or all(named_url != _normalized_url(url) for url in request.urls):
        return f"its htu is not {request.urls[0]}"
    if claims.get("ath") != base64url(hashlib.sha256(token).digest()):
        return "its ath is not the digest of the token"
    id = claims.get("jti")
    return None if isinstance(id, str) and 0 < len(id) <= ID_LENGTH_MAX else "it has no jti"


def _normalized_url(url: str) -> tuple[str, str, int | None, str] | None:
    """An address in normal form: lower case, explicit port, only necessary escapes."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if "@" in parts.netloc or not parts.hostname:
        return None

    def unescaped(match: re.Match[str]) -> str:
        letter = chr(int(match[1], 16))
        return letter if _UNRESERVED.fullmatch(letter) else match[0].upper()

    path = _ESCAPE.sub(unescaped, parts.path) or "/"
    return parts.scheme, parts.hostname, port or _PORTS.get(parts.scheme), path
