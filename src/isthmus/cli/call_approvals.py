"""`isthmus approvals`: lists calls that wait for a person, shows one, and allows or denies it.

It asks a running hub. Callers wrote the names and arguments that are shown, so all of it is escaped for the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import click
import msgspec

from isthmus.cli.exits import Exit
from isthmus.cli.find_hub import source_of
from isthmus.cli.options import CommandGroup, with_json, with_source
from isthmus.cli.output import caller_text, counted, harmless, print_error, print_json, print_output, print_table
from isthmus.cli.relay import hub_of
from isthmus.cli.rest_client import HubClient
from isthmus.cli.run_command import quiet_logs, run_command

NOTHING = "No calls wait for approval."
BRIEF_LENGTH = 60


class ApprovalRow(msgspec.Struct, rename="camel"):
    """An approval, as the hub describes it."""

    id: str
    state: str
    tool: str
    arguments: msgspec.Raw
    added: list[str]
    digest: str
    caller: str
    tenant: str
    set: str | None
    rule: str
    requested: float
    expires: float
    decided_by: str | None = None
    reason: str | None = None
    scope: str | None = None
    script: str | None = None
    script_lines: list[int] = []
    why: str | None = None


@click.group(cls=CommandGroup)
def approvals() -> None:
    """Decide about calls that wait for a person: see [approvals] in the configuration."""


@approvals.command("list", short_help="List the calls that wait.")
@click.option("--all", "has_all", is_flag=True, help="List decisions that are still valid, too.")
@with_source
@with_json
def approvals_list(hub: str | None, config: Path | None, *, has_all: bool, is_json: bool) -> int:
    """List the calls that wait, the oldest first. Without an operator's key only your own are listed."""
    quiet_logs()

    async def run() -> Exit:
        found: list[msgspec.Raw] = []
        cursor: str | None = ""
        async with aclosing(HubClient(hub_of(source_of(hub, config)), is_needed=True)) as client:
            while cursor is not None:
                page = msgspec.json.decode(
                    await client.approvals("" if has_all else "pending", cursor), type=dict[str, msgspec.Raw]
                )
                found += msgspec.json.decode(page["approvals"], type=list[msgspec.Raw])
                cursor = msgspec.json.decode(page["next"], type=str | None)
        if is_json:
            print_json(msgspec.json.encode({"approvals": found}))
        elif not found:
            print_error(NOTHING)
        else:
            _print_list([msgspec.json.decode(each, type=ApprovalRow) for each in found], has_all=has_all)
        return Exit.SUCCESS

    return run_command(run())


@approvals.command("show", short_help="Show one call with its whole arguments.")
@click.argument("id")
@with_source
@with_json
def approvals_show(id: str, hub: str | None, config: Path | None, *, is_json: bool) -> int:
    """Show the call with this ID: its tool, its caller and its whole arguments."""
    quiet_logs()

    async def run() -> Exit:
        async with aclosing(HubClient(hub_of(source_of(hub, config)), is_needed=True)) as client:
            document = await client.approval(id)
        if is_json:
            print_json(document)
        else:
            _print_one(msgspec.json.decode(document, type=ApprovalRow))
        return Exit.SUCCESS

    return run_command(run())


@approvals.command("allow", short_help="Allow a call, once or for an hour.")
@click.argument("id")
@click.option("--hour", "is_hour", is_flag=True, help="Allow the same tool with the same arguments for an hour.")
@click.option("--override", "overrides", is_flag=True, help="Allow it although it was denied.")
@with_source
@with_json
def approvals_allow(
    id: str, hub: str | None, config: Path | None, *, is_hour: bool, overrides: bool, is_json: bool
) -> int:
    """Allow the call with this ID: this caller, this tool and these arguments, once."""
    body = {"for": "hour" if is_hour else "once", **({"override": True} if overrides else {})}
    return _decide(id, "allow", body, hub, config, is_json=is_json)


@approvals.command("deny", short_help="Deny a call.")
@click.argument("id")
@click.option("--reason", default="", metavar="TEXT", help="Why you deny it. The caller receives this text.")
@with_source
@with_json
def approvals_deny(id: str, reason: str, hub: str | None, config: Path | None, *, is_json: bool) -> int:
    """Deny the call with this ID, and tell its caller why. What you allowed can be denied until it is used."""
    return _decide(id, "deny", {"reason": reason}, hub, config, is_json=is_json)


def _decide(
    id: str, what: str, body: Mapping[str, object], hub: str | None, config: Path | None, *, is_json: bool
) -> int:
    quiet_logs()

    async def run() -> Exit:
        async with aclosing(HubClient(hub_of(source_of(hub, config)), is_needed=True)) as client:
            document = await client.decide(id, what, msgspec.json.encode(body))
        if is_json:
            print_json(document)
            return Exit.SUCCESS
        shown = msgspec.json.decode(document, type=ApprovalRow)
        print_output(f"{_state(shown).capitalize()}: {harmless(shown.tool, keep='')} for {_caller(shown)}")
        return Exit.SUCCESS

    return run_command(run())


def _print_list(found: list[ApprovalRow], *, has_all: bool) -> None:
    now = time.time()
    rows = []
    for each in found:
        brief = bytes(each.arguments).decode("utf-8", "replace")
        brief = brief if len(brief) <= BRIEF_LENGTH else f"{brief[: BRIEF_LENGTH - 1]}…"
        state = (_state(each).replace(" for an hour", ", 1 h"),) if has_all else ()
        row = (each.id, *state, each.tool, _caller(each), _span(each.expires - now), brief)
        rows.append(tuple(harmless(cell, keep="") for cell in row))
    titles = ("STATE",) if has_all else ()
    styles = ("bold", *("" for _ in titles), "cyan", "", "", "")
    head = ("ID", *titles, "TOOL", "CALLER", "EXPIRES IN", "ARGUMENTS")
    print_table(head, rows, styles, is_wrapped=True, is_last_below=True)
    print_error(f"{counted(len(found), 'call')}. isthmus approvals show ID prints the whole arguments.")


def _print_one(shown: ApprovalRow) -> None:
    facts = {
        "tool": shown.tool,
        "caller": _caller(shown),
        "set": shown.set,
        "script": shown.script and ", ".join([shown.script, *(f"line {line}" for line in shown.script_lines)]),
        "rule": shown.rule,
        "why": shown.why,
        "state": _state(shown) if shown.decided_by is None else f"{_state(shown)} by {shown.decided_by}",
        "reason": shown.reason,
        "expires in": _span(shown.expires - time.time()),
        "digest": shown.digest,
        "added by the hub": ", ".join(shown.added) or None,
    }
    lines = [f"{name}: {harmless(text, keep='')}" for name, text in facts.items() if text]
    text = msgspec.json.format(shown.arguments, indent=2).decode("utf-8", "replace")
    # Line by line, as `isthmus approve` does: nothing in a text may look like the end of the arguments.
    lines += ["arguments:", *(f"  {harmless(line, keep='')}" for line in text.split("\n"))]
    print_output("\n".join(lines))
    if shown.state == "pending":
        print_error(f"isthmus approvals allow {shown.id} allows this call once; deny refuses it.")


def _state(shown: ApprovalRow) -> str:
    scope = {"hour": " for an hour", "once": " once"}.get(shown.scope or "", "")
    return f"{shown.state}{scope}"


def _caller(shown: ApprovalRow) -> str:
    return harmless(caller_text(shown.caller, shown.tenant), keep="")


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"
