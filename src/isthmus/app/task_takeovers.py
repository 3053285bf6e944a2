"""A hub as a node of a cluster: which documents nodes hold, and how one takes over those of a node that is gone.

`app.serve` opens the journal with `HELD` and runs `Takeovers`. Leases are in `storage.postgres_cluster`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import structlog

from isthmus.code.script_record import SCRIPT_KINDS
from isthmus.core.journal import Document, SharedJournal, WriteResult
from isthmus.core.tasks.engine import UNFINISHED, TaskEngine
from isthmus.core.tasks.push_delivery import DELIVERY
from isthmus.core.tasks.record import TASK, TaskRecord

log = structlog.get_logger(__name__)

PLACED, OWNED, FREE = "placed", "owned", "free"
"""The kind of the document that says which node runs a program for all others, and its states."""

HELD: Mapping[str, Collection[str]] = {
    TASK: UNFINISHED,
    DELIVERY: ("due",),
    **dict.fromkeys(SCRIPT_KINDS, ("",)),
    PLACED: (OWNED,),
}
"""The states in which one node works on a document of a kind. All other documents are free: their versions decide."""

RETRY_SECONDS = 0.2
"""How long to wait for documents that a dead node's last transaction still locks, or for the database."""


class Takeovers:
    """Continues the tasks of nodes that are gone, while this one runs. `on_lost` receives those that have failed."""

    def __init__(
        self, journal: SharedJournal, engine: TaskEngine, on_lost: Callable[[Sequence[TaskRecord]], None]
    ) -> None:
        self._journal = journal
        self._engine = engine
        self._on_lost = on_lost

    async def run(self) -> None:
        """Run until cancelled."""
        owned: list[Document] = []
        while True:
            if not owned:
                await self._journal.inherited.wait()
            try:
                documents = await self._journal.inherit()
            except OSError as error:
                log.warning("tasks of another node could not be taken over yet", error=str(error))
                documents = []
            if documents:
                lost = self._engine.take_over(documents)
                self._engine.resume()
                self._on_lost(lost)
            owned = await self._free([*owned, *(each for each in documents if each.kind == PLACED)])
            if not documents:
                await asyncio.sleep(RETRY_SECONDS)

    async def _free(self, owned: Sequence[Document]) -> list[Document]:
        """Let any node run the programs that dead ones ran; return those whose write has to be tried again."""
        results = await asyncio.gather(*map(self._write_free, owned))
        # A conflict is success: an earlier try was stored, or a node has taken the program.
        return [each for each, result in zip(owned, results, strict=True) if result in ("refused", "unknown")]

    async def _write_free(self, owned: Document) -> WriteResult:
        written: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        free = msgspec.structs.replace(owned, version=owned.version + 1, state=FREE)
        self._journal.write([free], lambda result: None if written.done() else written.set_result(result))
        return await written
