"""Convert server entries into `ServerSettings`.

An entry's keys are declared in `upstream.server_settings`: simple keys are converted here by the type of their field,
and only keys that need more (paths, the transport, rules for tools) have code of their own. The settings classes check
ranges. Nothing is started or dialled. A broken entry becomes a finding and is skipped; all others work. Called by
`config.load`, `config.importing` and the library.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit

from isthmus.config import entry_secrets, finding_codes, values
from isthmus.config.client_entries_to_hub import TRANSPORT_KEYS, Entry
from isthmus.config.client_formats import INPUT_PREFIX
from isthmus.config.files import read_regular_file, resolve_path, resolve_program
from isthmus.config.findings import CodedError, Finding, Place
from isthmus.config.variables import UsedVariables, Variables, read_env
from isthmus.core.access.policy import check_tag
from isthmus.core.catalog.tool_rules import CACHE_SECONDS, EVERY, NO_TOOL_RULES, ToolRules
from isthmus.core.settings import Limits
from isthmus.credentials.signed_jwts import check_private_key
from isthmus.model.credentials import OAuthSettings, OwnCredentials, ServerCredentials, subject_of
from isthmus.model.names import ServerName, legal_server_name, server_name_with_digits
from isthmus.transport.egress import tls_settings
from isthmus.transport.process_limits import ProcessLimits
from isthmus.upstream.server_settings import (
    PIN_ARGV,
    PIN_PROGRAM,
    SERVER_KEYS,
    TIMEOUT_SECONDS_MAX,
    WAYS,
    AgentSettings,
    Carrier,
    DeclaredTool,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerKey,
    ServerSettings,
    StdioSettings,
    Way,
    WebSocketSettings,
    check_headers,
    keys_beside,
    keys_of,
)

RESERVED = frozenset({"builtin"})
"""Names of the hub's own tools."""

CA_BYTES_MAX = 1024 * 1024
"""Size of a file of certificates; a system's whole collection is a quarter of it."""

UNSAID_SECONDS_MAX = 600.0
"""A longer timeout, in a format that does not define its unit, is read as milliseconds."""

SECRET_KEYS = frozenset({"client_secret", "private_key", "identity_token", "idp_client_secret"})
"""Keys of `oauth` that may be `env:NAME`, `file:PATH` or `keyring:NAME`."""

Word = Literal["stdio", "http", "sse", "ws", "rpc", "agent", "python", "auto"]

TRANSPORT_WORDS: Mapping[str, Word] = {
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
_WORDS_BESIDE: Mapping[Way, tuple[Word, ...]] = {
    "command": ("stdio",),
    "url": ("http", "sse", "ws", "rpc", "auto"),
    "rpc": ("rpc",),
    "agent": ("agent",),
    "python": ("python",),
}
_CACHE_KEYS = ("tools", "ttl")
_TOOL_KEYS = ("description", "input_schema", "inputSchema")
_RULE_KEYS = frozenset({"include_tools", "exclude_tools", "defaults", "cache", "trusted", "tags"})
_LIMIT_COUNTS = ("files", "processes", "cpu_seconds")
_CREDENTIAL_MODES = ("any", "caller")
_SIZE = re.compile(r"(\d{1,12}) ?([KMGT]i)?B?")
_SIZE_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


@dataclass(frozen=True, slots=True)
class EntryContext:
    """What entries of one file are read with."""

    variables: Variables
    folder: Path
    """Where relative paths start."""
    home: Path
    limits: Limits


@dataclass(slots=True)
class LoadedServers:
    """The servers of one or more files, in order, each with a unique name."""

    servers: dict[ServerName, ServerSettings] = field(default_factory=dict)
    entries: dict[ServerName, Entry] = field(default_factory=dict)
    """The entry of each server, broken ones included."""
    findings: list[Finding] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    """Files that entries refer to, such as `env_file`."""
    called: dict[str, ServerName] = field(default_factory=dict)
    """By the name in a file: the name of the server."""
    unresolved: dict[ServerName, tuple[str, ...]] = field(default_factory=dict)
    """By server: placeholders of variables that are not set."""

    def add(self, entries: Iterable[Entry], context: EntryContext) -> None:
        """Read entries; of two with the same name the first one counts."""
        entries = list(entries)
        names = server_names((entry.name for entry in entries), taken=self.entries)
        for entry in entries:
            if entry.name in self.called:
                self._report_duplicate(entry)
                continue
            name = names[entry.name]
            if name != entry.name:
                is_reserved = entry.name in RESERVED
                why = "is the name of the hub's own tools" if is_reserved else "cannot be the name of a server"
                advice = "" if is_reserved else "use 1 to 50 letters, digits, _ and -"
                message = f"{why}, so the server is called {name}"
                self.findings.append(entry.place.finding(message, advice=advice, code=finding_codes.RENAMED))
            reader = _EntryReader(entry, context)
            server = reader.read(name)
            secrets = entry_secrets.secrets_of(reader.fields) | entry_secrets.with_parts(reader.used.secrets)
            self.findings += [
                entry_secrets.without(secrets, finding) for finding in (*entry.findings, *reader.findings)
            ]
            self.files += reader.files
            if reader.unresolved:
                self.unresolved[name] = tuple(reader.unresolved)
            self.entries[name] = entry
            self.called[entry.name] = name
            if server is not None:
                self.servers[name] = replace(server, secrets=frozenset(secrets))

    def refuse_open_programs(self) -> None:
        """Do not start programs that every user of the machine can write to."""
        for name, server in self.servers.items():
            if isinstance(server.reach, StdioSettings):
                self.servers[name] = replace(server, reach=replace(server.reach, may_be_open=False))

    def _report_duplicate(self, entry: Entry) -> None:
        first = self.entries[self.called[entry.name]]
        if (first.fields, first.extra) == (entry.fields, entry.extra):
            return  # users of several clients often have the same server in each
        if first.place.file == entry.place.file:
            message = f"is already under {first.place.path.partition('.')[0]} and is skipped"
        elif first.dialect.is_own:
            return  # our own file wins on purpose
        else:
            message = f"is already in {first.place.file} and is skipped"
        self.findings.append(entry.place.finding(message, code=finding_codes.TAKEN_NAME))


def read_server(entry: Entry, context: EntryContext) -> tuple[ServerSettings | None, list[Finding]]:
    """Return the settings of one entry, None if it is broken, and its findings."""
    loaded = LoadedServers()
    loaded.add([entry], context)
    return next(iter(loaded.servers.values()), None), loaded.findings


def look_alikes(loaded: LoadedServers) -> list[Finding]:
    """Return findings about names that a person or a language model would confuse."""
    groups: dict[str, list[ServerName]] = {}
    for name in loaded.servers:
        groups.setdefault(name.lower().replace("-", "_"), []).append(name)
    message = "has names that differ only by case or by - and _: "
    return [
        Place(loaded.entries[group[0]].place.file, "servers").finding(
            message + ", ".join(group), code=finding_codes.LOOK_ALIKES
        )
        for group in groups.values()
        if len(group) > 1
    ]


def server_names(wanted: Iterable[str], taken: Collection[str] = ()) -> dict[str, ServerName]:
    """Return a legal name for each wanted name.

    The order does not matter: if two wanted names would become the same legal one, both get digits.
    """
    texts = set(wanted)
    made = Counter(map(legal_server_name, texts))
    barred = {*taken, *texts, *RESERVED, *(name for name, times in made.items() if times > 1)}
    names: dict[str, ServerName] = {}
    for text in texts:
        name, seed = legal_server_name(text), text
        if name != text or text in RESERVED:
            while name in barred:
                name, seed = server_name_with_digits(seed), f"{seed} "
        names[text] = name
    return names


# -- one entry -----------------------------------------------------------------------------------------------


class _EntryReader:
    """Reads one entry: replaces its variables, then converts its keys."""

    def __init__(self, entry: Entry, context: EntryContext) -> None:
        self._entry = entry
        self._context = context
        self.fields = dict(entry.fields)
        self.used = UsedVariables()
        self.findings: list[Finding] = []
        self.files: list[Path] = []
        self.unresolved: list[str] = []

    def read(self, name: ServerName) -> ServerSettings | None:
        """Return the settings, None if the entry is broken; `findings` says why."""
        if not self._entry.is_table:
            return None
        try:
            self.fields = {
                key: value if SERVER_KEYS[key].is_literal else values.map_texts(value, self._expanded, key)
                for key, value in self.fields.items()
            }
            arguments: dict[str, Any] = {"reach": self._reach(), **self._arguments(ServerSettings)}
            is_enabled = values.flag("enabled", self.fields.get("enabled", True))
            arguments["disabled"] = arguments.get("disabled", False) or not is_enabled
            return ServerSettings(
                name=name,
                credentials=credentials_of(self.fields),
                rules=self._rules(),
                extra=self._entry.extra,
                **arguments,
            )
        except ValueError as error:
            found = self._entry.place.mistake(error)
            # The finding names the path that the file itself has.
            key, dot, below = str(error).partition(" must ")[0].partition(".")
            if (written_at := self._entry.written_at.get(key)) is not None:
                found = replace(found, path=f"{self._entry.place.at(*written_at).path}{dot}{below}")
            self.findings.append(found)
            return None

    # -- variables

    def _expanded(self, value: str, key: str, *below: str | int) -> str:
        """Return a text, at or below a key, with its variables replaced."""
        variables, dialect = self._context.variables, self._entry.dialect
        # In other programs' files `file:` in a variable is a database's address: there it is not a reference.
        is_header = key == "headers" and dialect.has_hub
        if is_header or is_secret_at(key, below) or (key == "env" and dialect.is_own):
            text = variables.secret(".".join(map(str, (key, *below))), value, self.used)
        else:
            text = variables.expand(value, self.used)
        place = self._entry.at(key, *below)
        for placeholder in self.used.unresolved:
            if placeholder.startswith("${file:"):
                message, code = "which is not a short text file that can be read", finding_codes.UNREADABLE_SECRET
            else:
                is_input = placeholder.startswith(f"${{{INPUT_PREFIX}")
                message = "which is not set"
                code = finding_codes.UNANSWERED_INPUT if is_input else finding_codes.UNRESOLVED_VARIABLE
            finding = place.finding(f"has {values.quoted(placeholder)}, {message}; it stays as it is", code=code)
            self.findings.append(finding)
            self.unresolved.append(placeholder)
        self.used.unresolved.clear()
        return text if text == value else values.VariableText(text)

    # -- keys

    def _arguments(self, settings: type) -> dict[str, Any]:
        """Return the arguments of a settings class that the entry, or `[limits]`, gives."""
        read: dict[str, Any] = {}
        for key in keys_of(settings):
            if key.name in self.fields:
                read[key.field_name] = self._value(key, self.fields[key.name])
            elif key.limit:
                read[key.field_name] = getattr(self._context.limits, key.limit)
        return read

    def _value(self, key: ServerKey, value: object) -> object:
        match key.name:
            case "timeout":
                return self._timeout(values.number("timeout", value))
            case "ca":
                return self._certificates(values.text("ca", value))
            case "limits":
                return process_limits(value)
            case "sha256":
                digests = values.table_of_words("sha256", {PIN_PROGRAM: value} if isinstance(value, str) else value)
                folder, home = self._context.folder, self._context.home
                return {
                    what if what in (PIN_PROGRAM, PIN_ARGV) else str(resolve_path(what, folder, home)): digest.lower()
                    for what, digest in digests.items()
                }
            case "tools":
                return self._declared_tools(value)
            case _ if key.path:
                text = values.text(key.name, value)
                resolve = resolve_program if key.path == "program" else resolve_path
                is_given = bool(text) or key.path == "program"
                return str(resolve(text, self._context.folder, self._context.home)) if is_given else key.default
            case _ if key.accepts_numbers:
                return values.words(key.name, value)
            case _:
                return values.typed(key.name, key.hint, value)

    def _timeout(self, given: float) -> float:
        """Return a timeout in seconds; one of another client's file is capped, with a finding."""
        dialect, place, limits = self._entry.dialect, self._entry.at("timeout"), self._context.limits
        if dialect.is_own:
            if limits.hard_seconds < given <= TIMEOUT_SECONDS_MAX:
                raise ValueError(
                    f"timeout must be at most limits.hard_seconds ({limits.hard_seconds:g}), not {given:g}"
                )
            return given
        if 0 < given < dialect.ignored_below:
            message = f"is below {dialect.ignored_below:g}, which {dialect.title} ignores"
            advice = f"write it in {dialect.unit}, or remove it"
            self.findings.append(place.finding(message, advice=advice, code=finding_codes.MILLISECONDS))
            return limits.call_seconds
        if dialect.unit == "milliseconds":
            given /= 1000
        elif dialect.unit == "unsaid" and given > UNSAID_SECONDS_MAX:
            # Half of the programs that share this format use milliseconds; no tool is given 1000 s.
            given /= 1000
            message = f"is over {UNSAID_SECONDS_MAX:g}, so it is read as milliseconds: {given:g} seconds"
            self.findings.append(place.finding(message, code=finding_codes.MILLISECONDS))
        if given > limits.hard_seconds:
            message = f"is {given:g} seconds; a call may take at most {limits.hard_seconds:g}"
            self.findings.append(place.finding(message, code=finding_codes.CAPPED))
        return min(given, limits.hard_seconds)

    def _certificates(self, named: str) -> str:
        """Return the contents of the file, read now so that a reload notices a change."""
        if not named:
            return ""
        file = resolve_path(named, self._context.folder, self._context.home)
        self.files.append(file)
        try:
            text = read_regular_file(file, CA_BYTES_MAX).decode("utf-8", "replace")
            tls_settings(text)
        except OSError as error:
            raise ValueError(f"ca must be a file that can be read, not {named!r}: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"ca must be a file of certificates in PEM form, not {named!r}") from error
        return text

    def _declared_tools(self, given: object) -> tuple[DeclaredTool, ...]:
        tools: list[DeclaredTool] = []
        for name, value in values.table("tools", given).items():
            key, place = f"tools.{name}", self._entry.at("tools", name)
            tool = values.table(key, value)
            self.findings += [place.unknown(part, _TOOL_KEYS) for part in tool if part not in _TOOL_KEYS]
            spelling = "inputSchema" if "inputSchema" in tool else "input_schema"
            description = values.text(f"{key}.description", tool.get("description", ""))
            schema = json_table(f"{key}.{spelling}", tool.get(spelling, {"type": "object"}))
            tools.append(DeclaredTool(name, description, schema))
        return tuple(tools)

    def _rules(self) -> ToolRules:
        fields = self.fields
        if not fields.keys() & _RULE_KEYS:
            return NO_TOOL_RULES
        cache = values.table("cache", fields.get("cache", {}))
        place = self._entry.at("cache")
        self.findings += [place.unknown(key, _CACHE_KEYS) for key in cache if key not in _CACHE_KEYS]
        defaults = values.table("defaults", fields.get("defaults", {}))
        return ToolRules(
            only=values.texts("include_tools", fields["include_tools"]) if "include_tools" in fields else None,
            hidden=values.texts("exclude_tools", fields.get("exclude_tools", [])),
            defaults={tool: json_table(f"defaults.{tool}", arguments) for tool, arguments in defaults.items()},
            **cache_rules(cache),
            is_trusted=values.flag("trusted", fields.get("trusted", False)),
            tags=_tags(fields.get("tags", [])),
        )

    # -- how the server is reached

    def _reach(self) -> Reach:
        way = self._way()
        word = self._transport_word(way)
        is_rpc_url = way == "url" and word == "rpc"
        effective = keys_beside("rpc") | {"url"} if is_rpc_url else keys_beside(way)
        for key in sorted(self.fields.keys() - effective):
            # In a file that other programs read too, the key may have an effect there.
            if self._entry.dialect.is_own or not SERVER_KEYS[key].is_common_word:
                beside = 'type = "rpc"' if is_rpc_url else way
                finding = self._entry.at(key).finding(f"has no effect beside {beside}", code=finding_codes.IDLE_KEY)
                self.findings.append(finding)
        match "rpc" if is_rpc_url else way:
            case "rpc":
                return self._json_rpc("url" if is_rpc_url else "rpc")
            case "command":
                arguments = self._arguments(StdioSettings)
                if named := values.text("env_file", self.fields.get("env_file", "")):
                    file = resolve_path(named, self._context.folder, self._context.home)
                    found, findings = read_env(file, self._entry.at("env_file"))
                    self.files.append(file)
                    self.findings += findings
                    self.used.secrets.update(value for value in found.values() if value)
                    arguments["env"] = {**found, **arguments.get("env", {})}
                return StdioSettings(**arguments)
            case "agent":
                return AgentSettings(**self._arguments(AgentSettings))
            case "python":
                return PythonSettings(**self._arguments(PythonSettings))
            case _:
                url = values.text("url", self.fields["url"])
                self._check_scheme(url, word)
                if word != "ws" and not _is_web_socket(url):
                    return HttpSettings(**self._arguments(HttpSettings), carrier=self._carrier(word, url))
                if "user_headers" in self.fields:
                    message = "has no effect beside a WebSocket, which has headers only when it is opened"
                    self.findings.append(self._entry.at("user_headers").finding(message, code=finding_codes.IDLE_KEY))
                return WebSocketSettings(**self._arguments(WebSocketSettings))

    def _way(self) -> Way:
        # Some programs write an empty text for a missing value.
        given = [way for way in WAYS if self.fields.get(way, "") != ""]
        if not given:
            raise CodedError(finding_codes.NO_WAY, "needs `command` or `url`")
        if given == ["command", "url"]:
            # Some files keep both beside each other, and the transport says which one is meant.
            written = [self.fields[key] for key in TRANSPORT_KEYS if self.fields.get(key, "") != ""]
            words = {TRANSPORT_WORDS.get(word.strip().lower()) for word in written if isinstance(word, str)}
            if words == {"stdio"}:
                return "command"
            if words and words <= {"http", "sse", "ws"}:
                return "url"
        if len(given) > 1:
            found = "both" if given == ["command", "url"] else " and ".join(given)
            raise CodedError(finding_codes.SEVERAL_WAYS, f"must have a command or a url, not {found}")
        return given[0]

    def _transport_word(self, way: Way) -> Word | None:
        """Return the transport that the entry names, None if it names none."""
        found: Word | None = None
        for key in TRANSPORT_KEYS:
            value = self.fields.get(key, "")
            if value == "":
                continue
            found = TRANSPORT_WORDS.get(values.text(key, value).strip().lower())
            if found is None:
                known = ", ".join(get_args(Word))
                raise CodedError(
                    finding_codes.TRANSPORT_WORD, f"{key} must be one of {known}, not {values.quoted(value)}"
                )
            if found not in _WORDS_BESIDE[way]:
                known = _one_of(_WORDS_BESIDE[way])
                message = f"{key} must be {known} beside {way}, not {values.quoted(value)}"
                raise CodedError(finding_codes.TRANSPORT_WORD, message)
        return found

    def _json_rpc(self, key: Literal["url", "rpc"]) -> JsonRpcSettings:
        url = values.text(key, self.fields[key])
        if key == "url":
            self._check_scheme(url, "rpc")
        try:
            return JsonRpcSettings(**{**self._arguments(JsonRpcSettings), "url": url})
        except ValueError as error:
            text = str(error)
            raise ValueError(f"{key}{text.removeprefix('rpc')}" if text.startswith("rpc ") else text) from error

    def _check_scheme(self, url: str, word: Word | None) -> None:
        """Reject a transport that contradicts the address."""
        is_web_socket = _is_web_socket(url)
        fitting = ("ws", "auto") if is_web_socket else tuple(known for known in _WORDS_BESIDE["url"] if known != "ws")
        is_address = is_web_socket or url.lower().startswith(("http:", "https:"))
        if word is not None and is_address and word not in fitting:
            key, scheme = self._transport_key, url.partition(":")[0].lower()
            found = values.quoted(self.fields[key])
            message = f"{key} must be {_one_of(fitting)} beside an address with {scheme}://, not {found}"
            raise CodedError(finding_codes.TRANSPORT_WORD, message)

    def _carrier(self, word: Word | None, url: str) -> Carrier:
        dialect = self._entry.dialect
        try:
            is_sse = urlsplit(url).path.rstrip("/").endswith("/sse")
        except ValueError:
            is_sse = False  # the settings reject the address, with a reason
        match word:
            case "sse":
                return "sse"
            case "http":
                if is_sse and dialect.http == "http":
                    message = "is http, but an address that ends in /sse usually has the earlier transport"
                    place = self._entry.at(self._transport_key)
                    self.findings.append(place.finding(message, code=finding_codes.LOOKS_LIKE_SSE))
                return dialect.http
            case None if dialect.bare_url == "path":
                return "sse" if is_sse else "http"
            case None:
                return cast("Carrier", dialect.bare_url)
            case _:
                return "auto"

    @property
    def _transport_key(self) -> str:
        return next(key for key in TRANSPORT_KEYS if self.fields.get(key, "") != "")


def _is_web_socket(url: str) -> bool:
    return url.lower().startswith(("ws:", "wss:"))


def _one_of(words: Iterable[str]) -> str:
    return " or ".join(", ".join(words).rsplit(", ", 1))


# -- values with a form of their own -------------------------------------------------------------------------


def process_limits(value: object) -> ProcessLimits:
    """Return `[servers.NAME.limits]`.

    Raises:
        ValueError: a value is invalid, or a key unknown: a mistyped limit must not mean "no limit".
    """
    given = values.table("limits", value, ("memory", *_LIMIT_COUNTS))
    counts = {key: values.integer(f"limits.{key}", given[key]) for key in _LIMIT_COUNTS if key in given}
    memory = size_of("limits.memory", given["memory"]) if "memory" in given else None
    try:
        return ProcessLimits(memory_bytes=memory, **counts)
    except ValueError as error:
        raise ValueError(f"limits.{str(error).replace('memory_bytes', 'memory')}") from error


def cache_rules(cache: Mapping[str, object], *, is_strict: bool = False) -> dict[str, Any]:
    """Return the members of `ToolRules` that a `cache` table sets; with `is_strict`, reject unknown keys.

    Raises:
        ValueError: a value is invalid.
    """
    given = values.table("cache", cache, _CACHE_KEYS if is_strict else None)
    return {
        "cached": values.texts("cache.tools", given.get("tools", [])),
        "cache_seconds": values.number("cache.ttl", given.get("ttl", CACHE_SECONDS)),
    }


def size_of(key: str, value: object) -> int:
    """Return a number of bytes from a whole number or a text with a unit, such as `512MiB`.

    Raises:
        ValueError: it is neither.
    """
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        return int(match[1]) * _SIZE_UNITS[match[2] or ""]
    try:
        return values.integer(key, value)
    except ValueError:
        raise ValueError(f"{key} must be a size like 512MiB or 1GiB, not {values.quoted(value)}") from None


def _tags(value: object) -> dict[str, tuple[str, ...]]:
    """Return tags by tool, prompt or resource; those of a list, and those of `*`, are for everything."""
    by_name = value if isinstance(value, dict) else {EVERY: value}
    tags = {
        name: values.texts("tags" if by_name is not value else f"tags.{name}", given) for name, given in by_name.items()
    }
    for tag in (tag for given in tags.values() for tag in given):
        try:
            check_tag(tag)
        except ValueError:
            raise ValueError(f"tags must have only printable texts, not {values.quoted(tag)}") from None
    return {name: given for name, given in tags.items() if given}


def json_table(key: str, value: object) -> dict[str, Any]:
    """Return a table that JSON can hold: TOML and YAML have dates and infinite numbers, JSON does not."""
    table = values.table(key, value)
    try:
        made: dict[str, Any] = json.loads(json.dumps(table, allow_nan=False))
    except (TypeError, ValueError):
        raise ValueError(f"{key} must have only values that JSON has, not dates or infinite numbers") from None
    return made


# -- credentials ------------------------------------------------------------------------------------------------


def credentials_of(fields: Mapping[str, object]) -> ServerCredentials:
    """Return the credentials of one entry, whose variables are already replaced.

    A broken value makes the whole entry broken: a server that is called with fewer credentials than configured would
    look as if it worked.

    Raises:
        ValueError: in the words "<key> must …".
    """
    if not fields.keys() & {"oauth", "callers", "credentials"}:
        return ServerCredentials()
    mode = fields.get("credentials", "any")
    if mode not in _CREDENTIAL_MODES:
        raise ValueError(f"credentials must be one of {', '.join(_CREDENTIAL_MODES)}, not {values.quoted(mode)}")
    own = {}
    for name, entry in values.table("callers", fields.get("callers", {})).items():
        subject = subject_of(name)
        if not subject.tenant.strip() or not subject.name.strip():
            raise ValueError(f"callers must be named NAME or TENANT/NAME, not {values.quoted(name)}")
        place = f"callers.{name}"
        table = values.table(place, entry, ("headers", "oauth"))
        headers = values.table_of_words(f"{place}.headers", table.get("headers", {}))
        with values.below(place):
            check_headers(headers)
        oauth = _oauth(f"{place}.oauth", table["oauth"]) if "oauth" in table else None
        own[subject] = OwnCredentials(headers, oauth)
    return ServerCredentials(
        oauth=_oauth("oauth", fields["oauth"]) if "oauth" in fields else None,
        own=own,
        are_demanded=mode == "caller",
    )


def is_secret_at(key: str, below: tuple[str | int, ...]) -> bool:
    """Whether a text of an entry may refer to a secret, such as `env:NAME`."""
    if key == "oauth":
        return below[-1:] != () and below[-1] in SECRET_KEYS
    return key == "callers" and (below[1:2] == ("headers",) or (below[1:2] == ("oauth",) and below[-1] in SECRET_KEYS))


def _oauth(place: str, entry: object) -> OAuthSettings:
    given = values.table(place, entry)
    if isinstance(scopes := given.get("scope"), list):
        given = {**given, "scope": " ".join(values.texts(f"{place}.scope", scopes))}
    settings = values.settings(place, OAuthSettings, given)
    if settings.private_key:
        with values.below(place):
            check_private_key(settings.private_key)
    return settings
