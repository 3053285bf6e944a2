"""Findings about a configuration that depend on the servers' lists: patterns, sets and rules that match nothing.

Plain functions over a configuration and a snapshot. `app.hub` logs the findings about rules and gives all to operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from isthmus.config.finding_codes import IDLE_PATTERN, IDLE_SET_ENTRY, LACKING_ARGUMENT, LEFT_OUT_OF_SET
from isthmus.config.findings import Finding, Place
from isthmus.config.settings import Configuration
from isthmus.core.admin_ports import ConfigurationFinding
from isthmus.core.calls.approvals import lacking_arguments
from isthmus.core.catalog.snapshot import Snapshot


def findings_from_lists(configuration: Configuration, snapshot: Snapshot) -> Iterator[Finding]:
    """All findings that the servers' lists cause."""
    yield from _set_findings(configuration, snapshot)
    yield from rule_findings(configuration, snapshot)
    yield from _pattern_findings(configuration, snapshot)


def rule_findings(configuration: Configuration, snapshot: Snapshot) -> Iterator[Finding]:
    """Rules for approvals that name tools or arguments which no server has."""
    for rule in configuration.approvals:
        place = Place(configuration.file, "approvals").at(rule.name)
        yield from _without_match(snapshot, place.at("tools"), rule.tools)
        for test, tools, effect in lacking_arguments(rule, snapshot):
            text = f"names an argument that {tools} does not have: {effect}"
            yield place.at("arguments", ".".join(test.path)).finding(text, code=LACKING_ARGUMENT)


def _set_findings(configuration: Configuration, snapshot: Snapshot) -> Iterator[Finding]:
    """Entries of sets that match nothing or are left out; not those that reading the file has found already."""
    known = {finding.path for finding in configuration.warnings}
    for name in configuration.sets:
        for note in snapshot.set_notes(name):
            place = Place(configuration.file, "sets").at(name, *note.path)
            code = LEFT_OUT_OF_SET if note.text.startswith("is left out") else IDLE_SET_ENTRY
            if place.path not in known:
                yield place.finding(note.text, code=code)


def _pattern_findings(configuration: Configuration, snapshot: Snapshot) -> Iterator[Finding]:
    """Patterns of budgets and callers that match no tool."""
    root = Place(configuration.file)
    for budget in configuration.budgets:
        place = root.at("budgets", budget.name)
        yield from _without_match(snapshot, place.at("tools"), budget.tools)
        yield from _without_match(snapshot, place.at("costs"), (pattern for pattern, _ in budget.costs))
    for caller in {caller.name: caller for _, caller in configuration.callers}.values():
        place = root.at("callers", caller.name)
        yield from _without_match(snapshot, place.at("allow"), caller.grants.allow)
        yield from _without_match(snapshot, place.at("deny"), caller.grants.deny)


def _without_match(snapshot: Snapshot, place: Place, patterns: Iterable[str]) -> Iterator[Finding]:
    for pattern in patterns:
        if snapshot.names_nothing(pattern):
            yield place.finding(f"has {pattern}, which matches nothing", code=IDLE_PATTERN)


def for_operators(finding: Finding) -> ConfigurationFinding:
    """A finding as the REST API shows it: with the name of the file, without its folder."""
    file = None if finding.file is None else finding.file.name
    return ConfigurationFinding(finding.code.number, file, finding.path, finding.problem, finding.fix)
