"""Reading a table of plain values, such as `[limits]`: its types here, its ranges by the settings that it fills.

A bad value refuses the file, an unknown key is only told of. Called by the modules that read one such table each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from isthmus.config import codes, values
from isthmus.config.callers import patterns
from isthmus.config.codes import UNRESOLVED_VARIABLE
from isthmus.config.files import Document, resolve_path
from isthmus.config.findings import CodedError, ConfigError, Finding, Place, closest_match
from isthmus.config.settings import HubSettings, RelayParts
from isthmus.config.variables import UsedVariables, Variables
from isthmus.core.settings import CALL_SECONDS, Limits
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.mcp.settings import TaskSettings
from isthmus.frontends.relay.settings import RelaySettings
from isthmus.identity.keys import KeyTooShort, check_length
from isthmus.identity.relay_tokens import TokenSettings, check_name
from isthmus.model.names import parse_server_name
from isthmus.model.relay import AgentRules
from isthmus.storage.settings import StorageSettings
from isthmus.telemetry.audit import AuditSettings
from isthmus.upstream.dialin.settings import DialInSettings
from isthmus.upstream.targets.settings import TargetSettings

T = TypeVar("T")
Reader = Callable[[str, object], object]


def read_table(
    document: Document, root: str, readers: Mapping[str, Reader]
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Return the known values of one table in their types, and the unknown keys told of.

    Raises:
        ConfigError: a value has another type.
    """
    place = Place(document.file, root)
    table = document.section(root)
    try:
        known = {key: readers[key](key, value) for key, value in table.items() if key in readers}
    except ValueError as error:
        raise ConfigError(place.mistake(error)) from error
    return known, tuple(place.unknown(key, readers) for key in table if key not in readers)


def accepted(document: Document, root: str, make: Callable[[], T]) -> T:
    """Return what is made of a table's values.

    Raises:
        ConfigError: one of them is out of its range.
    """
    try:
        return make()
    except ValueError as error:
        raise ConfigError(Place(document.file, root).mistake(error)) from error


A2A = "a2a"

_A2A_READERS: Mapping[str, Reader] = {
    "name": values.text,
    "description": values.text,
    "text_tool": values.text,
    "card": values.text,
    "keep": values.number,
    "keep_bytes": values.integer,
    "grpc_port": values.integer,
    "grpc_url": values.text,
}


def read_a2a(document: Document | None) -> tuple[A2aSettings, tuple[Finding, ...]]:
    """Return the agent's settings and what is odd in them.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return A2aSettings(), ()
    read, told = read_table(document, A2A, _A2A_READERS)
    return accepted(document, A2A, lambda: A2aSettings(**read)), told


TASKS = "tasks"

_TASKS_READERS: Mapping[str, Reader] = {"provide": values.flag, "after": values.number}


def read_tasks(document: Document | None) -> tuple[TaskSettings, tuple[Finding, ...]]:
    """Return the settings of tasks and what is odd in them.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return TaskSettings(), ()
    read, told = read_table(document, TASKS, _TASKS_READERS)
    return accepted(document, TASKS, lambda: TaskSettings(**read)), told


TARGETS = "targets"

_TARGETS_READERS: Mapping[str, Reader] = {
    "allow": values.texts,
    "open": values.flag,
    "headers": values.texts,
    "idle": values.number,
    "max": values.integer,
}


def read_targets(document: Document | None) -> tuple[TargetSettings, tuple[Finding, ...]]:
    """Return the settings and what is odd in them.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return TargetSettings(), ()
    read, told = read_table(document, TARGETS, _TARGETS_READERS)
    return accepted(document, TARGETS, lambda: TargetSettings(**read)), told


STORAGE = "storage"

_STORAGE_READERS: Mapping[str, Reader] = {"url": values.text}


def read_storage(
    document: Document | None, variables: Variables, schemes: Collection[str] = ()
) -> tuple[StorageSettings, tuple[Finding, ...]]:
    """Return the settings and what is odd in them; `schemes` are of addresses that extensions take.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return StorageSettings(), ()
    read, told = read_table(document, STORAGE, _STORAGE_READERS)
    return accepted(document, STORAGE, lambda: _storage(_lent_url(read.get("url"), variables), schemes)), told


def _storage(url: str | None, schemes: Collection[str]) -> StorageSettings:
    is_foreign = url is not None and url.partition(":")[0] in schemes
    return StorageSettings(url, is_foreign=is_foreign)


def _lent_url(url: str | None, variables: Variables) -> str | None:
    if url is None:
        return None
    borrowed = UsedVariables()
    lent = variables.secret("url", url, borrowed)
    if borrowed.unresolved:
        raise CodedError(
            UNRESOLVED_VARIABLE, f"url must have only variables that are set, not {borrowed.unresolved[0]}"
        )
    return lent


AUDIT = "audit"

_UNITS = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"([0-9]{1,6})([hdw])")


def _duration(key: str, value: object) -> float:
    """Seconds, as a number or as a text like `90d`."""
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip().lower())
        if found is None:
            raise ValueError(f"{key} must be a time like 36h, 90d or 52w, not {values.quoted(value)}")
        return int(found[1]) * _UNITS[found[2]]
    return values.number(key, value)


_AUDIT_READERS: Mapping[str, Reader] = {"keep": _duration}


def read_audit(document: Document | None) -> tuple[AuditSettings, tuple[Finding, ...]]:
    """Return the log's settings and what is odd in them.

    Raises:
        ConfigError: a value is not acceptable.
    """
    # Elsewhere an `audit` may be anything, and of anybody.
    if document is None or not document.dialect.is_own:
        return AuditSettings(), ()
    read, told = read_table(document, AUDIT, _AUDIT_READERS)
    return accepted(document, AUDIT, lambda: AuditSettings(**read)), told


_HUB_READERS: Mapping[str, Reader] = {
    "host": values.text,
    "port": values.integer,
    "public_url": values.text,
    "names": values.text,
    "audit": values.text,
    "pin": values.text,
    "open_programs": values.text,
    "state": values.text,
    "tools": values.texts,
    "log_level": values.text,
    "log_format": values.text,
    "hosts": values.texts,
    "origins": values.texts,
    "allowed_hosts": values.texts,
    "allowed_origins": values.texts,
}
_EARLIER = {"allowed_hosts": "hosts", "allowed_origins": "origins"}
"""What settings were called, and are."""
_LOG_READERS: Mapping[str, Reader] = {"file": values.text, "format": values.text, "level": values.text}
_LIMITS_READERS: Mapping[str, Reader] = {
    limit.name: values.integer if isinstance(limit.default, int) else values.number for limit in fields(Limits)
}


def read_hub(
    document: Document | None, home: Path, given: Mapping[str, object], call_seconds: float | None = None
) -> tuple[HubSettings, tuple[Finding, ...]]:
    """Return the hub's settings and what is odd in them; `given` by the command line wins over the file.

    `call_seconds` stands in where the file has no `limits.call_seconds`.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return _hub_settings({}, _limits({}, call_seconds), home, home, given), ()
    hub, told = read_table(document, "hub", _HUB_READERS)
    accepted(document, "hub", lambda: _rename(hub))
    # Elsewhere a `log` may be anything, and of anybody.
    log, told_of_log = read_table(document, "log", _LOG_READERS) if document.dialect.is_own else ({}, ())
    read, told_of_limits = read_table(document, "limits", _LIMITS_READERS)
    limits = accepted(document, "limits", lambda: _limits(read, call_seconds))
    accepted(document, "hub", lambda: HubSettings(**hub))
    accepted(document, "log", lambda: _check_log(log))
    hub.update({f"log_{key}": value for key, value in log.items()})
    return _hub_settings(hub, limits, document.file.parent, home, given), (*told, *told_of_log, *told_of_limits)


def _rename(hub: dict[str, Any]) -> None:
    """Take what has an earlier name under its present one."""
    for earlier, name in _EARLIER.items():
        if earlier in hub:
            if name in hub:
                raise ValueError(f"{earlier} must be left out where {name} is given, not be beside it")
            hub[name] = hub.pop(earlier)


def _limits(read: Mapping[str, Any], call_seconds: float | None) -> Limits:
    if "call_seconds" in read:
        return Limits(**read)
    if call_seconds is None:
        call_seconds = CALL_SECONDS
    limits = Limits(**{"call_seconds": 0.001, **read})  # so that only what the file has can be wrong here
    return replace(limits, call_seconds=min(call_seconds, limits.hard_seconds))


def _check_log(log: Mapping[str, Any]) -> None:
    try:
        HubSettings(**{f"log_{key}": value for key, value in log.items()})
    except ValueError as error:
        raise ValueError(str(error).removeprefix("log_")) from error


def _hub_settings(
    read: Mapping[str, Any], limits: Limits, folder: Path, home: Path, given: Mapping[str, Any]
) -> HubSettings:
    paths = {"state": str(resolve_path(read.get("state", HubSettings().state), folder, home))}
    if read.get("log_file"):
        paths["log_file"] = str(resolve_path(read["log_file"], folder, home))
    try:
        return HubSettings(**{**read, "limits": limits, **paths, **given})
    except ValueError as error:
        # The file's own values were accepted before, so it is an option that is wrong.
        raise ConfigError(Place(None).mistake(ValueError(f"--{error}"))) from error


RELAY = "relay"
AGENTS = "agents"

_RELAY_READERS: Mapping[str, Reader] = {
    "enabled": values.flag,
    "key": values.text,
    "compatible": values.flag,
    "compatible_agents": values.text,
    "revoked": values.texts,
    "aggregate": values.text,
    "wait": values.number,
    "timeout": values.number,
    "frame_bytes": values.integer,
    "grace": values.number,
    "forget": values.number,
    "max_servers": values.integer,
    "max_tools": values.integer,
    "max_agent_connections": values.integer,
    "max_connections": values.integer,
    AGENTS: values.table,
}
_AGENT_KEYS = ("name", "allow", "deny", "grace")
_NOTHING = AgentRules(deny=("*",))


def read_relay(document: Document | None, variables: Variables) -> tuple[RelayParts, tuple[Finding, ...]]:
    """Return the settings of the relay and what is odd in them.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return RelayParts(), ()
    read, told = read_table(document, RELAY, _RELAY_READERS)
    place = Place(document.file, RELAY)
    read[AGENTS], told_of_agents = _agents(read.get(AGENTS, {}), place.at(AGENTS))
    read["key"] = accepted(document, RELAY, lambda: _relay_key(read.get("key"), variables))
    return accepted(document, RELAY, lambda: _parts(read)), (*told, *told_of_agents)


def _parts(read: Mapping[str, Any]) -> RelayParts:
    return RelayParts(
        tokens=TokenSettings(**_of(read, TokenSettings)),
        dialin=DialInSettings(**_of(read, DialInSettings)),
        face=RelaySettings(**_of(read, RelaySettings)),
    )


def _of(read: Mapping[str, Any], kind: type[TokenSettings | DialInSettings | RelaySettings]) -> dict[str, Any]:
    return {item.name: read[item.name] for item in fields(kind) if item.name in read}


# -- the key ---------------------------------------------------------------------------------------------------------


def _relay_key(text: str | None, variables: Variables) -> str | None:
    if text is None:
        return None
    borrowed = UsedVariables()
    key = variables.secret("key", text, borrowed)
    if borrowed.unresolved:
        found = borrowed.unresolved[0]
        raise CodedError(codes.UNRESOLVED_VARIABLE, f"key must have only variables that are set, not {found}")
    TokenSettings(key)  # which refuses what cannot be a key at all
    try:
        check_length(key)
    except KeyTooShort as error:
        raise CodedError(codes.WEAK_KEY, str(error)) from None
    return key


# -- agents ----------------------------------------------------------------------------------------------------------


def _agents(entries: Mapping[str, object], place: Place) -> tuple[dict[str, AgentRules], list[Finding]]:
    agents: dict[str, AgentRules] = {}
    findings: list[Finding] = []
    for key, entry in entries.items():
        try:
            agents[key] = _rules(key, entry)
        except ValueError as error:
            if may_forbid := _may_forbid(entry):
                agents[key] = _NOTHING
            advice = "until then its devices see nothing" if may_forbid else "this entry is left out"
            findings.append(place.at(key).mistake(error, advice=advice, code=codes.BAD_AGENT))
    return agents, findings


def _rules(key: str, entry: object) -> AgentRules:
    _check_agent(key)
    if not isinstance(entry, dict):
        raise ValueError("must be a table, not another value")
    for word in entry:
        if word not in _AGENT_KEYS:
            raise ValueError(f"must have only {', '.join(_AGENT_KEYS)}, not {values.quoted(word)}")
    return AgentRules(_agent_name(entry), patterns("allow", entry), patterns("deny", entry), _grace(entry))


def _check_agent(key: str) -> None:
    """Raises: ValueError if no token can be of this agent, by its tenant and name or, in the usual one, by its name."""
    tenant, slash, agent = key.partition("/")
    try:
        check_name("agent", agent if slash else key)
        if slash:
            check_name("tenant", tenant)
    except ValueError as error:
        raise ValueError(f"must be under the name of an agent, not {values.quoted(key)}: {error}") from error


def _agent_name(entry: Mapping[str, object]) -> str | None:
    if entry.get("name") is None:
        return None
    try:
        return parse_server_name(values.text("name", entry["name"]))
    except ValueError as error:
        raise ValueError(f"name must {str(error).partition(' must ')[2]}") from error


def _grace(entry: Mapping[str, object]) -> float | None:
    if entry.get("grace") is None:
        return None
    return DialInSettings(grace=values.number("grace", entry["grace"])).grace


def _may_forbid(entry: object) -> bool:
    """Whether somebody may have written a `deny`, however misspelt; what is no table may have meant anything."""
    return not isinstance(entry, dict) or any(closest_match(word, _AGENT_KEYS) == "deny" for word in entry)
