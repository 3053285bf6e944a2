"""Tokens bound to a key (RFC 9449), at every endpoint of a running hub: accepted with a proof, rejected without."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import jwt
import pytest
import pytest_asyncio
from google.protobuf import json_format
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from isthmus.model.calls import Result
from isthmus.wire.a2a.protobuf import CLASSES, METHODS, SERVICE
from tests.faults import quick_server
from tests.faults.scripted import hub_of
from tests.frontends.test_a2a_grpc import address
from tests.hubs import META, MODERN, TRUSTED, stdio
from tests.issuer import encoded, jwk_of, private_key
from tests.security.issuer_hub import IssuerHub, Tap, issuer_hub
from tests.unit.credentials.test_server_logins import logged_in
from tests.unit.identity.test_dpop_proofs import thumbprint_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("dpop")]

BOUND = {"cnf": {"jkt": thumbprint_of("ES256")}}


class Holder(httpx2.Auth):
    """Who has a bound token and its key: signs each request, and takes up the nonce that a server wants."""

    def __init__(self, token: str, **claims: Any) -> None:
        self.token = token
        self.nonce: str | None = None
        self._claims = claims

    def proof(self, method: str, url: str) -> str:
        usual = {
            "jti": secrets.token_hex(8),
            "htm": method,
            "htu": url.partition("?")[0],
            "iat": int(time.time()),
            "ath": encoded(hashlib.sha256(self.token.encode()).digest()),
            "nonce": self.nonce,
        }
        said = {name: value for name, value in {**usual, **self._claims}.items() if value is not None}
        key = private_key("ES256", 0)
        return jwt.encode(said, key, algorithm="ES256", headers={"typ": "dpop+jwt", "jwk": jwk_of(key)})

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["authorization"] = f"DPoP {self.token}"
        request.headers["dpop"] = self.proof(request.method, str(request.url))
        answer = yield request
        if "use_dpop_nonce" in answer.headers.get("www-authenticate", ""):
            self.nonce = answer.headers["dpop-nonce"]
            request.headers["dpop"] = self.proof(request.method, str(request.url))
            yield request


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[IssuerHub]:
    folder = tmp_path_factory.mktemp("dpop")
    servers = {"quick": stdio(quick_server.command(folder / "paid"))}
    async with issuer_hub(folder, servers, a2a={"grpc_port": 0}) as running:
        yield running


def holder(here: IssuerHub, **claims: Any) -> Holder:
    return Holder(here.token(**BOUND), **claims)


def challenges(answer: httpx2.Response) -> list[str]:
    return [value for name, value in answer.headers.multi_items() if name == "www-authenticate"]


# -- every endpoint --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/mcp", "/mcp/quick", "/sse"])
async def test_the_official_client_calls_with_a_bound_token(here: IssuerHub, path: str) -> None:
    def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(auth=holder(here), verify=TRUSTED, timeout=30.0)

    url = here.base + path
    async with client() as http:
        open_ = (
            sse_client(url, httpx_client_factory=client)
            if path == "/sse"
            else streamable_http_client(url, http_client=http)
        )
        async with open_ as streams, ClientSession(streams[0], streams[1]) as session:
            await session.initialize()
            result: Any = await session.call_tool("pay" if path == "/mcp/quick" else "quick.pay", {"nonce": path})
            assert result.content[0].text == path


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/tools?server=quick", None),
        ("POST", "/v1/tools/quick.pay", {"nonce": "rest"}),
        ("POST", "/a2a", {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}),
        ("GET", "/a2a/rest/tasks", None),
    ],
)
async def test_a_bound_token_opens_every_other_endpoint(here: IssuerHub, method: str, path: str, body: Any) -> None:
    headers = {"a2a-version": "1.0"} if path.startswith("/a2a") else {}
    answer = await here.http.request(method, here.base + path, json=body, headers=headers, auth=holder(here))
    assert answer.status_code == 200, answer.text
    bearer = {**headers, "authorization": f"Bearer {here.token(**BOUND)}"}
    refused = await here.http.request(method, here.base + path, json=body, headers=bearer)
    assert refused.status_code == 401
    assert "it is bound to a key: send it as Authorization: DPoP" in refused.text


async def test_a_bound_token_is_taken_over_grpc(here: IssuerHub) -> None:
    target = await address(here.hub)
    given, got = (CLASSES[name] for name in METHODS["ListTasks"])
    holds = holder(here)

    async def ask(*metadata: tuple[str, str]) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(target) as channel:
            made = channel.unary_unary(f"/{SERVICE}/ListTasks", lambda sent: sent.SerializeToString(), got.FromString)
            called = made(json_format.ParseDict({}, given()), metadata=(("a2a-version", "1.0"), *metadata), timeout=20)
            return grpc.StatusCode(await called.code())

    shown = ("authorization", f"DPoP {holds.token}")
    proof = ("dpop", holds.proof("POST", f"http://{target}/{SERVICE}/ListTasks"))
    assert await ask(shown, proof) is grpc.StatusCode.OK
    assert await ask(shown, proof) is grpc.StatusCode.UNAUTHENTICATED, "a proof is good once"
    wrong = ("dpop", holds.proof("POST", f"http://{target}/{SERVICE}/GetTask"))
    assert await ask(shown, wrong) is grpc.StatusCode.UNAUTHENTICATED
    assert await ask(("authorization", f"Bearer {holds.token}")) is grpc.StatusCode.UNAUTHENTICATED


# -- what is refused, and how ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"htm": "POST"}, "its htm is not the method of this request"),
        ({"htu": "http://127.0.0.1/v1/tools"}, "its htu is not http://127.0.0.1:"),
        ({"htu": "https://hub.example/v1/tools"}, "its htu is not http://127.0.0.1:"),
        ({"ath": "x"}, "its ath is not the digest of the token"),
        ({"iat": 1}, "its iat is not within 60 seconds"),
        ({"jti": None}, "it has no jti"),
    ],
)
async def test_a_wrong_proof_is_reported_to_its_sender(here: IssuerHub, claims: dict[str, Any], expected: str) -> None:
    answer = await here.http.get(f"{here.base}/v1/tools", auth=holder(here, **claims))
    assert answer.status_code == 401
    (challenge,) = challenges(answer)
    assert challenge.startswith("DPoP ")
    assert 'error="invalid_dpop_proof"' in challenge
    assert expected in challenge
    assert 'algs="ES256 ' in challenge


async def test_a_proof_is_good_for_one_request_also_on_the_connection_that_it_came_by(here: IssuerHub) -> None:
    """A connection knows heads again by their bytes: the same bytes must not be let in again."""
    holds = holder(here)
    url = f"{here.base}/mcp"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
    headers = {
        "authorization": f"DPoP {holds.token}",
        "dpop": holds.proof("POST", url),
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/list",
    }
    answers = [await here.http.post(url, json=body, headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 401, 401]
    assert "it was used already" in challenges(answers[1])[0]


async def test_a_request_whose_body_comes_late_is_looked_at_twice_and_let_in(here: IssuerHub) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"nonce":'
        await asyncio.sleep(0.05)  # another read brings the rest
        yield b'"slow"}'

    headers = {"content-type": "application/json"}
    url = f"{here.base}/v1/tools/quick.pay"
    holds = holder(here)
    headers |= {"authorization": f"DPoP {holds.token}", "dpop": holds.proof("POST", url)}
    answer = await here.http.post(url, content=slowly(), headers=headers)
    assert answer.status_code == 200, answer.text


async def test_an_ambiguous_or_missing_proof_is_rejected(here: IssuerHub) -> None:
    url = f"{here.base}/v1/tools"
    holds = holder(here)
    shown = {"authorization": f"DPoP {holds.token}"}
    proofs = [holds.proof("GET", url) for _ in range(4)]
    cases: list[Any] = [
        shown,
        [*shown.items(), ("dpop", proofs[0]), ("dpop", proofs[1])],
        {**shown, "dpop": proofs[2], "x-api-key": holds.token},
        {"x-api-key": holds.token, "dpop": proofs[3]},
        {"authorization": f"DPoP {here.token()}", "dpop": holder(here).proof("GET", url)},
    ]
    for headers in cases:
        assert (await here.http.get(url, headers=headers)).status_code == 401
    assert (await here.http.get(url, headers={**shown, "dpop": proofs[3]})).status_code == 200, "and was not used up"


async def test_the_hub_says_that_it_takes_bound_tokens(here: IssuerHub) -> None:
    answer = await here.http.get(f"{here.base}/v1/tools")
    bearer, bound = challenges(answer)
    assert bearer.startswith("Bearer ")
    assert bound.startswith('DPoP algs="ES256 ')
    document = (await here.http.get(f"{here.base}/.well-known/oauth-protected-resource")).json()
    assert document["dpop_signing_alg_values_supported"][0] == "ES256"
    assert not any(each.startswith(("HS", "none")) for each in document["dpop_signing_alg_values_supported"])
    assert "dpop_bound_access_tokens_required" not in document, "keys and bearer tokens are good, too"


async def test_bad_proofs_of_a_good_token_are_no_guesses(here: IssuerHub) -> None:
    for _ in range(70):
        answer = await here.http.get(f"{here.base}/v1/tools", auth=holder(here, htm="PUT"))
        assert answer.status_code == 401


async def test_no_token_proof_or_key_is_in_the_log(here: IssuerHub) -> None:
    said = "".join(here.hub.said)
    assert "PRIVATE" not in said
    assert BOUND["cnf"]["jkt"] not in said


# -- nonces ----------------------------------------------------------------------------------------------------------


async def test_a_nonce_of_the_hub_is_taken_up_and_lasts(tmp_path: Path) -> None:
    async with issuer_hub(tmp_path, dpop="nonce") as both:
        holds = Holder(both.token(**BOUND))
        first = await both.http.get(f"{both.base}/v1/tools", auth=holds)
        assert (first.status_code, len(first.history)) == (200, 1)
        nonce = holds.nonce
        assert nonce is not None
        assert (await both.http.get(f"{both.base}/v1/tools", auth=holds)).status_code == 200
        assert holds.nonce == nonce, "it was not asked for another"
        plain = await both.ask(both.token())
        assert plain.status_code == 401
        assert "it is not bound to a key, as tokens of its issuer must be" in plain.text
        document = (await both.http.get(f"{both.base}/.well-known/oauth-protected-resource")).json()
        assert "ES256" in document["dpop_signing_alg_values_supported"]


# -- one hub before another ------------------------------------------------------------------------------------------


async def test_a_hub_logs_in_at_another_with_a_key_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    servers = {"quick": stdio(quick_server.command(folder / "paid"))}
    async with Tap(0).opened() as tap:
        public = f"http://127.0.0.1:{tap.own_port}"
        async with issuer_hub(folder, servers, {"public_url": public}, audience=None, dpop="nonce") as there:
            tap.port = there.hub.port
            there.issuer.metadata = {"dpop_signing_alg_values_supported": ["ES256"]}
            entry = {"url": f"{public}/mcp", "oauth": {"origins": [there.issuer.url]}}
            async with hub_of(tmp_path, {"other": entry}) as hub:
                await logged_in(hub, tmp_path / "state")
                await hub.ready("other")
                assert isinstance(await hub.call("other.quick.pay", nonce="far"), Result)
    assert (folder / "paid").read_text().count('"far"') == 1
    assert tap.sent.count(b"authorization: DPoP ey") == tap.sent.count(b"dpop: ey") > 2
    assert b"authorization: Bearer" not in tap.sent
