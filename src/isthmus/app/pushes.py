"""The outbox of a hub, joined with what writes its letters and what carries them."""

from __future__ import annotations

import random
import time

from isthmus.app.hub import LOCAL, RunningHub
from isthmus.core.tasks.outbox import Outbox
from isthmus.faces.a2a.pushing import Pushing, write_letters
from isthmus.model.callers import Caller
from isthmus.transport.courier import HttpCourier
from isthmus.transport.egress import Egress


class Pushes:
    """What is sent of a hub's tasks; `close` comes before the hub's own end, and `aclose` after it."""

    def __init__(self, running: RunningHub) -> None:
        """Nothing is sent before `start`; which private addresses may be named is the newest configuration's word."""
        self._running = running
        self._courier = HttpCourier(Egress(), running.crew, self._is_listed)
        chance = random.random  # noqa: S311 - spread, not secrecy
        self._outbox = Outbox(
            running.tasks, running.journal, self._courier, write_letters, running.crew, time.time, chance
        )
        self.pushing = Pushing(running.tasks, self._courier, _trusts)

    def _is_listed(self, url: str) -> bool:
        return self._running.configuration.targets.trusts_url(url)

    def start(self) -> None:
        """Send what is due, from before and from now on."""
        self._running.crew.spawn("outbox", self._outbox.run())

    def close(self) -> None:
        """Begin nothing more; what is due is sent by the next hub that has the same state."""
        self._outbox.close()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._courier.aclose()


def _trusts(caller: Caller) -> bool:
    """Whether a caller may name private addresses that are listed; the person at this machine is here already."""
    return caller.may_name_targets or caller is LOCAL
