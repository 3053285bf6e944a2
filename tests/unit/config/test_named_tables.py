"""Approvals, budgets, sets and fleets of a file: their defaults, and that a mistake never widens access."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from isthmus.app.reload_diff import compare
from isthmus.config.client_formats import OWN
from isthmus.config.files import ParsedFile
from isthmus.config.finding_codes import (
    BAD_FLEET,
    BAD_SET,
    IDLE_SET_ENTRY,
    SET_NAMES_COLLIDE,
    UNKNOWN_SERVER,
    UNKNOWN_SET,
)
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.load import load
from isthmus.config.named_tables import BUDGET_KEYS, FLEET_KEYS, SET_CHANGE_KEYS, SET_KEYS, read_sets
from isthmus.config.settings import Configuration
from isthmus.config.variables import Variables
from isthmus.core.access.approval_rules import ApprovalRule, ArgumentTest, SpentTest
from isthmus.core.access.budget_rules import Budget
from isthmus.core.catalog.fleets import FleetSettings
from isthmus.core.catalog.sets import SetChange, SetSettings


def read(folder: Path, text: str, **environment: str) -> Configuration:
    file = folder / "isthmus.toml"
    file.write_text(text)
    return load(file, environment, folder, folder)


def test_rules_are_read_in_their_order_with_all_keys(tmp_path: Path) -> None:
    text = """
    [approvals.small]
    tools = ["bank.pay"]
    arguments = { amount = { below = 1.10 }, "/to.bank/0" = { one_of = ["a", 1] } }
    approve = false

    [approvals.dear]
    tools = ["*"]
    spent = { budget = "agents", above = 2.5 }

    [budgets.agents]
    cost = 10

    [approvals.rest]
    destructive = true
    callers = ["agent"]
    by = "caller"
    expires = 60
    webhook = "https://hooks.example/${TOKEN}"
    webhook_arguments = true
    """
    amount = ArgumentTest(("amount",), "below", 1.1)
    to = ArgumentTest(("to.bank", "0"), "one_of", ["a", 1])
    assert read(tmp_path, text, TOKEN="t").approvals == (
        ApprovalRule("small", ("bank.pay",), arguments=(amount, to), approve=False),
        ApprovalRule("dear", ("*",), spent=SpentTest("agents", 2.5)),
        ApprovalRule(
            "rest",
            destructive=True,
            callers=("agent",),
            by="caller",
            expires=60.0,
            webhook="https://hooks.example/t",
            webhook_arguments=True,
        ),
    )


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("", 'approvals.a needs tools or destructive = true; for all tools write tools = ["*"]'),
        ("tools = 'x'", "approvals.a.tools must be a list of texts, not 'x'"),
        ('tools = ["a*"]', "approvals.a.tools.0 must be *, server.*, server.tool"),
        ("destructive = false", "approvals.a.destructive must be true or absent, not false"),
        (
            'tools = ["*"]\nspent = { budget = "none", above = 1 }',
            "approvals.a.spent.budget must be the name of a table of [budgets], not 'none'",
        ),
        ('tools = ["*"]\ntool = 1', "approvals.a must have only tools, destructive"),
        ('tools = ["*"]\nspent = { budget = "day" }', "approvals.a.spent.above must be given, not left out"),
        ('tools = ["*"]\nexpires = 0', "approvals.a.expires must be 1 to 604800 seconds, not 0"),
        ('tools = ["*"]\nwebhook = "ftp://x"', "approvals.a.webhook must be an http or https address"),
        ('tools = ["*"]\nwebhook = "https://x/${GONE}"', "approvals.a.webhook must have only variables that are set"),
        (
            'tools = ["*"]\napprove = false\nby = "caller"',
            "approvals.a.approve must be true where by or webhook is set",
        ),
        ('tools = ["*"]\narguments = { a = 1 }', "approvals.a.arguments.a must be a table"),
        ('tools = ["*"]\narguments = { a = {} }', "approvals.a.arguments.a must have one test of equals"),
        ('tools = ["*"]\narguments = { a = { over = 1 } }', "approvals.a.arguments.a must have only equals"),
        ('tools = ["*"]\narguments = { a = { above = "x" } }', "approvals.a.arguments.a.above must be a number"),
        (
            'tools = ["*"]\narguments = { a = { one_of = 1 } }',
            "approvals.a.arguments.a.one_of must be a list of values",
        ),
        (
            'tools = ["*"]\narguments = { a = { matches = "(" } }',
            "approvals.a.arguments.a.matches must be a regular expr",
        ),
        ('tools = ["*"]\narguments = { "a..b" = { above = 1 } }', 'approvals.a.arguments."a..b" must be a path'),
    ],
)
def test_a_broken_rule_refuses_the_file_with_a_fix(tmp_path: Path, rule: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f"[approvals.a]\n{rule}\n")
    (finding,) = refused.value.findings
    assert finding.problem.startswith(f"isthmus.toml: {expected}"), finding.problem
    assert finding.fix
    assert finding.code.number == "ISC-431"
    assert ("did you mean tools?" in finding.fix) is ("tool = 1" in rule)


def test_a_mistyped_table_is_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean approvals"):
        read(tmp_path, '[approval.a]\ntools = ["*"]\n')


def test_a_pattern_of_an_unknown_server_is_reported(tmp_path: Path) -> None:
    text = '[servers.files]\ncommand = "x"\n[approvals.a]\ntools = ["flies.delete"]\n'
    received = [str(each) for each in read(tmp_path, text).warnings]
    assert any("did you mean files.delete?" in each for each in received), received


@pytest.mark.parametrize(
    ("first", "second", "is_idle"),
    [
        ('tools = ["*"]', 'tools = ["a.b"]', True),
        ('tools = ["a.b", "c"]', 'tools = ["c"]', True),
        ('tools = ["a.b"]', 'tools = ["a.*"]', False),
        ('tools = ["*"]\narguments = { n = { above = 1 } }', 'tools = ["a.b"]', False),
        ("destructive = true", 'tools = ["*"]', False),
        ("destructive = true", 'tools = ["a"]\ndestructive = true', True),
        ('tools = ["*"]\ncallers = ["x"]', 'tools = ["*"]', False),
        ('tools = ["*"]\ncallers = ["x"]', 'tools = ["*"]\ncallers = ["x"]', True),
    ],
)
def test_a_rule_that_no_call_reaches_is_reported(tmp_path: Path, first: str, second: str, *, is_idle: bool) -> None:
    warnings = read(tmp_path, f"[approvals.a]\n{first}\n[approvals.b]\n{second}\n").warnings
    assert ("ISC-432" in [each.code.number for each in warnings]) is is_idle


@pytest.mark.parametrize(
    ("rule", "received"),
    [
        (
            'callers = ["agnt"]',
            "approvals.a.callers.0 must name one of the callers in this file, not 'agnt' (did you mean agent?)",
        ),
        (
            'spent = { budget = "day", above = 10 }',
            "approvals.a.spent.above must be below 10, the cost of the budget day, which refuses calls beyond it,"
            " not 10 (write a number below 10)",
        ),
        ('callers = ["agent", "of-a-token"]\nspent = { budget = "day", above = 9.5 }', None),
        ('spent = { budget = "calls", above = 9 }', None),
    ],
)
def test_a_rule_that_can_hold_no_call_is_reported(tmp_path: Path, rule: str, received: str | None) -> None:
    text = f"""
    [callers.agent]
    key = "0123456789abcdef"
    allow = ["*"]
    [budgets]
    day = {{ cost = 10 }}
    calls = {{ calls = 1 }}
    [approvals.a]
    tools = ["*"]
    {rule}
    """
    found = [str(each) for each in read(tmp_path, text).warnings if each.code.number == "ISC-432"]
    assert found == ([] if received is None else [f"isthmus.toml: {received}"])


def test_another_order_of_the_rules_is_a_change(tmp_path: Path) -> None:
    rules = ['[approvals.a]\ntools = ["x.a"]\n', '[approvals.b]\ntools = ["x.b"]\n']
    before, after = read(tmp_path, "".join(rules)), read(tmp_path, "".join(reversed(rules)))
    assert compare(before, after).settings == ("approvals",)


def test_every_key_is_read(tmp_path: Path) -> None:
    text = """
    [budgets.all]
    calls = 100
    result_bytes = 1_000_000
    cost = 50.5
    costs = { "bank.pay" = 5, "*" = 0.25 }
    period = "month"
    per = "tenant"
    callers = ["agent"]
    tenants = ["default"]
    sets = ["office"]
    tools = ["bank.*"]
    """
    (budget,) = read(tmp_path, text).budgets
    costs = (("bank.pay", 5), ("*", 0.25))
    lists = {"callers": ("agent",), "tenants": ("default",), "sets": ("office",), "tools": ("bank.*",)}
    assert budget == Budget("all", 100, 1_000_000, 50.5, "month", "tenant", **lists, costs=costs)
    assert set(BUDGET_KEYS) == {each for each in Budget.__dataclass_fields__ if each != "name"}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("", "budgets.a needs calls, result_bytes or cost"),
        ("calls = -1", "budgets.a.calls must be 0 to"),
        ("calls = 1.5", "budgets.a.calls must be a whole number, not 1.5"),
        ("cost = inf", "budgets.a.cost must be 0 to"),
        ("calls = 1\ncosts = {'*' = 1}", "budgets.a.costs must come with cost"),
        ("cost = 1\ncosts = {'a*' = 1}", "budgets.a.costs must be by pattern: must be *, server.*, server.tool"),
        ("cost = 1\ncosts = {'*' = -1}", "budgets.a.costs.* must be 0 or more"),
        ("cost = 1\ncosts = {'*' = 'x'}", "must be a number, not 'x'"),
        ("calls = 1\nperiod = 'week'", "budgets.a.period must be one of hour, day, month, not 'week'"),
        ("calls = 1\nper = 'key'", "budgets.a.per must be one of caller, tenant, set, tool, hub, not 'key'"),
        ("calls = 1\ntools = ['a*']", "budgets.a.tools.0 must be *, server.*, server.tool"),
        ("calls = 1\ncallers = []", "budgets.a.callers must be a list of names, or absent for all, not empty"),
        ("call = 1", "budgets.a must have only calls, result_bytes"),
        ("call = 1", "not 'call' (did you mean calls?)"),
        ("calls = 'many'", "budgets.a.calls must be a whole number, not 'many'"),
    ],
)
def test_a_mistake_refuses_the_file(tmp_path: Path, entry: str, expected: str) -> None:
    with pytest.raises(ConfigError, match="budgets") as refused:
        read(tmp_path, f"[budgets.a]\n{entry}")
    assert expected in str(refused.value)


def test_a_mistyped_table_refuses_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="budgets"):
        read(tmp_path, "[budget.a]\ncalls = 1")


def test_names_that_look_mistyped_are_reported(tmp_path: Path) -> None:
    text = """
    [callers.agent]
    key = "0123456789abcdef"
    allow = ["*"]
    [servers.bank]
    command = "bank"
    [budgets.a]
    calls = 1
    callers = ["agnet", "issuer/someone"]
    tools = ["bnak.pay"]
    """
    found = [each for each in read(tmp_path, text).warnings if each.path.startswith("budgets")]
    assert [(each.path, each.fix) for each in found] == [
        ("budgets.a.tools.0", "did you mean bank.pay?"),
        ("budgets.a.callers.0", "did you mean agent?"),
    ]


def test_a_change_names_the_budget(tmp_path: Path) -> None:
    before = read(tmp_path, "[budgets.a]\ncalls = 1\n[budgets.b]\ncalls = 1")
    after = read(tmp_path, "[budgets.a]\ncalls = 1\n[budgets.b]\ncalls = 2")
    assert "budgets.b" in compare(before, after).settings
    assert "budgets.a" not in compare(before, after).settings


FILE = Path("/etc/hub/isthmus.toml")
VARIABLES = Variables({"REPO": "acme/x"}, FILE.parent, Path("/home/me"))


def read_sets_of(sets: object, **tables: Any) -> tuple[dict[str, SetSettings], list[Finding]]:
    return read_sets(ParsedFile(FILE, {"sets": sets, **tables}, OWN), VARIABLES, {"github", "builtin"})


def loaded(folder: Path, text: str) -> Configuration:
    file = folder / "isthmus.toml"
    file.write_text(text)
    return load(file, {"REPO": "acme/x"}, folder, folder)


def test_a_set_has_patterns_and_changes() -> None:
    change = {"name": "new", "description": "Make one.", "fixed": {"repo": "${REPO}", "n": 1}, "hide": ["verbose"]}
    sets, findings = read_sets_of(
        {
            "dev": {
                "tools": ["github.*", "tag:docs"],
                "exclude": ["github.delete"],
                "prompts": ["github.*"],
                "resources": ["github.repo://x"],
                "description": "For programmers.",
                "description_max": 200,
                "tool": {"github.create_issue": change},
                "prompt": {"github.review": {"title": "Review", "fixed": {"repo": "${REPO}"}}},
                "resource": {"github.repo://x": {"name": "The repository"}},
            }
        }
    )
    assert findings == []
    made = SetChange("new", None, "Make one.", {"repo": "acme/x", "n": 1}, ("verbose",))
    assert sets == {
        "dev": SetSettings(
            ("github.*", "tag:docs"),
            ("github.*",),
            ("github.repo://x",),
            ("github.delete",),
            "For programmers.",
            200,
            {"github.create_issue": made},
            {"github.review": SetChange(title="Review", fixed={"repo": "acme/x"})},
            {"github.repo://x": SetChange("The repository")},
        )
    }


def test_every_key_of_a_set_is_documented_and_a_field() -> None:
    assert set(SET_KEYS) == {each.name for each in fields(SetSettings) if each.init}
    assert list(SET_CHANGE_KEYS) == [each.name for each in fields(SetChange)]


@pytest.mark.parametrize(
    ("entry", "problem", "fix"),
    [
        ({"tool": {"github": {}}}, "must be server.tool in quotation marks", 'write [sets.NAME.tool."server.tool"]'),
        ({"tools": ["git*"]}, "sets.dev.tools.0 must be *, server.*", 'write a pattern such as "server.*"'),
        (
            {"tools": "github.*"},
            "sets.dev.tools must be a list of texts, not 'github.*'",
            'write a list, such as ["server.*"]',
        ),
        ({"toolss": []}, "sets.dev must have only tools, prompts", "did you mean tools? Until it is fixed, callers"),
        (
            {"description_max": 5},
            "sets.dev.description_max must be 20 or more, not 5",
            "until it is fixed, callers",
        ),
        (
            {"tool": {"github.x": {"name": "a b"}}},
            'sets.dev.tool."github.x".name must be 1 to 128',
            "until it is fixed, callers",
        ),
        (
            {"tool": {"github.x": {"fixed": []}}},
            'sets.dev.tool."github.x".fixed must be a table',
            "until it is fixed, callers",
        ),
        (
            {"tool": {"github.x": {"fixed": {"a": 1}, "hide": ["a"]}}},
            "must not name an argument that is in fixed",
            "remove the argument from hide",
        ),
        (
            {"tool": {"github.x": {"fixed": {"a": "${NO}"}}}},
            "must have only variables that are set, not ${NO}",
            "set the variable where the hub starts",
        ),
        (
            {"tool": {"github.x": {"fix": {}}}},
            "must have only name, title, description, fixed, hide",
            "did you mean fixed?",
        ),
        ({"prompt": {"github": {}}}, "must be server.prompt in quotation", 'write [sets.NAME.prompt."server.prompt"]'),
        ({"resource": {"x": {}}}, "must be server.resource in quotation", 'write [sets.NAME.resource."server.URI"]'),
        (
            {"prompt": {"github.x": {"name": "a b"}}},
            'sets.dev.prompt."github.x".name must be 1 to 128',
            "until it is fixed, callers",
        ),
        (
            {"prompt": {"github.x": {"fixed": {"n": 7}}}},
            'sets.dev.prompt."github.x".fixed.n must be a text in quotation marks',
            "arguments of prompts are texts",
        ),
        (
            {"resource": {"github.a:b": {"fixed": {"a": "b"}}}},
            "sets.dev.resource.\"github.a:b\" must have only name, title, description, not 'fixed'",
            "correct the spelling of the key, or remove it",
        ),
        ([], "must be a table", "until it is fixed, callers"),
    ],
)
def test_a_set_with_a_mistake_is_left_out_with_a_fix(entry: object, problem: str, fix: str) -> None:
    sets, findings = read_sets_of({"dev": entry, "good": {"tools": ["*"]}})
    assert list(sets) == ["good"]
    (finding,) = findings
    assert problem in str(finding)
    assert finding.code is BAD_SET
    assert finding.fix.startswith(fix)
    assert finding.fix.endswith(" callers that are bound to it see nothing")


@pytest.mark.parametrize("name", ["github", "builtin", "a.b", "a b", ""])
def test_a_set_has_a_name_of_its_own_that_fits_into_a_path(name: str) -> None:
    sets, findings = read_sets_of({name: {"tools": ["*"]}})
    assert sets == {}
    assert [finding.code for finding in findings] == [BAD_SET]


def test_names_that_collide_and_entries_without_effect_are_reported() -> None:
    changes = {"github.a": {"name": "x"}, "github.b": {"name": "x"}, "files.c": {"name": "y"}}
    picked = {"tools": ["github.*"], "prompts": ["github.*"], "resources": ["github.*"]}
    changed = {"tool": changes, "prompt": changes, "resource": changes}
    _, findings = read_sets_of({"dev": {**picked, **changed}, "empty": {}})
    assert [(each.code, each.path) for each in findings] == [
        (IDLE_SET_ENTRY, 'sets.dev.tool."files.c"'),
        (IDLE_SET_ENTRY, 'sets.dev.prompt."files.c"'),
        (IDLE_SET_ENTRY, 'sets.dev.resource."files.c"'),
        (SET_NAMES_COLLIDE, "sets.dev"),
        (SET_NAMES_COLLIDE, "sets.dev"),
        (IDLE_SET_ENTRY, "sets.empty"),
    ]
    assert "is not among the prompts of the set" in str(findings[1])
    assert "gives the name x to github.a, github.b" in str(findings[3])


def test_a_change_of_all_tools_of_a_server_is_reported() -> None:
    _, (finding,) = read_sets_of({"dev": {"tools": ["github.*"], "tool": {"github.*": {"hide": ["verbose"]}}}})
    assert (finding.code, finding.path) == (IDLE_SET_ENTRY, 'sets.dev.tool."github.*"')
    assert "names no single tool (write a table for each tool)" in str(finding)


def test_a_mistyped_key_of_a_tool_is_one_finding_and_its_set_exists_for_callers() -> None:
    bot = {"key": "0123456789abcdef", "allow": ["*"], "set": "dev"}
    mistyped = {"tools": ["github.*"], "tool": {"github.x": {"hidden": ["a"]}}}
    _, (finding,) = read_sets_of({"dev": mistyped}, callers={"bot": bot})
    assert str(finding) == (
        "isthmus.toml: sets.dev.tool.\"github.x\" must have only name, title, description, fixed, hide, not 'hidden'"
        " (did you mean hide? Until it is fixed, callers that are bound to it see nothing)"
    )


def test_a_binding_to_a_set_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    configuration = loaded(
        tmp_path,
        """
        [sets.writing]
        tools = ["githup.*"]
        [servers.github]
        command = "true"
        [callers.ann]
        key = "0123456789abcdef"
        allow = ["*"]
        set = "writting"
        """,
    )
    found = {finding.code: finding for finding in configuration.warnings}
    assert "did you mean writing?" in str(found[UNKNOWN_SET])
    assert "did you mean github.*?" in str(found[UNKNOWN_SERVER])
    ((_, caller),) = configuration.callers
    assert caller.grants.set == "writting"


@pytest.mark.parametrize("given", ['""', "7", '["dev"]', "true"])
def test_a_caller_with_a_malformed_binding_is_left_out(tmp_path: Path, given: str) -> None:
    text = f"""
        [callers.ann]
        key = "0123456789abcdef"
        allow = ["*"]
        set = {given}
        [callers.bob]
        key = "fedcba9876543210"
        allow = ["*"]
        """
    assert [caller.name for _, caller in loaded(tmp_path, text).callers] == ["bob"]


def test_a_caller_of_a_set_names_no_targets(tmp_path: Path) -> None:
    text = """
        [callers.ann]
        key = "0123456789abcdef"
        set = "dev"
        targets = true
        [callers.bob]
        key = "fedcba9876543210"
        allow = ["*"]
        """
    configuration = loaded(tmp_path, text)
    assert [caller.name for _, caller in configuration.callers] == ["bob"]
    assert any("targets must be false for a caller of a set" in str(each) for each in configuration.warnings)


def test_an_issuer_binds_its_callers(tmp_path: Path) -> None:
    text = """
        [issuers.corp]
        issuer = "https://id.example"
        audience = "hub"
        allow = ["*"]
        set = "dev"
        [sets.dev]
        tools = ["*"]
        """
    (issuer,) = loaded(tmp_path, text).issuers
    assert issuer.grants.set == "dev"


def test_a_changed_set_is_a_difference(tmp_path: Path) -> None:
    before = loaded(tmp_path, '[sets.dev]\ntools = ["a.*"]\n[sets.ops]\ntools = ["*"]')
    after = loaded(tmp_path, '[sets.dev]\ntools = ["b.*"]\n[sets.ops]\ntools = ["*"]\n[sets.new]\ntools = ["*"]')
    assert compare(before, after).settings == ("sets.dev", "sets.new")


SERVER = '[servers.sensor-1]\ncommand = "x"\n'


def loaded_fleets(folder: Path, text: str) -> Configuration:
    file = folder / "isthmus.toml"
    file.write_text(SERVER + text)
    return load(file, {}, folder, folder)


def test_every_key_of_a_fleet_is_documented_and_a_field() -> None:
    assert set(FLEET_KEYS) == {each.name for each in fields(FleetSettings) if each.init}


def test_a_fleet_has_patterns_and_bounds(tmp_path: Path) -> None:
    text = """
[fleets.one]
members = "sensor-*"

[fleets.two]
members = ["dialin:plant_*", "agent:x"]
hide_members = false
deadline = 2.5
at_once = 4
result_bytes = 8192
read_only = ["read"]

[callers.bot]
key = "0123456789abcdef"
allow = ["one.*"]
"""
    configuration = loaded_fleets(tmp_path, text)
    assert configuration.warnings == ()
    assert configuration.fleets == {
        "one": FleetSettings(("sensor-*",)),
        "two": FleetSettings(
            ("dialin:plant_*", "agent:x"),
            hide_members=False,
            deadline=2.5,
            at_once=4,
            result_bytes=8192,
            read_only=("read",),
        ),
    }


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("[fleets.a]", "members must have a pattern"),
        ('[fleets.a]\nmembers = "x.y"', "a member must be server-*"),
        ("[fleets.a]\nmembers = 7", "members must be a list of texts"),
        ('[fleets.a]\nmembers = "x"\nhide = true', "must have only"),
        ('[fleets.a]\nmembers = "x"\ndedline = 1', "must have only"),
        ('[fleets.a]\nmembers = "x"\ndeadline = 0', "deadline must be"),
        ('[fleets.a]\nmembers = "x"\nat_once = 1000', "at_once must be 1 to 256"),
        ('[fleets.a]\nmembers = "x"\nresult_bytes = 1', "result_bytes must be"),
        ('[fleets.sensor-1]\nmembers = "x"', "must have another name than a server"),
        ('[fleets.builtin]\nmembers = "x"', "must have another name than a server"),
        ('[fleets."a.b"]\nmembers = "x"', "must have a name like that of a server"),
    ],
)
def test_a_fleet_with_a_mistake_is_left_out(tmp_path: Path, entry: str, problem: str) -> None:
    configuration = loaded_fleets(tmp_path, entry + '\n[fleets.good]\nmembers = "x"')
    assert list(configuration.fleets) == ["good"]
    (finding,) = configuration.warnings
    assert (finding.code, problem in finding.problem) == (BAD_FLEET, True), finding.problem
    assert ("did you mean deadline? Until it is fixed, the fleet" in finding.fix) is ("dedline" in entry)


def test_a_set_cannot_have_the_name_of_a_fleet(tmp_path: Path) -> None:
    (finding,) = loaded_fleets(tmp_path, '[fleets.a]\nmembers = "x"\n[sets.a]\ntools = ["*"]').warnings
    assert finding.code is BAD_SET


def test_a_changed_fleet_is_a_change_of_settings(tmp_path: Path) -> None:
    texts: list[Any] = ['[fleets.a]\nmembers = "x"', '[fleets.a]\nmembers = "y"']
    before, after = (loaded_fleets(tmp_path, text) for text in texts)
    assert compare(before, after).settings == ("fleets.a",)
