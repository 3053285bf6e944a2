"""The content of the full servers: the same tools, resources, template, prompts and completions in each.

`full_sdk1`, `full_sdk2` and `full_fastmcp` serve it from environments with different SDKs, so it knows none of them;
tests compare what a client gets with it. What each form of a server can do with it is in `forms`.
"""

from __future__ import annotations

from collections.abc import Mapping

TOOLS = frozenset({"add", "slow", "log_some", "grow_tools", "grow_prompts", "grow_resources", "touch"})

TEXT_URI = "memo://shelf/text"
BINARY_URI = "memo://shelf/binary"
WATCHED_URI = "memo://shelf/watched"
UNLISTED_URI = "memo://shelf/unlisted"
TEMPLATE_URI = "note://{id}/text"

LISTED = frozenset({TEXT_URI, BINARY_URI, WATCHED_URI})
"""The resources in a listing; the unlisted one can be read all the same."""

TEXT = 'h\u00e9llo \U0001f30d\n\u2028 "quoted" \\ end'
"""Whatever a framing could trip over."""
BINARY = bytes(range(256))
UNLISTED = "nobody lists this"

PLAIN_PROMPT = "plain"
GREET_PROMPT = "greet"
VISIT_PROMPT = "visit"
PROMPTS = frozenset({PLAIN_PROMPT, GREET_PROMPT, VISIT_PROMPT})
PLAIN = "Say something kind."

LEVELS = ("debug", "info", "warning", "error")
"""What `log_some` logs at, in this order."""
LOGGER = "peer"

NOTES = ("alpha", "alpine", "beta")
CITIES = {"France": ("Paris", "Pau"), "Italy": ("Parma", "Rome")}


def note_text(note: str) -> str:
    """What the template gives for an id."""
    return f"the text of {note}"


def watched_text(version: int) -> str:
    """The watched resource, after so many touches."""
    return f"version {version}"


def greeting(name: str, tone: str) -> str:
    """The text of the prompt with arguments; `tone` is optional and `warm` by default."""
    return f"Greet {name} in a {tone} tone."


def invitation(country: str, city: str) -> str:
    """The text of the prompt whose arguments are completed."""
    return f"Invite me to {city}, {country}."


def log_text(level: str) -> str:
    """What `log_some` says at a level."""
    return f"this is {level}"


def completions(target: str, argument: str, value: str, known: Mapping[str, str]) -> list[str]:
    """The values of a prompt's or template's argument that begin with `value`, `known` being those already chosen."""
    choices: Mapping[tuple[str, str], tuple[str, ...]] = {
        (TEMPLATE_URI, "id"): NOTES,
        (VISIT_PROMPT, "country"): tuple(CITIES),
        (VISIT_PROMPT, "city"): CITIES.get(known.get("country", ""), ()),
    }
    return [choice for choice in choices.get((target, argument), ()) if choice.startswith(value)]
