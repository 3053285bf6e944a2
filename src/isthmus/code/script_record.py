"""What the journal keeps of a durable script, so that the next hub can continue it. `code.scripts` is the only user.

Three documents of a task's owner and id:

    script          what to run and for whom; written once, with the task
    script.calls    the calls that it waits for, and what it has printed; written at each stop
    script.state    the state of its sandbox, encrypted; written at each stop

At a stop of the script, its calls and its state are written together, before one of the calls is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from isthmus.code.sandbox_in_hub import CallAnswer, ToolFailure, library_version
from isthmus.core.journal import Document, Journal, OnWritten
from isthmus.core.ports import Sealer
from isthmus.core.tasks.live_task import tombstone
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities, Surface

SCRIPT: Final = "script"
CALLS: Final = "script.calls"
STATE: Final = "script.state"
SCRIPT_KINDS: Final = (SCRIPT, CALLS, STATE)
"""Each `Document.kind`."""

PRUNED_SECONDS = 31 * 24 * 3600.0
"""No script waits that long for a person: what is older belongs to none."""


class StoredCall(msgspec.Struct, omit_defaults=True):
    """A call that a script waits for."""

    id: int
    tool: str
    arguments: str
    is_sent: bool = False
    """It may have reached its server, unless it is held."""
    is_held: bool = False
    """It waits for approval, and was not sent: the next hub asks for the same approval."""
    answer: str | None = None
    failure: str | None = None

    @property
    def known(self) -> CallAnswer | None:
        """The answer, if there is one."""
        if self.failure is not None:
            return ToolFailure(self.failure)
        return self.answer


class ScriptRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What to run and for whom."""

    code: str
    deadline: float
    surface: Surface
    session: str = ""
    client_caps: ClientCapabilities = NO_CAPABILITIES
    frontend: str = ""


class ScriptProgress(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Where the script is."""

    deadline: float
    library: str
    """The version that wrote the state."""
    state_version: int = 0
    """Which version of the state's document belongs to this."""
    printed: str = ""
    count: int = 0
    """How many calls were started."""
    seconds_left: float = 0.0
    """Seconds until the deadline when the script began to wait for a person; 0 if it does not wait."""
    calls: list[StoredCall] = []


_encode = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(ScriptRecord).decode
_decode_progress = msgspec.json.Decoder(ScriptProgress).decode


def first_document(owner: str, id: str, at: float, record: ScriptRecord) -> Document:
    """The document of a script that has not started; store it with its task."""
    return Document(SCRIPT, owner, id, 1, at, _encode(record))


class LoadedScript(NamedTuple):
    """A script as it was stored."""

    record: ScriptRecord
    progress: ScriptProgress | None
    """None if it has made no call."""
    state: bytes | None
    """None if it is missing, was changed, or belongs to other calls."""


class ScriptStore:
    """The documents of one durable script."""

    def __init__(self, journal: Journal, sealer: Callable[[], Sealer], owner: str, id: str) -> None:
        self._journal = journal
        self._sealer = sealer
        self._owner = owner
        self._id = id
        self._calls_version = 0
        self._state_version = 0
        self._is_deleted = False

    async def load(self) -> LoadedScript | None:
        """Read what is stored; None if it was deleted.

        Raises:
            OSError: it cannot be read.
            msgspec.MsgspecError: another version of the hub wrote it.
        """
        script, calls, state = [await self._journal.read(kind, self._owner, self._id) for kind in SCRIPT_KINDS]
        if script is None or script.body is None:
            return None
        record = _decode_record(script.body)
        if calls is None or calls.body is None:
            return LoadedScript(record, None, None)
        progress = _decode_progress(calls.body)
        self._calls_version = calls.version
        self._state_version = progress.state_version
        sealed = b"" if state is None else state.body or b""
        return LoadedScript(record, progress, self._sealer().open_bytes(sealed, self._context(progress.state_version)))

    def sealing(self, state: bytes) -> Callable[[], SealedState]:
        """Encrypts a new state for `write`, on any thread. States are written in the order of these calls."""
        self._state_version += 1
        version, sealer, context = self._state_version, self._sealer(), self._context(self._state_version)
        return lambda: SealedState(version, sealer.seal_bytes(state, context))

    def write(self, at: float, progress: ScriptProgress, state: SealedState | None, done: OnWritten) -> None:
        """Store where the script is; `state` if it is new."""
        if self._is_deleted:
            return
        documents = []
        if state is not None:
            progress.state_version = state.version
            documents.append(Document(STATE, self._owner, self._id, state.version, at, state.content))
        self._calls_version += 1
        documents.append(Document(CALLS, self._owner, self._id, self._calls_version, at, _encode(progress)))
        self._journal.write(documents, done)

    async def delete(self) -> None:
        """Delete all; call it once the end of the task is stored. What cannot be deleted, `prune` deletes one day."""
        self._is_deleted = True
        with suppress(OSError):
            found = [await self._journal.read(kind, self._owner, self._id) for kind in SCRIPT_KINDS]
            if stored := [tombstone(each) for each in found if each is not None]:
                self._journal.write(stored, lambda _: None)

    def _context(self, version: int) -> bytes:
        """What a sealed state is bound to."""
        return f"{self._owner}\n{self._id}\n{version}".encode("utf-8", "surrogatepass")


class SealedState(NamedTuple):
    """The encrypted state of a sandbox, and the version of its document."""

    version: int
    content: bytes


async def prune(journal: Journal, before: float) -> None:
    """Delete what a crash left of scripts that have ended."""
    with suppress(OSError):
        for kind in SCRIPT_KINDS:
            while await journal.prune(kind, ("",), before=before - PRUNED_SECONDS, limit=100) == 100:
                pass


def new_progress(deadline: float) -> ScriptProgress:
    """The progress of a script that starts now."""
    return ScriptProgress(deadline, library_version())
