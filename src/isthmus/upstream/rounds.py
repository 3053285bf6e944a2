"""A call to a modern server that asks by its result, for a caller that is asked by requests.

The caller is asked each question, and the call is sent once more with the answers: another request to the server, of
which the one before is a finished part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from secrets import token_hex

import msgspec

from isthmus.core.calls.inflight import InFlight, OpenQuestion
from isthmus.model.faults import Unanswered
from isthmus.model.questions import NOT_ASKED, Declined, OnReply, Question, Reply
from isthmus.wire.jsonrpc import Payload, render
from isthmus.wire.mcp.inputs import ASKED_OF, RESPONSES, STATE, Inputs, as_request

ROUNDS_MAX = 10
"""How often one call may be sent again: a server that asks for ever gets nowhere."""


def put(
    inflight: InFlight,
    question: Question,
    reply: OnReply,
    others: Sequence[InFlight] = (),
    *,
    lasts: bool = False,
) -> OpenQuestion | None:
    """Put a question to the caller, if that said it can be asked such a thing; see `InFlight.ask`."""
    if ASKED_OF[question.method] in inflight.call.client_caps:
        return inflight.ask(question, reply, others, lasts=lasts)
    reply(NOT_ASKED)
    return None


class Round:
    """The questions of one result, and the answers so far."""

    def __init__(self, inflight: InFlight, inputs: Inputs) -> None:
        self._inflight = inflight
        self._inputs = inputs
        self._answers: dict[str, Payload] = {}
        self._server = inflight.target.feature.server

    def ask(self) -> None:
        """Ask everything at once; a server that only wants its state back is asked again at once."""
        self._inflight.rounds += 1
        if self._inflight.rounds > ROUNDS_MAX:
            self._inflight.finish(Unanswered(self._server, f"it went on asking after {ROUNDS_MAX} rounds"))
        elif not self._inputs.questions:
            self._send_again()
        for key, question in self._inputs.questions.items():
            put(self._inflight, as_request(question, token_hex(16)), partial(self._answered, key))

    def _answered(self, key: str, reply: Reply) -> None:
        if self._inflight.outcome is not None:
            return
        if isinstance(reply, Declined):
            self._inflight.finish(Unanswered(self._server, reply.message))
            return
        self._answers[key] = reply.result
        if len(self._answers) == len(self._inputs.questions):
            self._send_again()

    def _send_again(self) -> None:
        call, link = self._inflight.call, self._inflight.link
        assert link is not None, "it was sent on a link before"
        extra = dict(call.extra)
        extra[RESPONSES] = msgspec.Raw(render(self._answers))
        extra.pop(STATE, None)
        if self._inputs.state is not None:
            extra[STATE] = self._inputs.state
        self._inflight.call = msgspec.structs.replace(call, extra=extra)
        link.send(self._inflight)
