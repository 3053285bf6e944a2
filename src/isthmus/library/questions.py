"""Requests from servers to the program while a tool runs: elicitation, sampling and roots.

An `async def` handler runs on the asyncio loop that executes the tool. If there is no such loop, or it is blocked, and
for `def` handlers, a new thread runs the handler. Handlers see the context variables of the code that executes the
tool. Called by `library.streaming`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec
import structlog

from isthmus.model.calls import NOT_ASKED, Answered, ClientCapabilities, Declined, Question, Reply

log = structlog.get_logger(__name__)

Handler: TypeAlias = Callable[[dict[str, Any]], Awaitable[Mapping[str, Any] | None] | Mapping[str, Any] | None]
"""Takes the request's parameters and returns its result; None declines."""

OnReplied: TypeAlias = Callable[[Reply], None]


@dataclass(frozen=True, slots=True)
class Questions:
    """Handlers for requests from servers. Only capabilities with a handler are announced to servers."""

    elicitation: Handler | None = None
    """Asks a person. Gets `message` and `requestedSchema`; returns the content, or a result with its `action`."""
    sampling: Handler | None = None
    """Calls a language model: parameters and result of `sampling/createMessage`."""
    roots: Handler | None = None
    """Lists folders: returns `{"roots": [{"uri": …}]}`."""

    @property
    def client_caps(self) -> ClientCapabilities:
        """The capabilities that are announced to servers."""
        handlers = {"elicitation": self.elicitation, "sampling": self.sampling, "roots": self.roots}
        names = {name for name, handler in handlers.items() if handler is not None}
        return frozenset(names | {"elicitation.form"} if "elicitation" in names else names)


class QuestionRunner:
    """Runs the handlers for one execution, on the loop and in the context of the code that executes the tool."""

    def __init__(self, questions: Questions, loop: asyncio.AbstractEventLoop | None) -> None:
        """Made in the caller's context. `loop` is None if the caller has none or blocks it; then threads are used."""
        self._questions = questions
        self._loop = loop
        self._context = contextvars.copy_context()

    def ask(self, question: Question, on_replied: OnReplied) -> Callable[[], None]:
        """Run the handler. `on_replied` is called once, from any thread, unless the returned function cancels it."""
        handlers = {
            "elicitation/create": self._questions.elicitation,
            "sampling/createMessage": self._questions.sampling,
            "roots/list": self._questions.roots,
        }
        handler = handlers.get(question.method)
        if handler is None:
            on_replied(NOT_ASKED)
            return lambda: None
        params = msgspec.json.decode(question.params)
        context = self._context.copy()
        loop = self._loop
        if loop is None or not inspect.iscoroutinefunction(handler):
            thread = _HandlerThread(handler, params, question.method, on_replied)
            threading.Thread(target=context.run, args=(thread.run,), name="isthmus question", daemon=True).start()
            return thread.cancel
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            try:
                reply = _reply_to(question.method, await handler(params))
            except BaseException as error:
                on_replied(_failed(error))
                if not isinstance(error, Exception):
                    raise
            else:
                on_replied(reply)

        def start() -> None:
            tasks.append(loop.create_task(run()))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        with suppress(RuntimeError):  # the loop is closed, and the call has ended with it
            loop.call_soon_threadsafe(start, context=context)
        return partial(_post, loop, cancel)


def _post(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # as above
        loop.call_soon_threadsafe(function)


class _HandlerThread:
    """A handler in its own thread: a `def` is called directly, an `async def` gets a new loop.

    Only the latter can be cancelled; the late reply of a `def` is ignored.
    """

    def __init__(self, handler: Handler, params: dict[str, Any], method: str, on_replied: OnReplied) -> None:
        self._handler = handler
        self._params = params
        self._method = method
        self._on_replied = on_replied
        self._is_cancelled = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def run(self) -> None:
        """Call the handler and pass its reply on."""

        async def wait(found: Awaitable[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
            task = asyncio.current_task()
            assert task is not None
            self._running = asyncio.get_running_loop(), task
            if self._is_cancelled:
                task.cancel()
            return await found

        try:
            found = self._handler(self._params)
            result = asyncio.run(wait(found)) if inspect.isawaitable(found) else found
            reply = _reply_to(self._method, result)
        except BaseException as error:  # noqa: BLE001 - `sys.exit` in a handler ends only this request
            reply = _failed(error)
        self._on_replied(reply)

    def cancel(self) -> None:
        """Stop the handler, if it can be stopped."""
        self._is_cancelled = True
        if self._running is not None:
            loop, task = self._running
            _post(loop, task.cancel)


def _reply_to(method: str, found: Mapping[str, Any] | None) -> Reply:
    """The reply to a request; an elicitation handler may return the content alone."""
    if method == "elicitation/create":
        if found is None:
            found = {"action": "decline"}
        elif "action" not in found:
            found = {"action": "accept", "content": found}
    return _DECLINED if found is None else Answered(msgspec.Raw(msgspec.json.encode(found)))


def _failed(error: BaseException) -> Declined:
    if isinstance(error, asyncio.CancelledError):
        return _CANCELLED
    # The server gets only the type: the message may hold anything of the program's own.
    log.warning("the handler of a server's request failed", exc_info=error)
    return Declined(-32603, f"The handler failed ({type(error).__name__})")


_DECLINED = Declined(-1, "Declined")
_CANCELLED = Declined(-32603, "The handler was cancelled")
