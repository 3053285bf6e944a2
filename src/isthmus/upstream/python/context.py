"""`Context`: a running function reads its call here, reports progress and logs, and asks its caller questions.

The hub fills parameters annotated with it. A question is an MCP `elicitation/create`, whatever the caller's protocol.
`upstream.python.runner` makes one context per call.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec

from isthmus.core.calls.running_call import InFlight
from isthmus.core.catalog.argument_validation import ArgumentCheck, UnusableSchema, compile_check
from isthmus.model.calls import GIVEN_UP, LOG_LEVELS, Declined, Event, LogLevel, LogMessage, Progress, Question, Reply
from isthmus.upstream.response_waiters import ask_caller
from isthmus.wire.mcp.forwarded_methods import CAPABILITY_NEEDED

ELICIT = "elicitation/create"

FORM_BYTES_MAX = 64 * 1024
"""The longest schema of a question: a person has to fill in a form made of it."""

EMPTY_FORM: Mapping[str, Any] = {"type": "object", "properties": {}}
"""A form without fields: the answer is yes or no."""


class NoAnswerError(RuntimeError):
    """A question has no answer: the caller cannot be asked, the call has ended, or the answer is invalid."""


class QuestionSender:
    """Sends the questions of one call to its caller, from any thread."""

    __slots__ = ("_inflight", "_loop")

    def __init__(self, inflight: InFlight, loop: asyncio.AbstractEventLoop) -> None:
        self._inflight = inflight
        self._loop = loop

    def can_ask(self) -> bool:
        """Whether the caller declared the capability for elicitation."""
        return CAPABILITY_NEEDED[ELICIT] in self._inflight.call.client_caps

    def is_done(self) -> bool:
        """Whether the call has ended."""
        return self._inflight.is_done

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
        except RuntimeError:  # the loop is closed
            answer.set_result(GIVEN_UP)
        return answer

    def _put(self, question: Question, answer: Future[Reply]) -> None:
        def reply_received(reply: Reply) -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(reply)

        def retract_if_cancelled(answer: Future[Reply]) -> None:
            if asked is not None and answer.cancelled():
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(asked.retract)

        asked = ask_caller(self._inflight, question, reply_received)
        if asked is not None:
            answer.add_done_callback(retract_if_cancelled)


class Context:
    """The call that a function runs for: who calls, progress, logs and questions. Safe in any thread."""

    __slots__ = ("_asker", "_emit", "caller", "session")

    def __init__(
        self, caller: str, emit: Callable[[Event], None], session: str = "", asker: QuestionSender | None = None
    ) -> None:
        self.caller = caller
        """The caller's name in the configuration."""
        self.session = session
        """The caller's conversation; empty if it has none."""
        self._emit = emit
        self._asker = asker

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send progress to the caller, if it asked for progress.

        Raises:
            ValueError: `progress` or `total` is not a number.
        """
        for name, number in (("progress", progress), ("total", total)):
            if not (_is_number(number) or (number is None and name == "total")):
                raise ValueError(f"{name} must be a number, not {number!r}")
        members = {"progress": progress, "total": total, "message": message}
        self._emit(Progress({key: _raw(value) for key, value in members.items() if value is not None}))

    def log(self, level: LogLevel, text: str) -> None:
        """Send a log line to the caller, if it wants that level.

        Raises:
            ValueError: the level does not exist.
        """
        if level not in LOG_LEVELS:
            raise ValueError(f"the level of a line must be one of {', '.join(LOG_LEVELS)}, not {level!r}")
        self._emit(LogMessage(level, {"level": _raw(level), "data": _raw(text)}))

    def emit(self, event: Event) -> None:
        """Send another event to the caller."""
        self._emit(event)

    @property
    def is_done(self) -> bool:
        """Whether the call has ended: it was cancelled, timed out, or the hub has closed.

        An `async def` is cancelled with its call. A `def` runs in a thread, which cannot be stopped: a long one should
        check this from time to time and return.
        """
        return self._asker is not None and self._asker.is_done()

    @property
    def can_ask(self) -> bool:
        """Whether the caller can answer questions; not every program has a person behind it."""
        return self._asker is not None and self._asker.can_ask()

    def ask(self, message: str, schema: Mapping[str, Any] | None = None) -> Awaitable[dict[str, Any] | None]:
        """Ask the person behind the caller, in an `async def`: `answer = await context.ask("Which one?", {...})`.

        `schema` is the JSON Schema of an object whose members are strings, numbers, booleans or enums; without a
        schema, an empty object means yes. The time until the answer does not count against the call's timeout.

        Returns:
            The answer, which fits the schema; None if the person declined.

        Raises:
            NoAnswerError: the caller cannot be asked, the call has ended, or the answer is invalid.
            ValueError: the schema is invalid.
        """
        if _running_loop() is None:
            raise RuntimeError("context.ask is to be awaited, in an `async def`; in a `def` use context.ask_blocking")

        async def wait() -> dict[str, Any] | None:
            check = _check_of(schema)
            return _read_answer(await asyncio.wrap_future(self._begin(message, schema)), check)

        return wait()

    def ask_blocking(self, message: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """`ask` for a plain `def`: its thread waits for the answer."""
        if self._asker is not None and self._asker.is_loop_here():
            raise RuntimeError(
                "context.ask_blocking would keep the hub from receiving the answer: use `await context.ask(...)` in an "
                "`async def`, or a `def` without inline=True"
            )
        check = _check_of(schema)
        return _read_answer(self._begin(message, schema).result(), check)

    def _begin(self, message: str, schema: Mapping[str, Any] | None) -> Future[Reply]:
        if self._asker is None:
            raise NoAnswerError("the caller cannot be asked here")
        form = EMPTY_FORM if schema is None else schema
        return self._asker.begin(Question(ELICIT, _raw({"message": message, "requestedSchema": form})))


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return False


def _check_of(schema: Mapping[str, Any] | None) -> ArgumentCheck | None:
    """The check for an answer; raises ValueError if the schema is invalid."""
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
    """Read and check a caller's answer, which may be anything."""
    if isinstance(reply, Declined):
        raise NoAnswerError(reply.message)
    try:
        answer = _ANSWER.decode(reply.result)
        if answer.action != "accept":
            return None
        detail = None if check is None else check(answer.content)
        if detail is not None:
            raise NoAnswerError(f"the answer does not fit the requested schema: {detail}")
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
