"""`isthmus budgets`: prints how much of each budget is used, by whom, and when it is renewed. It asks a running hub."""

from __future__ import annotations

import time
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from isthmus.cli.exits import Exit
from isthmus.cli.find_hub import source_of
from isthmus.cli.options import with_json, with_source
from isthmus.cli.output import caller_text, harmless, print_error, print_json, print_table, size_text
from isthmus.cli.relay import hub_of
from isthmus.cli.rest_client import HubClient
from isthmus.cli.run_command import quiet_logs, run_command
from isthmus.core.access.budget_rules import Period, period_at

NOTHING = "No budget applies to you. [budgets] in the configuration sets them."


class _Budget(msgspec.Struct, rename="camel"):
    name: str
    per: str
    period: Period
    calls: int | None = None
    result_bytes: int | None = None
    cost: float | None = None
    refused: int | None = None


class _CounterRow(msgspec.Struct, rename="camel"):
    budget: str
    subject: dict[str, str]
    renewed: float
    calls: int
    result_bytes: int
    cost: float


class _BudgetPage(msgspec.Struct):
    budgets: list[_Budget]
    counters: list[msgspec.Raw]
    next: str | None = None


@click.command(short_help="Print how much of each budget is used.")
@with_source
@with_json
def budgets(hub: str | None, config: Path | None, *, is_json: bool) -> int:
    """Print how much of each budget is used in the present period, and when it is renewed.

    An operator's key shows the counters of all callers. Other callers see their own, and those of their tenant.
    """
    quiet_logs()

    async def run() -> Exit:
        counters: list[msgspec.Raw] = []
        cursor: str | None = ""
        document = b""
        page = _BudgetPage([], [])
        async with aclosing(HubClient(hub_of(source_of(hub, config)), is_needed=True)) as client:
            while cursor is not None:
                document = await client.budgets(cursor)
                page = msgspec.json.decode(document, type=_BudgetPage)
                counters += page.counters
                cursor = page.next
        if is_json:
            whole = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
            print_json(msgspec.json.encode({"budgets": whole["budgets"], "counters": counters}))
        elif not page.budgets:
            print_error(NOTHING)
        else:
            _print(page.budgets, [msgspec.json.decode(counter, type=_CounterRow) for counter in counters])
        return Exit.SUCCESS

    return run_command(run())


def _print(found: list[_Budget], counters: list[_CounterRow]) -> None:
    rows = []
    is_hidden = False
    for budget in found:
        own = [counter for counter in counters if counter.budget == budget.name]
        for each in own:
            row = (
                budget.name,
                _subject_text(each.subject),
                _used(budget, each),
                _period_text(budget),
                _moment(each.renewed),
            )
            rows.append(row)
        if not own:
            # A budget that nobody has used has a row, too. Only operators learn how often one refused a call.
            is_shown = budget.refused is not None
            is_hidden |= not is_shown
            used = _used(budget, _CounterRow(budget.name, {}, 0.0, 0, 0, 0.0)) if is_shown else _limits(budget)
            of = "hub" if budget.per == "hub" else f"each {budget.per}"
            rows.append(
                (budget.name, of, used, _period_text(budget), _moment(period_at(budget.period, time.time())[1]))
            )
    titles = ("BUDGET", "OF", "USED", "IN", "RENEWED")
    escaped = [tuple(harmless(cell, keep="") for cell in row) for row in rows]
    print_table(titles, escaped, ("bold", "", "cyan", "", ""), is_wrapped=True)
    if is_hidden:
        print_error("Not shown is what others use, too: only operators see that.")
    refused = [f"{harmless(each.name, keep='')} {each.refused}" for each in found if each.refused]
    if refused:
        print_error(f"Refused calls since the hub started: {', '.join(refused)}.")


def _used(budget: _Budget, counter: _CounterRow) -> str:
    used = []
    if budget.calls is not None:
        used.append(f"{counter.calls} of {budget.calls} calls")
    if budget.result_bytes is not None:
        used.append(f"{size_text(counter.result_bytes)} of {size_text(budget.result_bytes)}")
    if budget.cost is not None:
        used.append(f"{counter.cost:.12g} of {budget.cost:.12g} units")
    return ", ".join(used)


def _limits(budget: _Budget) -> str:
    limits = []
    if budget.calls is not None:
        limits.append(f"{budget.calls} calls")
    if budget.result_bytes is not None:
        limits.append(size_text(budget.result_bytes))
    if budget.cost is not None:
        limits.append(f"{budget.cost:.12g} units")
    return f"not shown, of {', '.join(limits)}"


def _period_text(budget: _Budget) -> str:
    return f"this {budget.period}"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _subject_text(subject: dict[str, str]) -> str:
    if "caller" in subject:
        return caller_text(subject["caller"], subject.get("tenant", "default"))
    return next((f"{kind} {name or 'none'}" for kind, name in subject.items()), "hub")
