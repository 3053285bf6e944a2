"""A survey: one session of an official client that tries everything a full server has.

It is told as steps, which `client_sdk1` does in a process of its own and `surveyor` in this one, and both answer in the
same words. Names and addresses are the server's own unless the survey goes where several servers meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tests.peers import content
from tests.peers.sdk1_steps import Answer, Step

NOTIFICATION_SECONDS = 30.0
"""How long an announcement may take: the hub lists again, and announces, at most once a second each."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a survey is made: what is before a name and before an address there."""

    name_prefix: str = ""
    uri_prefix: str = ""

    def prompt_ref(self, name: str) -> dict[str, str]:
        """A completion's reference to a prompt."""
        return {"type": "ref/prompt", "name": self.name_prefix + name}

    def template_ref(self) -> dict[str, str]:
        """A completion's reference to the template."""
        return {"type": "ref/resource", "uri": self.uri_prefix + content.TEMPLATE_URI}


AT_HOME = Place()


def looking(place: Place = AT_HOME) -> dict[str, Step]:
    """The steps that change nothing, by name."""
    name, uri = place.name_prefix, place.uri_prefix
    country, city = {"name": "country", "value": "F"}, {"name": "city", "value": "Pa"}
    return {
        "hello": {"do": "hello"},
        "tools": {"do": "list"},
        "resources": {"do": "resources"},
        "templates": {"do": "templates"},
        "prompts": {"do": "prompts"},
        "text": {"do": "read", "uri": uri + content.TEXT_URI},
        "binary": {"do": "read", "uri": uri + content.BINARY_URI},
        "unlisted": {"do": "read", "uri": uri + content.UNLISTED_URI},
        "note": {"do": "read", "uri": f"{uri}note://alpha/text"},
        "missing": {"do": "read", "uri": f"{uri}memo://shelf/missing"},
        "plain": {"do": "prompt", "name": name + content.PLAIN_PROMPT},
        "greet": {"do": "prompt", "name": name + content.GREET_PROMPT, "arguments": {"name": "Ada", "tone": "dry"}},
        "greet_by_default": {"do": "prompt", "name": name + content.GREET_PROMPT, "arguments": {"name": "Ada"}},
        "no_prompt": {"do": "prompt", "name": f"{name}nonsense"},
        "note_ids": {"do": "complete", "ref": place.template_ref(), "argument": {"name": "id", "value": "al"}},
        "countries": {"do": "complete", "ref": place.prompt_ref(content.VISIT_PROMPT), "argument": country},
        "cities": {
            "do": "complete",
            "ref": place.prompt_ref(content.VISIT_PROMPT),
            "argument": city,
            "known": {"country": "France"},
        },
        "slow": {"do": "call", "tool": f"{name}slow", "arguments": {"seconds": 0.03, "steps": 3}, "progress": True},
    }


def logging(place: Place = AT_HOME) -> dict[str, Step]:
    """The steps about logs: before a level was asked for, from `warning` up, and everything."""
    call: Step = {"do": "call", "tool": f"{place.name_prefix}log_some", "arguments": {}}
    return {
        "logged": call,
        "logged_from_warning": {**call, "level": "warning"},
        "logged_from_debug": {**call, "level": "debug"},
    }


def changing(token: str, place: Place = AT_HOME, *, listens: bool, updates: bool) -> dict[str, Step]:
    """The steps that change the server, each awaited if its announcement can be heard; `token` is a word of its own."""
    name, uri = place.name_prefix, place.uri_prefix

    def grow(what: str, thing: str) -> Step:
        return {"do": "call", "tool": f"{name}grow_{what}", "arguments": {"name": thing}}

    def changed(what: str, thing: str) -> Step:
        return {"do": "changed", "what": what, "within": NOTIFICATION_SECONDS, "lists": thing}

    watched, grown = uri + content.WATCHED_URI, f"memo://grown/{token}"
    steps: dict[str, Step] = {
        "listening": {"do": "listen", "uri": watched},
        "grown_tools": grow("tools", token),
        "grown_prompts": grow("prompts", token),
        "grown_resources": grow("resources", grown),
    }
    if listens:
        steps["changed_tools"] = changed("tools", name + token)
        steps["changed_prompts"] = changed("prompts", name + token)
        steps["changed_resources"] = changed("resources", grown)
    steps["touched"] = {"do": "call", "tool": f"{name}touch", "arguments": {}}
    if updates:
        steps["updated"] = {"do": "updated", "uri": watched, "within": NOTIFICATION_SECONDS}
    return {**steps, "watched": {"do": "read", "uri": watched}, "announcements": {"do": "announcements"}}


@dataclass(frozen=True, slots=True)
class Survey:
    """The answers to the steps, by their names, in the server's own words."""

    answers: Mapping[str, Answer]
    place: Place = field(default=AT_HOME)

    def answer(self, step: str) -> Answer:
        """The answer to a step that must have gone well."""
        answer = self.answers[step]
        assert answer["ok"], (step, answer)
        return answer

    def refusal(self, step: str) -> dict[str, Any]:
        """The error that a step must have ended with."""
        answer = self.answers[step]
        assert not answer["ok"], (step, answer)
        return cast("dict[str, Any]", answer["error"])

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server said at the beginning that it can do."""
        return cast("dict[str, Any]", self.answer("hello")["hello"]["capabilities"])

    def names(self, step: str) -> set[str]:
        """The names in a listing of tools or prompts that are of this place."""
        key = "prompts" if "prompts" in step else "tools"
        shown = {item["name"] for item in self.answer(step)[key]}
        prefix = self.place.name_prefix
        return {name.removeprefix(prefix) for name in shown if name.startswith(prefix)}

    def uris(self, step: str) -> set[str]:
        """The addresses in a listing of resources or templates that are of this place."""
        key, member = ("resourceTemplates", "uriTemplate") if "templates" in step else ("resources", "uri")
        shown = {item[member] for item in self.answer(step)[key]}
        prefix = self.place.uri_prefix
        return {uri.removeprefix(prefix) for uri in shown if uri.startswith(prefix)}

    def contents(self, step: str) -> dict[str, Any]:
        """The one item that was read."""
        (item,) = self.answer(step)["result"]["contents"]
        return cast("dict[str, Any]", item)

    def prompt_text(self, step: str) -> str:
        """The one message of a prompt."""
        (message,) = self.answer(step)["result"]["messages"]
        assert message["role"] == "user"
        return cast("str", message["content"]["text"])

    def values(self, step: str) -> list[str]:
        """The values of a completion."""
        return cast("list[str]", self.answer(step)["result"]["completion"]["values"])

    def logs(self, step: str) -> list[tuple[str, str]]:
        """The levels and texts that were logged during a call; all must be of the peer's logger."""
        lines = self.answer(step)["logs"]
        assert {line["logger"] for line in lines} <= {content.LOGGER}
        return [(line["level"], _text(line["data"])) for line in lines]

    def announced(self) -> set[str]:
        """Everything that was announced: `tools`, `prompts`, `resources`, and addresses."""
        return set(self.answer("announcements")["announcements"])


def _text(data: Any) -> str:
    """A log line's text: FastMCP puts it into an object."""
    return cast("str", data["msg"] if isinstance(data, dict) else data)
