"""Read `[approvals.NAME]`: which calls a person must allow first.

The keys are declared once, here: their sentences in the reference, and the fields of `core.access.approval_rules` that
they fill. A file with a mistake in a rule is refused: without the rule, calls that it should hold would run. Called by
`config.load`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, get_args

from isthmus.config import codes, values
from isthmus.config.callers import APPROVALS, patterns
from isthmus.config.entry_conversion import json_table
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding, Place, fix_of
from isthmus.config.variables import UsedVariables, Variables
from isthmus.core.access.approval_rules import (
    TESTS,
    ApprovalRule,
    ApprovedBy,
    ArgumentTest,
    SpentTest,
    Test,
    path_of,
)
from isthmus.core.access.budget_rules import Budget

APPROVAL_KEYS: Mapping[str, str] = {
    "tools": "Tools that the rule is about, in the patterns of permissions; all tools if only `destructive` is set.",
    "destructive": "`true`: only tools that may destroy something. That is the server's `destructiveHint`; a tool that"
    " says nothing, and is not read-only, counts as destructive.",
    "arguments": "Table of tests, by the path of an argument (`amount`, `order.lines.*.price`, `/a.b/0`). Each test is"
    " one of `equals`, `one_of`, `matches` (a regular expression), `above` and `below`: `amount = {above = 100}`. All"
    " of them must pass.",
    "callers": "Names of the callers that the rule is about; all if not set.",
    "spent": "Only calls with which a [budget](budgets.md) has cost more than `above` in its period:"
    ' `{budget = "agents", above = 5}`.',
    "approve": "`false` exempts these calls from the rules that follow. Default `true`.",
    "by": '`"operator"` (default), or `"caller"`: the user of the caller is asked, if its client can show a question.',
    "expires": "Seconds that a request waits for a decision, and that a decision is valid. Default 3600, at most"
    " 604800.",
    "webhook": "Address that gets a POST for each request, without the arguments. May contain `${VAR}`.",
    "webhook_arguments": "`true`: the webhook gets the arguments, too.",
}
"""The keys of `[approvals.NAME]`, with their sentence in the reference."""

_FIXES = (
    ("needs tools", 'write tools = ["*"] for all tools, or destructive = true'),
    ("must be *, server.*", 'write a pattern such as "server.*", "server.tool" or "hint:destructive"'),
    ("must be operator or caller", 'write by = "operator", or remove it'),
    ("must be true where", "remove by and webhook, or write approve = true"),
    ("must have only variables that are set", "set the variable where the hub starts, or in the .env beside the file"),
    ("must have only", "correct the spelling of the key, or remove it"),
    ("must be the name of a table", "write the name of a budget of this file"),
    ("must be given", 'write both keys: spent = {budget = "agents", above = 5}'),
    ("must be true where spent", "remove spent, or write approve = true"),
    ("must have one test", "write one test, such as amount = {above = 100}"),
    (
        "must be a regular expression",
        "write it without look-around and back-references, and \\\\ for each \\ in quotation marks",
    ),
    ("must be a path", "write amount, order.total, or /a.b for a name with a dot"),
    ("must be a list", 'write a list, such as ["server.*"]'),
    ("expires must be", "write a number of seconds from 1 to 604800"),
)
"""Parts of the mistakes in a rule, and what to write instead; the first match counts."""


def read_approvals(
    document: Document | None, variables: Variables, budgets: Container[str] = ()
) -> tuple[ApprovalRule, ...]:
    """Return the rules of a file, in its order. `budgets` are the names that they may use.

    Raises:
        ConfigError: a rule has a mistake.
    """
    if document is None or not document.dialect.has_hub:
        return ()
    root = Place(document.file, APPROVALS)
    rules: list[ApprovalRule] = []
    findings: list[Finding] = []
    for name, entry in document.section(APPROVALS).items():
        try:
            rules.append(_read_rule(name, entry, variables, budgets))
        except ValueError as error:
            fix = fix_of(error, _FIXES)
            findings.append(root.at(name).mistake(error, advice=fix, code=codes.BAD_APPROVAL_RULE))
    if findings:
        raise ConfigError(*findings)
    return tuple(rules)


def idle_rules(
    rules: tuple[ApprovalRule, ...], document: Document | None, budgets: Mapping[str, Budget]
) -> list[Finding]:
    """Return findings about rules that hold no call: an earlier rule or a budget always comes first."""
    findings: list[Finding] = []
    for position, rule in enumerate(rules):
        place = Place(None if document is None else document.file, APPROVALS).at(rule.name)
        limit = None if rule.spent is None else budgets[rule.spent.budget].cost
        if rule.spent is not None and limit is not None and rule.spent.above >= limit:
            text = f"must be below {limit:g}, the cost of the budget {rule.spent.budget}, which refuses calls beyond it"
            fix, code = f"write a number below {limit:g}", codes.IDLE_APPROVAL_RULE
            value = f"{rule.spent.above:g}"
            findings.append(place.at("spent", "above").finding(text, value=value, advice=fix, code=code))
            continue
        before = next((each for each in rules[:position] if _is_wider(each, rule)), None)
        if before is not None:
            text = f"decides about no call: {before.name} comes first and matches the same calls"
            findings.append(place.finding(text, advice=f"move it before {before.name}", code=codes.IDLE_APPROVAL_RULE))
    return findings


def _is_wider(first: ApprovalRule, second: ApprovalRule) -> bool:
    if first.arguments or first.spent is not None or (first.destructive and not second.destructive):
        return False
    # An exemption believes less of what servers say, so patterns of labels may match fewer tools there.
    has_all = "*" in first.tools or not first.tools
    is_same = bool(second.tools) and set(second.tools) <= set(first.tools) and first.approve == second.approve
    return (has_all or is_same) and (
        not first.callers or (bool(second.callers) and set(second.callers) <= set(first.callers))
    )


def _read_rule(name: str, entry: object, variables: Variables, budgets: Container[str]) -> ApprovalRule:
    fields = values.table("", entry, APPROVAL_KEYS)
    given: dict[str, Any] = {"tools": patterns("tools", fields)}
    for key in ("destructive", "approve", "webhook_arguments"):
        if key in fields:
            given[key] = values.flag(key, fields[key])
    if given.get("destructive") is False:
        raise ValueError("destructive must be true or absent, not false")
    if "callers" in fields:
        given["callers"] = values.texts("callers", fields["callers"])
    if "spent" in fields:
        test = values.table("spent", fields["spent"], ("budget", "above"))
        for key in ("budget", "above"):
            if test.get(key) is None:
                raise ValueError(f"spent.{key} must be given, not left out")
        budget = values.text("spent.budget", test["budget"])
        if budget not in budgets:
            raise ValueError(f"spent.budget must be the name of a table of [budgets], not {values.quoted(budget)}")
        given["spent"] = SpentTest(budget, values.number("spent.above", test["above"]))
    if "by" in fields:
        given["by"] = values.text("by", fields["by"])
        if given["by"] not in get_args(ApprovedBy):
            raise ValueError(f"by must be operator or caller, not {values.quoted(given['by'])}")
    if "expires" in fields:
        given["expires"] = values.number("expires", fields["expires"])
    if "webhook" in fields:
        used = UsedVariables()
        given["webhook"] = variables.expand(values.text("webhook", fields["webhook"]), used)
        if used.unresolved:
            raise ValueError(f"webhook must have only variables that are set, not {used.unresolved[0]}")
    tests = json_table("arguments", values.plain(fields.get("arguments", {})))
    with values.below("arguments"):
        given["arguments"] = tuple(_read_test(path, table) for path, table in tests.items())
    return ApprovalRule(name, **given)


def _read_test(path: str, entry: object) -> ArgumentTest:
    place = Place(None).at(path).path
    try:
        steps = path_of(path)
    except ValueError as error:
        raise ValueError(f"{place} {error}") from error
    fields = values.table(place, entry, TESTS)
    if len(fields) != 1:
        raise ValueError(f"{place} must have one test of {', '.join(TESTS)}, not {len(fields)}")
    [(key, value)] = fields.items()
    test: Test = next(each for each in TESTS if each == key)
    key = f"{place}.{key}"
    if test == "one_of" and not isinstance(value, list):
        raise ValueError(f"{key} must be a list of values, not {values.quoted(value)}")
    if test in ("above", "below"):
        value = values.number(key, value)
    if test == "matches":
        value = values.text(key, value)
    try:
        return ArgumentTest(steps, test, value)
    except ValueError as error:
        raise ValueError(f"{key} must be a regular expression, not {values.quoted(value)}") from error
