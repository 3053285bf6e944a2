"""A2A 1.0 and 0.3 towards agents: requests written, and their answers read.

An agent's word is not trusted: what does not fit becomes a `Problem`, and nothing raises. Envelopes are not its
business (`wire.jsonrpc`), nor are connections. Called by the links to agents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from isthmus.model.conversation import Message, Task, Update
from isthmus.wire.a2a import shapes_v0_3, shapes_v1_0
from isthmus.wire.a2a.operations import Cancel, Get, Problem, Send, Subscribe
from isthmus.wire.a2a.parts import WORDS_MAX, is_null
from isthmus.wire.a2a.problems import KINDS_1_0, REASONS_1_0
from isthmus.wire.jsonrpc import Payload, render

Asked: TypeAlias = Send | Get | Cancel | Subscribe
"""What is asked of agents."""

_T = TypeVar("_T")
_U = TypeVar("_U")
_encode = msgspec.json.Encoder().encode


class Client(Protocol):
    """One generation's words, from the other side."""

    version: str
    """What the header says that names it."""
    card_method: str
    """What the card for those is asked for by who prove who they are."""

    def write(self, asked: Asked) -> tuple[str, bytes]:
        """The method and the parameters of a request."""

    def read_sent(self, result: Payload) -> Task | Message | Problem:
        """What a `Send` was answered with."""

    def read_task(self, result: Payload) -> Task | Problem:
        """What `Get` and `Cancel` were answered with."""

    def read_update(self, result: Payload) -> Update | Problem:
        """One item of a stream."""


class PlainClient(Client, Protocol):
    """The same over plain HTTP."""

    card_path: str

    def locate(self, asked: Asked) -> tuple[str, str]:
        """The verb and the target of a request, whose body, if any, are the parameters."""


def read_problem(code: int, message: str, data: Raw | None) -> Problem:
    """What an agent's error means; all generations use the same codes for the same things."""
    details = {} if data is None or is_null(data) else {"data": bytes(data).decode(errors="replace")[:WORDS_MAX]}
    return Problem(
        KINDS_1_0.get(code, "internal"), message[:WORDS_MAX] or f"error {code}", {"code": str(code), **details}
    )


def read_status(body: Payload) -> Problem:
    """What an agent's error over HTTP+JSON means: its reason says it, if it gives one."""
    wire = _decoded(_STATUS, body)
    if isinstance(wire, Problem):
        return wire
    if not isinstance(wire.error, _Error):
        return _read_earlier_status(wire)
    reasons = [detail.reason for detail in wire.error.details or () if detail.reason in REASONS_1_0]
    kind = REASONS_1_0[reasons[0]] if reasons else "internal"
    return Problem(kind, wire.error.message[:WORDS_MAX], {"code": str(wire.error.code)})


def _read_earlier_status(wire: _Status) -> Problem:
    """An error as 0.3 has it, which left open what it looks like: there is a message, and perhaps a code."""
    if not wire.message:
        return unfit("it is an error without words")
    return Problem(KINDS_1_0.get(wire.code, "internal"), wire.message[:WORDS_MAX], {"code": str(wire.code)})


class _Detail(Struct):
    reason: str = ""


class _Error(Struct):
    code: int = 0
    message: str = ""
    details: list[_Detail] | None = None


class _Status(Struct):
    error: _Error | str = ""
    code: int = 0
    message: str = ""


_STATUS = msgspec.json.Decoder(_Status)


def unfit(why: str) -> Problem:
    """The problem of an answer that is none."""
    return Problem("invalid_agent_response", f"the agent answered with something else: {why}"[:WORDS_MAX])


def _decoded(decoder: msgspec.json.Decoder[_T], result: Payload) -> _T | Problem:
    try:
        return decoder.decode(result)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return unfit(str(error))


def read_as(decoder: msgspec.json.Decoder[_T], result: Payload, meant: Callable[[_T], _U | Problem]) -> _U | Problem:
    """What an answer of this shape means; whatever of it cannot be read, even further in, is a problem."""
    try:
        return meant(decoder.decode(result))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return unfit(str(error))


def _params(members: Mapping[str, Payload]) -> bytes:
    """Members that are there."""
    return render({name: value for name, value in members.items() if value})


def target_of(task: str, action: str = "") -> str:
    """The target of a task over plain HTTP, or of something done to it."""
    return f"/tasks/{segment_of(task)}{action}"


def segment_of(text: str) -> str:
    """One step of a path, whatever an agent calls its things: what it says leads to nothing beside its own place.

    Dots alone would be a step up, also where they are escaped once. Nobody has a thing of that name.
    """
    return text.replace(".", "%252E") if text in (".", "..") else quote(text, safe="")


def _number(count: int | None) -> bytes:
    return b"" if count is None else b"%d" % count


class _Methods(NamedTuple):
    send: str
    stream: str
    get: str
    cancel: str
    subscribe: str


class _Generation(ABC):
    """What is the same in both."""

    _methods: _Methods

    def write(self, asked: Asked) -> tuple[str, bytes]:
        """The method and the parameters of a request."""
        match asked:
            case Send():
                return self._methods.stream if asked.is_stream else self._methods.send, self._send(asked)
            case Get():
                members = {"id": _encode(asked.task), "historyLength": _number(asked.history_length)}
                return self._methods.get, _params(members)
            case Cancel():
                return self._methods.cancel, _params({"id": _encode(asked.task), "metadata": asked.metadata})
            case Subscribe():
                return self._methods.subscribe, _params({"id": _encode(asked.task)})

    def _send(self, asked: Send) -> bytes:
        configuration = {
            "acceptedOutputModes": _encode(asked.output_modes) if asked.output_modes else b"",
            "historyLength": _number(asked.history_length),
            **self._patience(asked),
        }
        said = _params(configuration)
        members = {"message": self._message(asked), "configuration": said if said != b"{}" else b""}
        return _params({**members, "metadata": asked.metadata})

    @abstractmethod
    def _patience(self, asked: Send) -> dict[str, bytes]:
        """The member that says whether the answer may take as long as the work."""

    @abstractmethod
    def _message(self, asked: Send) -> bytes:
        """The message that is sent."""

    def read_sent(self, result: Payload) -> Task | Message | Problem:
        """What a `Send` was answered with."""
        update = self.read_update(result)
        return update if isinstance(update, Task | Message | Problem) else unfit("it is neither task nor message")

    @abstractmethod
    def read_update(self, result: Payload) -> Update | Problem:
        """One item of a stream."""


class LatestClient(_Generation):
    """1.0."""

    version = "1.0"
    card_method = "GetExtendedAgentCard"
    card_path = "/extendedAgentCard"
    _methods = _Methods("SendMessage", "SendStreamingMessage", "GetTask", "CancelTask", "SubscribeToTask")
    _update = msgspec.json.Decoder(shapes_v1_0.WireUpdate)
    _task = msgspec.json.Decoder(shapes_v1_0.WireTask)

    def locate(self, asked: Asked) -> tuple[str, str]:
        """The verb and the target of the same request over HTTP+JSON, whose body, if any, are the parameters."""
        match asked:
            case Send():
                return "POST", "/message:stream" if asked.is_stream else "/message:send"
            case Get():
                length = asked.history_length
                return "GET", target_of(asked.task) + ("" if length is None else f"?historyLength={length}")
            case Cancel():
                return "POST", target_of(asked.task, ":cancel")
            case Subscribe():
                return "GET", target_of(asked.task, ":subscribe")

    def _patience(self, asked: Send) -> dict[str, bytes]:
        return {} if asked.waits else {"returnImmediately": b"true"}

    def _message(self, asked: Send) -> bytes:
        return _encode(shapes_v1_0.wire_message(asked.message, asked.context, asked.task))

    def read_task(self, result: Payload) -> Task | Problem:
        """What `Get` and `Cancel` were answered with."""
        wire = _decoded(self._task, result)
        return wire if isinstance(wire, Problem) else shapes_v1_0.task_of(wire)

    def read_update(self, result: Payload) -> Update | Problem:
        """One item of a stream."""
        wire = _decoded(self._update, result)
        if isinstance(wire, Problem):
            return wire
        return shapes_v1_0.update_of(wire) or unfit("it holds nothing")


class EarlierClient(_Generation):
    """0.3, which says everything that 0.2 does."""

    version = "0.3"
    card_method = "agent/getAuthenticatedExtendedCard"
    _methods = _Methods("message/send", "message/stream", "tasks/get", "tasks/cancel", "tasks/resubscribe")
    _update: msgspec.json.Decoder[shapes_v0_3.WireUpdate] = msgspec.json.Decoder(shapes_v0_3.WireUpdate)
    _task = msgspec.json.Decoder(shapes_v0_3.WireTask)

    def _patience(self, asked: Send) -> dict[str, bytes]:
        # Said either way: agents differ in what they take silence for.
        return {"blocking": b"true" if asked.waits else b"false"}

    def _message(self, asked: Send) -> bytes:
        return _encode(shapes_v0_3.wire_message(asked.message, asked.context, asked.task))

    def read_task(self, result: Payload) -> Task | Problem:
        """What `Get` and `Cancel` were answered with."""
        wire = _decoded(self._task, result)
        return wire if isinstance(wire, Problem) else shapes_v0_3.task_of(wire)

    def read_update(self, result: Payload) -> Update | Problem:
        """One item of a stream."""
        wire = _decoded(self._update, result)
        return wire if isinstance(wire, Problem) else shapes_v0_3.update_of(wire)


def client_of(version: str) -> Client | None:
    """The client for agents that speak this version; None if there is none."""
    generation = ".".join(version.split(".")[:2])
    if generation == "1.0":
        return LatestClient()
    return EarlierClient() if generation in ("0.3", "0.2") else None
