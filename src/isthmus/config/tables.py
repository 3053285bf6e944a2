"""Read the hub's own tables, from `[hub]` and `[limits]` to `[relay]`.

Each table is declared once, in `HUB_TABLES`: the settings class that it fills, and a sentence for each key. Types come
from the fields of that class, ranges are checked by it, and `docs/reference/configuration.md` is generated from the
declaration. Unlike a broken server, a bad value here refuses the file: a hub that listens on another address than
configured is worse than none. An unknown key is only reported. Called by `config.load`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from isthmus.cluster.settings import FILES, ClusterSettings
from isthmus.code.settings import CodeSettings
from isthmus.config import finding_codes, values
from isthmus.config.callers import patterns
from isthmus.config.files import STATE, ParsedFile, home_folder, resolve_path, state_folder
from isthmus.config.findings import CodedError, ConfigError, Finding, Place, closest_match
from isthmus.config.settings import HubSettings, RelayParts
from isthmus.config.variables import UsedVariables, Variables
from isthmus.core.settings import CALL_SECONDS, Limits
from isthmus.credentials.vault import VaultSettings
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.mcp.settings import TaskSettings
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.identity.keys import KeyTooShort, check_length
from isthmus.identity.relay_tokens import TokenSettings, check_name
from isthmus.model.names import parse_server_name
from isthmus.model.relay import AgentRules
from isthmus.storage.settings import StorageSettings
from isthmus.telemetry.audit_writer import AuditSettings
from isthmus.telemetry.call_metrics import TelemetrySettings
from isthmus.upstream.dialin.settings import DialInSettings
from isthmus.upstream.targets.settings import TargetSettings

T = TypeVar("T")

A2A = "a2a"
AUDIT = "audit"
CLUSTER = "cluster"
CREDENTIALS = "credentials"
HUB = "hub"
LIMITS = "limits"
LOG = "log"
RELAY = "relay"
STORAGE = "storage"
TARGETS = "targets"
TASKS = "tasks"
CODE = "code"
TELEMETRY = "telemetry"
AGENTS = "agents"

TIMEOUT_VARIABLE = "MCP_CALL_TIMEOUT"
"""Another program's variable, read so that a deployment written for that program keeps working."""

_EARLIER_NAMES = {"allowed_hosts": "hosts", "allowed_origins": "origins"}
_DURATION = re.compile(r"([0-9]{1,6})([hdw])")
_DURATION_UNITS = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_AGENT_KEYS = ("name", "allow", "deny", "grace")
_DENY_ALL = AgentRules(deny=("*",))


# -- the declarations ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HubTable:
    """One table: the classes whose fields are its keys, and the documentation of each key."""

    classes: tuple[type, ...]
    docs: Mapping[str, str]
    """By key, in the order of the reference; Markdown."""
    prefix: str = ""
    """What the fields' names have in front of the keys'."""
    other_types: Mapping[str, Any] = field(default_factory=dict)
    """Types of keys that are no fields, or that a file writes in another form."""

    @property
    def types(self) -> dict[str, Any]:
        """The type of each key."""
        hints = {name: hint for cls in self.classes for name, hint in get_type_hints(cls).items()}
        return {key: hints[self.prefix + key] for key in self.docs if self.prefix + key in hints} | {**self.other_types}

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of each key that is a field."""
        made = {field.name: getattr(cls(), field.name) for cls in self.classes for field in fields(cls)}
        return {key: made[self.prefix + key] for key in self.docs if self.prefix + key in made}


HUB_TABLES: Mapping[str, HubTable] = {
    HUB: HubTable(
        (HubSettings,),
        {
            "host": "Address to listen on. Anything but loopback needs a caller, in the file or made with"
            " `isthmus token create`; `isthmus serve --insecure` does without.",
            "port": "Port to listen on; 0 takes a free one.",
            "public_url": "How others reach the hub. With it, the hub publishes `/.well-known/ai-catalog.json` and"
            " server cards.",
            "names": "Names of tools at `/mcp`: `canonical` is `server.tool`, `llm` is `mcp_server_tool` for models"
            " that refuse dots.",
            "expose": "Which tools callers list: `all`, or with `search` only two that find and call the others, see"
            " [Tool search](search.md); or with `code` those that find them and run scripts, see"
            " [Code mode](code-mode.md).",
            "max_result_bytes": "Larger results of tools are [cut](budgets.md#large-results); 0 for no limit, else 2048"
            " or more. A caller, a set or a server may have its own.",
            "hosts": "`Host` headers to accept beside the hub's own. On loopback only its own are accepted; elsewhere"
            " all are, unless this key is set.",
            "origins": "Origins of web pages that may call. See [Web pages](concepts.md#web-pages).",
            "tools": "Python modules whose `@tool` functions become built-in tools."
            " See [Your own tools](concepts.md#your-own-tools).",
            "pin": "What happens to a tool whose definition changes: `off`, `warn`, `strict` or `approve`."
            " See [Definitions that change](concepts.md#definitions-that-change).",
            "open_programs": "A server whose program or folder every user of the machine can write to: `warn` starts it"
            " and logs it, `refuse` does not start it.",
            "audit": "When a call is written to the [audit log](audit.md): `batched` within 100 ms of its end, `strict`"
            " before it is sent and before its end is reported, `off` never.",
            "console": "Whether the hub serves its [console](console.md) at `/console/`.",
            "cassette": "File to record calls into, for [replaying them offline](cassettes.md). It is written when the"
            " hub ends. Changes apply at the next start.",
            "cassette_timing": "Whether the cassette has the times of events, in milliseconds since their call began.",
            "state": "Folder for data that survives a restart: keys, logins, the audit log, tasks (unless `[storage]`"
            " names a database), the relay's key, revoked tokens, tool definitions and the last list of each server."
            " Each configuration file has [its own](operating.md#the-state-folder).",
        },
        other_types={
            "log_level": str,
            "log_format": str,
            "allowed_hosts": tuple[str, ...],
            "allowed_origins": tuple[str, ...],
        },
    ),
    LOG: HubTable(
        (HubSettings,),
        {
            "file": "File to write logs to; standard error if not set.",
            "format": "`json`, `console`, or `auto`: `console` on a terminal.",
            "level": "`debug`, `info`, `warning` or `error`.",
        },
        prefix="log_",
    ),
    LIMITS: HubTable(
        (Limits,),
        {
            "call_seconds": "How long a server may be silent about a call. See [Timeouts](concepts.md#timeouts).",
            "hard_seconds": "How long any call may take in all; at most 86400.",
            "connect_seconds": "Time to connect to a server over the network.",
            "listing_seconds": "How long the first list waits for servers that are starting for the first time. The hub"
            " does not wait for a server that has failed once, or whose last list is stored.",
            "drain_seconds": "How long running calls may finish when the hub stops.",
            "lag_seconds": "How long a caller may stop reading before it is disconnected.",
            "connections": "Connections of callers at once; WebSockets of the relay have their own limit.",
            "connections_per_address": "The same from one address.",
            "wrong_keys_per_minute": "Wrong keys and tokens per address before it gets 429."
            " See [Failed attempts](identity.md#failed-attempts).",
            "max_calls": "Calls to one server at once; the default of the server's own key.",
            "max_queued": "Calls that may wait for one server; the default of the server's own key.",
            "tenant_calls": "Calls of one tenant that run or wait in the whole hub, where several tenants share it;"
            " `[tenants.NAME] max_calls` sets it for one.",
            "caller_bytes": "Bytes of requests over 64 KiB that one caller may have in progress, and of such"
            " responses over HTTP that a caller with a key has not read."
            " More requests get 429 and `too_many_bytes` (`executed: no`).",
            "tenant_bytes": "The same for all callers of a tenant together.",
            "kept_result_seconds": "How long the whole of a result that was cut stays readable. See"
            " [Large results](budgets.md#large-results).",
            "caller_kept_bytes": "Bytes of such results of one caller that are kept; the oldest are dropped.",
            "kept_bytes": "The same for all callers together.",
            "tools_per_server": "Entries of each list of a server. See [Long lists](operating.md#long-lists).",
            "list_pages": "Pages of each list of a server.",
            "depth": "How deep JSON may nest.",
            "request_bytes": "A request of a caller, which may also have at most 100,000 JSON values.",
            "reply_bytes": "A message of a server, and so one page of its lists.",
            "list_bytes": "All definitions in one list of a server.",
            "list_page_bytes": "A page of a list for an MCP caller. Many clients read only the first page.",
            "notification_bytes": "A message on a server's notification stream.",
            "schema_bytes": "The description of one tool, and its schema.",
            "lag_bytes": "Unread data of a caller before it is disconnected.",
            "breaker_failures": "Failures in a row after which calls to a server are rejected for a while.",
            "breaker_share": "The same by the share of failures, among `breaker_calls` or more within"
            " `breaker_window_seconds`.",
            "breaker_calls": "See `breaker_share`.",
            "breaker_window_seconds": "See `breaker_share`.",
            "breaker_open_seconds": "How long calls are rejected at first; the time doubles with every failure.",
            "breaker_open_max_seconds": "How long calls are rejected at most.",
        },
    ),
    A2A: HubTable(
        (A2aSettings,),
        {
            "name": "Name of the agent on its card.",
            "description": "Description of the agent on its card.",
            "text_tool": "Tool for messages in plain text. It gets `text`, `message_id`, `context_id` and `metadata`,"
            " as far as its schema has them. Without it, the task asks for an instruction and suggests tools.",
            "card": "Card for requests that name no version: `merged` suits A2A 1.0 and 0.3, `strict` is 1.0 only."
            " See [The card](a2a.md#the-card).",
            "keep": "Seconds to store a finished task. A task that waits for a person is stored for at least eight"
            " days.",
            "keep_bytes": "Storage per caller, for A2A and for MCP each; at least 64 KiB."
            " See [Storage of tasks](concepts.md#storage-of-tasks).",
            "grpc_port": "Port for A2A 1.0 over gRPC on the same host; 0 takes a free one. Needs"
            " `pip install 'isthmus[grpc]'`. Changing it needs a restart.",
            "grpc_url": "Address of that port on the card and in DPoP proofs, if not the host of `public_url` with"
            " `grpc_port`.",
        },
    ),
    TASKS: HubTable(
        (TaskSettings,),
        {
            "provide": "Whether the hub runs tools as tasks for servers that have no tasks of their own.",
            "after": "Seconds after which a call becomes a task, for callers of MCP 2026-07-28 that support tasks."
            " Earlier callers request a task themselves.",
        },
    ),
    CODE: HubTable(
        (CodeSettings,),
        {
            "workers": "Scripts that run at once, each in a process of its own; those that wait for people do not"
            " count. One caller has at most half of them."
            " See [Code mode](code-mode.md).",
            "queued": "Scripts that wait for a worker; more are refused.",
            "seconds": "Seconds that a script may take, with its calls.",
            "cpu_seconds": "Seconds that a script may compute, without the time of its calls.",
            "memory_bytes": "Memory that a script may use.",
            "recursion": "How deep the functions of a script may call each other.",
            "calls": "Calls that a script may make.",
            "calls_at_once": "Calls of a script that run at once; more wait.",
            "script_bytes": "Length of a script.",
            "output_bytes": "What a script may print, and the length of its result.",
            "result_bytes": "Length of the result of one call; a longer one raises an exception in the script.",
            "snapshot_bytes": "Stored state of a script that runs as a task.",
        },
    ),
    TARGETS: HubTable(
        (TargetSettings,),
        {
            "allow": "Addresses that callers may name: `https://host`, `https://*.domain` (names below the domain),"
            " `https://*`; with a port if it is not the usual one, and a path to allow only what is below it.",
            "open": "Whether callers without a key may name addresses: those in `allow`, or every public one if `allow`"
            " is empty. Only for a hub on loopback without callers and `public_url`.",
            "headers": "Names of headers that `mcp_headers` may hold. They go to that address only and are never stored"
            " or logged.",
            "idle": "Seconds after which an unused link to such a server is closed.",
            "max": "Such servers at once. One caller has at most half of them; the least recently used is closed"
            " first.",
        },
    ),
    STORAGE: HubTable(
        (StorageSettings,),
        {
            "url": "PostgreSQL database (12 or newer) for tasks: `postgresql://hub:${PG_PASSWORD}@db/isthmus`, or"
            " `env:NAME`, `file:PATH`. Needs `pip install 'isthmus[postgres]'`."
            " See [A database for tasks](concepts.md#a-database-for-tasks). Changing it needs a restart.",
        },
    ),
    CLUSTER: HubTable(
        (ClusterSettings,),
        {
            "nats": "Address of the NATS server that connects the nodes, or a list of them:"
            " `nats://nats.internal:4222`, literal, `env:NAME` or `file:PATH`. Needs `pip install 'isthmus[cluster]'`."
            " See [A cluster of hubs](cluster.md). Changing any key of this table needs a restart.",
            "node": "Name of this node, which no other node may have; the host name and the port if not set.",
            "credentials": "File with the [credentials](https://docs.nats.io/using-nats/developer/connecting/creds)"
            " for NATS.",
            "tls_ca": "File with the certificate authority of the NATS servers, if the system does not know it.",
            "tls_cert": "File with the certificate of this node, for NATS servers that ask for one (`verify`). It is"
            " read at the start.",
            "tls_key": "File with the key of `tls_cert`, without a password, if that file does not have it.",
            "lease_seconds": "Seconds after which a node that does not renew its lease in the database counts as dead,"
            " and another takes over its tasks; from 1 to 300.",
            "config": "Where the rest of the configuration is: `file`, or `database` for the last one that `isthmus"
            " config push` stored. See [One configuration for all nodes](cluster.md#one-configuration-for-all-nodes).",
        },
    ),
    AUDIT: HubTable(
        (AuditSettings,),
        {"keep": "How long records are stored: seconds, or a text such as `36h`, `90d`, `52w`; a day or more."},
    ),
    TELEMETRY: HubTable(
        (TelemetrySettings,),
        {
            "metrics": "Who may read `/metrics`: `operators`, `open` (every client that reaches the port) or `off`."
            " See [Metrics](telemetry.md#metrics).",
            "metrics_key": "Key that may read `/metrics` and nothing else, for a scraper: literal, `env:NAME` or"
            " `file:PATH`.",
            "metrics_tools": "Tools with labels of their own, a quarter of them of one server at most; the rest counts"
            " as `other`. Changing it needs a restart.",
            "otlp_endpoint": "OpenTelemetry collector for traces and metrics, by OTLP over HTTP; wins over"
            " `OTEL_EXPORTER_OTLP_ENDPOINT`. See [Traces](telemetry.md#traces). Changing it needs a restart.",
            "sample_ratio": "Share of calls that are traced, from 0 to 1, where callers have not decided; wins over"
            " `OTEL_TRACES_SAMPLER`. Changing it needs a restart.",
        },
    ),
    RELAY: HubTable(
        (TokenSettings, RelaySettings, DialInSettings),
        {
            "enabled": "Whether there is a relay at all. Changing it needs a restart.",
            "key": "Key that signs tokens, of 16 characters or more: literal, `env:NAME` or `file:PATH`. Without it,"
            " the hub makes one and stores it in `state`. A new key disconnects everybody whose token the old one"
            " signed.",
            "compatible": "Whether tokens of the original relay are accepted.",
            "compatible_agents": "For which agents: `known` (configured here, or made with `isthmus token relay AGENT"
            " --compatible`), `md5` (also ids that a manager makes), `any` (tokens can be spliced).",
            "revoked": "Ids of revoked tokens, beside those of `isthmus token revoke`.",
            "aggregate": "Which responses make up the response to a request to every server: `all` or the `first`.",
            "wait": "Seconds to wait for the last of them, and for a known server that is connecting.",
            "timeout": "Seconds that a device's call may take in all. Progress does not extend it: devices give up"
            " after 30 s.",
            "frame_bytes": "Longest message to a device.",
            "grace": "Seconds that calls wait for a server that is away.",
            "forget": "Seconds after which a server that is away is forgotten.",
            "max_servers": "Servers of one agent.",
            "max_tools": "Tools of one agent.",
            "max_agent_connections": "Sockets of one agent.",
            "max_connections": "Sockets of the whole relay.",
        },
        other_types={AGENTS: dict},
    ),
}


# -- reading any table ---------------------------------------------------------------------------------------


def read_table(
    document: ParsedFile, root: str, types: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Return the values of one table in their types, with a finding for each unknown key.

    Raises:
        ConfigError: a value has another type.
    """
    known = HUB_TABLES[root].types if types is None else types
    place = Place(document.file, root)
    table = document.section(root)
    read: dict[str, Any] = {}
    try:
        for key, value in table.items():
            if key not in known:
                continue
            if root == AUDIT and isinstance(value, str):
                match = _DURATION.fullmatch(value.strip().lower())
                if match is None:
                    raise ValueError(f"{key} must be a time like 36h, 90d or 52w, not {values.quoted(value)}")
                read[key] = int(match[1]) * _DURATION_UNITS[match[2]]
            elif root == CLUSTER and key == "nats" and isinstance(value, str):
                read[key] = (value,)
            elif known[key] is dict:
                read[key] = values.table(key, value)
            else:
                read[key] = values.typed(key, known[key], value)
    except ValueError as error:
        raise ConfigError(place.mistake(error)) from error
    return read, tuple(place.unknown(key, known) for key in table if key not in known)


def accepted(document: ParsedFile, root: str, make: Callable[[], T]) -> T:
    """Return the settings that `make` builds of a table.

    Raises:
        ConfigError: a value is out of its range.
    """
    try:
        return make()
    except ValueError as error:
        raise ConfigError(Place(document.file, root).mistake(error)) from error


def read_settings(document: ParsedFile | None, root: str, settings: type[T]) -> tuple[T, tuple[Finding, ...]]:
    """Return the settings of a table that fills one class, with findings.

    Raises:
        ConfigError: a value is not acceptable.
    """
    # In another client's file, and in any but ours for `audit`, the word may mean something else.
    if document is None or not document.dialect.has_hub or (root == AUDIT and not document.dialect.is_own):
        return settings(), ()
    read, findings = read_table(document, root)
    return accepted(document, root, lambda: settings(**read)), findings


def read_tables(
    document: ParsedFile | None, variables: Variables, schemes: Collection[str]
) -> tuple[dict[str, Any], dict[str, tuple[Finding, ...]]]:
    """Return the settings of all tables but `[hub]`, `[log]` and `[limits]`, and findings, both by table.

    The names of the tables are fields of `Configuration`. `schemes` are addresses of storage that extensions handle.

    Raises:
        ConfigError: a value is not acceptable.
    """
    read: dict[str, tuple[Any, tuple[Finding, ...]]] = {
        A2A: read_settings(document, A2A, A2aSettings),
        TASKS: read_settings(document, TASKS, TaskSettings),
        CODE: read_settings(document, CODE, CodeSettings),
        TARGETS: read_settings(document, TARGETS, TargetSettings),
        STORAGE: (storage := read_storage(document, variables, schemes)),
        CLUSTER: read_cluster(document, variables, storage[0]),
        AUDIT: read_settings(document, AUDIT, AuditSettings),
        CREDENTIALS: read_credentials(document, variables),
        TELEMETRY: read_telemetry(document, variables),
        RELAY: read_relay(document, variables),
    }
    return {root: each[0] for root, each in read.items()}, {root: each[1] for root, each in read.items()}


def resolve_secret(key: str, text: str, variables: Variables) -> str:
    """Return a secret that may be literal, `env:NAME`, `file:PATH`, `keyring:NAME` or contain `${VAR}`.

    Raises:
        ValueError: it cannot be read, or a variable is not set.
    """
    used = UsedVariables()
    secret = variables.secret(key, text, used)
    if used.unresolved:
        message = f"{key} must have only variables that are set, not {used.unresolved[0]}"
        raise CodedError(finding_codes.UNRESOLVED_VARIABLE, message)
    return secret


# -- [hub], [log], [limits] ----------------------------------------------------------------------------------


def read_hub(
    document: ParsedFile | None,
    environment: Mapping[str, str],
    home: Path,
    given: Mapping[str, Any],
    call_seconds: float | None = None,
) -> tuple[HubSettings, tuple[Finding, ...]]:
    """Return the hub's settings with findings; options `given` on the command line win over the file.

    The environment says where state folders are. `call_seconds` is the default of `limits.call_seconds`.

    Raises:
        ConfigError: a value is not acceptable.
    """
    folder = home
    hub: dict[str, Any] = {}
    limits = _limits({}, call_seconds)
    findings: tuple[Finding, ...] = ()
    if document is not None and document.dialect.has_hub:
        folder = document.file.parent
        hub, hub_findings = read_table(document, HUB)
        for earlier, name in _EARLIER_NAMES.items():
            if earlier in hub and name in hub:
                error = ValueError(f"{earlier} must be left out where {name} is given, not be beside it")
                raise ConfigError(Place(document.file, HUB).mistake(error))
            if earlier in hub:
                hub[name] = hub.pop(earlier)
        # In other clients' files `log` may mean something else.
        log, log_findings = read_table(document, LOG) if document.dialect.is_own else ({}, ())
        read, limit_findings = read_table(document, LIMITS)
        limits = accepted(document, LIMITS, lambda: _limits(read, call_seconds))
        accepted(document, HUB, lambda: HubSettings(**hub))
        named_log = {f"log_{key}": value for key, value in log.items()}
        try:
            HubSettings(**named_log)
        except ValueError as error:
            raise ConfigError(Place(document.file, LOG).mistake(ValueError(str(error).removeprefix("log_")))) from error
        hub.update(named_log)
        findings = (*hub_findings, *log_findings, *limit_findings)
    paths = {STATE: str(state_folder(document, environment, home))}
    if hub.get("log_file"):
        paths["log_file"] = str(resolve_path(hub["log_file"], folder, home))
    if hub.get("cassette"):
        paths["cassette"] = str(resolve_path(hub["cassette"], folder, home))
    try:
        return HubSettings(**{**hub, "limits": limits, **paths, **given}), findings
    except ValueError as error:
        # The file's own values were accepted above, so an option is wrong.
        raise ConfigError(Place(None).mistake(ValueError(f"--{error}"))) from error


def _limits(read: Mapping[str, Any], call_seconds: float | None) -> Limits:
    if "call_seconds" in read:
        return Limits(**read)
    limits = Limits(**{"call_seconds": 0.001, **read})  # so that only values of the file can be wrong here
    return replace(
        limits, call_seconds=min(CALL_SECONDS if call_seconds is None else call_seconds, limits.hard_seconds)
    )


def call_seconds(environment: Mapping[str, str]) -> tuple[float | None, list[Finding]]:
    """Return `MCP_CALL_TIMEOUT` in seconds, None if it is not set, with findings."""
    text = environment.get(TIMEOUT_VARIABLE, "").strip()
    if not text:
        return None, []
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if 0 < seconds < float("inf"):
        return seconds, []
    finding = Place(None, TIMEOUT_VARIABLE).finding(
        "must be a positive number of seconds", code=finding_codes.BAD_VALUE
    )
    return None, [finding]


# -- [telemetry] ---------------------------------------------------------------------------------------------


def read_telemetry(document: ParsedFile | None, variables: Variables) -> tuple[TelemetrySettings, tuple[Finding, ...]]:
    """Return the settings with findings.

    Raises:
        ConfigError: a value is not acceptable.
    """
    # In another client's file the word may mean something else.
    if document is None or not document.dialect.is_own:
        return TelemetrySettings(), ()
    read, findings = read_table(document, TELEMETRY)

    def settings() -> TelemetrySettings:
        key = None if "metrics_key" not in read else resolve_secret("metrics_key", read["metrics_key"], variables)
        if key is not None:
            check_length(key)
        return TelemetrySettings(**{**read, "metrics_key": key})

    return accepted(document, TELEMETRY, settings), findings


# -- [storage] -----------------------------------------------------------------------------------------------


def read_storage(
    document: ParsedFile | None, variables: Variables, schemes: Collection[str] = ()
) -> tuple[StorageSettings, tuple[Finding, ...]]:
    """Return the settings with findings; `schemes` are those of addresses that extensions handle.

    No message quotes the address: it may contain a password.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return StorageSettings(), ()
    read, findings = read_table(document, STORAGE)

    def settings() -> StorageSettings:
        url = None if "url" not in read else resolve_secret("url", read["url"], variables)
        return StorageSettings(url, is_foreign=url is not None and url.partition(":")[0] in schemes)

    return accepted(document, STORAGE, settings), findings


# -- [cluster] -----------------------------------------------------------------------------------------------


def read_cluster(
    document: ParsedFile | None, variables: Variables, storage: StorageSettings
) -> tuple[ClusterSettings, tuple[Finding, ...]]:
    """Return the settings with findings. No message quotes an address: it may contain a password.

    Raises:
        ConfigError: a value is not acceptable, or the nodes would have nothing in common.
    """
    # In another client's file the word may mean something else.
    if document is None or not document.dialect.has_hub or CLUSTER not in document.table:
        return ClusterSettings(), ()
    read, findings = read_table(document, CLUSTER)
    folder = document.file.parent
    if not read.get("nats") and (storage.url is None or storage.is_foreign):
        advice = 'add nats = "nats://...", or [storage] url = "postgresql://..." with the database of all nodes'
        place = Place(document.file, CLUSTER)
        raise ConfigError(place.finding("connects this hub with no other", advice=advice, code=finding_codes.BAD_VALUE))
    if read.get("config") == "database" and (storage.url is None or storage.is_foreign):
        place = Place(document.file, CLUSTER).at("config")
        advice = 'add [storage] url = "postgresql://..." with the database of all nodes'
        raise ConfigError(place.finding("needs a database", advice=advice, code=finding_codes.BAD_VALUE))

    def settings() -> ClusterSettings:
        urls = tuple(resolve_secret(f"nats.{at}", url, variables) for at, url in enumerate(read.get("nats", ())))
        named = [key for key in FILES if read.get(key)]
        paths = {key: str(resolve_path(read[key], folder, home_folder())) for key in named}
        return ClusterSettings(**{**read, **paths, "nats": urls}, is_enabled=True)

    return accepted(document, CLUSTER, settings), findings


# -- [credentials] -------------------------------------------------------------------------------------------


def read_credentials(document: ParsedFile | None, variables: Variables) -> tuple[VaultSettings, tuple[Finding, ...]]:
    """Return the keys that encrypt stored logins, with findings.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return VaultSettings(), ()
    read, findings = read_table(document, CREDENTIALS, {"key": str, "old_keys": tuple[str, ...]})

    def vault() -> VaultSettings:
        old_keys = enumerate(read.get("old_keys", ()))
        return VaultSettings(
            resolve_secret("key", read.get("key", ""), variables),
            tuple(resolve_secret(f"old_keys.{position}", text, variables) for position, text in old_keys),
        )

    return accepted(document, CREDENTIALS, vault), findings


# -- [relay] -------------------------------------------------------------------------------------------------


def read_relay(document: ParsedFile | None, variables: Variables) -> tuple[RelayParts, tuple[Finding, ...]]:
    """Return the settings of the relay's three parts, with findings.

    A broken entry of an agent is skipped. A mistake must not widen access: if the entry may have contained a `deny`,
    the agent's devices see nothing.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return RelayParts(), ()
    read, findings = read_table(document, RELAY)
    place = Place(document.file, RELAY).at(AGENTS)
    agents: dict[str, AgentRules] = {}
    agent_findings: list[Finding] = []
    for key, entry in read.get(AGENTS, {}).items():
        try:
            agents[key] = _agent_rules(key, entry)
        except ValueError as error:
            # A mistyped `deny` counts as one; a value that is no table may have meant anything.
            may_deny = not isinstance(entry, dict) or any(closest_match(word, _AGENT_KEYS) == "deny" for word in entry)
            if may_deny:
                agents[key] = _DENY_ALL
            advice = "until then its devices see nothing" if may_deny else "this entry is skipped"
            agent_findings.append(place.at(key).mistake(error, advice=advice, code=finding_codes.BAD_AGENT))
    read[AGENTS] = agents

    def relay_key() -> str | None:
        if "key" not in read:
            return None
        key = resolve_secret("key", read["key"], variables)
        TokenSettings(key)  # rejects what cannot be a key at all
        try:
            check_length(key)
        except KeyTooShort as error:
            raise CodedError(finding_codes.WEAK_KEY, str(error)) from None
        return key

    def of(settings: type[T]) -> T:
        return settings(**{name: read[name] for name in get_type_hints(settings) if name in read})

    read["key"] = accepted(document, RELAY, relay_key)
    parts = accepted(document, RELAY, lambda: RelayParts(of(TokenSettings), of(DialInSettings), of(RelaySettings)))
    return parts, (*findings, *agent_findings)


def _agent_rules(key: str, entry: object) -> AgentRules:
    tenant, slash, agent = key.partition("/")
    try:
        check_name("agent", agent if slash else key)
        if slash:
            check_name("tenant", tenant)
    except ValueError as error:
        raise ValueError(f"must be under the name of an agent, not {values.quoted(key)}: {error}") from error
    fields = values.table("", entry, _AGENT_KEYS)
    name, grace = fields.get("name"), fields.get("grace")
    if name is not None:
        try:
            name = parse_server_name(values.text("name", name))
        except ValueError as error:
            raise ValueError(f"name must {str(error).partition(' must ')[2]}") from error
    if grace is not None:
        grace = DialInSettings(grace=values.number("grace", grace)).grace
    return AgentRules(name, patterns("allow", fields), patterns("deny", fields), grace)
