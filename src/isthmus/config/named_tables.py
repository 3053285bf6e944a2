"""Read the tables whose entries have a name of the user's choice: approvals, budgets, sets and fleets.

Their keys are declared once, here: their sentences in the reference, and the fields of the core's classes that they
fill. A file with a mistake in a rule for approvals or in a budget is refused: without it, calls would run that it
should hold or refuse. A set or fleet with a mistake is left out. Called by `config.load`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any, get_args

from isthmus.config import finding_codes, values
from isthmus.config.callers import APPROVALS, BUDGETS, CALLERS, FLEETS, ISSUERS, SETS, exposure, patterns, result_limit
from isthmus.config.entries_to_settings import json_table
from isthmus.config.files import ParsedFile
from isthmus.config.finding_codes import FindingCode
from isthmus.config.findings import ConfigError, Finding, Place, closest_match, fix_of
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
from isthmus.core.access.budget_rules import PERIODS, PERS, Budget
from isthmus.core.access.policy import Policy, check_pattern, is_of_agent, is_of_label
from isthmus.core.catalog.fleets import (
    AT_ONCE,
    DEADLINE_SECONDS,
    RESULT_BYTES,
    FleetSettings,
    check_member_pattern,
)
from isthmus.core.catalog.sets import ChangeTable, SetChange, SetSettings, colliding_names
from isthmus.model.callers import Grants
from isthmus.model.features import ListName
from isthmus.model.names import FeatureName, ServerName, parse_server_name

# -- [approvals.NAME] --------------------------------------------------------------------------------------------------

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

_RULE_FIXES = (
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
    document: ParsedFile | None, variables: Variables, budgets: Container[str] = ()
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
            fix = fix_of(error, _RULE_FIXES)
            findings.append(root.at(name).mistake(error, advice=fix, code=finding_codes.BAD_APPROVAL_RULE))
    if findings:
        raise ConfigError(*findings)
    return tuple(rules)


def idle_rules(
    rules: tuple[ApprovalRule, ...], document: ParsedFile | None, budgets: Mapping[str, Budget]
) -> list[Finding]:
    """Return findings about rules that hold no call: an earlier rule or a budget always comes first."""
    findings: list[Finding] = []
    for position, rule in enumerate(rules):
        place = Place(None if document is None else document.file, APPROVALS).at(rule.name)
        limit = None if rule.spent is None else budgets[rule.spent.budget].cost
        if rule.spent is not None and limit is not None and rule.spent.above >= limit:
            text = f"must be below {limit:g}, the cost of the budget {rule.spent.budget}, which refuses calls beyond it"
            fix, code = f"write a number below {limit:g}", finding_codes.IDLE_APPROVAL_RULE
            value = f"{rule.spent.above:g}"
            findings.append(place.at("spent", "above").finding(text, value=value, advice=fix, code=code))
            continue
        before = next((each for each in rules[:position] if _is_wider(each, rule)), None)
        if before is not None:
            text = f"decides about no call: {before.name} comes first and matches the same calls"
            findings.append(
                place.finding(text, advice=f"move it before {before.name}", code=finding_codes.IDLE_APPROVAL_RULE)
            )
    return findings


def _is_wider(first: ApprovalRule, second: ApprovalRule) -> bool:
    if first.arguments or first.spent is not None or (first.destructive and not second.destructive):
        return False
    # An exemption trusts labels of servers less, so its patterns of labels may match fewer tools.
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


# -- [budgets.NAME] ----------------------------------------------------------------------------------------------------

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

_BUDGET_FIXES = (
    ("needs calls", "write calls = 1000, result_bytes = 50000000 or cost = 500"),
    ("must be *, server.*", 'write a pattern such as "server.*", "server.tool" or "hint:destructive"'),
    ("must come with cost", "write cost = 500, the most that calls may cost in a period, or remove costs"),
    ("costs must be", 'write a table, such as costs = {"server.tool" = 5, "*" = 1}'),
    ("must have only", "correct the spelling of the key, or remove it"),
    ("must be a list", 'write a list, such as ["server.*"]'),
    ("must have a name", "rename the budget"),
)
"""Parts of the mistakes in a budget, and what to write instead; the first match counts."""


def read_budgets(document: ParsedFile | None) -> tuple[Budget, ...]:
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
            fix = fix_of(error, _BUDGET_FIXES)
            findings.append(root.at(name).mistake(error, advice=fix, code=finding_codes.BAD_BUDGET))
    if findings:
        raise ConfigError(*findings)
    return tuple(budgets)


def unknown_names(
    rules: Iterable[Budget | ApprovalRule],
    root: Place,
    known: Mapping[str, Collection[str]],
    code: FindingCode = finding_codes.IDLE_BUDGET,
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


# -- [sets.NAME] -------------------------------------------------------------------------------------------------------

SET_KEYS: Mapping[str, str] = {
    "tools": 'Tools of the set, in the patterns of permissions: `"server.*"`, `"server.tool"`, `"tag:NAME"`,'
    ' `"hint:read-only"`, `"*"`.',
    "prompts": "Prompts of the set, in the same patterns; none if not set.",
    "resources": "Resources and templates of the set, in the same patterns; none if not set.",
    "exclude": "What is not in the set, whatever the others say.",
    "description": "What the set is for. MCP clients get it as the instructions of the server.",
    "description_max": "Longest description of a tool, prompt or resource, in characters; longer ones are cut after a"
    " sentence, or else a word. 20 or more.",
    "expose": "Which tools the set lists, as in `[hub]`; the hub's `expose` if not set.",
    "max_result_bytes": "Larger results are [cut](budgets.md#large-results), as in `[hub]`; what the server or the hub"
    " says if not set.",
    "tool": 'Changes of single tools: `[sets.NAME.tool."server.tool"]`, with the keys below.',
    "prompt": 'Changes of single prompts: `[sets.NAME.prompt."server.prompt"]`, with the keys below.',
    "resource": 'Changes of single resources and templates: `[sets.NAME.resource."server.URI"]`, with the keys below'
    " except `fixed` and `hide`.",
}
"""The keys of `[sets.NAME]`, with their sentence in the reference."""

SET_CHANGE_KEYS: Mapping[str, str] = {
    "name": "Its name in the set. A resource is still read by its URI.",
    "title": "Its title in the set, which clients show to people.",
    "description": "Its description in the set.",
    "fixed": "Table of arguments that always have this value; those of prompts are texts. They are no longer declared;"
    " a caller that sends one gets `bad_arguments`. Texts may contain `${VAR}`.",
    "hide": "Optional arguments that are no longer declared; a caller that sends one gets `bad_arguments`.",
}
"""The keys of `[sets.NAME.tool."server.tool"]`, and of the tables of prompts and resources."""

_OF_ARGUMENTS = ("fixed", "hide")
"""Keys that a resource does not have."""

_CHANGED_LISTS: Mapping[ChangeTable, ListName] = {"tool": "tools", "prompt": "prompts", "resource": "resources"}
"""The list that each table of changes is about, which is also the key with its patterns."""

_SET_FIXES = (
    ("must have another name than a server", "rename the set"),
    ("must have a name like that of a server", "name the set with 1 to 50 letters, digits, _ and -"),
    ("must be server.tool in quotation marks", 'write [sets.NAME.tool."server.tool"]'),
    ("must be server.prompt in quotation marks", 'write [sets.NAME.prompt."server.prompt"]'),
    ("must be server.resource in quotation marks", 'write [sets.NAME.resource."server.URI"]'),
    ("must be *, server.*", 'write a pattern such as "server.*", "server.tool" or "hint:read-only"'),
    ("must be a list", 'write a list, such as ["server.*"]; changes are in the tables tool, prompt and resource'),
    ("must have only variables that are set", "set the variable where the hub starts, or in the .env beside the file"),
    ("must have only", "correct the spelling of the key, or remove it"),
    ("must not name an argument that is in fixed", "remove the argument from hide"),
    ("must be a text in quotation marks", "arguments of prompts are texts"),
)
"""Parts of the mistakes in a set, and what to write instead; the first match counts."""


def read_sets(
    document: ParsedFile | None, variables: Variables, servers: Collection[str]
) -> tuple[dict[str, SetSettings], list[Finding]]:
    """Return the sets of a file by name, with findings. `servers` are the names that a set cannot have."""
    if document is None or not document.dialect.has_hub:
        return {}, []
    root = Place(document.file, SETS)
    sets: dict[str, SetSettings] = {}
    findings: list[Finding] = []
    for name, entry in document.section(SETS).items():
        place = root.at(name)
        try:
            sets[name] = settings = _read_set(name, entry, variables, servers)
        except ValueError as error:
            advice = fix_of(error, _SET_FIXES, "callers that are bound to it see nothing")
            findings.append(place.mistake(error, advice=advice, code=finding_codes.BAD_SET))
            continue
        if not (settings.tools or settings.prompts or settings.resources):
            advice = 'to pick all tools of a server, write tools = ["server.*"]'
            findings.append(place.finding("picks nothing", advice=advice, code=finding_codes.IDLE_SET_ENTRY))
        for table, listed in _CHANGED_LISTS.items():
            for full in _unpicked(settings, listed):
                is_one = not full.endswith(".*")
                text = f"is not among the {listed} of the set" if is_one else f"names no single {table}"
                add = f"correct its spelling, add {json.dumps(full)} to {listed}, or remove it"
                advice = add if is_one else f"write a table for each {table}"
                code = finding_codes.IDLE_SET_ENTRY
                findings.append(place.at(table, full).finding(text, advice=advice, code=code))
        for changes in (settings.tool, settings.prompt):
            for shared, several in colliding_names(changes).items():
                text = f"gives the name {shared} to {', '.join(several)}"
                findings.append(place.finding(text, code=finding_codes.SET_NAMES_COLLIDE))
    findings += _unknown_bindings(document, document.section(SETS))
    return sets, findings


def _unpicked(settings: SetSettings, listed: ListName) -> list[str]:
    """Return what is changed and no pattern picks; empty where patterns match labels, which only servers know."""
    patterns, unpicked = settings.patterns_of(listed), []
    picked = Policy(Grants(patterns, settings.exclude))
    if any(is_of_label(pattern) or is_of_agent(pattern) for pattern in patterns):
        return []
    for full in settings.changes_of(listed):
        server, _, own = full.partition(".")
        if own == "*" or not picked.allows(ServerName(server), FeatureName(own)):
            unpicked.append(full)
    return unpicked


def _unknown_bindings(document: ParsedFile, sets: Collection[str]) -> list[Finding]:
    """Return findings about callers and issuers that are bound to a set that the file does not have.

    A set with a mistake has its own finding, which says what it means for them.
    """
    findings: list[Finding] = []
    for root in (CALLERS, ISSUERS):
        for name, entry in document.section(root).items():
            given = entry.get("set") if isinstance(entry, dict) else None
            if isinstance(given, str) and given not in sets:
                meant = closest_match(given, sets)
                advice = "" if meant is None else f"did you mean {meant}?"
                finding = (
                    Place(document.file, root)
                    .at(name, "set")
                    .finding(
                        "must be the name of a set", value=repr(given), advice=advice, code=finding_codes.UNKNOWN_SET
                    )
                )
                findings.append(finding)
    return findings


def _read_set(name: str, entry: object, variables: Variables, servers: Collection[str]) -> SetSettings:
    _check_name(name, servers)
    fields = values.table("", entry, SET_KEYS)
    given: dict[str, Any] = {key: patterns(key, fields) for key in ("tools", "prompts", "resources", "exclude")}
    if "description" in fields:
        given["description"] = values.text("description", fields["description"])
    if "description_max" in fields:
        given["description_max"] = values.integer("description_max", fields["description_max"])
    given["expose"] = exposure(fields)
    given["max_result_bytes"] = result_limit(fields)
    for table in _CHANGED_LISTS:
        entries = values.table(table, fields.get(table, {}))
        with values.below(table):
            given[table] = {full: _read_change(table, full, entry, variables) for full, entry in entries.items()}
    return SetSettings(**given)


def _read_change(table: ChangeTable, full: str, entry: object, variables: Variables) -> SetChange:
    server, _, own = full.partition(".")
    if not own:
        raise ValueError(f"{server} must be server.{table} in quotation marks, not {values.quoted(full)}")
    check_pattern(full)
    with values.below(f'"{full}"'):
        keys = [key for key in SET_CHANGE_KEYS if table != "resource" or key not in _OF_ARGUMENTS]
        fields = values.table("", entry, keys)
        used = UsedVariables()
        fixed = values.map_texts(
            json_table("fixed", fields.get("fixed", {})), lambda text, *_: variables.expand(text, used)
        )
        if used.unresolved:
            raise ValueError(f"fixed must have only variables that are set, not {used.unresolved[0]}")
        shown = {key: values.text(key, fields[key]) for key in ("name", "title", "description") if key in fields}
        hidden = values.texts("hide", fields.get("hide", []))
        return SetChange(**shown, fixed=values.table("fixed", fixed), hide=hidden)


# -- [fleets.NAME] -----------------------------------------------------------------------------------------------------

FLEET_KEYS: Mapping[str, str] = {
    "members": 'Which servers are members, a text or a list: `"sensor-*"` for configured servers and `"dialin:plant_*"`'
    ' for those that dialled in, by name, with `*` for any characters; `"agent:KEY"` and `"tag:NAME"` as in'
    " permissions.",
    "hide_members": "Whether lists of several servers leave out the members' own tools; `/mcp/MEMBER` has them. Default"
    " `true`.",
    "deadline": f"Seconds that a call of `all` members, or of `any`, may take. Default {DEADLINE_SECONDS:g}, at most"
    " 3600.",
    "at_once": f"How many members one call reaches at once; the others wait. Default {AT_ONCE}, at most 256.",
    "result_bytes": f"Bytes of all results that one call gathers; each member may use an equal share. Default"
    f" {RESULT_BYTES}, at most 8388608.",
    "read_only": 'Tools that only read, as you say, so that `any` works for them; `"*"` for all. Tools of a `trusted`'
    " server that say so themselves need not be listed.",
}
"""The keys of `[fleets.NAME]`, with their sentence in the reference."""

_FLEET_FIXES = (
    ("must have another name than a server", "rename the fleet"),
    ("must have a name like that of a server", "name the fleet with 1 to 50 letters, digits, _ and -"),
    ("members must have a pattern", 'write members = "sensor-*"'),
    ("a member must be", 'write a pattern such as "sensor-*", "dialin:plant_*" or "agent:plant"'),
    ("must be a list", 'write a list, such as ["sensor-*"]'),
    ("must have only", "correct the spelling of the key, or remove it"),
)
"""Parts of the mistakes in a fleet, and what to write instead; the first match counts."""


def read_fleets(
    document: ParsedFile | None, servers: Collection[str]
) -> tuple[dict[ServerName, FleetSettings], list[Finding]]:
    """Return the fleets of a file by name, with findings. `servers` are the names that a fleet cannot have."""
    if document is None or not document.dialect.has_hub:
        return {}, []
    fleets: dict[ServerName, FleetSettings] = {}
    findings: list[Finding] = []
    for name, entry in document.section(FLEETS).items():
        try:
            fleets[ServerName(name)] = _read_fleet(name, entry, servers)
        except ValueError as error:
            place = Place(document.file, FLEETS).at(name)
            advice = fix_of(error, _FLEET_FIXES, "the fleet does not exist, and its members are listed themselves")
            findings.append(place.mistake(error, advice=advice, code=finding_codes.BAD_FLEET))
    return fleets, findings


def _read_fleet(name: str, entry: object, servers: Collection[str]) -> FleetSettings:
    _check_name(name, servers)
    fields = values.table("", entry, FLEET_KEYS)
    members = fields.get("members", [])
    given: dict[str, Any] = {
        "members": (members,) if isinstance(members, str) and members else values.texts("members", members)
    }
    for pattern in given["members"]:
        try:
            check_member_pattern(pattern)
        except ValueError as error:
            raise ValueError(f"members: {error}") from error
    if "hide_members" in fields:
        given["hide_members"] = values.flag("hide_members", fields["hide_members"])
    if "deadline" in fields:
        given["deadline"] = values.number("deadline", fields["deadline"])
    for key in ("at_once", "result_bytes"):
        if key in fields:
            given[key] = values.integer(key, fields[key])
    if "read_only" in fields:
        given["read_only"] = values.texts("read_only", fields["read_only"])
    return FleetSettings(**given)


def _check_name(name: str, servers: Collection[str]) -> None:
    """Raise ValueError unless a set or fleet can have this name, which is used like that of a server."""
    try:
        parse_server_name(name)
    except ValueError as error:
        raise ValueError(f"must have a name like that of a server, not {values.quoted(name)}: {error}") from error
    if name in servers:
        raise ValueError(f"must have another name than a server, not {values.quoted(name)}")
