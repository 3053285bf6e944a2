"""`isthmus doctor`: the configuration, then how each server stands, how fast it came and what is odd."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from isthmus.cli.check import finding_as_json
from isthmus.cli.documents import ServerTold, read_servers
from isthmus.cli.exits import Exit
from isthmus.cli.output import aligned, first_line, show_table, write, write_json
from isthmus.cli.reached import OwnHub, start_own
from isthmus.cli.remote import RemoteHub
from isthmus.cli.sources import Own, Running, configuration_of
from isthmus.config.settings import Configuration
from isthmus.core.catalog.snapshot import Standing
from isthmus.model.names import ServerName
from isthmus.upstream.settings import ServerSettings, StdioSettings
from isthmus.wire.mcp.lists import TOOLS

GOOD = ("ready", "disabled")


class Patient(msgspec.Struct, frozen=True):
    """One server as examined. What a running hub does not tell stays None."""

    server: str
    state: str
    reason: str | None = None
    era: str | None = None
    tools: int = 0
    seconds: float | None = None
    """How long its first attempt to connect took."""
    said: str | None = None
    """The end of what a process that died said on its standard error."""
    notes: tuple[str, ...] = ()
    advice: str | None = None

    @property
    def is_well(self) -> bool:
        """Whether nothing has to be done."""
        return self.state in GOOD


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
        patients = _own_patients(hub, configuration, began)
    finally:
        await hub.aclose()
    if is_json:
        write_json(_own_as_json(configuration, patients))
    else:
        _show_configuration(configuration)
        _show(patients)
    if configuration.warnings:
        return Exit.CONFIGURATION
    return Exit.WELL if all(patient.is_well for patient in patients) else Exit.CALL_FAILED


def _own_patients(hub: OwnHub, configuration: Configuration, began: float) -> list[Patient]:
    settings = {server.name: server for server in configuration.servers}
    standings = hub.running.hub.snapshot.standings
    return [_patient(standings[name], settings.get(name), hub.settled_at, began) for name in sorted(standings)]


def _patient(
    standing: Standing, settings: ServerSettings | None, settled_at: dict[ServerName, float], began: float
) -> Patient:
    ended = settled_at.get(standing.server)
    return Patient(
        server=standing.server,
        state=standing.state,
        reason=None if standing.state == "disabled" else standing.reason,
        era=standing.era,
        tools=len(standing.tools),
        seconds=None if ended is None else ended - began,
        said=standing.detail,
        notes=standing.notes,
        advice=None if settings is None or standing.state in GOOD else _advice(standing, settings),
    )


def _advice(standing: Standing, settings: ServerSettings) -> str:
    if standing.state == "starting":
        return "it is still starting: give it longer with --wait 60"
    if isinstance(settings.reach, StdioSettings):
        command = shlex.join([settings.reach.command, *settings.reach.args])
        return f"see what it says when run by hand: {settings.redact(command)}"
    return "check that its url is right and that it is up"


def _own_as_json(configuration: Configuration, patients: Sequence[Patient]) -> bytes:
    return msgspec.json.encode(
        {
            "configuration": {
                "file": None if configuration.file is None else str(configuration.file),
                "findings": [finding_as_json(finding, "warning") for finding in configuration.warnings],
            },
            "servers": [_as_json(patient) for patient in patients],
        }
    )


def _show_configuration(configuration: Configuration) -> None:
    if configuration.file is None:
        write("configuration: no file found, so there are only the built-in tools")
        return
    write(f"configuration: {configuration.file}")
    for finding in configuration.warnings:
        write(f"  {finding}")


# -- a hub that runs already ---------------------------------------------------------------------------------


async def _examine_running(source: Running, *, is_json: bool) -> Exit:
    began = asyncio.get_running_loop().time()
    hub = RemoteHub(source)
    try:
        await hub.list(TOOLS)  # which gives servers that only start their moment
        seconds = asyncio.get_running_loop().time() - began
        patients = [_told_patient(server) for server in read_servers(await hub.servers())]
    finally:
        await hub.aclose()
    if is_json:
        told = {"hub": {"url": source.reach.url, "seconds": round(seconds, 3)}}
        write_json(msgspec.json.encode({**told, "servers": [_as_json(patient) for patient in patients]}))
    else:
        write(f"hub: {source.reach.url}, reached in {_milliseconds(seconds)}")
        _show(patients)
    return Exit.WELL if all(patient.is_well for patient in patients) else Exit.CALL_FAILED


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


# -- showing -------------------------------------------------------------------------------------------------


def _as_json(patient: Patient) -> dict[str, Any]:
    told = msgspec.structs.asdict(patient)
    return told if patient.seconds is None else {**told, "seconds": round(patient.seconds, 3)}


def _show(patients: Sequence[Patient]) -> None:
    rows = [_row(patient) for patient in patients]
    if sys.stdout.isatty():
        show_table(sys.stdout, [("", rows)], ("", "bold", "", "", "", ""))
    else:
        write("\n".join(aligned(rows)))
    for patient in patients:
        _show_more(patient)
    broken = [patient.server for patient in patients if not patient.is_well]
    write(f"\nbroken: {', '.join(broken)}" if broken else "\nall servers are well")


def _row(patient: Patient) -> tuple[str, ...]:
    return (
        "✓" if patient.is_well else "✗",
        patient.server,
        patient.state,
        f"{patient.tools} tool{'' if patient.tools == 1 else 's'}",
        "" if patient.seconds is None else _milliseconds(patient.seconds),
        "" if patient.era is None else f"MCP {patient.era}",
    )


def _show_more(patient: Patient) -> None:
    said = None if patient.said is None else patient.said.splitlines()[-1]  # a traceback ends with what is wrong
    told = [("reason", patient.reason), ("it said", said), ("try", patient.advice)]
    told.extend(("note", note) for note in patient.notes)
    lines = [f"  {word}: {first_line(text)}" for word, text in told if text]
    if lines:
        write("\n".join([f"\n{patient.server}", *lines]))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
