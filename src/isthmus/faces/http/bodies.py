"""What every face over HTTP reads and writes alike: bodies of JSON, streams of events, headers given twice."""

from __future__ import annotations

import asyncio

import msgspec

from isthmus.core.pauses import pause_after
from isthmus.faces.http.gate import Fields, Headers
from isthmus.faces.http.turn import Peer, Receive, header_lines
from isthmus.wire import sse

KEEP_ALIVE_SECONDS = 15.0
"""An open stream says something at least this often, or a proxy in between may close it."""

CROWDED_BYTES = 64 * 1024
"""With this much unsent, events are skipped: a later report replaces an earlier one, and nobody waits for a log."""

JSON = header_lines([(b"content-type", b"application/json")])
# Chromium keeps a stream in its cache unless this forbids it, and then sends a DELETE to the same address twice.
STREAM = header_lines(
    [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-store, no-transform"),
        (b"x-accel-buffering", b"no"),
    ]
)


class KeepAlive:
    """Says nothing, audibly and regularly, on an open stream."""

    __slots__ = ("_loop", "_peer", "_timer")

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._loop = loop
        self._timer = loop.call_later(KEEP_ALIVE_SECONDS, self._beat)

    def _beat(self) -> None:
        self._peer.push(sse.comment())
        self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._beat)

    def stop(self) -> None:
        """The stream says something else, or has ended."""
        self._timer.cancel()


def joined(headers: Headers) -> dict[bytes, bytes]:
    """Headers by their names; those given twice as one list, which is what HTTP takes them for."""
    found = dict(headers)
    if len(found) == len(headers):
        return found
    found = {}
    for name, value in headers:
        found[name] = found[name] + b", " + value if name in found else value
    return found


def named_types(fields: Fields) -> list[bytes]:
    """The media types that `Accept` names, on one line or several, without their parameters."""
    return [part.partition(b";")[0].strip().lower() for part in fields.get(b"accept", b"").split(b",")]


def is_json(headers: Fields) -> bool:
    """Whether a request says that its body is JSON."""
    content_type = headers.get(b"content-type", b"")
    return content_type == b"application/json" or content_type.partition(b";")[0].strip().lower() == b"application/json"


async def read_body(receive: Receive) -> bytes | None:
    """The rest of the body as it arrives; None if the caller left meanwhile. The door limits its size."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            await pause_after(sum(map(len, chunks)))
            return b"".join(chunks)


def say(peer: Peer, status: int, text: str, headers: Headers = ()) -> None:
    """Answer with a status and a sentence, or without one."""
    if text:
        peer.answer(status, JSON + header_lines(headers), msgspec.json.encode({"error": text}))
    else:
        peer.answer(status, header_lines(headers), b"")
