"""What another hub says of a call that came to nothing there, as a fault here: above all, whether the tool ran.

Pure. Any other agent's failure is a result that says so. Called by commissions.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from isthmus.model.conversation import Status, Text
from isthmus.model.faults import ServerError
from isthmus.model.names import ServerName
from isthmus.upstream.hiding import Hide, hide_in
from isthmus.wire.jsonrpc import INVALID_PARAMS

SENT_AND_LOST, NOT_SENT = -32012, -32011
"""What the hub's other faces answer where it is not known whether a tool ran, and where it did not."""

WRONG = frozenset({"bad_arguments", "bad_instruction", "unknown_tool", "unknown_server", "target_refused"})
"""Reasons for which the caller is to blame."""


class _Facts(msgspec.Struct):
    executed: Literal["no", "yes", "unknown"]
    reason: str = ""


_FACTS = msgspec.json.Decoder(_Facts)


def fault_in(status: Status, server: ServerName, hide: Hide = str) -> ServerError | None:
    """The fault that a hub's status tells of, without what `hide` takes out of it; None if it tells of none."""
    message = status.message
    try:
        facts = None if message is None or not message.metadata else _FACTS.decode(message.metadata)
    except msgspec.MsgspecError:
        facts = None
    if message is None or facts is None:
        return None
    words = hide("\n".join(part.text for part in message.parts if isinstance(part, Text)))
    fault = ServerError(server, _code(facts), words or "It failed", hide_in(message.metadata, hide))
    fault.executed = facts.executed
    return fault


def _code(facts: _Facts) -> int:
    if facts.reason in WRONG:
        return INVALID_PARAMS
    return NOT_SENT if facts.executed == "no" else SENT_AND_LOST
