"""The relay over HTTP: decides who may open its WebSockets, and hands them to who uses them.

Servers' sockets are given to `upstream.dialin`, devices' are kept here. The little that is plain HTTP are the
original's documents.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.frontends.http.auth import TOO_MANY, Authenticator, Client, Denied, Fields, slowed
from isthmus.frontends.http.request_cycle import PEER, Message, Peer, Receive, Send, header_lines, join_headers
from isthmus.frontends.http.websocket_upgrade import WebSocketOffer
from isthmus.frontends.relay import documents
from isthmus.frontends.relay.agents import Agent
from isthmus.frontends.relay.device import DeviceLine
from isthmus.frontends.relay.handshake import (
    REFUSED_CODE,
    Query,
    Refused,
    choose,
    read_query,
    read_server_id,
    read_token,
)
from isthmus.frontends.relay.ports import DialIns, Tokens
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.frontends.relay.waiting import Patience
from isthmus.model.calls import EVERYTHING
from isthmus.model.relay import MUX_SUBPROTOCOL, Claim, RelayDevice, Role
from isthmus.transport.websocket import AcceptedSocket, Hearer
from isthmus.wire.mcp.messages import Implementation

log = structlog.get_logger(__name__)

ROOT = "/mcp_endpoint"
ROLES: dict[str, Role] = {f"{ROOT}/mcp": "server", f"{ROOT}/call": "device"}
"""Where each end comes in; with or without a slash at the end."""

FULL_CODE = 1013
"""Closes the socket of somebody for whom there may be room later."""

REFUSED_BYTES = 1024
"""What may come on a socket that is closed as soon as it is open."""

WRONG_ROLE = "token角色不符"
NO_LONGER_GOOD = "token已失效"

REFUSALS_MAX = 20
REFUSALS_SECONDS = 10.0
"""How many lines of the log are about who was turned away, in so much time."""

HEADERS = header_lines([(b"content-type", b"application/json"), (b"cache-control", b"no-store")])


class _Asked(msgspec.Struct, frozen=True):
    """What a socket is opened for."""

    claim: Claim
    server_id: str | None


class _Deaf:
    """Hears what comes on a socket that is being closed."""

    def read(self, text: bytes) -> None:
        pass

    def flush(self) -> None:
        pass

    def ended(self, reason: str) -> None:
        pass


class _Refusals:
    """Tells the log who was turned away, though not without end of somebody who knocks all the time."""

    __slots__ = ("_now", "_since", "_told", "_untold")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = 0.0
        self._told = self._untold = 0

    def tell(self, end: Role, client: str | None, reason: str) -> None:
        now = self._now()
        if now - self._since >= REFUSALS_SECONDS:
            self._since, self._told = now, 0
        if self._told >= REFUSALS_MAX:
            self._untold += 1
            return
        log.info("the relay turned somebody away", end=end, client=client, reason=reason, untold=self._untold)
        self._told += 1
        self._untold = 0


class RelayHttp:
    """The face."""

    def __init__(
        self,
        hub: Hub,
        background: BackgroundTasks,
        auth: Authenticator,
        tokens: Tokens,
        dialins: DialIns,
        settings: RelaySettings,
        me: Implementation,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._hub = hub
        self._background = background
        self._auth = auth
        self._tokens = tokens
        self._dialins = dialins
        self._settings = settings
        self._me = me
        self._now = now
        self._began = hub.now()
        self._agents: dict[str, Agent] = {}
        """Those that have a device here."""
        self._lines: dict[DeviceLine, Agent] = {}
        self._patience = Patience()
        self._settled: asyncio.Future[None] | None = None
        self._refusals = _Refusals(hub.now)
        self._is_draining = False
        self._emptied: asyncio.Future[None] | None = None

    def change(self, settings: RelaySettings, tokens: Tokens) -> None:
        """Take what is configured now; whoever is connected stays, and `recheck` follows."""
        self._settings = settings
        self._tokens = tokens
        for agent in self._agents.values():
            agent.change(settings)

    def recheck(self) -> None:
        """Cut devices whose token is good no more."""
        for line in [line for line in self._lines if not self._tokens.is_valid(line.claim)]:
            line.close(REFUSED_CODE, NO_LONGER_GOOD)

    def devices(self) -> tuple[RelayDevice, ...]:
        """Every device that is connected."""
        return tuple(line.shown() for line in self._lines)

    def end_streams(self) -> None:
        """Let every device go: at once if nothing of it is under way, else when that has ended."""
        self._is_draining = True
        for line in list(self._lines):
            line.drain()

    def is_idle(self) -> bool:
        """Whether every device has been let go."""
        return not self._lines

    async def wait_idle(self) -> None:
        """Return once every device has been let go."""
        if self._lines:
            self._emptied = self._emptied or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._emptied)

    # -- plain HTTP ------------------------------------------------------------------------------------------------

    def is_at(self, path: str) -> bool:
        """Whether a path belongs to this face, whatever it finds there."""
        return path == ROOT or path.startswith(f"{ROOT}/")

    async def serve(self, scope: Message, _: Receive, __: Send) -> None:
        """Answer one request."""
        peer: Peer = scope["extensions"][PEER]
        fields = join_headers(scope["headers"])
        if (denied := self._auth.place(fields)) is not None:
            _answer(peer, denied.status, {"error": denied.message})
        elif scope["method"] not in ("GET", "HEAD"):
            _answer(peer, 405, {"error": "Use GET"}, (b"allow", b"GET, HEAD"))
        else:
            self._tell(peer, scope["path"].removesuffix("/"), scope["query_string"], scope["client"])

    def _tell(self, peer: Peer, path: str, query: bytes, client: Client) -> None:
        if path == ROOT:
            _answer(peer, 200, documents.index(self._me.version))
        elif path == f"{ROOT}/health":
            self._tell_health(peer, read_query(query), client)
        elif path in ROLES:
            _answer(
                peer, 426, {"error": f"{path}/ is a WebSocket: connect to it with ws://"}, (b"upgrade", b"websocket")
            )
        else:
            _answer(peer, 404, {"error": f"Nothing is here; the relay is at {ROOT}/"})

    def _tell_health(self, peer: Peer, query: Query | Refused, client: Client) -> None:
        keys = () if isinstance(query, Refused) else query.get("key", ())
        if len(keys) == 1 and self._tokens.is_key(keys[0]):
            _answer(peer, 200, self._health())
        elif keys and (denied := self._slowed(client)) is not None:
            _answer(peer, denied.status, {"error": denied.message}, *denied.headers)
        else:
            _answer(peer, 200, documents.bad_key())

    def _health(self) -> dict[str, Any]:
        uptime = self._hub.now() - self._began
        sockets, calls, tasks = self._dialins.connections(), self._hub.running(), len(self._background)
        counts = documents.Counts(sockets, calls, tasks, uptime, self._me.version)
        return documents.health(self._dialins.servers(), self.devices(), counts)

    # -- WebSockets ------------------------------------------------------------------------------------------------

    def upgrade(self, scope: Message) -> WebSocketOffer | Denied:
        """Decide on a request for a WebSocket. As devices expect it, a bad token opens it and has it closed."""
        fields = join_headers(scope["headers"])
        role = ROLES.get(scope["path"].removesuffix("/"))
        if (denied := self._auth.place(fields)) is not None:
            return denied
        if role is None:
            return Denied(404, f"No WebSocket is here; the relay's are {' and '.join(f'{path}/' for path in ROLES)}")
        if self._is_draining:
            return Denied(503, "The hub is shutting down")
        subprotocol = choose(fields, can_mux=role == "server")
        asked = self._understand(role, fields, scope["query_string"])
        if isinstance(asked, Refused):
            if asked.is_guess and (denied := self._slowed(scope["client"])) is not None:
                return denied
            return WebSocketOffer(lambda socket: self._turn_away(socket, role, asked), REFUSED_BYTES, subprotocol)
        limits = self._hub.limits
        limit_bytes = limits.reply_bytes if role == "server" else limits.request_bytes
        return WebSocketOffer(self._taker(role, asked, subprotocol), limit_bytes, subprotocol, group=asked.claim.key)

    def _taker(self, role: Role, asked: _Asked, subprotocol: str | None) -> Callable[[AcceptedSocket], Hearer]:
        """Who takes the socket once it is open."""
        if role == "device":
            return lambda socket: self._take_device(socket, asked.claim)
        if subprotocol == MUX_SUBPROTOCOL:
            return lambda socket: self._dialins.accept_mux(socket, asked.claim)
        return lambda socket: self._dialins.accept(socket, asked.claim, asked.server_id)

    def _understand(self, role: Role, fields: Fields, query: bytes) -> _Asked | Refused:
        """What a socket is opened for, and by whom; or why it is not kept."""
        parameters = read_query(query)
        if isinstance(parameters, Refused):
            return parameters
        claim = self._claim(role, fields, parameters)
        if isinstance(claim, Refused):
            return claim
        server_id = read_server_id(parameters) if role == "server" else None
        if isinstance(server_id, Refused):
            return server_id
        full = self._dialins.room_for(claim.key, len(self._lines), self._devices_of(claim.key))
        return _Asked(claim, server_id) if full is None else Refused(full, FULL_CODE)

    def _claim(self, role: Role, fields: Fields, parameters: Query) -> Claim | Refused:
        token = read_token(fields, parameters)
        if isinstance(token, Refused):
            return token
        claim = self._tokens.read(token)
        if isinstance(claim, str):
            return Refused(claim, is_guess=bool(token))
        return claim if claim.role in (None, role) else Refused(WRONG_ROLE)

    def _slowed(self, client: Client) -> Denied | None:
        """What somebody is told instead who shows what proves nothing again and again."""
        seconds = self._auth.failed_auth_limit.failed(client)
        if not seconds:
            return None
        self._auth.on_turned_away("relay", TOO_MANY)
        return slowed(seconds)

    def _turn_away(self, socket: AcceptedSocket, role: Role, refused: Refused) -> Hearer:
        self._refusals.tell(role, socket.client, refused.reason)
        self._auth.on_turned_away("relay", refused.code)
        socket.close(refused.code, refused.reason)
        return _Deaf()

    # -- devices ---------------------------------------------------------------------------------------------------

    def _devices_of(self, key: str) -> int:
        agent = self._agents.get(key)
        return 0 if agent is None else len(agent.devices)

    def _take_device(self, socket: AcceptedSocket, claim: Claim) -> Hearer:
        agent = self._agents.get(claim.key)
        if agent is None:
            roster = self._dialins.roster(claim.key)
            agent = self._agents[claim.key] = Agent(
                self._hub, roster, claim, self._settings, self._settling, self._patience
            )
        line = DeviceLine(socket, agent, claim, self._me, self._now(), self._device_left)
        self._lines[line] = agent
        agent.join(line)
        log.debug("a device came", agent=claim.key, client=socket.client)
        return line

    def _device_left(self, line: DeviceLine) -> None:
        agent = self._lines.pop(line)
        agent.leave(line)
        if not agent.devices:
            agent.close()
            del self._agents[agent.key]
        if self._emptied is not None and not self._lines:
            self._emptied.set_result(None)
            self._emptied = None

    def _settling(self) -> asyncio.Future[None] | None:
        """When configured servers that are only starting will have been tried; None if all have been."""
        if not self._hub.is_settling():
            return None
        if self._settled is None or self._settled.done():
            self._settled = self._background.spawn("relay waits for servers", self._hub.settle(EVERYTHING))
        return self._settled


def _answer(peer: Peer, status: int, document: dict[str, Any], *headers: tuple[bytes, bytes]) -> None:
    peer.answer(status, HEADERS + header_lines(headers), msgspec.json.encode(document))
