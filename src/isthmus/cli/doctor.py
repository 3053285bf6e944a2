"""`isthmus doctor`: checks the configuration and each server, and says how to fix what is wrong.

`app.server_diagnosis` has the findings of one server and the numbers of all; findings of a configuration have numbers
of their own (`config.finding_codes`). The `check_*` functions decide, the rest asks and prints.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from isthmus.app.server_diagnosis import (
    CODES,
    DIALLED_FLEET,
    NAME_CUT,
    NAMES_CLASH,
    NOT_CHECKED,
    OPEN_FOLDER,
    SECRET_IN_ARGUMENTS,
    SET_ENTRY,
    SHARED_URI,
    ConfiguredServer,
    Diagnosis,
    ServerReport,
    check_server,
    entry_of,
)
from isthmus.cli.config import access_of, configuration_of, finding_as_json, servers_folder
from isthmus.cli.documents import ListedFeature, read_listing, read_servers
from isthmus.cli.exits import Exit
from isthmus.cli.find_hub import HubSource, find_hub, with_hub
from isthmus.cli.lists import protocol_name
from isthmus.cli.local_hub import start_local_hub
from isthmus.cli.options import with_json, with_wait
from isthmus.cli.output import (
    Row,
    aligned,
    counted,
    first_line,
    print_hanging,
    print_json,
    print_output,
    print_table,
)
from isthmus.cli.rest_client import HubClient, RemoteSource
from isthmus.cli.run_command import quiet_logs, run_command
from isthmus.config import finding_codes
from isthmus.config.entry_secrets import secrets_of
from isthmus.config.files import MAP_VARIABLE
from isthmus.config.finding_codes import FindingCode
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.settings import Configuration
from isthmus.core.catalog.argument_validation import UnusableSchema, compile_check
from isthmus.core.catalog.names import LLM_LENGTH_MAX, Pair, is_qualified, llm_form, split_qualified
from isthmus.core.settings import Limits
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.server_settings import (
    StdioSettings,
)
from isthmus.upstream.stdio import open_paths, program_of
from isthmus.wire.mcp.lists import RESOURCES, TOOLS

SCHEMAS_MAX = 2_000
"""At most so many schemas are checked: compiling one takes up to a millisecond."""

_FROM_LISTS = {
    each.number
    for each in (
        finding_codes.LEFT_OUT_OF_SET,
        finding_codes.IDLE_SET_ENTRY,
        finding_codes.IDLE_PATTERN,
        finding_codes.LACKING_ARGUMENT,
    )
}
"""Findings of a configuration that only a hub can have, because the lists of its servers tell."""


@click.command()
@with_hub
@with_wait
@with_json
@click.option("--codes", "lists_codes", is_flag=True, help="List every kind of finding and its fix.")
def doctor(source: HubSource, wait: float, *, is_json: bool, lists_codes: bool) -> int:
    """Check the configuration and each server, and say how to fix what is wrong.

    The running hub of the configuration tells the state of its servers. Otherwise, and with --private, each server is
    started once, and its start is timed.
    """
    if lists_codes:
        return show_codes(is_json=is_json)
    quiet_logs()
    return run_command(examine(source, wait=wait, is_json=is_json))


def show_codes(*, is_json: bool) -> Exit:
    """Print every kind of finding: the doctor's, then those of configurations."""
    known = [*CODES, *finding_codes.CODES]
    if is_json:
        listed = [{"code": code.number, "kind": code.name, "fix": code.fix} for code in known]
        print_json(msgspec.json.encode({"codes": listed}))
    else:
        print_output("\n".join(aligned([(code.number, code.name, code.fix) for code in known])))
    return Exit.SUCCESS


async def examine(source: HubSource, *, wait: float, is_json: bool) -> Exit:
    """Print the state of a hub and its servers.

    Raises:
        CommandFailed: the configuration cannot be used, or the running hub cannot be reached.
    """
    loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    configuration, settled_at, is_local = None, {}, False
    if isinstance(source, RemoteSource):
        hub = HubClient(source)
    else:
        configuration = configuration_of(source.file)
        running = None if source.is_private else find_hub(source.file)
        if running is not None:
            hub = HubClient(running)
        else:
            local, is_local = await start_local_hub(configuration, os.environ, within=wait), True
            hub, settled_at = local.client, local.settled_at
    try:
        await hub.list(TOOLS)  # gives starting servers a moment
        seconds = loop.time() - began
        reports = [
            ServerReport(
                server=server.name,
                state=server.state,
                reason=None if server.state == "disabled" else server.reason,
                era=server.era,
                tools=server.tools,
                seconds=settled_at[name] - began if (name := ServerName(server.name)) in settled_at else None,
                said=server.detail,
                notes=server.notes,
            )
            for server in read_servers(await hub.servers())
        ]
        found = await _diagnose(hub, reports, configuration)
        if is_local and configuration is not None:  # nothing can dial in here
            dialled = [name for name, fleet in configuration.fleets.items() if fleet.is_dialled]
            reports = [report for report in reports if report.server not in dialled]
            found = [each for each in found if each.server not in dialled]
            text = "its members dial in to a running hub, which this is not"
            found += [Diagnosis(DIALLED_FLEET, name, text, DIALLED_FLEET.fix) for name in dialled]
    finally:
        await hub.aclose()
    described: dict[str, object]
    problems = sum(each.code is SET_ENTRY for each in found)
    if configuration is not None:
        problems += len(configuration.warnings) + (_access(configuration)[0] == "refused")
        described = {
            "configuration": {
                "file": None if configuration.file is None else str(configuration.file),
                "findings": [finding_as_json(finding, "warning") for finding in configuration.warnings],
                "access": _access(configuration)[0],
            }
        }
    else:
        described = {"hub": {"url": hub.url, "seconds": round(seconds, 3)}}
    if is_json:
        print_json(msgspec.json.encode({**described, **_as_json(reports, found)}))
    else:
        if configuration is not None:
            _print_configuration(configuration)
        else:
            print_output(f"hub: {hub.url}, reached in {_milliseconds(seconds)}")
        _print(reports, found, problems)
    if problems:
        return Exit.CONFIGURATION
    return Exit.SUCCESS if all(report.is_well for report in reports) else Exit.CALL_FAILED


async def _diagnose(
    hub: HubClient, reports: Sequence[ServerReport], configuration: Configuration | None
) -> list[Diagnosis]:
    """Check every server, and the lists of all together. The configuration of a running hub is unknown."""
    entries: dict[str, ConfiguredServer] = {}
    if configuration is not None:
        entries = {server.name: entry_of(server, configuration) for server in configuration.servers}
    limits = Limits() if configuration is None else configuration.hub.limits
    tools = read_listing(await hub.list(TOOLS), TOOLS).features
    resources = read_listing(await hub.list(RESOURCES), RESOURCES).features
    found = [each for report in reports for each in check_server(report, entries.get(report.server))]
    for entry in entries.values():
        reach = entry.settings.reach
        if isinstance(reach, StdioSettings):
            found += [check_open_path(entry, path) for path in open_paths(reach, program_of(reach, os.environ))]
    for entry in entries.values():
        found += check_arguments(entry)
    # The other findings are those of the file, which are printed with it.
    found += [
        # The path comes first, where other findings have the name of a server.
        Diagnosis(
            SET_ENTRY, finding.path, finding.problem.partition(f"{finding.path} ")[2] or finding.problem, finding.fix
        )
        for finding in await hub.findings()
        if finding.code in _FROM_LISTS
        and (configuration is None or finding.path not in {warning.path for warning in configuration.warnings})
    ]
    return [*found, *check_names(tools), *check_uris(resources), *check_schemas(tools, limits)]


# -- one server ------------------------------------------------------------------------------------------------------


def check_open_path(entry: ConfiguredServer, path: Path) -> Diagnosis:
    """The finding for a path where any user could place code that the server runs as the hub's user."""
    text = f"every user of this machine can write to {path}, where it starts or its program is"
    return Diagnosis(OPEN_FOLDER, entry.settings.name, text, f"chmod o-w {shlex.quote(str(path))}")


def check_arguments(entry: ConfiguredServer) -> list[Diagnosis]:
    """A finding if the arguments of a process hold a secret: they are public."""
    reach = entry.settings.reach
    if not isinstance(reach, StdioSettings) or not secrets_of({"args": list(reach.args)}):
        return []
    text = "its args seem to hold a secret; every user of this machine can read them while it runs"
    return [Diagnosis(SECRET_IN_ARGUMENTS, entry.settings.name, text, f"in {entry.place}, {SECRET_IN_ARGUMENTS.fix}")]


# -- the lists of all servers ----------------------------------------------------------------------------------------


def check_names(tools: Iterable[ListedFeature]) -> list[Diagnosis]:
    """Findings for tools whose names for language models are changed."""
    shared: defaultdict[str, list[Pair]] = defaultdict(list)
    for offer in tools:
        pair = (ServerName(offer.server), FeatureName(offer.name.removeprefix(f"{offer.server}.")))
        shared[llm_form(pair)].append(pair)
    found = []
    for name, pairs in shared.items():
        if len(pairs) > 1:
            both = " and ".join(sorted(f"{server}.{tool}" for server, tool in pairs))
            text = f"{both} would both be {name} to a language model, so they get digits at the end"
            found.append(Diagnosis(NAMES_CLASH, pairs[0][0], text, NAMES_CLASH.fix))
    for name, pairs in shared.items():
        if len(name) > LLM_LENGTH_MAX:
            server, tool = pairs[0]
            text = f"{server}.{tool} has {len(name)} characters; language models see {LLM_LENGTH_MAX} of them"
            found.append(Diagnosis(NAME_CUT, server, text, NAME_CUT.fix))
    return found


def check_uris(resources: Iterable[ListedFeature]) -> list[Diagnosis]:
    """Findings for resources that several servers have under one URI."""
    shared: defaultdict[str, list[str]] = defaultdict(list)
    for offer in resources:
        if is_qualified(offer.name):
            server, own = split_qualified(offer.name)
            shared[own].append(server)
    return [
        Diagnosis(SHARED_URI, servers[0], f"{' and '.join(servers)} have the same URI: {own}", SHARED_URI.fix)
        for own, servers in shared.items()
    ]


def check_schemas(tools: Sequence[ListedFeature], limits: Limits) -> list[Diagnosis]:
    """Findings for tools whose arguments the hub cannot check."""
    found = []
    for offer in tools[:SCHEMAS_MAX]:
        try:
            compile_check(offer.definition.get("inputSchema", msgspec.Raw(b"{}")), limit_bytes=limits.schema_bytes)
        except UnusableSchema as why:
            text = f"arguments of {offer.name} are not checked: {why}"
            found.append(Diagnosis(NOT_CHECKED, offer.server, text, NOT_CHECKED.fix))
    return found


# -- printing --------------------------------------------------------------------------------------------------------


def _as_json(reports: Sequence[ServerReport], found: Sequence[Diagnosis]) -> dict[str, Any]:
    servers = [msgspec.structs.asdict(report) for report in reports]
    for server in servers:
        if server["seconds"] is not None:
            server["seconds"] = round(server["seconds"], 3)
    return {
        "servers": servers,
        "findings": [
            {
                "code": diagnosis.code.number,
                "kind": diagnosis.code.name,
                "server": diagnosis.server,
                "message": diagnosis.message,
                "fix": diagnosis.fix,
            }
            for diagnosis in found
        ],
    }


def _print_configuration(configuration: Configuration) -> None:
    if configuration.file is not None:
        print_output(f"configuration: {configuration.file}")
        if (folder := servers_folder(configuration)) is not None:
            print_output(f"  its servers run in {folder}, where their relative arguments start")
    elif configuration.servers:
        print_output(f"configuration: no file found; servers come from {MAP_VARIABLE}")
    else:
        print_output("configuration: no file found, so there are only the built-in tools")
    by_code: dict[FindingCode, list[Finding]] = {}
    for finding in configuration.warnings:
        by_code.setdefault(finding.code, []).append(finding)
    for code, group in by_code.items():
        is_one = len(group) == 1
        if not is_one:
            print_output(f"  {code.number} {counted(len(group), 'finding')}: {code.name}")
        fixes = list(dict.fromkeys(finding.fix for finding in group))
        for finding in group:
            print_hanging(f"  {code.number if is_one else ' '} {finding.problem}", "    " if is_one else "      ")
            if len(fixes) > 1:
                print_hanging(f"      fix: {finding.fix}", "           ")
        if len(fixes) == 1:
            print_hanging(f"    fix: {fixes[0]}", "         ")
    print_hanging(f"access: {_access(configuration)[1]}", "        ")


def _access(configuration: Configuration) -> tuple[str, str]:
    """Who may call a hub with this configuration, for programs and for people."""
    try:
        mode = access_of(configuration)
    except ConfigError as error:
        return "refused", f"isthmus serve would refuse to start: {error}"
    if mode == "keys":
        return mode, "every caller needs a key"
    published = configuration.hub.public_url if configuration.hub.is_published else None
    reach = "every program on this machine" if published is None else f"everybody who can reach {published}"
    return mode, f"open: {reach} may call everything; isthmus token create makes a key"


def _print(reports: Sequence[ServerReport], found: Sequence[Diagnosis], problems: int) -> None:
    """Print the servers, what was found, and a summary with the `problems` of the configuration."""
    rows: list[Row] = [
        (
            "✓" if report.is_well else "✗",
            report.server,
            report.state,
            counted(report.tools, "tool"),
            "" if report.seconds is None else _milliseconds(report.seconds),
            protocol_name(report.era),
        )
        for report in reports
    ]
    head: Row = (" ", "SERVER", "STATE", "TOOLS", "STARTED IN", "PROTOCOL")
    if all(report.seconds is None for report in reports):  # a running hub does not tell it
        head, rows = (*head[:4], head[5]), [(*row[:4], row[5]) for row in rows]
    print_table(head, rows, ("", "bold", *([""] * (len(head) - 2))))
    by_code: dict[tuple[bool, FindingCode], list[Diagnosis]] = {}
    for diagnosis in sorted(found, key=lambda diagnosis: not diagnosis.is_grave):
        by_code.setdefault((diagnosis.is_grave, diagnosis.code), []).append(diagnosis)
    for (is_grave, code), group in by_code.items():
        print_output("")
        _print_group("✗" if is_grave else "·", code, group)
    failed = [report.server for report in reports if not report.is_well]
    if failed:
        print_output(f"\n{len(failed)} of {counted(len(reports), 'server')} failed: {', '.join(failed)}")
    elif problems:
        print_output("\nthe servers in the table are well")
    else:
        print_output("\nall servers are well")
    if problems:
        print_output(f"the configuration has {counted(problems, 'problem')}: see above")


def _print_group(mark: str, code: FindingCode, group: Sequence[Diagnosis]) -> None:
    """Print the findings with one code: a sentence about several servers is printed once."""
    servers: dict[tuple[str, str], list[str]] = {}
    for diagnosis in group:
        servers.setdefault((first_line(diagnosis.message), first_line(diagnosis.fix)), []).append(diagnosis.server)
    fixes = {fix for _, fix in servers}
    if len(servers) == 1:
        ((message, fix),) = servers
        print_hanging(f"{mark} {code.number} {', '.join(servers[message, fix])}: {message}", "    ")
        print_hanging(f"    fix: {fix}", "         ")
        return
    print_output(f"{mark} {code.number} {counted(len(group), 'finding')}: {code.name}")
    for (message, fix), names in servers.items():
        print_hanging(f"    {', '.join(names)}: {message}", "      ")
        if len(fixes) > 1:
            print_hanging(f"      fix: {fix}", "           ")
    if len(fixes) == 1:
        print_hanging(f"    fix: {fixes.pop()}", "         ")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
