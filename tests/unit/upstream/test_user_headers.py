"""Headers of a caller: which of them a server is sent, how they are written, and which calls they end."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.core.calls.inflight import InFlight
from isthmus.model.faults import BadArguments
from isthmus.upstream.user_headers import HEADERS_BYTES_MAX, UserHeaders
from tests.unit.core.doubles import Listener, Stage, call, tool


class Writing:
    """A link that writes a call's headers and does no more."""

    def __init__(self, *names: str) -> None:
        self._headers = UserHeaders(names)
        self.lines: list[bytes | None] = []

    def send(self, inflight: InFlight) -> None:
        self.lines.append(self._headers.lines_for(inflight))

    def may_have_run(self, inflight: InFlight) -> bool:
        return False

    def withdraw(self, inflight: InFlight, reason: str) -> None: ...


def sent(headers: dict[str, str], *names: str) -> tuple[bytes | None, Listener]:
    """What a server that receives these names is sent, and what the caller hears."""
    stage, link = Stage(tool("read")), Writing(*names)
    stage.server_queue.attach(link)
    _, listener = stage.start(msgspec.structs.replace(call(), headers=headers))
    (lines,) = link.lines
    return lines, listener


async def test_only_what_the_server_receives_is_written_in_the_operators_spelling() -> None:
    lines, listener = sent({"x-user-id": "ann", "Authorization": "Bearer t", "X-Other": "1"}, "X-User-Id", "X-Absent")
    assert lines == b"X-User-Id: ann\r\n"
    assert not listener.ends


async def test_a_header_that_differs_only_in_case_is_written_once() -> None:
    lines, _ = sent({"x-user-id": "ann", "X-USER-ID": "bob"}, "X-User-Id")
    assert lines == b"X-User-Id: bob\r\n"


async def test_latin_letters_are_written_as_http_has_them() -> None:
    assert sent({"X-Name": "Zoë"}, "X-Name")[0] == b"X-Name: Zo\xeb\r\n"


@pytest.mark.parametrize("value", ["ann\r\nX-Admin: yes", "a\nb", "a\rb", "a\0b", "アン", "\ud800"])
async def test_what_no_header_can_say_ends_the_call_before_anything_is_sent(value: str) -> None:
    lines, listener = sent({"X-User-Id": value}, "X-User-Id")
    assert lines is None
    (fault,) = listener.ends
    assert isinstance(fault, BadArguments)
    assert fault.executed == "no"
    assert "'X-User-Id'" in fault.message
    assert value not in fault.message


async def test_what_is_not_sent_may_say_anything() -> None:
    lines, listener = sent({"X-Secret": "a\r\nb"}, "X-User-Id")
    assert lines == b""
    assert not listener.ends


async def test_more_than_a_server_takes_ends_the_call_too() -> None:
    lines, listener = sent({"X-User-Id": "u" * HEADERS_BYTES_MAX}, "X-User-Id")
    assert lines is None
    (fault,) = listener.ends
    assert isinstance(fault, BadArguments)
    assert str(HEADERS_BYTES_MAX) in fault.message


async def test_a_refused_header_says_nothing_of_the_server() -> None:
    stage = Stage(tool("read"))
    stage.server_queue.attach(Writing("X-User-Id"))
    stage.start(msgspec.structs.replace(call(), headers={"X-User-Id": "a\nb"}))
    assert stage.server_queue.answered == 0
    assert stage.server_queue.running == 0


def test_a_call_that_is_printed_keeps_its_headers_to_itself() -> None:
    asked = msgspec.structs.replace(call(), headers={"Authorization": "hunter22"})
    assert "files.read" in repr(asked)
    assert "hunter22" not in repr(asked)
