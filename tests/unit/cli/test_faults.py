"""Every fault says what happened, whether the tool ran, and what to do."""

from __future__ import annotations

import json

import msgspec
import pytest

from isthmus.cli.exits import Exit
from isthmus.cli.faults import ADVICE, as_json, failed
from isthmus.cli.reached import HUB
from isthmus.model.faults import BadReply, Fault, Lost, NotConnected, ServerError, TimedOut, leaves
from isthmus.model.names import ServerName

FILES = ServerName("files")


def test_every_fault_a_call_can_end_in_has_advice() -> None:
    assert set(ADVICE) == set(leaves())
    assert all(ADVICE.values())


def test_a_fault_of_an_own_hub_tells_all_three() -> None:
    told = failed(TimedOut(FILES, 30, executed="unknown"), is_remote=False)
    assert told.exit == Exit.CALL_FAILED
    assert told.message == "Server files did not answer within 30 s"
    assert told.advice == (
        "executed: unknown (it may have run: look before you call it again)",
        ADVICE[TimedOut],
    )


def test_a_running_hubs_own_words_for_a_fault_are_told() -> None:
    data = msgspec.Raw(b'{"executed":"no","reason":"not_connected","server":"files"}')
    error = ServerError(HUB, -32011, "Server files is not connected: gone", data)
    told = failed(error, is_remote=True)
    assert told.exit == Exit.CALL_FAILED
    assert told.advice == ("executed: no (the tool did not run)", ADVICE[NotConnected])
    assert json.loads(as_json(error, is_remote=True))["error"] == {
        "message": "Server files is not connected: gone",
        "executed": "no",
        "reason": "not_connected",
        "server": "files",
    }


def test_a_servers_own_claims_are_not_believed() -> None:
    error = ServerError(FILES, 1, "oh", msgspec.Raw(b'{"executed":"no","reason":"lost"}'))
    assert failed(error, is_remote=False).advice[0].startswith("executed: yes")


@pytest.mark.parametrize("data", [None, msgspec.Raw(b"3"), msgspec.Raw(b'{"executed":"perhaps"}')])
def test_an_error_without_our_data_is_told_as_it_is(data: msgspec.Raw | None) -> None:
    error = ServerError(HUB, -32602, "no", data)
    assert failed(error, is_remote=True).advice == (
        "executed: yes (the server took the call and answered)",
        ADVICE[ServerError],
    )
    assert json.loads(as_json(error, is_remote=True))["error"]["server"] is None


@pytest.mark.parametrize(
    ("fault", "exit"),
    [
        (NotConnected(HUB, "401", status=401), Exit.NOT_ALLOWED),
        (NotConnected(HUB, "403", status=403), Exit.NOT_ALLOWED),
        (NotConnected(HUB, "405", status=405), Exit.UNREACHABLE),
        (Lost(HUB, "refused", executed="no"), Exit.UNREACHABLE),
        (Lost(HUB, "reset", executed="unknown"), Exit.CALL_FAILED),
        (BadReply(HUB, "noise"), Exit.CALL_FAILED),
    ],
)
def test_trouble_on_the_way_to_a_running_hub_has_codes_of_its_own(fault: Fault, exit: Exit) -> None:
    assert failed(fault, is_remote=True).exit == exit
    assert failed(fault, is_remote=False).exit == Exit.CALL_FAILED


def test_the_running_hub_is_not_called_a_server() -> None:
    assert failed(BadReply(HUB, "noise"), is_remote=True).message == "The hub gave an unusable answer: noise"
