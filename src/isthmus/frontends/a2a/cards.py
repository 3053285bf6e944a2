"""The agent's card, made from the live catalog as its reader may see it.

URLs come from the configuration, never from the request. Anonymous readers see the two skills that every caller has;
authenticated callers also see the tools that they may call.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate, parsedate_to_datetime
from functools import partial
from typing import TypeAlias

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.view import Route
from isthmus.core.event_loop import LONG_BYTES, in_passes, offload
from isthmus.frontends.a2a.caller_messages import COMMAND, EXECUTE
from isthmus.frontends.a2a.planning import REQUEST_SET
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.http.auth import Denied, Fields
from isthmus.frontends.http.request_cycle import JSON, Peer, header_lines
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.tasks import ABSENT
from isthmus.wire.a2a.cards import (
    HUBS,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    ApiKey,
    Http,
    OAuth,
    Scheme,
    write_0_1,
    write_0_3,
    write_agentvault,
    write_merged,
    write_strict,
)
from isthmus.wire.a2a.negotiate import VERSION_HEADER, VERSION_PARAMETER, dialect_of, version_of
from isthmus.wire.a2a.operations import A2aProblem, DialectName, ProblemKind
from isthmus.wire.jsonrpc import Passes, Payload
from isthmus.wire.mcp.messages import read_string, write_hubs

SETTLE_SECONDS = 1.0
"""How long a card waits for servers that are starting: clients fetch it first, and some wait five seconds for it."""

SETS_PATH = "/a2a/sets/"
"""Below it, each set is an agent of its own, with the paths that the hub's agent has."""

CARD_PATHS: Mapping[str, DialectName | None] = {
    "/.well-known/agent-card.json": None,
    "/a2a/.well-known/agent-card.json": None,
    "/a2a/1.0/.well-known/agent-card.json": "1.0",
    "/a2a/0.3/.well-known/agent-card.json": "0.3",
    "/.well-known/agent.json": "0.1",
    "/agent-card.json": "agentvault",
}
"""The paths of cards, with the generation of each; None if the version of the request decides.

A client that names no version needs both forms in one document: the SDKs of 1.0 and 0.3 for Python send the same bytes,
and each requires members that the other's schema does not have. An agent's address is the path before `/.well-known`,
so `/a2a/1.0` is the one for clients that take no member they do not know.
"""

AUTH_PARAMETER = "auth"
"""The parameter of a query by which AgentVault's card lists one scheme alone."""

FRESH_SECONDS = 60

INCOMPLETE_SECONDS = 1
"""The same for a card without the tools of a server that starts: clients would miss them for a minute."""

REMEMBERED_MAX = 256
"""How many cards have a remembered `Last-Modified` time; others count as new."""

TOKEN_PATH = "/oauth/token"  # noqa: S105 - an address
"""Where the OAuth frontend issues tokens."""

MODES = ("application/json", "text/plain")

INPUT_OF_EXECUTE = b"""{"type":"object","properties":{
"target_mcp_server_id":{"type":"string","description":"The server, as it is configured here"},
"tool_name":{"type":"string","description":"The tool, by its own name or behind its server's"},
"arguments":{"type":"object"}},"required":["target_mcp_server_id","tool_name","arguments"]}"""
OUTPUT_OF_EXECUTE = b"""{"type":"object","properties":{
"success":{"type":"boolean"},"mcp_result":{"type":["object","null"]},
"error":{"type":["object","null"],"properties":{
"source":{"type":"string","enum":["A2A_PROXY","MCP_PROTOCOL","MCP_TOOL"]},
"code":{"type":"string"},"message":{"type":"string"},"details":{"type":["object","null"]}}}},"required":["success"]}"""
INPUT_OF_COMMAND = b"""{"type":"object","properties":{
"mcp_target_url":{"type":"string","description":"A server's name, or its address where that may be named"},
"mcp_request_path":{"type":"string"},"mcp_method":{"type":"string"},"mcp_params":{"type":"object"},
"mcp_request_id":{"type":["string","integer"]},"mcp_headers":{"type":"object"}},
"required":["mcp_target_url","mcp_method"]}"""
OUTPUT_OF_COMMAND = b"""{"type":"object","properties":{
"mcp_request_id_echo":{"type":["string","integer"]},"mcp_response_id":{"type":["string","integer"]},
"mcp_result":{"type":"object"},"mcp_error":{"type":"object"}}}"""

ALWAYS = (
    AgentSkill(
        COMMAND,
        "Execute MCP Command",
        "Does what a method of MCP does at one of the servers here, with the parameters in the data part.",
        ("mcp",),
        input_schema=Raw(INPUT_OF_COMMAND.replace(b"\n", b"")),
        output_schema=Raw(OUTPUT_OF_COMMAND.replace(b"\n", b"")),
    ),
    AgentSkill(
        EXECUTE,
        "Execute MCP Tool",
        "Runs a tool of one of the servers here, with the arguments in the data part.",
        ("mcp",),
        input_schema=Raw(INPUT_OF_EXECUTE.replace(b"\n", b"")),
        output_schema=Raw(OUTPUT_OF_EXECUTE.replace(b"\n", b"")),
    ),
)


class AgentCards:
    """Writes cards; `settings` may be replaced at any time.

    `address` returns the hub's base URL, `needs_key` whether callers need a key now; callers with a key see more.
    `issues_tokens` returns whether a caller can exchange its key for a token now; `token_urls` are the token endpoints
    of trusted issuers.
    """

    def __init__(
        self,
        hub: Hub,
        settings: A2aSettings,
        version: str,
        address: Callable[[], str],
        needs_key: Callable[[], bool],
        now: Callable[[], float],
        issues_tokens: Callable[[], bool] = lambda: False,
        token_urls: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._hub = hub
        self.settings = settings
        self._version = version
        self._address = address
        self._needs_key = needs_key
        self._gives_tokens = issues_tokens
        self._token_urls = token_urls
        self._now = now
        self._since: OrderedDict[tuple[str, Caller | None], tuple[bytes, int]] = OrderedDict()
        """The ETag of each card that was sent, and the second since when it is valid."""
        self.grpc_address: str | None = None
        """The gRPC address, if there is one."""

    async def send(
        self, peer: Peer, path: str, query: Mapping[str, str], fields: Fields, admitted: Caller | Denied
    ) -> None:
        """Send the card, or 304 if the client has the current one.

        The path decides its generation, else the version that the request names. A request without a version, or with
        an unsupported one, gets the default card.
        """
        await self._hub.wait_connected(EVERYTHING, within=SETTLE_SECONDS)
        is_incomplete = bool(self._hub.awaited())
        caller = None if isinstance(admitted, Denied) else admitted
        version = version_of(fields.get(VERSION_HEADER.encode(), b"").decode("latin-1"), query.get(VERSION_PARAMETER))
        form = CARD_PATHS.get(path) or (None if version is None else dialect_of(version))
        auth = query.get(AUTH_PARAMETER)
        card = await in_passes(self._card_passes(caller))
        body, tag = await self._written(card, self._writer(form, auth), caller)
        since = self._unchanged_since((f"{form} {auth} {REQUEST_SET.get()}", caller), tag)
        # Without a key, or on a hub without keys, all callers get the same card.
        scope = b"private" if caller is not None and self._needs_key() else b"public"
        seconds = INCOMPLETE_SECONDS if is_incomplete else FRESH_SECONDS
        known = header_lines(
            [
                (b"etag", tag),
                (b"cache-control", b"%b, max-age=%d" % (scope, seconds)),
                (b"last-modified", formatdate(since, usegmt=True).encode()),
                (b"vary", b"authorization, x-api-key, a2a-version, origin"),
            ]
        )
        if is_known(fields, tag, since):
            peer.answer(304, known, b"")
        else:
            peer.answer(200, JSON + known, body)

    def _unchanged_since(self, key: tuple[str, Caller | None], tag: bytes) -> int:
        """The `Last-Modified` time of a card, in seconds: when this version of it was first requested."""
        before, since = self._since.pop(key, (b"", 0))
        if before != tag:
            # Clients that compare times would take two versions of one second for the same.
            since = max(int(self._now()), since + 1)
        self._since[key] = (tag, since)
        if len(self._since) > REMEMBERED_MAX:
            self._since.popitem(last=False)
        return since

    async def _written(
        self, card: AgentCard, write: Callable[[AgentCard], bytes], caller: Caller | None
    ) -> tuple[bytes, bytes]:
        """A card, and its ETag."""
        if (size := _card_bytes(card)) <= LONG_BYTES:
            return _tagged(write, card)
        packed = await in_passes(_packed_passes(card))
        return await offload(size, partial(_tagged_packed, write, replace(card, skills=()), packed), owner=caller)

    def _writer(self, form: DialectName | None, auth: str | None) -> Callable[[AgentCard], bytes]:
        """Writes the card in a generation's form; without one, in the form that the settings name."""
        match form:
            case "0.3":
                return write_0_3
            case "0.1":
                return write_0_1
            case "agentvault":
                return partial(_write_agentvault, self._agentvault_schemes(), auth)
            case None if self.settings.card != "strict":
                return write_merged
            case _:
                return _write_1_0

    async def extended(self, caller: Caller, dialect: DialectName) -> Payload | A2aProblem:
        """The card for authenticated callers; a problem if the hub has no keys."""
        if not self._needs_key():
            kind: ProblemKind = "card_not_configured" if dialect == "0.3" else "unsupported_operation"
            return A2aProblem(kind, "There is no extended card: this agent does not authenticate callers")
        await self._hub.wait_connected(EVERYTHING, within=SETTLE_SECONDS)
        card = await in_passes(self._card_passes(caller))
        own = _write_1_0 if self.settings.card == "strict" else write_strict
        return (await self._written(card, write_0_3 if dialect == "0.3" else own, caller))[0]

    def _card_passes(self, caller: Caller | None) -> Passes[AgentCard]:
        skills: list[AgentSkill] = []
        name = REQUEST_SET.get()
        view = None if caller is None else self._hub.snapshot.view(caller.grants, Surface(set=name))
        for route in () if view is None else view.listed.values():
            skills.append(_skill(route))
            if len(skills) % SKILLS_AT_ONCE == 0:
                yield
        base = self._address().rstrip("/")
        schemes = self._schemes(base)
        return AgentCard(
            name=self.settings.name if name is None else f"{self.settings.name} ({name})",
            description=(view is not None and view.description) or self.settings.description,
            version=self._version,
            interfaces=self._interfaces(base) if name is None else _set_interfaces(f"{base}{SETS_PATH}{name}"),
            skills=(*ALWAYS, *skills),
            modes=MODES,
            schemes=schemes,
            has_extended=bool(schemes),
            can_push=True,
            extensions=(self._hubs(caller),),
        )

    def _schemes(self, base: str) -> dict[str, Scheme]:
        """How callers authenticate: with a key, or with a token."""
        if not self._needs_key():
            return {}
        keys: dict[str, Scheme] = {"bearer": Http("Bearer"), "key": ApiKey("X-Api-Key")}
        return {**keys, "oauth": OAuth(base + TOKEN_PATH)} if self._gives_tokens() else keys

    def _agentvault_schemes(self) -> dict[str, Scheme]:
        """The same for AgentVault, whose clients insist on a key if one is listed."""
        if not self._needs_key():
            return {}
        schemes: dict[str, Scheme] = {}
        if self._gives_tokens():
            schemes = {"key": ApiKey("X-Api-Key"), "oauth": OAuth(self._address().rstrip("/") + TOKEN_PATH)}
        for number, url in enumerate(self._token_urls()):
            schemes[f"issuer-{number}"] = OAuth(url)
        return {**schemes, "bearer": Http("Bearer")}

    def _interfaces(self, base: str) -> tuple[AgentInterface, ...]:
        """The URLs of the agent; bindings that keep numbers exact come first."""
        grpc = None if self.grpc_address is None else self.settings.grpc_url or self.grpc_address
        return (
            AgentInterface(f"{base}/a2a", "JSONRPC", "1.0"),
            AgentInterface(f"{base}/a2a/rest", "HTTP+JSON", "1.0"),
            *(() if grpc is None else (AgentInterface(grpc, "GRPC", "1.0"),)),
            AgentInterface(f"{base}/a2a", "JSONRPC", "0.3"),
            AgentInterface(f"{base}/a2a/rest", "HTTP+JSON", "0.3"),
        )

    def _hubs(self, caller: Caller | None) -> AgentExtension:
        """Lets another hub detect that it is behind this one, or is this one."""
        surface = Surface(set=REQUEST_SET.get())
        behind = {} if caller is None else self._hub.snapshot.view(caller.grants, surface).hubs
        hubs = write_hubs({**behind, self._hub.id: 0})
        return AgentExtension(HUBS, "The hubs behind this agent, by random ids", params=Raw(msgspec.json.encode(hubs)))


def _set_interfaces(base: str) -> tuple[AgentInterface, ...]:
    """The URLs of a set."""
    return (
        AgentInterface(base, "JSONRPC", "1.0"),
        AgentInterface(f"{base}/rest", "HTTP+JSON", "1.0"),
        AgentInterface(base, "JSONRPC", "0.3"),
        AgentInterface(f"{base}/rest", "HTTP+JSON", "0.3"),
    )


SKILLS_AT_ONCE = 100
"""Skills of a card that are read in one turn of the event loop: 0.3 ms."""


def _card_bytes(card: AgentCard) -> int:
    """The approximate size of a card."""
    return sum(
        len(skill.description) + len(memoryview(skill.input_schema)) + len(memoryview(skill.output_schema))
        for skill in card.skills
    )


def _write_1_0(card: AgentCard) -> bytes:
    """Without interfaces of earlier generations."""
    return write_strict(replace(card, interfaces=tuple(each for each in card.interfaces if each.version == "1.0")))


def _write_agentvault(schemes: dict[str, Scheme], auth: str | None, card: AgentCard) -> bytes:
    return write_agentvault(replace(card, schemes=schemes), "isthmus/mcp-tool-proxy", auth)


_PackedSkills: TypeAlias = list[tuple[str, str, str, tuple[str, ...], tuple[str, ...], bytes, bytes]]


def _packed_passes(card: AgentCard) -> Passes[list[bytes]]:
    """Skills in few texts, which take less time to send to the reader than a thousand objects."""
    packed: list[bytes] = []
    for at in range(0, len(card.skills), SKILLS_AT_ONCE):
        rows: _PackedSkills = [
            (it.id, it.name, it.description, it.tags, it.examples, bytes(it.input_schema), bytes(it.output_schema))
            for it in card.skills[at : at + SKILLS_AT_ONCE]
        ]
        packed.append(msgspec.msgpack.encode(rows))
        yield
    return packed


def _tagged_packed(write: Callable[[AgentCard], bytes], card: AgentCard, packed: list[bytes]) -> tuple[bytes, bytes]:
    skills = [
        AgentSkill(*row[:5], input_schema=Raw(row[5]), output_schema=Raw(row[6]))
        for each in packed
        for row in msgspec.msgpack.decode(each, type=_PackedSkills)
    ]
    return _tagged(write, replace(card, skills=tuple(skills)))


def _tagged(write: Callable[[AgentCard], bytes], card: AgentCard) -> tuple[bytes, bytes]:
    """A card, and its ETag."""
    body = write(card)
    return body, b'"%b"' % hashlib.blake2b(body, digest_size=12).hexdigest().encode()


def is_known(fields: Fields, tag: bytes, since: int) -> bool:
    """Whether the client has this card already, by its ETag or its time."""
    if (tags := fields.get(b"if-none-match")) is not None:
        given = {each.strip().removeprefix(b"W/") for each in tags.split(b",")}
        return tag in given or b"*" in given
    seen = fields.get(b"if-modified-since")
    try:
        return seen is not None and parsedate_to_datetime(seen.decode("latin-1")).timestamp() >= since
    except (ValueError, OverflowError):
        return False


def _skill(route: Route) -> AgentSkill:
    members = route.feature.definition
    title = read_string(members.get("title")) or route.exposed
    description = read_string(members.get("description")) or title
    return AgentSkill(
        route.exposed,
        title,
        description,
        (str(route.feature.server),),
        input_schema=members.get("inputSchema", ABSENT),
        output_schema=members.get("outputSchema", ABSENT),
    )
