"""A task's messages as contents of google-adk. Called by `AdkDomainAgent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.genai import types

from isthmus.library.contracts import TaskRequest
from isthmus.library.errors import ConfigurationError

AGENT_ROLES = frozenset({"assistant", "model", "agent"})


def contents_of(task: TaskRequest) -> list[types.Content]:
    """What has been said, and last what is to be answered; the description, if there are no messages.

    Raises:
        ConfigurationError: there is nothing to answer, or a message is nothing that can be read.
    """
    contents = [_content(message) for message in task.messages or ([task.description] if task.description else [])]
    if not contents or contents[-1].role != "user":
        raise ConfigurationError(
            f"task {task.task_id} has nothing to answer: give it a description, or messages that end with a user's"
        )
    return contents


def _content(message: Any) -> types.Content:
    """A string, `{"role", "content"}`, or an object with these."""
    if isinstance(message, types.Content):
        return message
    if isinstance(message, str):
        return _text("user", message)
    if isinstance(message, Mapping):
        role, said = message.get("role", "user"), message.get("content")
    else:
        role, said = getattr(message, "role", "user"), getattr(message, "content", None)
    if not isinstance(said, str):
        raise ConfigurationError(f"a message must be text, or have text as its content, not {type(said).__name__}")
    return _text("model" if str(role) in AGENT_ROLES else "user", said)


def _text(role: str, text: str) -> types.Content:
    return types.Content(role=role, parts=[types.Part(text=text)])
