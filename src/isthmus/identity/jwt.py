"""Signed tokens (JWT in the compact form of JWS), taken apart and checked; and the public keys that check them.

No network, no clock and no opinion on who may call: `identity.issuers` has these. What a token says of its own key
(`jku`, `jwk`, `x5u`, `x5c`) is never looked at, and an algorithm belongs to a key: a token's header can only agree with
it. There is no symmetric algorithm here, and none that signs nothing, so that neither can be chosen by mistake.

A proof of possession (RFC 9449) is no token: it brings its key (`jwk`), and only says that its sender has that key.
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

from isthmus.identity.settings import ALGORITHMS, Algorithm
from isthmus.wire.jsonrpc import object_members

TOKEN_BYTES_MAX = 8 * 1024
"""Several times what issuers put into one; also the bound of its header."""

KEYS_MAX = 64
"""Keys of one issuer; most have two or three."""

KEY_ID_LENGTH_MAX = 256
RSA_BITS = range(2048, 8193)
"""Shorter keys can be broken, longer ones keep the loop busy."""

RSA_EXPONENT_BITS_MAX = 64
"""Issuers have 65537. With one as long as the key, a few dozen keys of one id take half a second for every token."""

_KINDS = ("jwt", "at+jwt", "application/at+jwt")
"""What a token may call itself. Others are made for another purpose, such as to say that somebody logged out."""

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
    """What a token says; nothing of it is proven before `Key.has_signed` says so."""

    algorithm: str
    key_id: str | None
    claims: Mapping[str, Any]
    signed: bytes
    signature: bytes

    @property
    def issuer(self) -> str:
        """Whom it says it is from; nobody if it does not say."""
        issuer = self.claims.get("iss")
        return issuer if isinstance(issuer, str) else ""


def looks_signed(credential: bytes) -> bool:
    """Whether a credential has the form of such a token, so that no key can be meant."""
    return credential.count(b".") == 2 and credential.startswith(b"ey")


def read_token(credential: bytes) -> SignedToken | str:
    """Take a token apart, or say why it is none."""
    parts = _parts_of(credential)
    return parts if isinstance(parts, str) else _token_of(credential, *parts, _KINDS)


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
    header = _header_of(head, kinds)
    if isinstance(header, str):
        return header
    claims = _claims_of(body)
    if claims is None:
        return "its claims are not a JSON object that has no member twice"
    return SignedToken(header.alg, header.kid, claims, credential.rpartition(b".")[0], signature)


def _header_of(text: bytes, kinds: Sequence[str]) -> _Header | str:
    members = _members_of(text)
    if members is None:
        return "its header is not a JSON object that has no member twice"
    if "crit" in members:
        return "its header names extensions that must be understood, and none is"
    if "enc" in members:
        return "it is encrypted"
    try:
        header = _read_header(text)
    except (ValueError, RecursionError):
        return "its header does not name an algorithm"
    if header.typ is not None and header.typ.lower() not in kinds:
        return "it is not an access token" if kinds is _KINDS else f"its typ is not {PROOF_KIND}"
    if header.kid is not None and len(header.kid) > KEY_ID_LENGTH_MAX:
        return "the id of its key is too long"
    return header


def _claims_of(text: bytes) -> Mapping[str, Any] | None:
    try:
        return None if _members_of(text) is None else _read_claims(text)
    except (ValueError, RecursionError):
        return None


def _members_of(text: bytes) -> Mapping[str, msgspec.Raw] | None:
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return object_members(text)


def _from_base64(text: bytes) -> bytes:
    """The bytes of base64url without padding, in its one spelling. Raises: ValueError."""
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
    """What a proof says, which its key has signed; whose key that is, its thumbprint tells (RFC 7638)."""

    claims: Mapping[str, Any]
    thumbprint: str


def read_proof(proof: bytes, algorithms: Sequence[Algorithm]) -> Proof | str:
    """Take a proof apart and check its signature by the key that it brings; or say what is wrong with it."""
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
    key = _key_of(header.jwk, [each for each in algorithms if each == token.algorithm])
    if key is None:
        return "its jwk is not a key for its alg"
    if not key.has_signed(token):
        return "its signature is not its key's"
    return Proof(token.claims, _thumbprint_of(_read_jwk(header.jwk)))


_PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


def _thumbprint_of(jwk: _Jwk) -> str:
    """The digest of a key's required members, in their order (RFC 7638)."""
    match jwk.kty:
        case "RSA":
            members = {"e": jwk.e, "kty": jwk.kty, "n": jwk.n}
        case "EC":
            members = {"crv": jwk.crv, "kty": jwk.kty, "x": jwk.x, "y": jwk.y}
        case _:
            members = {"crv": jwk.crv, "kty": jwk.kty, "x": jwk.x}
    return base64url(hashlib.sha256(msgspec.json.encode(members)).digest())


def base64url(raw: bytes) -> str:
    """Bytes as JWTs have them, without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


# -- keys ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """A public key of an issuer, and the one algorithm it is used with."""

    id: str | None
    algorithm: Algorithm
    public: PublicKey

    def has_signed(self, token: SignedToken) -> bool:
        """Whether this key signed the token, with its own algorithm, whatever the token would like."""
        if token.algorithm != self.algorithm:
            return False
        try:
            _verify(self.public, self.algorithm, token.signature, token.signed)
        except (InvalidSignature, ValueError):
            return False
        return True


def _verify(public: PublicKey, algorithm: Algorithm, signature: bytes, signed: bytes) -> None:
    """Raises: InvalidSignature, or ValueError where no signature can look like this."""
    match public:
        case rsa.RSAPublicKey():
            public.verify(signature, signed, _padding(algorithm), _HASHES[algorithm[2:]])
        case ec.EllipticCurvePublicKey():
            public.verify(_as_der(signature, public.curve), signed, ec.ECDSA(_HASHES[algorithm[2:]]))
        case ed25519.Ed25519PublicKey():
            public.verify(signature, signed)


def _padding(algorithm: Algorithm) -> padding.AsymmetricPadding:
    if algorithm.startswith("RS"):
        return padding.PKCS1v15()
    return padding.PSS(padding.MGF1(_HASHES[algorithm[2:]]), padding.PSS.DIGEST_LENGTH)


def _as_der(signature: bytes, curve: ec.EllipticCurve) -> bytes:
    """Two numbers side by side as cryptography reads them. Neither may be 0, by which everything would be signed."""
    size = (curve.key_size + 7) // 8
    if len(signature) != 2 * size:
        raise ValueError("a signature of another length")
    first, second = int.from_bytes(signature[:size]), int.from_bytes(signature[size:])
    if not (first and second):
        raise ValueError("a signature of zeros")
    return encode_dss_signature(first, second)


class KeySet:
    """The keys of one issuer, found by the id that a token names."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def gone_from(self, newer: KeySet) -> tuple[Key, ...]:
        """Those of these that a newer set does not have."""
        published = newer._keys
        return tuple(each for each in self._keys if each not in published)

    def for_token(self, token: SignedToken) -> tuple[Key, ...]:
        """The keys that may have signed a token: those of its id, or where it names none, the only one there is."""
        if token.key_id is None:
            return self._keys if len(self._keys) == 1 else ()
        return tuple(key for key in self._keys if key.id == token.key_id)


class _Jwk(msgspec.Struct, frozen=True):
    """One key as issuers publish it. Members that would be private are there to be refused."""

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
    """The keys in a set of them that can check one of these algorithms; others are for somebody else.

    Raises:
        ValueError: it is no set of keys, or none of them is of use.
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
    """A published key; None if it is for something else, private, weak, or none."""
    try:
        jwk = _read_jwk(raw)
        if not _is_for_signatures(jwk) or jwk.d is not None:
            return None
        algorithm = _algorithm_of(jwk, algorithms)
        return None if algorithm is None else Key(jwk.kid, algorithm, _public_key(jwk))
    except (ValueError, UnsupportedAlgorithm, RecursionError):
        return None


def _is_for_signatures(jwk: _Jwk) -> bool:
    return jwk.use in (None, "sig") and (jwk.key_ops is None or "verify" in jwk.key_ops)


def _algorithm_of(jwk: _Jwk, algorithms: Sequence[Algorithm]) -> Algorithm | None:
    """The one algorithm of a key: what it says itself if it can be so, else what follows from its kind.

    An RSA key that does not say is used with the first RSA algorithm of those that are configured.
    """
    possible = _possible(jwk)
    if jwk.alg is not None:
        possible = tuple(each for each in possible if each == jwk.alg)
    return next((each for each in algorithms if each in possible), None)


def _possible(jwk: _Jwk) -> tuple[Algorithm, ...]:
    match jwk.kty:
        case "RSA":
            return tuple(each for each in ALGORITHMS if each.startswith(("RS", "PS")))
        case "EC" if jwk.crv in _CURVES:
            return (_CURVES[jwk.crv][1],)
        case "OKP" if jwk.crv == "Ed25519":
            return ("EdDSA",)
        case _:
            return ()


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
