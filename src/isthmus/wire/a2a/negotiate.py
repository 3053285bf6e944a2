"""Which dialect a JSON-RPC request is in, told by its method, its shape and the version that it asks for.

One URL serves all generations. Their methods have different names, but for a few that three of them share: those are
`Ambiguous`, and the face goes by the dialect in which the task was made. Called by the face, before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

from isthmus.model.conversation import ABSENT
from isthmus.wire.a2a import agentvault, v0_1, v0_3, v1_0
from isthmus.wire.a2a.operations import Dialect, DialectName, Problem
from isthmus.wire.a2a.parts import ID, Members, Unreadable, optional, said, unknown_method

HEADER = "a2a-version"
PARAMETER = "A2A-Version"
"""Where a request says its version: a header, or a parameter of its query."""

DIALECTS: Mapping[DialectName, Dialect] = {
    "1.0": v1_0,
    "0.3": v0_3,
    "0.1": v0_1,
    "agentvault": agentvault,
}

SPOKEN: Mapping[str, DialectName] = {"1.0": "1.0", "0.3": "0.3", "0.2": "0.3", "0.1": "0.1"}
"""The versions that can be asked for, without their last number, which says nothing of compatibility."""

_SENT = frozenset({"tasks/send", "tasks/sendSubscribe"})
_SHARED: Mapping[str, tuple[DialectName, ...]] = {
    "tasks/get": ("0.3", "0.1", "agentvault"),
    "tasks/cancel": ("0.3", "0.1", "agentvault"),
    "tasks/resubscribe": ("0.3", "0.1"),
}


class Ambiguous(Struct, frozen=True):
    """A request that several dialects write alike, about this task; None if it names none."""

    task: str | None
    candidates: tuple[DialectName, ...]

    def settle(self, recorded: DialectName | None) -> DialectName:
        """The dialect to answer in, given the one that the task was made in, if there is one."""
        return recorded if recorded is not None and recorded in self.candidates else self.candidates[0]


Recognised: TypeAlias = DialectName | Ambiguous | Problem


def version_of(header: str | None, parameter: str | None) -> str | None:
    """The version that a request asks for; None if it does not say, or says nothing."""
    return (header or "").strip() or (parameter or "").strip() or None


def recognise(method: str, params: Members, version: str | None = None) -> Recognised:
    """The dialect of a request.

    Without a version the method decides: an absent one means 0.3 by the specification, whose methods are recognised
    anyway, and a client of 1.0 that forgot to say so is understood.
    """
    asked = None if version is None else dialect_of(version)
    if version is not None and asked is None:
        return unsupported(version)
    spoken = _by_method(method, params)
    if asked is None or isinstance(spoken, Problem):
        return spoken
    if isinstance(spoken, Ambiguous):
        return asked if asked in spoken.candidates else unsupported(version or "", method)
    # 0.2 and 0.1 were told apart by nobody's header; what is asked for is that it is not 1.0.
    return spoken if (spoken == "1.0") is (asked == "1.0") else unsupported(version or "", method)


def dialect_of(version: str) -> DialectName | None:
    """The dialect of a version, whatever its last number; None if it is not spoken here."""
    return SPOKEN.get(".".join(version.split(".")[:2]))


def unsupported(version: str, method: str | None = None) -> Problem:
    """A version that is not spoken here, or not with this method."""
    spoken = ", ".join(SPOKEN)
    words = f"A2A {version[:20]} is not spoken here; {spoken} are"
    if method is not None:
        words = f"{method[:80]} is no method of A2A {version[:20]}"
    return Problem("version_not_supported", words, {"supportedVersions": spoken})


def voice_of(method: str) -> DialectName:
    """The dialect in which to refuse a request that is none, by what its method looks like."""
    return "0.3" if "/" in method else "1.0"


def _by_method(method: str, params: Members) -> Recognised:
    if method in v1_0.METHODS:
        return "1.0"
    if method in _SENT:
        return "agentvault" if _is_agentvault(method, params) else "0.1"
    if method in _SHARED:
        return Ambiguous(_task_of(params), _SHARED[method])
    if method in v0_3.METHODS:
        return "0.3"
    return "0.1" if method in v0_1.METHODS else unknown_method(method)


def _task_of(params: Members) -> str | None:
    try:
        return optional(ID, params, "id")
    except Unreadable:
        return None


class _Part(Struct):
    content: Raw = ABSENT
    url: Raw = ABSENT


class _Message(Struct):
    parts: list[_Part]


_MESSAGE = msgspec.json.Decoder(_Message)


def _is_agentvault(method: str, params: Members) -> bool:
    """Only there is a message sent without naming its task, or a task listened to without a message."""
    if not said(params.get("id", ABSENT)):
        return True
    if not said(params.get("message", ABSENT)):
        return method == "tasks/sendSubscribe"
    try:
        parts = _MESSAGE.decode(params["message"]).parts
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return any(part.content or part.url for part in parts)
