"""Parses and verifies signed tokens (JWT in compact JWS form), and reads the public keys that verify them.

There is no network, no clock and no access decision here; `identity.jwt_callers` has these. A token's own statements
about its key (`jku`, `jwk`, `x5u`, `x5c`) are ignored. The algorithm belongs to the key, and a token's header must
agree with it. Symmetric algorithms and `none` do not exist here, so neither can be chosen by mistake.

A proof of possession (RFC 9449) contains its key (`jwk`) and only proves that the sender has that key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm

from isthmus.identity.settings import ALGORITHMS, Algorithm, IssuerSettings
from isthmus.wire.jsonrpc import object_members

TOKEN_BYTES_MAX = 8 * 1024
"""Several times the size of real tokens; also the limit for the header."""

KEYS_MAX = 64
"""The maximum number of keys of an issuer; most have two or three."""

KEY_ID_LENGTH_MAX = 256
RSA_BITS = range(2048, 8193)
"""Shorter keys can be broken; longer ones block the event loop."""

RSA_EXPONENT_BITS_MAX = 64
"""Issuers use 65537. With exponents as long as the key, a few dozen keys of one id cost half a second per token."""

_KINDS = ("jwt", "at+jwt", "application/at+jwt")
"""Accepted values of `typ`. Other tokens have another purpose, such as logout notices."""

PROOF_KIND = "dpop+jwt"

_HASHES: Mapping[str, HashAlgorithm] = {"256": SHA256(), "384": SHA384(), "512": SHA512()}
_CURVES: Mapping[str, tuple[ec.EllipticCurve, Algorithm]] = {
    "P-256": (ec.SECP256R1(), "ES256"),
    "P-384": (ec.SECP384R1(), "ES384"),
    "P-521": (ec.SECP521R1(), "ES512"),
}

PublicKey: TypeAlias = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


# -- tokens --------------------------------------------------------------------------------------------------------


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str | None = None
    typ: str | None = None


_read_header = msgspec.json.Decoder(_Header).decode
_read_claims = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class SignedToken:
    """A parsed token. It is unverified until `Key.has_signed` returns true."""

    algorithm: str
    key_id: str | None
    claims: Mapping[str, Any]
    signed: bytes
    signature: bytes

    @property
    def issuer(self) -> str:
        """The issuer that the token claims; empty if there is no such claim."""
        issuer = self.claims.get("iss")
        return issuer if isinstance(issuer, str) else ""


def looks_signed(credential: bytes) -> bool:
    """Whether a credential has the form of a signed token and so cannot be an API key."""
    return credential.count(b".") == 2 and credential.startswith(b"ey")


def read_token(credential: bytes) -> SignedToken | str:
    """Parse a token, or return why it is malformed."""
    parts = _parts_of(credential)
    return parts if isinstance(parts, str) else _token_of(credential, *parts, _KINDS)


TIME_MAX = 1e12
"""An upper bound for times in tokens, in seconds since 1970."""


def fault_in_claims(claims: Mapping[str, Any], settings: IssuerSettings, now: float) -> str | None:
    """Why a token with these claims is not for this hub now; None if it is. Clocks may differ by `leeway`."""
    if claims.get("iss") != settings.issuer:
        return "it is from another issuer"
    given = claims.get("aud")
    audiences = given if isinstance(given, list) else [given]
    if not any(isinstance(audience, str) and audience in settings.audience for audience in audiences):
        return "it was made for another audience"
    expires = _time(claims.get("exp"))
    if expires is None:
        return "it does not say when it expires"
    if now >= expires + settings.leeway:
        return "it has expired"
    for claim in ("nbf", "iat"):
        since = _time(claims.get(claim))
        if claim in claims and (since is None or since - settings.leeway > now):
            return "it is not valid yet"
    return None


def _time(value: object) -> float | None:
    """A time in seconds; None if the value is not a usable number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON allows integers of any length; the largest cannot become floats.
    return float(value) if 0 <= value < TIME_MAX else None


def _parts_of(credential: bytes) -> tuple[bytes, bytes, bytes] | str:
    if len(credential) > TOKEN_BYTES_MAX:
        return f"it is longer than {TOKEN_BYTES_MAX} bytes"
    parts = credential.split(b".")
    if len(parts) != 3:
        return "it does not have three parts"
    try:
        return _from_base64(parts[0]), _from_base64(parts[1]), _from_base64(parts[2])
    except ValueError:
        return "a part of it is not base64url"


def _token_of(credential: bytes, head: bytes, body: bytes, signature: bytes, kinds: Sequence[str]) -> SignedToken | str:
    members = _members_of(head)
    if members is None:
        return "its header is not a JSON object with unique members"
    if "crit" in members:
        return "its header requires extensions (crit), and the hub supports none"
    if "enc" in members:
        return "it is encrypted"
    try:
        header = _read_header(head)
    except (ValueError, RecursionError):
        return "its header does not name an algorithm"
    if header.typ is not None and header.typ.lower() not in kinds:
        return "it is not an access token" if kinds is _KINDS else f"its typ is not {PROOF_KIND}"
    if header.kid is not None and len(header.kid) > KEY_ID_LENGTH_MAX:
        return "the id of its key is too long"
    try:
        claims = None if _members_of(body) is None else _read_claims(body)
    except (ValueError, RecursionError):
        claims = None
    if claims is None:
        return "its claims are not a JSON object with unique members"
    return SignedToken(header.alg, header.kid, claims, credential.rpartition(b".")[0], signature)


def _members_of(text: bytes) -> Mapping[str, msgspec.Raw] | None:
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return object_members(text)


def _from_base64(text: bytes) -> bytes:
    """Decode canonical base64url without padding. Raises: ValueError."""
    try:
        content = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error
    if b"=" in text or base64.urlsafe_b64encode(content).rstrip(b"=") != text:
        raise ValueError("another spelling")
    return content


# -- proofs --------------------------------------------------------------------------------------------------------


class _ProofHeader(msgspec.Struct, frozen=True):
    typ: str
    jwk: msgspec.Raw


_read_proof_header = msgspec.json.Decoder(_ProofHeader).decode


@dataclass(frozen=True, slots=True)
class Proof:
    """A verified proof, with the thumbprint of its key (RFC 7638)."""

    claims: Mapping[str, Any]
    thumbprint: str


def read_proof(proof: bytes, algorithms: Sequence[Algorithm]) -> Proof | str:
    """Parse a proof and check its signature with the key that it contains; or return what is wrong with it."""
    parts = _parts_of(proof)
    if isinstance(parts, str):
        return parts
    token = _token_of(proof, *parts, (PROOF_KIND,))
    if isinstance(token, str):
        return token
    try:
        header = _read_proof_header(parts[0])
    except (ValueError, RecursionError):
        return f"its header does not have the typ {PROOF_KIND} and a jwk"
    if token.algorithm not in algorithms:
        return f"its alg is not one of {', '.join(algorithms)}"
    members = _members_of(bytes(header.jwk))
    if members is None or members.keys() & _PRIVATE_MEMBERS:
        return "its jwk is not a public key"
    key = _key_of(header.jwk, [algorithm for algorithm in algorithms if algorithm == token.algorithm])
    if key is None:
        return "its jwk is not a key for its alg"
    if not key.has_signed(token):
        return "its signature is not its key's"
    return Proof(token.claims, _thumbprint_of(_read_jwk(header.jwk)))


_PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


def _thumbprint_of(jwk: _Jwk) -> str:
    """The digest of a key's required members in lexicographic order (RFC 7638)."""
    match jwk.kty:
        case "RSA":
            members = {"e": jwk.e, "kty": jwk.kty, "n": jwk.n}
        case "EC":
            members = {"crv": jwk.crv, "kty": jwk.kty, "x": jwk.x, "y": jwk.y}
        case _:
            members = {"crv": jwk.crv, "kty": jwk.kty, "x": jwk.x}
    return base64url(hashlib.sha256(msgspec.json.encode(members)).digest())


def base64url(raw: bytes) -> str:
    """Encode bytes as base64url without padding, as JWTs do."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


# -- keys ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """A public key of an issuer and its only algorithm."""

    id: str | None
    algorithm: Algorithm
    public: PublicKey

    def has_signed(self, token: SignedToken) -> bool:
        """Whether this key signed the token with the key's own algorithm."""
        if token.algorithm != self.algorithm:
            return False
        public, bits, signature = self.public, self.algorithm[2:], token.signature
        try:
            match public:
                case rsa.RSAPublicKey():
                    pss = padding.PSS(padding.MGF1(_HASHES[bits]), padding.PSS.DIGEST_LENGTH)
                    filled = padding.PKCS1v15() if self.algorithm.startswith("RS") else pss
                    public.verify(signature, token.signed, filled, _HASHES[bits])
                case ec.EllipticCurvePublicKey():
                    public.verify(_as_der(signature, public.curve), token.signed, ec.ECDSA(_HASHES[bits]))
                case ed25519.Ed25519PublicKey():
                    public.verify(signature, token.signed)
        except (InvalidSignature, ValueError):
            return False
        return True


def _as_der(signature: bytes, curve: ec.EllipticCurve) -> bytes:
    """Convert a raw ECDSA signature to DER. Zeros are refused: a broken verifier would accept them for any message."""
    size = (curve.key_size + 7) // 8
    if len(signature) != 2 * size:
        raise ValueError("a signature of another length")
    first, second = int.from_bytes(signature[:size]), int.from_bytes(signature[size:])
    if not (first and second):
        raise ValueError("a signature of zeros")
    return encode_dss_signature(first, second)


class KeySet:
    """The keys of one issuer by their ids."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def removed_in(self, newer: KeySet) -> tuple[Key, ...]:
        """The keys that a newer set no longer contains."""
        published = newer._keys
        return tuple(jwk for jwk in self._keys if jwk not in published)

    def for_token(self, token: SignedToken) -> tuple[Key, ...]:
        """The keys that may have signed a token: those with its key id, or the only key if the token has no id."""
        if token.key_id is None:
            return self._keys if len(self._keys) == 1 else ()
        return tuple(key for key in self._keys if key.id == token.key_id)


class _Jwk(msgspec.Struct, frozen=True):
    """A published key. It declares `d` in order to refuse private keys."""

    kty: str
    use: str | None = None
    key_ops: tuple[str, ...] | None = None
    alg: str | None = None
    kid: str | None = None
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""
    d: str | None = None


class _Jwks(msgspec.Struct, frozen=True):
    keys: list[msgspec.Raw]


_read_jwks = msgspec.json.Decoder(_Jwks).decode
_read_jwk = msgspec.json.Decoder(_Jwk).decode


def read_keys(document: bytes, algorithms: Sequence[Algorithm]) -> KeySet:
    """Read the keys of a JWK set that fit one of these algorithms, and ignore the others.

    Raises:
        ValueError: this is not a JWK set, or none of its keys fits.
    """
    try:
        published = _read_jwks(document).keys
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not a set of keys") from error
    if len(published) > KEYS_MAX:
        raise ValueError(f"it has more than {KEYS_MAX} keys")
    keys = [key for each in published if (key := _key_of(each, algorithms)) is not None]
    if not keys:
        raise ValueError(f"none of its keys is for {', '.join(algorithms)}")
    return KeySet(keys)


def _key_of(raw: msgspec.Raw, algorithms: Sequence[Algorithm]) -> Key | None:
    """A published key; None if it is malformed, private, weak or for another purpose."""
    try:
        jwk = _read_jwk(raw)
        is_for_signatures = jwk.use in (None, "sig") and (jwk.key_ops is None or "verify" in jwk.key_ops)
        if not is_for_signatures or jwk.d is not None:
            return None
        algorithm = _algorithm_of(jwk, algorithms)
        return None if algorithm is None else Key(jwk.kid, algorithm, _public_key(jwk))
    except (ValueError, UnsupportedAlgorithm, RecursionError):
        return None


def _algorithm_of(jwk: _Jwk, algorithms: Sequence[Algorithm]) -> Algorithm | None:
    """The algorithm of a key: its `alg` if that is possible, else the one that follows from its type.

    An RSA key without `alg` uses the first configured RSA algorithm.
    """
    possible: list[Algorithm] = []
    match jwk.kty:
        case "RSA":
            possible = [each for each in ALGORITHMS if each.startswith(("RS", "PS"))]
        case "EC" if jwk.crv in _CURVES:
            possible = [_CURVES[jwk.crv][1]]
        case "OKP" if jwk.crv == "Ed25519":
            possible = ["EdDSA"]
        case _:
            pass
    return next((algorithm for algorithm in algorithms if algorithm in possible and jwk.alg in (None, algorithm)), None)


def _public_key(jwk: _Jwk) -> PublicKey:
    """Raises: ValueError, UnsupportedAlgorithm."""
    match jwk.kty:
        case "RSA":
            modulus = _number(jwk.n)
            if modulus.bit_length() not in RSA_BITS:
                raise ValueError("an RSA key of another length")
            exponent = _number(jwk.e)
            if exponent.bit_length() > RSA_EXPONENT_BITS_MAX:
                raise ValueError("an RSA key with a long exponent")
            return rsa.RSAPublicNumbers(exponent, modulus).public_key()
        case "EC":
            return ec.EllipticCurvePublicNumbers(_number(jwk.x), _number(jwk.y), _CURVES[jwk.crv][0]).public_key()
        case _:
            return ed25519.Ed25519PublicKey.from_public_bytes(_from_base64(jwk.x.encode()))


def _number(text: str) -> int:
    return int.from_bytes(_from_base64(text.encode()))
