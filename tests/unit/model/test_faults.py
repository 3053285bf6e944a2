"""Faults say what happened, whether the tool ran, and nothing that they were not given."""

from __future__ import annotations

import pytest

from isthmus.model.faults import (
    CallerFault,
    Fault,
    NotConnected,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
    UpstreamFault,
    leaves,
)
from isthmus.model.names import ServerName


def test_every_leaf_is_somebodys_fault() -> None:
    for leaf in leaves():
        assert leaf.__bases__[0].__bases__ == (Fault,), leaf


@pytest.mark.parametrize("kind", [UnknownTool, UnknownPrompt, UnknownResource])
def test_what_is_unknown_was_not_sent_anywhere(kind: type[CallerFault]) -> None:
    fault = kind("x")
    assert (fault.executed, fault.server) == ("no", None)
    assert "x" in fault.message


def test_a_resource_that_could_be_several_is_told_with_them() -> None:
    assert UnknownResource("u").message == "Resource not found: u"
    fault = UnknownResource("u", ("a", "b"))
    assert fault.message == "Resource not found: u; it could be a or b"
    assert fault.uri == "u"


def test_a_server_that_is_away_says_why_and_with_which_status() -> None:
    fault = NotConnected(ServerName("files"), "HTTP 403", status=403)
    assert isinstance(fault, UpstreamFault)
    assert (fault.why, fault.status, fault.executed, fault.server) == ("HTTP 403", 403, "no", "files")
