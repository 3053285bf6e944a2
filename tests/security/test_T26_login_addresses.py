"""T26: a server chooses where a person is sent to log in: a script, a file, a command, or 64 KiB of anything.

Only http and https addresses of a sensible length are shown at all, printed with everything escaped that could drive a
terminal, and nothing is ever opened: there is no browser, no shell and no program in this way.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import isthmus
from isthmus.app.login import LoginFailed, LoginOptions, LoginPrompt, log_in
from isthmus.credentials.vault import Vault
from isthmus.upstream.server_settings import ServerSettings
from tests.faults.scripted import hub_of
from tests.security.authority import Authority, Protected, entry_of, visit
from tests.security.sink import dialled

EVIL = [
    "javascript:alert(1)",
    "file:///etc/passwd",
    "data:text/html,x",
    "$(calc)",
    "a:$(calc)",
    "http://[",
    "https://a.example/\x1b]0;evil\x07",
    "https://a.example/\u202e",
    "https://user:pw@a.example/authorize",
    "https://a.example/" + "x" * 65_536,
    "https://a.example/" + "x" * 2_000,
    "http://a.example/authorize",
    "ftp://a.example/authorize",
    " https://a.example/authorize",
    "https://a.example/ --help",
]

SOURCES = Path(isthmus.__file__).parent


async def logged_in(folder: Path, server: Protected, **more: object) -> ServerSettings:
    async with hub_of(folder, {"s": entry_of(server, **more)}) as hub:
        return hub.running.configuration.servers[0]


@pytest.mark.parametrize("address", EVIL, ids=lambda text: repr(text)[:30])
async def test_a_page_that_is_no_page_is_refused_and_never_shown(tmp_path: Path, address: str) -> None:
    shown: list[LoginPrompt] = []
    async with Authority() as authority, Protected(authority) as server:
        authority.metadata = {"authorization_endpoint": address}
        settings = await logged_in(tmp_path, server)
        with dialled() as everybody, pytest.raises(LoginFailed):
            await log_in(LoginOptions(settings, within=5.0), Vault(tmp_path), shown.append)
        assert shown == []
        ours = {str(authority.port), server.url.split(":")[2].removesuffix("/mcp")}
        assert {peer.rpartition(":")[2] for peer in everybody} <= ours
        assert authority.forms == []


@pytest.mark.parametrize("address", EVIL[:6], ids=lambda text: repr(text)[:30])
async def test_a_place_to_enter_a_code_is_held_to_the_same(tmp_path: Path, address: str) -> None:
    shown: list[LoginPrompt] = []
    async with Authority() as authority, Protected(authority) as server:
        given = authority._device()
        authority._device = lambda: {**given, "verification_uri_complete": address}  # type: ignore[method-assign]
        settings = await logged_in(tmp_path, server)
        with pytest.raises(LoginFailed):
            await log_in(LoginOptions(settings, is_device=True, within=5.0), Vault(tmp_path), shown.append)
        assert shown == []


async def test_an_honest_page_is_shown_and_the_login_kept(tmp_path: Path) -> None:
    tasks: list[asyncio.Task[int]] = []
    async with Authority() as authority, Protected(authority) as server:
        settings = await logged_in(tmp_path, server)

        def person(shown: LoginPrompt) -> None:
            tasks.append(asyncio.create_task(visit(shown.address)))

        kept = await log_in(LoginOptions(settings, within=5.0), Vault(tmp_path), person)
        assert kept.token.access == "token-1"
        await asyncio.gather(*tasks)


def test_nothing_in_the_hub_can_open_a_browser() -> None:
    """By structure: the one module of the standard library for it, and the programs that do it, are named nowhere."""
    ways = ("webbrowser", "startfile", "click.launch", "xdg-open", "gio open", "sensible-browser", "rundll32")
    files = list(SOURCES.rglob("*.py"))
    assert len(files) > 100
    assert [(file, way) for file in files for way in ways if way in file.read_text()] == []
