"""Logins with authorization servers and servers that lie, echo and hurry, and people who act during a renewal."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shlex
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from isthmus.app.login import LoginOptions, log_in
from isthmus.cli.exits import Exit
from isthmus.cli.login import list_logins
from isthmus.core.background import BackgroundTasks
from isthmus.credentials import server_logins
from isthmus.credentials.client_registration import OAuthClient
from isthmus.credentials.discovery import DiscoveryFailed, ServerMetadata, find_token_source
from isthmus.credentials.fetch import Fetcher, FetchFailed
from isthmus.credentials.interactive_login import Callback, DeviceLogin, wait_for_device
from isthmus.credentials.server_logins import Login, Logins
from isthmus.credentials.token_endpoint import (
    GrantRefused,
    StoredLogin,
    StoredToken,
    TokenEndpoint,
)
from isthmus.credentials.vault import Slot, Vault
from isthmus.model.calls import Result
from isthmus.model.credentials import OAuthSettings, ServerCredentials, Subject
from isthmus.model.fault_table import NotConnected
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress, HttpOrigin
from isthmus.transport.http_client import HttpResponse
from isthmus.upstream.http_shared import advice_for
from isthmus.upstream.server_settings import HttpSettings, ServerSettings
from tests.faults.scripted import InProcess, ReceivedRequest, Scripted, hub_of, reply
from tests.faults.watching import eventually
from tests.security.authority import Authority, Protected, entry_of, visit
from tests.unit.credentials.test_server_logins import (
    EXCHANGE,
    OTHER,
    OWN,
    PLANNER,
    S,
    called,
    logged_in,
    reason_of,
    server_status,
)

LONG = "x" * 600


class Slow(Authority):
    """Holds the answers to refreshes back until a test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_at = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def _converse(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        await super()._converse(_Held(reader, self), out)  # type: ignore[arg-type]


class _Held:
    def __init__(self, reader: asyncio.StreamReader, authority: Slow) -> None:
        self._reader, self._authority = reader, authority

    async def readuntil(self, mark: bytes) -> bytes:
        return await self._reader.readuntil(mark)

    async def readexactly(self, count: int) -> bytes:
        body = await self._reader.readexactly(count)
        if b"grant_type=refresh_token" in body:
            self._authority.asked_at.set()
            await self._authority.may_answer.wait()
        return body


def kept_of(state: Path) -> StoredLogin | None:
    content = Vault(state).get(Slot("s"))
    return None if content is None else msgspec.json.decode(content, type=StoredLogin)


def login_of(hub: InProcess) -> Login:
    """The credentials sent to the server without a caller."""
    return hub.running.logins._known[Slot("s"), ""][1]


@asynccontextmanager
async def renewing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Slow, Protected, InProcess]]:
    """A hub whose login is being renewed: the authorization server was asked, and has not answered."""
    monkeypatch.setattr(server_logins, "LEEWAY_SECONDS", 0.0)
    async with Slow() as authority, Protected(authority) as server:
        authority.first_expires_in = [0.5]
        async with hub_of(folder, {"s": entry_of(server)}) as hub:
            await logged_in(hub, folder / "state")
            await asyncio.wait_for(authority.asked_at.wait(), 5.0)
            yield authority, server, hub


async def let_answer(authority: Slow, hub: InProcess) -> None:
    """Have the refresh that is under way answered, and the answer taken in."""
    renewing = login_of(hub)._renewing
    assert renewing is not None
    authority.may_answer.set()
    await asyncio.wait_for(asyncio.wait({renewing}), 5.0)
    assert authority.count("refresh_token") == 1


async def test_a_logout_during_a_refresh_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    async with renewing(tmp_path, monkeypatch) as (authority, _, hub):
        assert Vault(state).remove(Slot("s"))
        await let_answer(authority, hub)
        await eventually(lambda: hub.state("s") == "login", "the hub gives it up")
        assert kept_of(state) is None
        assert hub.state("s") == "login"


async def test_of_two_hubs_with_one_state_folder_one_renews_a_login(tmp_path: Path) -> None:
    """Both wake up at the same time, as after a laptop did: what is used twice, authorization servers revoke."""
    async with Slow() as authority, Protected(authority) as server:
        entry = {"s": entry_of(server)}
        async with hub_of(tmp_path, entry) as one, hub_of(tmp_path, entry) as other:
            await logged_in(one, tmp_path / "state")
            await one.ready("s")
            await other.ready("s")
            renewals = [login_of(hub)._start() for hub in (one, other)]
            await asyncio.wait_for(authority.asked_at.wait(), 5.0)
            authority.may_answer.set()
            await asyncio.wait_for(asyncio.gather(*renewals), 10.0)
            assert authority.count("refresh_token") == 1
            shown = {login_of(hub).headers_for(S)["authorization"] for hub in (one, other)}
            assert shown == {"Bearer token-2"}


async def test_a_login_during_a_refresh_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    async with renewing(tmp_path, monkeypatch) as (authority, server, hub):
        await logged_in(hub, state)
        await let_answer(authority, hub)
        kept = kept_of(state)
        assert kept is not None
        assert kept.token.access == "token-2", "which is what the person has got"
        await hub.ready("s")
        await hub.call("s.t")
        assert server.shown[-1] == "Bearer token-2"


@pytest.mark.parametrize("seconds", [0, 0.2, 5])
async def test_tokens_that_hold_for_no_time_are_not_asked_for_in_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(server_logins, "RENEWAL_SECONDS_MIN", 5.0)  # as it is outside of these tests
    async with Authority() as authority, Protected(authority) as server:
        authority.expires_in = seconds
        async with hub_of(tmp_path, {"s": entry_of(server, **OWN)}) as hub:
            await hub.ready("s")
            assert isinstance(await hub.call("s.t"), Result)
            assert len(authority.forms) == 1
            login = login_of(hub)
            assert login._renewing is None
            assert login._timer is None or login._timer.when() - asyncio.get_running_loop().time() > 4.0


async def test_a_clock_that_was_put_back_costs_no_login(tmp_path: Path) -> None:
    async with server_status(tmp_path) as (authority, hub):
        hub.running.logins._clock = lambda: time.time() - 86_400
        authority.good.clear()
        await hub.call("s.t")
        await eventually(lambda: len(authority.forms) == 2, "another token is had")
        await hub.ready("s")


@pytest.mark.parametrize("how", ["refresh", "secret"])
async def test_text_that_an_authorization_server_repeats_is_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """Nor the beginning of what is too long to be told whole."""
    async with Authority() as authority, Protected(authority) as server:
        secret = "s3cret" + LONG
        received = f"unknown: {secret}" if how == "refresh" else "the password was s3cretpassword"
        authority.refusals = [(400, {"error": "invalid_grant", "error_description": received})] * 3
        if how == "refresh":
            token = StoredToken("access", time.time() - 1, 0.0, secret)
            kept = StoredLogin(token, OAuthClient("c"), authority.url, f"{authority.url}/token", server.url, server.url)
            Vault(tmp_path / "state").put(Slot("s"), msgspec.json.encode(kept))
            entry = entry_of(server)
        else:
            entry = entry_of(server, **{**OWN, "client_secret": "s3cretpassword"})
        async with hub_of(tmp_path, {"s": entry}) as hub:
            await eventually(lambda: "invalid_grant" in reason_of(hub), "the hub says why")
            assert "s3cret" not in reason_of(hub)
        assert "s3cret" not in capsys.readouterr().out


@pytest.mark.parametrize("status", [200, 403])
async def test_a_server_that_repeats_a_callers_token_does_not_get_it_to_the_caller(tmp_path: Path, status: int) -> None:
    class Repeating(Protected):
        async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
            shown = request.headers.get("authorization", [""])[0]
            if "token-1" not in shown and shown:
                error = {"code": -32000, "message": f"not for {shown}"}
                out.write(reply({"jsonrpc": "2.0", "id": request.message["id"], "error": error}, status=status))
            else:
                await super().on(request, out)

    async with Authority() as authority, Repeating(authority) as server:
        authority.prefix = LONG
        exchange = {**EXCHANGE, "token_endpoint": f"{authority.url}/token"}
        async with hub_of(tmp_path, {"s": entry_of(server, **exchange)}) as hub:
            await hub.ready("s")
            hub.running.logins.subjects.note(Subject("default", "planner"), "jwt-of-planner", 4e9)
            refused = await called(hub, PLANNER)
            assert isinstance(refused, NotConnected)
            assert LONG[:50] not in refused.why


class Documents(Fetcher):
    """Answers with what is known of addresses, wherever those are."""

    def __init__(self, known: Mapping[str, object], named: str) -> None:
        def is_named(origin: HttpOrigin) -> bool:
            return str(origin) == named

        super().__init__(Egress(), BackgroundTasks("t"), is_named)
        self._documents = known

    async def check_place(self, what: str, url: str) -> None:
        self.check(what, url)

    async def _fetch(
        self, what: str, verb: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> HttpResponse:
        known = self._documents.get(url)
        return HttpResponse(401 if verb == "POST" else 404 if known is None else 200, {}, json.dumps(known).encode())


THEIRS = "https://thief.example"
DOCUMENTS = {
    "https://s.example/.well-known/oauth-protected-resource/mcp": {
        "resource": "https://s.example/mcp",
        "authorization_servers": [THEIRS],
    },
    f"{THEIRS}/.well-known/oauth-authorization-server": {"issuer": THEIRS, "token_endpoint": f"{THEIRS}/token"},
}


async def test_no_server_says_where_a_clients_secret_goes() -> None:
    """It goes to whom the operator named, by `issuer` or by `origins`: not to whom a server does."""
    secret = OAuthSettings(grant="client_credentials", client_id="hub", client_secret="the secret")
    with pytest.raises(DiscoveryFailed, match="set issuer"):
        await find_token_source(Documents(DOCUMENTS, ""), "https://s.example/mcp", secret)
    for fetcher, settings in (
        (Documents(DOCUMENTS, THEIRS), secret),
        (Documents(DOCUMENTS, ""), dataclasses.replace(secret, issuer=THEIRS)),
        (Documents(DOCUMENTS, ""), OAuthSettings()),
    ):
        place = await find_token_source(fetcher, "https://s.example/mcp", settings)
        assert place.server.token_endpoint == f"{THEIRS}/token"


def test_no_server_says_where_callers_tokens_go() -> None:
    exchange = {"grant": "token_exchange", "client_id": "hub", "client_secret": "the secret"}
    with pytest.raises(ValueError, match="issuer must be set, or token_endpoint, for token_exchange"):
        OAuthSettings(**exchange)  # type: ignore[arg-type]
    OAuthSettings(**exchange, token_endpoint="https://login.example/token")  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [1e15, 1e300, "inf", "nan", -5, 0])
async def test_a_login_for_an_odd_time_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: float | str
) -> None:
    async with Authority() as authority, Protected(authority) as server:
        authority.expires_in = seconds  # type: ignore[assignment]
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await logged_in(hub, tmp_path / "state")
            await hub.ready("s")
            assert list_logins(hub.running.configuration.file, is_json=False) is Exit.SUCCESS
    assert "refresh" not in capsys.readouterr().out


async def test_credentials_echoed_by_a_server_do_not_reach_the_caller(tmp_path: Path) -> None:
    """In the hub's own words, that is: what a server answers by itself reaches the caller as it is."""

    class Repeating(Scripted):
        async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
            error = {"code": -32000, "message": f"not for {request.headers['authorization'][0]}"}
            out.write(reply({"jsonrpc": "2.0", "id": request.message["id"], "error": error}, status=401))

    async with Repeating() as server:
        entry = {**server.entry, "headers": {"Authorization": "Bearer configured-secret"}}
        own = {**entry, "callers": {"planner": {"headers": {"Authorization": "Bearer planners-secret"}}}}
        async with hub_of(tmp_path, {"s": own}) as hub:
            await hub.ready("s")
            for caller in (PLANNER, OTHER):
                refused = await called(hub, caller)
                assert isinstance(refused, NotConnected)
                assert "not for " in refused.why
                assert "-secret" not in refused.why


async def test_a_client_that_is_refused_is_not_asked_for_in_a_loop(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        authority.refusals = [(401, {"error": "invalid_client"})] * 9
        async with hub_of(tmp_path, {"s": entry_of(server, **OWN)}) as hub:
            await eventually(lambda: hub.state("s") == "login", "the hub leaves it alone")
            assert reason_of(hub) == "no token for it: the authorization server says invalid_client"
            assert (login_of(hub)._renewing, login_of(hub)._timer) == (None, None)
            assert len(authority.forms) == 1


def test_a_command_with_a_strangers_words_is_one_that_can_be_copied() -> None:
    """What a server wants to be allowed is named in a command; a shell must not find another one in it."""
    challenge = """Bearer error="insufficient_scope", scope="a'$(touch /tmp/x)' `b`;c" """
    words = advice_for(403, {"www-authenticate": challenge}, "s", can_log_in=True)
    command = words.partition("run ")[2]
    assert shlex.split(command) == ["isthmus", "login", "s", "--scope", "a'$(touch /tmp/x)' `b`;c"]
    printed = subprocess.run(["/bin/sh", "-c", f"printf %s {command}"], capture_output=True, check=True, text=True)
    assert printed.stdout.endswith("a'$(touch /tmp/x)' `b`;c")


async def test_invalid_requests_to_the_login_callback_are_harmless() -> None:
    broken: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    callback = Callback("the state")
    await callback.open(0)
    try:
        for target in ("//[", "/callback?" + "a=1&" * 80, "/callback?state=%ff", "/callback?state=the+state&state=x"):
            reader, writer = await asyncio.open_connection("127.0.0.1", callback.port)
            writer.write(f"GET {target} HTTP/1.1\r\n\r\n".encode())
            assert not (await reader.read()).startswith(b"HTTP/1.1 200"), target
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", callback.port)
        writer.write(b"GET /callback?state=the+state&code=c HTTP/1.1\r\n\r\n")
        assert (await callback.answer(5.0))["code"] == "c"
        assert broken == []
        writer.close()
    finally:
        callback.close()


@asynccontextmanager
async def expired(folder: Path) -> AsyncIterator[tuple[Slow, Logins, str]]:
    """A server's login that has expired, where refreshes are answered when the test says so."""
    vault, background = Vault(folder), BackgroundTasks("t")
    async with Slow() as authority:
        url = f"{authority.url}/mcp"
        token = StoredToken("old", time.time() - 1, 0.0, "refresh-0")
        kept = StoredLogin(token, OAuthClient("c"), authority.url, f"{authority.url}/token", url, url)
        vault.put(Slot("s"), msgspec.json.encode(kept))
        yield authority, Logins(vault, Egress(), background), url
        await background.aclose()


async def test_a_login_that_is_configured_otherwise_while_it_is_renewed_is_renewed_once(tmp_path: Path) -> None:
    """A refresh token is valid once: a login that replaces another does not use the token that the other is using."""
    async with expired(tmp_path) as (authority, logins, url):
        first = logins.login_for(S, url, {}, ServerCredentials(OAuthSettings(origins=(authority.url,))))
        readying = asyncio.ensure_future(first.ready())
        await asyncio.wait_for(authority.asked_at.wait(), 5.0)
        second = logins.login_for(S, url, {}, ServerCredentials(OAuthSettings(origins=(authority.url,), scope="more")))
        both = asyncio.gather(readying, second.ready())
        authority.may_answer.set()
        await asyncio.wait_for(both, 5.0)
        assert [form["refresh_token"] for form in authority.forms] == ["refresh-0"]
        assert second.headers_for(S)["authorization"] == "Bearer token-1"
        assert first._timer is None, "what was replaced renews nothing more"
        assert second._timer is not None
        second.close()


async def test_a_login_that_expires_among_many_calls_is_renewed_once(tmp_path: Path) -> None:
    async with expired(tmp_path) as (authority, logins, url):
        login = logins.login_for(S, url, {}, ServerCredentials(OAuthSettings(origins=(authority.url,))))
        many = asyncio.gather(*(login.ready() for _ in range(100)))
        authority.may_answer.set()
        await asyncio.wait_for(many, 5.0)
        assert [form["refresh_token"] for form in authority.forms] == ["refresh-0"]
        login.close()


async def test_a_wait_for_a_person_survives_a_short_absence_of_the_authorization_server() -> None:
    said: list[Exception | StoredToken] = [FetchFailed("away"), GrantRefused("authorization_pending"), StoredToken("a")]
    pauses: list[float] = []

    class Away(TokenEndpoint):
        async def by_device(self, code: str) -> StoredToken:
            if isinstance(next_ := said.pop(0), Exception):
                raise next_
            return next_

    def sleep(seconds: float) -> asyncio.Future[None]:
        pauses.append(seconds)
        return asyncio.ensure_future(asyncio.sleep(0))

    fetcher = Documents({}, "")
    endpoint = Away(fetcher, ServerMetadata(), OAuthClient("c"), OAuthSettings(), "https://s.example/mcp")
    got = await wait_for_device(endpoint, DeviceLogin("code", "WDJB", "https://login.example"), 5.0, sleep)
    assert (got.access, pauses) == ("a", [5.0, 10.0, 10.0])


class Alone(Authority):
    """A server of 2025-03-26: it is its own authorization server, and says nothing of that."""

    def _answer(self, target: str, fields: dict[str, str], body: bytes) -> bytes:
        if target.startswith("/.well-known/"):
            return reply(None, status=404)
        return reply(None, status=401) if target == "/mcp" else super()._answer(target, fields, body)


async def test_a_moved_server_does_not_see_the_hubs_identity_at_another(tmp_path: Path) -> None:
    """Where neither says who it is, both have no name: what the hub registered as there is told apart by the place."""
    people: list[asyncio.Task[int]] = []
    client = OAuthClient("client-of-old", "secret-of-old", "client_secret_basic", "http://127.0.0.1:1/callback")
    kept = StoredLogin(
        StoredToken("t"), client, "", "https://old.example/token", "https://old.example", "https://old.example/mcp"
    )
    vault = Vault(tmp_path)
    vault.put(Slot("s"), msgspec.json.encode(kept))
    async with Alone() as server:
        settings = ServerSettings(ServerName("s"), HttpSettings(f"{server.url}/mcp"))
        show = lambda shown: people.append(asyncio.create_task(visit(shown.address)))  # noqa: E731
        await log_in(LoginOptions(settings, within=10.0), vault, show)
        await asyncio.gather(*people)
    assert [asked["client_id"] for asked in server.asked] == ["client-1"]
    assert all("authorization" not in head for head in server.heads)
