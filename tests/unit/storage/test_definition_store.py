"""Stored definitions, written by two programs at once."""

from __future__ import annotations

import stat
from pathlib import Path

from isthmus.storage.definition_store import FILE, DefinitionStore, SeenDefinition


def seen(description: str, tool: str = "read") -> SeenDefinition:
    return SeenDefinition("files", "", tool, description.encode(), b'"%b"' % description.encode(), 1.0)


def test_accepted_definitions_are_known_to_the_next_hub(tmp_path: Path) -> None:
    first = DefinitionStore(tmp_path)
    first.store([(seen("a"), False), (seen("b", "write"), False)])
    first.close()
    again = DefinitionStore(tmp_path)
    assert again.known() == [("files", "", "read", b"a"), ("files", "", "write", b"b")]
    assert again.changes(10) == []
    again.close()


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    DefinitionStore(tmp_path / "state").close()
    assert stat.S_IMODE((tmp_path / "state" / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_a_waiting_definition_is_approved_only_as_it_was_seen(tmp_path: Path) -> None:
    hub, operator = DefinitionStore(tmp_path), DefinitionStore(tmp_path)
    hub.store([(seen("a"), False)])
    hub.store([(seen("b"), True)])
    (waits,) = operator.waiting()
    assert (waits.before, waits.seen.definition) == (b'"a"', b'"b"')
    hub.store([(seen("c"), True)])
    assert not operator.approve(waits.seen, 2.0)
    (waits,) = operator.waiting()
    before = hub.last_read_approval()
    assert operator.approve(waits.seen, 2.0)
    assert operator.waiting() == []
    (approved,) = hub.approved_after(before)
    assert (approved.fingerprint, approved.before, approved.how) == (b"c", b'"a"', "approved")
    assert hub.known() == [("files", "", "read", b"c")]
    hub.store([(seen("c"), True)])
    assert operator.waiting() == [], "another hub that has not heard of it asks for no second consent"
    hub.close()
    operator.close()


def test_a_noticed_change_is_stored_with_the_former_definition(tmp_path: Path) -> None:
    definitions = DefinitionStore(tmp_path)
    definitions.store([(seen("a"), False)])
    definitions.store([(seen("b"), False)])
    assert [(each.before, each.after, each.how) for each in definitions.changes(5)] == [(b'"a"', b'"b"', "noticed")]
    assert definitions.approved_after(0) == []
    definitions.close()
