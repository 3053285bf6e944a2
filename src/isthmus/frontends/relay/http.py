"""The relay over HTTP: admits devices and servers (token, role, limits), and serves the original relay's documents.

Sockets of servers go to `upstream.dialin`, sockets of devices to `device_connection`. Queries are never logged or
shown, because they may hold a token.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qs

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.ports import AgentServers
from isthmus.frontends.http.auth import TOO_MANY, Authenticator, Client, Denied, Fields, slowed
from isthmus.frontends.http.request_cycle import PEER, Message, Peer, Receive, Send, header_lines, join_headers
from isthmus.frontends.http.websocket_upgrade import WebSocketOffer
from isthmus.frontends.relay.agents import RelayAgent
from isthmus.frontends.relay.device_connection import DeviceConnection
from isthmus.frontends.relay.server_arrivals import ArrivalPatience
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING
from isthmus.model.relay import (
    BEARER_SUBPROTOCOL,
    MUX_SUBPROTOCOL,
    RELAY_SUBPROTOCOL,
    Claim,
    DialledServer,
    RelayDevice,
    Role,
)
from isthmus.transport.accepted_socket import AcceptedSocket
from isthmus.transport.websocket import MessageReceiver
from isthmus.wire.mcp.messages import Implementation

log = structlog.get_logger(__name__)

ROOT = "/mcp_endpoint"

ROLES: dict[str, Role] = {f"{ROOT}/mcp": "server", f"{ROOT}/call": "device"}
"""The path of each role, with or without a slash at the end."""

REFUSED_CODE = 1008

FULL_CODE = 1013
"""Closes a socket because the relay is full; the client may retry later."""

REFUSED_BYTES = 1024
"""The longest message on a socket that is closed as soon as it is open."""

WRONG_ROLE = "token角色不符"

NO_LONGER_GOOD = "token已失效"

REFUSALS_MAX = 20

REFUSALS_SECONDS = 10.0
"""How many refused connections are logged in this time."""

HEADERS = header_lines([(b"content-type", b"application/json"), (b"cache-control", b"no-store")])


class RelayTokenReader(Protocol):
    """Reads tokens; `identity.relay_tokens` implements it."""

    def read(self, token: str) -> Claim | str:
        """The claim of a token; a string is the reason for closing the socket."""

    def is_key(self, text: str) -> bool:
        """Whether this is the key that opens the statistics; compared in constant time."""

    def is_valid(self, claim: Claim) -> bool:
        """Whether the token of a claim is still valid: neither expired nor revoked."""


class DialInPort(Protocol):
    """Accepts sockets of servers; `upstream.dialin` implements it."""

    def accept(self, socket: AcceptedSocket, claim: Claim, server_id: str | None) -> MessageReceiver:
        """Use an open socket for one server, and own it."""

    def accept_mux(self, socket: AcceptedSocket, claim: Claim) -> MessageReceiver:
        """Use an open socket for several servers, and own it."""

    def roster(self, agent: str) -> AgentServers:
        """The servers of an agent, which may have none yet."""

    def servers(self) -> tuple[DialledServer, ...]:
        """All servers that dialled in."""

    def connections(self) -> int:
        """The number of sockets of servers."""

    def connections_of(self, agent: str) -> int:
        """The number of sockets of one agent's servers."""

    def room_for(self, agent: str, others: int, others_of_agent: int) -> str | None:
        """Why the limit of sockets is reached, given the number of devices; None if it is not."""


class _SocketRequest(msgspec.Struct, frozen=True):
    """An authorized request for a socket."""

    claim: Claim
    server_id: str | None


class _IgnoreMessages:
    """Receives the messages of a socket that is being closed."""

    def read(self, text: bytes | memoryview) -> None:
        pass

    def flush(self) -> None:
        pass

    def connection_ended(self, reason: str) -> None:
        pass


class _Refusals:
    """Logs refused connections, at a limited rate."""

    __slots__ = ("_logged", "_now", "_since", "_suppressed")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = 0.0
        self._logged = self._suppressed = 0

    def log(self, role: Role, client: str | None, reason: str) -> None:
        now = self._now()
        if now - self._since >= REFUSALS_SECONDS:
            self._since, self._logged = now, 0
        if self._logged >= REFUSALS_MAX:
            self._suppressed += 1
            return
        log.info("relay refused a connection", role=role, client=client, reason=reason, suppressed=self._suppressed)
        self._logged += 1
        self._suppressed = 0


class RelayHttp:
    """The relay frontend."""

    def __init__(
        self,
        hub: Hub,
        background: BackgroundTasks,
        auth: Authenticator,
        tokens: RelayTokenReader,
        dialins: DialInPort,
        settings: RelaySettings,
        implementation: Implementation,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._hub = hub
        self._background = background
        self._auth = auth
        self._tokens = tokens
        self._dialins = dialins
        self._settings = settings
        self._implementation = implementation
        self._now = now
        self._began = hub.now()
        self._agents: dict[str, RelayAgent] = {}
        """The agents that have a connected device."""
        self._devices: dict[DeviceConnection, RelayAgent] = {}
        self.devices_elsewhere: Callable[[], Awaitable[Iterable[RelayDevice]]] | None = None
        """Reads the devices of the other nodes, in a cluster."""
        self.connections_elsewhere: Mapping[str, int] = {}
        """The sockets of agents at the other nodes."""
        self.on_counted: Callable[[str], None] = lambda _agent: None
        """Called with the key of an agent that has one device more or less here."""
        self.patience = ArrivalPatience()
        self._settled: asyncio.Future[None] | None = None
        self._refusals = _Refusals(hub.now)
        self.refusal_words: Mapping[str, str] = {}
        """Why a token is refused, in English, by the words that close its socket."""
        self._is_draining = False
        self._idle: asyncio.Future[None] | None = None

    def change(self, settings: RelaySettings, tokens: RelayTokenReader) -> None:
        """Apply a new configuration. Connections stay open until `recheck`."""
        self._settings = settings
        self._tokens = tokens
        for agent in self._agents.values():
            agent.change(settings)

    def is_current(self, caller: Caller) -> bool:
        """Whether a caller is an agent with a connected device, with the permissions that it has now."""
        return any(agent.caller == caller for agent in self._agents.values())

    def recheck(self) -> None:
        """Disconnect devices whose token is not valid any longer."""
        for device in [device for device in self._devices if not self._tokens.is_valid(device.claim)]:
            device.close(REFUSED_CODE, NO_LONGER_GOOD)

    def devices(self) -> tuple[RelayDevice, ...]:
        """All connected devices."""
        return tuple(device.summary() for device in self._devices)

    def devices_of(self, agent: str) -> int:
        """How many devices of an agent are connected here."""
        found = self._agents.get(agent)
        return 0 if found is None else len(found.devices)

    async def all_devices(self) -> tuple[RelayDevice, ...]:
        """The same, with those of other nodes."""
        return self.devices() if self.devices_elsewhere is None else (*self.devices(), *await self.devices_elsewhere())

    def end_streams(self) -> None:
        """Disconnect every device as soon as its running requests are answered."""
        self._is_draining = True
        for device in list(self._devices):
            device.drain()

    def is_idle(self) -> bool:
        """Whether every device is disconnected."""
        return not self._devices

    async def wait_idle(self) -> None:
        """Return once every device is disconnected."""
        if self._devices:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    # -- plain HTTP ------------------------------------------------------------------------------------------------

    def is_at(self, path: str) -> bool:
        """Whether a path belongs to the relay."""
        return path == ROOT or path.startswith(f"{ROOT}/")

    async def serve(self, scope: Message, _: Receive, __: Send) -> None:
        """Serve one HTTP request."""
        peer: Peer = scope["extensions"][PEER]
        fields = join_headers(scope["headers"])
        if (denied := self._auth.place(fields)) is not None:
            _answer(peer, denied.status, {"error": denied.message})
        elif scope["method"] not in ("GET", "HEAD"):
            _answer(peer, 405, {"error": "Use GET"}, (b"allow", b"GET, HEAD"))
        else:
            match scope["path"].removesuffix("/"):
                case path if path == ROOT:
                    _answer(peer, 200, index(self._implementation.version))
                case path if path == f"{ROOT}/health":
                    await self._serve_health(peer, read_query(scope["query_string"]), scope["client"])
                case path if path in ROLES:
                    error = {"error": f"{path}/ is a WebSocket: connect to it with ws://"}
                    _answer(peer, 426, error, (b"upgrade", b"websocket"))
                case _:
                    _answer(peer, 404, {"error": f"Unknown path; the relay is at {ROOT}/"})

    async def _serve_health(self, peer: Peer, query: Query | RefusedSocket, client: Client) -> None:
        keys = () if isinstance(query, RefusedSocket) else query.get("key", ())
        if len(keys) == 1 and self._tokens.is_key(keys[0]):
            uptime = self._hub.now() - self._began
            sockets, calls, tasks = self._dialins.connections(), self._hub.running(), len(self._background)
            counts = Counts(sockets, calls, tasks, uptime, self._implementation.version)
            _answer(peer, 200, health(self._dialins.servers(), await self.all_devices(), counts))
        elif keys and (denied := self._failed_auth(client)) is not None:
            _answer(peer, denied.status, {"error": denied.message}, *denied.headers)
        else:
            _answer(peer, 200, bad_key())

    # -- WebSockets ------------------------------------------------------------------------------------------------

    def upgrade(self, scope: Message) -> WebSocketOffer | Denied:
        """Decide on a request for a WebSocket. With a bad token it is opened and closed, as devices expect."""
        fields = join_headers(scope["headers"])
        role = ROLES.get(scope["path"].removesuffix("/"))
        if (denied := self._auth.place(fields)) is not None:
            return denied
        if role is None:
            paths = " and ".join(f"{path}/" for path in ROLES)
            return Denied(404, f"There is no WebSocket at this path; the relay's are {paths}")
        if self._is_draining:
            return Denied(503, "The hub is shutting down")
        subprotocol = choose_subprotocol(fields, can_mux=role == "server")
        asked = self._read_request(role, fields, scope["query_string"])
        if isinstance(asked, RefusedSocket):
            if asked.is_guess and (denied := self._failed_auth(scope["client"])) is not None:
                return denied
            return WebSocketOffer(lambda socket: self._refuse(socket, role, asked), REFUSED_BYTES, subprotocol)
        limits = self._hub.limits
        limit_bytes = limits.reply_bytes if role == "server" else limits.request_bytes
        return WebSocketOffer(self._on_open(role, asked, subprotocol), limit_bytes, subprotocol, group=asked.claim.key)

    def _on_open(
        self, role: Role, asked: _SocketRequest, subprotocol: str | None
    ) -> Callable[[AcceptedSocket], MessageReceiver]:
        """The function that takes the socket once it is open."""
        if role == "device":
            return lambda socket: self._accept_device(socket, asked.claim)
        if subprotocol == MUX_SUBPROTOCOL:
            return lambda socket: self._dialins.accept_mux(socket, asked.claim)
        return lambda socket: self._dialins.accept(socket, asked.claim, asked.server_id)

    def _read_request(self, role: Role, fields: Fields, query: bytes) -> _SocketRequest | RefusedSocket:
        """Read and authorize a request for a socket."""
        parameters = read_query(query)
        if isinstance(parameters, RefusedSocket):
            return parameters
        token = read_token(fields, parameters)
        if isinstance(token, RefusedSocket):
            return token
        claim = self._tokens.read(token)
        if isinstance(claim, str):
            return RefusedSocket(claim, is_guess=bool(token))
        if claim.role not in (None, role):
            return RefusedSocket(WRONG_ROLE)
        server_id = read_server_id(parameters) if role == "server" else None
        if isinstance(server_id, RefusedSocket):
            return server_id
        agent = self._agents.get(claim.key)
        others = self.connections_elsewhere.get(claim.key, 0) + (0 if agent is None else len(agent.devices))
        full = self._dialins.room_for(claim.key, len(self._devices), others)
        return _SocketRequest(claim, server_id) if full is None else RefusedSocket(full, FULL_CODE)

    def _failed_auth(self, client: Client) -> Denied | None:
        """The response to a client that sent too many bad tokens; None if it may try again."""
        seconds = self._auth.failed_auth_limit.failed(client)
        if not seconds:
            return None
        self._auth.on_turned_away("relay", TOO_MANY)
        return slowed(seconds)

    def _refuse(self, socket: AcceptedSocket, role: Role, refused: RefusedSocket) -> MessageReceiver:
        words = self.refusal_words.get(refused.reason)
        reason = refused.reason if words is None else f"{refused.reason} (the token: {words})"
        self._refusals.log(role, socket.client, reason)
        self._auth.on_turned_away("relay", refused.code)
        socket.close(refused.code, refused.reason)
        return _IgnoreMessages()

    # -- devices ---------------------------------------------------------------------------------------------------

    def _accept_device(self, socket: AcceptedSocket, claim: Claim) -> MessageReceiver:
        agent = self._agents.get(claim.key)
        if agent is None:
            roster = self._dialins.roster(claim.key)
            agent = self._agents[claim.key] = RelayAgent(
                self._hub, roster, claim, self._settings, self._settling, self.patience
            )
        device = DeviceConnection(socket, agent, claim, self._implementation, self._now(), self._device_left)
        self._devices[device] = agent
        agent.join(device)
        self.on_counted(claim.key)
        log.debug("device connected", agent=claim.key, client=socket.client)
        return device

    def _device_left(self, device: DeviceConnection) -> None:
        agent = self._devices.pop(device)
        agent.leave(device)
        if not agent.devices:
            agent.close()
            del self._agents[agent.key]
        self.on_counted(agent.key)
        if self._idle is not None and not self._devices:
            self._idle.set_result(None)
            self._idle = None

    def _settling(self) -> asyncio.Future[None] | None:
        """Done once all configured servers have been tried; None if they have been."""
        if not self._hub.settling:
            return None
        if self._settled is None or self._settled.done():
            self._settled = self._background.spawn("relay waits for servers", self._hub.wait_connected(EVERYTHING))
        return self._settled


def _answer(peer: Peer, status: int, document: dict[str, Any], *headers: tuple[bytes, bytes]) -> None:
    peer.answer(status, HEADERS + header_lines(headers), msgspec.json.encode(document))


# -- the request for a WebSocket ---------------------------------------------------------------------------------------

PARAMETERS_MAX = 16
"""Far more parameters than any URL of the relay has."""

SERVER_ID_LENGTH_MAX = 64

MCP_SUBPROTOCOL = "mcp"

BAD_QUERY = "查询参数无效"

BAD_SERVER_ID = f"server_id须为1至{SERVER_ID_LENGTH_MAX}个可打印字符"

DIFFERENT_TOKENS = "提供了不同的token"

Query: TypeAlias = Mapping[str, Sequence[str]]


class RefusedSocket(msgspec.Struct, frozen=True):
    """Why a socket is closed as soon as it is open; the device sees `reason`."""

    reason: str
    code: int = REFUSED_CODE
    is_guess: bool = False
    """Whether there was a token, but it is not valid."""


def read_query(query: bytes) -> Query | RefusedSocket:
    """The parameters of a query, each with all its values."""
    try:
        return parse_qs(query.decode(), keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX)
    except ValueError:
        return RefusedSocket(BAD_QUERY)


def read_token(fields: Mapping[bytes, bytes], query: Query) -> str | RefusedSocket:
    """The token from the header, the subprotocols or the query; empty without a token."""
    scheme, _, credential = fields.get(b"authorization", b"").decode("latin-1").partition(" ")
    tokens = [credential.strip()] if scheme.lower() == "bearer" else []
    tokens += [
        offer.removeprefix(BEARER_SUBPROTOCOL) for offer in _offered(fields) if offer.startswith(BEARER_SUBPROTOCOL)
    ]
    tokens += query.get("token", ())
    # A bare plus sign in a query decodes to a space; it must not make the same token look different.
    if len({token.replace(" ", "+") for token in tokens}) > 1:
        return RefusedSocket(DIFFERENT_TOKENS)
    return tokens[0] if tokens else ""


def read_server_id(query: Query) -> str | RefusedSocket | None:
    """The `server_id` that a server requests; None if it requests none."""
    given = query.get("server_id")
    if given is None:
        return None
    server_id = given[0]
    is_good = 0 < len(server_id) <= SERVER_ID_LENGTH_MAX and server_id.isprintable() and len(set(given)) == 1
    return server_id if is_good else RefusedSocket(BAD_SERVER_ID)


def choose_subprotocol(fields: Mapping[bytes, bytes], *, can_mux: bool) -> str | None:
    """The first supported subprotocol of those that the client offers."""
    offered = _offered(fields)
    known = (MUX_SUBPROTOCOL, RELAY_SUBPROTOCOL, MCP_SUBPROTOCOL) if can_mux else (RELAY_SUBPROTOCOL, MCP_SUBPROTOCOL)
    return next((subprotocol for subprotocol in known if subprotocol in offered), None)


def _offered(fields: Mapping[bytes, bytes]) -> list[str]:
    return [offer.strip() for offer in fields.get(b"sec-websocket-protocol", b"").decode("latin-1").split(",")]


# -- documents of the original relay -----------------------------------------------------------------------------------

BAD_KEY = -32004


def index(version: str) -> dict[str, Any]:
    """The document at the root."""
    return _result({"message": "MCP Endpoint Server", "version": version, "status": "running"})


def bad_key() -> dict[str, Any]:
    """The response to a wrong key, as clients of the original relay expect it."""
    error = {"code": BAD_KEY, "message": "密钥验证失败", "data": {"details": "提供的密钥无效或缺失"}}
    return {"result": None, "error": error, "id": None, "jsonrpc": "2.0"}


class Counts(msgspec.Struct, frozen=True):
    """Numbers for the statistics that are not in the lists."""

    connections: int
    """Number of sockets of servers."""
    calls: int
    tasks: int
    """Number of background tasks of the hub."""
    uptime: float
    version: str


def health(servers: Sequence[DialledServer], devices: Sequence[RelayDevice], counts: Counts) -> dict[str, Any]:
    """The statistics. Servers that are away are listed separately."""
    here = [server for server in servers if server.state != "away"]
    connections = {
        "mcp_server_connections": counts.connections,
        "robot_connections": len(devices),
        "total_connections": counts.connections + len(devices),
        "robot_connections_by_agent": dict(Counter(device.agent for device in devices)),
        "mcp_servers": _by_agent(
            (
                server,
                {
                    "tools_count": len(server.tools),
                    "tools": server.tools,
                    "server_info": {
                        "title": server.title,
                        "name": server.name,
                        "state": server.state,
                        "since": round(server.since, 3),
                    },
                },
            )
            for server in here
        ),
        "total_tools": sum(len(server.tools) for server in here),
        "multi_server_support": True,
        "available_agents": sorted({server.agent for server in here}),
    }
    own = {
        "version": counts.version,
        "away": _by_agent(
            (server, {"since": round(server.since, 3), "reason": server.reason, "tools_count": len(server.tools)})
            for server in servers
            if server.state == "away"
        ),
        "calls": counts.calls,
        "tasks": counts.tasks,
        "uptime": round(counts.uptime, 3),
    }
    return _result({"status": "success", "connections": connections, "isthmus": own})


def _by_agent(described: Iterable[tuple[DialledServer, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The descriptions of servers, by agent and server id."""
    grouped: dict[str, dict[str, Any]] = {}
    for server, description in described:
        grouped.setdefault(server.agent, {})[server.server_id] = description
    return grouped


def _result(result: dict[str, Any]) -> dict[str, Any]:
    return {"result": result, "id": None, "jsonrpc": "2.0"}
