"""One agent and the servers that dialled in under it: who is here, who is away, who is just coming.

`upstream.dialin.book` has one of these for each agent; faces see it as `core.ports.relay.Roster`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set

import msgspec
import structlog

from isthmus.core.ports.relay import Arrival
from isthmus.model.names import ServerName
from isthmus.model.relay import DialledServer
from isthmus.upstream.dialin.link import DialInLink
from isthmus.upstream.dialin.naming import twin_id
from isthmus.upstream.dialin.reconnector import DialInReconnector
from isthmus.upstream.dialin.remembered import Record
from isthmus.upstream.listing import Listing

log = structlog.get_logger(__name__)

LEFT_OUT = " (max_tools)"
"""How the note ends that tools found no room."""


class Seat:
    """One server of an agent. It outlives its connections."""

    __slots__ = (
        "_tools",
        "agent",
        "came",
        "is_named",
        "offered",
        "reconnector",
        "server_id",
        "since",
        "title",
        "told",
        "welcome",
    )

    def __init__(self, agent: Agent, server_id: str, reconnector: DialInReconnector, came: float) -> None:
        self.agent = agent
        self.server_id = server_id
        self.reconnector = reconnector
        self.is_named = False
        """It said what it is to be called when it dialled; else that is what it calls itself."""
        self.offered = 0
        """How many tools it has, whether or not all found room."""
        self.told: str | None = None
        """What was last logged of tools that found none."""
        self._tools = 0
        self.came = came
        """When it came for the first time."""
        self.since = came
        """When it came last, or went."""
        self.title: str | None = None
        """What it calls itself."""
        self.welcome = b""
        """See `core.ports.relay.Seat`."""

    @property
    def server(self) -> ServerName:
        """What it is called in the hub."""
        return self.reconnector.settings.name

    @property
    def is_here(self) -> bool:
        """Whether it is connected and has been listed."""
        return self.reconnector.link is not None

    @property
    def is_trimmed(self) -> bool:
        """Whether some of its tools found no room."""
        return left_out(self.reconnector.listing) is not None

    def trim(self, listing: Listing) -> Listing:
        """A listing with no more tools than its agent may still have; servers that are away make room for it."""
        if left_out(listing) is None:  # else these are the tools that were kept of a listing before
            self.offered = len(listing.tools)
        kept = self._cut(listing, self.agent.max_tools - self.agent.tools_here(beside=self))
        self.agent.fit(self, len(kept.tools))
        return kept

    def shorten(self, room: int) -> None:
        """Keep no more tools than so many of those that are known."""
        self.reconnector.relisted(self._cut(self.reconnector.listing, room))

    def _cut(self, listing: Listing, room: int) -> Listing:
        kept = cut(listing, room, self.agent.max_tools, self.offered)
        note = left_out(kept)
        if note is not None and note != self.told:
            self.told = note
            log.warning("tools of a server are left out", server=self.server, agent=self.agent.key, reason=note)
        return kept

    def has_fewer_tools(self) -> bool:
        """Whether it has fewer than when this was last asked."""
        before, self._tools = self._tools, len(self.reconnector.listing.tools)
        return self._tools < before

    def likeness(self, tools: Set[str]) -> float:
        """How much of what it lists, and of these tools, is the same: from 0 to 1."""
        own = {tool.name for tool in self.reconnector.listing.tools}
        return len(own & tools) / (len(own | tools) or 1)

    def take(self, link: DialInLink) -> None:
        """Let a greeted and listed link be this server's."""
        link.seat = self
        link.listing = self.trim(link.listing)
        if link.who is not None:
            self.title = f"{link.who.title or link.who.name} {link.who.version}".strip()
        self.welcome = link.welcome
        self.reconnector.take(link)

    def shown(self) -> DialledServer:
        """It for people."""
        reconnector, link = self.reconnector, self.reconnector.link
        return DialledServer(
            self.agent.key,
            self.server_id,
            self.server,
            "away" if link is None else "ready",
            self.since,
            tuple(tool.name for tool in reconnector.listing.tools),
            self.title,
            reconnector.server_status.reason,
            None if link is None else link.client,
            link is not None and link.is_muxed,
            reconnector.server_queue.running + reconnector.server_queue.queued,
        )

    def record(self, now: float) -> Record:
        """What is remembered of it."""
        reconnector = self.reconnector
        return Record(
            self.agent.key,
            self.server_id,
            self.server,
            reconnector.listing,
            reconnector.server_status.abilities,
            self.came,
            now,
            self.is_here,
            self.is_named,
            self.title,
        )


class Agent:
    """The servers of one agent, in the order in which they first came."""

    __slots__ = (
        "__weakref__",
        "_arriving",
        "_is_to_make_room",
        "_list",
        "_seats",
        "_watchers",
        "connections",
        "key",
        "max_tools",
    )

    def __init__(self, key: str, max_tools: int) -> None:
        self.key = key
        self.max_tools = max_tools
        """Of all its servers together."""
        self.connections = 0
        """Sockets of its servers."""
        self._seats: dict[str, Seat] = {}
        self._list: tuple[Seat, ...] = ()
        self._arriving: dict[DialInLink, Arrival] = {}
        self._watchers: dict[Callable[[], None], None] = {}
        self._is_to_make_room = False

    @property
    def agent(self) -> str:
        """See `core.ports.relay.Roster`."""
        return self.key

    def seats(self) -> Sequence[Seat]:
        """See `core.ports.relay.Roster`."""
        return self._list

    def seat(self, server_id: str) -> Seat | None:
        """The server of this name."""
        return self._seats.get(server_id)

    def add(self, seat: Seat) -> None:
        """One more, unless it is one of them already."""
        if seat.server_id not in self._seats:
            self._seats[seat.server_id] = seat
            self.changed()

    def remove(self, seat: Seat) -> None:
        """One less."""
        if self._seats.get(seat.server_id) is seat:
            del self._seats[seat.server_id]
            self.changed()

    def changed(self) -> None:
        """The list of servers, or a name in it, is another: who compares lists finds a new one."""
        self._list = tuple(self._seats.values())
        self.tell()

    def place_for(self, name: str, tools: Set[str], alive: Set[DialInLink]) -> tuple[str, list[DialInLink]]:
        """Where a server belongs that only has a name, and whose sign of life must be asked for before that is sure.

        Of those of this name that are not here, the one whose tools are most like these, for many programs have one
        name; if all are here, it is new. Who is more like it, or before it and as much so, may only seem to be here.
        """
        seats: list[Seat] = []
        while (seat := self._seats.get(twin_id(name, len(seats) + 1))) is not None:
            seats.append(seat)
        fit = {seat: (seat.likeness(tools), -number) for number, seat in enumerate(seats)}
        best = max((seat for seat in seats if not seat.is_here), key=fit.__getitem__, default=None)
        unsure = [seat.reconnector.link for seat in seats if best is None or fit[seat] > fit[best]]
        place = twin_id(name, len(seats) + 1) if best is None else best.server_id
        return place, [link for link in unsure if link is not None and link not in alive]

    def longest_away(self) -> Seat | None:
        """Who makes room first."""
        return min((seat for seat in self._list if not seat.is_here), key=lambda seat: seat.since, default=None)

    # -- tools -----------------------------------------------------------------------------------------------------

    def tools_here(self, beside: Seat) -> int:
        """Tools of all others that are here."""
        return sum(len(seat.reconnector.listing.tools) for seat in self._list if seat.is_here and seat is not beside)

    def fit(self, beside: Seat | None = None, tools: int = 0) -> None:
        """Keep to the limit, given that the server `beside` has so many tools: who is away longest loses some first."""
        others = [seat for seat in self._list if seat is not beside]
        excess = tools + sum(len(seat.reconnector.listing.tools) for seat in others) - self.max_tools
        if excess <= 0:
            return
        away = sorted((seat for seat in others if not seat.is_here), key=lambda seat: seat.since)
        for seat in (*away, *(seat for seat in reversed(others) if seat.is_here)):
            had = len(seat.reconnector.listing.tools)
            if had and excess > 0:
                seat.shorten(max(0, had - excess))
                excess -= had

    def limit(self, max_tools: int) -> None:
        """Take another limit, for those who are known, too."""
        if max_tools != self.max_tools:
            self.max_tools = max_tools
            self.fit()
            self.look_at_trimmed()

    def make_room(self, after: float) -> None:
        """Have tools of who is away make room for those that found none, in a while."""
        if not self._is_to_make_room and any(seat.is_trimmed for seat in self._list):
            self._is_to_make_room = True
            asyncio.get_running_loop().call_later(after, self._make_room)

    def _make_room(self) -> None:
        self._is_to_make_room = False
        self.look_at_trimmed()

    def look_at_trimmed(self, beside: Seat | None = None) -> None:
        """There may be room for more tools of others."""
        for seat in self._list:
            if seat.is_trimmed and seat is not beside:
                seat.reconnector.look()

    # -- those who come --------------------------------------------------------------------------------------------

    def expect(self, link: DialInLink, label: str, *, is_named: bool) -> None:
        """A server is connected and not listed yet."""
        self._arriving[link] = Arrival(label, is_named, asyncio.get_running_loop().create_future())

    def has_come(self, link: DialInLink) -> None:
        """It is listed now, or gone."""
        if (arrival := self._arriving.pop(link, None)) is None:
            return
        if link.seat is None:
            arrival.ended.cancel()
        else:
            arrival.ended.set_result(None)

    def arriving(self) -> Sequence[Arrival]:
        """See `core.ports.relay.Roster`."""
        return tuple(self._arriving.values()) if self._arriving else ()

    def arrivals(self) -> tuple[tuple[DialInLink, str], ...]:
        """Links that are not listed yet, and what their servers are called as far as is known."""
        return tuple((link, arrival.label) for link, arrival in self._arriving.items())

    # -- telling ---------------------------------------------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `core.ports.relay.Roster`."""
        self._watchers[callback] = None
        return lambda: self._unwatch(callback)

    def _unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.pop(callback, None)

    def tell(self) -> None:
        """Something of it is other than before."""
        for watcher in tuple(self._watchers):
            try:
                watcher()
            except Exception:  # one broken watcher must not keep a server, or the others, from their news
                log.exception("a watcher of an agent failed", agent=self.key)


def cut(listing: Listing, room: int, limit: int, offered: int) -> Listing:
    """A listing with no more tools than there is room for; a note says how many there were."""
    tools = listing.tools
    if len(tools) <= room:
        return listing
    kept = tools[: max(0, room)]
    others = [note for note in listing.notes.get("tools", ()) if not note.endswith(LEFT_OUT)]
    note = f"{offered - len(kept)} of its {offered} tools left out: an agent may have {limit} in all{LEFT_OUT}"
    return msgspec.structs.replace(listing, tools=kept, notes={**listing.notes, "tools": (*others, note)})


def left_out(listing: Listing) -> str | None:
    """The note that tools of it were left out, if they were."""
    return next((note for note in listing.notes.get("tools", ()) if note.endswith(LEFT_OUT)), None)
