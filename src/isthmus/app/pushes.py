"""Push notifications of a hub: connects the outbox with the code that writes and sends notifications."""

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
from isthmus.credentials.sealing import ProcessSealer, StoredSealer, stored_key
from isthmus.credentials.signed_jwts import PushSigner
from isthmus.frontends.a2a.push_notifications import PushNotifications
from isthmus.model.callers import Caller
from isthmus.transport.egress import Egress
from isthmus.transport.push_client import PushClient

log = structlog.get_logger(__name__)


class Pushes:
    """Sends the push notifications of tasks. Call `close` before the hub ends, and `aclose` after it."""

    def __init__(self, running: RunningHub, identities: Identities | None = None) -> None:
        """Nothing is sent before `start`; which private addresses may be named is the newest configuration's word.

        With `identities`, owners that are no longer known get no more notifications.
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
        """Start sending, including notifications that an earlier hub left."""
        self._running.background.spawn("outbox", self._outbox.run())

    def close(self) -> None:
        """Send nothing new; the next hub with this state sends what is due."""
        self._outbox.close()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._courier.aclose()


class Owners:
    """The known owners of tasks, with their valid keys."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._live: frozenset[Caller] = frozenset()
        self._keys: dict[tuple[str, str], set[str]] = {}

    def judge(self, owner: TaskOwner, key: str) -> OwnerStatus:
        """Whether an owner and the key it used are still valid; see `core.tasks.outbox.CheckOwner`."""
        good = self._good_keys(owner)
        if good is None:
            if self._identities.find(owner.tenant, owner.name) is not None:
                return "known"  # identified by a verifier
            return "away" if self._identities.may_be_proved(owner.name) else "gone"
        # A key of the file has another id in each process; for an earlier hub's id, the owner alone decides.
        is_foreign = not key or (key.startswith("file:") and not key.startswith(FILE_MARKS))
        return "known" if is_foreign or key in good else "gone"

    def _good_keys(self, owner: TaskOwner) -> set[str] | None:
        """The keys of an owner; None if no key has this name."""
        if self._live is not self._identities.live:
            self._live = self._identities.live
            self._keys = {}
            for caller in self._live:
                self._keys.setdefault((caller.tenant, caller.name), set()).add(caller.key)
        return self._keys.get((owner.tenant, owner.name))


def _sealer(state: Path) -> Sealer:
    """Encrypts the credentials of push notifications; without a stored key they last as long as the hub."""
    try:
        return StoredSealer(stored_key(state))
    except (OSError, ValueError) as error:
        log.warning("push notifications will not survive a restart: no encryption key", reason=str(error))
        return ProcessSealer()


def _trusts(caller: Caller) -> bool:
    """Whether a caller may name listed private addresses; the local user always may."""
    return caller.can_name_targets or caller is LOCAL
