"""`isthmus budgets`: prints how much of each budget is used, by whom, and when it is renewed. It asks a running hub."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from isthmus.cli.exits import Exit
from isthmus.cli.hub import source_of
from isthmus.cli.options import with_json, with_source
from isthmus.cli.output import harmless, print_error, print_json, print_table
from isthmus.cli.relay import hub_of
from isthmus.cli.rest_client import HubClient
from isthmus.cli.running import quiet_logs, run_command

NOTHING = "No budget is about you. [budgets] in the configuration sets them."


class _Budget(msgspec.Struct, rename="camel"):
    name: str
    per: str
    period: str
    calls: int | None = None
    result_bytes: int | None = None
    cost: float | None = None
    refused: int | None = None


class _Counter(msgspec.Struct, rename="camel"):
    budget: str
    subject: dict[str, str]
    renewed: float
    calls: int
    result_bytes: int
    cost: float


class _Page(msgspec.Struct):
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
        page = _Page([], [])
        async with aclosing(HubClient(hub_of(source_of(hub, config)), is_needed=True)) as client:
            while cursor is not None:
                document = await client.budgets(cursor)
                page = msgspec.json.decode(document, type=_Page)
                counters += page.counters
                cursor = page.next
        if is_json:
            whole = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
            print_json(msgspec.json.encode({"budgets": whole["budgets"], "counters": counters}))
        elif not page.budgets:
            print_error(NOTHING)
        else:
            _print(page.budgets, [msgspec.json.decode(each, type=_Counter) for each in counters])
        return Exit.SUCCESS

    return run_command(run())


def _print(found: list[_Budget], counters: list[_Counter]) -> None:
    rows = []
    for budget in found:
        # A budget that nobody has used has a row, too.
        own: list[_Counter | None] = [each for each in counters if each.budget == budget.name]
        for each in own or [None]:
            used = []
            if budget.calls is not None:
                used.append(f"{0 if each is None else each.calls} of {budget.calls} calls")
            if budget.result_bytes is not None:
                used.append(f"{0 if each is None else each.result_bytes} of {budget.result_bytes} bytes")
            if budget.cost is not None:
                used.append(f"{0 if each is None else each.cost:.12g} of {budget.cost:.12g} units")
            renewed = "" if each is None else datetime.fromtimestamp(each.renewed, UTC).strftime("%Y-%m-%d %H:%M UTC")
            of = f"each {budget.per}" if each is None else _whose(each.subject)
            row = (budget.name, of, ", ".join(used), f"this {budget.period}", renewed)
            rows.append(tuple(harmless(cell, keep="") for cell in row))
    titles = ("BUDGET", "OF", "USED", "IN", "RENEWED")
    print_table(titles, rows, ("bold", "", "cyan", "", ""), is_wrapped=True)
    refused = [f"{harmless(each.name, keep='')} {each.refused}" for each in found if each.refused]
    if refused:
        print_error(f"Refused calls since the hub started: {', '.join(refused)}.")


def _whose(subject: dict[str, str]) -> str:
    if "caller" in subject:
        tenant = subject.get("tenant", "default")
        return subject["caller"] if tenant == "default" else f"{subject['caller']} ({tenant})"
    return next((f"{kind} {name or 'none'}" for kind, name in subject.items()), "hub")
