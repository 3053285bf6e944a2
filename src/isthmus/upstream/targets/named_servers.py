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
from functools import lru_cache
from typing import TypeAlias

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.ports import OpenTarget, TargetSpec
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING
from isthmus.model.fault_table import Bug, Cancelled, Draining, Fault, NotConnected, TargetRefused, TooManyTargets
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress
from isthmus.upstream.reconnector import Reconnector
from isthmus.upstream.server_set import Supervisor
from isthmus.upstream.server_settings import Carrier, ServerSettings, TargetHttpSettings
from isthmus.upstream.targets.settings import TargetAddress, TargetSettings, read_address

log = structlog.get_logger(__name__)

OPENING_MAX = 1000
"""Calls that may wait for servers that are not connected yet; half of them from one caller."""

KNOWN_MAX = 1000
"""Addresses with a remembered transport; the one used longest ago is forgotten first."""

USUAL_PATHS: tuple[tuple[Carrier, str], ...] = (("http", "/mcp"), ("sse", "/sse"), ("rpc", "/messages/"), ("rpc", "/"))
"""Transports and paths that are tried for an address without a path."""

HEADERS_LENGTH_MAX = 16 * 1024
"""Characters of all headers that a caller has sent to one server."""

NAME_LENGTH = 100
"""How much of a header's name an error message quotes."""

Ways: TypeAlias = tuple[tuple[Carrier, str], ...]
"""Transports and URLs to try, in order."""

TargetKey: TypeAlias = tuple[str, str, bytes]
"""The caller (tenant and name), and a digest of the address and the headers that are sent there."""

OnOpened: TypeAlias = Callable[[OpenTarget | Fault], None]

ConfiguredServers: TypeAlias = Callable[[], Iterable[ServerSettings]]


class NamedServer(msgspec.Struct, frozen=True):
    """An address that its caller may name; see `core.ports.UnopenedTarget`."""

    owner: NamedServers
    caller: Caller
    address: TargetAddress
    reach: TargetHttpSettings

    def __repr__(self) -> str:
        return f"NamedServer({self.address.origin})"  # headers are secrets

    def open(self, then: OnOpened) -> Callable[[], None]:
        """Connect, or reuse the link; `then` is called once, unless the returned function cancels that."""
        return self.owner.open(self, then)


class _KeptServer:
    """One server in use, or kept for the next call."""

    def __init__(self, target: NamedServer, reconnector: Reconnector, now: float) -> None:
        self.target = target
        self.reconnector = reconnector
        self.used_at = now
        self.waiting = 0
        """Calls that wait until it is connected."""
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
        """The first attempt has ended, and it is not connected now."""
        return self.reconnector.tried.done() and self.reconnector.server_status.state != "ready"


class NamedServers:
    """The servers that callers named. `change` replaces `settings` at any time."""

    def __init__(
        self,
        hub: Hub,
        target_hub: Hub,
        supervisor: Supervisor,
        background: BackgroundTasks,
        egress: Egress,
        settings: TargetSettings,
        configured: ConfiguredServers,
    ) -> None:
        """`supervisor` keeps the servers of `target_hub`, which has no others; `configured` are those of `hub`."""
        self.target_hub = target_hub
        self.settings = settings
        self._hub = hub
        self._supervisor = supervisor
        self._background = background
        self._egress = egress
        self._configured = configured
        self._servers: OrderedDict[TargetKey, _KeptServer] = OrderedDict()
        """The one used longest ago first."""
        self._known_carriers: OrderedDict[TargetKey, Carrier] = OrderedDict()
        self._connecting: dict[asyncio.Task[None], OnOpened] = {}
        """Tasks that connect to a server for a call, and their callbacks."""
        self._connecting_by_caller: Counter[tuple[str, str]] = Counter()
        """How many of them wait for a server that is not connected yet, by caller."""
        self._salt = secrets.token_bytes(16)
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()

    # -- finding and checking ----------------------------------------------------------------------------------------

    def find(self, caller: Caller, named: TargetSpec) -> ServerName | NamedServer | Fault:
        """The configured server at an address, or a server for the caller alone; nothing is resolved or dialled."""
        try:
            address = read_address(named.url, named.path)
        except ValueError as error:
            return TargetRefused(f"mcp_target_url and mcp_request_path make no usable address: {error}")
        # Servers that are configured at this address, or where one would be looked for, with their queries.
        places = {address.place, *(read_address(url).place for _, url in ways_to(address))}
        known = [
            (server.name, _configured_address(getattr(server.reach, "url", None))) for server in self._configured()
        ]
        configured = [(name, own.query) for name, own in known if own is not None and own.place in places]
        if configured:
            seen = self._hub.snapshot.view(caller.grants, EVERYTHING).servers
            for name, query in configured:
                if name in seen and address.query in ("", query):
                    refusal = TargetRefused(
                        f"Server {name} is configured here and does not accept mcp_headers of callers"
                    )
                    return refusal if named.headers else name
        if not (caller.can_name_targets or (caller.is_anyone and self.settings.open)):
            return TargetRefused(_why_not_allowed(caller))
        ways: Ways = ()
        if not configured:  # the address of a configured server is no way around permissions
            ways = tuple(way for way in ways_to(address) if self.settings.allows(read_address(way[1])))
        if not ways:
            return TargetRefused(f"{address.origin} may not be named; [targets] allow would have to list it")
        return self._with_headers(caller, address, ways, named.headers)

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
            return TargetRefused(f"mcp_{error}")  # it begins with the word `headers` and quotes no value

    # -- opening -----------------------------------------------------------------------------------------------------

    def open(self, target: NamedServer, then: OnOpened) -> Callable[[], None]:
        """Connect, or reuse the link; `then` is called once, unless the returned function cancels that."""
        server = self._servers.get(self._key(target))
        is_ready = server is not None and server.reconnector.server_status.state == "ready"
        owner = None if is_ready else (target.caller.tenant, target.caller.name)
        if owner is not None:
            own, total = self._connecting_by_caller[owner], self._connecting_by_caller.total()
            if total >= OPENING_MAX or own >= max(1, OPENING_MAX // 2):
                others = total if total >= OPENING_MAX else own
                return self._loop.call_soon(then, TooManyTargets(others)).cancel

        def crashed(error: BaseException) -> None:
            incident = secrets.token_hex(6)
            log.error("defect while connecting to a server named by a caller", incident=incident, exc_info=error)
            then(Bug(incident))

        def ended(way: asyncio.Task[None]) -> None:
            self._connecting.pop(way, None)
            if owner is not None:
                self._connecting_by_caller[owner] -= 1
                if not self._connecting_by_caller[owner]:
                    del self._connecting_by_caller[owner]

        way = self._background.spawn(f"way to {target.address.origin}", self._open(target, then), on_crash=crashed)
        self._connecting[way] = then
        if owner is not None:
            self._connecting_by_caller[owner] += 1
        way.add_done_callback(ended)
        return lambda: self._stop_connecting(way)

    def _stop_connecting(self, way: asyncio.Task[None]) -> None:
        self._connecting.pop(way, None)
        way.cancel()

    async def _open(self, target: NamedServer, then: OnOpened) -> None:
        try:
            opened: OpenTarget | Fault = await self._reach(target)
        except Fault as fault:
            opened = fault
        then(opened)

    def running(self) -> int:
        """How many calls such servers have, including those that wait for a connection."""
        return self.target_hub.running() + len(self._connecting)

    def cancel_all(self, why: str) -> None:
        """Cancel every call, including those that wait for a connection."""
        for way, then in list(self._connecting.items()):
            self._stop_connecting(way)
            then(Cancelled(why, executed="no"))
        self.target_hub.cancel_all(why)

    async def _reach(self, target: NamedServer) -> OpenTarget:
        """Connect to a server, or use its open link.

        Raises:
            Fault: its address may not be dialled, too many are in use, or it cannot be reached.
        """
        if self._hub.is_draining:
            raise Draining
        key = self._key(target)
        server = self._servers.get(key)
        if server is not None and server.is_lost and not server.is_busy:
            self._forget(key)
            server = None
        if server is None:
            if not target.reach.is_trusted:
                why = await self._egress.refusal(target.address.origin, within=self._hub.limits.connect_seconds)
                if why is not None:
                    said = f"{target.address.origin.host} may not be dialled: {why}"
                    raise TargetRefused(f"{said}; [targets] allow would have to list this host literally")
            server = self._servers.get(key) or self._admit(key, target)
        self._servers.move_to_end(key)
        server.waiting += 1
        try:
            await asyncio.wait({server.reconnector.tried}, timeout=self._hub.limits.call_seconds)
        finally:
            server.waiting -= 1
            server.used_at = self._loop.time()
            if server.timer is None and self._servers.get(key) is server:
                server.timer = self._loop.call_later(self.settings.idle, self._close_if_idle, key, server)
        return self._opened(key, server)

    def _admit(self, key: TargetKey, target: NamedServer) -> _KeptServer:
        """Start a server, in place of the one used longest ago if there is no room.

        A caller has at most half of all servers, so that there is room for others. Raises `TooManyTargets` if all are
        in use.
        """
        own = [other for other in self._servers if other[:2] == key[:2]]
        self._make_room(own, max(1, self.settings.max // 2))
        self._make_room(list(self._servers), self.settings.max)
        limits, known, sent = self._hub.limits, self._known_carriers.get(key), frozenset(target.reach.headers.values())
        settings = ServerSettings(
            # No configured server can have such a name; callers see the host in it.
            ServerName(f"{target.address.origin.authority}#{next(self._numbers)}"),
            replace(target.reach, ways=tuple(sorted(target.reach.ways, key=lambda way: way[0] != known))),
            timeout=limits.call_seconds,
            max_calls=limits.max_calls,
            max_queued=limits.max_queued,
            # Header values, and their parts behind a word such as `Bearer`.
            secrets=sent | {word for value in sent for word in value.split()[1:]},
        )
        self._supervisor.add(settings, is_awaited=False)
        server = self._servers[key] = _KeptServer(
            target, self._supervisor.reconnectors[settings.name], self._loop.time()
        )
        log.info("a caller named a server", server=settings.name, caller=target.caller.name)
        return server

    def _opened(self, key: TargetKey, server: _KeptServer) -> OpenTarget:
        reconnector, server_status = server.reconnector, server.reconnector.server_status
        is_kept = self._servers.get(key) is server
        if server_status.state != "ready" or not is_kept:
            if is_kept and not server.is_busy:
                self._forget(key)  # an address that a caller named once is not dialled again and again
            is_late = is_kept and not reconnector.tried.done()
            raise (
                NotConnected(server.name, "it did not answer in time")
                if is_late
                else reconnector.server_queue.not_connected()
            )
        carrier = server_status.carrier
        self._known_carriers[key] = "sse" if carrier == "sse" else "rpc" if carrier == "rpc" else "http"
        self._known_carriers.move_to_end(key)
        if len(self._known_carriers) > KNOWN_MAX:
            self._known_carriers.popitem(last=False)
        is_plain = carrier == "rpc"
        return OpenTarget(
            self.target_hub, server.name, is_plain=is_plain, initialize_result=reconnector.initialize_result
        )

    def _key(self, target: NamedServer) -> TargetKey:
        whole = msgspec.json.encode([target.reach.ways, sorted(target.reach.headers.items())])
        digest = hashlib.blake2b(whole, key=self._salt, digest_size=16).digest()
        return target.caller.tenant, target.caller.name, digest

    # -- closing -----------------------------------------------------------------------------------------------------

    def _make_room(self, keys: Sequence[TargetKey], most: int) -> None:
        if len(keys) < most:
            return
        idle = next((key for key in keys if not self._servers[key].is_busy), None)
        if idle is None:
            raise TooManyTargets(len(keys))
        self._forget(idle)

    def _close_if_idle(self, key: TargetKey, server: _KeptServer) -> None:
        """Close a server that was unused for `idle` seconds, or check again later."""
        server.timer = None
        if server.is_busy:
            server.used_at = self._loop.time()
        left = server.used_at + self.settings.idle - self._loop.time()
        if left > 0:
            server.timer = self._loop.call_later(left, self._close_if_idle, key, server)
        else:
            self._forget(key)

    def _forget(self, key: TargetKey) -> None:
        server = self._servers.pop(key)
        if server.timer is not None:
            server.timer.cancel()
        log.info("closed an unused server named by a caller", server=server.name, caller=server.target.caller.name)
        self._supervisor.remove(server.name)

    def change(self, settings: TargetSettings, callers: Container[Caller]) -> None:
        """Apply new settings, and close servers that they no longer allow; running calls may finish."""
        self.settings = settings
        for key, server in list(self._servers.items()):
            target = server.target
            found = self.find(target.caller, TargetSpec(target.address.url, None, target.reach.headers))
            if target.caller not in callers or not isinstance(found, NamedServer) or found.reach != target.reach:
                self._forget(key)

    async def aclose(self) -> None:
        """Close all servers in good order."""
        for server in self._servers.values():
            if server.timer is not None:
                server.timer.cancel()
        await self._supervisor.aclose()


def ways_to(address: TargetAddress) -> Ways:
    """The transports and URLs to try for an address, in order."""
    if not address.path:
        return tuple((carrier, f"{address.origin}{path}{address.query}") for carrier, path in USUAL_PATHS)
    url, path = address.url, address.path.rstrip("/")
    if path.endswith("/sse"):
        return ("sse", url), ("http", url), ("rpc", url)
    if path.endswith("/messages"):
        # HTTP+SSE servers often name a session's endpoint so; its stream is beside it.
        return ("http", url), ("sse", f"{address.origin}{path.removesuffix('/messages')}/sse"), ("rpc", url)
    return ("http", url), ("sse", url), ("rpc", url)


@lru_cache(maxsize=4096)
def _configured_address(url: str | None) -> TargetAddress | None:
    """The address of a configured server; None if callers cannot name it. Cached: each `find` reads all of them."""
    try:
        return None if url is None else read_address(url)
    except ValueError:
        return None


def _why_not_allowed(caller: Caller) -> str:
    """Why a caller may not name addresses, and which setting would allow it."""
    if caller.is_anyone:
        return (
            "Only configured servers may be named here, as no key is required; [targets] open = true would let every"
            " caller of this hub name addresses, or targets = true a caller that is configured, with a key"
        )
    if caller.may_name_targets:
        return (
            f"Caller {caller.name} may name configured servers only here: its tenant or this frontend allows it"
            ' less than "*"'
        )
    return (
        f"Caller {caller.name} may name configured servers only; with targets = true it could name"
        " addresses that [targets] allow lists"
    )
