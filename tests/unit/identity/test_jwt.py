"""Tokens are taken apart strictly, and a key checks them with its own algorithm only."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, get_args

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from isthmus.identity.jwt import KEYS_MAX, TOKEN_BYTES_MAX, KeySet, SignedToken, looks_signed, read_keys, read_token
from isthmus.identity.settings import ALGORITHMS, Algorithm
from tests.issuer import encoded, jwk_of, jwks, private_key

CLAIMS = {"iss": "https://login.example", "sub": "alice"}


def _signed(algorithm: str, **header: Any) -> bytes:
    return jwt.encode(CLAIMS, private_key(algorithm), algorithm=algorithm, headers=header).encode()


def _read(credential: bytes) -> SignedToken:
    token = read_token(credential)
    assert isinstance(token, SignedToken), token
    return token


def _keys(algorithm: str, *algorithms: Algorithm, **members: Any) -> KeySet:
    return read_keys(jwks(jwk_of(private_key(algorithm), **members)), algorithms or ALGORITHMS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_that_another_implementation_signed_is_genuine(algorithm: Algorithm) -> None:
    token = _read(_signed(algorithm, kid="k"))
    [key] = _keys(algorithm, kid="k", alg=algorithm).for_token(token)

    assert key.has_signed(token)
    assert token.claims == CLAIMS
    assert token.issuer == CLAIMS["iss"]


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES512", "EdDSA"])
def test_a_token_with_anything_changed_is_not(algorithm: Algorithm) -> None:
    credential = _signed(algorithm)
    keys = _keys(algorithm, alg=algorithm)
    for position in range(0, len(credential), 7):
        other = bytearray(credential)
        other[position] = ord("A") if other[position] != ord("A") else ord("B")
        token = read_token(bytes(other))
        assert isinstance(token, str) or not any(key.has_signed(token) for key in keys.for_token(token))


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(31) + b"\x01" + bytes(32), bytes(72)])
def test_a_signature_of_zeros_or_of_another_length_is_rejected(signature: bytes) -> None:
    token = _read(f"{encoded({'alg': 'ES256'})}.{encoded(CLAIMS)}.{encoded(signature)}".encode())
    [key] = _keys("ES256").for_token(token)
    assert not key.has_signed(token)


def test_a_key_has_one_algorithm_despite_the_tokens_header() -> None:
    other = {"RS256": "PS256", "PS256": "RS256", "RS384": "RS512"}
    for mine, theirs in other.items():
        [key] = _keys(mine, alg=mine).for_token(_read(_signed(mine)))
        token = _read(jwt.encode(CLAIMS, private_key(mine), algorithm=theirs).encode())
        assert not key.has_signed(token)
        genuine = _read(_signed(mine))
        assert key.has_signed(genuine)
        for said in ("none", theirs, mine.lower()):
            assert not key.has_signed(replace(genuine, algorithm=said)), "a header that says otherwise is not believed"


@pytest.mark.parametrize(
    ("algorithm", "configured", "expected"),
    [
        ("RS256", ALGORITHMS, "RS256"),
        ("RS256", ("ES256", "PS384", "RS256"), "PS384"),
        ("ES384", ALGORITHMS, "ES384"),
        ("EdDSA", ("EdDSA",), "EdDSA"),
    ],
)
def test_a_key_that_names_no_algorithm_has_that_of_its_kind(
    algorithm: str, configured: tuple[Algorithm, ...], expected: str
) -> None:
    [key] = _keys(algorithm, *configured).for_token(SignedToken(expected, None, {}, b"", b""))
    assert key.algorithm == expected


@pytest.mark.parametrize(
    "members",
    [
        {"alg": "HS256"},
        {"alg": "ES256"},
        {"alg": "RS512"},
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"d": "AQAB"},
        {"n": "AQAB"},
        {"n": "!"},
        {"e": ""},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"},
        {"kty": "EC", "crv": "secp256k1"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AQ"},
        {"kty": "OKP", "crv": "X25519", "x": "AQ"},
        {"kty": 1},
    ],
)
def test_keys_that_are_not_for_this_are_left_out(members: dict[str, Any]) -> None:
    good = jwk_of(private_key("RS256"), kid="good", alg="RS256")
    bad = {**jwk_of(private_key("RS256", 1), kid="bad"), **members}

    keys = read_keys(jwks(bad, good), ("RS256",))

    assert len(keys) == 1
    assert keys.for_token(SignedToken("RS256", "bad", {}, b"", b"")) == ()
    with pytest.raises(ValueError, match="none of its keys"):
        read_keys(jwks(bad), ("RS256",))


def test_a_short_rsa_key_is_left_out() -> None:
    weak = rsa.generate_private_key(65537, 1024)
    with pytest.raises(ValueError, match="none of its keys"):
        read_keys(jwks(jwk_of(weak)), ALGORITHMS)
    slow = {**jwk_of(private_key("RS256")), "e": encoded(b"\x01" * 200)}
    with pytest.raises(ValueError, match="none of its keys"):
        read_keys(jwks(slow), ALGORITHMS)


@pytest.mark.parametrize("document", [b"", b"[]", b'{"keys":{}}', b'{"keys":[1]}', b"\xff", b'{"keys":' + b"[" * 9999])
def test_an_invalid_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is not a set of keys|none of its keys"):
        read_keys(document, ALGORITHMS)


def test_a_key_set_over_the_limit_is_rejected() -> None:
    one = jwk_of(private_key("EdDSA"))
    assert len(read_keys(jwks(*[one] * KEYS_MAX), ALGORITHMS)) == KEYS_MAX
    with pytest.raises(ValueError, match="more than"):
        read_keys(jwks(*[one] * (KEYS_MAX + 1)), ALGORITHMS)


def test_a_key_is_only_looked_up_by_its_id() -> None:
    keys = read_keys(jwks(jwk_of(private_key("EdDSA"), kid="a"), jwk_of(private_key("ES256"), kid="b")), ALGORITHMS)

    assert [key.id for key in keys.for_token(SignedToken("EdDSA", "a", {}, b"", b""))] == ["a"]
    assert keys.for_token(SignedToken("EdDSA", "../../dev/null", {}, b"", b"")) == ()
    assert keys.for_token(SignedToken("EdDSA", None, {}, b"", b"")) == (), "which of two is meant, nobody can say"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"alg": "RS256", "crit": ["b64"], "b64": False}, "extensions"),
        ({"alg": "RS256", "crit": []}, "extensions"),
        ({"alg": "RSA-OAEP", "enc": "A256GCM"}, "encrypted"),
        ({}, "algorithm"),
        ({"alg": None}, "algorithm"),
        ({"alg": 1}, "algorithm"),
        ({"alg": "RS256", "typ": "logout+jwt"}, "access token"),
        ({"alg": "RS256", "kid": 1}, "algorithm"),
        ({"alg": "RS256", "kid": "k" * 257}, "too long"),
        (b'{"alg":"RS256","alg":"none"}', "unique members"),
        (b"[]", "unique members"),
        (b'{"alg":"\xff"}', "unique members"),
        (b"{" * 2000, "unique members"),
    ],
)
def test_a_header_that_cannot_be_honoured_is_refused(header: object, reason: str) -> None:
    said = read_token(f"{encoded(header)}.{encoded(CLAIMS)}.AA".encode())
    assert isinstance(said, str)
    assert reason in said


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+JWT", None])
def test_an_access_token_may_say_that_it_is_one(kind: str | None) -> None:
    header = {"alg": "RS256", **({} if kind is None else {"typ": kind})}
    assert isinstance(read_token(f"{encoded(header)}.{encoded(CLAIMS)}.AA".encode()), SignedToken)


@pytest.mark.parametrize(
    "credential",
    [
        b"",
        b"a.b",
        b"..",
        b"a.b.c.d.e",
        b"e30=.e30.AA",
        b"e30 .e30.AA",
        b"e30+.e30.AA",
        encoded({"alg": "RS256"}).encode() + b".W10.AA",
        encoded({"alg": "RS256"}).encode() + b".bnVsbA.AA",
        encoded({"alg": "RS256"}).encode() + b".e30.AB",
        b"ey" + b"a" * TOKEN_BYTES_MAX + b"..",
    ],
)
def test_text_that_is_not_a_token_is_reported(credential: bytes) -> None:
    assert isinstance(read_token(credential), str)


def test_only_text_in_the_form_of_a_token_is_parsed() -> None:
    assert looks_signed(_signed("RS256"))
    assert not looks_signed(b"0123456789abcdef")
    assert not looks_signed(b"a.key.with-dots")


@given(st.binary(max_size=400))
def test_no_credential_makes_it_raise(credential: bytes) -> None:
    assert isinstance(read_token(credential), str | SignedToken)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_no_header_makes_it_raise(value: Any) -> None:
    head = {"alg": value, "kid": value, "typ": value}
    assert isinstance(read_token(f"{encoded(head)}.{encoded({'exp': value})}.AA".encode()), str | SignedToken)


def test_every_algorithm_is_asymmetric() -> None:
    assert set(ALGORITHMS) == set(get_args(Algorithm))
    assert not any(algorithm.startswith("HS") or algorithm.lower() == "none" for algorithm in ALGORITHMS)


def test_another_spelling_of_the_same_bytes_is_another_token() -> None:
    head, body, signature = _signed("ES256").decode().split(".")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    changed = last[last.index(signature[-1]) ^ 1]
    assert isinstance(read_token(f"{head}.{body}.{signature[:-1]}{changed}".encode()), str)


def test_times_are_not_looked_at_here() -> None:
    credential = jwt.encode({**CLAIMS, "exp": int(time.time()) - 9}, private_key("EdDSA"), algorithm="EdDSA").encode()
    assert json.dumps(_read(credential).claims)
