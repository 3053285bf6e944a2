"""The outbox of a hub, joined with what writes its letters and what carries them."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from isthmus.app.hub import LOCAL, RunningHub
from isthmus.app.identity import FILE_MARKS, Identities
from isthmus.core.ports import Sealer
from isthmus.core.tasks.outbox import OwnerStatus, PushOutbox, PushRequest
from isthmus.core.tasks.record import PushRecipient, TaskOwner, TaskRecord
from isthmus.credentials.push_signing import PushSigner
from isthmus.credentials.sealing import ProcessSealer, StoredSealer, stored_key
from isthmus.frontends.a2a.push_notifications import PushNotifications
from isthmus.model.callers import Caller
from isthmus.transport.egress import Egress
from isthmus.transport.push_client import PushClient

log = structlog.get_logger(__name__)


class Pushes:
    """What is sent of a hub's tasks; `close` comes before the hub's own end, and `aclose` after it."""

    def __init__(self, running: RunningHub, identities: Identities | None = None) -> None:
        """Nothing is sent before `start`; which private addresses may be named is the newest configuration's word.

        With `identities`, who is gone by what they say is sent nothing more.
        """
        self._running = running
        self._courier = PushClient(Egress(), running.background, self._is_listed)
        chance = random.random  # noqa: S311 - spread, not secrecy
        state = Path(running.configuration.hub.state)
        self.pushing = PushNotifications(running.tasks, self._courier, _trusts, _sealer(state), PushSigner(state))
        self._outbox = PushOutbox(
            running.tasks, running.journal, self._courier, self._letters, running.background, time.time, chance
        )
        if identities is not None:
            self._outbox.check_owner = Owners(identities).judge

    def _letters(self, recipient: PushRecipient, record: TaskRecord, mark: str) -> Sequence[PushRequest]:
        return self.pushing.letters(recipient, record, mark, time.time())

    def _is_listed(self, url: str) -> bool:
        return self._running.configuration.targets.trusts_url(url)

    def start(self) -> None:
        """Send what is due, from before and from now on."""
        self._running.background.spawn("outbox", self._outbox.run())

    def close(self) -> None:
        """Begin nothing more; what is due is sent by the next hub that has the same state."""
        self._outbox.close()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._courier.aclose()


class Owners:
    """Who is known, as owners of tasks: by which keys each came that are good now."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._live: frozenset[Caller] = frozenset()
        self._keys: dict[tuple[str, str], set[str]] = {}

    def judge(self, owner: TaskOwner, key: str) -> OwnerStatus:
        """How it stands with an owner, and with the key that it used once; see `core.tasks.outbox.CheckOwner`."""
        good = self._good_keys(owner)
        if good is None:
            if self._identities.find(owner.tenant, owner.name) is not None:
                return "known"  # by what a verifier was shown
            return "away" if self._identities.may_be_proved(owner.name) else "gone"
        # A key of the file has another mark in each process: of one that an earlier hub noted, its owner decides.
        is_foreign = not key or (key.startswith("file:") and not key.startswith(FILE_MARKS))
        return "known" if is_foreign or key in good else "gone"

    def _good_keys(self, owner: TaskOwner) -> set[str] | None:
        """The keys of an owner; None if nobody is known by this name by a key."""
        if self._live is not self._identities.live:
            self._live = self._identities.live
            self._keys = {}
            for caller in self._live:
                self._keys.setdefault((caller.tenant, caller.name), set()).add(caller.key)
        return self._keys.get((owner.tenant, owner.name))


def _sealer(state: Path) -> Sealer:
    """What seals what pushes are sent with; without a key that lasts, that lasts as long as the hub."""
    try:
        return StoredSealer(stored_key(state))
    except (OSError, ValueError) as error:
        log.warning("push notifications will not outlast this hub: what they need cannot be sealed", reason=str(error))
        return ProcessSealer()


def _trusts(caller: Caller) -> bool:
    """Whether a caller may name private addresses that are listed; the person at this machine is here already."""
    return caller.can_name_targets or caller is LOCAL
