"""Proofs of possession (RFC 9449): the document's own examples, and every kind of error."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.identity import dpop_proofs as module
from isthmus.identity.dpop_proofs import (
    NONCE_SECONDS,
    PROOF_ALGORITHMS,
    PROOF_SECONDS,
    ProofRefused,
    Proofs,
    ProvenRequest,
)
from isthmus.identity.jwt import read_proof
from tests.issuer import encoded, jwk_of, private_key, thumbprint

NOW = 1_700_000_000.0
URL = "https://hub.example/mcp"
TOKEN = b"ey.a.token"

RFC_KEY = (
    "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6IkVDIiwieCI6Imw4dEZyaHgtMzR0VjNoUklDUkRZOXpDa0RscEJo"
    "RjQyVVFVZldWQVdCRnMiLCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERWclUwQ2R2R1JEQSIsImNydiI6IlAtMjU2In19"
)
RFC_TOKEN_REQUEST = (
    f"{RFC_KEY}.eyJqdGkiOiItQndDM0VTYzZhY2MybFRjIiwiaHRtIjoiUE9TVCIsImh0dSI6Imh0dHBzOi8vc2VydmVyLmV4YW1wbGUuY29tL3Rva2Vu"
    "IiwiaWF0IjoxNTYyMjYyNjE2fQ.2-GxA6T8lP4vfrg8v-FdWP0A0zdrj8igiMLvqRMUvwnQg4PtFLbdLXiOSsX0x7NVY-FNyJK70nfbV37xRZT3Lg"
).encode()
"""Section 4.1."""
RFC_RESOURCE_REQUEST = (
    f"{RFC_KEY}.eyJqdGkiOiJlMWozVl9iS2ljOC1MQUVCIiwiaHRtIjoiR0VUIiwiaHR1IjoiaHR0cHM6Ly9yZXNvdXJjZS5leGFtcGxlLm9yZy9wcm90"
    "ZWN0ZWRyZXNvdXJjZSIsImlhdCI6MTU2MjI2MjYxOCwiYXRoIjoiZlVIeU8ycjJaM0RaNTNFc05yV0JiMHhXWG9hTnk1OUlpS0NBcWtzbVFFbyJ9"
    ".2oW9RP35yRqzhrtNP86L-Ey71EOptxRimPPToA1plemAgR6pxHF8y6-yqyVnmcw6Fy1dqd-jfxSYoMxhAJpLjA"
).encode()
"""Section 7.1."""
RFC_TOKEN = b"Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU"
RFC_THUMBPRINT = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"


class World:
    """A hub that has run for a while, by a clock that a test sets."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now - 600
        self.proofs = Proofs(lambda: self.now, lambda: b"a secret")
        self.now = now

    def check(self, proof: str | bytes, url: str = URL, *, wants_nonce: bool = False, **asked: Any) -> str | None:
        """Why a proof is refused."""
        refused = self.refused(proof, url, wants_nonce=wants_nonce, **asked)
        return None if refused is None else refused.reason

    def refused(
        self,
        proof: str | bytes,
        url: str = URL,
        *,
        wants_nonce: bool = False,
        method: str = "POST",
        token: bytes = TOKEN,
        bound_to: str | None = None,
    ) -> ProofRefused | None:
        given = proof.encode() if isinstance(proof, str) else proof
        asked = ProvenRequest(given, method, [url])
        return self.proofs.check(asked, token, bound_to or thumbprint_of("ES256"), wants_nonce=wants_nonce)


def thumbprint_of(algorithm: str, number: int = 0) -> str:
    return thumbprint(jwk_of(private_key(algorithm, number)))


def proof(algorithm: str = "ES256", number: int = 0, head: dict[str, Any] | None = None, **claims: Any) -> str:
    """A good proof, but for what is said otherwise; None leaves something out."""
    key = private_key(algorithm, number)
    usual = {
        "jti": f"id-{claims.get('iat')}",
        "htm": "POST",
        "htu": URL,
        "iat": int(NOW),
        "ath": encoded(hashlib.sha256(TOKEN).digest()),
    }
    said = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    names = {"typ": "dpop+jwt", "jwk": jwk_of(key), **(head or {})}
    return jwt.encode(said, key, algorithm=algorithm, headers={k: v for k, v in names.items() if v is not None})


# -- the document's own ----------------------------------------------------------------------------------------------


def test_the_request_of_the_document_is_good_once() -> None:
    world = World(1_562_262_619.0)
    asked: Any = {"method": "GET", "token": RFC_TOKEN, "bound_to": RFC_THUMBPRINT}
    place = "https://resource.example.org/protectedresource"
    assert world.check(RFC_RESOURCE_REQUEST, place, **asked) is None
    assert world.check(RFC_RESOURCE_REQUEST, place, **asked) == "it was used already"


def test_the_token_request_of_the_document_is_no_proof_of_a_token() -> None:
    world = World(1_562_262_617.0)
    place = "https://server.example.com/token"
    received = world.check(RFC_TOKEN_REQUEST, place, token=RFC_TOKEN, bound_to=RFC_THUMBPRINT)
    assert received == "its ath is not the digest of the token"


# -- what is good ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", PROOF_ALGORITHMS)
def test_every_algorithm_that_is_offered_is_taken(algorithm: str) -> None:
    assert World().check(proof(algorithm), bound_to=thumbprint_of(algorithm)) is None


@pytest.mark.parametrize(
    ("htu", "url"),
    [
        ("HTTPS://Hub.Example:443/mcp", URL),
        (f"{URL}?session=1#x", URL),
        ("https://hub.example", "https://hub.example/"),
        ("https://hub.example/mcp/%7Ea%2fb", "https://hub.example/mcp/~a%2Fb"),
        ("http://[::1]:80/mcp", "http://[::1]/mcp"),
    ],
)
def test_an_address_may_be_spelt_otherwise(htu: str, url: str) -> None:
    assert World().check(proof(htu=htu), url) is None


@pytest.mark.parametrize("seconds", [-PROOF_SECONDS, 0, PROOF_SECONDS])
def test_clocks_may_differ(seconds: float) -> None:
    assert World().check(proof(iat=NOW + seconds)) is None


# -- what is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"htm": "GET"}, "its htm"),
        ({"htm": "post"}, "its htm"),
        ({"htm": None}, "its htm"),
        ({"htu": "https://hub.example/mcp/files"}, "its htu is not https://hub.example/mcp"),
        ({"htu": "https://hub.example/mcp/"}, "its htu"),
        ({"htu": "http://hub.example/mcp"}, "its htu"),
        ({"htu": "https://other.example/mcp"}, "its htu"),
        ({"htu": "https://hub.example:8443/mcp"}, "its htu"),
        ({"htu": "https://hub.example@hub.example/mcp"}, "its htu"),
        ({"htu": "https://hub.example:x/mcp"}, "its htu"),
        ({"htu": ["https://hub.example/mcp"]}, "its htu"),
        ({"htu": None}, "its htu"),
        ({"ath": encoded(hashlib.sha256(b"another").digest())}, "its ath"),
        ({"ath": base64.b64encode(hashlib.sha256(TOKEN).digest()).decode()}, "its ath"),
        ({"ath": None}, "its ath"),
        ({"iat": int(NOW - PROOF_SECONDS - 1)}, "its iat"),
        ({"iat": int(NOW + PROOF_SECONDS + 1)}, "its iat"),
        ({"iat": 1e300}, "its iat"),
        ({"iat": str(NOW)}, "it has no iat"),
        ({"iat": True}, "it has no iat"),
        ({"iat": None}, "it has no iat"),
        ({"jti": ""}, "it has no jti"),
        ({"jti": "x" * 257}, "it has no jti"),
        ({"jti": 1}, "it has no jti"),
        ({"jti": None}, "it has no jti"),
    ],
)
def test_a_proof_of_something_else_is_refused(claims: dict[str, Any], expected: str) -> None:
    assert (World().check(by_hand(claims)) or "").startswith(expected)


def by_hand(claims: dict[str, Any], head: dict[str, Any] | None = None) -> str:
    """A proof that PyJWT would not make."""
    key = private_key("ES256", 0)
    usual = {"htm": "POST", "htu": URL, "iat": NOW, "jti": "one", "ath": encoded(hashlib.sha256(TOKEN).digest())}
    said = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    names = {"typ": "dpop+jwt", "alg": "ES256", "jwk": jwk_of(key), **(head or {})}
    text = f"{encoded({name: value for name, value in names.items() if value is not None})}.{encoded(said)}"
    signing = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    return f"{text}.{encoded(signing.sign(text.encode(), key))}"  # type: ignore[arg-type]


PRIVATE = private_key("ES256", 0)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({"typ": "JWT"}, "its typ is not dpop+jwt"),
        ({"typ": "at+jwt"}, "its typ is not dpop+jwt"),
        ({"typ": None}, "its header does not have the typ"),
        ({"jwk": None}, "its header does not have the typ dpop+jwt and a jwk"),
        ({"jwk": "a key"}, "its jwk is not a public key"),
        ({"jwk": {**jwk_of(PRIVATE), "d": "AQ"}}, "its jwk is not a public key"),
        ({"jwk": {"kty": "oct", "k": "c2VjcmV0"}}, "its jwk is not a public key"),
        ({"jwk": {"kty": "oct"}}, "its jwk is not a key for its alg"),
        ({"jwk": jwk_of(private_key("RS256", 0))}, "its jwk is not a key for its alg"),
        ({"jwk": jwk_of(private_key("ES256", 1))}, "its signature is not its key's"),
        ({"jwk": {**jwk_of(PRIVATE), "alg": "ES384"}}, "its jwk is not a key for its alg"),
        ({"alg": "none"}, "its alg is not one of"),
        ({"alg": "HS256"}, "its alg is not one of"),
        ({"alg": "ES256K"}, "its alg is not one of"),
        ({"crit": ["x"]}, "its header requires extensions"),
    ],
)
def test_a_proof_that_its_own_key_did_not_sign_is_refused(head: dict[str, Any], expected: str) -> None:
    assert (World().check(by_hand({}, head)) or "").startswith(expected)


def test_a_key_that_the_token_is_not_bound_to_proves_nothing() -> None:
    received = World().check(proof(number=1))
    assert received == "its key is not the key that the token is bound to"


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_an_invalid_proof_is_refused_and_never_raises(noise: bytes) -> None:
    for given_ in (noise, b".".join((encoded(noise).encode(),) * 3), b""):
        assert isinstance(read_proof(given_, PROOF_ALGORITHMS), str)


# -- none is good twice ----------------------------------------------------------------------------------------------


def test_a_proof_is_good_once_for_as_long_as_it_would_be_good() -> None:
    world = World()
    shown = proof(jti="one", iat=int(NOW))
    assert world.check(shown) is None
    world.now += PROOF_SECONDS
    assert world.check(shown) == "it was used already"
    assert world.check(proof(jti="one", iat=int(world.now))) == "it was used already"
    assert world.check(proof(number=1, jti="one"), bound_to=thumbprint_of("ES256", 1)) is None, "another's id"
    world.now += 1
    assert (world.check(shown) or "").startswith("its iat")


def test_a_rejected_proof_is_not_used_up() -> None:
    world = World()
    assert world.check(proof(jti="one"), method="GET") is not None
    assert world.check(proof(jti="one")) is None


def test_remembered_proofs_are_bounded_and_forgotten_ones_stay_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PROOFS_MAX", 3)
    world = World()
    shown = [proof(jti=f"p{second}", iat=int(NOW) + second) for second in range(5)]
    assert [world.check(each) for each in shown] == [None] * 5
    received = "it is too old: the hub no longer knows which proofs of that time were used"
    assert [world.check(each) for each in shown] == [received, received, *["it was used already"] * 3]


def test_proofs_from_before_the_start_are_refused_as_they_may_have_been_used() -> None:
    world = World()
    world.proofs = Proofs(lambda: world.now, lambda: b"a secret")
    assert (world.check(proof(jti="before", iat=int(NOW) - 1)) or "").startswith("it is too old")
    assert world.check(proof(jti="after", iat=int(NOW))) is None


def test_a_clock_that_is_put_back_does_not_make_a_proof_good_again() -> None:
    world = World()
    shown = proof(jti="one")
    assert world.check(shown) is None
    world.now += PROOF_SECONDS + 1
    assert world.check(proof(jti="two", iat=int(world.now))) is None, "and the first one is forgotten"
    world.now = NOW
    assert (world.check(shown) or "").startswith("it is too old")


# -- nonces ----------------------------------------------------------------------------------------------------------


def test_a_nonce_is_asked_for_and_good_for_some_minutes() -> None:
    world = World()
    refused = world.refused(proof(jti="one"), wants_nonce=True)
    assert refused is not None
    assert refused.reason == "it must contain the hub's nonce"
    assert world.check(proof(jti="one", nonce=refused.nonce), wants_nonce=True) is None
    other = World()
    assert other.check(proof(jti="one", nonce=refused.nonce), wants_nonce=True) is None, "hubs may share a secret"
    world.now += NONCE_SECONDS + 1
    late = world.refused(proof(jti="two", iat=int(world.now), nonce=refused.nonce), wants_nonce=True)
    assert late is not None
    assert late.nonce not in ("", refused.nonce)


@pytest.mark.parametrize("nonce", ["", "x", "6553f100.AAAAAAAAAAAAAAAAAAAAAA", "ä.b", 5, ["x"], "f" * 5000])
def test_a_foreign_nonce_is_not_accepted(nonce: object) -> None:
    refused = World().refused(by_hand({"nonce": nonce}), wants_nonce=True)
    assert refused is not None
    assert refused.nonce
