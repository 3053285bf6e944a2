"""Servers that callers name by address: allowed or refused, and kept while they are used.

Such a server belongs to its caller alone. It is in a hub of its own, which no frontend lists. Its key is the caller,
the address, and a digest of the headers that are sent there.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TypeAlias

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.ports import OpenTarget, TargetSpec
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING
from isthmus.model.faults import Bug, Cancelled, Draining, Fault, NotConnected, TargetRefused, TooManyTargets
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress
from isthmus.upstream.reconnector import Reconnector
from isthmus.upstream.settings import Carrier, ServerSettings, TargetHttpSettings
from isthmus.upstream.supervisor import Supervisor
from isthmus.upstream.targets.addresses import TargetAddress, read_address
from isthmus.upstream.targets.settings import TargetSettings

log = structlog.get_logger(__name__)

WAYS_MAX = 1000
"""Those who may be on their way at once to servers that are not there yet; half of them for one caller."""

KNOWN_MAX = 1000
"""Addresses of which it is remembered how they are spoken to; the one that was used longest ago is forgotten."""

USUAL: tuple[tuple[Carrier, str], ...] = (("http", "/mcp"), ("sse", "/sse"), ("rpc", "/messages/"), ("rpc", "/"))
"""Where a server is looked for whose path is not said, and how it is spoken to there."""

HEADERS_LENGTH_MAX = 16 * 1024
"""Of all that a caller has sent with each request to one server."""

NAME_LENGTH = 100
"""How much of a header's name is told back."""

Ways: TypeAlias = tuple[tuple[Carrier, str], ...]

Key: TypeAlias = tuple[str, str, bytes]
"""Whose a server is (tenant and name), and the digest of where it is and of the headers that go there."""

OnOpened: TypeAlias = Callable[[OpenTarget | Fault], None]

ConfiguredServers: TypeAlias = Callable[[], Iterable[ServerSettings]]


class NamedServer(msgspec.Struct, frozen=True):
    """An address that its caller may name; see `core.ports.UnopenedTarget`."""

    owner: NamedServers
    caller: Caller
    address: TargetAddress
    reach: TargetHttpSettings

    def __repr__(self) -> str:
        return f"Aim({self.address.origin})"  # headers are secrets

    def open(self, then: OnOpened) -> Callable[[], None]:
        """See `core.ports.UnopenedTarget`."""
        return self.owner.open(self, then)


class _KeptServer:
    """One server in use, or kept for the next time."""

    def __init__(self, aim: NamedServer, reconnector: Reconnector, now: float) -> None:
        self.aim = aim
        self.reconnector = reconnector
        self.used_at = now
        self.waiting = 0
        """Those who wait for it to be reached."""
        self.timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> ServerName:
        return self.reconnector.settings.name

    @property
    def is_busy(self) -> bool:
        server_queue = self.reconnector.server_queue
        return bool(self.waiting or server_queue.running or server_queue.queued)

    @property
    def is_lost(self) -> bool:
        """It was reached or not, and is not there now."""
        return self.reconnector.tried.done() and self.reconnector.server_status.state != "ready"


class NamedServers:
    """The servers that callers named. `settings` may be replaced at any time, by `change`."""

    def __init__(
        self,
        hub: Hub,
        annex: Hub,
        supervisor: Supervisor,
        background: BackgroundTasks,
        egress: Egress,
        settings: TargetSettings,
        configured: ConfiguredServers,
    ) -> None:
        """`supervisor` keeps the servers of the `annex`, where nothing else is; `configured` are those of the `hub`."""
        self.annex = annex
        self.settings = settings
        self._hub = hub
        self._supervisor = supervisor
        self._background = background
        self._egress = egress
        self._configured = configured
        self._guests: OrderedDict[Key, _KeptServer] = OrderedDict()
        """Those that were used longest ago first."""
        self._known: OrderedDict[Key, Carrier] = OrderedDict()
        self._ways: dict[asyncio.Task[None], OnOpened] = {}
        """Those who are on their way to a server, and who waits for them."""
        self._bound: Counter[tuple[str, str]] = Counter()
        """How many of each caller's are bound for a server that is not there yet."""
        self._salt = secrets.token_bytes(16)
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()

    # -- who may name what -------------------------------------------------------------------------------------------

    def find(self, caller: Caller, named: TargetSpec) -> ServerName | NamedServer | Fault:
        """See `core.ports.TargetResolver`. Nothing is resolved or dialled."""
        try:
            address = read_address(named.url, named.path)
        except ValueError as error:
            return TargetRefused(f"mcp_target_url and mcp_request_path make no usable address: {error}")
        configured = self._configured_at(address)
        server = self._seen_by(caller, configured, address.query)
        if server is not None:
            refusal = TargetRefused(f"Server {server} is configured here and gets no headers of its callers")
            return refusal if named.headers else server
        if not (caller.can_name_targets or (caller.is_anyone and self.settings.open)):
            return TargetRefused(_unless_allowed(caller))
        # What is configured is called as grants say, and not past them by its address.
        ways = () if configured else self._allowed(address)
        if not ways:
            return TargetRefused(f"{address.origin} may not be named; [targets] allow would have to list it")
        return self._with_headers(caller, address, ways, named.headers)

    def _allowed(self, address: TargetAddress) -> Ways:
        return tuple(way for way in ways_to(address) if self.settings.allows(read_address(way[1])))

    def _with_headers(
        self, caller: Caller, address: TargetAddress, ways: Ways, headers: Mapping[str, str]
    ) -> NamedServer | Fault:
        for name in headers:
            if not self.settings.passes(name):
                return TargetRefused(
                    f"Header {name[:NAME_LENGTH]} may not be sent; [targets] headers would have to list it"
                )
        given = {name.lower(): value for name, value in headers.items()}
        if len(given) < len(headers) or sum(map(len, given.values())) > HEADERS_LENGTH_MAX:
            return TargetRefused(
                f"mcp_headers must name each once, with {HEADERS_LENGTH_MAX} characters in all at most"
            )
        is_trusted = all(self.settings.trusts(read_address(url)) for _, url in ways)
        try:
            return NamedServer(
                self, caller, address, TargetHttpSettings(ways[0][1], given, ways=ways, is_trusted=is_trusted)
            )
        except ValueError as error:
            return TargetRefused(f"mcp_{error}")  # it begins with the word `headers`, and quotes none of them

    def _configured_at(self, address: TargetAddress) -> list[tuple[ServerName, str]]:
        """The servers that are configured at an address, or where one would be looked for; and their queries."""
        places = {address.place, *(read_address(url).place for _, url in ways_to(address))}
        known = [(server.name, _address_of(server)) for server in self._configured()]
        return [(name, each.query) for name, each in known if each is not None and each.place in places]

    def _seen_by(self, caller: Caller, configured: list[tuple[ServerName, str]], query: str) -> ServerName | None:
        if not configured:
            return None
        seen = self._hub.snapshot.view(caller.grants, EVERYTHING).servers
        return next((name for name, own in configured if name in seen and query in ("", own)), None)

    # -- reaching one ------------------------------------------------------------------------------------------------

    def open(self, aim: NamedServer, then: OnOpened) -> Callable[[], None]:
        """See `core.ports.UnopenedTarget`."""
        whose = None if self._is_there(aim) else (aim.caller.tenant, aim.caller.name)
        if whose is not None and (others := self._in_the_way(whose)):
            return self._loop.call_soon(then, TooManyTargets(others)).cancel
        way = self._background.spawn(
            f"way to {aim.address.origin}", self._open(aim, then), on_crash=partial(_blame, then)
        )
        self._ways[way] = then
        if whose is not None:
            self._bound[whose] += 1
        way.add_done_callback(lambda _: self._arrived(way, whose))
        return lambda: self._turn_back(way)

    def _is_there(self, aim: NamedServer) -> bool:
        guest = self._guests.get(self._key(aim))
        return guest is not None and guest.reconnector.server_status.state == "ready"

    def _in_the_way(self, whose: tuple[str, str]) -> int:
        """How many are on their way, if so many are that another one cannot be."""
        own, total = self._bound[whose], self._bound.total()
        return total if total >= WAYS_MAX else own if own >= max(1, WAYS_MAX // 2) else 0

    def _arrived(self, way: asyncio.Task[None], whose: tuple[str, str] | None) -> None:
        self._ways.pop(way, None)
        if whose is None:
            return
        self._bound[whose] -= 1
        if not self._bound[whose]:
            del self._bound[whose]

    def _turn_back(self, way: asyncio.Task[None]) -> None:
        self._ways.pop(way, None)
        way.cancel()

    async def _open(self, aim: NamedServer, then: OnOpened) -> None:
        try:
            opened: OpenTarget | Fault = await self._reach(aim)
        except Fault as fault:
            opened = fault
        then(opened)

    def running(self) -> int:
        """Calls on such servers, and those who are on their way to one."""
        return self.annex.running() + len(self._ways)

    def cancel_all(self, why: str) -> None:
        """Withdraw every call, those included whose servers are only being reached."""
        for way, then in list(self._ways.items()):
            self._turn_back(way)
            then(Cancelled(why, executed="no"))
        self.annex.cancel_all(why)

    async def _reach(self, aim: NamedServer) -> OpenTarget:
        """Reach a server, or use the link there is.

        Raises:
            Fault: its address may not be dialled, too many are in use, or it cannot be reached.
        """
        if self._hub.is_draining:
            raise Draining
        key = self._key(aim)
        guest = self._guests.get(key)
        if guest is not None and guest.is_lost and not guest.is_busy:
            self._forget(key)
            guest = None
        if guest is None:
            await self._check(aim)
            guest = self._guests.get(key) or self._admit(key, aim)
        self._guests.move_to_end(key)
        guest.waiting += 1
        try:
            await asyncio.wait({guest.reconnector.tried}, timeout=self._hub.limits.call_seconds)
        finally:
            guest.waiting -= 1
            self._used(key, guest)
        return self._opened(key, guest)

    async def _check(self, aim: NamedServer) -> None:
        """Raises: TargetRefused if the address leads where it must not."""
        if aim.reach.is_trusted:
            return
        why = await self._egress.refusal(aim.address.origin, within=self._hub.limits.connect_seconds)
        if why is not None:
            said = f"{aim.address.origin.host} may not be dialled: {why}"
            raise TargetRefused(f"{said}; [targets] allow would have to list this host literally")

    def _admit(self, key: Key, aim: NamedServer) -> _KeptServer:
        self._make_room(aim.caller)
        settings = self._settings_for(key, aim)
        self._supervisor.add(settings, is_awaited=False)
        guest = self._guests[key] = _KeptServer(aim, self._supervisor.reconnectors[settings.name], self._loop.time())
        log.info("a caller named a server", server=settings.name, caller=aim.caller.name)
        return guest

    def _settings_for(self, key: Key, aim: NamedServer) -> ServerSettings:
        # No configured server can have such a name: a caller that reads it sees whom it called.
        name = ServerName(f"{aim.address.origin.authority}#{next(self._numbers)}")
        known = self._known.get(key)
        limits = self._hub.limits
        return ServerSettings(
            name,
            replace(aim.reach, ways=tuple(sorted(aim.reach.ways, key=lambda way: way[0] != known))),
            timeout=limits.call_seconds,
            max_calls=limits.max_calls,
            max_queued=limits.max_queued,
            secrets=_secrets_in(aim.reach.headers),
        )

    def _opened(self, key: Key, guest: _KeptServer) -> OpenTarget:
        reconnector, server_status = guest.reconnector, guest.reconnector.server_status
        is_kept = self._guests.get(key) is guest
        if server_status.state != "ready" or not is_kept:
            if is_kept and not guest.is_busy:
                self._forget(key)  # nobody keeps knocking at a door because a caller named it once
            is_late = is_kept and not reconnector.tried.done()
            raise (
                NotConnected(guest.name, "it did not answer in time")
                if is_late
                else reconnector.server_queue.not_connected()
            )
        self._remember(key, server_status.carrier)
        is_plain = server_status.carrier == "rpc"
        return OpenTarget(self.annex, guest.name, is_plain=is_plain, initialize_result=reconnector.initialize_result)

    def _remember(self, key: Key, carrier: str | None) -> None:
        self._known[key] = "sse" if carrier == "sse" else "rpc" if carrier == "rpc" else "http"
        self._known.move_to_end(key)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _key(self, aim: NamedServer) -> Key:
        whole = msgspec.json.encode([aim.reach.ways, sorted(aim.reach.headers.items())])
        digest = hashlib.blake2b(whole, key=self._salt, digest_size=16).digest()
        return aim.caller.tenant, aim.caller.name, digest

    # -- letting them go ---------------------------------------------------------------------------------------------

    def _make_room(self, caller: Caller) -> None:
        """Let go what was used longest ago; nobody has more than half of all, so that there is room for others.

        Raises:
            TooManyTargets: all are in use.
        """
        own = [key for key in self._guests if key[:2] == (caller.tenant, caller.name)]
        self._thin_out(own, max(1, self.settings.max // 2))
        self._thin_out(list(self._guests), self.settings.max)

    def _thin_out(self, keys: Sequence[Key], most: int) -> None:
        if len(keys) < most:
            return
        idle = next((key for key in keys if not self._guests[key].is_busy), None)
        if idle is None:
            raise TooManyTargets(len(keys))
        self._forget(idle)

    def _used(self, key: Key, guest: _KeptServer) -> None:
        guest.used_at = self._loop.time()
        if guest.timer is None and self._guests.get(key) is guest:
            guest.timer = self._loop.call_later(self.settings.idle, self._look, key, guest)

    def _look(self, key: Key, guest: _KeptServer) -> None:
        """Let a server go that nobody used for a while, or look again later."""
        guest.timer = None
        if guest.is_busy:
            guest.used_at = self._loop.time()
        left = guest.used_at + self.settings.idle - self._loop.time()
        if left > 0:
            guest.timer = self._loop.call_later(left, self._look, key, guest)
        else:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        guest = self._guests.pop(key)
        if guest.timer is not None:
            guest.timer.cancel()
        log.info("nobody uses a server that a caller named", server=guest.name, caller=guest.aim.caller.name)
        self._supervisor.remove(guest.name)

    def change(self, settings: TargetSettings, callers: Container[Caller]) -> None:
        """Go by these from now on, and let go what they do not allow any more; calls on it may finish."""
        self.settings = settings
        for key, guest in list(self._guests.items()):
            if not self._is_allowed(guest.aim, callers):
                self._forget(key)

    def _is_allowed(self, aim: NamedServer, callers: Container[Caller]) -> bool:
        found = self.find(aim.caller, TargetSpec(aim.address.url, None, aim.reach.headers))
        return aim.caller in callers and isinstance(found, NamedServer) and found.reach == aim.reach

    async def aclose(self) -> None:
        """Let all of them go, in good order."""
        for guest in self._guests.values():
            if guest.timer is not None:
                guest.timer.cancel()
        await self._supervisor.aclose()


def ways_to(address: TargetAddress) -> Ways:
    """What may be spoken at an address, and where, in the order in which it is tried."""
    if not address.path:
        return tuple((carrier, f"{address.origin}{path}{address.query}") for carrier, path in USUAL)
    url, path = address.url, address.path.rstrip("/")
    if path.endswith("/sse"):
        return ("sse", url), ("http", url), ("rpc", url)
    if path.endswith("/messages"):
        # What servers of HTTP+SSE call the endpoint of a session, which their stream names.
        return ("http", url), ("sse", f"{address.origin}{path.removesuffix('/messages')}/sse"), ("rpc", url)
    return ("http", url), ("sse", url), ("rpc", url)


def _blame(then: OnOpened, error: BaseException) -> None:
    incident = secrets.token_hex(6)
    log.error("defect while a server was reached that a caller named", incident=incident, exc_info=error)
    then(Bug(incident))


def _address_of(server: ServerSettings) -> TargetAddress | None:
    url = getattr(server.reach, "url", None)
    return None if url is None else _read(url)


@lru_cache(maxsize=4096)
def _read(url: str) -> TargetAddress | None:
    """The address of a configured server, which is read for every one that is named."""
    try:
        return read_address(url)
    except ValueError:
        return None  # nobody can name it by its address, then


def _secrets_in(headers: Mapping[str, str]) -> frozenset[str]:
    """What must not be seen of headers: what they say, and the part of that behind a word such as `Bearer`."""
    whole = frozenset(headers.values())
    return whole | {word for value in whole for word in value.split()[1:]}


def _unless_allowed(caller: Caller) -> str:
    """What would have to be configured for a caller to name addresses."""
    if caller.is_anyone:
        return (
            "Only configured servers may be named here, where nobody needs a key; [targets] open = true would let every"
            " caller of this hub name addresses, or targets = true a caller that is configured, with a key"
        )
    if caller.may_name_targets:
        return (
            f"Caller {caller.name} may name configured servers only here: its tenant or this face holds it to less"
            ' than "*"'
        )
    return (
        f"Caller {caller.name} may name configured servers only; with targets = true it could name"
        " addresses that [targets] allow lists"
    )
