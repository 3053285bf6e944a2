"""What an agent's card offers, as tools: one for each skill.

Pure. A skill whose schemas are known, as those of another hub are, takes its own arguments; any other takes words, data
beside them, and the task or the conversation that it is to go on with. Called by the link.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw

from isthmus.core.settings import Limits
from isthmus.model.features import Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.listing import NOTES_MAX, Listing
from isthmus.wire.a2a.cards import Card, Skill
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


class Offered(msgspec.Struct, frozen=True):
    """A tool, and the skill that it stands for."""

    tool: Tool
    skill: str
    """The skill's id; empty for the agent as a whole."""
    is_worded: bool
    """It takes words, and not the arguments of a schema of its own."""


def offers_of(card: Card, server: ServerName) -> dict[str, Offered]:
    """The tools that a card stands for, by their names."""
    skills = card.skills or (Skill("", card.name, card.description),)
    return {offered.tool.name: offered for offered in _offers(skills, server)}


def _offers(skills: Iterable[Skill], server: ServerName) -> Iterator[Offered]:
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
        yield Offered(Tool.of(server, FeatureName(name), definition), skill.id, not own)


def _name(id: str, taken: set[str]) -> str:
    """A skill's id as a tool's name; what had to be changed, or is there already, ends in digits of its own."""
    name = _NOT_IN_NAMES.sub("_", id) or TALK
    if len(name) <= NAME_LENGTH_MAX and name not in taken:
        return name
    digits = hashlib.blake2b(f"{id} {len(taken)}".encode(errors="replace"), digest_size=3).hexdigest()
    return f"{name[: NAME_LENGTH_MAX - 7]}_{digits}"


def _description(skill: Skill) -> str:
    examples = [f"- {example}" for example in skill.examples[:EXAMPLES_MAX]]
    paragraphs = (
        skill.description,
        "\n".join(["For example:", *examples]) if examples else "",
        f"Tags: {', '.join(skill.tags)}" if skill.tags else "",
    )
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _own_schema(skill: Skill) -> Raw:
    return skill.input_schema if _is_of_object(skill.input_schema) else Raw()


def _is_of_object(schema: Raw) -> bool:
    """Whether a schema is one that MCP takes: of an object."""
    members = object_members(schema) if schema else None
    return members is not None and read_string(members.get("type")) == "object"


def listing_of(
    offers: Iterable[Offered], limits: Limits, ttl_seconds: float | None, known: Iterable[str] = ()
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
