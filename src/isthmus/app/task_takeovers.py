"""A hub as a node of a cluster: which documents nodes hold, and how one takes over those of a node that is gone.

`app.serve` opens the journal with `HELD` and runs `Takeovers`. Leases are in `storage.postgres_cluster`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import structlog

from isthmus.code.scripts import SCRIPT, STATE
from isthmus.core.ports import Document, SharedJournal
from isthmus.core.tasks.engine import UNFINISHED, TaskEngine
from isthmus.core.tasks.push_delivery import DELIVERY
from isthmus.core.tasks.record import TASK, TaskRecord

log = structlog.get_logger(__name__)

PLACED, OWNED, FREE = "placed", "owned", "free"
"""The kind of the document that says which node runs a program for all others, and its states."""

HELD: Mapping[str, Collection[str]] = {
    TASK: UNFINISHED,
    DELIVERY: ("due",),
    SCRIPT: ("",),
    STATE: ("",),
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
        while True:
            await self._journal.inherited.wait()
            try:
                documents = await self._journal.inherit()
            except OSError as error:
                log.warning("tasks of another node could not be taken over yet", error=str(error))
                documents = []
            if not documents:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._free(documents)
            lost = self._engine.take_over(documents)
            self._engine.resume()
            self._on_lost(lost)

    def _free(self, documents: Sequence[Document]) -> None:
        """Let any node run the programs that a dead one ran."""
        replace = msgspec.structs.replace
        freed = [replace(each, version=each.version + 1, state=FREE) for each in documents if each.kind == PLACED]
        for document in freed:
            self._journal.write([document], lambda _: None)
