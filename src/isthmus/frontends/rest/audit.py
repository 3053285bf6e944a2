"""The audit log, for operators: pages, exports as JSON Lines, and verification with progress."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import msgspec

from isthmus.core.admin_ports import AuditBusy, AuditFilter, AuditProgress, AuditReports, NoAuditLog
from isthmus.core.audit import read_moment
from isthmus.frontends.http.request_cycle import (
    CROWDED_BYTES,
    STREAM,
    DrainAwarePeer,
    KeepAlive,
    Peer,
    header_lines,
)
from isthmus.frontends.rest.access import Query, read_count
from isthmus.frontends.rest.problem_details import Problem, refusal
from isthmus.wire import sse

RECORDS_MAX = 500
RECORDS_DEFAULT = 100

TAKEN_SECONDS = 60.0
"""How long a client may take for one piece of an export."""

LINES = header_lines(
    [
        (b"content-type", b"application/x-ndjson"),
        (b"content-disposition", b'attachment; filename="audit.jsonl"'),
        (b"cache-control", b"no-store, no-transform"),
        (b"x-accel-buffering", b"no"),
    ]
)


def read_filter(query: Query) -> AuditFilter | Problem:
    """Which records a request is about."""
    times = {"since": 0.0, "until": float("inf")}
    for name in times.keys() & query.keys():
        try:
            times[name] = read_moment(query[name], time.time())
        except ValueError as error:
            return refusal("bad_request", f"{name} {error}")
    return AuditFilter(
        query.get("caller"),
        query.get("server"),
        query.get("tool"),
        query.get("outcome"),
        query.get("event"),
        times["since"],
        times["until"],
    )


async def audit_page(reports: AuditReports, query: Query) -> bytes | Problem:
    """The newest records before a cursor."""
    wanted = read_filter(query)
    limit = read_count(query, "limit", RECORDS_DEFAULT, RECORDS_MAX)
    if isinstance(wanted, Problem):
        return wanted
    if isinstance(limit, Problem):
        return limit
    try:
        return msgspec.json.encode(await reports.page(wanted, limit, query.get("cursor")))
    except ValueError as error:
        return refusal("bad_request", str(error))
    except OSError as error:
        return refusal("storage_failed", str(error))


async def export_audit(
    reports: AuditReports, query: Query, peer: DrainAwarePeer, ended: asyncio.Future[None]
) -> Problem | None:
    """Send all records in pieces, each when the client has taken the one before; `ended` stops it."""
    wanted = read_filter(query)
    if isinstance(wanted, Problem):
        return wanted
    is_begun = False
    try:
        async with aclosing(reports.export(wanted, ended)) as pieces:
            async for piece in pieces:
                if not is_begun:
                    peer.begin(200, LINES)
                    is_begun = True
                peer.push(piece)
                if not await _is_taken(peer, ended):
                    return None
    except (AuditBusy, NoAuditLog, OSError) as error:
        if not is_begun:
            return _problem(error)
        peer.abort()  # a client must not take a part for the whole
        return None
    if not is_begun:
        peer.begin(200, LINES)
    if ended.done():
        peer.abort()
    else:
        peer.end(b"")
    return None


async def _is_taken(peer: DrainAwarePeer, ended: asyncio.Future[None]) -> bool:
    """Wait until the client has taken everything; False if it has gone, or takes too long."""
    taken: asyncio.Future[None] = ended.get_loop().create_future()
    peer.on_taken(lambda: None if taken.done() else taken.set_result(None))
    await asyncio.wait({taken, ended}, timeout=TAKEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if not taken.done():
        peer.abort()
    return taken.done()


async def verify_audit(
    reports: AuditReports, peer: Peer, ended: asyncio.Future[None], *, is_streamed: bool
) -> bytes | Problem | None:
    """Verify all logs. As a stream, progress comes first."""
    progress: ProgressStream | None = None
    document = b""
    try:
        async with aclosing(reports.verify(ended)) as steps:
            async for step in steps:
                if not isinstance(step, AuditProgress):
                    document = msgspec.json.encode(step)
                elif is_streamed:
                    progress = progress or ProgressStream(peer, ended.get_loop())
                    progress.send(step)
    except (AuditBusy, NoAuditLog, OSError) as error:
        if progress is None:
            return _problem(error)
        progress.end(_problem(error).body(), "error")
        return None
    if progress is None and document:
        return document
    if progress is not None and document:
        progress.end(document, "result")
    else:
        peer.abort()
    return None


class ProgressStream:
    """A response that reports progress and ends with a document."""

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        peer.begin(200, STREAM)
        self._keep_alive = KeepAlive(peer, loop)

    def send(self, progress: AuditProgress) -> None:
        """Report how far it is, unless the client is behind."""
        if self._peer.buffered_bytes() <= CROWDED_BYTES:
            self._peer.push(sse.frame(msgspec.json.encode(progress), event="progress"))

    def end(self, document: bytes, event: str) -> None:
        """Send the last event."""
        self._keep_alive.stop()
        self._peer.end(sse.frame(document, event=event))


def _problem(error: AuditBusy | NoAuditLog | OSError) -> Problem:
    if isinstance(error, OSError):
        return refusal("storage_failed", str(error))
    return refusal("busy" if isinstance(error, AuditBusy) else "no_audit_log", str(error))
