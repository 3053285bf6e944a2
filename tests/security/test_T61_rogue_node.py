"""T61: a node that was given up comes back and writes, or one with a stolen configuration joins.

There are no nodes to join: a hub is one process. What of it applies is a second hub on the same state, by mistake or
after a failover: it finds a lock and is refused; and one that was stopped for so long that another took its place finds
its lock gone and newer versions kept, and writes nothing. For the database that is shown in
`tests/unit/storage/test_postgres.py` and `tests/faults/test_tasks_database.py`; here for the file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.core.ports import Document
from isthmus.storage.journal_base import StateInUse
from isthmus.storage.sqlite import SqliteJournal
from tests.security.source import texts
from tests.unit.storage.test_documents import write


async def test_a_second_hub_on_the_same_state_is_refused(tmp_path: Path) -> None:
    first = SqliteJournal(tmp_path)
    with pytest.raises(StateInUse):
        SqliteJournal(tmp_path)
    await first.aclose()
    second = SqliteJournal(tmp_path)
    await second.aclose()


async def test_what_was_decided_before_another_took_over_is_not_written(tmp_path: Path) -> None:
    """Each change names the version that it takes the place of: who missed one cannot write the next."""
    journal = SqliteJournal(tmp_path)
    assert await write(journal, Document("task", "me", "t", 1, 1.0, b"begun")) == "kept"
    stale = Document("task", "me", "t", 2, 2.0, b"what the old one thinks")
    assert await write(journal, Document("task", "me", "t", 2, 2.0, b"what the new one did")) == "kept"
    assert await write(journal, stale) == "conflict"
    kept = await journal.read("task", "me", "t")
    assert kept is not None
    assert kept.body == b"what the new one did"
    await journal.aclose()


def test_there_is_no_endpoint_for_nodes() -> None:
    assert not [name for name in texts() if name.startswith(("cluster/", "wire/peer/", "frontends/peer/"))]
