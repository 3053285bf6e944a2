"""Users that a server's questions sent elsewhere, to log in say: their callers are told when they are done there.

Until 2026-07-28 a server said so by a notification with the id of its question. Each link keeps who was asked what;
it does not keep the calls, which may end before the user is done.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports.exchange import Sending

IDS_MAX = 1_000
"""Questions of one link of which it is remembered whom they sent elsewhere; the oldest are forgotten."""

ID_LENGTH_MAX = 1024


class Elsewhere:
    """Those of one link."""

    def __init__(self) -> None:
        self._sent: dict[bytes, tuple[ref[InFlight], Callable[[msgspec.Raw], None] | None]] = {}

    def sent(self, id: msgspec.Raw, inflight: InFlight) -> None:
        """This call's caller was sent elsewhere by a question of this id."""
        if len(memoryview(id)) > ID_LENGTH_MAX:
            return
        exchange = inflight.exchange
        later = exchange.done_later() if isinstance(exchange, Sending) else None
        self._sent[bytes(id)] = (ref(inflight), later)
        if len(self._sent) > IDS_MAX:
            del self._sent[next(iter(self._sent))]

    def done(self, id: msgspec.Raw) -> None:
        """The user is done there: tell the caller once, by its call or, when that is over, beside its calls."""
        call, later = self._sent.pop(bytes(id), (None, None))
        inflight = None if call is None else call()
        if inflight is not None and inflight.outcome is None:
            inflight.done_elsewhere(id)
        elif later is not None:
            later(id)
