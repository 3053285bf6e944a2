"""One agent and the servers that dialled in under it, and how such servers are named.

The registry has one `DialInAgent` per agent; frontends see it as `core.ports.AgentServers`. A name must not depend on
who comes first: a permission could then mean another agent's server. So the strongest claim has the name, and the
registry renames the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import dropwhile, islice

import msgspec
import structlog

from isthmus.core.ports import ConnectingServer
from isthmus.model.names import ServerName
from isthmus.model.relay import AgentRules, DialledServer
from isthmus.upstream.dialin.link import DialInLink
from isthmus.upstream.dialin.reconnector import DialInReconnector
from isthmus.upstream.dialin.registry_store import ServerRecord
from isthmus.upstream.listing import Listing

LENGTH_MAX = 50
"""What a server's name may have."""

DEFAULT_ID = "default"
"""A server that says nothing of itself."""

ID_LENGTH_MAX = 64
"""What is kept of the name that a server gives itself."""

LOOKED_AT_MAX = 100
"""Names among which that is looked for which a server had before."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


class NameClaim(msgspec.Struct, frozen=True):
    """One server, and how good its right to a name is."""

    agent: str
    """The agent's key."""
    server_id: str
    prefix: str
    """What its agent's servers are called, before they are made legal."""
    is_configured: bool
    """Whether its agent is."""
    is_barred: bool
    """Its plain name begins as those of an agent that is configured, and it is not that agent's."""

    @property
    def plain(self) -> ServerName:
        """`{agent}_{server_id}` made legal, however long."""
        return ServerName(_legal(f"{self.prefix}_{self.server_id}"))

    @property
    def strength(self) -> tuple[bool, bool, int, bool, str, str]:
        """The greater has the name. No two servers have the same.

        What is configured first, then who has the name as it is and not only once it was made legal, then the longer
        agent: that is what a token proves, where a server calls itself what it likes. The rest is the same every time.
        """
        is_exact = self.plain == f"{self.prefix}_{self.server_id}"
        rank = self.is_configured, self.is_configured or is_exact, len(self.prefix), is_exact
        return *rank, self.agent, self.server_id

    def names(self) -> Iterator[ServerName]:
        """What it could be called, the best first: its plain name if that may be, else with digits of the pair.

        They never end: who knows the digits beforehand could have all of a few.
        """
        plain = self.plain
        if len(plain) <= LENGTH_MAX and not self.is_barred:
            yield plain
        text = f"{self.agent}\0{self.server_id}"
        while True:
            text = hashlib.blake2b(text.encode("utf-8", "surrogatepass")).hexdigest()
            for start in range(0, len(text) - 6, 6):
                yield ServerName(f"{plain[: LENGTH_MAX - 7]}_{text[start : start + 6]}")

    def names_from(self, last: ServerName) -> Iterator[ServerName]:
        """What it could be called that had this name before: no better one, which may have been another's meanwhile."""
        if last not in islice(self.names(), LOOKED_AT_MAX):
            return self.names()
        return dropwhile(lambda name: name != last, self.names())


class NameRules:
    """Bids, given what is configured of agents: names that begin as theirs are theirs, also before they come."""

    def __init__(self, agents: Mapping[str, AgentRules]) -> None:
        self._prefixes = {key: rules.name or key for key, rules in agents.items()}
        self._kept = {_legal(prefix) for prefix in self._prefixes.values()}

    def __eq__(self, other: object) -> bool:
        """Whether everybody is called the same by both."""
        return isinstance(other, NameRules) and self._prefixes == other._prefixes

    __hash__ = None  # type: ignore[assignment]

    def bid(self, agent: str, server_id: str) -> NameClaim:
        """An agent's server."""
        prefix = self._prefixes.get(agent, agent)
        is_configured = agent in self._prefixes
        reconnector = self._reconnector(_legal(f"{prefix}_{server_id}"))
        is_barred = reconnector is not None and not (is_configured and reconnector == _legal(prefix))
        return NameClaim(agent, server_id, prefix, is_configured, is_barred)

    def _reconnector(self, plain: str) -> str | None:
        """With what the names begin among which this one is kept; the longest, if there are several."""
        ends = (at for at in range(len(plain) - 1, 0, -1) if plain[at] == "_")
        return next((plain[:at] for at in ends if plain[:at] in self._kept), None)


def _legal(text: str) -> str:
    return _ILLEGAL.sub("_", text)


def own_id(name: str | None) -> str:
    """What a server is called under its agent that only gave itself a name."""
    text = "".join(character for character in name or "" if character.isprintable()).strip()
    return text[:ID_LENGTH_MAX].strip() or DEFAULT_ID


def twin_id(server_id: str, number: int) -> str:
    """What the so many-th of those with one name is called; the first just so."""
    return server_id if number == 1 else f"{server_id}_{number}"


log = structlog.get_logger(__name__)

LEFT_OUT = " (max_tools)"
"""How the note ends that tools found no room."""


class AgentServer:
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

    def __init__(self, agent: DialInAgent, server_id: str, reconnector: DialInReconnector, came: float) -> None:
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
        """See `core.ports.DialledInServer`."""

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

    def record(self, now: float) -> ServerRecord:
        """What is remembered of it."""
        reconnector = self.reconnector
        return ServerRecord(
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


class DialInAgent:
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
        self._seats: dict[str, AgentServer] = {}
        self._list: tuple[AgentServer, ...] = ()
        self._arriving: dict[DialInLink, ConnectingServer] = {}
        self._watchers: dict[Callable[[], None], None] = {}
        self._is_to_make_room = False

    @property
    def agent(self) -> str:
        """See `core.ports.AgentServers`."""
        return self.key

    def seats(self) -> Sequence[AgentServer]:
        """See `core.ports.AgentServers`."""
        return self._list

    def seat(self, server_id: str) -> AgentServer | None:
        """The server of this name."""
        return self._seats.get(server_id)

    def add(self, seat: AgentServer) -> None:
        """One more, unless it is one of them already."""
        if seat.server_id not in self._seats:
            self._seats[seat.server_id] = seat
            self.changed()

    def remove(self, seat: AgentServer) -> None:
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
        seats: list[AgentServer] = []
        while (seat := self._seats.get(twin_id(name, len(seats) + 1))) is not None:
            seats.append(seat)
        fit = {seat: (seat.likeness(tools), -number) for number, seat in enumerate(seats)}
        best = max((seat for seat in seats if not seat.is_here), key=fit.__getitem__, default=None)
        unsure = [seat.reconnector.link for seat in seats if best is None or fit[seat] > fit[best]]
        place = twin_id(name, len(seats) + 1) if best is None else best.server_id
        return place, [link for link in unsure if link is not None and link not in alive]

    def longest_away(self) -> AgentServer | None:
        """Who makes room first."""
        return min((seat for seat in self._list if not seat.is_here), key=lambda seat: seat.since, default=None)

    # -- tools -----------------------------------------------------------------------------------------------------

    def tools_here(self, beside: AgentServer) -> int:
        """Tools of all others that are here."""
        return sum(len(seat.reconnector.listing.tools) for seat in self._list if seat.is_here and seat is not beside)

    def fit(self, beside: AgentServer | None = None, tools: int = 0) -> None:
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

    def look_at_trimmed(self, beside: AgentServer | None = None) -> None:
        """There may be room for more tools of others."""
        for seat in self._list:
            if seat.is_trimmed and seat is not beside:
                seat.reconnector.look()

    # -- those who come --------------------------------------------------------------------------------------------

    def expect(self, link: DialInLink, label: str, *, is_named: bool) -> None:
        """A server is connected and not listed yet."""
        self._arriving[link] = ConnectingServer(label, is_named, asyncio.get_running_loop().create_future())

    def has_come(self, link: DialInLink) -> None:
        """It is listed now, or gone."""
        if (arrival := self._arriving.pop(link, None)) is None:
            return
        if link.seat is None:
            arrival.ended.cancel()
        else:
            arrival.ended.set_result(None)

    def arriving(self) -> Sequence[ConnectingServer]:
        """See `core.ports.AgentServers`."""
        return tuple(self._arriving.values()) if self._arriving else ()

    def arrivals(self) -> tuple[tuple[DialInLink, str], ...]:
        """Links that are not listed yet, and what their servers are called as far as is known."""
        return tuple((link, arrival.label) for link, arrival in self._arriving.items())

    # -- telling ---------------------------------------------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See `core.ports.AgentServers`."""
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
