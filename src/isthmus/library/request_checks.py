"""Checks of requests, for programs without a type checker: types, timeouts, headers, text and numbers.

Called by the service before a request is sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import NoneType

from isthmus.library.public_types import SessionContext, ToolRequest, UserContext


def request_problem(request: ToolRequest) -> str | None:
    """Why a request is invalid, for any tool; None if it is valid.

    Raises:
        TypeError: it is not a ToolRequest.
    """
    try:
        problem = _type_problem(request)
    except AttributeError:  # cheaper than a check of every request
        kind = type(request).__name__
        raise TypeError(f'expected a ToolRequest("name", parameters={{...}}), not {kind}') from None
    if problem is None:
        problem = timeout_problem(request.timeout)
    if problem is not None:
        return problem
    session: object = session_of(request)
    if session is not None and not (isinstance(session, str) and session.isprintable()):
        return f"session_id must be printable text, not {session!r}"
    headers: object = (request.metadata or {}).get("headers")
    if headers is not None and not (
        isinstance(headers, Mapping) and all(isinstance(each, str) for pair in headers.items() for each in pair)
    ):
        return "metadata['headers'] must be a dictionary of strings"
    return None


def timeout_problem(timeout: object) -> str | None:
    """Why a timeout is invalid; None if it is valid."""
    if timeout is None or (isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout >= 0):
        return None
    return f"timeout must be a number of seconds, 0 or more, not {timeout!r}"


_TYPES: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("tool_name", str, "text"),
    ("tool_namespace", (str, NoneType), "text"),
    ("user_context", (UserContext, NoneType), "a UserContext"),
    ("session_context", (SessionContext, NoneType), "a SessionContext"),
    ("metadata", (Mapping, NoneType), "a dictionary"),
)
"""The types of a request's fields, for programs without a type checker."""


def _type_problem(request: ToolRequest) -> str | None:
    if (  # most requests have only these
        type(request.tool_name) is str
        and type(request.metadata) is dict
        and request.tool_namespace is None
        and request.user_context is None
        and request.session_context is None
    ):
        return None
    for name, wanted, word in _TYPES:
        if not isinstance(held := getattr(request, name), wanted):
            # A common mistake is to pass the arguments right after the name.
            are_arguments = name == "tool_namespace" and isinstance(held, Mapping)
            advice = "; give arguments as parameters={...}" if are_arguments else ""
            return f"{name} must be {word}, not {type(held).__name__}{advice}"
    user_id: object = request.user_context.user_id if request.user_context is not None else None
    if not isinstance(user_id, str | None):
        return f"user_context.user_id must be text, not {type(user_id).__name__}"
    if user_id is not None and not _is_valid_utf8(user_id):
        return f"user_context.user_id must be valid Unicode, not {user_id!r}"
    return None


def _is_valid_utf8(text: str) -> bool:
    """Whether a text can be encoded: the audit log could not write a name with a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def valid_utf8(text: str) -> str:
    """The text with lone surrogates replaced, so that it can be encoded."""
    return text if _is_valid_utf8(text) else text.encode(errors="replace").decode()


def check_numbers(written: bytes, given: object) -> None:
    """Raise `ValueError` for NaN and infinity, which the encoder writes as null."""
    if b"null" in written and (number := _find_non_finite(given)) is not None:
        raise ValueError(f"{number} cannot be written as JSON")


def _find_non_finite(given: object) -> float | None:
    match given:
        case float():
            return None if math.isfinite(given) else given
        case Mapping():
            held: Iterable[object] = given.values()
        case list() | tuple() | set() | frozenset():
            held = given
        case _:
            return None
    return next((found for each in held if (found := _find_non_finite(each)) is not None), None)


def session_of(request: ToolRequest) -> str | None:
    """The conversation of a request, from either of its two fields."""
    context = request.session_context
    return request.session_id or (None if context is None else getattr(context, "session_id", None))
