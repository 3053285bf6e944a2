"""Credentials for servers while a hub runs: obtained, renewed in time, refused for good, and never mixed up."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isthmus.app.login import LoginOptions, LoginPrompt, log_in
from isthmus.core.admin_ports import CaptureOrder
from isthmus.credentials import server_logins
from isthmus.credentials.vault import Slot, Vault
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Call, Outcome, Result
from isthmus.model.credentials import Subject
from isthmus.model.fault_table import NotConnected
from isthmus.model.names import ServerName
from isthmus.upstream import reconnector
from tests.faults.scripted import Ending, InProcess, ReceivedRequest, Scripted, hub_of, reply
from tests.faults.watching import Metronome, eventually
from tests.security.authority import Authority, Protected, entry_of, visit

S = ServerName("s")
OWN = {"grant": "client_credentials", "client_id": "hub", "client_secret": "the secret", "scope": "read"}
PLANNER = Caller("planner", "default", Grants(("*",)))
OTHER = Caller("other", "default", Grants(("*",)))


def reason_of(hub: InProcess) -> str:
    return hub.running.hub.snapshot.server_statuses[S].reason or ""


async def called(hub: InProcess, caller: Caller) -> Outcome:
    ending = Ending()
    hub.running.hub.start(Call(caller, hub.running.surface, "s.t", msgspec.Raw(b"{}")), ending)
    return await asyncio.wait_for(ending.outcome, 20.0)


async def logged_in(hub: InProcess, state: Path, caller: Subject | None = None) -> None:
    people: list[asyncio.Task[int]] = []

    def show(shown: LoginPrompt) -> None:
        people.append(asyncio.create_task(visit(shown.address)))

    await log_in(LoginOptions(hub.running.configuration.servers[0], caller, within=10.0), Vault(state), show)
    await asyncio.gather(*people)


@asynccontextmanager
async def server_status(folder: Path) -> AsyncIterator[tuple[Authority, InProcess]]:
    """A hub that has got a token of its own, and its server ready."""
    async with (
        Authority() as authority,
        Protected(authority) as server,
        hub_of(folder, {"s": entry_of(server, **OWN)}) as hub,
    ):
        await hub.ready("s")
        yield authority, hub


def shown_last(server: Protected) -> str:
    return server.shown[-1]


# -- the hub's own ---------------------------------------------------------------------------------------------------


async def test_a_hub_gets_a_token_of_its_own_before_it_knocks(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        async with hub_of(tmp_path, {"s": entry_of(server, **OWN)}) as hub:
            await hub.ready("s")
            assert isinstance(await hub.call("s.t"), Result)
        (form,) = authority.forms
        assert form == {"grant_type": "client_credentials", "scope": "read", "resource": server.url}
        assert base64.b64decode(authority.heads[0]["authorization"].removeprefix("Basic ")) == b"hub:the%20secret"
        assert set(server.shown) == {"", "Bearer token-1"}, "asked once for its challenge, and never again without"
        assert server.shown.count("") == 1


async def test_a_configured_endpoint_is_asked_without_looking_for_one(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        known = {**OWN, "token_endpoint": f"{authority.url}/token", "audience": "search"}
        async with hub_of(tmp_path, {"s": {**server.entry, "oauth": known}}) as hub:
            await hub.ready("s")
        assert authority.paths == ["/token"]
        assert authority.forms[0]["audience"] == "search"
        assert "" not in server.shown


async def test_a_token_is_renewed_ahead_of_its_end_and_no_link_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_logins, "LEEWAY_SECONDS", 0.0)
    async with Authority() as authority, Protected(authority) as server:
        authority.first_expires_in = [0.5]
        async with hub_of(tmp_path, {"s": entry_of(server, **OWN)}) as hub:
            await hub.ready("s")

            async def is_renewed() -> bool:
                assert isinstance(await hub.call("s.t"), Result)
                return shown_last(server) == "Bearer token-2"

            await eventually(is_renewed, "the token is renewed")
            assert (server.greetings, server.turned_away) == (1, 1)


async def test_credentials_echoed_by_a_server_are_not_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Repeating(Protected):
        async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
            if request.method == "tools/list" and request.headers.get("authorization"):
                said = f"no list for {request.headers['authorization'][0]}"
                error = {"jsonrpc": "2.0", "id": request.message["id"], "error": {"code": -32000, "message": said}}
                out.write(reply(error, status=403))
            else:
                await super().on(request, out)

    async with (
        Authority() as authority,
        Repeating(authority) as server,
        hub_of(tmp_path, {"s": entry_of(server, **OWN)}) as hub,
    ):
        await eventually(lambda: "no list for Bearer ***" in reason_of(hub), "the hub says why")
    assert "token-1" not in capsys.readouterr().out


@pytest.mark.parametrize("isolation", ["shared", "caller"])
async def test_a_token_that_a_server_repeats_in_a_failed_result_reaches_no_caller(
    tmp_path: Path, isolation: str
) -> None:
    class Repeating(Protected):
        async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
            said = f"not good: {request.headers['authorization'][0]}"
            out.write(reply(request.result({"content": [{"type": "text", "text": said}], "isError": True})))

    async with Authority() as authority, Repeating(authority) as server:
        entry = {**entry_of(server, **OWN), "isolation": isolation}
        async with hub_of(tmp_path, {"s": entry}) as hub:
            await hub.ready("s")
            outcome = await called(hub, PLANNER)
    assert isinstance(outcome, Result)
    assert b"not good: Bearer ***" in bytes(outcome.payload)


@pytest.mark.parametrize("isolation", ["shared", "caller"])
async def test_a_token_that_a_server_repeats_in_a_result_is_not_captured(tmp_path: Path, isolation: str) -> None:
    class Repeating(Protected):
        async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
            said = f"thanks for {request.headers['authorization'][0]}"
            out.write(reply(request.result({"content": [{"type": "text", "text": said}]})))

    async with Authority() as authority, Repeating(authority) as server:
        entry = {**entry_of(server, **OWN), "isolation": isolation}
        async with hub_of(tmp_path, {"s": entry}) as hub:
            await hub.ready("s")
            hub.running.start_capture(CaptureOrder(OTHER, 60.0))
            assert isinstance(await called(hub, PLANNER), Result)
            details = hub.running.call_details(1, OTHER)
    assert details is not None
    assert details.result is not None
    assert details.result.is_redacted
    assert "thanks for Bearer ***" in details.result.text


async def test_many_links_at_once_take_one_request(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        entry = {**entry_of(server, **OWN), "isolation": "call"}
        async with hub_of(tmp_path, {"s": entry}) as hub:
            await hub.ready("s")
            await asyncio.gather(*(hub.call("s.t") for _ in range(10)))
        assert len(authority.forms) == 1


async def test_an_authorization_server_that_is_away_is_asked_again(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        authority.refusals = [(503, {})]
        async with hub_of(tmp_path, {"s": entry_of(server, **OWN)}) as hub:
            await eventually(lambda: hub.state("s") == "retrying", "the hub says that it has no token")
            assert reason_of(hub) == "no token for it: the token endpoint answered HTTP 503"
            await hub.ready("s")


async def test_a_token_that_a_server_rejects_is_renewed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_logins, "FRESH_SECONDS", 0.0)
    async with server_status(tmp_path) as (authority, hub):
        authority.good.clear()
        outcome = await hub.call("s.t")
        assert isinstance(outcome, NotConnected)
        assert outcome.status == 401
        await eventually(lambda: authority.good == {"token-2"}, "another token is asked for")
        await hub.ready("s")
        assert isinstance(await hub.call("s.t"), Result)


async def test_a_new_token_that_is_not_taken_is_no_reason_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But it is shown again to who wants it looked at: it may have been the server's own mistake."""
    monkeypatch.setattr(reconnector, "LOGIN_RETRY_SECONDS", 0.0)
    async with server_status(tmp_path) as (authority, hub):
        authority.good.clear()
        await hub.call("s.t")
        await eventually(lambda: hub.state("s") == "login", "the hub gives up")
        assert len(authority.forms) == 1
        authority.good.add("token-1")

        async def is_ready() -> bool:
            await hub.call("s.t")  # once more if the failed link was still closing at the first
            return hub.state("s") == "ready"

        await eventually(is_ready, "a call has the same token tried again")
        assert len(authority.forms) == 1


# -- a person's ------------------------------------------------------------------------------------------------------


async def test_a_running_hub_takes_a_login_up_within_a_second_and_gives_it_up_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_logins, "CHECK_SECONDS", 0.5)  # as it is outside of these tests
    async with (
        Authority() as authority,
        Protected(authority) as server,
        hub_of(tmp_path, {"s": entry_of(server)}) as hub,
    ):
        await eventually(lambda: hub.state("s") == "login", "it requires a login")
        assert reason_of(hub) == "it requires a login (nobody has logged in): run isthmus login s"
        assert server.shown == [], "nobody is asked what cannot help"
        await logged_in(hub, tmp_path / "state")
        async with Metronome() as metronome:  # what a busy machine takes is not the hub's
            took = await eventually(lambda: hub.state("s") == "ready", "the hub takes it up")
            assert took - metronome.late_seconds < 1.5
        assert isinstance(await hub.call("s.t"), Result)
        assert shown_last(server) == "Bearer token-1"
        Vault(tmp_path / "state").remove(Slot("s"))
        async with Metronome() as metronome:
            took = await eventually(lambda: hub.state("s") == "login", "the hub gives it up")
            assert took - metronome.late_seconds < 1.5


async def test_for_an_unconfigured_server_the_way_to_log_in_is_reported_and_nothing_sent(tmp_path: Path) -> None:
    async with (
        Authority() as authority,
        Protected(authority) as server,
        hub_of(tmp_path, {"s": server.entry}) as hub,
    ):
        await eventually(lambda: hub.state("s") == "login", "it requires a login")
        assert reason_of(hub).startswith("it requires a login: run isthmus login s (it answered HTTP 401")
        knocks = server.turned_away
        for _ in range(20):
            await asyncio.sleep(0)
        assert server.turned_away == knocks


async def test_a_login_is_renewed_and_the_renewed_one_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_logins, "LEEWAY_SECONDS", 0.0)
    async with Authority() as authority, Protected(authority) as server:
        authority.first_expires_in = [1.0]
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await logged_in(hub, tmp_path / "state")
            await hub.ready("s")
            await eventually(lambda: authority.count("refresh_token") == 1, "it is renewed")
            await eventually(lambda: b"refresh-2" in (Vault(tmp_path / "state").get(Slot("s")) or b""), "it is kept")
            refreshed = authority.forms[-1]
            assert (refreshed["refresh_token"], refreshed["resource"]) == ("refresh-1", server.url)
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await hub.ready("s")
            assert shown_last(server) == "Bearer token-2"


async def test_a_login_is_renewed_with_the_secret_that_is_configured_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client secrets are rotated; that requires no new login."""
    monkeypatch.setattr(server_logins, "LEEWAY_SECONDS", 0.0)
    monkeypatch.setattr(server_logins, "RENEWAL_SECONDS_MIN", 0.05)
    async with Authority() as authority, Protected(authority) as server:
        authority.first_expires_in = [0.2]
        before, now = ({"client_id": "hub", "client_secret": f"the {word} secret"} for word in ("old", "new"))
        async with hub_of(tmp_path, {"s": entry_of(server, issuer=authority.url, **before)}) as hub:
            settings = hub.running.configuration.servers[0]
        people: list[asyncio.Task[int]] = []
        show = lambda shown: people.append(asyncio.create_task(visit(shown.address)))  # noqa: E731
        await log_in(LoginOptions(settings, within=10.0), Vault(tmp_path / "state"), show)
        async with hub_of(tmp_path, {"s": entry_of(server, issuer=authority.url, **now)}) as hub:
            await eventually(lambda: authority.count("refresh_token") == 1, "it is renewed")
            await hub.ready("s")
        await asyncio.gather(*people)
    proof = authority.heads[-1]["authorization"].removeprefix("Basic ")
    assert base64.b64decode(proof) == b"hub:the%20new%20secret"


async def test_a_refused_refresh_is_reported_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_logins, "LEEWAY_SECONDS", 0.0)
    async with Authority() as authority, Protected(authority) as server:
        authority.first_expires_in = [1.0]
        # From the start: on a busy machine the login is renewed before the server is ready.
        refused = {"error": "invalid_grant", "error_description": "refresh-1 is unknown"}
        authority.refused_grants["refresh_token"] = (400, refused)
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await logged_in(hub, tmp_path / "state")
            await eventually(lambda: authority.count("refresh_token") == 1, "it is tried")
            authority.good.clear()
            received = "it requires a login (its authorization server says invalid_grant): run isthmus login s"
            await eventually(lambda: reason_of(hub).startswith(received), "the hub says so")
            assert hub.state("s") == "login"
            assert "refresh-1" not in reason_of(hub)
            knocks = server.turned_away
            assert isinstance(await hub.call("s.t"), NotConnected)
            assert authority.count("refresh_token") == 1
            await logged_in(hub, tmp_path / "state")
            await hub.ready("s")
            assert server.turned_away <= knocks + 1, "but for the one that asked where to log in"


async def test_a_moved_server_does_not_get_the_credentials_of_the_old_address(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server, Protected(authority) as thief:
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await logged_in(hub, tmp_path / "state")
            await hub.ready("s")
        async with hub_of(tmp_path, {"s": thief.entry}) as hub:
            await eventually(lambda: hub.state("s") == "login", "it requires a login of its own")
        assert set(thief.shown) == {""}


async def test_a_header_that_the_operator_wrote_is_not_replaced(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        authority.good.add("fixed")
        entry = {**server.entry, "headers": {"Authorization": "Bearer fixed"}}
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await logged_in(hub, tmp_path / "state")
        async with hub_of(tmp_path, {"s": entry}) as hub:
            await hub.ready("s")
            assert set(server.shown[-3:]) == {"Bearer fixed"}


# -- single callers' -------------------------------------------------------------------------------------------------


class Listening(Scripted):
    """Takes everybody, and writes down who was shown to it with each call."""

    def __init__(self) -> None:
        super().__init__()

    @property
    def calls(self) -> list[str]:
        return [
            request.headers.get("authorization", [""])[0] for request in self.heard if request.method == "tools/call"
        ]


def entry_with(server: Scripted, **more: Any) -> Mapping[str, Any]:
    return {**server.entry, "headers": {"Authorization": "common", "X-Team": "a"}, **more}


@pytest.mark.parametrize("isolation", ["shared", "caller", "call"])
async def test_each_caller_is_called_for_by_its_own_and_the_others_by_the_common_ones(
    tmp_path: Path, isolation: str
) -> None:
    async with Listening() as server:
        own = {"planner": {"headers": {"Authorization": "planners"}}, "acme/other": {"headers": {"authorization": "x"}}}
        async with hub_of(tmp_path, {"s": entry_with(server, callers=own, isolation=isolation)}) as hub:
            await hub.ready("s")
            for caller in (PLANNER, OTHER, PLANNER, Caller("other", "acme", Grants(("*",)))):
                assert isinstance(await called(hub, caller), Result)
        assert server.calls == ["planners", "common", "planners", "x"]
        shown = {request.session: request.headers.get("authorization") for request in server.heard if request.session}
        for request in server.heard:
            if request.session:
                assert request.headers.get("authorization") == shown[request.session], "no session is shown two names"
                assert request.headers["x-team"] == ["a"]


async def test_a_caller_has_its_own_with_whichever_token_it_came(tmp_path: Path) -> None:
    async with Listening() as server:
        own = {"planner": {"headers": {"Authorization": "planners"}}}
        async with hub_of(tmp_path, {"s": entry_with(server, callers=own)}) as hub:
            await hub.ready("s")
            assert isinstance(await called(hub, msgspec.structs.replace(PLANNER, rights="few")), Result)
        assert server.calls == ["planners"]


async def test_a_caller_with_its_own_is_shown_by_nothing_that_proves_another(tmp_path: Path) -> None:
    """However names are spelt, and by whichever header a server knows who calls."""
    common = {"Authorization": "common", "X-Api-Key": "common", "Cookie": "id=common", "X-Team": "a", "X-Tier": "low"}
    own = {"planner": {"headers": {"x-api-key": "planners", "x-tier": "high"}}}
    async with Listening() as server:
        async with hub_of(tmp_path, {"s": {**server.entry, "headers": common, "callers": own}}) as hub:
            await hub.ready("s")
            assert isinstance(await called(hub, PLANNER), Result)
        headers = next(request.headers for request in server.heard if request.method == "tools/call")
    named = ("authorization", "x-api-key", "cookie", "x-team", "x-tier")
    assert [headers.get(name) for name in named] == [None, ["planners"], None, ["a"], ["high"]]


async def test_a_caller_without_a_login_is_refused_where_each_needs_its_own(tmp_path: Path) -> None:
    async with Listening() as server:
        own = {"planner": {"headers": {"Authorization": "planners"}}}
        async with hub_of(tmp_path, {"s": entry_with(server, callers=own, credentials="caller")}) as hub:
            await hub.ready("s")
            refused = await called(hub, OTHER)
            assert isinstance(refused, NotConnected)
            assert (refused.executed, "other has none" in refused.why) == ("no", True)
            assert isinstance(await called(hub, PLANNER), Result)
        assert server.calls == ["planners"]
        async with hub_of(tmp_path, {"s": entry_with(server, credentials="caller")}) as hub:
            await hub.ready("s")
            assert isinstance(await called(hub, PLANNER), NotConnected), "nobody has any"
        assert server.calls == ["planners"]


async def test_a_caller_logs_in_for_itself_alone(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        authority.good.add("common")
        own = {"planner": {"oauth": {"origins": [authority.url]}}}
        entry = {**server.entry, "headers": {"Authorization": "Bearer common"}, "callers": own}
        async with hub_of(tmp_path, {"s": entry}) as hub:
            await hub.ready("s")
            wants = await called(hub, PLANNER)
            assert isinstance(wants, NotConnected)
            assert "run isthmus login s --caller default/planner" in wants.why
            await logged_in(hub, tmp_path / "state", Subject("default", "planner"))
            assert isinstance(await called(hub, PLANNER), Result)
            assert shown_last(server) == "Bearer token-1"
            assert isinstance(await called(hub, OTHER), Result)
            assert shown_last(server) == "Bearer common"


EXCHANGE = {"grant": "token_exchange", "client_id": "hub", "client_secret": "the secret", "audience": "search"}


async def test_a_callers_token_is_exchanged_and_never_forwarded(tmp_path: Path) -> None:
    async with Authority() as authority, Protected(authority) as server:
        async with hub_of(tmp_path, {"s": entry_of(server, **EXCHANGE, issuer=authority.url)}) as hub:
            await hub.ready("s")  # it is listed in the hub's own name
            hub.running.logins.subjects.note(Subject("default", "planner"), "jwt-of-planner", 4e9)
            assert isinstance(await called(hub, PLANNER), Result)
            assert isinstance(await called(hub, PLANNER), Result)
            refused = await called(hub, OTHER)
            assert isinstance(refused, NotConnected)
            assert "this caller has sent no token" in refused.why
        first, second = authority.forms
        assert first["grant_type"] == "client_credentials"
        assert second["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
        assert (second["subject_token"], second["audience"]) == ("jwt-of-planner", "search")
        assert not any("jwt-of-planner" in shown for shown in server.shown)
        assert [shown for shown in server.shown if shown][-1] == "Bearer token-2"


async def test_a_caller_without_anything_left_to_exchange_gets_no_more_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_logins, "LEEWAY_SECONDS", 0.0)
    async with (
        Authority() as authority,
        Protected(authority) as server,
        hub_of(tmp_path, {"s": entry_of(server, **EXCHANGE, issuer=authority.url)}) as hub,
    ):
        await hub.ready("s")
        authority.expires_in = 0.3
        subjects = hub.running.logins.subjects
        subjects.note(Subject("default", "planner"), "jwt-of-planner", 4e9)
        assert isinstance(await called(hub, PLANNER), Result)
        subjects.note(Subject("default", "planner"), "jwt-of-planner", 0.0)

        async def is_refused() -> bool:
            outcome = await called(hub, PLANNER)
            return isinstance(outcome, NotConnected) and "this caller has sent no token" in outcome.why

        await eventually(is_refused, "its token has ended, and so has its link")
        subjects.note(Subject("default", "planner"), "another", 4e9)
        assert isinstance(await called(hub, PLANNER), Result)
        assert authority.forms[-1]["subject_token"] == "another"
        calls = [received for received in server.heard if received.method == "tools/call"]
        assert all(received.headers["authorization"][0].startswith("Bearer token-") for received in calls)
