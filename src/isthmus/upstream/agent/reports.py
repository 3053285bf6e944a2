"""What an agent says while it works, as the progress or the log of a call.

Another hub passes a server's own reports on, as they are. Of any other agent each new word is one step of progress, or
a line of the log for a caller that does not want progress. Used by commissions.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from isthmus.core.calls.inflight import InFlight
from isthmus.model.conversation import Data, Message, Status, Text
from isthmus.model.events import LOG_LEVELS, Event, Log, Progress
from isthmus.wire.jsonrpc import object_members
from isthmus.wire.mcp.messages import read_log, read_string

WORDS_LENGTH_MAX = 4_096
"""Of one report; what is longer belongs into an artifact."""

_NUMBER = msgspec.json.Decoder(float)
_encode = msgspec.json.Encoder().encode


class Reports:
    """The reports of one call."""

    def __init__(self, inflight: InFlight) -> None:
        self._inflight = inflight
        self._steps = 0
        self._last: Message | None = None
        """What was told last: who looks at a task again and again sees the same words as often."""

    def tell(self, status: Status) -> None:
        """Tell the caller what the agent says of its work, if it says something new."""
        message = status.message if status.state in ("submitted", "working") else None
        if message is None or message == self._last:
            return
        self._last = message
        event = _passed_on(message) or self._worded(message)
        if event is not None and (self._inflight.call.wants_progress or isinstance(event, Log)):
            self._inflight.emit(event)

    def _worded(self, message: Message) -> Event | None:
        text = "\n".join(part.text for part in message.parts if isinstance(part, Text))[:WORDS_LENGTH_MAX]
        if not text:
            return None
        words = Raw(_encode(text))
        if not self._inflight.call.wants_progress:
            return Log("info", {"level": Raw(b'"info"'), "data": words})
        self._steps += 1
        return Progress({"progress": Raw(b"%d" % self._steps), "message": words})


def _passed_on(message: Message) -> Event | None:
    """A report of a server, as a hub passes it on."""
    for part in message.parts:
        members = object_members(part.data) if isinstance(part, Data) else None
        if members is None:
            continue
        if read_string(members.get("level")) in LOG_LEVELS and "data" in members:
            return read_log(members)
        if "progress" in members and _is_number(members["progress"]):
            return Progress({key: value for key, value in members.items() if key not in ("progressToken", "_meta")})
    return None


def _is_number(raw: Raw) -> bool:
    try:
        _NUMBER.decode(raw)
    except msgspec.MsgspecError:
        return False
    return True
