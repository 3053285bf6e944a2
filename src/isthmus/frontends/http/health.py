"""Health probes: whether the process lives and is ready. They need no key; only operators get details."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.frontends.http.auth import Authenticator, Denied
from isthmus.frontends.http.request_cycle import Message, Receive, Send, join_headers

LIVE, READY, HEALTHY = PATHS = ("/livez", "/readyz", "/healthz")


class Health:
    """Answers probes.

    `/livez` is 200 while the process can answer, `/healthz` until the hub is draining. `/readyz` is also 503 while a
    first list would wait for starting servers (at most `listing_seconds`, so that one broken server does not block the
    others), and while the journal refuses every write.
    """

    def __init__(self, hub: Hub, auth: Authenticator, is_storage_failing: Callable[[], bool] = lambda: False) -> None:
        self._hub = hub
        self._auth = auth
        self._is_storage_failing = is_storage_failing

    async def serve(self, scope: Message, _: Receive, send: Send) -> None:
        """Answer one probe."""
        path = scope["path"]
        starting = self._hub.awaited() if path == READY else []
        status = "draining" if self._hub.is_draining and path != LIVE else "starting" if starting else "ok"
        if status == "ok" and path == READY and self._is_storage_failing():
            status = "storage_failing"
        document: dict[str, object] = {"status": status}
        caller = self._auth.admit(join_headers(scope["headers"]), "rest") if path == READY else None
        if caller is not None and not isinstance(caller, Denied) and caller.is_operator:
            unready = (each for each in self._hub.snapshot.server_statuses.values() if each.state == "starting")
            document["starting"] = sorted(server_status.server for server_status in unready)
        body = msgspec.json.encode(document)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200 if status == "ok" else 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
