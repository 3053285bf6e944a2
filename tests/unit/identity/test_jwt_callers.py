"""Valid tokens of a configured issuer identify a caller; invalid ones are rejected with a reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.identity import jwt_callers as module
from isthmus.identity.dpop_proofs import Proofs, ProvenRequest
from isthmus.identity.jwt import Key, KeySet, SignedToken, read_keys, read_token
from isthmus.identity.jwt_callers import KEEP_SECONDS, OPEN_SECONDS, Issuer, Issuers, Unproven
from isthmus.identity.settings import ALGORITHMS, IssuerSettings
from isthmus.model.callers import Caller, Grants, Unprovable
from tests.issuer import encoded, jwk_of, jwks, private_key
from tests.unit.identity.test_dpop_proofs import URL, proof, thumbprint_of

ISSUER = "https://login.example"
HUB = "https://hub.example"
NOW = 1_700_000_000.0


class Clock:
    """Both clocks of a test."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def settings(**more: Any) -> IssuerSettings:
    given = {"grants": Grants(("files.*",)), **more}
    return IssuerSettings(name="corp", issuer=ISSUER, audience=(HUB,), **given)


def keys(kid: str = "one", number: int = 0) -> KeySet:
    return read_keys(jwks(jwk_of(private_key("ES256", number), kid=kid, alg="ES256")), ALGORITHMS)


def made(clock: Clock, *, bound: Callable[[Caller], Caller] = lambda caller: caller, **more: Any) -> Issuer:
    issuer = Issuer(settings(**more), bound, clock, clock)
    issuer.set_keys(keys())
    return issuer


def token(kid: str = "one", number: int = 0, **claims: Any) -> bytes:
    given = {"iss": ISSUER, "aud": HUB, "sub": "alice", "exp": NOW + 600, "iat": NOW, **claims}
    return signed({name: value for name, value in given.items() if value is not None}, kid, number)


def signed(claims: object, kid: str = "one", number: int = 0) -> bytes:
    """By hand: PyJWT would not sign all of these."""
    signing = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    text = f"{encoded({'alg': 'ES256', 'kid': kid})}.{encoded(claims)}"
    return f"{text}.{encoded(signing.sign(text.encode(), private_key('ES256', number)))}".encode()  # type: ignore[arg-type]


def why(issuers: Issuers, credential: bytes) -> Unproven:
    assert issuers.caller_of(credential) is None
    unproven = issuers.refusal_of(credential)
    assert unproven is not None
    return unproven


def test_a_good_token_makes_a_caller() -> None:
    issuers = Issuers([made(Clock(), tenant="acme")])
    caller = issuers.caller_of(token())

    assert caller == Caller("corp/alice", "acme", Grants(("files.*",)))
    assert issuers.refusal_of(token()) is None
    assert issuers.knows(caller)
    assert not issuers.knows(Caller("corp/bob", "acme", Grants(("files.*",))))


def test_where_tokens_are_exchanged_callers_are_distinguished_by_the_rights_of_their_tokens() -> None:
    issuer = made(Clock())
    issuer.separates_rights = True
    issuers = Issuers([issuer])

    def rights(**claims: Any) -> str:
        caller = issuers.caller_of(token(**claims))
        assert isinstance(caller, Caller)
        return caller.rights

    same: list[dict[str, Any]] = [
        *({"scope": "a b"}, {"scope": "b a"}, {"scp": ["a", "b"]}),
        {"scope": "a b", "jti": "x", "exp": NOW + 60},
    ]
    others: list[dict[str, Any]] = [
        *({"scope": "a"}, {}, {"scope": "a b", "azp": "agent"}, {"scope": "a b", "client_id": "agent"}),
        *({"scope": "a b", "act": {"sub": "agent"}}, {"scope": "a b", "act": {"sub": "other"}}),
    ]
    assert len({rights(**claims) for claims in same}) == 1
    assert len({rights(**claims) for claims in (same[0], *others)}) == 1 + len(others)


def test_the_same_subject_of_two_issuers_is_two_callers() -> None:
    clock = Clock()
    other = Issuer(
        IssuerSettings("other", "https://other.example", (HUB,), grants=Grants(("files.*",))), lambda c: c, clock, clock
    )
    other.set_keys(keys("one", 1))
    issuers = Issuers([made(clock), other])

    first = issuers.caller_of(token())
    second = issuers.caller_of(token(number=1, iss="https://other.example"))
    assert isinstance(first, Caller)
    assert isinstance(second, Caller)
    assert (first.tenant, first.name) != (second.tenant, second.name)
    assert issuers.caller_of(token(number=1)) is None, "a key speaks for its own issuer only"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": None}, "another audience"),
        ({"aud": "https://other.example"}, "another audience"),
        ({"aud": f"{HUB}/"}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": {"a": HUB}}, "another audience"),
        ({"iss": None}, "another issuer"),
        ({"iss": f"{ISSUER}/"}, "another issuer"),
        ({"iss": [ISSUER]}, "another issuer"),
        ({"exp": None}, "when it expires"),
        ({"exp": str(int(NOW) + 600)}, "when it expires"),
        ({"exp": True}, "when it expires"),
        ({"exp": [NOW + 600]}, "when it expires"),
        ({"exp": NOW - 31}, "expired"),
        ({"exp": 0}, "expired"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": "soon"}, "not valid yet"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"iat": None, "nbf": True}, "not valid yet"),
        ({"sub": None}, "not a name"),
        ({"sub": ""}, "not a name"),
        ({"sub": " alice"}, "not a name"),
        ({"sub": "al\nice"}, "not a name"),
        ({"sub": "a" * 257}, "not a name"),
        ({"sub": 7}, "not a name"),
    ],
)
def test_a_wrong_or_missing_claim_is_reported(claims: dict[str, Any], reason: str) -> None:
    assert reason in why(Issuers([made(Clock())]), token(**claims)).reason


@pytest.mark.parametrize("exp", [b"1e999", b"1e400", b"-1e9", b"1" + b"0" * 400, b"1" * 5000, b"1e300"])
def test_an_expiry_that_is_not_a_valid_time_is_rejected(exp: bytes) -> None:
    claims = b'{"exp":%b,"iss":"%b","aud":"%b","sub":"a"}' % (exp, ISSUER.encode(), HUB.encode())
    assert why(Issuers([made(Clock())]), signed(claims)).reason in (
        "it does not say when it expires",
        "its claims are not a JSON object with unique members",
    )


@pytest.mark.parametrize(
    "claims", [{"aud": ["x", HUB]}, {"exp": NOW - 29}, {"nbf": NOW + 29}, {"iat": None}, {"exp": NOW + 0.5}]
)
def test_a_claim_within_its_bounds_is_accepted(claims: dict[str, Any]) -> None:
    assert isinstance(Issuers([made(Clock())]).caller_of(token(**claims)), Caller)


def test_a_token_is_good_until_it_expires_however_often_it_was_shown() -> None:
    clock = Clock()
    issuers = Issuers([made(clock)])
    credential = token(exp=NOW + 100)
    caller = issuers.caller_of(credential)
    assert isinstance(caller, Caller)

    clock.now = NOW + 129
    assert issuers.caller_of(credential) == caller
    clock.now = NOW + 131
    assert "expired" in why(issuers, credential).reason
    assert why(issuers, credential).is_genuine, "who shows it does not guess"
    assert not why(issuers, credential[:-8] + b"AAAAAAAA").is_genuine
    assert issuers.knows(caller), "who renews its token just now finds what it had open"
    clock.now = NOW + 131 + OPEN_SECONDS
    assert not issuers.knows(caller)


def test_a_signature_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[SignedToken] = []
    genuine = Key.has_signed

    def has_signed(key: Key, token: SignedToken) -> bool:
        checked.append(token)
        return genuine(key, token)

    monkeypatch.setattr(Key, "has_signed", has_signed)
    issuers = Issuers([made(Clock())])
    credential = token()
    for _ in range(3):
        assert isinstance(issuers.caller_of(credential), Caller)
    assert len(checked) == 1
    assert "signature" in why(issuers, token(number=1)).reason
    assert len(checked) == 2, "why it was refused is known from when it was"


def test_remembered_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOKENS_MAX", 2)
    monkeypatch.setattr(module, "CALLERS_MAX", 2)
    issuer = made(Clock())
    issuers = Issuers([issuer])
    callers = [issuers.caller_of(token(sub=name)) for name in ("a", "b", "c")]
    assert [isinstance(caller, Caller) and issuers.knows(caller) for caller in callers] == [False, True, True]
    assert isinstance(issuers.caller_of(token(sub="a")), Caller)


def test_tokens_of_a_key_that_was_given_up_are_refused() -> None:
    clock = Clock()
    issuer = made(clock)
    issuers = Issuers([issuer])
    credential = token()
    caller = issuers.caller_of(credential)
    assert isinstance(caller, Caller)

    issuer.set_keys(keys())
    assert issuers.knows(caller), "the same keys again"
    issuer.set_keys(keys("two", 1))

    assert "does not have" in why(issuers, credential).reason
    assert not issuers.knows(caller)
    assert isinstance(issuers.caller_of(token("two", 1)), Caller)


def test_an_added_or_removed_key_leaves_callers_of_others_alone() -> None:
    one, two = (jwk_of(private_key("ES256", number), kid=kid) for number, kid in enumerate(("one", "two")))
    issuer = made(Clock())
    issuers = Issuers([issuer])
    by_one = issuers.caller_of(token(sub="alice"))
    assert isinstance(by_one, Caller)

    issuer.set_keys(read_keys(jwks(two, one), ALGORITHMS))
    assert issuers.knows(by_one), "a key was added"
    by_two = issuers.caller_of(token("two", 1, sub="bob"))
    assert isinstance(by_two, Caller)

    issuer.set_keys(read_keys(jwks(two), ALGORITHMS))
    assert not issuers.knows(by_one)
    assert issuers.caller_of(token(sub="alice")) is None
    assert issuers.knows(by_two)


def test_an_unknown_key_is_asked_for() -> None:
    asked: list[bool] = []
    issuer = made(Clock())
    issuer.on_unknown_key = lambda: asked.append(True)
    issuers = Issuers([issuer])

    assert issuers.caller_of(token()) is not None
    assert not asked
    assert issuers.caller_of(token("new")) is None
    assert asked
    assert "signature" in why(issuers, token("one", 1)).reason


def test_without_keys_no_token_can_be_verified() -> None:
    clock = Clock()
    issuer = Issuer(settings(), lambda caller: caller, clock, clock)
    issuers = Issuers([issuer])
    issuer.trouble = "it is away"

    assert issuers.caller_of(token()) == Unprovable("the keys of corp are missing: it is away")
    issuer.set_keys(keys())
    credential = token(exp=NOW + 10 * KEEP_SECONDS)
    assert isinstance(issuers.caller_of(credential), Caller)
    clock.now += KEEP_SECONDS - 1
    assert isinstance(issuers.caller_of(credential), Caller), "an hour without news"
    clock.now += 2
    assert isinstance(issuers.caller_of(credential), Unprovable), "and then nobody's word"


def test_a_changed_issuer_goes_on_with_its_keys_if_they_are_from_the_same_place() -> None:
    clock = Clock()
    old = made(clock)
    same = Issuer(settings(tenant="acme"), lambda caller: caller, clock, clock)
    same.inherit_keys(old)
    assert isinstance(Issuers([same]).caller_of(token()), Caller)

    moved = Issuer(settings(jwks="https://elsewhere.example/keys"), lambda caller: caller, clock, clock)
    moved.inherit_keys(old)
    assert not moved.has_keys


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        ({"scope": "files:read"}, ("files.read",)),
        ({"scope": "other files:read files:write"}, ("files.read", "files.write")),
        ({"scp": ["files:write"]}, ("files.write",)),
    ],
)
def test_scopes_decide_which_tools_may_be_called(scope: dict[str, Any], allowed: tuple[str, ...]) -> None:
    scopes = {"files:read": ("files.read",), "files:write": ("files.write",)}
    issuers = Issuers([made(Clock(), grants=Grants((), ("files.secret",)), scopes=scopes)])
    caller = issuers.caller_of(token(**scope))
    assert isinstance(caller, Caller)
    assert caller.grants == Grants(allowed, ("files.secret",))


def test_no_scope_frees_a_caller_from_the_set_of_its_issuer() -> None:
    issuers = Issuers([made(Clock(), grants=Grants(("files.*",), set="dev"), scopes={"web": ("web.*",)})])
    for scope in (None, "web"):
        caller = issuers.caller_of(token(scope=scope))
        assert isinstance(caller, Caller)
        assert caller.grants.set == "dev"


@pytest.mark.parametrize("scope", [{}, {"scope": "other"}, {"scope": 1}, {"scope": ["files:read", 2][1:]}])
def test_a_token_whose_scopes_allow_nothing_is_not_enough(scope: dict[str, Any]) -> None:
    issuers = Issuers([made(Clock(), grants=Grants(()), scopes={"files:read": ("files.read",)})])
    unproven = why(issuers, token(**scope))
    assert unproven.is_scope_missing
    assert unproven.scopes == ("files:read",)


def test_a_tenant_and_a_name_may_be_claims() -> None:
    issuers = Issuers([made(Clock(), tenant_claim="org", name_claim="client_id")])
    caller = issuers.caller_of(token(org="acme", client_id="robot"))
    assert isinstance(caller, Caller)
    assert (caller.tenant, caller.name) == ("acme", "corp/robot")
    assert "org is not the name of a tenant" in why(issuers, token(client_id="robot")).reason
    assert "client_id is not a name" in why(issuers, token(org="acme")).reason


def test_no_caller_gets_more_than_its_tenant() -> None:
    less = Grants(("files.read",))
    issuers = Issuers([made(Clock(), bound=lambda caller: Caller(caller.name, caller.tenant, less))])
    caller = issuers.caller_of(token())
    assert isinstance(caller, Caller)
    assert caller.grants == less


def test_a_text_without_the_form_of_a_token_is_for_other_verifiers() -> None:
    issuers = Issuers([made(Clock())])
    for credential in (b"0123456789abcdef", b"a.b.c", b""):
        assert issuers.caller_of(credential) is None
        assert issuers.refusal_of(credential) is None
    assert why(issuers, b"ey.ey.ey").reason
    assert Issuers([]).refusal_of(token()) is None


def test_an_issuer_speaks_for_itself_alone() -> None:
    other = read_token(token(iss="https://other.example"))
    assert isinstance(other, SignedToken)
    checked = made(Clock()).check(other, b"digest")
    assert isinstance(checked, Unproven)
    assert checked.reason == "it is from another issuer"


NAMES = ("iss", "aud", "exp", "nbf", "iat", "sub", "scope", "scp", "org")
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(st.text(), LEAVES, max_size=2)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_no_claim_of_a_genuine_token_makes_it_raise(claims: dict[str, Any]) -> None:
    issuers = Issuers([made(Clock(), tenant_claim="org", scopes={"a": ("b",)})])
    given_claims = {"iss": ISSUER, "aud": HUB, "exp": NOW + 9, "sub": "a", "org": "b", **claims}
    caller = issuers.caller_of(signed(given_claims))
    assert isinstance(caller, Caller) or issuers.refusal_of(signed(given_claims)) is not None


# -- tokens that are bound to a key (RFC 9449) -----------------------------------------------------------------------


class Bound:
    """Issuers with one that signs tokens for a key, and who holds that key."""

    def __init__(self, **more: Any) -> None:
        self.clock = Clock()
        self.clock.now -= 600
        proofs = Proofs(self.clock, lambda: b"a secret")
        self.clock.now += 600
        self.issuer = made(self.clock, **more)
        self.all = Issuers((self.issuer,), proofs)
        self.proved: list[tuple[str, bytes]] = []
        self.all.on_proved = lambda caller, credential, _: self.proved.append((caller.name, credential))
        self.token = token(cnf={"jkt": thumbprint_of("ES256")})

    def prove(self, shown: bytes | None = None, *, is_proved: bool = False, **claims: Any) -> Caller | Unproven:
        credential = shown or self.token
        ath = encoded(hashlib.sha256(credential).digest())
        made = proof(**{"iat": int(self.clock.now), "ath": ath, "jti": f"{len(self.proved)}", **claims})
        return self.all.bound_caller_of(credential, ProvenRequest(made.encode(), "POST", [URL]), is_proved=is_proved)


def test_a_bound_token_is_good_with_a_proof_and_no_good_without() -> None:
    world = Bound()
    assert world.all.caller_of(world.token) is None
    refused = world.all.refusal_of(world.token)
    assert refused is not None
    assert refused.is_genuine
    assert "send it as Authorization: DPoP" in refused.reason
    caller = world.prove()
    assert isinstance(caller, Caller)
    assert caller.name == "corp/alice"
    assert world.all.knows(caller)
    assert world.all.caller_of(world.token) is None, "however often it was proven"
    assert world.proved == [("corp/alice", world.token)]


def test_a_proof_is_used_up_but_by_the_request_that_it_is_of() -> None:
    world = Bound()
    assert isinstance(world.prove(jti="one"), Caller)
    again = world.prove(jti="one")
    assert isinstance(again, Unproven)
    assert (again.reason, again.is_proof_wrong) == ("it was used already", True)
    assert isinstance(world.prove(jti="one", is_proved=True), Caller)


def test_a_proven_request_with_an_expired_token_is_rejected() -> None:
    world = Bound()
    assert isinstance(world.prove(), Caller)
    world.clock.now += 3600
    assert isinstance(world.prove(is_proved=True), Unproven)


def test_a_token_that_is_bound_to_nothing_is_no_bound_token() -> None:
    world = Bound()
    plain = token()
    refused = world.prove(plain)
    assert isinstance(refused, Unproven)
    assert refused.reason == "it is not bound to a key: send it as Authorization: Bearer"
    assert isinstance(world.all.caller_of(plain), Caller)


@pytest.mark.parametrize("jkt", ["", "short", 5, None, "ü" * 43])
def test_an_unreadable_key_binds_a_token_to_no_caller(jkt: object) -> None:
    world = Bound()
    odd = token(cnf={"jkt": jkt})
    assert world.all.caller_of(odd) is None
    assert isinstance(world.prove(odd), Unproven)


@pytest.mark.parametrize("dpop", ["required", "nonce"])
def test_an_issuer_may_have_to_bind_its_tokens(dpop: str) -> None:
    world = Bound(dpop=dpop)
    assert world.all.caller_of(token()) is None
    refused = world.all.refusal_of(token())
    assert refused is not None
    assert "it is not bound to a key" in refused.reason
    shown = world.prove()
    if dpop == "nonce":
        assert isinstance(shown, Unproven)
        shown = world.prove(nonce=shown.nonce)
    assert isinstance(shown, Caller)


def test_a_key_that_the_issuer_gives_up_takes_bound_tokens_with_it() -> None:
    world = Bound()
    caller = world.prove()
    assert isinstance(caller, Caller)
    world.issuer.set_keys(keys("two", 1))
    assert not world.all.knows(caller)
    assert isinstance(world.prove(), Unproven)


def test_a_forged_token_has_no_proof_looked_at() -> None:
    world = Bound()
    forged = token(number=1, cnf={"jkt": thumbprint_of("ES256")})
    refused = world.prove(forged)
    assert isinstance(refused, Unproven)
    assert (refused.is_genuine, refused.is_proof_wrong) == (False, False)


def test_bound_tokens_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOKENS_MAX", 2)
    world = Bound()
    for number in range(4):
        assert isinstance(world.prove(token(cnf={"jkt": thumbprint_of("ES256")}, jti=str(number))), Caller)
    assert len(world.issuer._key_bound) == 2
