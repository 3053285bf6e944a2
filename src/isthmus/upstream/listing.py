"""A server's four lists: reading them page by page within bounds, when to read them again, and their cache.

A server may list endlessly, in circles, or nonsense; the result is what is usable, with notes on the rest. `ListCache`
stores the lists of the last run, so that a starting hub has complete lists at once. Used by links and reconnectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol, TypeVar, get_args

import msgspec
import structlog

from isthmus.core.catalog.snapshot import FeatureLists
from isthmus.core.event_loop import ReaderFailed, offload, pause
from isthmus.core.settings import Limits
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.fault_table import BadReply, ServerError
from isthmus.model.features import Ability, Feature, Prompt, Resource, Template, Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.server_settings import PythonSettings, ServerSettings
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.forwarded_methods import McpDialect
from isthmus.wire.mcp.lists import (
    PROBLEMS_MAX,
    PROMPTS,
    RESOURCES,
    TEMPLATES,
    TOOLS,
    ListPage,
    ListShape,
    array_of,
    read_entry,
    read_list,
    read_page,
)
from isthmus.wire.mcp.messages import MISSING_MAX

log = structlog.get_logger(__name__)

ENTRIES_AT_ONCE = 64
ENTRIES_BYTES = 64 * 1024
"""Entries that are read in one turn of the event loop: about half a millisecond."""

NOTES_MAX = 100
"""Notes for the operator on one list."""

TTL_SECONDS_MIN = 1.0
"""A list is read again no more often than this, whatever its server says."""

F = TypeVar("F", bound=Feature)


class ListSource(Protocol):
    """What reading a list needs from its link."""

    server: ServerName
    limits: Limits
    dialect: McpDialect

    async def request(self, method: str, params: bytes) -> msgspec.Raw:
        """Send a request and wait for the result; raises `Fault`."""


class Listing(msgspec.Struct, frozen=True):
    """Everything that a server offers, as last listed."""

    tools: tuple[Tool, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    templates: tuple[Template, ...] = ()
    notes: dict[Topic, tuple[str, ...]] = {}
    ttl_seconds: dict[Topic, float] = {}
    """How long the server promises that a list stays the same."""
    is_unlisted: bool = False
    """It is a plain JSON-RPC server without a list: its methods are called by name."""
    missing: Mapping[str, str] = {}
    """If the server is a hub: servers behind it whose tools are missing, and why."""

    def everything(self) -> Iterator[Feature]:
        """Every entry, of any kind."""
        return chain(self.tools, self.prompts, self.resources, self.templates)

    def all_notes(self) -> tuple[str, ...]:
        """The notes on all lists."""
        return tuple(note for notes in self.notes.values() for note in notes)

    def cuts(self) -> frozenset[str]:
        """The notes on lists whose end is missing."""
        return frozenset(note for note in self.all_notes() if CUT in note)


def written_lists(listing: Listing) -> bytes:
    """The four lists as members of a JSON object, without its braces; entries keep the server's own bytes."""
    lists: tuple[tuple[ListShape, tuple[Feature, ...]], ...] = (
        (TOOLS, listing.tools),
        (PROMPTS, listing.prompts),
        (RESOURCES, listing.resources),
        (TEMPLATES, listing.templates),
    )
    entries = (
        (shape, array_of(jsonrpc.render(feature.definition) for feature in features)) for shape, features in lists
    )
    return b",".join(b'"%b":%b' % (shape.member.encode(), array) for shape, array in entries)


def read_lists(server: ServerName, body: bytes) -> Listing:
    """Read the lists from a JSON object with `written_lists` in it. Raises `ValueError` if they are damaged."""
    return Listing(
        _read_features(TOOLS, Tool, server, body),
        _read_features(PROMPTS, Prompt, server, body),
        _read_features(RESOURCES, Resource, server, body),
        _read_features(TEMPLATES, Template, server, body),
    )


def _read_features(shape: ListShape, kind: type[F], server: ServerName, body: bytes) -> tuple[F, ...]:
    return tuple(kind.of(server, FeatureName(name), definition) for name, definition in read_list(shape, body))


def offered(listing: Listing, abilities: frozenset[Ability]) -> FeatureLists:
    """The catalog's form of a listing."""
    return FeatureLists(listing.tools, listing.prompts, listing.resources, listing.templates, abilities)


def sharing(listing: Listing, base: Listing) -> Listing:
    """The same listing, sharing equal entries with `base` to save memory."""
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


async def read_topic(
    link: ListSource, topic: Topic, known: Listing, client_caps: ClientCapabilities = NO_CAPABILITIES
) -> Listing:
    """Read one topic's lists for callers with `client_caps`; other lists are kept from `known`.

    Raises:
        Fault: the server gave no usable list.
    """
    reading = _ListReading(link, client_caps)
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
    if reading.ttl_seconds:  # official servers send 0 by default, which is not a promise
        ttl[topic] = max(reading.ttl_seconds, TTL_SECONDS_MIN)
    return msgspec.structs.replace(known, **changes, notes=notes, ttl_seconds=ttl)


def leave_out(listing: Listing, tools: Set[FeatureName], why: str) -> Listing:
    """The listing without these tools, and a note on each."""
    kept = tuple(tool for tool in listing.tools if tool.name not in tools)
    notes = [*listing.notes.get("tools", ()), *(f"{name!r} left out: {why}" for name in sorted(tools))]
    return msgspec.structs.replace(listing, tools=kept, notes={**listing.notes, "tools": tuple(notes[:NOTES_MAX])})


CUT = " and was cut"
"""In the note on a list whose end is missing."""


class ListCut(NamedTuple):
    """Why the end of a list is missing, and how the operator gets it."""

    what: str
    limit: str = ""
    """The setting that cut the list; empty if no setting helps."""

    def __str__(self) -> str:
        advice = f"; to read all of it, raise limits.{self.limit}" if self.limit else ""
        return f"{self.what}{CUT}{advice}"


class _ListReading:
    """One reading of one or two lists."""

    def __init__(self, link: ListSource, client_caps: ClientCapabilities) -> None:
        self._link = link
        self._client_caps = client_caps
        self.notes: list[str] = []
        self.ttl_seconds: float | None = None
        self.missing: dict[str, str] = {}

    async def read(self, shape: ListShape, kind: type[F]) -> tuple[F, ...]:
        found: dict[FeatureName, F] = {}
        cut = await self._read_pages(shape, kind, found)
        if cut is not None:
            self.notes.append(f"its list of {shape.noun}s {cut}")
        return tuple(found.values())

    async def _read_pages(self, shape: ListShape, kind: type[F], found: dict[FeatureName, F]) -> ListCut | None:
        """Read every page, until the list ends or must be cut."""
        limits = self._link.limits
        cursors: set[bytes] = set()
        members: Mapping[str, Payload] = {}
        read_bytes = 0
        for _ in range(limits.list_pages):
            page = await self._page(shape, members)
            if len(self.missing) + len(page.missing) <= MISSING_MAX:  # the same limit as for one page
                self.missing.update(page.missing)
            taken = await self._add_page(shape, kind, page, found, limits.list_bytes - read_bytes)
            cursor = page.next_cursor
            if isinstance(taken, ListCut):
                return taken
            if cursor is None:
                return None
            if len(found) >= limits.tools_per_server:
                return over_entries(limits)
            read_bytes += taken
            # A digest, because a cursor may have megabytes, and there may be thousands of them.
            mark = hashlib.blake2b(cursor.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if mark in cursors:
                return ListCut("runs in a circle")
            cursors.add(mark)
            members = {"cursor": msgspec.json.encode(cursor)}
        return ListCut(f"has over {limits.list_pages} pages", "list_pages")

    async def read_templates(self) -> tuple[Template, ...]:
        """Many servers have resources and do not know templates."""
        try:
            return await self.read(TEMPLATES, Template)
        except ServerError as refused:
            if refused.code != jsonrpc.METHOD_NOT_FOUND:
                self._note(f"it gave no list of templates: {refused.message}")
        except BadReply as bad:
            self._note(f"it gave no list of templates: {bad.why}")
        return ()

    async def _page(self, shape: ListShape, members: Mapping[str, Payload]) -> ListPage:
        server = self._link.server
        answer = await self._link.request(shape.method, self._link.dialect.params(members, self._client_caps))
        try:
            page = await offload(len(memoryview(answer)), partial(read_page, shape, answer), owner=server)
        except ReaderFailed as failed:
            page = f"a page of its list of {shape.noun}s cannot be read: {failed}"
        if isinstance(page, str):
            raise BadReply(server, page)
        if page.ttl_seconds is not None:
            known = page.ttl_seconds if self.ttl_seconds is None else self.ttl_seconds
            self.ttl_seconds = min(page.ttl_seconds, known)
        return page

    async def _add_page(
        self, shape: ListShape, kind: type[F], page: ListPage, found: dict[FeatureName, F], room_bytes: int
    ) -> int | ListCut:
        """Take a page's entries; return how many bytes they have, or why the list is cut there."""
        limits = self._link.limits
        taken_bytes = slice_bytes = problems = 0
        for position, raw in enumerate(page):
            raw_bytes = len(memoryview(raw))
            if (slice_bytes := slice_bytes + raw_bytes) > ENTRIES_BYTES or not (position + 1) % ENTRIES_AT_ONCE:
                await pause()
                slice_bytes = raw_bytes
            try:
                entry = await offload(raw_bytes, partial(read_entry, shape, raw), owner=self._link.server)
            except ReaderFailed as failed:
                entry = str(failed)
            if isinstance(entry, str):
                problems += 1
                if problems > PROBLEMS_MAX:
                    self._note("its list has further errors, and its other entries were left out")
                    break
                self._note(f"{shape.noun} {position} left out: {entry}")
                continue
            name, definition = FeatureName(entry[0]), entry[1]
            size = sum(len(memoryview(value)) for value in definition.values())
            if name in found:
                self._note(f"{name!r} is listed twice; the first is used")
            elif len(found) >= limits.tools_per_server:
                return over_entries(limits)
            elif size > limits.schema_bytes:
                self._note(f"{name!r} left out: its description is over {limits.schema_bytes} bytes")
            elif (taken_bytes := taken_bytes + size) > room_bytes:
                return ListCut(f"has over {limits.list_bytes} bytes", "list_bytes")
            else:
                found[name] = kind.of(self._link.server, name, definition)
        return taken_bytes

    def _note(self, *notes: str) -> None:
        self.notes.extend(notes[: max(0, NOTES_MAX - len(self.notes))])


def over_entries(limits: Limits) -> ListCut:
    """The cut of a list with too many entries."""
    return ListCut(f"has over {limits.tools_per_server} entries", "tools_per_server")


RELIST_SECONDS = 1.0
"""After the first, announced changes of a list are read at most this often."""


class RelistSchedule:
    """When lists that may have changed are read again: at once the first time, then at most once a second.

    It has no clock and reads nothing. A list that was read without an announcement is not delayed: the next
    announcement counts as the first.
    """

    def __init__(self) -> None:
        self._stale: dict[Topic, bool] = {}
        """Stale lists, and whether a change was announced."""
        self._not_before: dict[Topic, float] = {}
        self._elsewhere: set[Topic] = set()
        """Stale lists that only another node has announced."""
        self._elsewhere_at: dict[Topic, float] = {}
        self.own: frozenset[Topic] = frozenset()
        """The lists of the last `take` that were not announced by another node alone. Only these are announced to other
        nodes: otherwise nodes would notify each other forever of a list that differs whenever it is read."""

    def __bool__(self) -> bool:
        return bool(self._stale)

    def announce(self, topics: Iterable[Topic]) -> bool:
        """The server announced changes; False if all of them are known already."""
        self._elsewhere.difference_update(topics)
        return self._add(topics)

    def announce_elsewhere(self, topics: Iterable[Topic], now: float) -> bool:
        """Another node found changes: read these lists at once, at most once a second."""
        for topic in topics:
            if topic not in self._stale:
                self._elsewhere.add(topic)
            if now >= self._elsewhere_at.get(topic, now):
                self._elsewhere_at[topic] = now + RELIST_SECONDS
                self._not_before.pop(topic, None)
        return self._add(topics)

    def _add(self, topics: Iterable[Topic]) -> bool:
        new = [topic for topic in topics if not self._stale.get(topic)]
        self._stale |= dict.fromkeys(new, True)
        return bool(new)

    def doubt(self, topics: Iterable[Topic]) -> None:
        """These lists may have changed without an announcement."""
        self._stale = dict.fromkeys(topics, False) | self._stale

    def wait(self, now: float) -> float | None:
        """Seconds until a list is due, 0 if one is due now; None if no list is stale."""
        return max(0.0, min(self._not_before.get(topic, now) for topic in self._stale) - now) if self._stale else None

    def take(self, now: float) -> dict[Topic, bool]:
        """Take the lists that are due, with whether each was announced; they are no longer stale."""
        due = {topic: since for topic, since in self._stale.items() if self._not_before.get(topic, now) <= now}
        self._stale = {topic: since for topic, since in self._stale.items() if topic not in due}
        self.own = frozenset(due.keys() - self._elsewhere)
        self._elsewhere -= due.keys()
        return due

    def rest(self, topics: Iterable[Topic], now: float) -> None:
        """These lists were read, or could not be: delay the next reading."""
        self._not_before |= dict.fromkeys(topics, now + RELIST_SECONDS)

    def clear(self) -> None:
        """Everything was just read."""
        self._stale.clear()
        self._not_before.clear()
        self._elsewhere.clear()


# -- the lists of the last run -------------------------------------------------------------------------------------

LISTS_BYTES_MAX = 64 * 1024 * 1024
"""Longer lists are not stored."""


class ListStore(Protocol):
    """Where lists are stored: `storage.server_lists`."""

    async def read(self, key: str) -> bytes | None:
        """What was written under this key; None if there is nothing readable."""

    def write(self, key: str, body: Callable[[], bytes]) -> None:
        """Write what this returns under the key, soon. It is called on another thread."""


class CachedLists(NamedTuple):
    """A server's lists and abilities."""

    listing: Listing
    abilities: frozenset[Ability]


class _CacheHead(msgspec.Struct):
    """The members of a document beside its lists."""

    server: str
    abilities: list[str]


class _StoredLists(NamedTuple):
    """A document, with its lists up to their entries."""

    server: str
    abilities: list[str]
    pages: tuple[ListPage, ...]


def _read_document(body: bytes) -> _StoredLists:
    """Read a document. Raises `ValueError` if it is damaged."""
    try:
        head = msgspec.json.decode(body, type=_CacheHead)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    pages = [read_page(shape, body) for shape in (TOOLS, PROMPTS, RESOURCES, TEMPLATES)]
    for page in pages:
        if isinstance(page, str):
            raise ValueError(page)
    return _StoredLists(head.server, head.abilities, tuple(page for page in pages if not isinstance(page, str)))


async def _features(shape: ListShape, kind: type[F], server: ServerName, page: ListPage) -> tuple[F, ...]:
    """The entries of a stored list, some in each turn of the event loop."""
    found: list[F] = []
    slice_bytes = 0
    for position, raw in enumerate(page):
        raw_bytes = len(memoryview(raw))
        if (slice_bytes := slice_bytes + raw_bytes) > ENTRIES_BYTES or not (position + 1) % ENTRIES_AT_ONCE:
            await pause()
            slice_bytes = raw_bytes
        entry = read_entry(shape, raw)
        if not isinstance(entry, str):
            found.append(kind.of(server, FeatureName(entry[0]), entry[1]))
    return tuple(found)


def _cached_form(head: _CacheHead, lists: Listing) -> bytes:
    """The document of a server; empty if its lists are too long, so that outdated ones are not kept."""
    size_bytes = sum(len(memoryview(raw)) for each in lists.everything() for raw in each.definition.values())
    if size_bytes > LISTS_BYTES_MAX:
        return b""
    return msgspec.json.encode(head)[:-1] + b"," + written_lists(lists) + b"}"


class ListCache:
    """The lists of all servers of one hub, for clients with these capabilities.

    Stored under the server's name and how it is reached: an edited entry starts empty.
    """

    def __init__(self, store: ListStore, client_caps: ClientCapabilities | None = None) -> None:
        self._store = store
        self._client_caps = client_caps
        self._stored: dict[ServerName, tuple[str, CachedLists]] = {}
        """What the store contains, as far as this hub knows."""

    async def recall(self, settings: ServerSettings) -> CachedLists | None:
        """What the server listed last, if it was reached in the same way; None if unknown."""
        if isinstance(settings.reach, PythonSettings):  # its code may have changed, and it starts in a moment
            return None
        key = self._key(settings)
        body = await self._store.read(key)
        if not body:
            return None
        try:
            stored = await offload(len(body), partial(_read_document, body), owner=settings.name)
            if stored.server != settings.name:
                raise ValueError(f"it is about {stored.server!r}")
            tools, prompts, resources, templates = stored.pages
            listing = Listing(
                await _features(TOOLS, Tool, settings.name, tools),
                await _features(PROMPTS, Prompt, settings.name, prompts),
                await _features(RESOURCES, Resource, settings.name, resources),
                await _features(TEMPLATES, Template, settings.name, templates),
            )
            abilities = frozenset(ability for ability in get_args(Ability) if ability in stored.abilities)
            known = CachedLists(listing, abilities)
        except (ValueError, ReaderFailed) as error:
            log.warning("the stored list of a server is damaged", server=settings.name, file=key, reason=str(error))
            return None
        self._stored[settings.name] = (key, known)
        return known

    def store(self, settings: ServerSettings, listing: Listing, abilities: frozenset[Ability]) -> None:
        """Store what a server lists now, unless it is unchanged."""
        if isinstance(settings.reach, PythonSettings):
            return
        lists = Listing(listing.tools, listing.prompts, listing.resources, listing.templates)
        kept = self._key(settings), CachedLists(lists, abilities)
        if self._stored.get(settings.name) == kept:
            return
        self._stored[settings.name] = kept
        self._store.write(kept[0], partial(_cached_form, _CacheHead(settings.name, sorted(abilities)), lists))

    def _key(self, settings: ServerSettings) -> str:
        """A digest of the server's name and of how it is reached; it reveals no secret."""
        reach = settings.reach
        facts = (settings.name, type(reach).__name__, asdict(reach), settings.ca, sorted(self._client_caps or ()))
        text = msgspec.json.encode(
            facts,
            order="deterministic",
            enc_hook=lambda value: dict(value) if isinstance(value, Mapping) else repr(value),
        )
        return hashlib.blake2b(text, digest_size=16, person=b"isthmus.lists").hexdigest()
