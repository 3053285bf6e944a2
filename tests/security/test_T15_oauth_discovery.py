"""T15: a server that wants a login names where: in its challenge, in its metadata, and in its authorization server's.

Each of these is a stranger's word. All of them are fetched by one client behind the egress guard: https and public
addresses only, unless the operator named where they lead; the resource and the issuer must be those that were asked
for; no redirect is followed; 64 KiB and five seconds are all there is. A deny-all sink hears nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from isthmus.app.login import LoginFailed, LoginOptions, LoginPrompt, log_in
from isthmus.credentials import fetch
from isthmus.credentials.vault import Slot, Vault
from isthmus.model.names import ServerName
from isthmus.transport.egress import DialAddress, Egress, HttpOrigin
from isthmus.upstream.server_settings import ServerSettings
from tests.faults.scripted import hub_of
from tests.faults.watching import eventually
from tests.security.authority import Authority, Protected, entry_of, visit
from tests.security.sink import Sink, dialled
from tests.security.vectors import HOSTS

ODD = [
    "javascript:alert(1)",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/",
    "//127.0.0.1:{port}/",
    "",
    "https:///x",
]
INTERNAL = [f"https://{host}:{{port}}/x" for host in HOSTS]
PLAIN = ["http://login.example/x", "http://127.0.0.1:{port}/x", "http://[::1]:{port}/x", "http://169.254.169.254/x"]
FIELDS = ["resource_metadata", "authorization_servers", "token_endpoint", "registration_endpoint"]
FIELDS += ["authorization_endpoint", "device_authorization_endpoint"]


def misled(field: str, address: str, server: Protected, authority: Authority) -> None:
    """Put an address where a server, or its authorization server, could put one."""
    if field == "resource_metadata":
        server.challenge = f'Bearer resource_metadata="{address}"'
    elif field == "authorization_servers":
        server.resource = {"authorization_servers": [address]}
    else:
        authority.metadata = {field: address}


async def settings_of(folder: Path, entry: dict[str, Any]) -> ServerSettings:
    async with hub_of(folder, {"s": {**entry, "disabled": True}}) as hub:
        return hub.running.configuration.servers[0]


async def quickly(
    wanted: LoginOptions, vault: Vault, egress: Egress | None = None, *, goes: bool = True
) -> list[LoginPrompt]:
    """Try to log in, with a person who goes wherever they are sent on this machine, or nowhere."""
    shown: list[LoginPrompt] = []
    people: list[asyncio.Task[int]] = []

    def show(place: LoginPrompt) -> None:
        shown.append(place)
        if goes:
            people.append(asyncio.create_task(visit(place.address)))

    try:
        await log_in(wanted, vault, show, egress)
    finally:
        await asyncio.gather(*people, return_exceptions=True)
    return shown


def addresses_for(field: str, port: int) -> list[str]:
    """All of them where a field is fetched first; where the same check is made after others, some.

    An empty text is no address where one may be left out.
    """
    every = 1 if field in FIELDS[:2] else 5
    places = [address.format(port=port) for address in (*ODD, *PLAIN, *INTERNAL[::every])]
    return places if field in ("authorization_servers", "token_endpoint") else [place for place in places if place]


@pytest.mark.parametrize("field", FIELDS)
async def test_no_field_leads_into_a_private_network(tmp_path: Path, field: str) -> None:
    with Sink() as sink, dialled() as everybody:
        async with Authority() as authority, Protected(authority) as server:
            settings = await settings_of(tmp_path, entry_of(server))
            ours = {str(authority.port), server.url.split(":")[2].removesuffix("/mcp")}
            for place in addresses_for(field, sink.port):
                misled(field, place, server, authority)
                with pytest.raises(LoginFailed):
                    await quickly(LoginOptions(settings, within=0.01), Vault(tmp_path), goes=False)
        assert {peer.rpartition(":")[2] for peer in everybody} <= ours
        assert sink.connections() == []
        assert authority.forms == []


@pytest.mark.parametrize("what", ["resource", "issuer"])
async def test_metadata_must_be_about_the_issuer_that_was_asked(tmp_path: Path, what: str) -> None:
    async with Authority() as authority, Protected(authority) as server:
        if what == "resource":
            server.resource = {"resource": "https://bank.example/mcp"}
        else:
            authority.metadata = {"issuer": "https://bank.example"}
        settings = await settings_of(tmp_path, entry_of(server))
        with pytest.raises(LoginFailed, match=r"another (resource|issuer)"):
            await quickly(LoginOptions(settings, within=1.0), Vault(tmp_path))
        assert authority.registrations == []
        assert authority.asked == []


@pytest.mark.parametrize("to", ["http://127.0.0.1:{port}/x", "https://127.0.0.1:{port}/x", "/elsewhere"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(tmp_path: Path, to: str, status: int) -> None:
    class Leading(Authority):
        def _answer(self, target: str, fields: dict[str, str], body: bytes) -> bytes:
            self.paths.append(target)
            return f"HTTP/1.1 {status} X\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n".encode()

    with Sink() as sink:
        place = to.format(port=sink.port)
        async with Leading() as authority, Protected(authority) as server:
            settings = await settings_of(tmp_path, entry_of(server))
            with pytest.raises(LoginFailed, match=f"HTTP {status}"):
                await quickly(LoginOptions(settings, within=1.0), Vault(tmp_path))
            assert "/elsewhere" not in authority.paths


async def test_a_document_without_end_is_given_up(tmp_path: Path) -> None:
    class Endless(Authority):
        def _answer(self, target: str, fields: dict[str, str], body: bytes) -> bytes:
            return b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n" + b" " * 200_000

    async with Endless() as authority, Protected(authority) as server:
        settings = await settings_of(tmp_path, entry_of(server))
        with pytest.raises(LoginFailed, match="over 65536 bytes"):
            await quickly(LoginOptions(settings, within=1.0), Vault(tmp_path))


async def test_a_document_that_never_comes_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch.FETCH_SECONDS == 5.0
    monkeypatch.setattr(fetch, "FETCH_SECONDS", 0.05)

    class Silent(Authority):
        def _answer(self, target: str, fields: dict[str, str], body: bytes) -> bytes:
            return b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"

    async with Silent() as authority, Protected(authority) as server:
        settings = await settings_of(tmp_path, entry_of(server))
        with pytest.raises(LoginFailed, match="did not answer within"):
            await quickly(LoginOptions(settings, within=1.0), Vault(tmp_path))


async def test_a_name_that_leads_inwards_by_now_is_not_dialled(tmp_path: Path) -> None:
    """The issuer is public when it is looked up for the check, and each dial is checked by itself."""

    async def rebinding(origin: HttpOrigin) -> list[DialAddress]:
        return [DialAddress(2, ("127.0.0.1", origin.port))]

    with Sink() as sink:
        async with Authority() as authority, Protected(authority) as server:
            server.resource = {"authorization_servers": [f"https://login.example:{sink.port}"]}
            settings = await settings_of(tmp_path, entry_of(server))
            with pytest.raises(LoginFailed, match="may not be dialled"):
                await quickly(LoginOptions(settings, within=1.0), Vault(tmp_path), Egress(resolver=rebinding))


@pytest.mark.parametrize("field", FIELDS)
async def test_no_connection_is_made_without_tls(tmp_path: Path, field: str) -> None:
    """Not even where everybody may go: the place is public, and only its scheme speaks against it."""

    async def resolve(origin: HttpOrigin) -> list[DialAddress]:
        return [DialAddress(2, ("127.0.0.1" if origin.host == "127.0.0.1" else "192.31.196.1", origin.port))]

    with dialled() as everybody:
        async with Authority() as authority, Protected(authority) as server:
            misled(field, "http://login.example/x", server, authority)
            settings = await settings_of(tmp_path, entry_of(server))
            with pytest.raises(LoginFailed, match="without TLS"):
                await quickly(
                    LoginOptions(settings, within=0.01), Vault(tmp_path), Egress(resolver=resolve), goes=False
                )
    assert not [peer for peer in everybody if not peer.startswith("127.0.0.1:")]


async def test_an_authorization_server_with_a_certificate_of_its_own_is_believed(tmp_path: Path) -> None:
    """By https, and by a name that the operator listed: the whole way, over TLS."""
    maker = trustme.CA()
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    maker.issue_cert("login.example").configure_cert(theirs)
    ours = ssl.create_default_context()
    maker.configure_trust(ours)

    async def resolve(origin: HttpOrigin) -> list[DialAddress]:
        return [DialAddress(2, ("127.0.0.1", origin.port))]

    async with Authority(theirs, "login.example") as authority, Protected(authority) as server:
        authority.metadata = {"authorization_endpoint": None}
        settings = await settings_of(tmp_path, entry_of(server))
        vault = Vault(tmp_path)
        await quickly(LoginOptions(settings, is_device=True, within=5.0), vault, Egress(ours, resolver=resolve))
        assert vault.get(Slot("s")) is not None
        assert authority.forms[-1]["resource"] == server.url


async def test_a_running_hub_sends_nothing_for_a_login_that_no_caller_wanted(tmp_path: Path) -> None:
    """A challenge alone makes the hub fetch nothing: only a person who logs in does, or the operator's own settings."""
    with Sink() as sink, dialled() as everybody:
        async with Authority() as authority, Protected(authority) as server:
            server.challenge = f'Bearer resource_metadata="http://127.0.0.1:{sink.port}/x", scope="a"'
            async with hub_of(tmp_path, {"s": server.entry}) as hub:
                await eventually(lambda: hub.state("s") == "login", "the server wants a login")
                reason = hub.running.hub.snapshot.server_statuses[ServerName("s")].reason
            own = server.url.split(":")[2].removesuffix("/mcp")
        assert reason is not None
        assert "run isthmus login s" in reason
        assert {peer.rpartition(":")[2] for peer in everybody} == {own}
