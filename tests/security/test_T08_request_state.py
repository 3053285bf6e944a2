"""T08: the `requestState` that a caller carries between two rounds of a call is changed, or reused.

Answer: it is sealed (AEAD) with a key of this process, bound to tenant, caller, way in, tool and arguments, ends
after a time, and is good once unless a server that the operator trusts says that its tool may run twice. That it is
refused over a socket with any byte changed, as another caller, on another tool, after its time and again, before the
server sees anything, is shown in `tests/faults/test_questions.py` for servers of both eras; more odd forms are in
`tests/unit/frontends/mcp/test_input_required.py`. Here: every single bit, and all of a race.
"""

from __future__ import annotations

import base64

import pytest

from isthmus.frontends.mcp import input_required
from tests.unit.frontends.mcp.test_input_required import ACCEPTED, NAMESAKE, OTHER, AskingHub, is_refused


def states_of(asking_hub: AskingHub) -> list[str]:
    """A state of a modern server's own, and one of a call that is parked."""
    return [asking_hub.required().state, asking_hub.asked()[0].state]


async def test_a_state_with_any_bit_changed_is_refused() -> None:
    asking_hub = AskingHub()
    for state in states_of(asking_hub):
        sent, parked = len(asking_hub.sent), len(asking_hub.client_input)
        sealed = base64.urlsafe_b64decode(state)
        for at in range(len(sealed) * 8):
            changed = bytearray(sealed)
            changed[at // 8] ^= 1 << at % 8
            text = base64.urlsafe_b64encode(changed).decode()
            assert is_refused(asking_hub.caller_request(state=text, responses={"q1": ACCEPTED})), at
        assert (len(asking_hub.sent), len(asking_hub.client_input)) == (sent, parked)


@pytest.mark.parametrize("caller", [OTHER, NAMESAKE], ids=["another", "a namesake of another tenant"])
async def test_no_other_caller_can_use_it_and_its_owner_still_can(caller: object) -> None:
    asking_hub = AskingHub()
    for state in states_of(asking_hub):
        sent = len(asking_hub.sent)
        assert is_refused(asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}, caller=caller))  # type: ignore[arg-type]
        assert len(asking_hub.sent) == sent
        assert asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}).ends == []


async def test_of_many_callers_that_return_it_at_once_one_is_accepted() -> None:
    asking_hub = AskingHub()
    for state in states_of(asking_hub):
        caller_requests = [asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}) for _ in range(20)]
        assert sum(not caller_request.ends for caller_request in caller_requests) == 1
        assert sum(is_refused(caller_request) for caller_request in caller_requests if caller_request.ends) == 19


async def test_it_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_required, "STATE_SECONDS", -1.0)
    asking_hub = AskingHub()
    for state in states_of(asking_hub):
        assert is_refused(asking_hub.caller_request(state=state, responses={"q1": ACCEPTED}))
