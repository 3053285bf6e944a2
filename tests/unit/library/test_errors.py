"""Errors keep their type and fields across processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from isthmus.library import errors
from isthmus.library.errors import (
    AmbiguousToolError,
    LibraryError,
    ServerConnectionError,
    ToolDeniedError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolUnreachableError,
    UnresolvedToolsError,
)
from isthmus.library.public_types import ToolResult, ToolStatus

WITH_FIELDS: list[LibraryError] = [
    ServerConnectionError("web", "it ended"),
    ToolError("web.search", "it is odd"),
    ToolNotFoundError("web.serch", ["web.search"], "Look again."),
    ToolUnreachableError("web.search", "web", "it ended"),
    AmbiguousToolError("search", ["files.search", "web.search"]),
    ToolDeniedError("web.search", "ada"),
    ToolExecutionError("web.search", "it failed", ToolResult("web.search", ToolStatus.ERROR)),
    UnresolvedToolsError({"x": ToolNotFoundError("x")}),
]
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LibraryError)]
PLAIN = [kind("words") for kind in KINDS if kind not in map(type, WITH_FIELDS)]


def shown(error: LibraryError) -> tuple[object, ...]:
    fields = {name: repr(value) for name, value in vars(error).items()}
    return type(error), str(error), error.args, fields


@pytest.mark.parametrize("error", [*WITH_FIELDS, *PLAIN], ids=lambda error: type(error).__name__)
def test_an_error_can_be_sent_to_another_process(error: LibraryError) -> None:
    assert shown(pickle.loads(pickle.dumps(error))) == shown(error)
    assert shown(copy.copy(error)) == shown(error)
