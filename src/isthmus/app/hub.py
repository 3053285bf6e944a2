"""Builds a hub without frontends from a configuration. `serve`, `stdio` and the command line start from it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol

import msgspec
import structlog

from isthmus.app.cassette import open_recorder
from isthmus.app.code import open_scripts
from isthmus.app.extensions import narrowing_of
from isthmus.app.links import ME, Links, Placing
from isthmus.app.parser_process import LongReader
from isthmus.app.reload_diff import ConfigDiff, compare
from isthmus.app.rest_server_edits import NotSaved, ServerEdits
from isthmus.app.server_diagnosis import EntryPlaces, entry_of, fix_of
from isthmus.app.shared_state import sealer_of, vault_of
from isthmus.app.validation import ValidationWorker
from isthmus.config.finding_codes import IDLE_PATTERN, IDLE_SET_ENTRY, LACKING_ARGUMENT, LEFT_OUT_OF_SET
from isthmus.config.findings import Finding, Place
from isthmus.config.settings import Configuration
from isthmus.core.audit import Value
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.approvals import CallApprovals, lacking_arguments
from isthmus.core.calls.budgets import CallBudgets
from isthmus.core.calls.fleet_calls import Fleets
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.result_cuts import ResultCuts, ResultLimits
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.search_tools import SearchTools, ToolSearch
from isthmus.core.event_loop import use_reader
from isthmus.core.ports import (
    ClockedJournal,
    ConfigurationFinding,
    DefinitionReview,
    Journal,
    Recorder,
    ServerFix,
    ServerPreview,
    SwitchedServer,
)
from isthmus.core.tasks.engine import TaskEngine
from isthmus.credentials.sealing import ProcessSealer
from isthmus.credentials.server_logins import Logins
from isthmus.frontends.mcp.hub_tasks import HubTasks
from isthmus.frontends.mcp.input_required import ModernClientInput
from isthmus.frontends.mcp.methods import McpMethods
from isthmus.frontends.mcp.tasks import name_node
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import ClientCapabilities, Surface
from isthmus.model.credentials import Subject
from isthmus.model.names import ServerName
from isthmus.storage.memory import MemoryJournal
from isthmus.telemetry.activity import LoggedCalls, RecentCalls
from isthmus.telemetry.audit_writer import Audit
from isthmus.telemetry.call_metrics import CallMetrics, GroupedCounters
from isthmus.telemetry.otlp import Telemetry
from isthmus.transport.egress import Egress
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.credential_redaction import MARK, redact_beginning
from isthmus.upstream.dialin.registry import DialInRegistry
from isthmus.upstream.listing import ListCache, ListStore
from isthmus.upstream.python.builtin import HubFunctions, builtin_tools
from isthmus.upstream.python.link import PythonLink, begin_to_import
from isthmus.upstream.python.runner import redirect_prints
from isthmus.upstream.server_set import Supervisor
from isthmus.upstream.server_settings import SECRET_LENGTH_MIN, PythonSettings
from isthmus.upstream.targets.named_servers import NamedServers
from isthmus.wire.mcp.messages import Implementation

log = structlog.get_logger(__name__)

START_SECONDS = PythonLink.start_seconds
"""How long one import may take before the others continue without it."""


def marked_modules(configuration: Configuration) -> Mapping[Place, PythonSettings]:
    """The modules of `[hub] tools` by their place in the file; the file's folder is searched first."""
    folder = None if configuration.file is None else str(configuration.file.parent)
    place = Place(configuration.file, "hub.tools")
    return {place.at(at): PythonSettings(name, folder) for at, name in enumerate(configuration.hub.tools)}


async def import_tools(modules: Mapping[Place, PythonSettings], functions: HubFunctions) -> None:
    """Import the modules one after the other, and log those that fail."""
    redirect_prints()  # standard output may carry a protocol
    notes = []
    for place, reach in modules.items():
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.wrap_future(begin_to_import(reach))
            continue
        except TimeoutError:
            why = f"importing {reach.target} takes over {START_SECONDS:g} s"
        except ConnectFailed as failed:
            why = str(failed)
        finding = place.finding(f"gives no tools: {why}")
        log.warning("configuration", finding=str(finding))
        notes.append(f"{finding.path} {finding.message}")
    functions.all_loaded(tuple(notes))


RULES_SECONDS = 1.0
"""How long changes of lists are gathered before the rules for approvals are compared with them."""

LOCAL = Caller("local", "local", Grants(("*",)), is_anyone=True, is_operator=True)
"""The caller of a hub without configured callers: the local user."""

PARENT = Caller("local", "local", Grants(("*",)))
"""The same for the one program that talks to the hub over standard streams."""

NAMED = ServerName("#")
"""The name under which all targets are counted; no configured server can have it."""


class DefinitionWatcher(Protocol):
    """Watches how definitions change: `app.definition_pins`."""

    def attach(self, hub: Hub, background: BackgroundTasks) -> None:
        """Review what servers list; called before the first server is added."""

    def change(self, configuration: Configuration) -> None:
        """Apply another configuration."""

    async def pending(self) -> Sequence[DefinitionReview]:
        """See `core.ports.HubAdmin`."""

    async def approve(self, server: str, tool: str, fingerprint: str) -> bool:
        """See `core.ports.HubAdmin`."""


async def _no_others(_server: ServerName, _is_on: bool) -> None:  # noqa: FBT001 - a callback
    """There are no other nodes."""


class RunningHub:
    """A hub with its servers and background tasks. Its creator closes it."""

    configuration_problem = ""
    """Why the newest configuration is not in use here, or not all of it."""

    on_switched: Callable[[ServerName, bool], Awaitable[None]] = staticmethod(_no_others)
    """Awaited when an operator has enabled or disabled a server at this node."""

    on_restarted: Callable[[ServerName], None] = staticmethod(lambda _: None)
    """Called when an operator has restarted a server at this node."""

    _warned_of: frozenset[str] = frozenset()
    _looking_at_rules: asyncio.TimerHandle | None = None

    def __init__(
        self,
        configuration: Configuration,
        environment: Mapping[str, str],
        journal: Journal | None = None,
        *,
        client_caps: ClientCapabilities | None = None,
        pins: DefinitionWatcher | None = None,
        lists: ListStore | None = None,
        audit: Audit | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Start every server in the background and return at once. Needs a running loop.

        Without a `journal` nothing outlasts the process. `client_caps` are declared to every server for all callers.
        Without `pins` changed definitions go unnoticed. Without `lists` nothing is listed before a server answers.

        Raises:
            ConfigError: the cassette of the configuration cannot be written.
        """
        self.cassette = open_recorder(configuration, self._redact_for)
        self.configuration = configuration
        self.on_configured: Callable[[Configuration], None] = lambda _: None
        """Called with each configuration that is applied."""
        self.on_configuration_problem: Callable[[str], None] = lambda _: None
        self.server_edits = ServerEdits(environment)
        self._entry_places = EntryPlaces()
        self.callers: Container[Caller] = ()
        """The callers that frontends accept; set by the frontends' owner."""
        self.background = BackgroundTasks()
        self.counters = CallMetrics() if telemetry is None else telemetry.calls
        self._traced = self.counters if telemetry is None else telemetry.wrap(self.counters, self._carrier_of)
        self.recent_calls = RecentCalls(self._traced, self.note, self._beginning_of)
        self.latest_calls = self.recent_calls.latest
        self.follow_calls = self.recent_calls.follow
        self.call_details = self.recent_calls.details
        self.capture_state = self.recent_calls.capture_state
        self.start_capture = self.recent_calls.start_capture
        self.end_capture = self.recent_calls.end_capture
        self.audit = audit
        self.hub = self._make_hub(environment)
        self.tool_search = ToolSearch(self.hub)
        self.hub.add_virtual_tools("search", *self.tool_search.tools())
        self.reader = LongReader(self.background, environment)
        use_reader(self.reader)
        self.know_tenants()
        self.pins = pins
        if pins is not None:
            pins.attach(self.hub, self.background)
        self.surface = Surface(configuration.hub.names)
        self._client_input = ModernClientInput(ProcessSealer(), configuration.hub.limits)
        egress = Egress()
        self.logins = Logins(vault_of(configuration), egress, self.background)
        self._links = Links(
            configuration.hub.limits, environment, self.background, self.hub.tasks, egress, client_caps, self.logins
        )
        known = None if lists is None else ListCache(lists, client_caps)
        self.supervisor = Supervisor(self.hub, self.background, self._links.connect, known)
        self.logins.on_changed = self._login_changed
        self.journal: Journal = journal or MemoryJournal()
        self.tasks = TaskEngine(self.hub, self.journal, self.now, self.background)
        self.tasks.storage_quota.keep_bytes = configuration.a2a.keep_bytes
        if isinstance(self.journal, MemoryJournal):
            self.tasks.storage_quota.share_of = self.journal.share_of
        self.hub.add_virtual_tools("code", SearchTools(self.tool_search))
        self._hub_tasks = self._make_hub_tasks()
        sealer = partial(sealer_of, configuration, "scripts will not survive a restart: no encryption key")
        tasks, hub_tasks, background = self.tasks, self._hub_tasks, self.background
        self.scripts = open_scripts(
            self.hub, tasks, hub_tasks, background, configuration.code, self.journal, sealer, environment
        )
        modules = marked_modules(configuration)
        own = builtin_tools(self.journal, self.now)
        self.functions = HubFunctions(self.hub, self.background, own, is_settled=not modules)
        if modules:
            self.background.spawn("import of tools", import_tools(modules, self.functions))
        self.targets = self._targets(environment)
        self.approvals = CallApprovals(self.journal, self.now, self.note)
        self.budgets, self.cuts = CallBudgets(self.journal, self.background, self.note, self.now), ResultCuts()
        self._change_rules()
        self.dialins = DialInRegistry(self.hub, self.background, ME, configuration.relay.dialin, journal=self.journal)
        for server in configuration.servers:
            self.supervisor.add(server)

    def place_by(self, placing: Placing) -> None:
        """Let this decide where programs run in a cluster. To be called at once, before any server has been started."""
        self._links.placing = placing
        self.supervisor.grace_of = lambda server: placing.grace if server.owners else 0.0
        for reconnector in self.supervisor.reconnectors.values():
            reconnector.grace = reconnector.server_queue.grace = self.supervisor.grace_of(reconnector.settings)

    def _make_hub(self, environment: Mapping[str, str]) -> Hub:
        configuration = self.configuration
        hub = Hub(configuration.hub.limits, self._recorder(self.recent_calls))
        if self.cassette is not None:
            hub.new_inflight = self.cassette.new_inflight
        hub.custom_policy = narrowing_of(configuration)
        Fleets(hub).change(configuration.fleets)
        hub.change_sets(configuration.sets)
        hub.change_exposure(configuration.hub.expose)
        hub.validation = ValidationWorker(self.background, environment)
        hub.watch(self._look_at_rules)
        return hub

    def _make_hub_tasks(self) -> HubTasks:
        return HubTasks(
            self.hub,
            self.tasks,
            self.journal,
            self.background,
            lambda: self.configuration.tasks,
            lambda: self.configuration.a2a.keep,
            self.now,
        )

    def _carrier_of(self, server: ServerName) -> str | None:
        server_status = self.hub.snapshot.server_statuses.get(server)
        return None if server_status is None else server_status.carrier

    def _recorder(self, counting: Recorder) -> Recorder:
        recorder = counting if self.audit is None else self.audit.wrap(counting)
        return LoggedCalls(recorder) if self.configuration.hub.log_level == "debug" else recorder

    def restart(self, server: ServerName) -> bool:
        """See `core.ports.HubAdmin`."""
        is_restarted = self.supervisor.restart(server)
        if is_restarted:
            self.on_restarted(server)
        return is_restarted

    async def preview_servers(self, text: str, name: str | None) -> ServerPreview | str:
        """See `core.ports.HubAdmin`."""
        return await self.server_edits.preview(self.configuration, tuple(self.hub.server_queues), text, name)

    async def switch_server(self, server: ServerName, by: Caller, *, is_on: bool) -> SwitchedServer | None:
        """See `core.ports.HubAdmin`."""
        switched = await self.switch_here(server, is_on=is_on, caller=by.name, tenant=by.tenant)
        if switched is not None:
            await self.on_switched(server, is_on)
        return switched

    async def switch_here(self, server: ServerName, *, is_on: bool, **by: str) -> SwitchedServer | None:
        """The same without telling other nodes; `by` is for the audit log."""
        present = next((each for each in self.configuration.servers if each.name == server), None)
        if present is None:
            return None
        try:
            file = await self.server_edits.save_switch(self.configuration, server, is_on=is_on)
            is_saved, note = True, f"Saved in {file}."
        except NotSaved as why:
            is_saved, note = False, f"Until the configuration is read again or the hub restarts, because {why}."
        # The file is watched, too: a reload may have done it by now, and finds nothing to do otherwise.
        before = self.configuration.servers
        servers = tuple(replace(each, disabled=not is_on) if each.name == server else each for each in before)
        if servers != before:
            self.apply(replace(self.configuration, servers=servers))
        if present.disabled is is_on:
            event = f"server.{'enabled' if is_on else 'disabled'}"
            log.info("server switched by an operator", server=server, enabled=is_on, saved=is_saved)
            self.note(event, server=server, **by, saved=is_saved)
        return SwitchedServer(server, is_on, is_saved, note)

    def call_counts(self) -> dict[ServerName | None, Callable[[], Mapping[str, object]]]:
        """See `core.ports.HubAdmin`."""
        return self.counters.figures()

    async def pending_definitions(self) -> Sequence[DefinitionReview]:
        """See `core.ports.HubAdmin`."""
        return () if self.pins is None else await self.pins.pending()

    async def approve_definition(self, server: str, tool: str, fingerprint: str) -> bool:
        """See `core.ports.HubAdmin`."""
        return self.pins is not None and await self.pins.approve(server, tool, fingerprint)

    def findings(self) -> Sequence[ConfigurationFinding]:
        """See `core.ports.HubAdmin`."""
        from_lists = (*self._set_findings(), *self._rule_findings(), *self._idle_patterns())
        return [
            ConfigurationFinding(
                each.code.number, None if each.file is None else each.file.name, each.path, each.problem, each.fix
            )
            for each in (*self.configuration.warnings, *from_lists)
        ]

    def server_fix(self, server: ServerName) -> ServerFix | None:
        """See `core.ports.HubAdmin`."""
        status, reconnector = self.hub.snapshot.server_statuses.get(server), self.supervisor.reconnectors.get(server)
        if status is None:
            return None
        entry = None if reconnector is None else entry_of(reconnector.settings, self.configuration)
        if (fix := fix_of(status, entry)) is None:
            return None
        is_edit = entry is not None and entry.place in fix
        origin = self.configuration.origins.get(f"servers.{server}")
        return ServerFix(fix, self._entry_places.place_of(origin) if is_edit else None)

    def fixes_version(self) -> int:
        """See `core.ports.HubAdmin`."""
        return self._entry_places.version()

    def _set_findings(self) -> Iterable[Finding]:
        """Return what only the servers' own lists tell about the sets of the file."""
        configuration = self.configuration
        known = {each.path for each in configuration.warnings}
        for name in configuration.sets:
            for note in self.hub.snapshot.set_notes(name):
                place = Place(configuration.file, "sets").at(name, *note.path)
                code = LEFT_OUT_OF_SET if note.text.startswith("is left out") else IDLE_SET_ENTRY
                if place.path not in known:
                    yield place.finding(note.text, code=code)

    def _idle_patterns(self) -> Iterable[Finding]:
        """Return findings about patterns that name a tool which its server does not list."""
        root = Place(self.configuration.file)
        patterns: list[tuple[Place, tuple[str, ...]]] = []
        for budget in self.configuration.budgets:
            patterns.append((root.at("budgets", budget.name, "tools"), budget.tools))
            patterns.append((root.at("budgets", budget.name, "costs"), tuple(pattern for pattern, _ in budget.costs)))
        for caller in {caller.name: caller for _, caller in self.configuration.callers}.values():
            patterns.append((root.at("callers", caller.name, "allow"), caller.grants.allow))
            patterns.append((root.at("callers", caller.name, "deny"), caller.grants.deny))
        for place, listed in patterns:
            yield from self._matching_nothing(place, listed)

    def _matching_nothing(self, place: Place, patterns: Iterable[str]) -> Iterable[Finding]:
        for pattern in patterns:
            if self.hub.snapshot.names_nothing(pattern):
                yield place.finding(f"has {pattern}, which matches nothing", code=IDLE_PATTERN)

    def _rule_findings(self) -> Iterable[Finding]:
        """Return what only the servers' own lists tell about the rules for approvals."""
        for rule in self.configuration.approvals:
            place = Place(self.configuration.file, "approvals").at(rule.name)
            yield from self._matching_nothing(place.at("tools"), rule.tools)
            for test, tools, effect in lacking_arguments(rule, self.hub.snapshot):
                text = f"names an argument that {tools} does not have: {effect}"
                yield place.at("arguments", ".".join(test.path)).finding(text, code=LACKING_ARGUMENT)

    def _look_at_rules(self) -> None:
        """Look soon at what the lists tell about the rules for approvals."""
        if self.configuration.approvals and self._looking_at_rules is None:
            self._looking_at_rules = asyncio.get_running_loop().call_later(RULES_SECONDS, self._warn_of_rules)

    def _warn_of_rules(self) -> None:
        """Log what is newly wrong with the rules for approvals: calls may run that they should hold."""
        self._looking_at_rules = None
        found = [str(finding) for finding in self._rule_findings()]
        for finding in found:
            if finding not in self._warned_of:
                log.warning("configuration", finding=finding)
        self._warned_of = frozenset(found)

    def _change_rules(self) -> None:
        """Hold, count and cut as the configuration says. Calls do not pass what has no rules at all."""
        rules, budgets = self.configuration.approvals, self.configuration.budgets
        self.hub.approvals = self.targets.annex.approvals = self.approvals if rules else None
        self.approvals.change(rules)
        self._look_at_rules()
        self.hub.budgets = self.targets.annex.budgets = self.budgets if budgets else None
        self.budgets.change(budgets)
        self._change_cuts()

    def _change_cuts(self) -> None:
        configuration, limits = self.configuration, self.configuration.hub.limits
        sets = {name: each.max_result_bytes for name, each in configuration.sets.items()}
        servers = {each.name: each.max_result_bytes for each in configuration.servers}
        found = ResultLimits(
            configuration.hub.max_result_bytes,
            {name: most for name, most in sets.items() if most is not None},
            {name: most for name, most in servers.items() if most is not None},
        )
        own = (caller.max_result_bytes for _, caller in configuration.callers)
        is_cutting = bool(found.hub or any(found.sets.values()) or any(found.servers.values()) or any(own))
        self.cuts.change(found, limits)
        for hub in (self.hub, self.targets.annex):
            hub.change_cuts(self.cuts, is_cutting=is_cutting)

    def required_servers(self) -> frozenset[ServerName]:
        """The servers without which the hub is not ready."""
        servers = self.configuration.servers
        return frozenset(server.name for server in servers if server.required and not server.disabled)

    def note(self, event: str, **about: Value) -> None:
        """Write an event into the audit log, if there is one. It must contain no secrets."""
        if self.audit is not None:
            self.audit.note(event, **about)

    def _beginning_of(self, inflight: InFlight, payload: msgspec.Raw, length: int) -> str:
        """The beginning of a call's arguments or result, without what the hub sends to its server as a secret."""
        return redact_beginning(payload, self._redact_for(inflight), length)

    def _redact_for(self, inflight: InFlight) -> Callable[[str], str]:
        """Removes what the hub sends to the server of a call as a secret; `str` if there is nothing to remove."""
        call, server = inflight.call, None if inflight.route is None else inflight.route.feature.server
        secrets = {*call.headers.values(), *self._secrets_of(server)}
        secrets |= {json.dumps(secret)[1:-1] for secret in secrets}  # a text in a result is often JSON itself
        hidden = sorted((secret for secret in secrets if len(secret) >= SECRET_LENGTH_MIN), key=len, reverse=True)
        logins = () if server is None else self.logins.logins_of(server, call.caller)

        def redact(text: str) -> str:
            for secret in hidden:
                text = text.replace(secret, MARK)
            for login in logins:
                text = login.hide(text)
            return text

        return redact if hidden or logins else str

    def _secrets_of(self, server: ServerName | None) -> frozenset[str]:
        """The secrets of a server's entry."""
        reconnector = None if server is None else self.supervisor.reconnectors.get(server)
        return frozenset() if reconnector is None else reconnector.settings.secrets

    def _login_changed(self, server: ServerName, subject: Subject | None) -> None:
        """A login at a server was made, changed or deleted."""
        caller_fields = {} if subject is None else {"caller": subject.name, "tenant": subject.tenant}
        self.note("login.changed", server=server, **caller_fields)
        self.supervisor.renew(server, subject)

    def _targets(self, environment: Mapping[str, str]) -> NamedServers:
        """Servers that callers name by address live in a second hub that no frontend lists."""
        annex = Hub(self.hub.limits, self._recorder(GroupedCounters(self._traced, NAMED)))
        annex.id = self.hub.id  # a target that is this hub itself is refused
        annex.tenants = self.hub.tenants
        annex.validation = self.hub.validation
        self._annex_links = Links(self.hub.limits, environment, self.background, annex.tasks, self._links.egress)
        keeping = Supervisor(annex, self.background, self._annex_links.connect)
        settings = self.configuration.targets
        configured = lambda: self.configuration.servers  # noqa: E731
        return NamedServers(self.hub, annex, keeping, self.background, self._links.egress, settings, configured)

    def know_tenants(self, callers: Iterable[Caller] = ()) -> None:
        """Count calls per tenant from now on, if there are several tenants."""
        configuration = self.configuration
        names = {caller.tenant for caller in (*callers, *(caller for _, caller in configuration.callers))}
        for issuer in configuration.issuers:
            # An issuer's tokens may name any number of tenants.
            names |= {issuer.tenant, issuer.tenant_claim or issuer.tenant}
        self.hub.tenants.configure(configuration.tenants, names)

    @cached_property
    def now(self) -> Callable[[], float]:
        """Returns seconds since 1970; the nodes of a cluster with a database share its clock."""
        return self.journal.now if isinstance(self.journal, ClockedJournal) else time.time

    def asking(self) -> Set[ServerName]:
        """The servers that have asked a caller something, and wait for its answer."""
        return self._client_input.asking()

    def name_node(self, prefix: str) -> None:
        """Begin ids that refer to the memory of this process with the tag of its node."""
        self._client_input.prefix = prefix
        self.cuts.kept.prefix = self.budgets.prefix = prefix
        name_node(prefix)

    def sign_with(self, secret: bytes) -> None:
        """Sign with this key what callers may bring to another node."""
        self._links.task_ids.key = self._annex_links.task_ids.key = secret

    def mcp_methods(self, me: Implementation = ME, *, has_hub_tasks: bool = True) -> McpMethods:
        """The MCP methods of this hub; without hub tasks only those of servers exist."""
        return McpMethods(
            self.hub, me, client_input=self._client_input, hub_tasks=self._hub_tasks if has_hub_tasks else None
        )

    def share_links(self) -> None:
        """Treat all calls as one program's: each server has a single link."""
        self._links.are_shared = True
        for reconnector in self.supervisor.reconnectors.values():
            reconnector.share_link()

    def report_configuration(self, problem: str) -> None:
        """Note why the newest configuration is not in use, or not all of it; empty if it is."""
        if problem != self.configuration_problem:
            self.configuration_problem = problem
            self.on_configuration_problem(problem)

    def apply(self, configuration: Configuration) -> ConfigDiff:
        """Apply another configuration: add, change and remove servers without disturbing the others.

        Limits apply to what starts from now on. Callers are the frontends' concern.
        """
        difference = compare(self.configuration, configuration)
        self.configuration = configuration
        self.tasks.storage_quota.keep_bytes = configuration.a2a.keep_bytes
        self.know_tenants()
        limits = configuration.hub.limits
        self.hub.limits = self._links.limits = self._client_input.limits = limits
        self.targets.annex.limits = self._annex_links.limits = limits
        self.logins.vault.change(configuration.credentials)
        for name in difference.removed:
            self.supervisor.remove(name)
            self.logins.forget(name)
        self.dialins.change(configuration.relay.dialin)
        self.dialins.make_room([*(server.name for server in difference.added), *configuration.fleets])
        for server in difference.added:
            self.supervisor.add(server, is_awaited=False)
        for server in difference.changed:
            self.supervisor.change(server)
        (self.hub.fleets or Fleets(self.hub)).change(configuration.fleets)
        self.hub.change_sets(configuration.sets)
        self.hub.change_exposure(configuration.hub.expose)
        self.scripts.change(configuration.code)
        if self.pins is not None:
            self.pins.change(configuration)
        self.targets.change(configuration.targets, self.callers)
        self.on_configured(configuration)
        self._change_rules()
        return difference

    def calls(self) -> int:
        """Running calls, targets included."""
        return self.hub.running() + self.targets.running()

    def refuse_new_calls(self) -> None:
        """Refuse every new call because the hub is shutting down. Durable scripts are left to the next hub."""
        self.scripts.leave_durable()
        self.hub.refuse_new_calls()
        self.targets.annex.refuse_new_calls()

    def cancel_all(self, why: str) -> None:
        """Cancel every running call."""
        self.hub.cancel_all(why)
        self.targets.cancel_all(why)

    async def aclose(self) -> None:
        """Close every link in good order, then stop what still runs; if cancelled, at once."""
        self.tasks.release_unsent()
        hides = self.hub.snapshot.hides
        statuses = {
            name: status
            for name, status in self.hub.snapshot.server_statuses.items()
            if hides is None or not hides(status)
        }
        redactions = {each.name: each.redact for each in self.configuration.servers if each.secrets}
        self.scripts.close()
        try:
            await self.targets.aclose()
            await self.dialins.aclose()
            await self.supervisor.aclose()
        finally:
            self.functions.close()
            self.recent_calls.close()
            self.tool_search.close()
            use_reader(None, instead_of=self.reader)
            self.cuts.kept.close()
            await self.budgets.aclose()
            await self.background.aclose()
            if self._looking_at_rules is not None:
                self._looking_at_rules.cancel()
            if self.cassette is not None:
                await self.cassette.aclose(statuses, lambda server: redactions.get(server, str))
