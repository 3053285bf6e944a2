"""What servers ask back while a tool runs, put to functions of the program's own.

An asynchronous function runs on the asyncio loop from which the tool was executed; where there is none, where it stands
still, and for a plain function, a thread of its own is started. Both see the context variables of whoever had the tool
executed. Called by `library.executions`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec
import structlog

from isthmus.model.questions import NOT_ASKED, Answered, ClientCapabilities, Declined, Question, Reply

log = structlog.get_logger(__name__)

Handler: TypeAlias = Callable[[dict[str, Any]], Awaitable[Mapping[str, Any] | None] | Mapping[str, Any] | None]
"""Given the parameters of the question, returns its result; None declines."""

OnAnswer: TypeAlias = Callable[[Reply], None]


@dataclass(frozen=True, slots=True)
class Questions:
    """Who answers what; servers are told of no more than there is somebody for."""

    elicitation: Handler | None = None
    """Asked for something by a person, with `message` and `requestedSchema`; answers the content, or a result with its
    `action`."""
    sampling: Handler | None = None
    """Asked for a language model's words: parameters and result of `sampling/createMessage`."""
    roots: Handler | None = None
    """Asked for folders: answers `{"roots": [{"uri": …}]}`."""

    @property
    def client_caps(self) -> ClientCapabilities:
        """What servers are told."""
        said = {"elicitation": self.elicitation, "sampling": self.sampling, "roots": self.roots}
        words = {word for word, handler in said.items() if handler is not None}
        return frozenset(words | {"elicitation.form"} if "elicitation" in words else words)

    def handler_of(self, question: Question) -> Handler | None:
        """Whom to ask."""
        match question.method:
            case "elicitation/create":
                return self.elicitation
            case "sampling/createMessage":
                return self.sampling
            case "roots/list":
                return self.roots
            case _:
                return None


class Asking:
    """Puts what one execution is asked to the program, as whoever had it executed: on its loop, in its context."""

    def __init__(self, questions: Questions, loop: asyncio.AbstractEventLoop | None) -> None:
        """Made by who has it executed; without a `loop`, because there is none or it stands still, threads are used."""
        self._questions = questions
        self._loop = loop
        self._context = contextvars.copy_context()

    def put(self, question: Question, answer: OnAnswer) -> Callable[[], None]:
        """Ask; `answer` is called once, from any thread, unless what is returned is called before to take it back."""
        handler = self._questions.handler_of(question)
        if handler is None:
            answer(NOT_ASKED)
            return _nothing
        params = msgspec.json.decode(question.params)
        context = self._context.copy()
        if self._loop is not None and inspect.iscoroutinefunction(handler):
            return _on_loop(self._loop, context, partial(_asked, handler, params, question.method, answer))
        aside = _Aside(handler, params, question.method, answer)
        threading.Thread(target=context.run, args=(aside.run,), name="isthmus question", daemon=True).start()
        return aside.take_back


def _nothing() -> None:
    """Nobody was asked."""


def _on_loop(
    loop: asyncio.AbstractEventLoop, context: contextvars.Context, work: Callable[[], Coroutine[Any, Any, None]]
) -> Callable[[], None]:
    tasks: list[asyncio.Task[None]] = []

    def begin() -> None:
        tasks.append(loop.create_task(work()))

    def take_back() -> None:
        for task in tasks:
            task.cancel()

    with suppress(RuntimeError):  # the loop is closed, and whoever was to be asked is gone; so is the call
        loop.call_soon_threadsafe(begin, context=context)
    return partial(_post, loop, take_back)


def _post(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # as above
        loop.call_soon_threadsafe(function)


async def _asked(handler: Handler, params: dict[str, Any], method: str, answer: OnAnswer) -> None:
    try:
        found = handler(params)
        reply = _reply_to(method, await found if inspect.isawaitable(found) else found)
    except BaseException as error:
        answer(_failed(error))
        if not isinstance(error, Exception):
            raise
    else:
        answer(reply)


class _Aside:
    """A question in a thread of its own: a plain function is called as it is, an asynchronous one gets a loop.

    Only the latter can be taken back; the answer of the former comes too late.
    """

    def __init__(self, handler: Handler, params: dict[str, Any], method: str, answer: OnAnswer) -> None:
        self._handler = handler
        self._params = params
        self._method = method
        self._answer = answer
        self._is_back = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def run(self) -> None:
        """Ask, and answer."""
        try:
            found = self._handler(self._params)
            given = asyncio.run(self._awaited(found)) if inspect.isawaitable(found) else found
            reply = _reply_to(self._method, given)
        except BaseException as error:  # noqa: BLE001 - `sys.exit` in a handler ends nothing but its question
            reply = _failed(error)
        self._answer(reply)

    async def _awaited(self, found: Awaitable[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
        task = asyncio.current_task()
        assert task is not None
        self._running = asyncio.get_running_loop(), task
        if self._is_back:
            task.cancel()
        return await found

    def take_back(self) -> None:
        """Nobody waits for the answer any more."""
        self._is_back = True
        if self._running is not None:
            loop, task = self._running
            _post(loop, task.cancel)


def _reply_to(method: str, found: Mapping[str, Any] | None) -> Reply:
    result = _as_result(method, found)
    return _DECLINED if result is None else Answered(msgspec.Raw(msgspec.json.encode(result)))


def _failed(error: BaseException) -> Declined:
    if isinstance(error, asyncio.CancelledError):
        return _GONE
    # Its words are the program's own, and may quote anything: they are not for a server.
    log.warning("a question of a server could not be answered", exc_info=error)
    return Declined(-32603, f"Whoever was asked failed ({type(error).__name__})")


def _as_result(method: str, found: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What a person was asked for may be answered by itself."""
    if method != "elicitation/create":
        return found
    if found is None:
        return {"action": "decline"}
    return found if "action" in found else {"action": "accept", "content": found}


_DECLINED = Declined(-1, "Declined")
_GONE = Declined(-32603, "Whoever was asked is gone")
