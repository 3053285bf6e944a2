"""What is remembered of servers' lists: under what, how much, and when nothing is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from isthmus.model.features import Ability
from isthmus.model.names import ServerName
from isthmus.storage.server_lists import FILES_MAX, ServerListFiles
from isthmus.upstream import list_cache
from isthmus.upstream.list_cache import CachedLists, ListCache
from isthmus.upstream.listing import Listing
from isthmus.upstream.settings import (
    AgentSettings,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)
from tests.unit.core.doubles import prompt, tool

NAME = ServerName("files")
ABLE: frozenset[Ability] = frozenset({"tools", "prompts"})
LISTING = Listing((tool("read", description="reads"),), (prompt(),))
SETTINGS = ServerSettings(NAME, StdioSettings("npx", ("-y", "files"), {"TOKEN": "a"}))

REACHES: list[Reach] = [
    StdioSettings("npx", ("-y", "files"), {"TOKEN": "a"}),
    HttpSettings("http://localhost/mcp", {"X-Key": "a"}),
    WebSocketSettings("ws://localhost/mcp"),
    JsonRpcSettings("http://localhost/rpc"),
    AgentSettings("http://localhost/", {}, ()),
]


class Store:
    """Files in memory."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.writes = 0

    async def read(self, key: str) -> bytes | None:
        return self.bodies.get(key)

    def write(self, key: str, body: bytes) -> None:
        self.writes += 1
        self.bodies[key] = body


@pytest.mark.parametrize("reach", REACHES, ids=lambda reach: type(reach).__name__)
async def test_a_list_is_remembered_however_its_server_is_reached(reach: Reach) -> None:
    store, settings = Store(), ServerSettings(NAME, reach)
    ListCache(store).keep(settings, LISTING, ABLE)
    assert await ListCache(store).recall(settings) == CachedLists(LISTING, ABLE)


@pytest.mark.parametrize(
    "edited",
    [
        replace(SETTINGS, name=ServerName("other")),
        replace(SETTINGS, reach=StdioSettings("npx", ("-y", "files@2"), {"TOKEN": "a"})),
        replace(SETTINGS, reach=StdioSettings("npx", ("-y", "files"), {"TOKEN": "b"})),
        replace(SETTINGS, reach=HttpSettings("http://localhost/mcp")),
    ],
    ids=["name", "arguments", "environment", "kind"],
)
async def test_nothing_is_known_of_an_entry_that_was_edited(edited: ServerSettings) -> None:
    store = Store()
    ListCache(store).keep(SETTINGS, LISTING, ABLE)
    assert await ListCache(store).recall(edited) is None
    assert await ListCache(store, frozenset({"sampling"})).recall(SETTINGS) is None
    assert await ListCache(store).recall(replace(SETTINGS, timeout=7.0)) is not None


async def test_a_list_is_written_when_it_has_changed_and_not_else() -> None:
    store = Store()
    lists = ListCache(store)
    for listing in (LISTING, LISTING, Listing()):
        lists.keep(SETTINGS, listing, ABLE)
    assert store.writes == 2
    again = ListCache(store)
    assert await again.recall(SETTINGS) == CachedLists(Listing(), ABLE)
    again.keep(SETTINGS, Listing(), ABLE)
    assert store.writes == 2


async def test_a_list_that_is_too_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    lists = ListCache(store)
    lists.keep(SETTINGS, LISTING, ABLE)
    monkeypatch.setattr(list_cache, "LISTS_BYTES_MAX", 100)
    lists.keep(SETTINGS, Listing((tool("read", description="x" * 200),)), ABLE)
    assert await lists.recall(SETTINGS) is None


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"server":"files","abilities":[],"tools":7}', b'{"server":"x"}'])
async def test_a_damaged_list_costs_a_warning(damage: bytes) -> None:
    store = Store()
    ListCache(store).keep(SETTINGS, LISTING, ABLE)
    store.bodies = dict.fromkeys(store.bodies, damage)
    with capture_logs() as logs:
        assert await ListCache(store).recall(SETTINGS) is None
    assert [line["event"] for line in logs] == ["what a server listed last is damaged"]


async def test_functions_of_this_process_are_not_remembered() -> None:
    store, settings = Store(), ServerSettings(NAME, PythonSettings("module"))
    lists = ListCache(store)
    lists.keep(settings, LISTING, ABLE)
    assert (store.writes, await lists.recall(settings)) == (0, None)


# -- files ---------------------------------------------------------------------------------------------------------


async def test_files_are_the_owners_and_outlast_the_hub(tmp_path: Path) -> None:
    files = ServerListFiles(tmp_path / "state")
    assert await files.read("a") is None
    files.write("a", b"one")
    files.write("a", b"two")
    await files.aclose()
    files.write("a", b"too late")
    (kept,) = (tmp_path / "state" / "lists").iterdir()
    assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (b"two", 0o600)
    assert await ServerListFiles(tmp_path / "state").read("a") == b"two"


async def test_what_is_no_small_file_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to(folder / "folder.json")
    with (folder / "long.json").open("wb") as file:
        file.truncate(1 << 30)
    files = ServerListFiles(tmp_path)
    with capture_logs() as logs:
        assert [await files.read(key) for key in ("folder", "link", "long")] == [None, None, None]
    assert len(logs) == 3


async def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "lists").write_text("in the way")
    files = ServerListFiles(tmp_path)
    with capture_logs() as logs:
        files.write("a", b"one")
        files.write("b", b"two")
        await files.aclose()
    assert [line["event"] for line in logs] == ["cannot store the lists of servers for the next start"]


async def test_of_too_many_files_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FILES_MAX >= 1000
    monkeypatch.setattr("isthmus.storage.server_lists.FILES_MAX", 2)
    files = ServerListFiles(tmp_path)
    for key in "abc":
        files.write(key, b"x")
    await files.aclose()
    left = {file.stem for file in (tmp_path / "lists").iterdir()}
    assert len(left) == 2
    assert "c" in left
