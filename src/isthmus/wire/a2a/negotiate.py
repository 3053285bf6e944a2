"""Find the dialect of a JSON-RPC request from its method, its parameters and its version header.

One URL serves all generations. Most of their methods have different names. A few are shared by up to three of them:
for those the result is an `AmbiguousDialect`, and the frontend uses the dialect that created the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

from isthmus.model.tasks import ABSENT
from isthmus.wire.a2a import agentvault, v0_1, v0_3, v1_0
from isthmus.wire.a2a.operations import A2aProblem, DialectName
from isthmus.wire.a2a.v1_0 import ID, Dialect, Members, Unreadable, null_as_absent, optional, unknown_method

VERSION_HEADER = "a2a-version"
VERSION_PARAMETER = "A2A-Version"
"""Where a request names its version: a header, or a query parameter."""

DIALECTS: Mapping[DialectName, Dialect] = {each.DIALECT.name: each.DIALECT for each in (v1_0, v0_3, v0_1, agentvault)}

DIALECT_BY_VERSION: Mapping[str, DialectName] = {"1.0": "1.0", "0.3": "0.3", "0.2": "0.3", "0.1": "0.1"}
"""The supported versions without their patch number, which does not affect compatibility."""

_SENT = frozenset({"tasks/send", "tasks/sendSubscribe"})
_SHARED: Mapping[str, tuple[DialectName, ...]] = {
    "tasks/get": ("0.3", "0.1", "agentvault"),
    "tasks/cancel": ("0.3", "0.1", "agentvault"),
    "tasks/resubscribe": ("0.3", "0.1"),
}


class AmbiguousDialect(Struct, frozen=True):
    """A request that is the same in several dialects. `task` is its task, if it names one."""

    task: str | None
    candidates: tuple[DialectName, ...]

    def resolve(self, recorded: DialectName | None) -> DialectName:
        """The dialect of the response; `recorded` is the dialect that created the task."""
        return recorded if recorded is not None and recorded in self.candidates else self.candidates[0]


RecognizedDialect: TypeAlias = DialectName | AmbiguousDialect | A2aProblem


def version_of(header: str | None, parameter: str | None) -> str | None:
    """The version that a request names; None if it names none."""
    return (header or "").strip() or (parameter or "").strip() or None


def recognize_dialect(method: str, params: Members, version: str | None = None) -> RecognizedDialect:
    """Find the dialect of a request.

    Without a version the method decides. By the specification an absent version means 0.3, but the method identifies
    0.3 anyway, and clients of 1.0 that send no version work, too.
    """
    requested = None if version is None else dialect_of(version)
    if version is not None and requested is None:
        return unsupported_version(version)
    found = _by_method(method, params)
    if requested is None or isinstance(found, A2aProblem):
        return found
    if isinstance(found, AmbiguousDialect):
        return requested if requested in found.candidates else unsupported_version(version or "", method)
    # No client distinguishes 0.3, 0.2 and 0.1 by the header; it only separates them from 1.0.
    return found if (found == "1.0") is (requested == "1.0") else unsupported_version(version or "", method)


def dialect_of(version: str) -> DialectName | None:
    """The dialect of a version, whatever its patch number; None if the hub does not support it."""
    return DIALECT_BY_VERSION.get(".".join(version.split(".")[:2]))


def unsupported_version(version: str, method: str | None = None) -> A2aProblem:
    """The problem of a version that the hub does not support, or that does not have this method."""
    supported = ", ".join(DIALECT_BY_VERSION)
    message = f"A2A {version[:20]} is not supported; use one of {supported}"
    if method is not None:
        message = f"A2A {version[:20]} has no method {method[:80]}"
    return A2aProblem("version_not_supported", message, {"supportedVersions": supported})


def error_dialect(method: str) -> DialectName:
    """The dialect of an error response to a request whose dialect is unknown: only methods before 1.0 have a slash."""
    return "0.3" if "/" in method else "1.0"


def _by_method(method: str, params: Members) -> RecognizedDialect:
    if method in v1_0.DIALECT.readers:
        return "1.0"
    if method in _SENT:
        return "agentvault" if _is_agentvault(method, params) else "0.1"
    if method in _SHARED:
        try:
            task = optional(ID, params, "id")
        except Unreadable:
            task = None
        return AmbiguousDialect(task, _SHARED[method])
    if method in v0_3.DIALECT.readers:
        return "0.3"
    return "0.1" if method in v0_1.DIALECT.readers else unknown_method(method)


class _ProbedPart(Struct):
    content: Raw = ABSENT
    url: Raw = ABSENT


class _ProbedMessage(Struct):
    parts: list[_ProbedPart]


_MESSAGE = msgspec.json.Decoder(_ProbedMessage)


def _is_agentvault(method: str, params: Members) -> bool:
    """Whether a request is AgentVault's and not 0.1: only there a message may lack a task, and a stream a message."""
    if not null_as_absent(params.get("id", ABSENT)):
        return True
    if not null_as_absent(params.get("message", ABSENT)):
        return method == "tasks/sendSubscribe"
    try:
        parts = _MESSAGE.decode(params["message"]).parts
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return any(part.content or part.url for part in parts)
