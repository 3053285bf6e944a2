"""What servers ask back while a tool runs, put to functions of the program's own.

An asynchronous function runs on the asyncio loop from which the tool was executed; where there is none, and for a plain
function, a thread of its own is started. Called by `library.executions`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from isthmus.model.questions import NOT_ASKED, Answered, Declined, Profile, Question, Reply

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
    def profile(self) -> Profile:
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


def put(question: Question, questions: Questions, loop: asyncio.AbstractEventLoop | None, answer: OnAnswer) -> None:
    """Ask; `answer` is called once, from any thread."""
    handler = questions.handler_of(question)
    if handler is None:
        answer(NOT_ASKED)
        return
    params = msgspec.json.decode(question.params)
    method = question.method
    if loop is not None and inspect.iscoroutinefunction(handler):
        future = asyncio.run_coroutine_threadsafe(_asked(handler, params), loop)
        future.add_done_callback(lambda done: answer(_GONE if done.cancelled() else _reply_of(method, done.result)))
        return
    work = lambda: answer(_reply_of(method, lambda: asyncio.run(_asked(handler, params))))  # noqa: E731
    threading.Thread(target=work, name="isthmus question", daemon=True).start()


async def _asked(handler: Handler, params: dict[str, Any]) -> Mapping[str, Any] | None:
    found = handler(params)
    return await found if inspect.isawaitable(found) else found


def _reply_of(method: str, result: Callable[[], Mapping[str, Any] | None]) -> Reply:
    try:
        found = _as_result(method, result())
        return _DECLINED if found is None else Answered(msgspec.Raw(msgspec.json.encode(found)))
    except Exception as error:  # noqa: BLE001 - the server hears that there is no answer
        return Declined(-32603, f"{type(error).__name__}: {error}")


def _as_result(method: str, found: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What a person was asked for may be answered by itself."""
    if method != "elicitation/create":
        return found
    if found is None:
        return {"action": "decline"}
    return found if "action" in found else {"action": "accept", "content": found}


_DECLINED = Declined(-1, "Declined")
_GONE = Declined(-32603, "Whoever was asked is gone")
