"""What a server says went wrong, without what it was shown to let the hub in: it may repeat that to anybody.

Only failures are looked through, which are rare, for the very texts that the link showed (`BaseLink.redact`). What a tool
returns is its own affair. Called by links and by who waits for their answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.wire.jsonrpc import ErrorReply

Redact: TypeAlias = Callable[[str], str]
"""Takes secrets out of a text."""

KEY_LENGTH_MIN = 16
"""In names of members shorter secrets are left alone: one may be an ordinary word, and the answer could not be read."""

RESULT_LENGTH_MIN = 8
"""The same of texts in a result, of which some are words of the protocol."""

STRINGS_MAX = 4096
"""Texts of one failure that are looked at one by one; a server may answer with millions, and nobody else is served
meanwhile. Of more than that, the whole is left out if what is to be hidden can be seen in it."""

MARK = "***"
"""What stands in the place of a secret."""

REDACTED = msgspec.Raw(b'"***"')
REDACTED_RESULT = msgspec.Raw(b'{"content":[{"type":"text","text":"***"}],"isError":true}')

_STRING = re.compile(rb'("(?:[^"\\]|\\.)*")(\s*:)?', re.DOTALL)


@runtime_checkable
class Redacting(Protocol):
    """A link, or several, that know what their server was shown."""

    def redactor_for(self, inflight: InFlight) -> Redact:
        """What takes that out of a text which answers a call."""


def redact_error(reply: ErrorReply, redact: Redact) -> ErrorReply:
    """A server's error without what it was shown."""
    if redact is str:
        return reply
    data = None if reply.data is None else redact_json(reply.data, redact)
    return msgspec.structs.replace(reply, message=redact(reply.message), data=data)


def redact_result(payload: msgspec.Raw, redact: Redact) -> msgspec.Raw:
    """A result that tells of a failure, without what the server was shown."""
    return redact_json(payload, redact, RESULT_LENGTH_MIN, REDACTED_RESULT)


def redact_json(
    payload: msgspec.Raw, redact: Redact, shortest: int = 0, instead: msgspec.Raw = REDACTED
) -> msgspec.Raw:
    """JSON without what a server was shown, byte for byte the same elsewhere; texts below `shortest` are left alone."""
    if redact is str:
        return payload
    raw = bytes(payload)
    text = raw.decode("utf-8", "surrogatepass")
    is_bare, is_crowded = "\\" not in text, raw.count(b'"') > 2 * STRINGS_MAX
    # Most failures hold no secret; in one without escapes that can be seen at once.
    if (is_bare or is_crowded) and redact(text) == text:
        return payload
    if is_crowded:
        return instead

    def without(found: re.Match[bytes]) -> bytes:
        said: str = json.loads(found[1])
        hidden = redact(said)
        if found[2] is not None:
            is_spared = len(said) - len(hidden.replace(MARK, "")) < KEY_LENGTH_MIN
        else:
            is_spared = len(said) < shortest
        return found[0] if is_spared or hidden == said else json.dumps(hidden).encode() + (found[2] or b"")

    return msgspec.Raw(_STRING.sub(without, raw))
