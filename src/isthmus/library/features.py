"""Resources and prompts, which are no tools: what is asked of them, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from isthmus.library.contracts import ToolRequest
from isthmus.library.errors import ToolExecutionError
from isthmus.library.results import check_numbers, payload_of, result_from
from isthmus.model.calls import Kind
from isthmus.model.faults import Fault
from isthmus.model.outcomes import Outcome

_encode = msgspec.json.Encoder().encode


def described(definition: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """A description, without what cannot be read: one server's must not cost the list of all."""
    found: dict[str, Any] = {}
    for name, raw in definition.items():
        with suppress(msgspec.MsgspecError, RecursionError):
            found[name] = msgspec.json.decode(raw)
    return found


def written_for(kind: Kind, name: object, arguments: object) -> msgspec.Raw:
    """The arguments of a prompt or resource.

    Raises:
        TypeError: it is named by no text, or they are no dictionary.
        ToolExecutionError: they are not JSON.
    """
    if not isinstance(name, str):
        raise TypeError(f"a {kind} is named by a text, not {type(name).__name__}")
    if not isinstance(arguments, Mapping):
        raise TypeError(f"the arguments of a {kind} must be a dictionary, not {type(arguments).__name__}")
    try:
        written = _encode(dict(arguments))
        check_numbers(written, arguments)
        return msgspec.Raw(written)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ToolExecutionError(name, f"Invalid arguments for {name}: {error}") from error


def contents_of(name: str, outcome: Outcome, *, is_attached: bool) -> dict[str, Any]:
    """What was answered.

    Raises:
        ToolExecutionError: there is no answer, or it cannot be read.
    """
    if isinstance(outcome, Fault):
        payload = payload_of(outcome, is_of_hub=is_attached)
        result = result_from(ToolRequest(name), outcome, name, payload.server, 0.0, is_of_hub=is_attached)
        raise ToolExecutionError(name, payload.message, result)
    try:
        return msgspec.json.decode(outcome.payload, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ToolExecutionError(name, f"{name} was answered with what cannot be read: {error}") from error
