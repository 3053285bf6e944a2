"""Keys of issuers are fetched through the guard, kept fresh, and only from where they may be."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from isthmus.app.tokens import IssuerKeys, KeysNotFound, fetch_keys
from isthmus.core.background import BackgroundTasks
from isthmus.identity.jwt import KeySet
from isthmus.identity.jwt_callers import Issuer, Issuers
from isthmus.identity.settings import IssuerSettings
from isthmus.model.callers import Caller, Grants, Unprovable
from isthmus.transport.egress import Egress
from tests import issuer as running
from tests.faults.watching import eventually
from tests.issuer import issuing, private_key

HUB = "https://hub.example"
SECONDS = 20.0


@pytest.fixture
def corp() -> Iterator[running.Issuer]:
    with issuing() as issuer:
        yield issuer


@asynccontextmanager
async def background() -> AsyncIterator[BackgroundTasks]:
    made = BackgroundTasks()
    try:
        yield made
    finally:
        await made.aclose()


def settings(issuer: running.Issuer, **more: Any) -> IssuerSettings:
    return IssuerSettings("corp", issuer.url, (HUB,), **{"grants": Grants(("*",)), **more})


async def until_known(issuers: Issuers, credential: str) -> Caller:
    async with asyncio.timeout(SECONDS):
        while not isinstance(caller := issuers.caller_of(credential.encode()), Caller):  # noqa: ASYNC110 - a thread's
            await asyncio.sleep(0.005)
    return caller


@asynccontextmanager
async def followed(issuer: Issuer, *, pause: float = 0.01) -> AsyncIterator[Issuers]:
    async with background() as hands:
        IssuerKeys(Egress(), hands, fresh=600.0, pause=pause).follow([issuer])
        yield Issuers([issuer])


def made(configured: IssuerSettings) -> Issuer:
    return Issuer(configured, lambda caller: caller, time.time, time.monotonic)


async def test_keys_are_found_by_discovery_or_where_they_are_said_to_be(corp: running.Issuer) -> None:
    async with background() as hands:
        assert len(await fetch_keys(settings(corp), Egress(), hands)) == 2
        assert corp.asked == ["/.well-known/openid-configuration", "/keys"]
        assert len(await fetch_keys(settings(corp, jwks=corp.jwks_url), Egress(), hands)) == 2
        assert corp.asked[2:] == ["/keys"]


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"issuer": "https://other.example"}, "another issuer"),
        ({"issuer": None}, "cannot be read"),
        ({"jwks_uri": ""}, "does not say where"),
        ({"jwks_uri": "http://10.0.0.7/keys"}, "without TLS"),
        ({"jwks_uri": "https://127.0.0.1:1/keys"}, "may not be dialled"),
        ({"jwks_uri": "https://169.254.169.254/keys"}, "may not be dialled"),
        ({"jwks_uri": "https://metadata.google.internal/keys"}, "may not be dialled"),
        ({"jwks_uri": "file:///etc/passwd"}, "no http or https address"),
        ({"jwks_uri": "javascript:alert(1)"}, "no http or https address"),
    ],
)
async def test_metadata_leads_nowhere_else(corp: running.Issuer, metadata: dict[str, Any], reason: str) -> None:
    corp.metadata = metadata
    async with background() as hands:
        with pytest.raises(KeysNotFound, match=reason):
            await fetch_keys(settings(corp), Egress(), hands)


async def test_a_long_or_invalid_key_set_is_refused(corp: running.Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with background() as hands:
        for document, reason in (
            (json.dumps({"keys": [], "x": "y" * 65536}).encode(), "over 65536 bytes"),
            (b"[]", "not a set of keys"),
            (b'{"keys":[]}', "none of its keys"),
        ):
            monkeypatch.setattr(corp, "document", lambda document=document: document)
            with pytest.raises(KeysNotFound, match=reason):
                await fetch_keys(settings(corp, jwks=corp.jwks_url), Egress(), hands)


async def test_an_issuer_without_metadata_is_reported(corp: running.Issuer) -> None:
    nowhere = IssuerSettings("corp", f"{corp.url}/tenant", (HUB,))
    async with background() as hands:
        with pytest.raises(KeysNotFound, match="say where its keys are, as jwks"):
            await fetch_keys(nowhere, Egress(), hands)
    assert corp.asked == [
        "/tenant/.well-known/openid-configuration",
        "/.well-known/oauth-authorization-server/tenant",
    ]


async def test_a_key_that_came_later_is_fetched_when_a_token_names_it(corp: running.Issuer) -> None:
    async with followed(made(settings(corp))) as issuers:
        old = corp.token(aud=HUB)
        assert (await until_known(issuers, old)).name == "corp/alice"
        corp.keys = {"three": ("EdDSA", private_key("EdDSA"))}
        assert (await until_known(issuers, corp.token("three", aud=HUB))).name == "corp/alice"
        assert issuers.caller_of(old.encode()) is None, "its key was given up"


async def test_made_up_keys_do_not_make_the_hub_ask_again_and_again(corp: running.Issuer) -> None:
    async with followed(made(settings(corp, jwks=corp.jwks_url)), pause=60.0) as issuers:
        await until_known(issuers, corp.token(aud=HUB))
        for number in range(50):
            assert issuers.caller_of(corp.token(header={"kid": f"made-up-{number}"}, aud=HUB).encode()) is None
            await asyncio.sleep(0)
        assert corp.asked == ["/keys"]


async def test_an_absent_issuer_is_asked_again_and_reported_once(corp: running.Issuer) -> None:
    corp.is_away = True
    with capture_logs() as said:
        async with followed(made(settings(corp, jwks=corp.jwks_url))) as issuers:
            await eventually(lambda: len(corp.asked) >= 3, "it is asked again")
            found = issuers.caller_of(corp.token(aud=HUB).encode())
            assert isinstance(found, Unprovable)
            assert "status 503" in found.reason
            corp.is_away = False
            await until_known(issuers, corp.token(aud=HUB))
    assert [line["event"] for line in said] == [
        "the keys of an issuer cannot be fetched",
        "issuer keys fetched",
    ]


async def test_an_issuer_that_was_removed_is_not_asked(corp: running.Issuer) -> None:
    async with background() as hands:
        issuer = made(settings(corp, jwks=corp.jwks_url))
        keys = IssuerKeys(Egress(), hands, fresh=600.0, pause=0.001)
        keys.follow([issuer])
        keys.follow([issuer])
        await until_known(Issuers([issuer]), corp.token(aud=HUB))
        keys.follow([])
        asked = len(corp.asked)
        issuer.on_unknown_key()
        other = made(settings(corp, jwks=corp.jwks_url))
        keys.follow([other])
        await until_known(Issuers([other]), corp.token(aud=HUB))
        assert (asked, len(corp.asked)) == (1, 2), "by then, who was asked for first would have been asked"


@pytest.mark.parametrize("url", ["https://login..example", "https://login.example:0", "https://-a.example"])
async def test_an_address_that_cannot_be_dialled_is_reported(url: str) -> None:
    async with background() as hands:
        with pytest.raises(KeysNotFound, match="cannot be used"):
            await fetch_keys(IssuerSettings("corp", url, (HUB,)), Egress(), hands)


async def test_a_defect_met_once_does_not_end_the_fetching(
    corp: running.Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    defects = [ZeroDivisionError()]

    async def stumble(*given: Any) -> KeySet:
        if defects:
            raise defects.pop()
        return await fetch_keys(*given)

    monkeypatch.setattr("isthmus.app.tokens.fetch_keys", stumble)
    with capture_logs() as logs:
        async with followed(made(settings(corp, jwks=corp.jwks_url))) as issuers:
            await until_known(issuers, corp.token(aud=HUB))
    assert [line["issuer"] for line in logs if "defect" in line["event"]] == ["corp"]
