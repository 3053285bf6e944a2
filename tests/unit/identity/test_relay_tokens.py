"""Tokens of the relay: the original's and ours, made, read, ended, and thrown at with whatever there is."""

from __future__ import annotations

import base64
import itertools
import random
from urllib.parse import quote, quote_plus

import pytest

from isthmus.identity.relay_tokens import (
    EXPIRED,
    FORGED,
    NO_AGENT,
    NONE_SHOWN,
    NOT_COMPATIBLE,
    NOT_DECRYPTED,
    NOT_READ,
    PREFIX,
    REVOKED,
    UNKNOWN_AGENT,
    CompatibleAgents,
    RelayTokens,
    TokenSettings,
    check_name,
    is_clean,
    is_id,
)
from isthmus.model.relay import Claim
from tests.relay.tokens import KEY, java_agent, java_token, python_token, sealed

NOW = 1_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def tokens(key: str = KEY, *, compatible: bool = True, revoked: frozenset[str] = frozenset()) -> RelayTokens:
    settings = TokenSettings(compatible=compatible, compatible_agents="any")
    return RelayTokens(key, settings, lambda: NOW, revoked.__contains__)


def knowing(*agents: str, compatible_agents: CompatibleAgents = "known") -> RelayTokens:
    settings = TokenSettings(compatible_agents=compatible_agents)
    return RelayTokens(KEY, settings, lambda: NOW, frozenset[str]().__contains__, lambda: frozenset(agents))


def agent_of(read: Claim | str) -> str:
    assert isinstance(read, Claim), read
    return read.agent


# -- the original's ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["k" * 16, "k" * 24, "k" * 32, "short", "k" * 17, "k" * 40, "密钥" * 20],
    ids=["16", "24", "32", "short", "17", "long", "chinese"],
)
def test_tokens_of_the_python_and_the_java_side_are_read_with_keys_of_any_length(key: str) -> None:
    assert agent_of(tokens(key).read(python_token("single_module", key))) == "single_module"
    assert agent_of(tokens(key).read(java_token("42", key))) == java_agent("42")
    assert tokens(key).mint_compatible("single_module") == python_token("single_module", key)


@pytest.mark.parametrize(
    "document",
    [
        b'{"n":1,"agentId":"a"}',
        b'{"agentId":"a","n":1}',
        b'{"agentId":"b","agentId":"a"}',
        b' {"agentId":"a"}',
        b'{"agentId":"a"} ',
        b'{"agentId":  "a"}',
        b'{"agentId":"\\u0061"}',
    ],
)
def test_only_tokens_in_the_original_programs_form_are_read(document: bytes) -> None:
    assert tokens().read(sealed(document)) == NOT_READ


def test_other_letters_are_read_as_they_are_and_escaped() -> None:
    for document in ('{"agentId":"厨房"}', r'{"agentId": "\u53a8\u623f"}'):
        assert agent_of(tokens().read(sealed(document.encode()))) == "厨房"


# -- splicing ------------------------------------------------------------------------------------------------------


def test_only_known_agents_have_tokens_of_the_original_kind() -> None:
    kitchen = knowing("kitchen")
    assert agent_of(kitchen.read(python_token("kitchen"))) == "kitchen"
    assert kitchen.read(python_token("garden")) == UNKNOWN_AGENT
    assert [kitchen.is_valid(Claim(agent, under=mark_of(kitchen))) for agent in ("kitchen", "garden")] == [True, False]


def mark_of(tokens: RelayTokens) -> str:
    claim = tokens.read(tokens.mint(Claim("a")))
    assert isinstance(claim, Claim)
    return claim.under


def test_a_managers_agents_are_taken_in_the_managers_spelling_where_that_is_said() -> None:
    manager = knowing(compatible_agents="md5")
    assert agent_of(manager.read(java_token("42"))) == java_agent("42")
    assert knowing().read(java_token("42")) == UNKNOWN_AGENT
    assert manager.read(python_token(java_agent("42"))) == UNKNOWN_AGENT
    assert manager.read(sealed(b'{"agentId": "%s"}' % java_agent("42").upper().encode())) == UNKNOWN_AGENT


@pytest.mark.parametrize(
    ("victim", "others"),
    [
        ("home", ("homestead", "barn")),
        ("team-red-printer-west", ("team-red-printer-east", "team-blue-scanner-west", "team-red-scanner-west")),
    ],
)
def test_no_known_agents_token_can_be_made_of_others(victim: str, others: tuple[str, ...]) -> None:
    """Whichever blocks of the others' tokens are joined, in any number and order, up to three of them."""
    held = {block for other in others for token in spellings(other) for block in blocks_of(token)}
    made = {b"".join(parts) for n in (1, 2, 3) for parts in itertools.product(held, repeat=n)}
    ours = knowing(victim, *others)
    for sealed_document in made:
        read = ours.read(base64.b64encode(sealed_document).decode())
        assert isinstance(read, str) or read.agent in others
    assert all(agent_of(ours.read(python_token(other))) == other for other in others)


def spellings(agent: str) -> tuple[str, ...]:
    return python_token(agent), sealed(b'{"agentId": "%s"}' % agent.encode())


def blocks_of(token: str) -> list[bytes]:
    whole = base64.b64decode(token)
    return [whole[at : at + 16] for at in range(0, len(whole), 16)]


def test_no_token_is_made_that_others_could_make() -> None:
    assert knowing("homestead", "barn", "home").spliceable() == ["home"]
    assert tokens().spliceable() == knowing("homestead", "barn").spliceable() == []
    with pytest.raises(ValueError, match="its token could be spliced from others"):
        knowing("homestead", "barn").mint_compatible("home")
    assert knowing("homestead").mint_compatible("home") == python_token("home")


def test_an_unknown_choice_is_rejected() -> None:
    with pytest.raises(ValueError, match="compatible_agents must be one of known, md5, any, not 'all'"):
        TokenSettings(compatible_agents="all")  # type: ignore[arg-type]


def test_a_bare_plus_arrives_as_a_space_and_is_meant_all_the_same() -> None:
    agent = next(name for n in itertools.count() if "+" in python_token(name := f"a{n}"))
    token = python_token(agent)
    assert agent_of(tokens().read(token.replace("+", " "))) == agent


def test_the_other_alphabet_and_missing_padding_are_understood() -> None:
    agent = next(name for n in itertools.count() if {"+", "/"} <= set(python_token(name := f"a{n}")))
    token = python_token(agent)
    for spelling in (token.rstrip("="), token.replace("+", "-").replace("/", "_"), token + "\n", token + "=="):
        assert agent_of(tokens().read(spelling)) == agent


def test_the_original_claims_both_ends_and_no_end() -> None:
    claim = tokens().read(python_token("kitchen"))
    assert isinstance(claim, Claim)
    assert (claim.tenant, claim.role, claim.id, claim.expires_at, claim.key) == ("default", None, "", None, "kitchen")


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", NONE_SHOWN),
        ("nonsense", NOT_DECRYPTED),
        ("ünïcode", NOT_DECRYPTED),
        ("\ud800", NOT_DECRYPTED),
        (base64.b64encode(b"x" * 15).decode(), NOT_DECRYPTED),
        (base64.b64encode(b"").decode() + "=", NOT_DECRYPTED),
        (python_token("a", "another key of 32 characters ..."), NOT_DECRYPTED),
        (sealed(b"\xff\xfe"), NOT_DECRYPTED),
        ("A" * 5000, NOT_DECRYPTED),
        (sealed(b"no JSON"), NOT_READ),
        (sealed(b"[1]"), NOT_READ),
        (sealed(b'"agentId"'), NOT_READ),
        (sealed(b"null"), NOT_READ),
        (sealed(b""), NOT_READ),
        (sealed(b"[" * 2000), NOT_READ),
        (sealed(b"{}"), NO_AGENT),
        (sealed(b'{"agentId": ""}'), NO_AGENT),
        (sealed(b'{"agentId": null}'), NO_AGENT),
        (sealed(b'{"agentId": 5}'), NOT_READ),
        (sealed(b'{"agentId": ["a"]}'), NOT_READ),
        (sealed(b'{"agentId": "%s"}' % (b"a" * 129)), NOT_READ),
        (sealed(b'{"agentId": "a\\nb"}'), NOT_READ),
        (sealed(b'{"agentId": "acme/kitchen"}'), NOT_READ),
    ],
)
def test_an_invalid_token_is_reported_in_the_words_of_the_original(token: str, reason: str) -> None:
    assert tokens().read(token) == reason


def test_the_words_are_the_exact_ones() -> None:
    assert (NONE_SHOWN, NOT_DECRYPTED) == ("缺少token参数", "token解密失败")
    assert (NOT_READ, NO_AGENT) == ("token数据格式错误", "无对应agentId")
    assert (FORGED, EXPIRED, REVOKED) == ("token无效", "token已过期", "token已撤销")


def test_the_original_kind_can_be_turned_off() -> None:
    strict = tokens(compatible=False)
    assert strict.read(python_token("kitchen")) == NOT_COMPATIBLE
    assert strict.read("nonsense") == NOT_COMPATIBLE
    assert agent_of(strict.read(strict.mint(Claim("kitchen")))) == "kitchen"


# -- ours ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claim",
    [
        Claim("kitchen"),
        Claim("kitchen", "acme", "server", expires_at=NOW + 1),
        Claim("厨房", role="device"),
        Claim("a" * 128),
        Claim("a b"),
    ],
)
def test_our_own_token_has_its_agent_its_end_and_its_expiry(claim: Claim) -> None:
    read = tokens().read(tokens().mint(claim))
    assert isinstance(read, Claim)
    assert (read.agent, read.tenant, read.role, read.expires_at) == (
        claim.agent, claim.tenant, claim.role, claim.expires_at,
    )  # fmt: skip
    assert is_id(read.id)


def test_each_has_an_id_of_its_own() -> None:
    minted = [tokens().read(tokens().mint(Claim("kitchen"))) for _ in range(50)]
    assert len({claim.id for claim in minted if isinstance(claim, Claim)}) == 50


def test_no_bit_of_it_can_be_changed() -> None:
    token = tokens().mint(Claim("kitchen", role="device"))
    for position, character in enumerate(token):
        other = "A" if character != "A" else "B"
        assert isinstance(tokens().read(token[:position] + other + token[position + 1 :]), str)
    # Another spelling of the same bytes is not the same token.
    assert all(tokens().read(spelling) == FORGED for spelling in (token + "=", token + "\n", token + ".", token[:-1]))


def test_one_of_another_key_is_forged() -> None:
    assert tokens().read(tokens("another key").mint(Claim("kitchen"))) == FORGED


@pytest.mark.parametrize(
    "payload",
    [b"[]", b"{}", b'{"i":"x","a":""}', b'{"i":"x","a":"b/c"}', b'{"i":"","a":"b"}', b'{"i":"x","a":"b","r":"x"}'],
)
def test_a_payload_that_says_nothing_is_refused_though_signed(payload: bytes) -> None:
    ours = tokens()
    signed = PREFIX + base64.urlsafe_b64encode(payload).decode().rstrip("=")
    assert ours.read(f"{signed}.{ours._signature(signed)}") == NOT_READ


def test_it_ends_with_its_time_and_when_it_is_revoked() -> None:
    clock, revoked = Clock(), set[str]()
    ours = RelayTokens(KEY, TokenSettings(), clock, revoked.__contains__)
    token = ours.mint(Claim("kitchen", expires_at=NOW + 10))
    claim = ours.read(token)
    assert isinstance(claim, Claim)
    assert ours.is_valid(claim)
    clock.now += 10
    assert ours.read(token) == EXPIRED
    assert not ours.is_valid(claim)
    clock.now -= 10
    revoked.add(claim.id)
    assert ours.read(token) == REVOKED
    assert not ours.is_valid(claim)
    assert ours.prove(token) == claim  # what it says can still be shown


def test_claims_are_invalid_with_another_key_or_without_compatible_tokens() -> None:
    own, compatible = tokens().read(tokens().mint(Claim("a"))), tokens().read(python_token("a"))
    assert isinstance(own, Claim)
    assert isinstance(compatible, Claim)
    assert all(map(tokens().is_valid, (own, compatible)))
    assert not any(map(tokens("another key").is_valid, (own, compatible)))
    assert [tokens(compatible=False).is_valid(claim) for claim in (own, compatible)] == [True, False]


# -- both ----------------------------------------------------------------------------------------------------------


def test_the_key_itself_is_known() -> None:
    assert tokens().is_key(KEY)
    assert not any(map(tokens().is_key, ("", KEY[:-1], KEY + "0", "ü", "\ud800")))


def test_minted_tokens_work_in_the_addresses_of_devices() -> None:
    ours = tokens()
    for n in range(1500):
        compatible = ours.mint_compatible(f"agent-{n}")
        for token in (compatible, ours.mint(Claim(f"agent-{n}")) if n % 5 == 0 else compatible):
            for spelling in (token, quote(token), quote_plus(token)):
                address = f"ws://hub/mcp_endpoint/mcp/?token={spelling}&server_id=a".lower()
                assert "key" not in address
                assert "call" not in address
        assert agent_of(ours.read(compatible)) == f"agent-{n}"


def test_a_token_that_devices_would_refuse_is_made_anew() -> None:
    ours = tokens()
    agent = next(name for n in itertools.count() if not is_clean(python_token(name := f"agent-{n}")))
    token = ours.mint_compatible(agent)
    assert token != python_token(agent)
    assert is_clean(token)
    assert agent_of(ours.read(token)) == agent


def test_an_agent_whose_own_letters_are_in_the_way_is_reported() -> None:
    def is_fit(text: bytes) -> bool:
        return text.isascii() and text.decode().isprintable() and not set(text) & set(b'"/\\')

    spellings = ("".join(letters) for letters in itertools.product("kK", "eE", "yY", "ABQgw"))
    unlucky = next(text for spelling in spellings if is_fit(text := base64.b64decode(spelling))).decode()
    with pytest.raises(ValueError, match="has a name that devices refuse in a token"):
        tokens().mint(Claim(f"{unlucky}-{unlucky}-{unlucky}"))  # wherever base64 begins, it meets one of them whole


@pytest.mark.parametrize("name", ["", " ", "a/b", "a" * 129, "a\nb", "a\x00", "\ud800"])
def test_names_that_no_agent_has(name: str) -> None:
    with pytest.raises(ValueError, match="agent must be 1 to 128 printable characters"):
        check_name("agent", name)
    with pytest.raises(ValueError, match="agent must"):
        tokens().mint(Claim(name))
    with pytest.raises(ValueError, match="tenant must"):
        tokens().mint(Claim("a", name))
    with pytest.raises(ValueError, match="agent must"):
        tokens().mint_compatible(name)


@pytest.mark.parametrize("key", ["", "  ", "sha256:" + "0" * 64, "\ud800"])
def test_an_invalid_key_is_rejected(key: str) -> None:
    with pytest.raises(ValueError, match="key must"):
        RelayTokens(key, TokenSettings(), lambda: 0.0, lambda _: False)
    with pytest.raises(ValueError, match="key must"):
        TokenSettings(key=key)


def test_settings_show_no_key_and_quote_no_token() -> None:
    assert KEY not in repr(TokenSettings(key=KEY))
    token = tokens().mint(Claim("kitchen"))
    with pytest.raises(ValueError, match=r"revoked\.0 must be the id of a token") as refused:
        TokenSettings(revoked=(token,))
    assert token not in str(refused.value)
    assert TokenSettings(revoked=("0a1b0a1b0a1b0a1b",)).revoked == ("0a1b0a1b0a1b0a1b",)


def test_no_text_makes_it_raise() -> None:
    chance, ours = random.Random(7), tokens()
    good = [ours.mint(Claim("kitchen")), ours.mint_compatible("kitchen"), sealed(b"{}")]
    alphabet = "AZaz09+/-_=. \n\x00ü密\ud800%"
    for _ in range(3000):
        text = list(chance.choice([*good, "", PREFIX, PREFIX + "."]))
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(text) + 1)
            text[at : at + chance.randrange(3)] = chance.choices(alphabet, k=chance.randrange(4))
        read = ours.read("".join(text))
        assert read if isinstance(read, str) else read.agent == "kitchen"
        ours.is_key("".join(text))
