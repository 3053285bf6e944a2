"""Pinned tool definitions of a running hub: loads them at the start, stores changes, and reports them.

The core decides which tools are withheld (`core.catalog.pins`). This module writes them (`storage.definition_store`) in
its own thread, and reads the operator's approvals, and in a cluster what other nodes have seen. It also reports tools
that are left out because of their schemas. `serve` creates it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import structlog

from isthmus.app.shared_state import shared_state
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.config.tables import STORAGE
from isthmus.core.admin_ports import DefinitionReview
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.definition_review import LeftOut
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.pins import WITHHOLDING, PinKey, Pinning, Pins, Sighting, known_of
from isthmus.model.names import FeatureName, ServerName
from isthmus.storage.definition_store import (
    FILE,
    AnyDefinitions,
    DefinitionChange,
    DefinitionStore,
    PendingDefinition,
    SeenDefinition,
    SharedDefinitions,
    SharedNews,
)

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.5
"""How often the file is checked for approvals."""

LEARNED_AT_ONCE = 500
"""Pins of other nodes that are applied before other work of the event loop."""

LOGGED_ONE_BY_ONE = 50
"""How many tools are named in one report; the rest is only counted. A server may have a thousand tools and change all
of them every second."""

UNWRITTEN_MAX = 20_000
"""How many sightings wait while the file cannot be written."""

RecordEvent = Callable[[str, Mapping[str, object]], None]
"""Records an audit event: its kind and its details."""


class DefinitionPins:
    """The pins of one hub. Without a file they last as long as the process."""

    def __init__(self, configuration: Configuration, *, is_lasting: bool = True) -> None:
        """Unless `is_lasting`, a file is used only if changes need approval.

        Raises:
            ConfigError: changed tools must be withheld, but the file cannot be used.
        """
        self._configuration = configuration
        self._is_lasting = is_lasting
        self._modes = _modes_in(configuration)
        self.record: RecordEvent = lambda _event, _facts: None
        self._hub: Hub | None = None
        self._background: BackgroundTasks | None = None
        self._worker = ThreadPoolExecutor(1, "definitions")
        self._unwritten: list[Sighting] = []
        self._failed_writes: list[tuple[Sighting, SeenDefinition]] = []
        """Sightings that could not be written; only the worker thread uses it."""
        self._has_logged_failure = False
        self._withheld = 0
        self._last_approval = 0
        self._file, known, waiting = _open_store(configuration, is_lasting=is_lasting)
        if isinstance(self._file, DefinitionStore):
            self._last_approval = self._file.last_read_approval()
        self.pins = Pins(known, self._mode_of, self._add_sighting, waiting)

    def attach(self, hub: Hub, background: BackgroundTasks) -> None:
        """Review what this hub's servers list; call it before the first server is added."""
        self._hub, self._background = hub, background
        hub.review.pins = self.pins
        hub.review.on_left_out = self._report_left_out
        self._follow(background)

    def _follow(self, background: BackgroundTasks) -> None:
        if isinstance(self._file, SharedDefinitions):
            background.spawn("shared definitions", self._follow_nodes(self._file))
        elif self._file is not None:
            background.spawn("approvals", self._follow_approvals(self._file))

    def change(self, configuration: Configuration) -> None:
        """Apply another configuration."""
        before = (self._configuration.hub.pin, self._modes)
        self._configuration, self._modes = configuration, _modes_in(configuration)
        if before == (configuration.hub.pin, self._modes):
            return
        if self._file is None and self._background is not None:  # it was not needed or not available at the start
            try:
                self._file, known, _ = _open_store(configuration, is_lasting=self._is_lasting)
            except ConfigError as error:
                log.error("tool definitions can be neither stored nor approved", reason=str(error))
            else:
                if self._file is not None:
                    self.pins.replace_all(known)
                    if isinstance(self._file, DefinitionStore):
                        self._last_approval = self._file.last_read_approval()
                    self._follow(self._background)
        for server in list(self._hub.server_queues) if self._hub is not None else ():
            self._review_again(server)

    async def pending(self) -> list[DefinitionReview]:
        """The definitions that wait for an operator. Raises `OSError`."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._pending)

    def _pending(self) -> list[DefinitionReview]:
        """Runs in the worker thread."""
        return [_to_review(each) for each in self._waiting()]

    def _waiting(self) -> list[PendingDefinition]:
        if self._file is None:
            return []
        try:
            return self._file.waiting()
        except sqlite3.Error as error:
            raise OSError(f"the stored definitions cannot be read: {error}") from error

    async def approve(self, server: str, tool: str, fingerprint: str) -> bool:
        """Approve a pending definition, and list its tool within a second; False if it is not pending.

        Raises:
            OSError: the stored definitions cannot be used.
        """
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._approve, server, tool, fingerprint)

    def _approve(self, server: str, tool: str, fingerprint: str) -> bool:
        """Runs in the worker thread."""
        if self._file is None:
            return False
        is_approved = False
        try:
            for seen, _ in self._waiting():
                if (seen.server, seen.tool, seen.fingerprint.hex()) == (server, tool, fingerprint):
                    # `_follow_approvals` reads it from the file, as it does for approvals of the command line.
                    is_approved |= self._file.approve(seen, time.time())
        except sqlite3.Error as error:
            raise OSError(f"the approval cannot be stored: {error}") from error
        return is_approved

    async def aclose(self) -> None:
        """Write what is waiting and close the file."""
        await asyncio.get_running_loop().run_in_executor(None, self._worker.shutdown)
        if self._file is not None:
            self._write(self._pop_unwritten())
            self._file.close()

    def _mode_of(self, server: ServerName) -> Pinning:
        if server == BUILTIN:
            return "off"  # they change only with the operator's own code
        return self._modes.get(server) or self._configuration.hub.pin

    def _review_again(self, server: ServerName) -> None:
        if self._hub is not None:
            self._hub.publish_again(server)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def _add_sighting(self, sighting: Sighting) -> None:
        """Called by the core, on the event loop, when it has seen a definition."""
        self._withheld += sighting.is_withheld
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._pass_on)
        self._unwritten.append(sighting)

    def _pass_on(self) -> None:
        """Report the sightings of this loop iteration, and hand them to the worker thread."""
        taken = self._pop_unwritten()
        sightings = [each for each in taken if each.is_change or each.is_withheld]
        for sighting in sightings[:LOGGED_ONE_BY_ONE]:
            self._report(sighting)
        rest = Counter((_event_for(sighting), sighting.server) for sighting in sightings[LOGGED_ONE_BY_ONE:])
        for (event, server), count in rest.items():
            log.warning("tool changes omitted from the log", event_kind=event, server=server, tools=count)
            self.record(event, {"server": server, "tools": count})
        if self._file is None:
            return
        try:
            self._worker.submit(self._write, taken)
        except RuntimeError:
            self._unwritten += taken  # it is closing and writes the rest itself

    def _report(self, sighting: Sighting) -> None:
        shown = f"{sighting.server}.{sighting.tool}"
        if sighting.is_withheld:
            why = "its definition has changed" if sighting.is_change else "it was never seen before"
            log.warning("a tool is withheld", tool=shown, reason=why, advice=f"isthmus approve {shown}")
        else:
            log.warning("a tool's definition has changed", tool=shown, advice="isthmus approve --changes shows how")
        facts: dict[str, object] = {"server": sighting.server, "tool": sighting.tool}
        if sighting.variant:
            facts["listed_to"] = sighting.variant
        self.record(_event_for(sighting), {**facts, "fingerprint": sighting.fingerprint.hex()})

    def _report_left_out(self, server: ServerName, tools: LeftOut) -> None:
        for tool, why in list(tools.items())[:LOGGED_ONE_BY_ONE]:
            log.warning("a tool is left out", tool=f"{server}.{tool}", reason=why)
            self.record("definition.refused", {"server": server, "tool": tool, "reason": why})
        if (more := len(tools) - LOGGED_ONE_BY_ONE) > 0:
            log.warning("left-out tools omitted from the log", server=server, tools=more)
            self.record("definition.refused", {"server": server, "tools": more})

    def _pop_unwritten(self) -> list[Sighting]:
        taken, self._unwritten = self._unwritten, []
        return taken

    def _write(self, sightings: list[Sighting]) -> None:
        """Write the waiting sightings, and keep those that fail for the next attempt. Runs in the worker thread."""
        if self._file is None:
            return
        now = time.time()
        self._failed_writes += [
            (
                sighting,
                SeenDefinition(
                    sighting.server, sighting.variant, sighting.tool, sighting.fingerprint, sighting.definition, now
                ),
            )
            for sighting in sightings
        ]
        del self._failed_writes[UNWRITTEN_MAX:]
        if not self._failed_writes:
            return
        kept = [(seen, each.is_withheld) for each, seen in self._failed_writes]
        try:
            if isinstance(self._file, SharedDefinitions):
                first = frozenset(
                    seen[:3] for each, seen in self._failed_writes if not (each.is_change or each.is_withheld)
                )
                self._file.store(kept, first=first)
            else:
                self._file.store(kept)
        except (sqlite3.Error, OSError) as error:
            if not self._has_logged_failure:
                log.error("tool definitions could not be stored", tools=len(self._failed_writes), reason=str(error))
            self._has_logged_failure = True
        else:
            self._failed_writes, self._has_logged_failure = [], False

    # -- what was approved ---------------------------------------------------------------------------------------------

    async def _follow_nodes(self, store: SharedDefinitions) -> None:
        """Follow the definitions that other nodes accepted, and approvals."""
        loop = asyncio.get_running_loop()
        revision = -1
        while True:
            now = store.revision
            if now != revision or self._failed_writes:
                try:
                    news = await loop.run_in_executor(self._worker, self._read_news, store)
                except OSError as error:
                    log.error("approved definitions could not be read", reason=str(error))
                else:
                    revision = now
                    await self._apply_news(news)
            await asyncio.sleep(POLL_SECONDS)

    def _read_news(self, store: SharedDefinitions) -> SharedNews:
        """Runs in the worker thread."""
        self._write([])
        return store.news()

    async def _apply_news(self, news: SharedNews) -> None:
        changed: set[ServerName] = set()
        for number, (key, fingerprint) in enumerate(known_of((*k, f) for k, f in news.accepted.items()).items(), 1):
            if self.pins.learn_from_node(key, fingerprint):
                changed.add(key[0])
            if number % LEARNED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for server, variant, tool in news.settled:
            if self.pins.report_again((ServerName(server), variant, FeatureName(tool))):
                changed.add(ServerName(server))
        for change in news.approved:
            self._report_approval(change)
        for server in changed:
            if self.pins.withholds(server):
                self._review_again(server)

    def _report_approval(self, change: DefinitionChange) -> None:
        about = {"server": change.server, "tool": change.tool, "fingerprint": change.fingerprint.hex()}
        log.info("a tool's definition was approved", **about)
        self.record("definition.approved", about)

    async def _follow_approvals(self, file: DefinitionStore) -> None:
        """Approvals found by the first check were made while no hub ran."""
        loop = asyncio.get_running_loop()
        is_first = True
        while True:
            if is_first or self._withheld or self._failed_writes:
                try:
                    approved = await loop.run_in_executor(self._worker, self._read_approvals, file)
                except (sqlite3.Error, OSError) as error:
                    log.error("approved definitions could not be read", reason=str(error))
                else:
                    is_first = False
                    for change in approved:
                        self._last_approval = change.number
                        server = ServerName(change.server)
                        self.pins.approve(server, change.variant, FeatureName(change.tool), change.fingerprint)
                        self._report_approval(change)
                        self._review_again(server)
            await asyncio.sleep(POLL_SECONDS)

    def _read_approvals(self, file: DefinitionStore) -> list[DefinitionChange]:
        """Runs in the worker thread."""
        self._write([])
        approved = file.approved_after(self._last_approval)
        if approved:
            file.set_last_read_approval(approved[-1].number)
        return approved


def definition_store(configuration: Configuration, *, is_required: bool = False) -> AnyDefinitions:
    """Where tool definitions are stored.

    With `is_required`, a node does not start with definitions in its folder and none in the database: every tool would
    count as new there, and a changed one would not be withheld.

    Raises:
        ConfigError: the database cannot be used, or the definitions are still in the state folder.
        OSError, sqlite3.Error: the file or the database cannot be used.
    """
    folder = Path(configuration.hub.state)
    state = shared_state(configuration)
    if state is None:
        return DefinitionStore(folder)
    shared = SharedDefinitions(state)
    if is_required and shared.revision == 0 and (folder / FILE).exists():
        with closing(DefinitionStore(folder)) as file:
            if file.known():
                problem = f"has no tool definitions yet, and {folder / FILE} has: nodes read the database only"
                advice = "run isthmus migrate; or delete that file, if every tool may count as new"
                raise ConfigError(Place(configuration.file, STORAGE).at("url").finding(problem, advice=advice))
    return shared


def _modes_in(configuration: Configuration) -> dict[ServerName, Pinning]:
    return {server.name: server.pin for server in configuration.servers if server.pin is not None}


_OpenedStore = tuple[AnyDefinitions | None, Mapping[PinKey, bytes], Sequence[PinKey]]


def _open_store(configuration: Configuration, *, is_lasting: bool) -> _OpenedStore:
    """Open the file; return it with its pins and pending changes. No file if it is unused or unavailable.

    Raises: ConfigError if changed tools must be withheld, but the file cannot be used.
    """
    modes = {configuration.hub.pin, *_modes_in(configuration).values()}
    if modes == {"off"} or not (is_lasting or modes & WITHHOLDING):
        return None, {}, ()
    file: AnyDefinitions | None = None
    try:
        file = definition_store(configuration, is_required=bool(modes & WITHHOLDING))
        known = known_of(file.known())
        waiting = [(ServerName(server), variant, FeatureName(tool)) for server, variant, tool in file.pending_keys()]
    except (OSError, sqlite3.Error, ValueError) as error:
        if file is not None:
            file.close()
        if modes & WITHHOLDING:
            path = Path(configuration.hub.state) / FILE
            problem = f"must be a folder for {FILE}, or changed tools would go unnoticed: {error}"
            advice = f"repair or move {path}; without it every tool counts as new"
            raise ConfigError(Place(configuration.file, "hub.state").finding(problem, advice=advice)) from error
        log.warning("tool definitions are not stored", reason=str(error))
        return None, {}, ()
    return file, known, waiting


def _event_for(sighting: Sighting) -> str:
    return "definition.withheld" if sighting.is_withheld else "definition.changed"


def _to_review(pending: PendingDefinition) -> DefinitionReview:
    seen = pending.seen
    before = None if pending.before is None else pending.before.decode("utf-8", "replace")
    now = seen.definition.decode("utf-8", "replace")
    return DefinitionReview(seen.server, seen.tool, seen.variant or None, seen.fingerprint.hex(), seen.at, before, now)
