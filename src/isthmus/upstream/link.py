"""What every kind of link shares: asking a server the hub's own questions, greeting it, and reading its tools.

A kind (stdio, streamable, …) adds how one request travels: `_dispatch`. The supervisor owns links; lanes send calls
on them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, NotConnected, ServerError
from isthmus.model.names import ServerName, ToolName
from isthmus.model.tools import Tool
from isthmus.upstream.dialect import Dialect, LegacyDialect, ModernDialect
from isthmus.upstream.settings import Era
from isthmus.upstream.waiters import Inquiry, Waiter
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, Request
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.tools import Capabilities, Implementation, read_list

PAGES_MAX = 1_000
"""Pages of one listing; with the cursor check, an endless list costs a bounded number of requests."""

PAGE_BYTES_MAX = 4 * 1024 * 1024
"""One page of a list: a thousand tools of four kilobytes. Reading a larger one would hold up every other call."""

NOTES_MAX = 100
"""Things wrong with one list that the operator is told."""

PROBE_SECONDS = 3.0
"""How long a server may think about `server/discover` before it is greeted the earlier way as well: some old
servers ignore what comes before `initialize`, and a new one that is merely slow still answers the probe first."""

ASK_SECONDS = 30.0
"""How long the hub waits for the answer to a question of its own; a listing may take a server a while."""

NOT_MODERN = (400, 404, 405, 406, 415)
"""HTTP answers to the probe that an earlier server gives to what it does not know."""

REFUSED_VERSION = -32022


class ConnectFailed(Exception):
    """A link could not be made; the message says why in words for the operator."""


class BaseLink(ABC):
    """A link being made, in use, or lost.

    `lost` ends with the reason when the link can carry nothing more; `on_lost` hears it first, before the calls
    on the link do. `on_doubt` is called when something suggests that the server is gone. `on_changed` is called
    when the server says that its tools changed. `is_probing` tells a failed attempt's reader that the probe may
    have been what failed.
    """

    start_seconds = ASK_SECONDS
    """How long the first answer may take: a process may have to be installed and started first."""

    def __init__(self, server: ServerName, me: Implementation, limits: Limits) -> None:
        self.server = server
        self.dialect: Dialect = LegacyDialect()
        self.capabilities = Capabilities()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_changed: Callable[[], None] = lambda: None
        self.on_doubt: Callable[[], None] = lambda: None
        self.on_lost: Callable[[str], None] = lambda _reason: None
        self.is_probing = False
        self._me = me
        self.limits = limits
        self._last_id = 0

    @property
    def last_words(self) -> str | None:
        """What the operator may want to read beside the reason for which the link was lost."""
        return None

    # -- what a kind adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        """Send a request; its waiter hears the end."""

    @abstractmethod
    def _forget(self, waiter: Waiter) -> None:
        """Nobody waits any more."""

    @abstractmethod
    def _notify(self, method: str, params: Payload | None) -> None:
        """Send a notification."""

    @abstractmethod
    def listen(self) -> None:
        """Start hearing of changes, where the server announces them and the era needs a request for it."""

    @abstractmethod
    def send(self, inflight: InFlight) -> None:
        """See `core.ports.link.Link`."""

    @abstractmethod
    def may_have_run(self, inflight: InFlight) -> bool:
        """See `core.ports.link.Link`."""

    @abstractmethod
    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """See `core.ports.link.Link`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give the link up in good order; whatever is still on it ends as lost."""

    # -- asking ----------------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """Ids towards a server are the link's own, whatever the callers' are."""
        self._last_id += 1
        return self._last_id

    async def ask(self, method: str, params: bytes, within: float = ASK_SECONDS) -> msgspec.Raw:
        """Ask and wait for the result.

        Raises:
            Fault: the server refused, the link broke, or no answer came in time.
        """
        inquiry = Inquiry(self.server)
        self._dispatch(self.next_id(), method, params, inquiry)
        try:
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with the answer.
            async with asyncio.timeout(within):
                return await inquiry.answer
        except TimeoutError:
            raise BadReply(self.server, f"no answer to {method} within {within:g} s") from None
        finally:
            self._forget(inquiry)

    async def ping(self, within: float) -> None:
        """See whether the server still answers. Raises `Fault` if not; an error is an answer too."""
        try:
            await self.ask(self.dialect.probe, self.dialect.params(), within)
        except ServerError:
            return

    # -- greeting --------------------------------------------------------------------------------------------------

    async def greet(self, era: Era) -> None:
        """Find out the server's era, or use the one that is known, and open the link in it.

        Raises:
            ConnectFailed: it answered, but not as a server of any era would.
            Fault: it did not answer.
        """
        if era != "legacy":
            discovery = await self._discover(patience=None if era == "modern" else PROBE_SECONDS)
            if discovery is not None:
                self.dialect = ModernDialect(self._me)
                self.capabilities = discovery.capabilities
                return
            if era == "modern":
                raise ConnectFailed("it does not speak MCP 2026-07-28, as its configuration says it should")
        await self._initialize()

    async def _discover(self, patience: float | None) -> modern.Discovery | None:
        self.is_probing = True
        params = ModernDialect(self._me).params()
        try:
            answer = await self.ask(modern.DISCOVER, params, self.start_seconds if patience is None else patience)
        except NotConnected as refused:
            if refused.status not in NOT_MODERN:
                raise
            answer = None
        except (ServerError, BadReply):
            answer = None  # an error, silence, or an answer no modern server gives: ask the earlier way
        self.is_probing = False
        return None if answer is None else modern.read_discovery(answer)

    async def _initialize(self) -> None:
        try:
            answer = await self.ask("initialize", legacy.initialize_params(self._me), self.start_seconds)
        except ServerError as refused:
            if refused.code == REFUSED_VERSION and (discovery := await self._discover(None)) is not None:
                # Its answer to the probe came too late; by then it had settled on the modern era.
                self.dialect = ModernDialect(self._me)
                self.capabilities = discovery.capabilities
                return
            raise ConnectFailed(f"it refused to initialize: {refused.message} ({refused.code})") from refused
        welcome = legacy.read_welcome(answer)
        if isinstance(welcome, str):
            raise ConnectFailed(welcome)
        self.dialect = LegacyDialect(welcome.protocolVersion)
        self.capabilities = welcome.capabilities
        self._notify("notifications/initialized", None)

    # -- listing ---------------------------------------------------------------------------------------------------

    async def list_tools(self) -> tuple[list[Tool], list[str]]:
        """All pages of the server's tools, and what had to be left out.

        Raises:
            Fault: the server gave no usable list.
        """
        if self.capabilities.tools is None:
            return [], ["it says that it has no tools"]
        found: dict[ToolName, Tool] = {}
        notes: list[str] = []
        cursors: set[str] = set()
        members: Mapping[str, Payload] = {}
        for _ in range(PAGES_MAX):
            answer = await self.ask("tools/list", self.dialect.params(members))
            if len(memoryview(answer)) > PAGE_BYTES_MAX:
                raise BadReply(self.server, f"a page of its list of tools has over {PAGE_BYTES_MAX} bytes")
            page = read_list(answer)
            if isinstance(page, str):
                raise BadReply(self.server, page)
            notes.extend(page.problems)
            self._take(page.tools, found, notes)
            cursor = page.next_cursor
            if cursor is None or len(found) >= self.limits.tools_per_server:
                return list(found.values()), notes
            if cursor in cursors:
                return list(found.values()), [*notes, "its list of tools runs in a circle and was cut"]
            cursors.add(cursor)
            members = {"cursor": msgspec.json.encode(cursor)}
        return list(found.values()), [*notes, f"its list of tools has over {PAGES_MAX} pages and was cut"]

    def _take(
        self, tools: list[tuple[str, dict[str, msgspec.Raw]]], found: dict[ToolName, Tool], notes: list[str]
    ) -> None:
        for text, definition in tools:
            name = ToolName(text)
            if name in found:
                if len(notes) < NOTES_MAX:
                    notes.append(f"{text!r} is listed twice; the first is used")
            elif len(found) >= self.limits.tools_per_server:
                notes.append(f"it has over {self.limits.tools_per_server} tools; the rest was left out")
                return
            elif sum(len(memoryview(value)) for value in definition.values()) > self.limits.schema_bytes:
                notes.append(f"{text!r} left out: its description is over {self.limits.schema_bytes} bytes")
            else:
                found[name] = Tool.of(self.server, name, definition)

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
            self.on_lost(reason)


def reply_to(request: Request) -> bytes:
    """Answer a server's own request: the hub declared no capability, so nothing but a ping may be asked of it."""
    if request.method == "ping":
        return jsonrpc.result(request.id, b"{}")
    text = f"{request.method} is not supported by this client"
    return jsonrpc.error(request.id, jsonrpc.METHOD_NOT_FOUND, text)
