"""Health probes and metrics: whether the process lives, is ready and has all its servers, and `/metrics`.

Probes need no key and tell one word; operators get the state of each server with `?verbose`. Metrics are for operators,
for the scraper that has their key, or for anybody, as the operator decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.frontends.http.auth import Authenticator, Denied, Fields
from isthmus.frontends.http.request_cycle import (
    PEER,
    Message,
    Peer,
    Receive,
    Send,
    accepted_types,
    header_lines,
    join_headers,
    respond,
)
from isthmus.model.names import ServerName

LIVE, READY, HEALTHY = PATHS = ("/livez", "/readyz", "/healthz")
METRICS_PATH = "/metrics"

BROKEN = ("retrying", "login", "away")
"""States of a server that should be connected and is not. `starting` is not one of them: it has not failed yet."""

OPEN_METRICS = b"application/openmetrics-text"


class Health:
    """Answers probes.

    `/livez` is 200 while the process can answer, `/healthz` until the hub is draining. `/readyz` is also 503 while a
    first list would wait for starting servers (at most `listing_seconds`, so that one broken server does not block the
    others), while the journal refuses every write, and while a server with `required = true` is not connected. Any
    other broken server, or a node that is cut off from the others, makes the hub `degraded`, which is still 200: the
    other servers' tools work.
    """

    def __init__(
        self,
        hub: Hub,
        auth: Authenticator,
        is_storage_failing: Callable[[], bool] = lambda: False,
        required: Callable[[], Collection[ServerName]] = tuple,
        cluster: Callable[[], str | None] | None = None,
        differences: Callable[[], Mapping[str, Sequence[str]]] = dict,
    ) -> None:
        """`cluster` returns why this node is cut off from the others, None if it is not; without it there are none.

        `differences` returns, by node, the tables of its configuration that differ from this one's, and for this node
        why it does not use all of the newest configuration.
        """
        self._hub = hub
        self._auth = auth
        self._is_storage_failing = is_storage_failing
        self._required = required
        self._cluster = cluster
        self._differences = differences

    async def serve(self, scope: Message, _: Receive, send: Send) -> None:
        """Answer one probe."""
        path = scope["path"]
        status, is_well = self._status(path)
        document: dict[str, object] = {"status": status}
        is_verbose = scope["query_string"].split(b"=")[0] == b"verbose"
        caller = self._auth.admit(join_headers(scope["headers"]), "rest") if path == READY or is_verbose else None
        if caller is not None and not isinstance(caller, Denied) and caller.is_operator:
            document |= self._details(is_verbose=is_verbose)
        body = msgspec.json.encode(document)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200 if is_well else 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _status(self, path: str) -> tuple[str, bool]:
        """The word for a probe, and whether it is a good one."""
        if path == LIVE:
            return "ok", True
        if self._hub.is_draining:
            return "draining", False
        if path == READY:
            if self._hub.awaited():
                return "starting", False
            if self._is_storage_failing():
                return "storage_failing", False
            statuses = self._hub.snapshot.server_statuses
            if any(name not in statuses or statuses[name].state != "ready" for name in self._required()):
                return "server_failing", False
        is_broken = any(each.state in BROKEN for each in self._hub.snapshot.server_statuses.values())
        # Its own servers work: taking every node out of the load balancer would stop those, too.
        is_broken = is_broken or (self._cluster is not None and self._cluster() is not None)
        return "degraded" if is_broken else "ok", True

    def _details(self, *, is_verbose: bool) -> dict[str, object]:
        statuses = self._hub.snapshot.server_statuses
        found: dict[str, object] = {
            "starting": sorted(name for name, each in statuses.items() if each.state == "starting")
        }
        if is_verbose:
            required = self._required()
            found["storage"] = "failing" if self._is_storage_failing() else "ok"
            differences = self._differences()
            if self._cluster is not None:
                found["cluster"] = self._cluster() or "ok"
            if self._cluster is not None or differences:
                found["configuration"] = differences or "ok"
            found["servers"] = {
                name: {"state": each.state, "reason": each.reason, "required": name in required}
                for name, each in sorted(statuses.items())
            }
        return found


NEEDS_OPERATOR = (
    "Only operators may read metrics: send Authorization: Bearer KEY with a key of `isthmus token create NAME"
    " --operator`, or with metrics_key of [telemetry]"
)


class RenderMetrics(Protocol):
    """Renders all metrics."""

    def __call__(self, *, is_open_metrics: bool) -> Awaitable[tuple[bytes, bytes]]:
        """The media type and the text."""


class Metrics:
    """Serves `/metrics`. `is_allowed` accepts requests that need no operator; None means that there are no metrics."""

    def __init__(
        self,
        auth: Authenticator,
        is_allowed: Callable[[Fields], bool | None],
        render: RenderMetrics,
    ) -> None:
        self._auth = auth
        self._is_allowed = is_allowed
        self._render = render

    async def serve(self, scope: Message, _: Receive, __: Send) -> None:
        """Answer one scrape."""
        peer: Peer = scope["extensions"][PEER]
        fields = join_headers(scope["headers"])
        is_allowed = self._is_allowed(fields)
        if is_allowed is None:
            return respond(peer, 404, "This hub shows no metrics")
        # Host and Origin are checked for everybody: a web page must not read what its visitor may.
        denied = self._auth.place(fields)
        if denied is None and not is_allowed:
            caller = self._auth.admit(fields, "rest", scope)
            if isinstance(caller, Denied):
                self._auth.on_turned_away("metrics", caller.status)
                denied = Denied(401, NEEDS_OPERATOR, caller.headers) if caller.status == 401 else caller
            elif not caller.is_operator:
                denied = Denied(403, NEEDS_OPERATOR)
        if denied is not None:
            return respond(peer, denied.status, denied.message, denied.headers)
        if scope["method"] not in ("GET", "HEAD"):
            return respond(peer, 405, "Use GET", ((b"allow", b"GET, HEAD"),))
        kind, text = await self._render(is_open_metrics=OPEN_METRICS in accepted_types(fields))
        return peer.answer(200, header_lines([(b"content-type", kind), (b"cache-control", b"no-store")]), text)
