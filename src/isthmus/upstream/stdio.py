"""A server that the hub starts as a child process and speaks to over its standard streams, one line a message."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from isthmus.core.calls.inflight import InFlight
from isthmus.core.settings import Limits
from isthmus.model.faults import Fault
from isthmus.model.names import ServerName
from isthmus.transport.cork import Cork
from isthmus.transport.process import ProcessChannel, SpawnFailed, child_environment
from isthmus.upstream.link import BaseLink, ConnectFailed, reply_to
from isthmus.upstream.settings import StdioSettings
from isthmus.upstream.waiters import CallWaiter, Waiter, lost
from isthmus.wire import jsonrpc, lines
from isthmus.wire.jsonrpc import ErrorReply, Notification, Payload, Request, Response
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.tools import (
    CANCELLED,
    PROGRESS,
    TOOLS_CHANGED,
    Implementation,
    Members,
    cancelled_params,
    token_of,
)
from isthmus.wire.oversized import Oversized

log = structlog.get_logger(__name__)

HOLD_ABOVE_BYTES = 64 * 1024
"""With more than this unread by the server, further requests wait here, where they can still be withdrawn for
certain; what is in the pipe cannot."""


GARBAGE_MAX = 10_000
"""Lines in a row that are no messages: more than any banner, and a server that writes so is no server."""

LAST_WORDS_LENGTH = 600
"""How much of a lost process's standard error the operator is shown: the end of a traceback."""


class _Sent:
    """One request: who waits, and where its last byte is. `frame` is what is held back, until it is written."""

    __slots__ = ("end", "frame", "id", "waiter")

    def __init__(self, id: int, waiter: Waiter, frame: bytes) -> None:
        self.id = id
        self.waiter = waiter
        self.frame: bytes | None = frame
        self.end = 0


class StdioLink(BaseLink):
    """One child process. Many requests share its pipe; answers find their way back by id."""

    start_seconds = 60.0

    def __init__(self, server: ServerName, me: Implementation, limits: Limits) -> None:
        super().__init__(server, me, limits)
        self._pending: dict[int, _Sent] = {}
        self._held: dict[int, _Sent] = {}
        self._cork = Cork()
        self._decoder = lines.LineDecoder(limits.reply_bytes)
        self._channel: ProcessChannel | None = None
        self._garbage = 0
        self._is_garbage_told = False

    async def start(self, reach: StdioSettings, parent: Mapping[str, str]) -> None:
        """Start the process. Raises `ConnectFailed` if it cannot be."""
        try:
            self._channel = await ProcessChannel.spawn(
                [reach.command, *reach.args],
                env=child_environment(reach.env, parent),
                cwd=reach.cwd,
                on_bytes=self._received,
                on_lost=self._broke,
                on_drained=self.flush,
            )
        except SpawnFailed as failed:
            raise ConnectFailed(str(failed)) from failed

    @property
    def pid(self) -> int | None:
        """The process, for those who watch it."""
        return None if self._channel is None else self._channel.pid

    @property
    def last_words(self) -> str | None:
        """The end of what the process said on its standard error."""
        tail = "" if self._channel is None else self._channel.stderr_tail.strip()
        return tail[-LAST_WORDS_LENGTH:] or None

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """Hold the call until the end of this turn of the loop, or until the server reads again."""
        id = self.next_id()
        inflight.carriage = id
        params = self.dialect.call_params(inflight.call, inflight.tool.tool.name, id)
        self._dispatch(id, "tools/call", params, CallWaiter(inflight))

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        if self._channel is None or self.lost.done():
            waiter.fail(lost(self.server, self._reason(), may_have_left=False))
            return
        self._pending[id] = sent = _Sent(id, waiter, lines.frame(jsonrpc.request(id, method, params)))
        if not self._held:
            self._cork.add(self)
        self._held[id] = sent

    def flush(self) -> None:
        """Write what is held, at the end of a turn of the loop or when the server reads again, until it stops."""
        channel = self._channel
        while self._held and channel is not None and channel.buffered_bytes() <= HOLD_ABOVE_BYTES:
            self._write(self._batch(), channel)

    def _batch(self) -> list[_Sent]:
        """The longest held requests, as many as may be written at once."""
        batch: list[_Sent] = []
        total_bytes = 0
        while self._held and total_bytes <= HOLD_ABOVE_BYTES:
            sent = self._held.pop(next(iter(self._held)))
            batch.append(sent)
            total_bytes += len(sent.frame or b"")
        return batch

    def _write(self, batch: list[_Sent], channel: ProcessChannel) -> None:
        frames = [sent.frame or b"" for sent in batch]
        end = channel.write(b"".join(frames)) - sum(map(len, frames))
        for sent, frame in zip(batch, frames, strict=True):
            end += len(frame)
            sent.end = end
            sent.frame = None

    def _notify(self, method: str, params: Payload | None) -> None:
        self._say(jsonrpc.notification(method, params))

    def _say(self, message: bytes) -> None:
        if self._channel is not None and not self.lost.done():
            self._channel.write(lines.frame(message))

    def listen(self) -> None:
        """A modern server announces changes only to those who ask; the request stays open for the link's life."""
        if self.dialect.era == "modern" and self.capabilities.announces_changes:
            params = self.dialect.params({"notifications": b'{"toolsListChanged":true}'})
            self._dispatch(self.next_id(), modern.LISTEN, params, _Unheard())

    # -- giving up -------------------------------------------------------------------------------------------------

    def may_have_run(self, inflight: InFlight) -> bool:
        """Only what is held here can be kept from the server: what was written will be read one day."""
        sent = self._pending.get(_id_of(inflight))
        return sent is None or sent.frame is None

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Take a held request back, or ask the server to stop."""
        id = _id_of(inflight)
        self._held.pop(id, None)
        sent = self._pending.pop(id, None)
        if sent is not None and sent.frame is None:
            self._notify(CANCELLED, cancelled_params(str(id).encode(), reason))

    def _forget(self, waiter: Waiter) -> None:
        for id, sent in self._pending.items():
            if sent.waiter is waiter:
                self._held.pop(id, None)
                del self._pending[id]
                return

    # -- receiving -------------------------------------------------------------------------------------------------

    def _received(self, chunk: bytes) -> None:
        for line in self._decoder.feed(chunk):
            if isinstance(line, Oversized):
                self._fail(f"it sent a line of over {line.limit_bytes} bytes")
                return
            self._read(line)

    def _read(self, line: bytes) -> None:
        message = jsonrpc.decode(line, max_depth=self.limits.depth)
        match message:
            case Response(id=id):
                if (sent := self._answered(id)) is not None:
                    sent.waiter.result(message.result)
            case ErrorReply(id=id):
                if (sent := self._answered(id)) is not None:
                    sent.waiter.error(message)
            case Notification():
                self._noted(message.method, message.params)
            case Request():
                self._reply(message)
            case _:
                self._tell_garbage(line)
                return
        self._garbage = 0

    def _answered(self, id: Payload | None) -> _Sent | None:
        """The request that an answer is for. Ids that are not ours, or not ours any more, are nobody's."""
        if id is None:
            return None
        try:
            return self._pending.pop(int(bytes(id)), None)
        except ValueError:
            return None

    def _noted(self, method: str, params: Members) -> None:
        if method == PROGRESS:
            sent = self._pending.get(token_of(params))
            if sent is not None:
                sent.waiter.progress(params)
        elif method == TOOLS_CHANGED:
            self.on_changed()

    def _reply(self, request: Request) -> None:
        # One that asks and does not read would fill our memory with answers.
        if self._channel is not None and self._channel.buffered_bytes() <= HOLD_ABOVE_BYTES:
            self._say(reply_to(request))

    def _tell_garbage(self, line: bytes) -> None:
        # Many servers print a banner to the wrong stream; once is news, the rest is noise.
        self._garbage += 1
        if self._garbage > GARBAGE_MAX:
            self._fail(f"it wrote over {GARBAGE_MAX} lines in a row that are no messages")
        elif not self._is_garbage_told:
            self._is_garbage_told = True
            log.warning("server wrote something that is no message", server=self.server, text=repr(line[:120]))

    # -- ending ----------------------------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        """The stream cannot be trusted any more: end the process, and with it what was on the way."""
        self._broke(reason)
        if self._channel is not None:
            self._channel.kill()

    def _broke(self, reason: str, *, is_dead: bool = True) -> None:
        if self.lost.done():
            return
        self._lose(reason)
        pending, self._pending, self._held = self._pending, {}, {}
        for sent in pending.values():
            sent.waiter.fail(lost(self.server, reason, may_have_left=self._may_have_left(sent, is_dead=is_dead)))

    def _may_have_left(self, sent: _Sent, *, is_dead: bool) -> bool:
        """A living process may yet read what was written; from a dead one, what is still here is safe."""
        if sent.frame is not None or self._channel is None:
            return False
        return not is_dead or self._channel.has_left(sent.end)

    def _reason(self) -> str:
        return self.lost.result() if self.lost.done() else "it is not running"

    async def aclose(self) -> None:
        """Close the process's input, give it a moment, and end its whole group."""
        if self._channel is not None:
            self._broke("closed by the hub", is_dead=False)
            await self._channel.aclose()


class _Unheard:
    """Waits for what nobody reads: the end of a subscription."""

    def result(self, payload: Payload) -> None:
        """The stream was ended in good order."""

    def error(self, reply: ErrorReply) -> None:
        """The server does not announce after all."""

    def fail(self, fault: Fault) -> None:
        """The link is gone, which its owner hears elsewhere."""

    def progress(self, params: Members) -> None:
        """Nobody asked for progress."""


def _id_of(inflight: InFlight) -> int:
    return inflight.carriage if isinstance(inflight.carriage, int) else -1
