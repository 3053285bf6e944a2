"""Pins of a running hub: what tools looked like is read when it starts, kept as it changes, and told.

The core decides what is withheld (`core.catalog.pins`); the file (`storage.definitions`) is this module's to write, in
a thread of its own, and to look into for what the operator has approved of meanwhile. Which tools are left out because
of their schemas is told here, too. Made by `serve`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.pins import WITHHOLDING, PinKey, Pinning, Pins, Sighting, known_of
from isthmus.core.catalog.review import LeftOut
from isthmus.model.names import FeatureName, ServerName
from isthmus.storage.definitions import FILE, DefinitionChange, DefinitionStore, SeenDefinition

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
"""How long an approval may be in the file before the hub has seen it."""

TOLD_ONE_BY_ONE = 50
"""Of what comes to be seen at once; of the rest it is told how many they are: a server may have a thousand tools, and
change all of them every second."""

UNKEPT_MAX = 20_000
"""Sightings that wait for the file to take them again."""

Tell = Callable[[str, Mapping[str, object]], None]
"""Takes an event worth proving later: its kind, and what is to be said of it."""


class DefinitionPins:
    """The pins of one hub. Where there can be no file, they last as long as the hub does."""

    def __init__(self, configuration: Configuration, *, is_lasting: bool = True) -> None:
        """What need not be `is_lasting` is kept in the file only where something may have to be approved of.

        Raises:
            ConfigError: changes are to be withheld, and what was seen cannot be kept.
        """
        self._configuration = configuration
        self._is_lasting = is_lasting
        self._modes = _modes_of(configuration)
        self.tell: Tell = _nobody
        self._hub: Hub | None = None
        self._background: BackgroundTasks | None = None
        self._worker = ThreadPoolExecutor(1, "definitions")
        self._unwritten: list[Sighting] = []
        self._unkept: list[tuple[Sighting, SeenDefinition]] = []
        """What the file did not take; the worker's."""
        self._has_told_unkept = False
        self._withheld = 0
        self._looked_up_to = 0
        self._file, known, waiting = _opened(configuration, is_lasting=is_lasting)
        if self._file is not None:
            self._looked_up_to = self._file.last_read_approval()
        self.pins = Pins(known, self._mode_of, self._seen, waiting)

    def attach(self, hub: Hub, background: BackgroundTasks) -> None:
        """Review what this hub's servers list; before any of them is added."""
        self._hub, self._background = hub, background
        hub.review.pins = self.pins
        hub.review.on_left_out = self._left_out
        if self._file is not None:
            background.spawn("approvals", self._look_for_approvals())

    def change(self, configuration: Configuration) -> None:
        """Go by another configuration."""
        before = (self._configuration.hub.pin, self._modes)
        self._configuration, self._modes = configuration, _modes_of(configuration)
        if before == (configuration.hub.pin, self._modes):
            return
        self._open_late()
        for server in list(self._hub.server_queues) if self._hub is not None else ():
            self._review_again(server)

    def _open_late(self) -> None:
        """Use the file that was not wanted, or not to be had, when the hub started."""
        if self._file is not None or self._background is None:
            return
        try:
            self._file, known, _ = _opened(self._configuration, is_lasting=self._is_lasting)
        except ConfigError as error:
            log.error("what tools look like cannot be kept, nor approved", reason=str(error))
            return
        if self._file is not None:
            self.pins.learn(known)
            self._looked_up_to = self._file.last_read_approval()
            self._background.spawn("approvals", self._look_for_approvals())

    async def aclose(self) -> None:
        """Write what is waiting, and let the file go."""
        await asyncio.get_running_loop().run_in_executor(None, self._worker.shutdown)
        if self._file is not None:
            self._write(self._take())
            self._file.close()

    def _mode_of(self, server: ServerName) -> Pinning:
        if server == BUILTIN:
            return "off"  # they change when the operator's own code does
        return self._modes.get(server) or self._configuration.hub.pin

    def _review_again(self, server: ServerName) -> None:
        if self._hub is not None:
            self._hub.publish_again(server)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def _seen(self, sighting: Sighting) -> None:
        """The core saw something; on the loop."""
        self._withheld += sighting.is_withheld
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._pass_on)
        self._unwritten.append(sighting)

    def _pass_on(self) -> None:
        taken = self._take()
        self._say([each for each in taken if each.is_change or each.is_withheld])
        if self._file is None:
            return
        try:
            self._worker.submit(self._write, taken)
        except RuntimeError:
            self._unwritten += taken  # it is being closed, and writes the rest itself

    def _say(self, sightings: list[Sighting]) -> None:
        for sighting in sightings[:TOLD_ONE_BY_ONE]:
            _log(sighting)
            self.tell(_event_of(sighting), _facts(sighting))
        rest = Counter((_event_of(each), each.server) for each in sightings[TOLD_ONE_BY_ONE:])
        for (event, server), count in rest.items():
            log.warning("more tools than are named look otherwise", event_kind=event, server=server, tools=count)
            self.tell(event, {"server": server, "tools": count})

    def _left_out(self, server: ServerName, tools: LeftOut) -> None:
        for tool, why in list(tools.items())[:TOLD_ONE_BY_ONE]:
            log.warning("a tool is left out", tool=f"{server}.{tool}", reason=why)
            self.tell("definition.refused", {"server": server, "tool": tool, "reason": why})
        if (more := len(tools) - TOLD_ONE_BY_ONE) > 0:
            log.warning("more tools than are named are left out", server=server, tools=more)
            self.tell("definition.refused", {"server": server, "tools": more})

    def _take(self) -> list[Sighting]:
        taken, self._unwritten = self._unwritten, []
        return taken

    def _write(self, sightings: list[Sighting]) -> None:
        """In the worker's thread, or at the end. What cannot be written now is tried again."""
        if self._file is None:
            return
        now = time.time()
        self._unkept += [
            (each, SeenDefinition(*_key_of(each), each.fingerprint, each.definition, now)) for each in sightings
        ]
        del self._unkept[UNKEPT_MAX:]
        if not self._unkept:
            return
        try:
            self._file.keep([(seen, each.is_withheld) for each, seen in self._unkept])
        except (sqlite3.Error, OSError) as error:
            if not self._has_told_unkept:
                log.error("what tools look like could not be kept", tools=len(self._unkept), reason=str(error))
            self._has_told_unkept = True
        else:
            self._unkept, self._has_told_unkept = [], False

    # -- what was approved ---------------------------------------------------------------------------------------------

    async def _look_for_approvals(self) -> None:
        """What was approved before it was looked for the first time was so while no hub ran."""
        loop = asyncio.get_running_loop()
        is_first = True
        while True:
            if is_first or self._withheld or self._unkept:
                try:
                    approved = await loop.run_in_executor(self._worker, self._look)
                except (sqlite3.Error, OSError) as error:
                    log.error("it could not be seen what was approved", reason=str(error))
                else:
                    is_first = False
                    for change in approved:
                        self._approved(change)
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> list[DefinitionChange]:
        """In the worker's thread."""
        assert self._file is not None
        self._write([])
        approved = self._file.approved_after(self._looked_up_to)
        if approved:
            self._file.set_last_read_approval(approved[-1].number)
        return approved

    def _approved(self, change: DefinitionChange) -> None:
        self._looked_up_to = change.number
        server = ServerName(change.server)
        self.pins.approve(server, change.variant, FeatureName(change.tool), change.fingerprint)
        facts = {"server": change.server, "tool": change.tool, "fingerprint": change.fingerprint.hex()}
        log.info("a tool's definition was approved", **facts)
        self.tell("definition.approved", facts)
        self._review_again(server)


def _nobody(_kind: str, _facts: Mapping[str, object]) -> None:
    """Where no proof is kept."""


def _modes_of(configuration: Configuration) -> dict[ServerName, Pinning]:
    return {server.name: server.pin for server in configuration.servers if server.pin is not None}


_Opened = tuple[DefinitionStore | None, Mapping[PinKey, bytes], Sequence[PinKey]]


def _opened(configuration: Configuration, *, is_lasting: bool) -> _Opened:
    """The file, what is known by it, and what waits in it; no file where none is wanted, or can be had.

    Raises: ConfigError if changes are to be withheld, and what was seen cannot be kept.
    """
    modes = {configuration.hub.pin, *_modes_of(configuration).values()}
    if modes == {"off"} or not (is_lasting or modes & WITHHOLDING):
        return None, {}, ()
    file: DefinitionStore | None = None
    try:
        file = DefinitionStore(Path(configuration.hub.state))
        known = known_of(file.known())
        waiting = [(ServerName(server), variant, FeatureName(tool)) for server, variant, tool in file.pending_keys()]
    except (OSError, sqlite3.Error, ValueError) as error:
        if file is not None:
            file.close()
        if modes & WITHHOLDING:
            path = Path(configuration.hub.state) / FILE
            said = f"must be a folder in which {FILE} can be kept, or changed tools would not be told: {error}"
            advice = f"mend or move away {path}; then every tool is seen for the first time again"
            raise ConfigError(Place(configuration.file, "hub.state").finding(said, advice=advice)) from error
        log.warning("what tools look like is not kept", reason=str(error))
        return None, {}, ()
    return file, known, waiting


def _key_of(sighting: Sighting) -> tuple[str, str, str]:
    return sighting.server, sighting.variant, sighting.tool


def _facts(sighting: Sighting) -> dict[str, object]:
    facts: dict[str, object] = {"server": sighting.server, "tool": sighting.tool}
    if sighting.variant:
        facts["listed_to"] = sighting.variant
    return {**facts, "fingerprint": sighting.fingerprint.hex()}


def _event_of(sighting: Sighting) -> str:
    return "definition.withheld" if sighting.is_withheld else "definition.changed"


def _log(sighting: Sighting) -> None:
    shown = f"{sighting.server}.{sighting.tool}"
    if sighting.is_withheld:
        why = "its definition has changed" if sighting.is_change else "it was never seen before"
        log.warning("a tool is withheld", tool=shown, reason=why, advice=f"isthmus approve {shown}")
    else:
        log.warning("a tool's definition has changed", tool=shown, advice="isthmus approve --changes shows how")
