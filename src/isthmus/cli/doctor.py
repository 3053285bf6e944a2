"""`isthmus doctor`: the configuration, how each server stands, what is wrong or odd, and what mends it.

What is wrong is decided in `cli.diagnosis`; here it is asked for and shown.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from isthmus.cli.check import access_of, finding_as_json
from isthmus.cli.diagnosis import (
    CODES,
    Diagnosis,
    Entry,
    Patient,
    of_arguments,
    of_names,
    of_open_path,
    of_schemas,
    of_server,
    of_uris,
)
from isthmus.cli.documents import ServerTold, read_listing, read_servers
from isthmus.cli.exits import Exit
from isthmus.cli.output import aligned, first_line, show_table, write, write_json
from isthmus.cli.reached import OwnHub, Reached, start_own
from isthmus.cli.remote import RemoteHub
from isthmus.cli.servers import spoken
from isthmus.cli.sources import Own, Running, configuration_of
from isthmus.config import codes
from isthmus.config.environment import MAP_VARIABLE
from isthmus.config.findings import ConfigError
from isthmus.config.settings import Configuration
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.upstream.programs import open_paths, program_of
from isthmus.upstream.settings import StdioSettings
from isthmus.wire.mcp.lists import RESOURCES, TOOLS


def show_codes(*, is_json: bool) -> Exit:
    """Print every kind of finding: the doctor's own, then those of configurations."""
    known = [*CODES, *codes.CODES]
    if is_json:
        listed = [{"code": code.number, "kind": code.name, "mend": code.mend} for code in known]
        write_json(msgspec.json.encode({"codes": listed}))
    else:
        write("\n".join(aligned([(code.number, code.name, code.mend) for code in known])))
    return Exit.WELL


async def examine(source: Running | Own, *, wait: float, is_json: bool) -> Exit:
    """Print how a hub and its servers are.

    Raises:
        CommandFailed: the configuration cannot be used at all, or the running hub cannot be reached.
    """
    if isinstance(source, Running):
        return await _examine_running(source, is_json=is_json)
    return await _examine_own(source, wait=wait, is_json=is_json)


# -- a hub of this process -----------------------------------------------------------------------------------


async def _examine_own(source: Own, *, wait: float, is_json: bool) -> Exit:
    configuration = configuration_of(source.file)
    began = asyncio.get_running_loop().time()
    hub = await start_own(configuration, os.environ, within=wait)
    try:
        patients = _own_patients(hub, began)
        found = await _diagnose(hub, patients, configuration, configuration.hub.limits)
    finally:
        await hub.aclose()
    if is_json:
        write_json(msgspec.json.encode({"configuration": _in_json(configuration), **_as_json(patients, found)}))
    else:
        _show_configuration(configuration)
        _show(patients, found)
    return Exit.CONFIGURATION if configuration.warnings else _exit(patients)


def _own_patients(hub: OwnHub, began: float) -> list[Patient]:
    server_statuses = hub.running.hub.snapshot.server_statuses
    return [_patient(server_statuses[name], hub.settled_at, began) for name in sorted(server_statuses)]


def _patient(server_status: ServerStatus, settled_at: dict[ServerName, float], began: float) -> Patient:
    ended = settled_at.get(server_status.server)
    return Patient(
        server=server_status.server,
        state=server_status.state,
        reason=None if server_status.state == "disabled" else server_status.reason,
        era=server_status.era,
        tools=len(server_status.tools),
        seconds=None if ended is None else ended - began,
        said=server_status.detail,
        notes=server_status.notes,
    )


def _in_json(configuration: Configuration) -> dict[str, Any]:
    return {
        "file": None if configuration.file is None else str(configuration.file),
        "findings": [finding_as_json(finding, "warning") for finding in configuration.warnings],
        "access": _access(configuration)[0],
    }


def _show_configuration(configuration: Configuration) -> None:
    if configuration.file is None:
        rest = (
            f"; servers are those of {MAP_VARIABLE}"
            if configuration.servers
            else ", so there are only the built-in tools"
        )
        write(f"configuration: no file found{rest}")
    else:
        write(f"configuration: {configuration.file}")
    for finding in configuration.warnings:
        write(f"  {finding.code.number} {finding}\n    mend: {finding.mend}")
    write(f"access: {_access(configuration)[1]}")


def _access(configuration: Configuration) -> tuple[str, str]:
    """Who may call the hub that has this configuration, for programs and for people."""
    try:
        mode = access_of(configuration)
    except ConfigError as error:
        return "refused", f"isthmus serve would refuse to start: {error}"
    if mode == "keys":
        return mode, "everybody has to show a key"
    published = configuration.hub.public_url if configuration.hub.is_published else None
    who = "every program on this machine" if published is None else f"everybody who can reach {published}"
    return mode, f"open: {who} may call everything; isthmus token create makes a key"


# -- a hub that runs already ---------------------------------------------------------------------------------


async def _examine_running(source: Running, *, is_json: bool) -> Exit:
    began = asyncio.get_running_loop().time()
    hub = RemoteHub(source)
    try:
        await hub.list(TOOLS)  # which gives servers that only start their moment
        seconds = asyncio.get_running_loop().time() - began
        patients = [_told_patient(server) for server in read_servers(await hub.servers())]
        found = await _diagnose(hub, patients, None, Limits())
    finally:
        await hub.aclose()
    if is_json:
        told = {"hub": {"url": source.reach.url, "seconds": round(seconds, 3)}}
        write_json(msgspec.json.encode({**told, **_as_json(patients, found)}))
    else:
        write(f"hub: {source.reach.url}, reached in {_milliseconds(seconds)}")
        _show(patients, found)
    return _exit(patients)


def _told_patient(server: ServerTold) -> Patient:
    return Patient(
        server=server.name,
        state=server.state,
        reason=None if server.state == "disabled" else server.reason,
        era=server.era,
        tools=server.tools,
        said=server.detail,
        notes=server.notes,
    )


# -- both ----------------------------------------------------------------------------------------------------


async def _diagnose(
    hub: Reached, patients: Sequence[Patient], configuration: Configuration | None, limits: Limits
) -> list[Diagnosis]:
    """Look at every server, and at what they all offer; how a running hub is configured is not known."""
    entries = {} if configuration is None else _entries(configuration)
    tools = read_listing(await hub.list(TOOLS), TOOLS).offers
    resources = read_listing(await hub.list(RESOURCES), RESOURCES).offers
    alone = [found for patient in patients for found in of_server(patient, entries.get(patient.server))]
    told = [found for entry in entries.values() for found in of_arguments(entry)]
    return [*alone, *_opened(entries), *told, *of_names(tools), *of_uris(resources), *of_schemas(tools, limits)]


def _entries(configuration: Configuration) -> dict[str, Entry]:
    return {server.name: Entry(server, _place(server.name, configuration)) for server in configuration.servers}


def _opened(entries: Mapping[str, Entry]) -> list[Diagnosis]:
    return [of_open_path(entry, path) for entry in entries.values() for path in _open_paths(entry)]


def _open_paths(entry: Entry) -> list[Path]:
    reach = entry.settings.reach
    return open_paths(reach, program_of(reach, os.environ)) if isinstance(reach, StdioSettings) else []


def _place(name: ServerName, configuration: Configuration) -> str:
    origin = configuration.origins.get(f"servers.{name}")
    if origin is None:
        return f"servers.{name}"
    return origin.path if origin.file is None else f"{origin.path} of {origin.file}"


def _exit(patients: Sequence[Patient]) -> Exit:
    return Exit.WELL if all(patient.is_well for patient in patients) else Exit.CALL_FAILED


def _as_json(patients: Sequence[Patient], found: Sequence[Diagnosis]) -> dict[str, Any]:
    return {
        "servers": [_patient_as_json(patient) for patient in patients],
        "findings": [
            {
                "code": diagnosis.code.number,
                "kind": diagnosis.code.name,
                "server": diagnosis.server,
                "message": diagnosis.message,
                "mend": diagnosis.mend,
            }
            for diagnosis in found
        ],
    }


def _patient_as_json(patient: Patient) -> dict[str, Any]:
    told = msgspec.structs.asdict(patient)
    return told if patient.seconds is None else {**told, "seconds": round(patient.seconds, 3)}


# -- showing -------------------------------------------------------------------------------------------------


def _show(patients: Sequence[Patient], found: Sequence[Diagnosis]) -> None:
    rows = [_row(patient) for patient in patients]
    if sys.stdout.isatty():
        show_table(sys.stdout, [("", rows)], ("", "bold", "", "", "", ""))
    else:
        write("\n".join(aligned(rows)))
    for diagnosis in sorted(found, key=lambda diagnosis: not diagnosis.is_grave):
        _show_one(diagnosis)
    broken = [patient.server for patient in patients if not patient.is_well]
    write(f"\nbroken: {', '.join(broken)}" if broken else "\nall servers are well")


def _row(patient: Patient) -> tuple[str, ...]:
    return (
        "✓" if patient.is_well else "✗",
        patient.server,
        patient.state,
        f"{patient.tools} tool{'' if patient.tools == 1 else 's'}",
        "" if patient.seconds is None else _milliseconds(patient.seconds),
        spoken(patient.era),
    )


def _show_one(diagnosis: Diagnosis) -> None:
    mark = "✗" if diagnosis.is_grave else "·"
    write(f"\n{mark} {diagnosis.code.number} {diagnosis.server}: {first_line(diagnosis.message)}")
    write(f"    mend: {first_line(diagnosis.mend)}")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
