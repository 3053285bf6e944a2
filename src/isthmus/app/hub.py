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
from isthmus.app.configuration_findings import findings_from_lists, for_operators, rule_findings
from isthmus.app.extensions import extension_policy
from isthmus.app.links import ME, Links, Placing
from isthmus.app.parser_process import LongReader
from isthmus.app.reload_diff import ConfigDiff, compare
from isthmus.app.rest_server_edits import NotSaved, ServerEdits
from isthmus.app.server_diagnosis import EntryPlaces, entry_of, fix_of
from isthmus.app.shared_state import sealer_of, vault_of
from isthmus.app.validation import ValidationWorker
from isthmus.config.findings import Place
from isthmus.config.settings import Configuration
from isthmus.core.admin_ports import ConfigurationFinding, DefinitionReview, ServerFix, ServerPreview, SwitchedServer
from isthmus.core.audit import Value
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.approvals import CallApprovals
from isthmus.core.calls.budgets import CallBudgets
from isthmus.core.calls.fleet_calls import Fleets
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.result_cuts import ResultCuts, ResultLimits
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.search_tools import SearchTools, ToolSearch
from isthmus.core.event_loop import use_reader
from isthmus.core.journal import ClockedJournal, Journal
from isthmus.core.ports import Recorder
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


def tool_modules(configuration: Configuration) -> Mapping[Place, PythonSettings]:
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
"""The caller of a hub on standard streams: the program that started it."""

TARGETS_LABEL = ServerName("#")
"""The name under which all targets are counted; no configured server can have it."""


class DefinitionWatcher(Protocol):
    """Watches how definitions change: `app.definition_pins`."""

    def attach(self, hub: Hub, background: BackgroundTasks) -> None:
        """Review what servers list; called before the first server is added."""

    def change(self, configuration: Configuration) -> None:
        """Apply another configuration."""

    async def pending(self) -> Sequence[DefinitionReview]:
        """The definitions that wait for an operator."""

    async def approve(self, server: str, tool: str, fingerprint: str) -> bool:
        """Approve a definition that waits; False if it does not wait."""


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

    _logged_findings: frozenset[str] = frozenset()
    _rules_timer: asyncio.TimerHandle | None = None

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
        self.recent_calls = RecentCalls(self._traced, self.note, self._redacted_beginning)
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
        self.configure_tenants()
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
        modules = tool_modules(configuration)
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

    def set_placing(self, placing: Placing) -> None:
        """Let the cluster decide where programs run; called before any server has been started."""
        self._links.placing = placing
        self.supervisor.grace_of = lambda server: placing.grace if server.owners else 0.0
        for reconnector in self.supervisor.reconnectors.values():
            reconnector.grace = reconnector.server_queue.grace = self.supervisor.grace_of(reconnector.settings)

    def _make_hub(self, environment: Mapping[str, str]) -> Hub:
        configuration = self.configuration
        hub = Hub(configuration.hub.limits, self._recorder(self.recent_calls))
        if self.cassette is not None:
            hub.new_inflight = self.cassette.new_inflight
        hub.custom_policy = extension_policy(configuration)
        Fleets(hub).change(configuration.fleets)
        hub.change_sets(configuration.sets)
        hub.change_exposure(configuration.hub.expose)
        hub.validation = ValidationWorker(self.background, environment)
        hub.watch(self._check_rules_soon)
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
        """Start a server anew, and replace it when the new one is ready; False if the hub does not start it."""
        is_restarted = self.supervisor.restart(server)
        if is_restarted:
            self.on_restarted(server)
        return is_restarted

    async def preview_servers(self, text: str, name: str | None) -> ServerPreview | str:
        """What a pasted text would add to the configuration file; a text says why it is no server."""
        return await self.server_edits.preview(self.configuration, tuple(self.hub.server_queues), text, name)

    async def switch_server(self, server: ServerName, by: Caller, *, is_on: bool) -> SwitchedServer | None:
        """Enable or disable a server, which finishes its calls first; None if it is not a configured one."""
        switched = await self.switch_here(server, is_on=is_on, caller=by.name, tenant=by.tenant)
        if switched is not None:
            await self.on_switched(server, is_on)
        return switched

    async def switch_here(self, server: ServerName, *, is_on: bool, **by: str) -> SwitchedServer | None:
        """Enable or disable a server at this node only; `by` goes into the audit log."""
        present = next((each for each in self.configuration.servers if each.name == server), None)
        if present is None:
            return None
        try:
            file = await self.server_edits.save_switch(self.configuration, server, is_on=is_on)
            is_saved, note = True, f"Saved in {file}."
        except NotSaved as why:
            is_saved, note = False, f"Until the configuration is read again or the hub restarts, because {why}."
        # The file is watched, too: a reload may have applied the change already; if not, it will find nothing to do.
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
        """For each server, what reads its figures as JSON has them; None stands for calls that reached no server."""
        return self.counters.figures()

    async def pending_definitions(self) -> Sequence[DefinitionReview]:
        """The tools that are withheld until an operator approves their definition. Raises `OSError`."""
        return () if self.pins is None else await self.pins.pending()

    async def approve_definition(self, server: str, tool: str, fingerprint: str) -> bool:
        """Approve the pending definition with this fingerprint; False if it is not pending. Raises `OSError`."""
        return self.pins is not None and await self.pins.approve(server, tool, fingerprint)

    def findings(self) -> Sequence[ConfigurationFinding]:
        """The problems of the configuration."""
        from_lists = findings_from_lists(self.configuration, self.hub.snapshot)
        return [for_operators(finding) for finding in (*self.configuration.warnings, *from_lists)]

    def server_fix(self, server: ServerName) -> ServerFix | None:
        """What to do about a server that cannot be used, if its reason tells."""
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
        """A number that changes when `server_fix` says something else of the same snapshot."""
        return self._entry_places.version()

    def _check_rules_soon(self) -> None:
        """Compare the rules for approvals with the servers' lists soon."""
        if self.configuration.approvals and self._rules_timer is None:
            self._rules_timer = asyncio.get_running_loop().call_later(RULES_SECONDS, self._log_rule_findings)

    def _log_rule_findings(self) -> None:
        """Log new findings about the rules for approvals: calls may run that a rule should hold."""
        self._rules_timer = None
        findings = [str(finding) for finding in rule_findings(self.configuration, self.hub.snapshot)]
        for finding in findings:
            if finding not in self._logged_findings:
                log.warning("configuration", finding=finding)
        self._logged_findings = frozenset(findings)

    def _change_rules(self) -> None:
        """Apply the rules for approvals, budgets and large results. Calls skip a stage that has no rules."""
        rules, budgets = self.configuration.approvals, self.configuration.budgets
        self.hub.approvals = self.targets.target_hub.approvals = self.approvals if rules else None
        self.approvals.change(rules)
        self._check_rules_soon()
        self.hub.budgets = self.targets.target_hub.budgets = self.budgets if budgets else None
        self.budgets.change(budgets)
        self._change_cuts()

    def _change_cuts(self) -> None:
        configuration, limits = self.configuration, self.configuration.hub.limits
        sets = {name: settings.max_result_bytes for name, settings in configuration.sets.items()}
        servers = {server.name: server.max_result_bytes for server in configuration.servers}
        result_limits = ResultLimits(
            configuration.hub.max_result_bytes,
            {name: most for name, most in sets.items() if most is not None},
            {name: most for name, most in servers.items() if most is not None},
        )
        of_callers = (caller.max_result_bytes for _, caller in configuration.callers)
        of_names = (*result_limits.sets.values(), *result_limits.servers.values())
        is_cutting = bool(result_limits.hub or any(of_names) or any(of_callers))
        self.cuts.change(result_limits, limits)
        for hub in (self.hub, self.targets.target_hub):
            hub.change_cuts(self.cuts, is_cutting=is_cutting)

    def required_servers(self) -> frozenset[ServerName]:
        """The servers without which the hub is not ready."""
        servers = self.configuration.servers
        return frozenset(server.name for server in servers if server.required and not server.disabled)

    def note(self, event: str, **about: Value) -> None:
        """Write an event into the audit log, if there is one. It must contain no secrets."""
        if self.audit is not None:
            self.audit.note(event, **about)

    def _redacted_beginning(self, inflight: InFlight, payload: msgspec.Raw, length: int) -> str:
        """The beginning of a call's arguments or result, without the secrets that the hub sends to its server."""
        return redact_beginning(payload, self._redact_for(inflight), length)

    def _redact_for(self, inflight: InFlight) -> Callable[[str], str]:
        """A function that removes the secrets that the hub sends to a call's server; `str` if there are none."""
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
        target_hub = Hub(self.hub.limits, self._recorder(GroupedCounters(self._traced, TARGETS_LABEL)))
        target_hub.id = self.hub.id  # a target that is this hub itself is refused
        target_hub.tenants = self.hub.tenants
        target_hub.validation = self.hub.validation
        self._target_links = Links(self.hub.limits, environment, self.background, target_hub.tasks, self._links.egress)
        keeping = Supervisor(target_hub, self.background, self._target_links.connect)
        settings = self.configuration.targets
        configured = lambda: self.configuration.servers  # noqa: E731
        return NamedServers(self.hub, target_hub, keeping, self.background, self._links.egress, settings, configured)

    def configure_tenants(self, callers: Iterable[Caller] = ()) -> None:
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
        """Begin ids that refer to this process's memory with the tag of its node."""
        self._client_input.prefix = prefix
        self.cuts.kept.prefix = self.budgets.prefix = prefix
        name_node(prefix)

    def set_signing_key(self, secret: bytes) -> None:
        """Sign with this key what callers may bring to another node."""
        self._links.task_ids.key = self._target_links.task_ids.key = secret

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
        self.configure_tenants()
        limits = configuration.hub.limits
        self.hub.limits = self._links.limits = self._client_input.limits = limits
        self.targets.target_hub.limits = self._target_links.limits = limits
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
        self.scripts.hand_over_durable()
        self.hub.refuse_new_calls()
        self.targets.target_hub.refuse_new_calls()

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
        redactions = {server.name: server.redact for server in self.configuration.servers if server.secrets}
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
            if self._rules_timer is not None:
                self._rules_timer.cancel()
            if self.cassette is not None:
                await self.cassette.aclose(statuses, lambda server: redactions.get(server, str))
