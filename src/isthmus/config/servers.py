"""The server entries of files, in our own words already, into `ServerSettings`.

Which name a server goes by, what its variables hold and how it is switched off is known here; how it is
reached in `config.servers`; whether the values make sense is checked by `upstream.settings`; nothing is
started or dialled. A broken entry becomes a finding and costs only itself. Called by `config.load`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any, Literal, assert_never, cast, get_args
from urllib.parse import urlsplit

from isthmus.config import codes, redaction, values
from isthmus.config.dialects.syntax import INPUT_PREFIX
from isthmus.config.entries import (
    AGENT_KEYS,
    EXTRA,
    LOGIN_KEYS,
    PYTHON_KEYS,
    REACH_KEYS,
    RPC_KEYS,
    STDIO_KEYS,
    TRANSPORT_KEYS,
    URL_KEYS,
    Entry,
)
from isthmus.config.files import Document, read_regular_file, resolve_path, resolve_program
from isthmus.config.findings import CodedError, Finding, Place
from isthmus.config.tables import Reader, accepted, read_table
from isthmus.config.variables import UsedVariables, Variables, read_env
from isthmus.core.access.policy import check_tag
from isthmus.core.catalog.pins import PINNINGS, Pinning
from isthmus.core.catalog.rules import CACHE_SECONDS, EVERY, NO_TOOL_RULES, ToolRules
from isthmus.core.settings import Limits
from isthmus.credentials.client_assertion import check_private_key
from isthmus.credentials.vault import VaultSettings
from isthmus.model.credentials import OAuthSettings, OwnCredentials, ServerCredentials, Subject, subject_of
from isthmus.model.names import ServerName, legal_server_name, server_name_with_digits
from isthmus.transport.process_limits import ProcessLimits
from isthmus.transport.tls import tls_settings
from isthmus.upstream.settings import (
    PIN_ARGV,
    PIN_PROGRAM,
    TIMEOUT_SECONDS_MAX,
    AgentSettings,
    Carrier,
    DeclaredTool,
    Era,
    HttpSettings,
    Isolation,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
    check_headers,
)

CREDENTIALS = "credentials"
CREDENTIAL_KEYS = frozenset({"oauth", "callers", "credentials"})
"""The keys of a server's entry that are read here."""

SECRET_KEYS = frozenset({"client_secret", "private_key", "identity_token", "idp_client_secret"})
"""What may be `env:NAME`, `file:PATH` or `keyring:NAME` in a login."""

_CREDENTIALS_READERS: Mapping[str, Reader] = {"key": values.text, "old_keys": values.texts}
_OWN_KEYS = ("headers", "oauth")
_WHOSE = ("any", "caller")


def credentials_of(fields: Mapping[str, object]) -> ServerCredentials:
    """Return what an entry says, variables replaced.

    Raises:
        ValueError: in the words "<key> must …".
    """
    if not fields.keys() & CREDENTIAL_KEYS:
        return ServerCredentials()
    whose = fields.get("credentials", "any")
    if whose not in _WHOSE:
        raise ValueError(f"credentials must be one of {', '.join(_WHOSE)}, not {values.quoted(whose)}")
    callers = values.table("callers", fields.get("callers", {}))
    return ServerCredentials(
        oauth=_oauth("oauth", fields["oauth"]) if "oauth" in fields else None,
        own={_subject(name): _own(f"callers.{name}", entry) for name, entry in callers.items()},
        are_demanded=whose == "caller",
    )


def is_secret_at(key: str, below: tuple[str | int, ...]) -> bool:
    """Whether a text of an entry may refer to a secret."""
    if key == "oauth":
        return below[-1:] != () and below[-1] in SECRET_KEYS
    return key == "callers" and (below[1:2] == ("headers",) or (below[1:2] == ("oauth",) and below[-1] in SECRET_KEYS))


def _subject(name: str) -> Subject:
    subject = subject_of(name)
    if not subject.tenant.strip() or not subject.name.strip():
        raise ValueError(f"callers must be named NAME or TENANT/NAME, not {values.quoted(name)}")
    return subject


def _own(place: str, entry: object) -> OwnCredentials:
    table = values.table(place, entry)
    for key in table:
        if key not in _OWN_KEYS:
            raise ValueError(f"{place} must have only {' and '.join(_OWN_KEYS)}, not {values.quoted(key)}")
    headers = values.table_of_words(f"{place}.headers", table.get("headers", {}))
    try:
        check_headers(headers)
    except ValueError as error:
        raise ValueError(f"{place}.{error}") from error
    return OwnCredentials(headers, _oauth(f"{place}.oauth", table["oauth"]) if "oauth" in table else None)


def _oauth(place: str, entry: object) -> OAuthSettings:
    table = values.table(place, entry)
    known = {field.name: field for field in fields_of(OAuthSettings)}
    for key in table:
        if key not in known:
            raise ValueError(f"{place} must have only {', '.join(sorted(known))}, not {values.quoted(key)}")
    read: dict[str, Any] = {key: _oauth_value(f"{place}.{key}", key, value) for key, value in table.items()}
    try:
        settings = OAuthSettings(**read)
        if settings.private_key:
            check_private_key(settings.private_key)
    except ValueError as error:
        raise ValueError(f"{place}.{error}") from error
    return settings


def _oauth_value(place: str, key: str, value: object) -> object:
    match key:
        case "origins":
            return values.texts(place, value)
        case "redirect_port":
            return values.integer(place, value)
        case "scope" if isinstance(value, list):
            return " ".join(values.texts(place, value))
        case _ if key in SECRET_KEYS and not isinstance(value, str):
            raise ValueError(f"{place} must be a text, not another value")
        case _:
            return values.text(place, value)


def read_credentials(document: Document | None, variables: Variables) -> tuple[VaultSettings, tuple[Finding, ...]]:
    """Return with what logins are sealed, and what is odd about it.

    Raises:
        ConfigError: a value is not acceptable.
    """
    if document is None or not document.dialect.has_hub:
        return VaultSettings(), ()
    read, told = read_table(document, CREDENTIALS, _CREDENTIALS_READERS)
    return accepted(document, CREDENTIALS, lambda: _vault(read, variables)), told


def _vault(read: Mapping[str, Any], variables: Variables) -> VaultSettings:
    key = _lent_key("key", read.get("key", ""), variables)
    old = tuple(_lent_key(f"old_keys.{i}", text, variables) for i, text in enumerate(read.get("old_keys", ())))
    return VaultSettings(key, old)


def _lent_key(key: str, text: str, variables: Variables) -> str:
    borrowed = UsedVariables()
    lent = variables.secret(key, text, borrowed)
    if borrowed.unresolved:
        found = borrowed.unresolved[0]
        raise CodedError(codes.UNRESOLVED_VARIABLE, f"{key} must have only variables that are set, not {found}")
    return lent


CACHE_KEYS = ("tools", "ttl")
_TOOL_KEYS = ("description", "input_schema", "inputSchema")


def rules_of(fields: Mapping[str, object], entry: Entry, findings: list[Finding]) -> ToolRules:
    """Return the rules of one server.

    Raises:
        ValueError: one of them makes no sense, in the words "<key> must …".
    """
    if not fields.keys() & {"include_tools", "exclude_tools", "defaults", "cache", "trusted", "tags"}:
        return NO_TOOL_RULES
    cache = values.table("cache", fields.get("cache", {}))
    findings += [entry.at("cache").unknown(key, CACHE_KEYS) for key in cache if key not in CACHE_KEYS]
    return ToolRules(
        only=_texts("include_tools", fields) if "include_tools" in fields else None,
        hidden=_texts("exclude_tools", fields),
        defaults=_defaults(fields),
        cached=values.texts("cache.tools", cache.get("tools", [])),
        cache_seconds=values.number("cache.ttl", cache.get("ttl", CACHE_SECONDS)),
        is_trusted=values.flag("trusted", fields.get("trusted", False)),
        tags=_tags(fields.get("tags", [])),
    )


def _texts(key: str, fields: Mapping[str, object]) -> tuple[str, ...]:
    return values.texts(key, fields.get(key, []))


def _defaults(fields: Mapping[str, object]) -> dict[str, Mapping[str, Any]]:
    by_tool = values.table("defaults", fields.get("defaults", {}))
    return {tool: _json_table(f"defaults.{tool}", arguments) for tool, arguments in by_tool.items()}


def _tags(value: object) -> dict[str, tuple[str, ...]]:
    """Tags of everything, or by tool, prompt or resource; all that a table says of `*` is everything's."""
    by_name = value if isinstance(value, dict) else {EVERY: value}
    tags = {name: values.texts("tags" if by_name is not value else f"tags.{name}", of) for name, of in by_name.items()}
    for tag in (tag for of in tags.values() for tag in of):
        try:
            check_tag(tag)
        except ValueError:
            raise ValueError(f"tags must have only printable texts, not {values.quoted(tag)}") from None
    return {name: of for name, of in tags.items() if of}


def _json_table(key: str, value: object) -> dict[str, Any]:
    """Return a table that can travel in a message: TOML and YAML have values that JSON has not."""
    table = values.table(key, value)
    try:
        made: dict[str, Any] = json.loads(json.dumps(table, allow_nan=False))
    except (TypeError, ValueError):
        raise ValueError(f"{key} must have only values that JSON has, not dates or infinite numbers") from None
    return made


def declared_tools(fields: Mapping[str, object], entry: Entry, findings: list[Finding]) -> tuple[DeclaredTool, ...]:
    """Return the tools that an entry describes because its server cannot.

    Raises:
        ValueError: one of them makes no sense, in the words "<key> must …".
    """
    tools = values.table("tools", fields.get("tools", {}))
    return tuple(_declared(name, tool, entry, findings) for name, tool in tools.items())


def _declared(name: str, value: object, entry: Entry, findings: list[Finding]) -> DeclaredTool:
    key = f"tools.{name}"
    tool = values.table(key, value)
    findings += [entry.at("tools", name).unknown(part, _TOOL_KEYS) for part in tool if part not in _TOOL_KEYS]
    spelling = "inputSchema" if "inputSchema" in tool else "input_schema"
    return DeclaredTool(
        name=name,
        description=values.text(f"{key}.description", tool.get("description", "")),
        input_schema=_json_table(f"{key}.{spelling}", tool.get(spelling, {"type": "object"})),
    )


RESERVED = frozenset({"builtin"})
"""Names that the hub's own tools live under."""

CA_BYTES_MAX = 1024 * 1024
"""Of a file of certificates; a system's whole collection is a quarter of it."""

UNSAID_SECONDS_MAX = 600.0
"""A timeout beyond this, in a format that does not say its unit, is taken for milliseconds."""

_LITERAL = frozenset({"tools", "cache", EXTRA})
"""Keys in which a placeholder is text like any other: a schema may well hold one."""


@dataclass(frozen=True, slots=True)
class EntryContext:
    """What it takes to read entries: what surrounds the file they are in."""

    variables: Variables
    folder: Path
    """Where relative paths begin."""
    home: Path
    limits: Limits


@dataclass(slots=True)
class LoadedServers:
    """The servers that were found, in order, each under a name of its own."""

    servers: dict[ServerName, ServerSettings] = field(default_factory=dict)
    entries: dict[ServerName, Entry] = field(default_factory=dict)
    """Where each of them comes from."""
    findings: list[Finding] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    """Files that entries themselves name, such as one with variables."""
    called: dict[str, ServerName] = field(default_factory=dict)
    """By the name that a file has: the one that the server goes by."""
    unresolved: dict[ServerName, tuple[str, ...]] = field(default_factory=dict)
    """Placeholders that stayed literal, by the server that has them."""

    def add(self, entries: Iterable[Entry], reading: EntryContext) -> None:
        """Read entries; whoever came first keeps its name."""
        entries = list(entries)
        names = server_names((entry.name for entry in entries), taken=self.entries)
        for entry in entries:
            if entry.name in self.called:
                self._tell_of_another(entry)
                continue
            name = names[entry.name]
            self.findings += _told_of_name(entry, name)
            server, told = self._read(name, entry, reading)
            self.findings += told
            self.entries[name] = entry
            self.called[entry.name] = name
            if server is not None:
                self.servers[name] = server

    def _tell_of_another(self, entry: Entry) -> None:
        first = self.entries[self.called[entry.name]]
        if (first.fields, first.extra) == (entry.fields, entry.extra):
            return  # the same server written down twice, as people do who use several clients
        if first.place.file == entry.place.file:
            root = first.place.path.partition(".")[0]
            told = f"is already under {root} and is left out"
        elif first.dialect.is_own:
            return  # what our own file says is meant to win
        else:
            told = f"is already in {first.place.file} and is left out"
        self.findings.append(entry.place.finding(told, code=codes.TAKEN_NAME))

    def _read(self, name: ServerName, entry: Entry, reading: EntryContext) -> tuple[ServerSettings | None, list[Finding]]:
        draft = _Draft(reading, entry)
        server = _read(name, draft)
        self.files += draft.files
        if draft.unresolved:
            self.unresolved[name] = tuple(draft.unresolved)
        secrets = redaction.secrets_of(draft.fields) | redaction.with_parts(draft.borrowed.secrets)
        if server is not None:
            server = replace(server, secrets=frozenset(secrets))
        return server, [redaction.without(secrets, finding) for finding in (*entry.findings, *draft.findings)]


@dataclass(slots=True)
class _Draft:
    """One entry while it is read."""

    reading: EntryContext
    entry: Entry
    fields: dict[str, object] = field(default_factory=dict)
    borrowed: UsedVariables = field(default_factory=UsedVariables)
    findings: list[Finding] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)

    def env_of(self, file: Path) -> Mapping[str, str]:
        """Return the variables in a file; all of them may be secret."""
        found, told = read_env(file, self.entry.at("env_file"))
        self.files.append(file)
        self.findings += told
        self.borrowed.secrets.update(value for value in found.values() if value)
        return found


def read_server(entry: Entry, reading: EntryContext) -> tuple[ServerSettings | None, list[Finding]]:
    """Return one entry's settings, or None if it is broken, and what there is to say about it."""
    roster = LoadedServers()
    roster.add([entry], reading)
    return next(iter(roster.servers.values()), None), roster.findings


def look_alikes(roster: LoadedServers) -> list[Finding]:
    """Tell of names that a person or a language model would mistake for each other."""
    groups: dict[str, list[ServerName]] = {}
    for name in roster.servers:
        groups.setdefault(name.lower().replace("-", "_"), []).append(name)
    said = "has names that differ only by case or by - and _: "
    return [
        Place(roster.entries[group[0]].place.file, "servers").finding(said + ", ".join(group), code=codes.LOOK_ALIKES)
        for group in groups.values()
        if len(group) > 1
    ]


# -- names ---------------------------------------------------------------------------------------------------


def server_names(wanted: Iterable[str], taken: Collection[str] = ()) -> dict[str, ServerName]:
    """Return what servers are called, by their own names; those that cannot be used are made legal.

    The order of the servers does not matter: a name that two of them would be given is neither's.
    """
    texts = set(wanted)
    made = Counter(map(legal_server_name, texts))
    barred = {*taken, *texts, *RESERVED, *(name for name, times in made.items() if times > 1)}
    return {text: ServerName(text) if _is_legal(text) else _renamed(text, barred) for text in texts}


def _is_legal(text: str) -> bool:
    return text not in RESERVED and legal_server_name(text) == text


def _renamed(text: str, barred: Collection[str]) -> ServerName:
    name = legal_server_name(text)
    while name in barred:
        name, text = server_name_with_digits(text), f"{text} "
    return name


def _told_of_name(entry: Entry, name: ServerName) -> list[Finding]:
    if name == entry.name:
        return []
    why = "is what the hub's own tools live under" if entry.name in RESERVED else "cannot be a server's name"
    said = f"{why}, so the server is called {name}"
    advice = "use 1 to 50 letters, digits, _ and -"
    return [entry.place.finding(said, advice="" if entry.name in RESERVED else advice, code=codes.RENAMED)]


# -- one entry -----------------------------------------------------------------------------------------------


def _read(name: ServerName, draft: _Draft) -> ServerSettings | None:
    if not draft.entry.is_table:
        return None
    draft.fields = dict(draft.entry.fields)  # what is secret in them is so even if they cannot be read
    try:
        draft.fields = {key: _expanded(key, value, draft) for key, value in draft.fields.items()}
        return _settings(name, draft)
    except ValueError as error:
        draft.findings.append(_mistake(error, draft.entry))
        return None


def _mistake(error: ValueError, entry: Entry) -> Finding:
    """Name what the author wrote, whatever we call it."""
    found = entry.place.mistake(error)
    key, dot, below = str(error).partition(" must ")[0].partition(".")
    spelt = entry.spelt.get(key)
    return replace(found, path=f"{entry.place.at(*spelt).path}{dot}{below}") if spelt is not None else found


def _settings(name: ServerName, draft: _Draft) -> ServerSettings:
    fields, limits, entry = draft.fields, draft.reading.limits, draft.entry
    how = Filled(entry, fields, draft.findings, draft.reading.folder, draft.reading.home, draft.env_of)
    return ServerSettings(
        name=name,
        reach=reach_of(how),
        timeout=_timeout(draft),
        max_calls=values.integer("max_calls", fields.get("max_calls", limits.max_calls)),
        max_queued=values.integer("max_queued", fields.get("max_queued", limits.max_queued)),
        disabled=_is_disabled(fields),
        isolation=_isolation(fields),
        credentials=credentials_of(fields),
        pin=_pin(fields),
        ca=_authority(draft),
        rules=rules_of(fields, entry, draft.findings),
        extra=entry.extra,
    )


def _isolation(fields: Mapping[str, object]) -> Isolation:
    word = fields.get("isolation", "shared")
    if word not in get_args(Isolation):
        raise ValueError(f"isolation must be one of {', '.join(get_args(Isolation))}, not {values.quoted(word)}")
    return cast(Isolation, word)


def _pin(fields: Mapping[str, object]) -> Pinning | None:
    word = fields.get("pin")
    if word is not None and word not in PINNINGS:
        raise ValueError(f"pin must be one of {', '.join(PINNINGS)}, not {values.quoted(word)}")
    return cast("Pinning | None", word)


def _authority(draft: _Draft) -> str:
    """The certificates in the file that an entry names, read now so that a reload sees when they change."""
    named = values.text("ca", draft.fields.get("ca", ""))
    if not named:
        return ""
    file = resolve_path(named, draft.reading.folder, draft.reading.home)
    draft.files.append(file)
    try:
        text = read_regular_file(file, CA_BYTES_MAX).decode("utf-8", "replace")
        tls_settings(text)
    except OSError as error:
        raise ValueError(f"ca must be a file that can be read, not {named!r}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"ca must be a file of certificates in PEM form, not {named!r}") from error
    return text


def _timeout(draft: _Draft) -> float:
    limits, fields = draft.reading.limits, draft.fields
    if "timeout" not in fields:
        return limits.call_seconds
    given = values.number("timeout", fields["timeout"])
    seconds = given if draft.entry.dialect.is_own else _their_seconds(given, draft)
    if limits.hard_seconds < seconds <= TIMEOUT_SECONDS_MAX:
        raise ValueError(f"timeout must be at most limits.hard_seconds ({limits.hard_seconds:g}), not {seconds:g}")
    return seconds


def _their_seconds(given: float, draft: _Draft) -> float:
    """Return a timeout of somebody else's file in seconds, within what the hub allows."""
    dialect, place, limits = draft.entry.dialect, draft.entry.at("timeout"), draft.reading.limits
    if 0 < given < dialect.ignored_below:
        said = f"is below {dialect.ignored_below:g}, which {dialect.title} takes for none"
        advice = f"write it in {dialect.unit}, or take it out"
        draft.findings.append(place.finding(said, advice=advice, code=codes.MILLISECONDS))
        return limits.call_seconds
    if dialect.unit == "milliseconds":
        given /= 1000
    elif dialect.unit == "unsaid" and given > UNSAID_SECONDS_MAX:
        # Half of the programs that share this format count in milliseconds; nobody waits 1000 s for a tool.
        given /= 1000
        said = f"is over {UNSAID_SECONDS_MAX:g} and so taken for milliseconds, {given:g} seconds"
        draft.findings.append(place.finding(said, code=codes.MILLISECONDS))
    if given > limits.hard_seconds:
        said = f"is {given:g} seconds, and no call may take more than {limits.hard_seconds:g}"
        draft.findings.append(place.finding(said, code=codes.CAPPED))
    return min(given, limits.hard_seconds)


def _is_disabled(fields: Mapping[str, object]) -> bool:
    is_disabled = values.flag("disabled", fields.get("disabled", False))
    is_enabled = values.flag("enabled", fields.get("enabled", True))
    return is_disabled or not is_enabled


# -- variables -----------------------------------------------------------------------------------------------


def _expanded(key: str, value: object, draft: _Draft, *below: str | int) -> object:
    """Return a value with its variables replaced, in lists and tables too."""
    match value:
        case _ if key in _LITERAL:
            return value
        case str():
            return _borrowed(key, below, value, draft)
        case list():
            return [_expanded(key, item, draft, *below, position) for position, item in enumerate(value)]
        case dict():
            return {name: _expanded(key, item, draft, *below, name) for name, item in value.items()}
        case _:
            return value


def _borrowed(key: str, below: tuple[str | int, ...], value: str, draft: _Draft) -> str:
    variables, borrowed = draft.reading.variables, draft.borrowed
    # In other programs' files `file:` in a variable is a database's address, and they mean it literally.
    is_header = key == "headers" and draft.entry.dialect.has_hub
    if is_header or is_secret_at(key, below) or (key == "env" and draft.entry.dialect.is_own):
        text = variables.secret(".".join(map(str, (key, *below))), value, borrowed)
    else:
        text = variables.expand(value, borrowed)
    for placeholder in borrowed.unresolved:
        draft.findings.append(_unresolved(placeholder, draft.entry.at(key, *below)))
        draft.unresolved.append(placeholder)
    borrowed.unresolved.clear()
    return text if text == value else values.VariableText(text)


def _unresolved(placeholder: str, place: Place) -> Finding:
    if placeholder.startswith("${file:"):
        said = f"has {values.quoted(placeholder)}, which is no short text file that can be read; it stays as it is"
        return place.finding(said, code=codes.UNREADABLE_SECRET)
    is_input = placeholder.startswith(f"${{{INPUT_PREFIX}")
    code = codes.UNANSWERED_INPUT if is_input else codes.UNRESOLVED_VARIABLE
    return place.finding(f"has {values.quoted(placeholder)}, which is not set; it stays as it is", code=code)


PROCESS_LIMITS = "limits"

_COUNTS = ("files", "processes", "cpu_seconds")
_LIMIT_KEYS = ("memory", *_COUNTS)
_SIZE_TEXT = re.compile(r"(\d{1,12}) ?([KMGT]i)?B?")
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def process_limits(table: object) -> ProcessLimits:
    """Return the limits of one server.

    Raises:
        ValueError: a value makes no sense or a key is unknown, in the words "limits.<key> must …": a mistyped limit
            would be none.
    """
    given = values.table(PROCESS_LIMITS, table)
    for key in given:
        if key not in _LIMIT_KEYS:
            raise ValueError(f"{PROCESS_LIMITS} must have only {', '.join(_LIMIT_KEYS)}, not {values.quoted(key)}")
    counts = {key: values.integer(f"{PROCESS_LIMITS}.{key}", given[key]) for key in _COUNTS if key in given}
    memory = size_of(f"{PROCESS_LIMITS}.memory", given["memory"]) if "memory" in given else None
    try:
        return ProcessLimits(memory_bytes=memory, **counts)
    except ValueError as error:
        raise ValueError(f"{PROCESS_LIMITS}.{str(error).replace('memory_bytes', 'memory')}") from error


def size_of(key: str, value: object) -> int:
    """Return a number of bytes: a whole number, or one with a unit, such as `512MiB`.

    Raises:
        ValueError: it is neither.
    """
    found = _SIZE_TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None:
        return int(found[1]) * _UNITS[found[2] or ""]
    try:
        return values.integer(key, value)
    except ValueError:
        raise ValueError(f"{key} must be a size like 512MiB or 1GiB, not {values.quoted(value)}") from None


Word = Literal["stdio", "http", "sse", "ws", "rpc", "agent", "python", "auto"]
Way = Literal["command", "url", "rpc", "agent", "python"]

_WORDS: Mapping[str, Word] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "https": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamablehttp": "http",  # also streamableHttp: words are compared in lower case
    "streaming": "http",
    "sse": "sse",
    "ws": "ws",
    "websocket": "ws",
    "rpc": "rpc",
    "agent": "agent",
    "a2a": "agent",
    "python": "python",
    "auto": "auto",
    "remote": "auto",
}
_ALLOWED: Mapping[Way, tuple[Word, ...]] = {
    "command": ("stdio",),
    "url": ("http", "sse", "ws", "rpc", "auto"),
    "rpc": ("rpc",),
    "agent": ("agent",),
    "python": ("python",),
}
_READ: Mapping[Way, frozenset[str]] = {
    "command": STDIO_KEYS | {"era", "limits", "sha256"},
    "url": URL_KEYS | LOGIN_KEYS | {"era"},
    "rpc": RPC_KEYS | LOGIN_KEYS,
    "agent": AGENT_KEYS | LOGIN_KEYS,
    "python": PYTHON_KEYS,
}

_OURS_ALONE = frozenset({"era", "limits", "sha256", "user_headers"}) | LOGIN_KEYS


@dataclass(frozen=True, slots=True)
class Filled:
    """An entry whose variables are replaced, and the folders that its paths are seen from."""

    entry: Entry
    fields: Mapping[str, object]
    findings: list[Finding]
    folder: Path
    home: Path
    env_of: Callable[[Path], Mapping[str, str]]
    """Returns the variables in a file, and remembers what is secret and odd about it."""


def reach_of(filled: Filled) -> Reach:
    """Return how the server is reached.

    Raises:
        ValueError: it cannot be told, or a value makes no sense, in the words "<key> must …".
    """
    way = _way(filled.fields)
    word = _transport_word(way, filled.fields)
    _tell_of_idle_keys(filled, way, word)
    match way:
        case "command":
            return _stdio(filled)
        case "url":
            return _dialled(word, filled)
        case "rpc":
            return _rpc("rpc", filled)
        case "agent":
            return _agent(filled)
        case "python":
            return _python(filled)
        case _:
            assert_never(way)


def _way(fields: Mapping[str, object]) -> Way:
    # An empty text is how some programs write that there is none.
    given = [way for way in get_args(Way) if fields.get(way, "") != ""]
    if not given:
        raise CodedError(codes.NO_WAY, "must have a command or a url, not neither")
    if given == ["command", "url"] and (meant := _meant(fields)) is not None:
        return meant
    if len(given) > 1:
        told = "both" if given == ["command", "url"] else " and ".join(given)
        raise CodedError(codes.SEVERAL_WAYS, f"must have a command or a url, not {told}")
    return cast(Way, given[0])


def _meant(fields: Mapping[str, object]) -> Way | None:
    """Which of a command and an address the word for the transport is about: some files keep both beside each other."""
    said = [fields[key] for key in TRANSPORT_KEYS if fields.get(key, "") != ""]
    words = {_WORDS.get(word.strip().lower()) for word in said if isinstance(word, str)}
    if words == {"stdio"}:
        return "command"
    return "url" if words and words <= {"http", "sse", "ws"} else None


def _transport_word(way: Way, fields: Mapping[str, object]) -> Word | None:
    """Return the word for the transport, None if there is none, and refuse one that says otherwise."""
    found: Word | None = None
    for key in TRANSPORT_KEYS:
        if fields.get(key, "") != "":
            found = _checked(key, fields[key], way)
    return found


def _checked(key: str, value: object, way: Way) -> Word:
    word = _WORDS.get(values.text(key, value).strip().lower())
    if word is None:
        known = ", ".join(dict.fromkeys(_WORDS.values()))
        raise CodedError(codes.TRANSPORT_WORD, f"{key} must be one of {known}, not {values.quoted(value)}")
    if word not in _ALLOWED[way]:
        known = " or ".join(", ".join(_ALLOWED[way]).rsplit(", ", 1))
        raise CodedError(codes.TRANSPORT_WORD, f"{key} must be {known} beside {way}, not {values.quoted(value)}")
    return word


def _tell_of_idle_keys(filled: Filled, way: Way, word: Word | None) -> None:
    entry = filled.entry
    is_rpc = word == "rpc"
    read = (_READ[way] - {"era"}) | RPC_KEYS if is_rpc else _READ[way]
    # In a file that other programs read too, what has no effect here may have one there; these only we know.
    ours = REACH_KEYS | _OURS_ALONE if entry.dialect.is_own else _OURS_ALONE
    for key in sorted(filled.fields.keys() & (ours - read)):
        beside = f'type = "{word}"' if is_rpc and way == "url" else way
        filled.findings.append(entry.at(key).finding(f"has no effect beside {beside}", code=codes.IDLE_KEY))


# -- each way ------------------------------------------------------------------------------------------------


def _stdio(filled: Filled) -> StdioSettings:
    fields, home = filled.fields, filled.home
    cwd = values.text("cwd", fields.get("cwd", ""))
    return StdioSettings(
        command=resolve_program(values.text("command", fields["command"]), filled.folder, home),
        args=values.words("args", fields.get("args", [])),
        env={**_env_file(filled), **values.table_of_words("env", fields.get("env", {}))},
        cwd=str(resolve_path(cwd, filled.folder, home)) if cwd else None,
        era=_era(fields),
        limits=process_limits(fields.get("limits", {})),
        sha256=_digests(filled),
    )


def _digests(filled: Filled) -> dict[str, str]:
    """Digests by what they are of: a text is the program's."""
    given = filled.fields.get("sha256", {})
    if isinstance(given, str):
        given = {PIN_PROGRAM: given}
    digests = values.table_of_words("sha256", given)
    return {
        what if what in (PIN_PROGRAM, PIN_ARGV) else str(resolve_path(what, filled.folder, filled.home)): digest.lower()
        for what, digest in digests.items()
    }


def _env_file(filled: Filled) -> Mapping[str, str]:
    named = values.text("env_file", filled.fields.get("env_file", ""))
    return filled.env_of(resolve_path(named, filled.folder, filled.home)) if named else {}


def _dialled(word: Word | None, filled: Filled) -> HttpSettings | WebSocketSettings | JsonRpcSettings:
    url = values.text("url", filled.fields["url"])
    is_socket = url.lower().startswith(("ws:", "wss:"))
    _check_scheme(url, filled, word, is_socket=is_socket)
    if word == "rpc":
        return _rpc("url", filled)
    if word == "ws" or is_socket:
        if "user_headers" in filled.fields:
            told = "has no effect beside a WebSocket, which has headers only when it is opened"
            filled.findings.append(filled.entry.at("user_headers").finding(told, code=codes.IDLE_KEY))
        return WebSocketSettings(url, _headers(filled.fields), _era(filled.fields))
    return HttpSettings(
        url,
        _headers(filled.fields),
        _era(filled.fields),
        _carrier(word, url, filled),
        user_headers=_user_headers(filled.fields),
    )


def _check_scheme(url: str, filled: Filled, word: Word | None, *, is_socket: bool) -> None:
    """Refuse a word for the transport that the address itself contradicts."""
    wanted = ("ws", "auto") if is_socket else tuple(known for known in _ALLOWED["url"] if known != "ws")
    is_address = is_socket or url.lower().startswith(("http:", "https:"))
    if word is not None and is_address and word not in wanted:
        key, scheme = _transport_key(filled), url.partition(":")[0].lower()
        known = " or ".join(", ".join(wanted).rsplit(", ", 1))
        text = f"{key} must be {known} beside an address with {scheme}://, not {values.quoted(filled.fields[key])}"
        raise CodedError(codes.TRANSPORT_WORD, text)


def _carrier(word: Word | None, url: str, filled: Filled) -> Carrier:
    dialect, is_sse = filled.entry.dialect, _ends_with_sse(url)
    match word:
        case "sse":
            return "sse"
        case "http":
            if is_sse and dialect.http == "http":
                told = "says http, but an address that ends in /sse is usually of the earlier transport"
                filled.findings.append(filled.entry.at(_transport_key(filled)).finding(told, code=codes.LOOKS_LIKE_SSE))
            return dialect.http
        case None if dialect.bare_url == "path":
            return "sse" if is_sse else "http"
        case None:
            return cast(Carrier, dialect.bare_url)
        case _:
            return "auto"


def _ends_with_sse(url: str) -> bool:
    try:
        return urlsplit(url).path.rstrip("/").endswith("/sse")
    except ValueError:
        return False  # the settings refuse it, with a reason


def _transport_key(filled: Filled) -> str:
    return next(key for key in TRANSPORT_KEYS if filled.fields.get(key, "") != "")


def _rpc(key: str, filled: Filled) -> JsonRpcSettings:
    try:
        return JsonRpcSettings(
            url=values.text(key, filled.fields[key]),
            headers=_headers(filled.fields),
            tools=declared_tools(filled.fields, filled.entry, filled.findings),
            user_headers=_user_headers(filled.fields),
        )
    except ValueError as error:
        text = str(error)
        raise ValueError(f"{key}{text.removeprefix('rpc')}" if text.startswith("rpc ") else text) from error


def _agent(filled: Filled) -> AgentSettings:
    return AgentSettings(
        url=values.text("agent", filled.fields["agent"]),
        headers=_headers(filled.fields),
        origins=values.texts("origins", filled.fields.get("origins", [])),
    )


def _python(filled: Filled) -> PythonSettings:
    path = values.text("path", filled.fields.get("path", ""))
    return PythonSettings(
        target=values.text("python", filled.fields["python"]),
        path=str(resolve_path(path, filled.folder, filled.home)) if path else None,
    )


def _headers(fields: Mapping[str, object]) -> dict[str, str]:
    return values.table_of_words("headers", fields.get("headers", {}))


def _user_headers(fields: Mapping[str, object]) -> tuple[str, ...]:
    return values.texts("user_headers", fields.get("user_headers", []))


def _era(fields: Mapping[str, object]) -> Era:
    era = fields.get("era", "auto")
    if era not in get_args(Era):
        raise ValueError(f"era must be one of {', '.join(get_args(Era))}, not {values.quoted(era)}")
    return cast(Era, era)
