"""The outbox of a hub, joined with what writes its letters and what carries them."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from isthmus.app.hub import LOCAL, RunningHub
from isthmus.core.ports.sealer import Sealer
from isthmus.core.tasks.outbox import Letter, Outbox
from isthmus.core.tasks.record import Recipient, Record
from isthmus.credentials.kept import KeptSealer, kept_key
from isthmus.credentials.sealing import ProcessSealer
from isthmus.faces.a2a.pushing import Pushing, write_letters
from isthmus.model.callers import Caller
from isthmus.transport.courier import HttpCourier
from isthmus.transport.egress import Egress

log = structlog.get_logger(__name__)


class Pushes:
    """What is sent of a hub's tasks; `close` comes before the hub's own end, and `aclose` after it."""

    def __init__(self, running: RunningHub) -> None:
        """Nothing is sent before `start`; which private addresses may be named is the newest configuration's word."""
        self._running = running
        self._courier = HttpCourier(Egress(), running.crew, self._is_listed)
        chance = random.random  # noqa: S311 - spread, not secrecy
        self.pushing = Pushing(running.tasks, self._courier, _trusts, _sealer(Path(running.configuration.hub.state)))
        self._outbox = Outbox(
            running.tasks, running.journal, self._courier, self._letters, running.crew, time.time, chance
        )

    def _letters(self, recipient: Recipient, record: Record, mark: str) -> Sequence[Letter]:
        return write_letters(self.pushing.opened(recipient), record, mark)

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


def _sealer(state: Path) -> Sealer:
    """What seals the proofs that pushes are sent with; without a key that lasts, they last as long as the hub."""
    try:
        return KeptSealer(kept_key(state))
    except (OSError, ValueError) as error:
        log.warning("what proves pushes will not outlast this hub", reason=str(error))
        return ProcessSealer()


def _trusts(caller: Caller) -> bool:
    """Whether a caller may name private addresses that are listed; the person at this machine is here already."""
    return caller.can_name_targets or caller is LOCAL
