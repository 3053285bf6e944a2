"""Whether the process lives and whether it can be sent work; no key needed, and no detail given."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from isthmus.faces.http.turn import Message, Receive, Send

PATHS = ("/livez", "/readyz", "/healthz")


class Health:
    """Answers probes. `is_ready` says whether new work is welcome."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready

    async def serve(self, scope: Message, _: Receive, send: Send) -> None:
        """Answer one probe: `/livez` is well while it can answer at all, the others while work is welcome."""
        is_well = scope["path"] == "/livez" or self._is_ready()
        body = msgspec.json.encode({"status": "ok" if is_well else "draining"})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200 if is_well else 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
