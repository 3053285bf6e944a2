"""The server entries of a file, as `mcp.json` and `isthmus.toml` write them, into `ServerSettings`.

How an entry names its transport, borrows its values and is switched off is known here; whether the values
make sense is checked by `upstream.settings`; nothing is started or dialled. A broken entry becomes a finding
and costs only itself. Called by `config.load`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, assert_never, cast, get_args

from isthmus.config import redaction, values
from isthmus.config.files import Document, located
from isthmus.config.findings import Finding, Place
from isthmus.config.variables import Borrowed, Variables
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName, parse_server_name
from isthmus.upstream.settings import TIMEOUT_SECONDS_MAX, Era, HttpSettings, ServerSettings, StdioSettings

Transport = Literal["stdio", "http"]

ROOTS = ("mcpServers", "servers")
"""Under which keys of a file servers are found."""

RESERVED = frozenset({"builtin"})
"""Names that the hub's own tools live under."""

_TRANSPORT_KEYS = ("type", "transport", "transportType")
_TRANSPORTS: Mapping[str, Transport] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamablehttp": "http",  # also streamableHttp: words are compared in lower case
}
_LATER = frozenset({"sse", "ws", "websocket", "rpc"})
_STDIO_KEYS = frozenset({"command", "args", "env", "cwd"})
_HTTP_KEYS = frozenset({"url", "headers"})
_SHARED_KEYS = frozenset({"era", "timeout", "max_calls", "max_queued", "disabled", "enabled", *_TRANSPORT_KEYS})
_KEYS = _STDIO_KEYS | _HTTP_KEYS | _SHARED_KEYS


@dataclass(frozen=True, slots=True)
class Reading:
    """What it takes to read entries: the file they are in and what surrounds it."""

    document: Document
    variables: Variables
    home: Path
    limits: Limits


@dataclass(slots=True)
class _Entry:
    """One entry while it is read."""

    reading: Reading
    place: Place
    fields: dict[str, object] = field(default_factory=dict)
    borrowed: Borrowed = field(default_factory=Borrowed)
    findings: list[Finding] = field(default_factory=list)


def read_servers(reading: Reading) -> tuple[tuple[ServerSettings, ...], tuple[Finding, ...]]:
    """Return the servers of a file and what was wrong with the others.

    Raises:
        ConfigError: the place where entries should be holds something else.
    """
    servers: dict[ServerName, ServerSettings] = {}
    findings: list[Finding] = []
    for root in ROOTS:
        place = Place(reading.document.file, root)
        for name, fields in reading.document.section(root).items():
            if name in servers:
                findings.append(place.at(name).finding(f"is already under {ROOTS[0]} and is left out"))
                continue
            server, told = read_server(name, fields, place.at(name), reading)
            findings += told
            if server is not None:
                servers[server.name] = server
    findings += _look_alikes(reading.document.file, list(servers))
    return tuple(servers.values()), tuple(findings)


def _look_alikes(file: Path, names: list[ServerName]) -> list[Finding]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.lower().replace("-", "_"), []).append(name)
    return [
        Place(file, "servers").finding(f"has names that differ only by case or by - and _: {', '.join(group)}")
        for group in groups.values()
        if len(group) > 1
    ]


def read_server(
    name: str, fields: object, place: Place, reading: Reading
) -> tuple[ServerSettings | None, list[Finding]]:
    """Return one entry's settings, or None if it is broken, and what there is to say about it."""
    entry = _Entry(reading, place)
    server: ServerSettings | None = None
    try:
        entry.fields = {key: value for key, value in _table(fields).items() if value is not None}
        server = _settings(_name(name), entry)
    except ValueError as error:
        entry.findings.append(place.mistake(error))
    secrets = redaction.secrets_of(entry.fields) | entry.borrowed.secrets
    if server is not None:
        server = replace(server, secrets=frozenset(secrets))
    return server, [redaction.without(secrets, finding) for finding in entry.findings]


def _table(fields: object) -> dict[str, object]:
    if not isinstance(fields, dict):
        raise ValueError(f"must be a table, not {values.shown(fields)}")
    return fields


def _name(text: str) -> ServerName:
    if text in RESERVED:
        raise ValueError(f"must have another name, not {text!r}, which the hub's own tools live under")
    try:
        return parse_server_name(text)
    except ValueError:
        better = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:50] or "server"
        raise ValueError(
            "must have a name of 1 to 50 letters, digits, _ and -, "
            f"not {values.shown(text)}: rename it, for instance to {better}"
        ) from None


def _settings(name: ServerName, entry: _Entry) -> ServerSettings:
    _tell_of_unknown_keys(entry)
    entry.fields = {key: _expanded(key, value, entry) for key, value in entry.fields.items()}
    limits, fields = entry.reading.limits, entry.fields
    return ServerSettings(
        name=name,
        reach=_reach(entry),
        timeout=_timeout(entry),
        max_calls=values.integer("max_calls", fields.get("max_calls", limits.max_calls)),
        max_queued=values.integer("max_queued", fields.get("max_queued", limits.max_queued)),
        disabled=_is_disabled(fields),
        extra={key: value for key, value in fields.items() if key not in _KEYS},
    )


def _tell_of_unknown_keys(entry: _Entry) -> None:
    # In a file that other programs read too, an unknown key is theirs.
    if not entry.reading.document.is_own:
        return
    entry.findings += [entry.place.unknown(key, sorted(_KEYS)) for key in entry.fields if key not in _KEYS]


def _expanded(key: str, value: object, entry: _Entry) -> object:
    """Return a value with its variables replaced, in lists and tables too; what is not ours stays."""
    if key not in _KEYS:
        return value
    match value:
        case str():
            return _borrowed(key, (), value, entry)
        case list():
            return [_borrowed(key, (position,), item, entry) for position, item in enumerate(value)]
        case dict():
            return {name: _borrowed(key, (name,), item, entry) for name, item in value.items()}
        case _:
            return value


def _borrowed(key: str, below: tuple[str | int, ...], value: object, entry: _Entry) -> object:
    if not isinstance(value, str):
        return value
    variables, borrowed = entry.reading.variables, entry.borrowed
    # In other programs' files `file:` in a variable is a database's address, and they mean it literally.
    if key == "headers" or (key == "env" and entry.reading.document.is_own):
        text = variables.secret(".".join(map(str, (key, *below))), value, borrowed)
    else:
        text = variables.expand(value, borrowed)
    for placeholder in borrowed.unresolved:
        told = f"has {values.shown(placeholder)}, which is not set; it stays as it is"
        entry.findings.append(entry.place.at(key, *below).finding(told))
    borrowed.unresolved.clear()
    return text if text == value else values.Lent(text)


def _reach(entry: _Entry) -> StdioSettings | HttpSettings:
    match _transport(entry.fields):
        case "stdio":
            _tell_of_idle_keys(entry, _HTTP_KEYS, "command")
            return _stdio(entry)
        case "http":
            _tell_of_idle_keys(entry, _STDIO_KEYS, "url")
            return _http(entry.fields)
        case other:
            assert_never(other)


def _transport(fields: Mapping[str, object]) -> Transport:
    """Tell the transport from what an entry has, and refuse a word for it that says otherwise."""
    words = {key: _transport_word(key, fields[key]) for key in _TRANSPORT_KEYS if key in fields}
    # An empty text is how some programs write that there is none.
    given = [key for key in ("command", "url") if fields.get(key, "") != ""]
    if len(given) != 1:
        unsupported = "rpc, which is not supported yet" if "rpc" in fields else "neither"
        raise ValueError(f"must have a command or a url, not {'both' if given else unsupported}")
    transport: Transport = "stdio" if given == ["command"] else "http"
    for key, said in words.items():
        if said != transport:
            raise ValueError(f"{key} must be {transport} beside {given[0]}, not {values.shown(fields[key])}")
    return transport


def _transport_word(key: str, value: object) -> Transport:
    word = values.text(key, value).strip().lower()
    if word in _LATER:
        raise ValueError(f"{key} must be stdio or http, not {word}, which is not supported yet")
    if word not in _TRANSPORTS:
        raise ValueError(f"{key} must be stdio or http, not {values.shown(value)}")
    return _TRANSPORTS[word]


def _tell_of_idle_keys(entry: _Entry, idle: frozenset[str], beside: str) -> None:
    if entry.reading.document.is_own:
        for key in sorted(entry.fields.keys() & idle):
            entry.findings.append(entry.place.at(key).finding(f"has no effect beside {beside}"))


def _stdio(entry: _Entry) -> StdioSettings:
    fields, home = entry.fields, entry.reading.home
    command = values.text("command", fields["command"])
    cwd = values.text("cwd", fields.get("cwd", ""))
    return StdioSettings(
        command=str(located(command, home, home)) if command.startswith("~/") else command,
        args=values.words("args", fields.get("args", [])),
        env=values.table_of_words("env", fields.get("env", {})),
        cwd=str(located(cwd, entry.reading.document.file.parent, home)) if cwd else None,
        era=_era(fields),
    )


def _http(fields: Mapping[str, object]) -> HttpSettings:
    return HttpSettings(
        url=values.text("url", fields["url"]),
        headers=values.table_of_words("headers", fields.get("headers", {})),
        era=_era(fields),
    )


def _era(fields: Mapping[str, object]) -> Era:
    era = fields.get("era", "auto")
    if era not in get_args(Era):
        raise ValueError(f"era must be one of {', '.join(get_args(Era))}, not {values.shown(era)}")
    return cast(Era, era)


def _timeout(entry: _Entry) -> float:
    limits = entry.reading.limits
    seconds = values.number("timeout", entry.fields.get("timeout", limits.call_seconds))
    if seconds > TIMEOUT_SECONDS_MAX and not entry.reading.document.is_own:
        # Half of the programs that share this format count in milliseconds; nobody waits 1000 s for a tool.
        seconds /= 1000
        told = f"is taken for milliseconds, {seconds:g} seconds"
        entry.findings.append(entry.place.at("timeout").finding(told, advice="over 600 it cannot be seconds"))
    if limits.hard_seconds < seconds <= TIMEOUT_SECONDS_MAX:
        raise ValueError(f"timeout must be at most limits.hard_seconds ({limits.hard_seconds:g}), not {seconds:g}")
    return seconds


def _is_disabled(fields: Mapping[str, object]) -> bool:
    is_disabled = values.flag("disabled", fields.get("disabled", False))
    is_enabled = values.flag("enabled", fields.get("enabled", True))
    return is_disabled or not is_enabled
