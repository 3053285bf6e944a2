"""Read `[budgets.NAME]`: how much callers may use in a period.

The keys are declared once, here: their sentences in the reference, and the fields of `core.access.budget_rules` that
they fill. A file with a mistake in a budget is refused: without the budget, calls would have no limit. Called by
`config.load`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from isthmus.config import codes, values
from isthmus.config.callers import BUDGETS, patterns
from isthmus.config.codes import FindingCode
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding, Place, closest_match, fix_of
from isthmus.core.access.approval_rules import ApprovalRule
from isthmus.core.access.budget_rules import PERIODS, PERS, Budget
from isthmus.core.access.policy import check_pattern

BUDGET_KEYS: Mapping[str, str] = {
    "calls": "Most calls in a period. A call counts when it is sent to a server; one that provably did not run is taken"
    " off again.",
    "result_bytes": "Most bytes of results in a period. They count when the call ends, so the last one may exceed it.",
    "cost": "Most cost units in a period, see `costs`.",
    "costs": 'Table of what one call costs, by patterns of tools: `{"server.tool" = 5, "*" = 1}`. The most exact'
    " pattern counts: a tool, a server, a tag, hint or agent, then `*`; of several alike the dearest. 1 if none"
    " matches.",
    "period": "`hour`, `day` (default) or `month`, in UTC: a day is renewed at midnight UTC.",
    "per": "What one counter belongs to: `caller` (default), `tenant`, `set`, `tool` or `hub`.",
    "callers": "Names of the callers that the budget is about; all if not set.",
    "tenants": "Names of the tenants that it is about; all if not set.",
    "sets": "Names of the sets that it is about; all calls, in a set or not, if not set.",
    "tools": "Tools that it is about, in the patterns of permissions; all if not set.",
}
"""The keys of `[budgets.NAME]`, with their sentence in the reference."""

NAME_LENGTH_MAX = 64

_FIXES = (
    ("needs calls", "write calls = 1000, result_bytes = 50000000 or cost = 500"),
    ("must be *, server.*", 'write a pattern such as "server.*", "server.tool" or "hint:destructive"'),
    ("must come with cost", "write cost = 500, the most that calls may cost in a period, or remove costs"),
    ("costs must be", 'write a table, such as costs = {"server.tool" = 5, "*" = 1}'),
    ("must have only", "correct the spelling of the key, or remove it"),
    ("must be a list", 'write a list, such as ["server.*"]'),
    ("must have a name", "rename the budget"),
)
"""Parts of the mistakes in a budget, and what to write instead; the first match counts."""


def read_budgets(document: Document | None) -> tuple[Budget, ...]:
    """Return the budgets of a file, in its order.

    Raises:
        ConfigError: a budget has a mistake.
    """
    if document is None or not document.dialect.has_hub:
        return ()
    root = Place(document.file, BUDGETS)
    budgets: list[Budget] = []
    findings: list[Finding] = []
    for name, entry in document.section(BUDGETS).items():
        try:
            budgets.append(_read_budget(name, entry))
        except ValueError as error:
            fix = fix_of(error, _FIXES)
            findings.append(root.at(name).mistake(error, advice=fix, code=codes.BAD_BUDGET))
    if findings:
        raise ConfigError(*findings)
    return tuple(budgets)


def unknown_names(
    rules: Iterable[Budget | ApprovalRule],
    root: Place,
    known: Mapping[str, Collection[str]],
    code: FindingCode = codes.IDLE_BUDGET,
) -> list[Finding]:
    """Return findings about names in budgets, or rules for approvals, that are probably mistyped.

    Callers with tokens have names that no file has.
    """
    findings: list[Finding] = []
    for rule in rules:
        for key, names in known.items():
            for at, name in enumerate(getattr(rule, key)):
                if name not in names and (meant := closest_match(name, names)) is not None:
                    place, advice = root.at(rule.name, key, at), f"did you mean {meant}?"
                    text = f"must name one of the {key} in this file"
                    findings.append(place.finding(text, value=repr(name), advice=advice, code=code))
    return findings


def _read_budget(name: str, entry: object) -> Budget:
    if not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        found = values.quoted(name)
        raise ValueError(f"must have a name of 1 to {NAME_LENGTH_MAX} printable characters, not {found}")
    fields = values.table("", entry, BUDGET_KEYS)
    given: dict[str, Any] = {"tools": patterns("tools", fields)}
    for key in ("calls", "result_bytes"):
        if key in fields:
            given[key] = values.integer(key, fields[key])
    if "cost" in fields:
        given["cost"] = values.number("cost", fields["cost"])
    for key, known in (("period", PERIODS), ("per", PERS)):
        if key in fields and (value := values.text(key, fields[key])) not in known:
            raise ValueError(f"{key} must be one of {', '.join(known)}, not {values.quoted(value)}")
        if key in fields:
            given[key] = fields[key]
    for key in ("callers", "tenants", "sets"):
        if key in fields:
            if not (names := values.texts(key, fields[key])):
                raise ValueError(f"{key} must be a list of names, or absent for all, not empty")
            given[key] = names
    costs = values.table("costs", values.plain(fields.get("costs", {})))
    for pattern in costs:
        try:
            check_pattern(pattern)
        except ValueError as error:
            raise ValueError(f"costs must be by pattern: {str(error).removeprefix('a grant ')}") from error
    with values.below("costs"):
        given["costs"] = tuple((pattern, values.number(pattern, cost)) for pattern, cost in costs.items())
    return Budget(name, **given)
