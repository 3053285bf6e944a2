"""Tokens for keys end with their keys; issuers come and go with the configuration."""

from __future__ import annotations

import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from isthmus.app.caller_identity import Identities
from isthmus.app.key_files import KeyFile
from isthmus.app.tokens import TokenService, secret_in
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.access.tenants import Tenants, TenantSettings
from isthmus.core.background import BackgroundTasks
from isthmus.frontends.http.auth import Authenticator, Denied, OriginGuard
from isthmus.identity.jwt import read_keys
from isthmus.identity.jwt_callers import Issuer
from isthmus.identity.keys import digest_of
from isthmus.identity.minted_keys import mint, revoked
from isthmus.identity.settings import ALGORITHMS, IssuerSettings
from isthmus.model.callers import Caller, Grants
from isthmus.transport.egress import Egress
from tests.issuer import Issuer as Running

KEY = "k3y-of-the-planner-0123456789"
HUB = "https://hub.example"
PLANNER = Caller("planner", "default", Grants(("*",)))
KNOWN = ((digest_of(KEY), PLANNER),)


class World:
    """A hub's tokens, and who else is known."""

    def __init__(self, state: Path, **configured: Any) -> None:
        self.configuration = replace(Configuration(None, HubSettings(state=str(state))), **configured)
        self.known = Identities(self.configuration)
        self.tokens = TokenService(self.configuration, self.known)
        self.known.decide()

    def comes(self, credential: str) -> object:
        return self.known.identify({b"authorization": f"Bearer {credential}".encode()})

    def issuer(self) -> Issuer:
        [issuer] = self.tokens._issuers
        return issuer


def corp(running: Running, **more: Any) -> IssuerSettings:
    return IssuerSettings("corp", running.url, (HUB,), **{"grants": Grants(("files.*",)), **more})


@pytest.fixture
def running() -> Any:
    """An issuer that is never contacted over its socket."""
    made = Running()
    made._server.server_close()
    return made


def test_a_name_and_its_key_are_worth_a_token(tmp_path: Path) -> None:
    world = World(tmp_path, callers=KNOWN)
    token = world.tokens.token_for("planner", KEY)
    assert token is not None
    assert world.comes(token) == world.comes(KEY)
    assert world.tokens.token_for(None, KEY) is not None, "a key has one caller"
    assert world.tokens.token_for("other", KEY) is None
    assert world.tokens.token_for("planner", f"{KEY}x") is None
    assert world.tokens.token_for("planner", token) is None


def test_a_token_ends_with_a_key_that_is_revoked(tmp_path: Path) -> None:
    file = KeyFile(tmp_path)
    key, made = mint("robot", Grants(("*",)), "default", targets=False, now=time.time(), expires_at=None)
    file.change(lambda keys: (*keys, made))
    world = World(tmp_path)
    token = world.tokens.token_for("robot", key)
    assert token is not None
    assert isinstance(caller := world.comes(token), Caller)
    assert caller in world.known

    file.change(lambda keys: tuple(revoked(key, time.time()) for key in keys))
    world.known._live_keys.reload()
    assert world.known.refresh(), "as it does several times a second"

    assert world.comes(token) is None
    assert caller not in world.known


def test_issuers_check_tokens_that_are_no_keys(tmp_path: Path, running: Running) -> None:
    world = World(tmp_path, issuers=(corp(running),))
    assert world.known.wants_proof
    assert not world.tokens.issues_tokens()
    world.issuer().set_keys(read_keys(running.document(), ALGORITHMS))

    caller = world.comes(running.token(aud=HUB))
    assert isinstance(caller, Caller)
    assert caller.name == "corp/alice"
    assert caller in world.known


def test_unchanged_issuers_continue(tmp_path: Path, running: Running) -> None:
    world = World(tmp_path, issuers=(corp(running),))
    issuer = world.issuer()
    issuer.set_keys(read_keys(running.document(), ALGORITHMS))
    token = running.token(aud=HUB)
    caller = world.comes(token)

    world.tokens.change(world.configuration)
    assert world.issuer() is issuer
    assert caller in world.known

    less = Tenants({"default": TenantSettings(Grants(("files.read",)))})
    world.tokens.change(replace(world.configuration, tenants=less))
    assert caller not in world.known, "what it had open is ended: it may do less now"
    bounded = world.comes(token)
    assert isinstance(bounded, Caller), "its keys are known still"
    assert bounded.grants.within == Grants(("files.read",))

    world.tokens.change(replace(world.configuration, issuers=()))
    assert world.comes(token) is None


def test_a_token_cannot_belong_to_an_unconfigured_tenant(tmp_path: Path, running: Running) -> None:
    known = Tenants({"acme": TenantSettings(Grants(("files.read",)))})
    world = World(tmp_path, issuers=(corp(running, tenant_claim="org"),), tenants=known)
    world.issuer().set_keys(read_keys(running.document(), ALGORITHMS))

    assert isinstance(world.comes(running.token(aud=HUB, org="acme")), Caller)
    assert world.comes(running.token(aud=HUB, org="other")) is None
    world.tokens.change(replace(world.configuration, tenants=Tenants()))
    assert isinstance(world.comes(running.token(aud=HUB, org="other")), Caller)


async def test_the_authenticator_says_where_to_get_tokens(tmp_path: Path, running: Running) -> None:
    world = World(tmp_path, issuers=(corp(running, scopes={"a": ("b",)}),), callers=KNOWN)
    auth = Authenticator(OriginGuard(bind_host="127.0.0.1"), world.known.identify)
    background = BackgroundTasks()
    try:
        frontend = world.tokens.open(auth, background, Egress())
        world.tokens.listen_at(4321)
        assert frontend.is_at("/oauth/token")
        denied = auth.admit({b"host": b"127.0.0.1:4321"}, "mcp")
        assert isinstance(denied, Denied)
        place = b"http://127.0.0.1:4321/.well-known/oauth-protected-resource/mcp"
        bearer, bound = denied.headers
        assert bearer == (b"www-authenticate", b'Bearer realm="isthmus", resource_metadata="%b"' % place)
        assert bound[1].startswith(b'DPoP algs="ES256 ')
        away = auth.admit({b"host": b"localhost", b"authorization": f"Bearer {running.token()}".encode()}, "mcp")
        assert isinstance(away, Denied)
        assert away.status == 503
        for credential, received in ((b"nobodys", b'error="invalid_token"'), (b"ey.e30.e30", b"error_description=")):
            other = auth.admit({b"host": b"localhost", b"authorization": b"Bearer " + credential}, "mcp")
            assert isinstance(other, Denied)
            assert received in other.headers[0][1]
        assert [issuer.issuer for issuer in world.tokens._trusted()] == [running.url]
        hub = replace(world.configuration.hub, hosts=("hub.internal",))
        world.tokens.change(replace(world.configuration, issuers=(), hub=hub))
        assert world.tokens._trusted() == ()
        assert world.tokens.address({b"host": b"hub.internal"}) == "http://hub.internal"
        assert world.tokens.address({b"host": b"elsewhere"}) == "http://localhost:4321"
    finally:
        await background.aclose()


def test_the_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    secret = secret_in(tmp_path)
    file = tmp_path / "oauth" / "secret"
    assert len(secret) == 32
    assert secret_in(tmp_path) == secret
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("content", ["", "too short", "ab" * 16, "zz" * 32])
def test_a_secret_that_is_damaged_is_not_used(tmp_path: Path, content: str) -> None:
    secret_in(tmp_path)
    (tmp_path / "oauth" / "secret").write_text(content)
    with capture_logs() as said:
        assert len(secret_in(tmp_path)) == 32
    [line] = said
    assert line["event"] == "access tokens will not survive a restart: their secret cannot be stored"
    assert content not in line["reason"] or not content


def test_a_secret_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    secret = secret_in(tmp_path)
    (tmp_path / "oauth" / "secret").chmod(0o640)
    with capture_logs() as said:
        assert secret_in(tmp_path) != secret
    assert "other users can read it" in said[0]["reason"]


def test_where_nothing_can_be_kept_tokens_are_good_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "oauth").write_text("a file where a folder should be")
    with capture_logs() as said:
        world = World(tmp_path, callers=KNOWN)
        token = world.tokens.token_for("planner", KEY)
        assert token is not None
        assert isinstance(world.comes(token), Caller)
    assert len(said) == 1


def test_an_open_hub_sends_no_caller_to_a_login(tmp_path: Path) -> None:
    assert World(tmp_path).tokens.address({}) is None
    assert World(tmp_path, callers=KNOWN).tokens.address({}) is not None
