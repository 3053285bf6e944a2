"""The expected survey of a full server, with or without a hub in between."""

from __future__ import annotations

import base64

from tests.peers import content
from tests.peers.forms import Era, Form
from tests.peers.survey import AT_HOME, Survey

RESOURCE_NOT_FOUND = {-32002, -32602, 0}
"""The code for it in the legacy era, in the modern one, and in mcp 1.x, whose servers say nothing better."""


def assert_looked(found: Survey) -> None:
    """Every list, read, prompt, completion and progress is as the server's content has it."""
    assert found.names("tools") >= content.TOOLS
    assert found.uris("resources") >= content.LISTED
    assert content.UNLISTED_URI not in found.uris("resources")
    assert found.uris("templates") == {content.TEMPLATE_URI}
    assert found.names("prompts") >= content.PROMPTS
    assert (found.contents("text")["text"], found.contents("note")["text"]) == (
        content.TEXT,
        content.note_text("alpha"),
    )
    assert base64.b64decode(found.contents("binary")["blob"]) == content.BINARY
    assert found.contents("unlisted")["text"] == content.UNLISTED
    assert found.refusal("missing")["code"] in RESOURCE_NOT_FOUND
    assert found.prompt_text("plain") == content.PLAIN
    assert found.prompt_text("greet") == content.greeting("Ada", "dry")
    assert found.prompt_text("greet_by_default") == content.greeting("Ada", "warm")
    assert found.refusal("no_prompt")
    assert (found.values("note_ids"), found.values("countries")) == (["alpha", "alpine"], ["France"])
    assert found.values("cities") == ["Paris", "Pau"]
    assert found.answer("slow")["progress"] == [[step, 3, f"step {step}"] for step in (1, 2, 3)]


def assert_logged(found: Survey, *, era: Era, keeps_levels: bool) -> None:
    """What was logged during a call came before its result, from the level on that was asked for."""
    everything = [(level, content.log_text(level)) for level in content.LEVELS]
    if "logged" in found.answers:
        assert found.logs("logged") == (everything if era == "legacy" else [])
    assert found.logs("logged_from_warning") == (everything[2:] if keeps_levels else everything)
    assert found.logs("logged_from_debug") == everything


def assert_changed(found: Survey, form: Form, *, has_hub: bool = True) -> None:
    """Changes were announced, where the form can, and what changed was then there."""
    can, received = form.abilities, found.announced()
    watched = found.place.uri_prefix + content.WATCHED_URI
    lists = {"tools", "prompts", "resources"}
    expected = (lists if "announces" in can else set()) | ({watched} if "updates" in can else set())
    # Where servers meet, a client is also notified of changes at the other servers; and a hub that looks by itself,
    # once a minute, tells of lists whose server cannot.
    noticed = lists if has_hub else set()
    assert expected <= received <= expected | noticed if found.place == AT_HOME else received >= expected
    for step in ("changed_tools", "changed_prompts", "changed_resources") if "announces" in can else ():
        assert found.answer(step)
    assert found.contents("watched")["text"] == found.answer("touched")["result"]["content"][0]["text"]
