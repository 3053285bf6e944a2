"""Python functions of the operator's own, run in the hub's process behind the same link as any server's.

A plain function runs in a thread, so that one that waits or computes holds up nobody; an asynchronous one runs on
the loop as a member of the crew. Asynchronous functions are cancelled with their calls; threads cannot be: the call
ends, the function goes on, its thread is taken until it returns, and what it returns is dropped. The functions are
trusted: they can do whatever the hub can. Their authors find `Context` here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Set
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from isthmus.core.calls.inflight import InFlight
from isthmus.core.crew import Crew
from isthmus.core.settings import Limits
from isthmus.model.events import Event, LogLevel, Progress
from isthmus.model.faults import BadArguments, BadReply, NotConnected
from isthmus.model.features import TOPICS, Ability, Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import NOTHING, Profile
from isthmus.upstream.dialect import LegacyDialect
from isthmus.upstream.link import BaseLink, ConnectFailed
from isthmus.upstream.listing import Listing
from isthmus.upstream.modules import begin_to_load
from isthmus.upstream.settings import Era, PythonSettings
from isthmus.upstream.signatures import BadArgument, Context, Function
from isthmus.upstream.waiters import Waiter, lost, turned_away
from isthmus.upstream.workers import ASIDE, Workers, divert_prints
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.messages import Implementation
from isthmus.wire.mcp.results import failure, plain, result_of

__all__ = ["Context", "PythonLink"]

log = structlog.get_logger(__name__)

EVENTS_MAX = 256
"""Events that may wait on their way from a thread to the loop; the oldest of more are dropped."""

WORDS_LENGTH_MAX = 2_000
"""An exception's text may quote anything; a caller needs its beginning."""


class PythonLink(BaseLink):
    """The functions that one target names."""

    can_ask = False
    carrier = "python"
    start_seconds = 60.0

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        *,
        reach: PythonSettings,
        crew: Crew,
        max_calls: int,
    ) -> None:
        super().__init__(server, me, limits)
        self.dialect = LegacyDialect("Python")
        self._reach = reach
        self._crew = crew
        self._workers = Workers(str(server), max_calls)
        self._functions: dict[str, Function] = {}
        self._notes: tuple[str, ...] = ()
        self._works: set[_Work] = set()

    # -- greeting and listing --------------------------------------------------------------------------------------

    async def greet(self, era: Era) -> None:
        """Import the module.

        Raises:
            ConnectFailed: it cannot be imported, or has nothing that can be a tool.
        """
        divert_prints()
        try:
            async with asyncio.timeout(self.start_seconds):
                loaded = await asyncio.wrap_future(begin_to_load(self._reach))
        except TimeoutError:
            words = f"importing {self._reach.target} takes over {self.start_seconds:g} s"
            raise ConnectFailed(words) from None
        self._functions = {function.name: function for function in loaded.functions}
        self._notes = tuple(loaded.notes)

    async def ping(self, within: float) -> None:
        """It is always there."""

    def abilities(self) -> frozenset[Ability]:
        """Tools, and logging if a function can."""
        does_log = any(function.takes_context for function in self._functions.values())
        return frozenset(("tools", "logging") if does_log else ("tools",))

    async def list_features(
        self, topics: Set[Topic] = frozenset(TOPICS), known: Listing | None = None, profile: Profile = NOTHING
    ) -> Listing:
        """The functions, which stay as they are."""
        tools = [Tool.of(self.server, FeatureName(f.name), f.definition()) for f in self._functions.values()]
        return Listing(tuple(tools), notes={"tools": self._notes})

    def set_level(self, level: LogLevel) -> None:
        """A function's every line is passed on; whoever hears it chooses."""

    # -- running ---------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Run the function."""
        function = self._functions.get(inflight.name)
        if function is None or self.lost.done():
            inflight.finish(NotConnected(self.server, f"it has no function {inflight.name} any more"))
            return
        try:
            arguments = function.read(inflight.call.arguments)
        except BadArgument as bad:
            inflight.finish(BadArguments(inflight.call.name, str(bad)))
            return
        self._start(_Work(self, inflight, function, arguments))

    def _start(self, work: _Work) -> None:
        work.inflight.carriage = work
        self._works.add(work)
        if work.function.is_async:
            work.task = self._crew.spawn(f"function {work.function.name}", work.run_on_loop())
        else:
            self._workers.run(work.run_in_thread)

    def ended(self, work: _Work, outcome: Outcome) -> None:
        """A function is done; its call may have ended before."""
        self._works.discard(work)
        work.inflight.carriage = None
        work.inflight.finish(outcome)

    def may_have_run(self, inflight: InFlight) -> bool:
        """What has not begun is taken back by `withdraw`, before the loop gets to beginning it."""
        work = inflight.carriage
        return not isinstance(work, _Work) or self._has_begun(work)

    def _has_begun(self, work: _Work) -> bool:
        return work.has_begun if work.function.is_async else not self._workers.is_waiting(work.run_in_thread)

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Cancel what runs on the loop, take back what has not begun; a thread goes on."""
        work = inflight.carriage
        if isinstance(work, _Work):
            self._works.discard(work)
            self._workers.take_back(work.run_in_thread)
            if work.task is not None:
                work.task.cancel()

    async def aclose(self) -> None:
        """Give every call up; threads end when their functions do."""
        self._lose("closed by the hub")
        works, self._works = self._works, set()
        for work in works:
            has_begun = self._has_begun(work)
            self.withdraw(work.inflight, "closed by the hub")
            self.ended(work, lost(self.server, "closed by the hub", may_have_left=has_begun))
        self._workers.close()

    # -- what such a link has no use for ---------------------------------------------------------------------------

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        waiter.fail(turned_away(self.server, f"functions are not asked {method}"))

    def _forget(self, waiter: Waiter) -> None:
        """Nobody ever waits."""

    def _notify(self, method: str, params: Payload | None) -> None:
        """There is nobody to tell."""

    def listen(self) -> None:
        """The functions do not change."""


class _Work:
    """One call of one function."""

    __slots__ = ("_arguments", "_link", "_loop", "function", "has_begun", "inflight", "task")

    def __init__(self, link: PythonLink, inflight: InFlight, function: Function, arguments: dict[str, Any]) -> None:
        self._link = link
        self._arguments = arguments
        self._loop = asyncio.get_running_loop()
        self.inflight = inflight
        self.function = function
        self.has_begun = False
        self.task: asyncio.Task[None] | None = None

    async def run_on_loop(self) -> None:
        """Await the function; whatever it raises ends only its call, unless it is our own cancellation."""
        self.has_begun = True
        ASIDE.set(True)
        try:
            outcome = self._outcome_of(await self.function.call(self._arguments, self._context(self._emit)))
        except BaseException as error:  # also `SystemExit`, which would end the loop
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            outcome = self._failed(error)
        self._link.ended(self, outcome)

    def run_in_thread(self) -> Callable[[], None]:
        """Call the function, and return what is to be done on the loop."""
        try:
            value = self.function.call(self._arguments, self._context(_Outbox(self._loop, self._emit).put))
            outcome = self._outcome_of(value)
        except BaseException as error:  # noqa: BLE001 - a function's failure must not cost the thread
            outcome = self._failed(error)
        return lambda: self._link.ended(self, outcome)

    def _context(self, emit: Callable[[Event], None]) -> Context:
        return Context(self.inflight.call.caller.name, emit)

    def _emit(self, event: Event) -> None:
        if self.inflight.call.wants_progress or not isinstance(event, Progress):
            self.inflight.emit(event)

    def _outcome_of(self, value: Any) -> Outcome:
        text = msgspec.json.encode(value)
        if len(text) > self._link.limits.reply_bytes:
            return BadReply(self._link.server, f"a result of over {self._link.limits.reply_bytes} bytes")
        return result_of(text) if isinstance(value, dict) else plain(text)

    def _failed(self, error: BaseException) -> Outcome:
        log.warning("a function failed", server=self._link.server, function=self.function.name, exc_info=error)
        return failure(f"{type(error).__name__}: {_words_of(error)}".removesuffix(": ")[:WORDS_LENGTH_MAX])


def _words_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception's own text is code as well
        return ""


class _Outbox:
    """Takes events from a thread to the loop, in order: however many there are, one wake-up at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, emit: Callable[[Event], None]) -> None:
        self._loop = loop
        self._emit = emit
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._is_woken = False

    def put(self, event: Event) -> None:
        self._events.append(event)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed, and nobody listens any more
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._is_woken = False
        while self._events:
            self._emit(self._events.popleft())
