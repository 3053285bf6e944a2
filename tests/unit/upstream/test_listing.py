"""Reading a server's lists: whatever it answers, the work is bounded and what can be used is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, ServerError
from isthmus.model.features import TOPICS
from isthmus.model.names import ServerName
from isthmus.upstream import listing as module
from isthmus.upstream.dialect import LegacyDialect, McpDialect
from isthmus.upstream.listing import NOTES_MAX, PAGES_MAX, RELIST_SECONDS, Listing, RelistSchedule, read_topic, sharing
from isthmus.wire.mcp.messages import MISSING_KEY, MISSING_MAX

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

    async def ask(self, method: str, params: bytes) -> msgspec.Raw:
        cursor = json.loads(params).get("cursor")
        self.asked.append((method, cursor))
        told = self._answer(method, cursor)
        if isinstance(told, Exception):
            raise told
        return msgspec.Raw(told if isinstance(told, bytes) else json.dumps(told).encode())


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


async def test_pages_are_read_until_there_are_no_more() -> None:
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
    assert listing.all_notes() == ("its list of tools has over 100 entries and was cut",)
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
    lister = Lister(lambda _method, cursor: page(cursor=str(int(cursor or 0) + 1)))
    listing = await tools_of(lister)
    assert len(lister.asked) == PAGES_MAX
    assert listing.all_notes() == (f"its list of tools has over {PAGES_MAX} pages and was cut",)


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


async def test_a_page_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 100)
    with pytest.raises(BadReply, match="over 100 bytes"):
        await tools_of(Lister(lambda _method, _cursor: page("t" * 100)))


# -- entries -------------------------------------------------------------------------------------------------------


async def test_what_is_listed_twice_is_used_once_and_said() -> None:
    pages = {None: page("a", "b", cursor="2"), "2": page("b", "c")}
    listing = await tools_of(Lister(lambda _method, cursor: pages[cursor]))
    assert names(listing) == ["a", "b", "c"]
    assert listing.all_notes() == ("'b' is listed twice; the first is used",)


async def test_a_description_that_is_too_large_costs_only_its_tool() -> None:
    big = {"name": "big", "description": "x" * 2000}
    told = {"tools": [big, {"name": "small"}]}
    listing = await tools_of(Lister(lambda _method, _cursor: told, schema_bytes=1024))
    assert names(listing) == ["small"]
    assert listing.all_notes() == ("'big' left out: its description is over 1024 bytes",)


async def test_a_list_of_nonsense_is_told_in_so_many_words_and_no_more() -> None:
    def answer(_method: str, cursor: str | None) -> Any:
        number = int(cursor or 0)
        return {"tools": [7] * 90, "nextCursor": str(number + 1)} if number < 5 else {"tools": [{"name": "t"}]}

    listing = await tools_of(Lister(answer))
    assert names(listing) == ["t"]
    assert len(listing.all_notes()) == NOTES_MAX


@pytest.mark.parametrize("told", [{}, [], {"tools": {}}, {"tools": "x"}, b"7", {"tools": [], "nextCursor": 7}])
async def test_what_is_no_list_is_refused(told: object) -> None:
    with pytest.raises(BadReply, match="tools/list returned an invalid result"):
        await tools_of(Lister(lambda _method, _cursor: told))


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
    ("told", "seconds"),
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
async def test_a_list_holds_as_long_as_its_briefest_page(told: list[int | None], seconds: float | None) -> None:
    def answer(_method: str, cursor: str | None) -> Any:
        number = int(cursor or 0)
        more = {} if told[number] is None else {"ttlMs": told[number]}
        return page(f"t{number}", cursor=str(number + 1) if number + 1 < len(told) else None, **more)

    assert (await tools_of(Lister(answer))).ttl_seconds.get("tools") == seconds


async def test_what_two_listings_have_in_common_is_kept_once() -> None:
    base = await tools_of(Lister(lambda *_: page("a", "b")))
    same = await tools_of(Lister(lambda *_: page("a", "b")))
    more = await tools_of(Lister(lambda *_: page("b", "c", "a")))
    assert sharing(same, base).tools is base.tools
    shared = sharing(more, base)
    assert shared == more
    assert (shared.tools[0] is base.tools[1], shared.tools[2] is base.tools[0]) == (True, True)


def test_what_is_fresh_is_not_read() -> None:
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


def test_after_everything_was_read_the_next_announcement_is_the_first() -> None:
    schedule = RelistSchedule()
    schedule.rest(["tools"], 5.0)
    schedule.announce(["tools"])
    schedule.clear()
    assert not schedule
    schedule.announce(["tools"])
    assert schedule.wait(5.0) == 0.0
