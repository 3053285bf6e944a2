"""An agent's card: one tool per skill, and the endpoint to send requests to.

Pure. A skill with schemas, as another hub gives them, takes its own arguments; any other takes a text, data, and the
task or context to continue. A card must not lead the operator's credentials to another host. Called by the link.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec import Raw

from isthmus.core.settings import Limits
from isthmus.model.features import Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.transport.egress import HttpOrigin, parse_url
from isthmus.upstream.listing import NOTES_MAX, Listing
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
"""What MCP allows a tool's name."""

EXAMPLES_MAX = 10
"""Examples that a description repeats."""

TALK = "send_message"
"""The tool of an agent whose card names no skill."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_encode = msgspec.json.Encoder().encode

WORDS_SCHEMA = Raw(
    _encode(
        {
            "type": "object",
            "properties": {
                "message": {"type": "string", "description": "What to tell the agent"},
                "data": {"type": "object", "description": "Whatever of it is structured, told beside the message"},
                "task_id": {"type": "string", "description": "A task of this agent that waits for this message"},
                "context_id": {"type": "string", "description": "A conversation with this agent that is to go on"},
            },
            "required": ["message"],
        }
    )
)
"""What a skill takes that does not say what it takes."""


class SkillTool(msgspec.Struct, frozen=True):
    """A tool, and the skill that it stands for."""

    tool: Tool
    skill: str
    """The skill's id; empty for the agent as a whole."""
    takes_text: bool
    """It takes words, and not the arguments of a schema of its own."""


def tools_of(card: AgentCard, server: ServerName) -> dict[str, SkillTool]:
    """The tools that a card stands for, by their names."""
    skills = card.skills or (AgentSkill("", card.name, card.description),)
    return {offered.tool.name: offered for offered in _tools(skills, server)}


def _tools(skills: Iterable[AgentSkill], server: ServerName) -> Iterator[SkillTool]:
    taken: set[str] = set()
    for skill in skills:
        name = _name(skill.id, taken)
        taken.add(name)
        own = _own_schema(skill)
        definition = {
            "name": Raw(_encode(name)),
            "title": Raw(_encode(skill.name)),
            "description": Raw(_encode(_description(skill))),
            "inputSchema": own or WORDS_SCHEMA,
            **({"outputSchema": skill.output_schema} if own and _is_of_object(skill.output_schema) else {}),
        }
        yield SkillTool(Tool.of(server, FeatureName(name), definition), skill.id, not own)


def _name(id: str, taken: set[str]) -> str:
    """A skill's id as a tool's name; what had to be changed, or is there already, ends in digits of its own."""
    name = _NOT_IN_NAMES.sub("_", id) or TALK
    if len(name) <= NAME_LENGTH_MAX and name not in taken:
        return name
    digits = hashlib.blake2b(f"{id} {len(taken)}".encode(errors="replace"), digest_size=3).hexdigest()
    return f"{name[: NAME_LENGTH_MAX - 7]}_{digits}"


def _description(skill: AgentSkill) -> str:
    examples = [f"- {example}" for example in skill.examples[:EXAMPLES_MAX]]
    paragraphs = (
        skill.description,
        "\n".join(["For example:", *examples]) if examples else "",
        f"Tags: {', '.join(skill.tags)}" if skill.tags else "",
    )
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _own_schema(skill: AgentSkill) -> Raw:
    return skill.input_schema if _is_of_object(skill.input_schema) else Raw()


def _is_of_object(schema: Raw) -> bool:
    """Whether a schema is one that MCP takes: of an object."""
    members = object_members(schema) if schema else None
    return members is not None and read_string(members.get("type")) == "object"


def listing_of(
    offers: Iterable[SkillTool], limits: Limits, ttl_seconds: float | None, known: Iterable[str] = ()
) -> Listing:
    """What the tools are listed as, within bounds; `known` is what there is to say of the list besides."""
    kept: list[Tool] = []
    notes = [*known]
    for tool in (offered.tool for offered in offers):
        if len(kept) >= limits.tools_per_server:
            notes.append(f"its list of tools has over {limits.tools_per_server} entries and was cut")
            break
        if sum(len(memoryview(value)) for value in tool.definition.values()) > limits.schema_bytes:
            notes.append(f"{tool.name!r} left out: its description is over {limits.schema_bytes} bytes")
        else:
            kept.append(tool)
    holds: dict[Topic, float] = {} if ttl_seconds is None else {"tools": ttl_seconds}
    return Listing(tuple(kept), notes={"tools": tuple(notes[:NOTES_MAX])}, ttl_seconds=holds)


CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where a card is below an agent's address, since 0.3 and before."""

PLAIN = "HTTP+JSON"


class AgentEndpoint(NamedTuple):
    """Where an agent is spoken to, and how."""

    origin: HttpOrigin
    path: str
    query: str
    binding: ClientBinding

    def target(self, path: str) -> str:
        """The request target of a path behind the place's own."""
        query = f"?{self.query}" if self.query and "?" not in path else ""
        return f"{self.path.rstrip('/')}{path}{query}" if path else f"{self.path}{query}"


def card_targets(target: str) -> tuple[str, ...]:
    """The targets at which the card of an address may be: the address itself if it is a document's."""
    path = target.partition("?")[0].rstrip("/")
    return (target,) if path.endswith(".json") else tuple(path + known for known in CARDS)


def choose_endpoint(card: AgentCard, home: HttpOrigin, allowed: Iterable[str], max_depth: int) -> AgentEndpoint | str:
    """The place of a card to speak to, or why there is none, in words that say what can be done."""
    trusted = {home, *(parse_url(origin)[0] for origin in allowed)}
    refusals: list[str] = []
    for interface in card.interfaces:
        contact = _contact(interface, home, trusted, max_depth)
        if isinstance(contact, AgentEndpoint):
            return contact
        refusals.append(contact)
    return "its card names no place that can be spoken to: " + "; ".join(dict.fromkeys(refusals))


def _contact(
    interface: AgentInterface, home: HttpOrigin, trusted: set[HttpOrigin], max_depth: int
) -> AgentEndpoint | str:
    binding = _binding(interface, max_depth)
    if binding is None:
        return f"{interface.binding[:40]} {interface.version[:20]} is not spoken"
    try:
        origin, target = parse_url(interface.url)
    except ValueError as error:
        return str(error)
    if origin not in trusted and not _is_near(origin, home):
        return f"{origin} is not where its card is; if it is to be trusted with the same headers, add it to origins"
    path, _, query = target.partition("?")
    return AgentEndpoint(origin, path, query, binding)


def _binding(interface: AgentInterface, max_depth: int) -> ClientBinding | None:
    client = client_of(interface.version)
    kind = interface.binding.upper()
    if client is None or kind not in (JSONRPC, PLAIN):
        return None
    if kind == JSONRPC:
        return RpcClientBinding(client, interface.tenant, max_depth)
    plain = client if isinstance(client, ClientV10) else RestClientV03()
    return RestClientBinding(plain, interface.tenant, max_depth)


def _is_near(origin: HttpOrigin, home: HttpOrigin) -> bool:
    """Whether it is the same host, and nobody can listen in on the way who could not before."""
    is_same = origin.host == home.host or (_is_local(origin.host) and _is_local(home.host))
    return is_same and (origin.is_secure or not home.is_secure)


def _is_local(host: str) -> bool:
    """Whether it is this machine: programs that were only tried out name it in any of these ways in their cards."""
    if host in ("localhost", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
