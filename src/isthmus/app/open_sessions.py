"""The open sessions and event streams of all frontends, for operators. `app.serve` gives it to REST.

Nothing here lets a reader take a session over: no ids, no cookies, no keys.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from isthmus.core.ports import CallerSession, CallerStreams, SessionList
from isthmus.frontends.a2a.http import A2aHttp
from isthmus.frontends.http.auth import Authenticator
from isthmus.frontends.mcp.http import McpHttp
from isthmus.frontends.mcp.sse import McpSse
from isthmus.model.callers import Caller

SHOWN_MAX = 500
"""Sessions in one answer; a caller may have a thousand."""


class OpenSessions:
    """Collects what the frontends have open; see `core.ports.SessionAdmin`."""

    def __init__(self, mcp: McpHttp, sse: McpSse, agent: A2aHttp, auth: Authenticator) -> None:
        """`auth` knows the sessions of the console, if there is one."""
        self._mcp = mcp
        self._sse = sse
        self._agent = agent
        self._auth = auth

    def describe(self, rest_streams: Iterable[Caller]) -> SessionList:
        """All of them; `rest_streams` has the caller of each stream that REST itself has open."""
        total = 0

        def counted() -> Iterator[CallerSession]:
            nonlocal total
            for session in self._sessions():
                total += 1
                yield session

        latest = heapq.nlargest(SHOWN_MAX, counted(), key=lambda session: session.last_used)
        return SessionList(tuple(latest), total, tuple(self._streams(rest_streams)))

    def _sessions(self) -> Iterator[CallerSession]:
        since = time.time() - asyncio.get_running_loop().time()
        yield from self._mcp.sessions.describe(since)
        yield from self._sse.describe(since)
        since = time.time() - time.monotonic()
        for each in () if self._auth.sessions is None else self._auth.sessions.open():
            times = (since + each.opened_at, since + each.used_at)
            yield CallerSession("console", each.caller, each.tenant, None, None, None, *times, calls=0, streams=0)

    def _streams(self, rest_streams: Iterable[Caller]) -> Iterator[CallerStreams]:
        open_streams: dict[str, list[Caller]] = {
            "mcp": self._mcp.streams.callers(),
            "sse": self._sse.stream_callers(),
            "a2a": self._agent.stream_callers(),
            "rest": list(rest_streams),
        }
        for frontend, callers in open_streams.items():
            counts = Counter((caller.name, caller.tenant) for caller in callers)
            for (name, tenant), count in sorted(counts.items()):
                yield CallerStreams(frontend, name, tenant, count)
