"""Budgets are read with all keys, and a file with a broken one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.app.config_diff import compare
from isthmus.config.budgets import BUDGET_KEYS
from isthmus.config.findings import ConfigError
from isthmus.config.load import load
from isthmus.config.settings import Configuration
from isthmus.core.access.budget_rules import Budget


def read(folder: Path, text: str) -> Configuration:
    file = folder / "isthmus.toml"
    file.write_text(text)
    return load(file, {}, folder, folder)


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
    ("entry", "told"),
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
def test_a_mistake_refuses_the_file(tmp_path: Path, entry: str, told: str) -> None:
    with pytest.raises(ConfigError, match="budgets") as refused:
        read(tmp_path, f"[budgets.a]\n{entry}")
    assert told in str(refused.value)


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
