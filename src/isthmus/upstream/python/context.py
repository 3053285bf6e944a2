"""What a function may know of its call, and report or ask while it runs.

`Context` is for authors of functions: a parameter annotated with it is filled by the hub. A question is sent as MCP's
`elicitation/create`, whatever the caller's protocol. `upstream.python.runner` makes one per call.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec

from isthmus.core.calls.inflight import InFlight, OpenQuestion
from isthmus.core.catalog.schema import ArgumentCheck, UnusableSchema, compile_check
from isthmus.model.calls import GIVEN_UP, LOG_LEVELS, Declined, Event, LogLevel, LogMessage, Progress, Question, Reply
from isthmus.upstream.waiters import ask_caller
from isthmus.wire.mcp.input_requests import CAPABILITY_NEEDED

ELICIT = "elicitation/create"

FORM_BYTES_MAX = 64 * 1024
"""How long the schema of a question may be: somebody has to fill in a form made of it."""

NOTHING_ASKED: Mapping[str, Any] = {"type": "object", "properties": {}}
"""A form without fields: the answer is yes or no."""


class NoAnswerError(RuntimeError):
    """A question that has no answer: nobody can be asked, the call is over, or what came back does not fit."""


class QuestionSender:
    """Sends the questions of one call to its caller, from any thread."""

    __slots__ = ("_inflight", "_loop")

    def __init__(self, inflight: InFlight, loop: asyncio.AbstractEventLoop) -> None:
        self._inflight = inflight
        self._loop = loop

    def can_ask(self) -> bool:
        """Whether the caller said that it can be asked."""
        return CAPABILITY_NEEDED[ELICIT] in self._inflight.call.client_caps

    def is_over(self) -> bool:
        """Whether the call has ended."""
        return self._inflight.is_over

    def is_loop_here(self) -> bool:
        """Whether this is the loop on which answers arrive."""
        return _running_loop() is self._loop

    def begin(self, question: Question) -> Future[Reply]:
        """Ask; cancelling the returned future cancels the question."""
        answer: Future[Reply] = Future()
        if self.is_loop_here():
            self._put(question, answer)
            return answer
        try:
            self._loop.call_soon_threadsafe(self._put, question, answer)
        except RuntimeError:  # the loop is closed, and with it everybody who could answer
            answer.set_result(GIVEN_UP)
        return answer

    def _put(self, question: Question, answer: Future[Reply]) -> None:
        asked = ask_caller(self._inflight, question, lambda reply: _give(answer, reply))
        if asked is not None:
            answer.add_done_callback(lambda done: self._retract(asked) if done.cancelled() else None)

    def _retract(self, asked: OpenQuestion) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody is asked any more
            self._loop.call_soon_threadsafe(asked.retract)


def _give(answer: Future[Reply], reply: Reply) -> None:
    if answer.set_running_or_notify_cancel():
        answer.set_result(reply)


class Context:
    """What a function may know of its call, and report or ask while it runs. Safe in any thread."""

    __slots__ = ("_asker", "_emit", "caller", "session")

    def __init__(
        self, caller: str, emit: Callable[[Event], None], session: str = "", asker: QuestionSender | None = None
    ) -> None:
        self.caller = caller
        """Who calls, by the name in the configuration."""
        self.session = session
        """Which of the caller's conversations the call belongs to; empty if it has none."""
        self._emit = emit
        self._asker = asker

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the caller how far the work is, if it wants to know.

        Raises:
            ValueError: `progress` or `total` is no number.
        """
        for name, number in (("progress", progress), ("total", total)):
            if not (_is_number(number) or (number is None and name == "total")):
                raise ValueError(f"{name} must be a number, not {number!r}")
        told = {"progress": progress, "total": total, "message": message}
        self._emit(Progress({key: _raw(value) for key, value in told.items() if value is not None}))

    def log(self, level: LogLevel, text: str) -> None:
        """Tell the caller something, if it listens to that level.

        Raises:
            ValueError: there is no such level.
        """
        if level not in LOG_LEVELS:
            raise ValueError(f"the level of a line must be one of {', '.join(LOG_LEVELS)}, not {level!r}")
        self._emit(LogMessage(level, {"level": _raw(level), "data": _raw(text)}))

    def tell(self, event: Event) -> None:
        """Tell the caller something of another kind."""
        self._emit(event)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for the result any more: the call was cancelled, took too long, or its hub has closed.

        An `async def` is cancelled with its call; a `def` runs in a thread, which nothing can stop: one that takes
        long looks here from time to time, and returns.
        """
        return self._asker is not None and self._asker.is_over()

    @property
    def can_ask(self) -> bool:
        """Whether the caller said that it can be asked something; not every program has a person behind it."""
        return self._asker is not None and self._asker.can_ask()

    def ask(self, message: str, schema: Mapping[str, Any] | None = None) -> Awaitable[dict[str, Any] | None]:
        """Ask whoever is behind the caller, in an `async def`: `answer = await context.ask("Which one?", {...})`.

        `schema` is the JSON Schema of an object whose members are text, numbers, yes or no, or one of several; without
        one, an empty object is a yes. The time in which somebody thinks is not counted against the call.

        Returns:
            What was answered, which fits the schema; None if the person refused.

        Raises:
            NoAnswerError: nobody can be asked, the call is over, or the answer does not fit.
            ValueError: the schema is none.
        """
        if _running_loop() is None:
            raise RuntimeError("context.ask is to be awaited, in an `async def`; in a `def` use context.ask_blocking")
        return self._ask(message, schema)

    async def _ask(self, message: str, schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
        check = _check_of(schema)
        return _read_answer(await asyncio.wrap_future(self._begin(message, schema)), check)

    def ask_blocking(self, message: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """The same in a plain `def`, whose thread waits for the answer; see `ask`."""
        if self._asker is not None and self._asker.is_loop_here():
            raise RuntimeError(
                "context.ask_blocking would keep the hub from hearing the answer: use `await context.ask(...)` in an "
                "`async def`, or a `def` without inline=True"
            )
        check = _check_of(schema)
        return _read_answer(self._begin(message, schema).result(), check)

    def _begin(self, message: str, schema: Mapping[str, Any] | None) -> Future[Reply]:
        if self._asker is None:
            raise NoAnswerError("nobody can be asked here")
        form = NOTHING_ASKED if schema is None else schema
        return self._asker.begin(Question(ELICIT, _raw({"message": message, "requestedSchema": form})))


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond what any other program can hold
        return False


def _check_of(schema: Mapping[str, Any] | None) -> ArgumentCheck | None:
    """What checks an answer; raises ValueError if the schema is none."""
    if schema is None:
        return None
    if schema.get("type") != "object":
        raise ValueError("the schema of a question must be of an object: {'type': 'object', 'properties': {...}}")
    try:
        return compile_check(_raw(schema), limit_bytes=FORM_BYTES_MAX)
    except UnusableSchema as unchecked:
        raise ValueError(f"the question cannot be asked: {unchecked}") from unchecked


class _ElicitResult(msgspec.Struct):
    action: str
    content: msgspec.Raw = msgspec.Raw(b"{}")


_ANSWER = msgspec.json.Decoder(_ElicitResult)
_CONTENT = msgspec.json.Decoder(dict[str, Any])


def _read_answer(reply: Reply, check: ArgumentCheck | None) -> dict[str, Any] | None:
    """What a caller answered, who may answer anything."""
    if isinstance(reply, Declined):
        raise NoAnswerError(reply.message)
    try:
        answer = _ANSWER.decode(reply.result)
        if answer.action != "accept":
            return None
        detail = None if check is None else check(answer.content)
        if detail is not None:
            raise NoAnswerError(f"the answer does not fit what was asked for: {detail}")
        return _CONTENT.decode(answer.content)
    except msgspec.MsgspecError as error:
        raise NoAnswerError("what came back is no answer") from error


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
