"""An agent's card: one tool per skill, and the endpoint to send requests to.

Pure. A skill with schemas, as another hub gives them, takes its own arguments; any other takes a text, data, and the
task or context to continue. A card must not lead the operator's credentials to another host. Called by the link.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import Raw

from isthmus.core.settings import Limits
from isthmus.model.features import Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.transport.egress import HttpOrigin, parse_url
from isthmus.upstream.listing import NOTES_MAX, Listing, over_entries
from isthmus.wire.a2a.cards import JSONRPC, AgentCard, AgentInterface, AgentSkill
from isthmus.wire.a2a.client import (
    ClientBinding,
    ClientV10,
    RestClientBinding,
    RestClientV03,
    RpcClientBinding,
    client_of,
)
from isthmus.wire.jsonrpc import object_members
from isthmus.wire.mcp.messages import read_string

NAME_LENGTH_MAX = 128
"""The longest tool name that MCP allows."""

EXAMPLES_MAX = 10
"""Examples in the description of a tool."""

TALK = "send_message"
"""The tool of an agent whose card lists no skill."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_encode = msgspec.json.Encoder().encode

WORDS_SCHEMA = Raw(
    _encode(
        {
            "type": "object",
            "properties": {
                "message": {"type": "string", "description": "What to tell the agent"},
                "data": {"type": "object", "description": "Structured data to send with the message"},
                "task_id": {"type": "string", "description": "A task of this agent that waits for this message"},
                "context_id": {"type": "string", "description": "A conversation with this agent that is to go on"},
            },
            "required": ["message"],
        }
    )
)
"""The input schema of a skill without one of its own."""


class SkillTool(msgspec.Struct, frozen=True):
    """The tool of a skill."""

    tool: Tool
    skill: str
    """The skill's id; empty for the agent as a whole."""
    takes_text: bool
    """It takes the arguments of `WORDS_SCHEMA`, not those of a schema of its own."""


def tools_of(card: AgentCard, server: ServerName) -> dict[str, SkillTool]:
    """The tools of a card, by their names."""
    tools: dict[str, SkillTool] = {}
    for skill in card.skills or (AgentSkill("", card.name, card.description),):
        name = _NOT_IN_NAMES.sub("_", skill.id) or TALK
        if len(name) > NAME_LENGTH_MAX or name in tools:
            digits = hashlib.blake2b(f"{skill.id} {len(tools)}".encode(errors="replace"), digest_size=3).hexdigest()
            name = f"{name[: NAME_LENGTH_MAX - 7]}_{digits}"
        has_schema = _is_of_object(skill.input_schema)
        examples = [f"- {example}" for example in skill.examples[:EXAMPLES_MAX]]
        paragraphs = (
            skill.description,
            "\n".join(["For example:", *examples]) if examples else "",
            f"Tags: {', '.join(skill.tags)}" if skill.tags else "",
        )
        description = "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
        definition = {
            "name": Raw(_encode(name)),
            "title": Raw(_encode(skill.name)),
            "description": Raw(_encode(description)),
            "inputSchema": skill.input_schema if has_schema else WORDS_SCHEMA,
            **({"outputSchema": skill.output_schema} if has_schema and _is_of_object(skill.output_schema) else {}),
        }
        tools[name] = SkillTool(Tool.of(server, FeatureName(name), definition), skill.id, not has_schema)
    return tools


def _is_of_object(schema: Raw) -> bool:
    """Whether MCP accepts a schema: its type must be object."""
    members = object_members(schema) if schema else None
    return members is not None and read_string(members.get("type")) == "object"


def listing_of(
    offers: Iterable[SkillTool], limits: Limits, ttl_seconds: float | None, known: Iterable[str] = ()
) -> Listing:
    """The list of tools within the limits. Its notes begin with those in `known`."""
    kept: list[Tool] = []
    notes = [*known]
    for tool in (offered.tool for offered in offers):
        if len(kept) >= limits.tools_per_server:
            notes.append(f"its list of tools {over_entries(limits)}")
            break
        if sum(len(memoryview(value)) for value in tool.definition.values()) > limits.schema_bytes:
            notes.append(f"{tool.name!r} left out: its description is over {limits.schema_bytes} bytes")
        else:
            kept.append(tool)
    holds: dict[Topic, float] = {} if ttl_seconds is None else {"tools": ttl_seconds}
    return Listing(tuple(kept), notes={"tools": tuple(notes[:NOTES_MAX])}, ttl_seconds=holds)


CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Paths of a card below the agent's URL: since 0.3, and before."""

PLAIN = "HTTP+JSON"


class AgentEndpoint(NamedTuple):
    """The URL of an agent, and the binding to use there."""

    origin: HttpOrigin
    path: str
    query: str
    binding: ClientBinding

    def target(self, path: str) -> str:
        """The request target of a path below the endpoint's own."""
        query = f"?{self.query}" if self.query and "?" not in path else ""
        return f"{self.path.rstrip('/')}{path}{query}" if path else f"{self.path}{query}"


def card_targets(target: str) -> tuple[str, ...]:
    """The request targets to try for the card of a URL: the URL itself if it names a document."""
    path = target.partition("?")[0].rstrip("/")
    return (target,) if path.endswith(".json") else tuple(path + known for known in CARDS)


def choose_endpoint(card: AgentCard, home: HttpOrigin, allowed: Iterable[str], max_depth: int) -> AgentEndpoint | str:
    """The first usable endpoint of a card, or a sentence that says why no endpoint is usable and what to do."""
    trusted = {home, *(parse_url(origin)[0] for origin in allowed)}
    refusals: list[str] = []
    for interface in card.interfaces:
        binding = _binding(interface, max_depth)
        if binding is None:
            refusals.append(f"{interface.binding[:40]} {interface.version[:20]} is not supported")
            continue
        try:
            origin, target = parse_url(interface.url)
        except ValueError as error:
            refusals.append(str(error))
            continue
        if origin in trusted or _is_same_host(origin, home):
            path, _, query = target.partition("?")
            return AgentEndpoint(origin, path, query, binding)
        advice = "if it is to be trusted with the same headers, add it to origins"
        refusals.append(f"{origin} is not where its card is; {advice}")
    return "its card names no interface that the hub can use: " + "; ".join(dict.fromkeys(refusals))


def _binding(interface: AgentInterface, max_depth: int) -> ClientBinding | None:
    client = client_of(interface.version)
    kind = interface.binding.upper()
    if client is None or kind not in (JSONRPC, PLAIN):
        return None
    if kind == JSONRPC:
        return RpcClientBinding(client, interface.tenant, max_depth)
    plain = client if isinstance(client, ClientV10) else RestClientV03()
    return RestClientBinding(plain, interface.tenant, max_depth)


def _is_same_host(origin: HttpOrigin, home: HttpOrigin) -> bool:
    """Whether an origin is on the card's host, and not less secure than the card's URL."""
    is_same = origin.host == home.host or (_is_local(origin.host) and _is_local(home.host))
    return is_same and (origin.is_secure or not home.is_secure)


def _is_local(host: str) -> bool:
    """Whether a host is this machine. Agents under development use any of these names in their cards."""
    if host in ("localhost", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
