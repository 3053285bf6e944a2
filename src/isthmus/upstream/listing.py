"""Reading what a server offers: its four lists, page by page, within bounds.

A server may list for ever, in circles, or nonsense; what comes out is what could be used, with notes on the rest.
Called by links, on behalf of the supervisor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Set
from functools import partial
from itertools import chain
from typing import Protocol, TypeVar

import msgspec

from isthmus.core.catalog.snapshot import Offer
from isthmus.core.pauses import aside, pause_after
from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, ServerError
from isthmus.model.features import Ability, Feature, Prompt, Resource, Template, Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.questions import NOTHING, Profile
from isthmus.upstream.dialect import Dialect
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListPage, ListShape, array_of, read_list
from isthmus.wire.mcp.missing import MISSING_MAX

PAGES_MAX = 1_000
"""Pages of one listing; with the cursor check, an endless list costs a bounded number of requests."""

PAGE_BYTES_MAX = 4 * 1024 * 1024
"""One page of a list: a thousand tools of four kilobytes. Reading a larger one would hold up every other call."""

NOTES_MAX = 100
"""Things wrong with one list that the operator is told."""

TTL_SECONDS_MIN = 1.0
"""A list that its server calls stale sooner is asked for again no more often than this."""

F = TypeVar("F", bound=Feature)


class Asking(Protocol):
    """What reading a list needs of its link."""

    server: ServerName
    limits: Limits
    dialect: Dialect

    async def ask(self, method: str, params: bytes) -> msgspec.Raw:
        """Ask and wait for the result; raises `Fault`."""


class Listing(msgspec.Struct, frozen=True):
    """Everything that a server offers, as it last listed it."""

    tools: tuple[Tool, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    templates: tuple[Template, ...] = ()
    notes: dict[Topic, tuple[str, ...]] = {}
    ttl_seconds: dict[Topic, float] = {}
    """How long the server says that a list stays as it is."""
    is_unlisted: bool = False
    """It is a plain JSON-RPC server without a list: its methods are called by name."""
    missing: Mapping[str, str] = {}
    """Servers behind it, if it is a hub, whose tools are not there, and why."""

    def everything(self) -> Iterator[Feature]:
        """All that it lists, of whatever kind."""
        return chain(self.tools, self.prompts, self.resources, self.templates)

    def all_notes(self) -> tuple[str, ...]:
        """What there is to say of all lists."""
        return tuple(note for notes in self.notes.values() for note in notes)


def written_lists(listing: Listing) -> bytes:
    """The four lists as members of a JSON object, without its braces; entries as their servers wrote them."""
    lists: tuple[tuple[ListShape, tuple[Feature, ...]], ...] = (
        (TOOLS, listing.tools),
        (PROMPTS, listing.prompts),
        (RESOURCES, listing.resources),
        (TEMPLATES, listing.templates),
    )
    entries = ((shape, array_of(jsonrpc.render(each.definition) for each in features)) for shape, features in lists)
    return b",".join(b'"%b":%b' % (shape.member.encode(), array) for shape, array in entries)


def read_lists(server: ServerName, body: bytes) -> Listing:
    """The lists in a JSON object that `written_lists` is in. Raises `ValueError` if they are damaged."""
    return Listing(
        _read_features(TOOLS, Tool, server, body),
        _read_features(PROMPTS, Prompt, server, body),
        _read_features(RESOURCES, Resource, server, body),
        _read_features(TEMPLATES, Template, server, body),
    )


def _read_features(shape: ListShape, kind: type[F], server: ServerName, body: bytes) -> tuple[F, ...]:
    page = read_list(shape, body)
    if isinstance(page, str):
        raise ValueError(page)
    return tuple(kind.of(server, FeatureName(name), definition) for name, definition in page.entries)


def offered(listing: Listing, abilities: frozenset[Ability]) -> Offer:
    """What those are listed who are listed this."""
    return Offer(listing.tools, listing.prompts, listing.resources, listing.templates, abilities)


def sharing(listing: Listing, base: Listing) -> Listing:
    """The same listing; what it has in common with another is not kept twice."""
    return msgspec.structs.replace(
        listing,
        tools=_shared(listing.tools, base.tools),
        prompts=_shared(listing.prompts, base.prompts),
        resources=_shared(listing.resources, base.resources),
        templates=_shared(listing.templates, base.templates),
    )


def _shared(features: tuple[F, ...], base: tuple[F, ...]) -> tuple[F, ...]:
    if features == base:
        return base
    known = {(feature.name, feature.digest): feature for feature in base}
    return tuple(known.get((feature.name, feature.digest), feature) for feature in features)


async def read_topic(link: Asking, topic: Topic, known: Listing, profile: Profile = NOTHING) -> Listing:
    """Read one topic's lists anew, as those are shown them who can be asked this; the others stay as they are known.

    Raises:
        Fault: the server gave no usable list.
    """
    reading = _Reading(link, profile)
    changes: dict[str, object]
    match topic:
        case "tools":
            changes = {"tools": await reading.read(TOOLS, Tool), "missing": reading.missing}
        case "prompts":
            changes = {"prompts": await reading.read(PROMPTS, Prompt)}
        case "resources":
            resources = await reading.read(RESOURCES, Resource)
            changes = {"resources": resources, "templates": await reading.read_templates()}
    notes = {**known.notes, topic: tuple(reading.notes)}
    ttl = {name: seconds for name, seconds in known.ttl_seconds.items() if name != topic}
    if reading.ttl_seconds:  # nothing at all, which official servers say unless told otherwise, is no promise
        ttl[topic] = max(reading.ttl_seconds, TTL_SECONDS_MIN)
    return msgspec.structs.replace(known, **changes, notes=notes, ttl_seconds=ttl)


def leave_out(listing: Listing, tools: Set[FeatureName], why: str) -> Listing:
    """The listing without these tools, and a note on each."""
    kept = tuple(tool for tool in listing.tools if tool.name not in tools)
    notes = [*listing.notes.get("tools", ()), *(f"{name!r} left out: {why}" for name in sorted(tools))]
    return msgspec.structs.replace(listing, tools=kept, notes={**listing.notes, "tools": tuple(notes[:NOTES_MAX])})


class _Reading:
    """One reading of one or two lists."""

    def __init__(self, link: Asking, profile: Profile) -> None:
        self._link = link
        self._profile = profile
        self.notes: list[str] = []
        self.ttl_seconds: float | None = None
        self.missing: dict[str, str] = {}
        self._page_bytes = 0

    async def read(self, shape: ListShape, kind: type[F]) -> tuple[F, ...]:
        found: dict[FeatureName, F] = {}
        cursors: set[bytes] = set()
        members: Mapping[str, Payload] = {}
        limit = self._link.limits.tools_per_server
        cut = f"has over {PAGES_MAX} pages"
        for _ in range(PAGES_MAX):
            page = await self._page(shape, members)
            self._note(*page.problems)
            if len(self.missing) + len(page.missing) <= MISSING_MAX:  # else it is not believed, as in one page
                self.missing.update(page.missing)
            took_all = self._take(kind, page.entries, found)
            await pause_after(self._page_bytes)
            cursor = page.next_cursor
            if took_all and cursor is None:
                return tuple(found.values())
            if cursor is None or len(found) >= limit:
                cut = f"has over {limit} entries"
                break
            if (mark := _digest(cursor)) in cursors:
                cut = "runs in a circle"
                break
            cursors.add(mark)
            members = {"cursor": msgspec.json.encode(cursor)}
        self.notes.append(f"its list of {shape.noun}s {cut} and was cut")
        return tuple(found.values())

    async def read_templates(self) -> tuple[Template, ...]:
        """Many servers have resources and have never heard of templates."""
        try:
            return await self.read(TEMPLATES, Template)
        except ServerError as refused:
            if refused.code != jsonrpc.METHOD_NOT_FOUND:
                self._note(f"it gave no list of templates: {refused.message}")
        except BadReply as bad:
            self._note(f"it gave no list of templates: {bad.why}")
        return ()

    async def _page(self, shape: ListShape, members: Mapping[str, Payload]) -> ListPage:
        answer = await self._link.ask(shape.method, self._link.dialect.params(members, self._profile))
        if len(memoryview(answer)) > PAGE_BYTES_MAX:
            raise BadReply(self._link.server, f"a page of its list of {shape.noun}s has over {PAGE_BYTES_MAX} bytes")
        self._page_bytes = len(memoryview(answer))
        page = await aside(self._page_bytes, partial(read_list, shape, answer))
        if isinstance(page, str):
            raise BadReply(self._link.server, page)
        if page.ttl_seconds is not None:
            known = page.ttl_seconds if self.ttl_seconds is None else self.ttl_seconds
            self.ttl_seconds = min(page.ttl_seconds, known)
        return page

    def _take(
        self, kind: type[F], entries: list[tuple[str, dict[str, msgspec.Raw]]], found: dict[FeatureName, F]
    ) -> bool:
        """Take a page's entries; False if there is no room for all of them."""
        limits = self._link.limits
        for text, definition in entries:
            name = FeatureName(text)
            if name in found:
                self._note(f"{text!r} is listed twice; the first is used")
            elif len(found) >= limits.tools_per_server:
                return False
            elif sum(len(memoryview(value)) for value in definition.values()) > limits.schema_bytes:
                self._note(f"{text!r} left out: its description is over {limits.schema_bytes} bytes")
            else:
                found[name] = kind.of(self._link.server, name, definition)
        return True

    def _note(self, *notes: str) -> None:
        self.notes.extend(notes[: max(0, NOTES_MAX - len(self.notes))])


def _digest(cursor: str) -> bytes:
    """A cursor to be known again: it may have megabytes, and there may be a thousand of them."""
    return hashlib.blake2b(cursor.encode("utf-8", "surrogatepass"), digest_size=16).digest()
