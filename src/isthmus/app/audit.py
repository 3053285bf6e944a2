"""The audit log of a hub that serves: opened over its journal, told what happens, pruned, and closed in good order."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from isthmus import __version__
from isthmus.app.definitions import DefinitionPins
from isthmus.app.hub import RunningHub
from isthmus.app.identity import Identities
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.core.audit.chain import CUT, Kind, Point, Seal, Standing, signed_text
from isthmus.core.audit.facts import STARTED, STOPPED, UNCLEAN, Fact, Scribe
from isthmus.core.ports.journal import OpenJournal
from isthmus.core.ports.ledger import Ledger
from isthmus.faces.http.gate import Gate
from isthmus.identity.store import Keys as MintedKeys
from isthmus.identity.store import State
from isthmus.model.callers import Caller
from isthmus.model.credentials import Subject
from isthmus.model.names import ServerName
from isthmus.storage.seals import KeyDamaged, Keys, Seals, open_keys, read_checkpoint
from isthmus.telemetry.audit import Audit, Mode

log = structlog.get_logger(__name__)

PRUNE_SECONDS = 3600.0
"""How often it is looked whether records are too old."""

PRUNED_AT_ONCE = 10_000


class Notary:
    """See `core.ports.ledger.Notary`: a scribe, and seals."""

    def __init__(self, scribe: Scribe, seals: Seals) -> None:
        self._scribe = scribe
        self._seals = seals

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """The record of a fact."""
        return self._scribe.record(fact)

    def seal(self, kind: Kind, point: Point) -> Seal:
        """Sign a point."""
        return self._seals.seal(kind, point)

    def checkpoint(self, point: Point) -> None:
        """Note how far the log goes."""
        self._seals.checkpoint(point)


class AuditLog:
    """An open log; made by `open_audit`."""

    def __init__(self, ledger: Ledger, scribe: Scribe, seals: Seals, mode: Mode) -> None:
        self.audit = Audit(ledger, scribe, mode)
        self._ledger = ledger
        self._scribe = scribe
        self._seals = seals
        self._keys: dict[str, tuple[State, Caller]] = {}

    def attach(self, running: RunningHub, gate: Gate, identities: Identities, pins: DefinitionPins) -> None:
        """Hear of whatever is not a call, and have old records taken away."""
        gate.on_turned_away = self.audit.turned_away
        pins.tell = self._tell
        self._hear_of_logins(running)
        self._keys = states_of(identities.keys, time.time())
        identities.on_keys = self._compare_keys
        running.crew.spawn("audit retention", self.retain(lambda: running.configuration.audit.keep))

    def _tell(self, event: str, facts: Mapping[str, object]) -> None:
        self.audit.note(event, **{key: str(value) for key, value in facts.items()})

    def _hear_of_logins(self, running: RunningHub) -> None:
        before = running.logins.on_changed

        def changed(server: ServerName, subject: Subject | None) -> None:
            whose = {} if subject is None else {"caller": subject.name, "tenant": subject.tenant}
            self.audit.note("login.changed", server=server, **whose)
            before(server, subject)

        running.logins.on_changed = changed

    def _compare_keys(self, keys: MintedKeys) -> None:
        """Tell of keys that were made, or are good no more, since they were looked at last."""
        before, self._keys = self._keys, states_of(keys, time.time())
        for id, (state, caller) in self._keys.items():
            if id not in before or before[id][0] != state:
                event = "key.created" if id not in before and state == "good" else f"key.{state}"
                self.audit.note(event, key=id, caller=caller.name, tenant=caller.tenant)

    def reloaded(self, configuration: Configuration) -> None:
        """The configuration is another one now; of its files, which may hold secrets, a keyed digest is kept."""
        self.audit.note("configuration.reloaded", configuration=self.digest_of(configuration.files))

    def digest_of(self, files: Iterable[Path]) -> str:
        """Tells one state of these files from another."""
        digest = hashlib.sha256()
        for file in sorted(files):
            with suppress(OSError):
                digest.update(hashlib.sha256(file.read_bytes()).digest())
        return self._scribe.digest(digest.digest())

    async def retain(self, keep: Callable[[], float]) -> None:
        """Take records away that are older than so many seconds, for as long as the hub runs."""
        while True:
            with suppress(OSError):
                while await self._ledger.prune_log(before=time.time() - keep(), limit=PRUNED_AT_ONCE):
                    pass  # each waits for the journal's writer, and so lets others go first
            await asyncio.sleep(PRUNE_SECONDS)

    async def stop(self) -> None:
        """Write that the hub ends; nothing follows."""
        self.audit.tell_of_strangers()
        self.audit.note(STOPPED)  # as the last one, which the next hub looks at
        await self.audit.aclose()

    def close(self) -> None:
        """Let the checkpoint go, once the journal is closed."""
        self._seals.close()


def states_of(keys: MintedKeys, now: float) -> dict[str, tuple[State, Caller]]:
    """How it is with each key, and whose it is."""
    return {key.id: (key.state(now), key.caller) for key in keys}


async def close_audit(opened: AuditLog | None, journal: OpenJournal) -> None:
    """Write that the hub ends, and let the journal go."""
    if opened is not None:
        await opened.stop()
    await journal.aclose()
    if opened is not None:
        opened.close()


async def open_audit(configuration: Configuration, journal: OpenJournal) -> AuditLog | None:
    """The log that a configuration asks for; None if it wants none, or can do without one that cannot be kept.

    Raises:
        ConfigError: it wants every call in the log, and there can be none; the journal is closed then.
    """
    mode = configuration.hub.audit
    if mode == "off":
        return None
    try:
        if not isinstance(journal, Ledger):
            raise OSError("nothing that this hub keeps outlasts it")
        return await _opened(configuration, journal, mode)
    except (OSError, KeyDamaged) as error:
        if mode == "strict":
            await journal.aclose()
            said = f'cannot be "strict": {error}'
            raise ConfigError(Place(configuration.file, "hub.audit").finding(said)) from error
        log.warning("calls are not audited", reason=str(error))
        return None


async def _opened(configuration: Configuration, ledger: Ledger, mode: Mode) -> AuditLog:
    state = Path(configuration.hub.state)
    keys = open_keys(state)
    vouched = read_checkpoint(state, keys)
    seals = Seals(state, keys)
    try:
        scribe = Scribe(keys.digesting)
        standing = await ledger.open_log(Notary(scribe, seals))
    except BaseException:
        seals.close()
        raise
    opened = AuditLog(ledger, scribe, seals, mode)
    _tell_of_start(opened, standing, vouched, keys, configuration, mode)
    return opened


def _tell_of_start(
    opened: AuditLog, standing: Standing, vouched: Seal | None, keys: Keys, configuration: Configuration, mode: Mode
) -> None:
    """Write what the log looks like before anything is added to it."""
    if (why := _cut(standing, vouched, keys)) is not None:
        log.error("the audit log is not as it was left", why=why)
        opened.audit.note(CUT, why=why)
    if standing.last is not None and f'"event":"{STOPPED}"'.encode() not in standing.last:
        log.warning("the hub before this one did not come to its end: its last records may be missing")
        opened.audit.note(UNCLEAN, after=standing.head.number)
    files = opened.digest_of(configuration.files)
    opened.audit.note(STARTED, version=__version__, audit=mode, key=keys.name, configuration=files)
    opened.audit.flush()


def _cut(standing: Standing, vouched: Seal | None, keys: Keys) -> str | None:
    """What is missing of the log, as far as its end shows that."""
    number = standing.head.number
    if vouched is None:
        return "there was no checkpoint beside it" if number else None
    if not keys.is_signed(signed_text("checkpoint", vouched.point, vouched.at), vouched.signature):
        return "its checkpoint was not signed by the hub's key"
    if vouched.point.number > number:
        return f"the log ended with record {number}, and its checkpoint vouched for {vouched.point.number}"
    if vouched.point.number == number and vouched.point != standing.head:
        return f"record {number} was another one than its checkpoint vouched for"
    return None
