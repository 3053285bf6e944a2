"""Rules for approvals are read in order, and a file with a broken one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.app.config_diff import compare
from isthmus.config.findings import ConfigError
from isthmus.config.load import load
from isthmus.config.settings import Configuration
from isthmus.core.access.approval_rules import ApprovalRule, ArgumentTest, SpentTest


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
    ("rule", "told"),
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
def test_a_broken_rule_refuses_the_file_and_says_what_to_write(tmp_path: Path, rule: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f"[approvals.a]\n{rule}\n")
    (finding,) = refused.value.findings
    assert finding.problem.startswith(f"isthmus.toml: {told}"), finding.problem
    assert finding.fix
    assert finding.code.number == "ISC-431"
    assert ("did you mean tools?" in finding.fix) is ("tool = 1" in rule)


def test_a_mistyped_table_is_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean approvals"):
        read(tmp_path, '[approval.a]\ntools = ["*"]\n')


def test_a_pattern_of_an_unknown_server_is_reported(tmp_path: Path) -> None:
    text = '[servers.files]\ncommand = "x"\n[approvals.a]\ntools = ["flies.delete"]\n'
    told = [str(each) for each in read(tmp_path, text).warnings]
    assert any("did you mean files.delete?" in each for each in told), told


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
    ("rule", "told"),
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
def test_a_rule_that_can_hold_no_call_is_reported(tmp_path: Path, rule: str, told: str | None) -> None:
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
    assert found == ([] if told is None else [f"isthmus.toml: {told}"])


def test_another_order_of_the_rules_is_a_change(tmp_path: Path) -> None:
    rules = ['[approvals.a]\ntools = ["x.a"]\n', '[approvals.b]\ntools = ["x.b"]\n']
    before, after = read(tmp_path, "".join(rules)), read(tmp_path, "".join(reversed(rules)))
    assert compare(before, after).settings == ("approvals",)
