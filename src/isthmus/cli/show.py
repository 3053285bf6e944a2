"""`isthmus config show`: the configuration as the hub sees it, and where each value was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias, assert_never

import msgspec

from isthmus.cli.check import finding_as_json
from isthmus.cli.exits import Exit
from isthmus.cli.output import aligned, harmless, say, write, write_json
from isthmus.cli.sources import configuration_of
from isthmus.config.extensions import GROUPS
from isthmus.config.extensions import ROOT as EXTENSIONS
from isthmus.config.findings import Place
from isthmus.config.lines import Keys, keys_of, lines_of
from isthmus.config.oauth import SECRET_KEYS
from isthmus.config.redaction import secrets_of
from isthmus.config.settings import Configuration, Origin, RelayParts
from isthmus.core.access.tenants import TenantSettings
from isthmus.core.catalog.rules import CACHE_SECONDS, Rules
from isthmus.identity.settings import IssuerSettings
from isthmus.model.callers import Caller
from isthmus.model.credentials import OAuthSettings, OwnCredentials, ServerCredentials
from isthmus.upstream.settings import (
    AgentSettings,
    HttpSettings,
    PythonSettings,
    RpcSettings,
    ServerSettings,
    SocketSettings,
    StdioSettings,
)

Pair: TypeAlias = tuple[str, object]

HIDDEN = "***"
_SHARED_LIMITS = {"timeout": "call_seconds", "max_calls": "max_calls", "max_queued": "max_queued"}
"""What a server has of its own, and the limit that it has otherwise."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One value."""

    path: str
    value: object
    origin: Origin | None
    """None for a default."""


def show_configuration(file: Path | None, *, with_origin: bool, is_json: bool) -> Exit:
    """Print every value.

    Raises:
        CommandFailed: the configuration cannot be used.
    """
    configuration = configuration_of(file)
    shown = list(values_of(configuration))
    lines = _Lines() if with_origin else None
    if is_json:
        write_json(_as_json(configuration, shown, lines))
    else:
        _show(configuration, shown, lines)
    return Exit.WELL


# -- values --------------------------------------------------------------------------------------------------


def values_of(configuration: Configuration) -> Iterator[Shown]:
    """Yield every value that the hub goes by, secrets hidden."""
    for path, value in _of_all(configuration):
        yield Shown(path, value, _origin(path, configuration.origins))


def _of_all(configuration: Configuration) -> Iterator[Pair]:
    hub = configuration.hub
    yield from ((f"hub.{name}", getattr(hub, name)) for name in _names(hub) if name != "limits")
    yield from ((f"limits.{name}", getattr(hub.limits, name)) for name in _names(hub.limits))
    yield from ((f"a2a.{name}", getattr(configuration.a2a, name)) for name in _names(configuration.a2a))
    yield from ((f"targets.{name}", getattr(configuration.targets, name)) for name in _names(configuration.targets))
    yield "storage.url", configuration.storage.shown
    # Without a key here, one is in the state folder.
    yield "credentials.key", HIDDEN if configuration.credentials.key else None
    yield "audit.keep", configuration.audit.keep
    for group in GROUPS:
        yield f"{EXTENSIONS}.{group}", [each.name for each in configuration.extensions.of(group)]
    yield from _of_relay(configuration.relay)
    for server in configuration.servers:
        place = Place(None, "servers").at(server.name)
        yield from ((place.at(key).path, value) for key, value in _of_server(server))
    for tenant, settings in configuration.tenants.known.items():
        place = Place(None, "tenants").at(tenant)
        yield from ((place.at(key).path, value) for key, value in _of_tenant(settings))
    for caller, digests in _keys_by_caller(configuration).items():
        place = Place(None, "callers").at(caller.name)
        expires_at = configuration.expiries.get(digests[0])
        yield from ((place.at(key).path, value) for key, value in _of_caller(caller, len(digests), expires_at))
    for issuer in configuration.issuers:
        place = Place(None, "issuers").at(issuer.name)
        yield from ((place.at(key).path, value) for key, value in _of_issuer(issuer))


def _of_relay(relay: RelayParts) -> Iterator[Pair]:
    # Without a key here, one is in the state folder, where `isthmus token` finds it too.
    yield "relay.key", None if relay.tokens.key is None else HIDDEN
    for part in (relay.tokens, relay.face, relay.dialin):
        names = (name for name in _names(part) if name not in ("key", "agents", "tenants"))
        yield from ((f"relay.{name}", getattr(part, name)) for name in names)
    for agent, rules in relay.face.agents.items():
        place = Place(None, "relay.agents").at(agent)
        yield from ((place.at(name).path, value) for name, value in msgspec.structs.asdict(rules).items())


def _names(settings: object) -> list[str]:
    return [field.name for field in fields(settings)]  # type: ignore[arg-type]


def _keys_by_caller(configuration: Configuration) -> dict[Caller, list[bytes]]:
    found: dict[Caller, list[bytes]] = {}
    for digest, caller in configuration.callers:
        found.setdefault(caller, []).append(digest)
    return found


def _of_caller(caller: Caller, keys: int, expires_at: float | None) -> Iterator[Pair]:
    yield "key", HIDDEN if keys == 1 else [HIDDEN] * keys
    yield "expires", None if expires_at is None else datetime.fromtimestamp(expires_at, UTC).isoformat()
    yield "tenant", caller.tenant
    yield "allow", caller.grants.allow
    yield "deny", caller.grants.deny
    yield "targets", caller.may_name_targets
    yield "operator", caller.is_operator
    yield "faces", {face: {"allow": list(held.allow), "deny": list(held.deny)} for face, held in caller.faces}


def _of_issuer(issuer: IssuerSettings) -> Iterator[Pair]:
    names = (name for name in _names(issuer) if name not in ("name", "grants", "scopes"))
    yield from ((name, getattr(issuer, name)) for name in names)
    yield "allow", issuer.grants.allow
    yield "deny", issuer.grants.deny
    yield "scopes", {scope: list(patterns) for scope, patterns in issuer.scopes.items()}


def _of_tenant(tenant: TenantSettings) -> Iterator[Pair]:
    if tenant.bounds is not None:
        yield "allow", tenant.bounds.allow
        yield "deny", tenant.bounds.deny
    yield "max_calls", tenant.max_calls


def _of_server(server: ServerSettings) -> Iterator[Pair]:
    for key, value in (*_of_reach(server), *_of_rest(server)):
        if value not in (None, (), {}, []):
            yield key, value


def _of_reach(server: ServerSettings) -> Iterator[Pair]:
    reach = server.reach
    match reach:
        case StdioSettings():
            yield "command", server.redact(reach.command)
            yield "args", [server.redact(argument) for argument in reach.args]
            yield "env", _hidden("env", reach.env, server)
            yield "cwd", reach.cwd
            limits = ((name, getattr(reach.limits, name)) for name in _names(reach.limits))
            yield "limits", {name.removesuffix("_bytes"): value for name, value in limits if value is not None}
            yield "sha256", dict(reach.sha256)
        case HttpSettings():
            yield "url", server.redact(reach.url)
            yield "type", reach.carrier
            yield "headers", _hidden("headers", reach.headers, server)
            yield "user_headers", list(reach.user_headers)
        case SocketSettings():
            yield "url", server.redact(reach.url)
            yield "type", "ws"
            yield "headers", _hidden("headers", reach.headers, server)
        case RpcSettings():
            yield "rpc", server.redact(reach.url)
            yield "headers", _hidden("headers", reach.headers, server)
            yield "user_headers", list(reach.user_headers)
            yield "tools", [tool.name for tool in reach.tools]
        case AgentSettings():
            yield "agent", server.redact(reach.url)
            yield "headers", _hidden("headers", reach.headers, server)
            yield "origins", list(reach.origins)
        case PythonSettings():
            yield "python", reach.target
            yield "path", reach.path
        case _:
            assert_never(reach)


def _hidden(key: str, table: Mapping[str, str], server: ServerSettings) -> dict[str, str]:
    """Return a table of texts; one that is a secret is hidden however short it is."""
    named = secrets_of({key: dict(table)})
    return {
        name: HIDDEN if text in server.secrets or text in named else server.redact(text) for name, text in table.items()
    }


def _of_rest(server: ServerSettings) -> Iterator[Pair]:
    yield "era", server.reach.era
    yield "timeout", server.timeout
    yield "max_calls", server.max_calls
    yield "max_queued", server.max_queued
    yield "disabled", server.disabled
    yield "isolation", server.isolation
    yield from _of_credentials(server.credentials)
    if server.pin is not None:
        yield "pin", server.pin
    if server.ca:
        yield "ca", f"{server.ca.count('BEGIN CERTIFICATE')} certificate(s)"
    yield from _of_rules(server.rules)
    # Only the names: nobody here knows what is secret in what nobody here reads.
    yield "extra", sorted(server.extra)


def _of_credentials(credentials: ServerCredentials) -> Iterator[Pair]:
    if credentials.oauth is not None:
        yield "oauth", _of_oauth(credentials.oauth)
    yield "callers", {f"{whose.tenant}/{whose.name}": _of_own(own) for whose, own in credentials.own.items()}
    if credentials.are_demanded:
        yield "credentials", "caller"


def _of_own(own: OwnCredentials) -> dict[str, object]:
    shown: dict[str, object] = {"headers": dict.fromkeys(own.headers, HIDDEN)} if own.headers else {}
    return shown if own.oauth is None else {**shown, "oauth": _of_oauth(own.oauth)}


def _of_oauth(oauth: OAuthSettings) -> dict[str, object]:
    """What of a login is not as usual; what is secret in it is hidden."""
    usual = OAuthSettings()
    told = {name: getattr(oauth, name) for name in _names(oauth) if getattr(oauth, name) != getattr(usual, name)}
    hidden: dict[str, object] = {name: HIDDEN for name in SECRET_KEYS if name in told}
    return {"grant": oauth.grant, **told, **hidden}


def _of_rules(rules: Rules) -> Iterator[Pair]:
    if rules.only is not None:
        yield "include_tools", list(rules.only) or ["(none)"]
    yield "exclude_tools", rules.hidden
    yield "defaults", {tool: sorted(arguments) for tool, arguments in rules.defaults.items()}
    if rules.cached or rules.cache_seconds != CACHE_SECONDS:
        yield "cache", {"tools": list(rules.cached), "ttl": rules.cache_seconds}
    if rules.is_trusted:
        yield "trusted", True
    yield "tags", {name: list(tags) for name, tags in rules.tags.items()}


# -- origins -------------------------------------------------------------------------------------------------


def _origin(path: str, origins: Mapping[str, Origin]) -> Origin | None:
    if path in origins:
        return origins[path]
    server, _, key = path.rpartition(".")
    if not path.startswith("servers."):
        return None
    if key == "extra":
        return origins.get(server)
    aliases = {"disabled": ("enabled",), "type": ("transport", "transportType"), "rpc": ("url",), "env": ("env_file",)}
    known = (f"{server}.{alias}" for alias in aliases.get(key, ()))
    limit = f"limits.{_SHARED_LIMITS[key]}" if key in _SHARED_LIMITS else ""
    return next((origins[other] for other in (*known, limit) if other in origins), None)


class _Lines:
    """The lines of the files that values come from, each file looked at once."""

    def __init__(self) -> None:
        self._files: dict[Path, dict[Keys, int]] = {}

    def of(self, origin: Origin) -> int | None:
        """Return the line of a value, None if it cannot be told."""
        if origin.file is None:
            return None
        if origin.file not in self._files:
            self._files[origin.file] = lines_of(origin.file)
        return self._files[origin.file].get(keys_of(origin.path))

    def told(self, origin: Origin | None) -> str:
        """Say where a value was written."""
        if origin is None:
            return "default"
        if origin.file is None:
            return origin.path if origin.path.startswith("--") else f"variable {origin.path}"
        line = self.of(origin)
        where = f"{origin.file}:{line}" if line is not None else f"{origin.file}"
        borrowed = f", with {', '.join(origin.borrowed)}" if origin.borrowed else ""
        return f"{where} {origin.path}{borrowed}"


# -- showing -------------------------------------------------------------------------------------------------


def _as_json(configuration: Configuration, shown: Sequence[Shown], lines: _Lines | None) -> bytes:
    return msgspec.json.encode(
        {
            "file": None if configuration.file is None else str(configuration.file),
            "files": [str(file) for file in configuration.files if file.exists()],
            "values": [_value_as_json(value, lines) for value in shown],
            "findings": [finding_as_json(finding, "warning") for finding in configuration.warnings],
        }
    )


def _value_as_json(shown: Shown, lines: _Lines | None) -> dict[str, object]:
    told: dict[str, object] = {"path": shown.path, "value": shown.value}
    return told if lines is None else {**told, "origin": _origin_as_json(shown.origin, lines)}


def _origin_as_json(origin: Origin | None, lines: _Lines) -> dict[str, object] | None:
    if origin is None:
        return None
    file = None if origin.file is None else str(origin.file)
    return {"file": file, "line": lines.of(origin), "path": origin.path, "borrowed": list(origin.borrowed)}


def _show(configuration: Configuration, shown: Sequence[Shown], lines: _Lines | None) -> None:
    rows = [(value.path, *_cells(value, lines)) for value in shown]
    write("\n".join(aligned([tuple(harmless(cell, keep="") for cell in row) for row in rows])))
    if configuration.file is None:
        say("No configuration file was found: these are the defaults.")
    if configuration.warnings:
        count = len(configuration.warnings)
        say(f"{count} finding{'' if count == 1 else 's'}: `isthmus config check` says more.")


def _cells(shown: Shown, lines: _Lines | None) -> tuple[str, ...]:
    value = msgspec.json.encode(shown.value).decode()
    return (value,) if lines is None else (value, lines.told(shown.origin))
