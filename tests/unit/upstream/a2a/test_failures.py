"""What another hub says of a call that came to nothing."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace

from isthmus.model.conversation import Status, Text
from isthmus.model.names import ServerName
from isthmus.upstream.agent.failures import fault_in
from tests.unit.upstream.agent.scripted import says

FAR = ServerName("far")


def failed(metadata: bytes, *words: str) -> Status:
    return Status("failed", 1.0, replace(says(*map(Text, words)), metadata=Raw(metadata)))


@pytest.mark.parametrize(
    ("metadata", "code", "executed"),
    [
        (b'{"executed":"unknown","reason":"lost","server":"x"}', -32012, "unknown"),
        (b'{"executed":"no","reason":"not_connected"}', -32011, "no"),
        (b'{"executed":"no","reason":"unknown_tool"}', -32602, "no"),
        (b'{"executed":"yes"}', -32012, "yes"),
    ],
)
def test_a_fault_over_there_is_one_here_and_says_whether_the_tool_ran(
    metadata: bytes, code: int, executed: str
) -> None:
    fault = fault_in(failed(metadata, "It", "broke"), FAR)
    assert fault is not None
    assert (fault.code, fault.executed, fault.server, fault.message) == (code, executed, FAR, "It\nbroke")
    assert fault.data == Raw(metadata)


def test_what_the_hub_over_there_was_shown_is_taken_out_of_its_words_and_its_data() -> None:
    told = failed(b'{"executed":"no","reason":"not with secret"}', "not with secret")
    fault = fault_in(told, FAR, lambda text: text.replace("secret", "***"))
    assert fault is not None
    assert (fault.message, fault.data) == ("not with ***", Raw(b'{"executed":"no","reason":"not with ***"}'))


def test_a_fault_without_words_has_some() -> None:
    fault = fault_in(failed(b'{"executed":"no"}'), FAR)
    assert fault is not None
    assert fault.message == "It failed"


@pytest.mark.parametrize("metadata", [b"", b"{}", b"7", b'{"executed":"perhaps"}'])
def test_what_says_nothing_of_it_is_no_fault(metadata: bytes) -> None:
    assert fault_in(failed(metadata, "It broke"), FAR) is None
    assert fault_in(Status("failed", 1.0), FAR) is None
