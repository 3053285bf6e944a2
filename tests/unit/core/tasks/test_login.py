"""What a task asks of its caller when a server wants somebody to go somewhere first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.core.tasks.login import is_login, login_of
from isthmus.core.tasks.record import Asked
from isthmus.model.faults import NotConnected, ServerError
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome, Result
from tests.unit.core.doubles import raw

BANK = ServerName("bank")
VISIT = {"mode": "url", "message": "Log in", "url": "https://bank.example/in", "elicitationId": "e1"}


def required(*visits: Any) -> ServerError:
    return ServerError(BANK, -32042, "Log in first", raw({"elicitations": visits}))


def test_a_server_that_names_an_address_has_it_asked_as_it_wrote_it() -> None:
    assert login_of(required(VISIT)) == Asked("elicitation/create", raw(VISIT))


def test_of_several_addresses_all_are_told() -> None:
    asked = login_of(required(VISIT, {**VISIT, "url": "https://other.example", "message": "And there"}))
    assert asked is not None
    params = json.loads(bytes(asked.params))
    assert (params["mode"], params["url"]) == ("url", "https://bank.example/in")
    assert params["message"] == "Log in\nAnd there https://other.example"
    assert len(params["elicitations"]) == 2
    assert is_login(asked)


def test_a_server_that_turned_the_hub_away_and_says_where_to_log_in_is_asked_about() -> None:
    asked = login_of(NotConnected(BANK, "HTTP 401", status=401, login="https://bank.example/.well-known/x"))
    assert asked is not None
    assert json.loads(bytes(asked.params))["url"] == "https://bank.example/.well-known/x"
    assert is_login(asked)


@pytest.mark.parametrize(
    "outcome",
    [
        Result(raw({})),
        NotConnected(BANK, "HTTP 401", status=401),
        ServerError(BANK, -32042, "no data"),
        ServerError(BANK, -32042, "odd data", raw([1])),
        ServerError(BANK, -32000, "another", raw({"elicitations": [VISIT]})),
        required(),
        required({"mode": "form", "message": "Who?"}, {"mode": "url"}, 5),
    ],
)
def test_whatever_else_happens_is_an_end(outcome: Outcome) -> None:
    assert login_of(outcome) is None


@pytest.mark.parametrize(
    "asked",
    [
        Asked("sampling/createMessage", raw(VISIT)),
        Asked("elicitation/create", raw({"message": "Who?"})),
        Asked("elicitation/create", raw({"mode": "form", "url": "https://x"})),
        Asked("elicitation/create", raw([])),
    ],
)
def test_other_questions_are_no_login(asked: Asked) -> None:
    assert not is_login(asked)
