"""A server that is called in its callers' own names: each token is exchanged for one of the server's (RFC 8693)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.wire import until
from tests.security.authority import Authority, Protected, entry_of
from tests.security.issuer_hub import KEY, issuer_hub
from tests.unit.credentials.test_identity_tokens import ENTERPRISE, JWT_BEARER, Provider

pytestmark = pytest.mark.one_process("each node exchanges the tokens of its callers for itself")

EXCHANGE = {"grant": "token_exchange", "client_id": "hub", "client_secret": "a secret", "audience": "search"}


async def test_a_callers_token_is_exchanged_and_ends_at_the_hub(tmp_path: Path) -> None:
    async with (
        Authority() as authority,
        Protected(authority) as server,
        issuer_hub(tmp_path, {"s": entry_of(server, **EXCHANGE, issuer=authority.url)}) as both,
    ):

        async def call(credential: str) -> tuple[int, dict[str, str]]:
            headers = {"authorization": f"Bearer {credential}"}
            answer = await both.http.post(f"{both.base}/v1/tools/s.t", json={}, headers=headers)
            return answer.status_code, answer.json()

        async def is_there() -> bool:
            return "s" not in (await both.ask(both.token())).json()["missing"]

        await until(is_there)
        alice, bob = both.token(sub="alice"), both.token(sub="bob")
        assert [(await call(token))[0] for token in (alice, bob, alice)] == [200, 200, 200]
        exchanged = [form for form in authority.forms if form["grant_type"].endswith("token-exchange")]
        assert [form["subject_token"] for form in exchanged] == [alice, bob]
        assert {form["resource"] for form in exchanged} == {server.url}
        by = {
            request.session: request.headers["authorization"]
            for request in server.heard
            if request.method == "tools/call"
        }
        assert len(by) == 2
        assert len({shown[0] for shown in by.values()}) == 2, "each is called for in its own name"
        assert not any(token in shown for shown in server.shown for token in (alice, bob))
        status, problem = await call(KEY)
        assert (status, problem["executed"]) == (503, "no")
        assert "this caller has sent no token" in problem["detail"]
        assert not any(token in "".join(both.hub.said) for token in (alice, bob, "token-1", "a secret"))


async def test_a_narrower_token_does_not_reuse_the_exchange_of_a_broader_one(tmp_path: Path) -> None:
    """Alice gives an agent a token with few rights: her own calls must not lend it more."""
    async with (
        Authority() as authority,
        Protected(authority) as server,
        issuer_hub(tmp_path, {"s": entry_of(server, **EXCHANGE, issuer=authority.url)}) as both,
    ):

        async def call(token: str) -> str:
            headers = {"authorization": f"Bearer {token}"}
            answer = await both.http.post(f"{both.base}/v1/tools/s.t", json={}, headers=headers)
            assert answer.status_code == 200, answer.text
            return server.heard[-1].headers["authorization"][0]

        async def is_there() -> bool:
            return "s" not in (await both.ask(both.token())).json()["missing"]

        await until(is_there)
        tokens = [
            both.token(sub="alice", **claims) for claims in ({"scope": "all"}, {"scope": "few"}, {"azp": "agent"})
        ]
        again = both.token(sub="alice", scope="all", jti="a newer one")
        shown = [await call(token) for token in (*tokens, *tokens, again)]
    assert len(set(shown[:3])) == 3
    assert shown[3:] == [*shown[:3], shown[0]]
    exchanged = [form["subject_token"] for form in authority.forms if "subject_token" in form]
    assert exchanged == tokens


async def test_a_callers_identity_is_exchanged_at_the_company_and_then_at_the_authorization_server(
    tmp_path: Path,
) -> None:
    async with (
        Provider() as provider,
        Authority() as authority,
        Protected(authority) as server,
        issuer_hub(tmp_path, {"s": entry_of(server, **ENTERPRISE, idp_issuer=provider.url)}) as both,
    ):

        async def call(credential: str) -> int:
            headers = {"authorization": f"Bearer {credential}"}
            return (await both.http.post(f"{both.base}/v1/tools/s.t", json={}, headers=headers)).status_code

        async def is_there() -> bool:
            return "s" not in (await both.ask(both.token())).json()["missing"]

        await until(is_there)
        alice, bob = both.token(sub="alice"), both.token(sub="bob")
        assert [await call(token) for token in (alice, bob, alice, KEY)] == [200, 200, 200, 503]
        assert [form["subject_token"] for form in provider.forms] == [alice, bob]
        grants = [form["grant_type"] for form in authority.forms]
        assert grants == ["client_credentials", JWT_BEARER, JWT_BEARER], "the server is listed in the hub's own name"
        assert not any(token in shown for shown in server.shown for token in (alice, bob, "the-grant"))
