"""MCP over standard streams: one caller, one line a message.

Frames a `Conversation`: whoever owns the streams feeds bytes in and is handed bytes to write.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.core.background import BackgroundTasks
from isthmus.frontends.mcp.conversation import Conversation
from isthmus.frontends.mcp.dialogue import Answer, Dialogue, refuse
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.wire import jsonrpc, lines
from isthmus.wire.oversized import Oversized


class McpStdio:
    """One conversation. `write` takes finished lines; `feed` gives what was read."""

    def __init__(
        self,
        dialogue: Dialogue,
        caller: Caller,
        surface: Surface,
        background: BackgroundTasks,
        write: Callable[[bytes], None],
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_crowded` says that the caller reads slowly."""
        self._write = write
        self._conversation = Conversation(dialogue, caller, surface, background, self._say, is_crowded)
        self._decoder = lines.LineDecoder(dialogue.hub.limits.request_bytes)
        self.finish = self._conversation.finish
        self.cancel_all = self._conversation.cancel_all

    def feed(self, chunk: bytes) -> None:
        """Take what was read from the caller."""
        for line in self._decoder.feed(chunk):
            refused = _too_long(line) if isinstance(line, Oversized) else self._conversation.take(line)
            if refused is not None:
                self._say(refused.body)

    def _say(self, message: bytes) -> None:
        self._write(lines.frame(message))


def _too_long(line: Oversized) -> Answer:
    return refuse(None, jsonrpc.INVALID_REQUEST, f"a message may have {line.limit_bytes} bytes at most")
