"""Reading a server's lists, when they are read again, and the cache of the last run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from isthmus.core.settings import Limits
from isthmus.model.fault_table import BadReply, ServerError
from isthmus.model.features import TOPICS, Ability
from isthmus.model.names import ServerName
from isthmus.storage.server_lists import FILES_MAX, ServerListFiles
from isthmus.upstream import listing as module
from isthmus.upstream.listing import (
    NOTES_MAX,
    RELIST_SECONDS,
    CachedLists,
    ListCache,
    Listing,
    RelistSchedule,
    read_topic,
    sharing,
)
from isthmus.upstream.server_settings import (
    AgentSettings,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)
from isthmus.wire.mcp.forwarded_methods import LegacyDialect, McpDialect
from isthmus.wire.mcp.messages import MISSING_KEY, MISSING_MAX
from tests.unit.core.doubles import prompt, tool

FILES = ServerName("files")
Answer = Callable[[str, str | None], Any]


class Lister:
    """A server that answers each page as the test says; a fault is raised."""

    def __init__(self, answer: Answer, **limits: Any) -> None:
        self.server = FILES
        self.limits = Limits(**limits)
        self.dialect: McpDialect = LegacyDialect()
        self.asked: list[tuple[str, str | None]] = []
        self._answer = answer

    async def request(self, method: str, params: bytes) -> msgspec.Raw:
        cursor = json.loads(params).get("cursor")
        self.asked.append((method, cursor))
        received = self._answer(method, cursor)
        if isinstance(received, Exception):
            raise received
        return msgspec.Raw(received if isinstance(received, bytes) else json.dumps(received).encode())


def page(*names: str, cursor: str | None = None, **more: Any) -> dict[str, Any]:
    listed = {"tools": [{"name": name} for name in names], **more}
    return listed if cursor is None else {**listed, "nextCursor": cursor}


def numbered(size: int, pages: int) -> Answer:
    """Pages of `size` tools each, one after another."""

    def answer(_method: str, cursor: str | None) -> Any:
        number = int(cursor or 0)
        names = [f"t{number * size + n}" for n in range(size)]
        return page(*names, cursor=str(number + 1) if number + 1 < pages else None)

    return answer


async def tools_of(lister: Lister) -> Listing:
    return await read_topic(lister, "tools", Listing())


def names(listing: Listing) -> list[str]:
    return [tool.name for tool in listing.tools]


# -- pages ---------------------------------------------------------------------------------------------------------


async def test_all_pages_are_read() -> None:
    lister = Lister(numbered(2, 3))
    listing = await tools_of(lister)
    assert names(listing) == ["t0", "t1", "t2", "t3", "t4", "t5"]
    assert [cursor for _, cursor in lister.asked] == [None, "1", "2"]
    assert listing.all_notes() == ()


@pytest.mark.parametrize("size", [1, 7, 50, 100, 1000])
async def test_more_than_a_server_may_have_is_left_out_and_said_wherever_a_page_ends(size: int) -> None:
    lister = Lister(numbered(size, 10_000 // size + 1), tools_per_server=100)
    listing = await tools_of(lister)
    assert names(listing) == [f"t{n}" for n in range(100)]
    assert listing.all_notes() == (
        "its list of tools has over 100 entries and was cut; to read all of it, raise limits.tools_per_server",
    )
    assert len(lister.asked) <= 100 // size + 1


async def test_exactly_as_much_as_a_server_may_have_is_no_news() -> None:
    listing = await tools_of(Lister(numbered(50, 2), tools_per_server=100))
    assert (len(listing.tools), listing.all_notes()) == (100, ())


@pytest.mark.parametrize(
    "cursors",
    [["a", "a"], ["a", "b", "a"], ["a", "b", "c", "b"], ["x" * 100_000, "y" * 100_000, "x" * 100_000]],
)
async def test_a_list_that_runs_in_a_circle_is_cut_where_it_closes(cursors: list[str]) -> None:
    subscription_sync: Iterator[str] = iter(cursors)
    lister = Lister(lambda _method, cursor: page(f"after {(cursor or '')[:2]}", cursor=next(subscription_sync)))
    listing = await tools_of(lister)
    assert len(lister.asked) == len(cursors)
    assert listing.all_notes() == ("its list of tools runs in a circle and was cut",)


async def test_a_list_without_an_end_is_cut_after_a_bounded_number_of_pages() -> None:
    lister = Lister(lambda _method, cursor: page(cursor=str(int(cursor or 0) + 1)), list_pages=50)
    listing = await tools_of(lister)
    assert len(lister.asked) == 50
    assert listing.all_notes() == (
        "its list of tools has over 50 pages and was cut; to read all of it, raise limits.list_pages",
    )


async def test_a_list_of_too_many_bytes_is_cut_and_the_limit_named() -> None:
    lister = Lister(numbered(100, 100), list_bytes=4096)
    listing = await tools_of(lister)
    assert len(b"".join(msgspec.json.encode(tool.name) for tool in listing.tools)) <= 4096
    assert listing.all_notes() == (
        "its list of tools has over 4096 bytes and was cut; to read all of it, raise limits.list_bytes",
    )
    assert len(lister.asked) < 100


async def test_bad_entries_end_a_page_and_not_the_list() -> None:
    pages = {None: {"tools": [7] * 5000 + [{"name": "behind"}], "nextCursor": "2"}, "2": page("good")}
    assert names(await tools_of(Lister(lambda _method, cursor: pages[cursor]))) == ["good"]


async def test_servers_that_are_missing_are_counted_over_all_pages() -> None:
    def answer(_method: str, cursor: str | None) -> Any:
        number = int(cursor or 0)
        missing = {f"s{number}-{n}": {"state": "retrying", "reason": "gone"} for n in range(MISSING_MAX // 2)}
        return page(f"t{number}", cursor=str(number + 1) if number < 9 else None, _meta={MISSING_KEY: missing})

    assert len((await tools_of(Lister(answer))).missing) == MISSING_MAX


async def test_an_empty_cursor_is_the_end() -> None:
    lister = Lister(lambda _method, _cursor: page("t", cursor=""))
    assert names(await tools_of(lister)) == ["t"]
    assert len(lister.asked) == 1


# -- entries -------------------------------------------------------------------------------------------------------


async def test_a_duplicate_entry_is_used_once_and_noted() -> None:
    pages = {None: page("a", "b", cursor="2"), "2": page("b", "c")}
    listing = await tools_of(Lister(lambda _method, cursor: pages[cursor]))
    assert names(listing) == ["a", "b", "c"]
    assert listing.all_notes() == ("'b' is listed twice; the first is used",)


async def test_a_description_that_is_too_large_costs_only_its_tool() -> None:
    big = {"name": "big", "description": "x" * 2000}
    received = {"tools": [big, {"name": "small"}]}
    listing = await tools_of(Lister(lambda _method, _cursor: received, schema_bytes=1024))
    assert names(listing) == ["small"]
    assert listing.all_notes() == ("'big' left out: its description is over 1024 bytes",)


async def test_a_list_of_nonsense_is_reported_within_a_bound() -> None:
    def answer(_method: str, cursor: str | None) -> Any:
        number = int(cursor or 0)
        return {"tools": [7] * 90, "nextCursor": str(number + 1)} if number < 5 else {"tools": [{"name": "t"}]}

    listing = await tools_of(Lister(answer))
    assert names(listing) == ["t"]
    assert len(listing.all_notes()) == NOTES_MAX


@pytest.mark.parametrize("received", [{}, [], {"tools": {}}, {"tools": "x"}, b"7", {"tools": [], "nextCursor": 7}])
async def test_an_invalid_list_is_refused(received: object) -> None:
    with pytest.raises(BadReply, match="tools/list returned an invalid result"):
        await tools_of(Lister(lambda _method, _cursor: received))


# -- topics --------------------------------------------------------------------------------------------------------


RESOURCES = {"resources": [{"uri": "file:///x"}]}
TEMPLATES = {"resourceTemplates": [{"uriTemplate": "file:///{path}"}]}


def resourceful(templates: Any) -> Answer:
    return lambda method, _cursor: RESOURCES if method == "resources/list" else templates


async def test_resources_and_their_templates_are_one_topic() -> None:
    lister = Lister(resourceful(TEMPLATES))
    listing = await read_topic(lister, "resources", Listing())
    assert [found.name for found in listing.resources] == ["file:///x"]
    assert [found.name for found in listing.templates] == ["file:///{path}"]
    assert [method for method, _ in lister.asked] == ["resources/list", "resources/templates/list"]


@pytest.mark.parametrize(
    ("templates", "notes"),
    [
        (ServerError(FILES, -32601, "what is that?"), ()),
        (ServerError(FILES, -32603, "broken"), ("it gave no list of templates: broken",)),
        (BadReply(FILES, "silence"), ("it gave no list of templates: silence",)),
    ],
)
async def test_a_server_without_templates_keeps_its_resources(templates: Exception, notes: tuple[str, ...]) -> None:
    listing = await read_topic(Lister(resourceful(templates)), "resources", Listing())
    assert [found.name for found in listing.resources] == ["file:///x"]
    assert (listing.templates, listing.all_notes()) == ((), notes)


async def test_reading_one_topic_leaves_the_others_as_they_are_known() -> None:
    known = await tools_of(Lister(lambda _method, _cursor: page("t", "t", ttlMs=5000)))
    prompts = {"prompts": [{"name": "p"}, 7], "ttlMs": 9000}
    listing = await read_topic(Lister(lambda _method, _cursor: prompts), "prompts", known)
    assert (names(listing), [found.name for found in listing.prompts]) == (["t"], ["p"])
    assert listing.ttl_seconds == {"tools": 5.0, "prompts": 9.0}
    assert [len(listing.notes[topic]) for topic in ("tools", "prompts")] == [1, 1]
    anew = await read_topic(Lister(lambda _method, _cursor: page("t")), "tools", listing)
    assert anew.ttl_seconds == {"prompts": 9.0}
    assert anew.notes["tools"] == ()


# -- how long a list holds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("received", "seconds"),
    [
        ([None], None),
        ([5000], 5.0),
        ([10], 1.0),  # no server is asked more often than once a second
        ([0], None),  # what official servers say unless told otherwise
        ([-5], None),
        ([5000, None], 5.0),
        ([9000, 5000], 5.0),
        ([5000, 0], None),
        ([0, 5000], None),
    ],
)
async def test_a_list_holds_as_long_as_its_briefest_page(received: list[int | None], seconds: float | None) -> None:
    def answer(_method: str, cursor: str | None) -> Any:
        number = int(cursor or 0)
        more = {} if received[number] is None else {"ttlMs": received[number]}
        return page(f"t{number}", cursor=str(number + 1) if number + 1 < len(received) else None, **more)

    assert (await tools_of(Lister(answer))).ttl_seconds.get("tools") == seconds


async def test_equal_entries_of_two_listings_are_shared() -> None:
    base = await tools_of(Lister(lambda *_: page("a", "b")))
    same = await tools_of(Lister(lambda *_: page("a", "b")))
    more = await tools_of(Lister(lambda *_: page("b", "c", "a")))
    assert sharing(same, base).tools is base.tools
    shared = sharing(more, base)
    assert shared == more
    assert (shared.tools[0] is base.tools[1], shared.tools[2] is base.tools[0]) == (True, True)


def test_a_fresh_list_is_not_read_again() -> None:
    schedule = RelistSchedule()
    assert not schedule
    assert schedule.wait(5.0) is None
    assert schedule.take(5.0) == {}


def test_the_first_announcement_is_followed_at_once_and_the_next_in_a_second() -> None:
    schedule = RelistSchedule()
    assert schedule.announce(["tools"])
    assert schedule.wait(5.0) == 0.0
    assert schedule.take(5.0) == {"tools": True}
    schedule.rest(["tools"], 5.25)
    assert schedule.announce(["tools"])
    assert schedule.take(5.5) == {}
    assert schedule.wait(5.5) == RELIST_SECONDS - 0.25
    assert schedule.take(6.25) == {"tools": True}


def test_saying_it_again_is_no_news() -> None:
    schedule = RelistSchedule()
    assert schedule.announce(["tools"])
    assert not schedule.announce(["tools"])
    assert schedule.announce(["tools", "prompts"])
    assert schedule.take(5.0) == {"tools": True, "prompts": True}
    assert schedule.announce(["tools"])


def test_a_list_does_not_wait_for_another() -> None:
    schedule = RelistSchedule()
    schedule.rest(["tools"], 5.0)
    schedule.announce(["tools", "prompts"])
    assert schedule.wait(5.5) == 0.0
    assert schedule.take(5.5) == {"prompts": True}
    assert schedule.wait(5.5) == RELIST_SECONDS - 0.5
    assert schedule


def test_a_doubt_takes_nothing_from_an_announcement() -> None:
    schedule = RelistSchedule()
    schedule.announce(["tools"])
    schedule.doubt(TOPICS)
    assert schedule.announce(["prompts"])
    assert schedule.take(5.0) == {"tools": True, "prompts": True, "resources": False}


def test_a_change_that_another_node_found_is_read_at_once_and_then_once_a_second() -> None:
    schedule = RelistSchedule()
    schedule.rest(["tools"], 5.0)
    schedule.announce_elsewhere(["tools"], 5.25)
    assert schedule.take(5.25) == {"tools": True}
    schedule.rest(["tools"], 5.25)
    schedule.announce_elsewhere(["tools"], 5.5)
    assert schedule.take(5.5) == {}
    assert schedule.take(6.25) == {"tools": True}


def test_only_lists_announced_at_this_node_are_announced_to_others() -> None:
    schedule = RelistSchedule()
    schedule.announce_elsewhere(["tools", "prompts"], 5.0)
    schedule.announce(["prompts"])
    assert schedule.take(5.0) == {"tools": True, "prompts": True}
    assert schedule.own == {"prompts"}
    schedule.announce(["tools"])
    schedule.announce_elsewhere(["tools"], 6.0)
    schedule.take(6.0)
    assert schedule.own == {"tools"}
    schedule.doubt(["tools"])
    schedule.announce_elsewhere(["tools"], 7.0)
    schedule.take(7.0)
    assert schedule.own == {"tools"}


def test_after_everything_was_read_the_next_announcement_is_the_first() -> None:
    schedule = RelistSchedule()
    schedule.rest(["tools"], 5.0)
    schedule.announce(["tools"])
    schedule.clear()
    assert not schedule
    schedule.announce(["tools"])
    assert schedule.wait(5.0) == 0.0


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

    def write(self, key: str, body: Callable[[], bytes]) -> None:
        self.writes += 1
        self.bodies[key] = body()


@pytest.mark.parametrize("reach", REACHES, ids=lambda reach: type(reach).__name__)
async def test_a_list_is_remembered_however_its_server_is_reached(reach: Reach) -> None:
    store, settings = Store(), ServerSettings(NAME, reach)
    ListCache(store).store(settings, LISTING, ABLE)
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
    ListCache(store).store(SETTINGS, LISTING, ABLE)
    assert await ListCache(store).recall(edited) is None
    assert await ListCache(store, frozenset({"sampling"})).recall(SETTINGS) is None
    assert await ListCache(store).recall(replace(SETTINGS, timeout=7.0)) is not None


async def test_a_list_is_written_when_it_has_changed_and_not_else() -> None:
    store = Store()
    lists = ListCache(store)
    for listing in (LISTING, LISTING, Listing()):
        lists.store(SETTINGS, listing, ABLE)
    assert store.writes == 2
    again = ListCache(store)
    assert await again.recall(SETTINGS) == CachedLists(Listing(), ABLE)
    again.store(SETTINGS, Listing(), ABLE)
    assert store.writes == 2


async def test_a_list_that_is_too_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    lists = ListCache(store)
    lists.store(SETTINGS, LISTING, ABLE)
    monkeypatch.setattr(module, "LISTS_BYTES_MAX", 100)
    lists.store(SETTINGS, Listing((tool("read", description="x" * 200),)), ABLE)
    assert await lists.recall(SETTINGS) is None


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"server":"files","abilities":[],"tools":7}', b'{"server":"x"}'])
async def test_a_damaged_list_costs_a_warning(damage: bytes) -> None:
    store = Store()
    ListCache(store).store(SETTINGS, LISTING, ABLE)
    store.bodies = dict.fromkeys(store.bodies, damage)
    with capture_logs() as logs:
        assert await ListCache(store).recall(SETTINGS) is None
    assert [line["event"] for line in logs] == ["the stored list of a server is damaged"]


async def test_functions_of_this_process_are_not_remembered() -> None:
    store, settings = Store(), ServerSettings(NAME, PythonSettings("module"))
    lists = ListCache(store)
    lists.store(settings, LISTING, ABLE)
    assert (store.writes, await lists.recall(settings)) == (0, None)


# -- files ---------------------------------------------------------------------------------------------------------


async def test_files_are_the_owners_and_outlast_the_hub(tmp_path: Path) -> None:
    files = ServerListFiles(tmp_path / "state")
    assert await files.read("a") is None
    files.write("a", lambda: b"one")
    files.write("a", lambda: b"two")
    await files.aclose()
    files.write("a", lambda: b"too late")
    (kept,) = (tmp_path / "state" / "lists").iterdir()
    assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (b"two", 0o600)
    assert await ServerListFiles(tmp_path / "state").read("a") == b"two"


async def test_folders_links_and_long_files_are_not_read(tmp_path: Path) -> None:
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


async def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "lists").write_text("in the way")
    files = ServerListFiles(tmp_path)
    with capture_logs() as logs:
        files.write("a", lambda: b"one")
        files.write("b", lambda: b"two")
        await files.aclose()
    assert [line["event"] for line in logs] == ["cannot store the lists of servers for the next start"]


async def test_of_too_many_files_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FILES_MAX >= 1000
    monkeypatch.setattr("isthmus.storage.server_lists.FILES_MAX", 2)
    files = ServerListFiles(tmp_path)
    for key in "abc":
        files.write(key, lambda: b"x")
    await files.aclose()
    left = {file.stem for file in (tmp_path / "lists").iterdir()}
    assert len(left) == 2
    assert "c" in left
