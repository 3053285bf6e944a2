"""Imports the modules that `[hub] tools` names, whose functions `@tool` makes built-in tools.

A module runs code of the operator's own: it may fail in any way, or never come back. Each costs only itself, and the
operator is told, in the log and among the notes of the server `builtin`. Called by `app.hub`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from isthmus.config.findings import Finding, Place
from isthmus.config.settings import Configuration
from isthmus.upstream.functions import PythonLink
from isthmus.upstream.hub_functions import HubFunctions
from isthmus.upstream.link import ConnectFailed
from isthmus.upstream.modules import begin_to_import
from isthmus.upstream.settings import PythonSettings
from isthmus.upstream.workers import divert_prints

log = structlog.get_logger(__name__)

START_SECONDS = PythonLink.start_seconds
"""How long one import may take before the others go on without it."""


def marked_modules(configuration: Configuration) -> Mapping[Place, PythonSettings]:
    """What is to be imported, by where that is said; the folder of the file is searched first."""
    folder = None if configuration.file is None else str(configuration.file.parent)
    place = Place(configuration.file, "hub.tools")
    return {place.at(at): PythonSettings(name, folder) for at, name in enumerate(configuration.hub.tools)}


async def import_tools(modules: Mapping[Place, PythonSettings], functions: HubFunctions) -> None:
    """Import one after the other, as a program would, and say what could not be."""
    divert_prints()  # standard output may be a protocol's
    findings = [finding for place, reach in modules.items() if (finding := await _import_one(place, reach)) is not None]
    functions.settle(_notes(findings))


async def _import_one(place: Place, reach: PythonSettings) -> Finding | None:
    try:
        async with asyncio.timeout(START_SECONDS):
            await asyncio.wrap_future(begin_to_import(reach))
    except TimeoutError:
        why = f"importing {reach.target} takes over {START_SECONDS:g} s"
    except ConnectFailed as failed:
        why = str(failed)
    else:
        return None
    finding = place.finding(f"gives no tools: {why}")
    log.warning("configuration", finding=str(finding))
    return finding


def _notes(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(f"{finding.path} {finding.message}" for finding in findings)
