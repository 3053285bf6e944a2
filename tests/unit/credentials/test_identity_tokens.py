"""Tokens for signed assertions: a workload's identity (RFC 7523), and a company's identity provider."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.credentials import server_logins
from isthmus.model.calls import Result
from tests.faults.scripted import hub_of, reply
from tests.faults.watching import eventually
from tests.security.authority import Authority, BindingAuthority, BoundServer, Protected, entry_of
from tests.unit.credentials.test_server_logins import reason_of

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
ENTERPRISE = {
    "grant": "enterprise_managed",
    "client_id": "hub",
    "client_secret": "of the authority",
    "idp_client_id": "hub at the company",
}


class Provider(Authority):
    """A company's identity provider, which gives a grant for an identity token."""

    kind = ID_JAG

    def _token(self, form: dict[str, str]) -> bytes:
        answer = super()._token(form)
        response = json.loads(answer.partition(b"\r\n\r\n")[2])
        if "access_token" not in response:
            return answer
        return reply({"access_token": "the-grant", "issued_token_type": self.kind, "token_type": "N_A"})


# -- workloads -------------------------------------------------------------------------------------------------------


async def test_a_workload_presents_the_token_that_its_file_holds_at_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_logins, "LEEWAY_SECONDS", 0.0)
    file = tmp_path / "token"
    file.write_text("workload-1\n")
    async with Authority() as authority, Protected(authority) as server:
        authority.first_expires_in = [0.5]
        oauth = {"grant": "jwt_bearer", "client_id": "pod", "identity_token_file": str(file), "scope": "read"}
        async with hub_of(tmp_path, {"s": entry_of(server, **oauth)}) as hub:
            await hub.ready("s")
            file.write_text("workload-2\n")
            await eventually(lambda: len(authority.forms) == 2, "the token is renewed")
            assert isinstance(await hub.call("s.t"), Result)
    usual = {"grant_type": JWT_BEARER, "client_id": "pod", "scope": "read", "resource": server.url}
    assert authority.forms == [{**usual, "assertion": f"workload-{number}"} for number in (1, 2)]


async def test_a_file_that_is_not_there_yet_is_looked_for_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with Authority() as authority, Protected(authority) as server:
        oauth = {"grant": "jwt_bearer", "identity_token_file": str(file)}
        async with hub_of(tmp_path, {"s": entry_of(server, **oauth)}) as hub:
            await eventually(lambda: "cannot be read" in reason_of(hub), "the hub says why")
            assert hub.state("s") == "retrying"
            file.write_text("two words")
            await eventually(lambda: "contains no token" in reason_of(hub), "the hub says why")
            file.write_text("workload")
            await hub.ready("s")
    assert "client_id" not in authority.forms[0], "a workload need not be a client"


async def test_a_refused_workload_is_reported_and_neither_repeated_nor_tried_another_way(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        authority.refusals = [(400, {"error": "invalid_grant", "error_description": "workload-token is not known"})]
        oauth = {"grant": "jwt_bearer", "identity_token": "workload-token"}
        async with hub_of(tmp_path, {"s": entry_of(server, **oauth)}) as hub:
            await eventually(lambda: hub.state("s") == "login", "the hub gives up")
            assert reason_of(hub) == "no token for it: the authorization server says invalid_grant"
        assert len(authority.forms) == 1


async def test_an_identity_token_goes_to_no_authorization_server_that_only_a_server_named(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        oauth = {"grant": "jwt_bearer", "identity_token": "workload-token"}
        async with hub_of(tmp_path, {"s": {**server.entry, "oauth": oauth}}) as hub:
            server.resource = {"authorization_servers": ["https://203.0.113.1"]}
            await eventually(
                lambda: "set issuer to the one that identity tokens are for" in reason_of(hub), "it is refused"
            )
        assert authority.forms == []


async def test_a_workloads_token_can_be_bound_to_a_key(tmp_path: Path) -> None:
    async with BindingAuthority() as authority, BoundServer(authority) as server:
        oauth = {"grant": "jwt_bearer", "identity_token": "workload-token"}
        async with hub_of(tmp_path, {"s": entry_of(server, **oauth)}) as hub:
            await hub.ready("s")
            assert isinstance(await hub.call("s.t"), Result)
        assert server.shown[-1] == "DPoP token-1"


# -- enterprises -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_found", [False, True])
async def test_an_employees_identity_is_exchanged_for_a_grant_and_that_for_a_token(
    tmp_path: Path, *, is_found: bool
) -> None:
    async with Provider() as provider, Authority() as authority, Protected(authority) as server:
        at = {"idp_issuer": provider.url} if is_found else {"idp_token_endpoint": f"{provider.url}/token"}
        oauth = {**ENTERPRISE, **at, "identity_token": "who-i-am", "scope": "read"}
        async with hub_of(tmp_path, {"s": entry_of(server, **oauth)}) as hub:
            await hub.ready("s")
            assert isinstance(await hub.call("s.t"), Result)
        assert server.shown[-1] == "Bearer token-1"
    assert provider.forms == [
        {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": "who-i-am",
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "requested_token_type": ID_JAG,
            "audience": authority.url,
            "resource": server.url,
            "scope": "read",
            "client_id": "hub at the company",
        }
    ]
    assert "authorization" not in provider.heads[0], "the secret is the other one's"
    assert authority.forms == [
        {"grant_type": JWT_BEARER, "assertion": "the-grant", "resource": server.url, "scope": "read"}
    ]
    proof = base64.b64decode(authority.heads[0]["authorization"].removeprefix("Basic "))
    assert proof == b"hub:of%20the%20authority"


@pytest.mark.parametrize(
    ("refusals", "kind", "expected"),
    [
        ([(400, {"error": "invalid_target", "error_description": "not who-i-am here"})], ID_JAG, "says invalid_target"),
        ([], "urn:ietf:params:oauth:token-type:access_token", "did not issue an ID-JAG"),
    ],
)
async def test_a_scope_that_the_provider_does_not_grant_is_not_requested(
    tmp_path: Path, refusals: list[Any], kind: str, expected: str
) -> None:
    async with Provider() as provider, Authority() as authority, Protected(authority) as server:
        provider.refusals, provider.kind = refusals, kind
        oauth = {**ENTERPRISE, "idp_issuer": provider.url, "identity_token": "who-i-am"}
        async with hub_of(tmp_path, {"s": entry_of(server, **oauth)}) as hub:
            await eventually(lambda: hub.state("s") == "login", "the hub gives up")
            assert expected in reason_of(hub)
            assert "who-i-am" not in reason_of(hub)
        assert authority.forms == []
