"""Removes the hub's credentials from a server's error messages: a server may repeat what it was sent.

Only failures are searched, which are rare, for the texts that the link sent (`BaseLink.redact`). Results of tools are
not changed. Called by links and waiters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from isthmus.core.calls.running_call import InFlight
from isthmus.upstream.server_settings import SECRET_LENGTH_MIN
from isthmus.wire.jsonrpc import ErrorReply

Redact: TypeAlias = Callable[[str], str]
"""Removes secrets from a text."""

KEY_LENGTH_MIN = 16
"""Shorter secrets are kept in member names: one may be an ordinary word, and the response would become unreadable."""

RESULT_LENGTH_MIN = 8
"""The same for texts in a result, some of which are words of the protocol."""

# fmt: off
FORM_WORDS = frozenset((
    "text", "image", "audio", "resource", "resource_link", "user", "assistant", "debug", "info", "notice", "warning",
    "error", "critical", "alert", "emergency", "accept", "decline", "cancel", "complete", "form", "object", "string",
    "number", "integer", "boolean", "array", "null",
))
# fmt: on
"""Texts that say what the rest means. They hide nothing, and without them nobody could read it."""

STRINGS_MAX = 4096
"""Texts of one failure that are checked one by one; a server may send millions. If there are more and a secret is
visible, the whole is replaced."""

MARK = "***"
"""Replaces a secret."""

REDACTED = msgspec.Raw(b'"***"')
REDACTED_RESULT = msgspec.Raw(b'{"content":[{"type":"text","text":"***"}],"isError":true}')

LOOKAHEAD_BYTES = 16_384
"""How far behind the wanted part of a text a secret may end that begins in it."""

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_VALUE = re.compile(r'("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*)(\s*:)?', re.DOTALL)
"""A text, a number, or the name of a member."""
_STRING = re.compile(rb'("(?:[^"\\]|\\.)*")(\s*:)?', re.DOTALL)


@runtime_checkable
class Redacting(Protocol):
    """A link, or a pool of links, that knows its credentials."""

    def redactor_for(self, inflight: InFlight) -> Redact:
        """The redaction for the response to a call."""


def redact_error(reply: ErrorReply, redact: Redact) -> ErrorReply:
    """A server's error without the credentials."""
    if redact is str:
        return reply
    data = None if reply.data is None else redact_json(reply.data, redact)
    return msgspec.structs.replace(reply, message=redact(reply.message), data=data)


def redact_result(payload: msgspec.Raw, redact: Redact) -> msgspec.Raw:
    """An error result without the credentials."""
    return redact_json(payload, redact, RESULT_LENGTH_MIN, REDACTED_RESULT)


def redact_beginning(payload: msgspec.Raw, redact: Redact, length: int) -> str:
    """The first `length` characters of a JSON text without the credentials."""
    whole = memoryview(payload)
    text = bytes(whole[: length + LOOKAHEAD_BYTES]).decode("utf-8", "replace")
    if redact is str:
        return text[:length]
    if len(whole) > length + LOOKAHEAD_BYTES:
        # An escape that is cut in half is no JSON, and a string without an end would be searched again and again.
        half = text.rfind("\\", max(0, len(text) - 6))
        text = (text if half < 0 else text[:half]) + '""'

    def without(match: re.Match[str]) -> str:
        # The rest is searched as a whole, which is far quicker.
        if "\\" not in match[0] or len(match[0]) < SECRET_LENGTH_MIN:
            return match[0]
        plain: str = json.loads(match[0])
        hidden = redact(plain)
        return match[0] if hidden == plain else json.dumps(hidden, ensure_ascii=False)

    return redact(_TEXT.sub(without, text))[:length]


def redact_whole(payload: msgspec.Raw, redact: Redact) -> msgspec.Raw:
    """A whole JSON text without the credentials; for a thread, it may have megabytes.

    It stays JSON of the same form: a value of the environment may also be a number, or a word such as `text` or `true`.
    """
    text = bytes(payload).decode("utf-8", "replace")
    if "\\" not in text and redact(text) == text:
        return payload

    def without(match: re.Match[str]) -> str:
        written = match[1]
        is_number = not written.startswith('"')
        plain: str = json.loads(written) if "\\" in written else written.strip('"')
        hidden = redact(plain)
        if hidden == plain or (_is_spared_name(plain, hidden) if match[2] is not None else plain in FORM_WORDS):
            return match[0]
        return json.dumps(MARK if is_number else hidden, ensure_ascii=False) + (match[2] or "")

    return msgspec.Raw(_VALUE.sub(without, text).encode("utf-8", "surrogatepass"))


def _is_spared_name(plain: str, hidden: str) -> bool:
    return len(plain) - len(hidden.replace(MARK, "")) < KEY_LENGTH_MIN


def redact_json(
    payload: msgspec.Raw, redact: Redact, shortest: int = 0, instead: msgspec.Raw = REDACTED
) -> msgspec.Raw:
    """JSON without the credentials, otherwise byte for byte the same; texts shorter than `shortest` are kept."""
    if redact is str:
        return payload
    raw = bytes(payload)
    text = raw.decode("utf-8", "surrogatepass")
    is_bare, is_crowded = "\\" not in text, raw.count(b'"') > 2 * STRINGS_MAX
    # Most failures contain no secret; without escapes that is visible at once.
    if (is_bare or is_crowded) and redact(text) == text:
        return payload
    if is_crowded:
        return instead

    def without(match: re.Match[bytes]) -> bytes:
        plain: str = json.loads(match[1])
        hidden = redact(plain)
        is_spared = _is_spared_name(plain, hidden) if match[2] is not None else len(plain) < shortest
        return match[0] if is_spared or hidden == plain else json.dumps(hidden).encode() + (match[2] or b"")

    return msgspec.Raw(_STRING.sub(without, raw))
