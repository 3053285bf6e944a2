"""Every fault has one complete row in the table, with a message and whether the tool ran."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.cli.exits import Exit
from isthmus.model.fault_table import (
    FAULTS,
    CallerFault,
    Fault,
    FaultRow,
    Lost,
    NotConnected,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
    UpstreamFault,
    code_row,
    leaves,
)
from isthmus.model.names import ServerName


def test_the_table_has_a_row_for_every_fault_and_no_other() -> None:
    reasons = [leaf.reason for leaf in leaves()]
    assert len(set(reasons)) == len(reasons)
    assert set(reasons) == set(FAULTS)


@pytest.mark.parametrize("reason", FAULTS)
def test_a_row_has_a_value_in_every_column(reason: str) -> None:
    row = FAULTS[reason]
    assert msgspec.convert(msgspec.to_builtins(row), FaultRow) == row  # each column holds one of the values it may
    assert all((row.mcp < 0, row.relay < 0, row.agentvault, row.title, row.advice.endswith(".")))
    assert 400 <= row.http < 600
    assert Exit(row.exit) is not Exit.SUCCESS


def test_a_fault_has_the_executed_of_its_row_unless_each_call_says_it() -> None:
    depends = {reason for reason, row in FAULTS.items() if row.executed is None}
    assert depends == {"cancelled", "lost", "node_lost", "timed_out"}
    assert all(leaf.executed == FAULTS[leaf.reason].executed for leaf in leaves() if leaf.reason not in depends)


def test_only_lost_and_late_calls_can_be_unsent() -> None:
    assert code_row(Lost.reason, "no") is FAULTS["not_connected"]
    assert code_row(Lost.reason, "unknown") is FAULTS["lost"]
    assert code_row("overloaded", "no") is FAULTS["overloaded"]


def test_a_reason_of_another_version_has_the_codes_of_a_defect() -> None:
    assert code_row("of another version", "unknown") is FAULTS["internal"]


def test_every_leaf_belongs_to_one_party() -> None:
    for leaf in leaves():
        assert leaf.__bases__[0].__bases__ == (Fault,), leaf


@pytest.mark.parametrize("kind", [UnknownTool, UnknownPrompt, UnknownResource])
def test_faults_for_unknown_names_have_executed_no(kind: type[CallerFault]) -> None:
    fault = kind("x")
    assert (fault.executed, fault.server) == ("no", None)
    assert "x" in fault.message


def test_an_ambiguous_resource_is_reported_with_the_candidates() -> None:
    assert UnknownResource("u").message == "Resource not found: u"
    fault = UnknownResource("u", ("a", "b"))
    assert fault.message == "Resource not found: u; it could be a or b"
    assert fault.uri == "u"


def test_a_server_that_is_away_says_why_and_with_which_status() -> None:
    fault = NotConnected(ServerName("files"), "HTTP 403", status=403)
    assert isinstance(fault, UpstreamFault)
    assert (fault.why, fault.status, fault.executed, fault.server) == ("HTTP 403", 403, "no", "files")
