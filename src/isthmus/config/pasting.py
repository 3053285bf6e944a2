"""Understand what a person pasted: servers in any client's format, one entry, an address, or a command line.

`preview` returns the servers as the hub understands them, with the text to put into the hub's own file. Nothing is
written, started or dialled. What was pasted may contain secrets: it appears in the result and nowhere else. Called by
`app.rest_server_edits`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from isthmus.config import finding_codes
from isthmus.config.client_entries_to_hub import Entry, entries_of, entry_of
from isthmus.config.client_file_reader import HostContext
from isthmus.config.client_formats import OWN, STANDARD, VSCODE, dialect_of
from isthmus.config.entries_to_settings import LoadedServers
from isthmus.config.files import ParsedFile, usual_files
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.formats import parse, strict_json
from isthmus.config.importing import ImportCandidate, context_of, has_same_effect, own_fields, transport_of
from isthmus.config.servers_in_file import ServerFile
from isthmus.config.text_editing import CannotEdit, Keys, edit, toml_table
from isthmus.model.names import legal_server_name
from isthmus.upstream.server_settings import WAYS, ServerSettings

PASTED_LENGTH_MAX = 128 * 1024
"""Far more than anybody copies by hand; whole files are for `isthmus import`."""

SERVERS_MAX = 50
"""Servers in one paste."""

Form = Literal["json", "toml", "yaml", "url", "command"]

_URL = re.compile(r"(?:https?|wss?)://\S+", re.IGNORECASE)
_TOML_HEADER = re.compile(r"\[\[?\s*[A-Za-z0-9_\"'. -]+\]\]?\s*(?:#.*)?")
_TOML_KEY = re.compile(r"[A-Za-z0-9_.\"-]+\s*=\s*\S")
_YAML_KEY = re.compile(r"[\w.\"' -]+:(?:\s|$)|---")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SHELL_WORDS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1"})
_ENTRY_KEYS = frozenset({*WAYS, "cmd", "uri", "serverUrl", "server_url", "httpUrl", "endpoint"})
_CLIENT_COMMANDS = frozenset({"claude", "codex", "gemini", "qwen", "amp"})
_FLAGS = frozenset({"--replace", "--no-check", "--trust"})
"""Options of these commands that take no value."""

# -- words that say nothing about a server, for its name
_DULL_LABELS = frozenset({"www", "mcp", "api", "app", "server", "com", "co", "net", "org", "io", "dev", "ai"})
_RUNNERS = frozenset({"npx", "bunx", "uvx", "pipx", "uv", "npm", "pnpm", "yarn", "bun", "deno", "docker", "podman"})
_INTERPRETERS = frozenset({"node", "python", "python3", "py", "ruby", "php", "java", "env", "tsx"})
_RUNNER_WORDS = frozenset({"run", "exec", "dlx", "tool", "x", "create"})
_WITH_VALUE = frozenset({"-e", "--env", "-v", "--volume", "--mount", "--name", "-p", "--directory", "--from", "--with"})
_AFFIXES = re.compile(r"^(?:mcp-server-|server-|mcp-)|(?:-mcp-server|-server-mcp|-mcp|-server)$")


class CannotPreview(ValueError):
    """What was pasted is no server; the text says why and what to paste instead."""


@dataclass(frozen=True, slots=True)
class PastedServer:
    """One server of a paste."""

    name: str
    """A name that is free, or the name of the same server in the hub."""
    wanted: str
    """The name that the paste has, or that its address or command suggests."""
    outcome: Literal["new", "same", "broken"]
    """`same`: the hub has this server already."""
    transport: str | None
    entry: Mapping[str, object]
    """Its keys in the hub's own file."""
    text: str
    """The lines to put into the file."""
    command: str | None
    """The `isthmus add` that does the same; None if it lacks an option for a key of the entry."""
    has_secrets: bool
    """Whether it contains a secret in plain text."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a paste would add to the hub's file."""

    form: Form
    client: str | None
    """The client whose format it is, if that is known."""
    file: Path
    is_new_file: bool
    place: str
    """Where in the file the text belongs, as a sentence."""
    text: str
    """All servers that are new, ready to be put there."""
    servers: tuple[PastedServer, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Paste:
    """A paste whose form is known."""

    form: Form
    document: ParsedFile


def preview(
    text: str, name: str | None, target: ServerFile, servers: Collection[ServerSettings], taken: Collection[str],
    around: HostContext,
) -> Preview:  # fmt: skip
    """Read a paste for the file of a hub. `servers` are those of the hub; `taken` are all names that are in use.

    `name` is the name that the person wants, if the paste has one server.

    Raises:
        CannotPreview: it is too long, or contains no server.
    """
    if len(text) > PASTED_LENGTH_MAX:
        advice = "Save it as a file and run: isthmus import FILE"
        raise CannotPreview(f"The text is over {PASTED_LENGTH_MAX // 1024} KiB long. {advice}")
    paste = _read(text, target.file.parent)
    try:
        json.dumps(paste.document.table, ensure_ascii=False, default=str).encode()
    except (ValueError, RecursionError) as error:
        advice = "Copy it again, or remove escapes such as \\ud800."
        raise CannotPreview(f"The text has characters that are no text, or nests too deep. {advice}") from error
    entries, findings = _entries(paste, target, around)
    if name is not None:
        if len(entries) > 1:
            raise CannotPreview(f"A name is for one server, and the text has {len(entries)}.")
        entries = [replace(entries[0], name=name)]
    loaded = LoadedServers()
    loaded.add(entries, context_of(paste.document.file, target.file.parent, around))
    found = [*paste.document.warnings, *findings, *loaded.findings]
    root = target.root_of("")  # of a server that is not there yet
    known, used = {server.name: server for server in servers}, {*taken, *target.names()}
    pasted, tables = [], dict[str, Mapping[str, object]]()
    for called, entry in loaded.entries.items():
        server = loaded.servers.get(called)
        if server is None:
            pasted.append(PastedServer(called, entry.name, "broken", None, {}, "", None, has_secrets=False))
            continue
        fields = own_fields(entry, server)
        written, written_findings = _as_written(called, fields, target, around)
        messages = {finding.message for finding in found}
        found += [
            finding
            for finding in written_findings
            if finding.code == finding_codes.UNRESOLVED_VARIABLE and finding.message not in messages
        ]
        present = known.get(called)
        is_same = present is not None and written is not None and has_same_effect(present, written)
        free = called if is_same else _free_name(called, used)
        if free != called:
            message = f"is the name of another server, so this one is called {free}"
            found.append(entry.place.finding(message, advice="choose another name", code=finding_codes.TAKEN_NAME))
        used.add(free)
        if not is_same:
            tables[free] = fields
        pasted.append(
            PastedServer(
                free, entry.name, "same" if is_same else "new", transport_of(server.reach), _plain_table(fields),
                _snippet(target, root, {free: fields}), _add_command(free, fields, target, around),
                has_secrets=ImportCandidate(called, entry, server, "new").has_secrets,
            )
        )  # fmt: skip
    found += _not_editable(target, root, tables)
    # The file of a finding about a paste is no file.
    found = [replace(each, file=None) if each.file == paste.document.file else each for each in found]
    dialect = paste.document.dialect
    return Preview(
        paste.form,
        None if dialect is STANDARD else dialect.title,
        target.file,
        not target.text,
        _place(target, root),
        _snippet(target, root, tables) if tables else "",
        tuple(pasted),
        tuple(dict.fromkeys(found)),
    )


def _entries(paste: Paste, target: ServerFile, around: HostContext) -> tuple[list[Entry], list[Finding]]:
    try:
        entries, findings = entries_of(paste.document, around.home, around.cwd, target.file.parent)
    except ConfigError as error:
        raise _refused(error) from error
    if not entries:
        reasons = " ".join(f"It {finding.message}." for finding in findings)
        advice = "Paste an mcpServers object, one entry, a URL, or a command such as: npx -y PACKAGE"
        raise CannotPreview(f"{reasons or 'The text has no server.'} {advice}")
    if len(entries) > SERVERS_MAX:
        advice = "Save the text as a file and run: isthmus import FILE"
        raise CannotPreview(f"The text has {len(entries)} servers, over {SERVERS_MAX}. {advice}")
    return entries, findings


def _as_written(
    name: str, fields: Mapping[str, object], target: ServerFile, around: HostContext
) -> tuple[ServerSettings | None, list[Finding]]:
    """The server as the hub's own file would have it."""
    place = Place(target.file).at(*target.root_of(name)).at(name)
    loaded = LoadedServers()
    entry = entry_of(name, dict(fields), place, target.document.dialect)
    loaded.add([entry], context_of(target.file, target.file.parent, around))
    return next(iter(loaded.servers.values()), None), [replace(finding, file=None) for finding in loaded.findings]


def _plain_table(fields: Mapping[str, object]) -> dict[str, object]:
    """An entry with values that every JSON encoder can write."""

    def plain(value: object) -> object:
        match value:
            case dict():
                return {str(key): plain(item) for key, item in value.items()}
            case list() | tuple():
                return [plain(item) for item in value]
            case bool() | None:
                return value
            case int() if abs(value) < _LONG:
                return int(value)
            case float():
                return float(value)
            case _:
                return str(value)

    return {key: plain(value) for key, value in fields.items()}


_LONG = 1 << 63


def _free_name(name: str, used: Collection[str]) -> str:
    if name not in used:
        return name
    return next(free for number in range(2, len(used) + 3) if (free := f"{name[:46]}-{number}") not in used)


# -- the form of a paste -------------------------------------------------------------------------------------


def _read(text: str, folder: Path) -> Paste:
    """Recognize the form of a paste and parse it.

    Raises:
        CannotPreview: it has no known form, or breaks the rules of its form.
    """
    text = text.strip().removeprefix("\ufeff").strip()
    lines = [line.strip() for line in text.splitlines()]
    first = next((line for line in lines if line and not line.startswith(("#", "//"))), "")
    if not first:
        raise CannotPreview("The text is empty. Paste a client's JSON, a URL, or a command.")
    if _URL.fullmatch(text):
        return Paste("url", _one(folder / "pasted.json", _name_of_url(text), {"url": text}))
    if first.startswith(("{", '"')) or (first.startswith("[") and not _TOML_HEADER.fullmatch(first)):
        return Paste("json", _json(text, folder / "pasted.json"))
    if first.startswith("["):
        return Paste("toml", _table(text, folder / "pasted.toml"))
    if _TOML_KEY.match(first):
        try:
            return Paste("toml", _table(text, folder / "pasted.toml"))
        except CannotPreview:
            if _VARIABLE.match(first) is None:  # `NAME=value program` is a command
                raise
    elif _YAML_KEY.match(first):
        return Paste("yaml", _table(text, folder / "pasted.yaml"))
    return Paste("command", _command(text, folder / "pasted.json"))


def _json(text: str, file: Path) -> ParsedFile:
    if text.startswith('"'):  # members without their braces, as documentation often shows them
        text = f"{{{text.rstrip().removesuffix(',')}\n}}"
    if text.startswith("["):
        try:
            listed = json.loads(strict_json(text))
        except (ValueError, RecursionError) as error:
            raise CannotPreview(
                "The text begins like a JSON list but is not valid JSON. Copy it again, to its last ]."
            ) from error
        return ParsedFile(file, {"mcpServers": listed}, STANDARD)
    return _table(text, file)


def _table(text: str, file: Path) -> ParsedFile:
    try:
        table, warnings = parse(file, text)
    except ConfigError as error:
        raise _refused(error) from error
    if _is_entry(table):
        name = table.pop("name", None)
        return _one(file, name if isinstance(name, str) and name else _name_of_entry(table), table, warnings)
    if isinstance(table.get("name"), str) and isinstance(table.get("config"), dict):  # as registries show it
        return _one(file, str(table["name"]), table["config"], warnings)
    if table and all(isinstance(each, dict) and _is_entry(each) for each in table.values()):
        return ParsedFile(file, {"mcpServers": table}, STANDARD, warnings)
    dialect = VSCODE if "inputs" in table and "servers" in table else dialect_of(file, table)
    if dialect is OWN and not table.keys() & {"servers", "mcpServers"}:
        dialect = STANDARD  # a table of entries, or another client's keys in TOML or YAML
    return ParsedFile(file, table, dialect, warnings)


def _is_entry(table: Mapping[str, object]) -> bool:
    return any(isinstance(table.get(key), str | list) for key in _ENTRY_KEYS)


def _one(file: Path, name: str, fields: object, warnings: tuple[Finding, ...] = ()) -> ParsedFile:
    return ParsedFile(file, {"mcpServers": {name: fields}}, STANDARD, warnings)


def _refused(error: ConfigError) -> CannotPreview:
    finding = replace(error.findings[0], file=None)
    advice = "Copy the whole text again, or correct that line" if finding.code == finding_codes.SYNTAX else finding.fix
    problem = finding.problem
    problem = f"L{problem[1:]}" if problem.startswith("line ") else problem
    return CannotPreview(f"{problem}. {advice[:1].upper()}{advice[1:]}.")


# -- commands ------------------------------------------------------------------------------------------------


def _command(text: str, file: Path) -> ParsedFile:
    text = re.sub(r"\\\r?\n", " ", text).removeprefix("$ ").strip()
    if "\n" in text:
        advice = "Paste one command; end a line that goes on with a backslash."
        raise CannotPreview(f"The text has several lines and is neither JSON, TOML nor YAML. {advice}")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CannotPreview("The command has a quote that does not end. Copy it again, to its last quote.") from error
    variables: dict[str, object] = {}
    while words and (match := _VARIABLE.fullmatch(words[0])):
        variables[match[1]] = match[2]
        words.pop(0)
    if not words:
        raise CannotPreview("The text sets variables and names no program. Paste the whole command.")
    if shell := next((word for word in words if word in _SHELL_WORDS), None):
        advice = "Put it into a script, or paste: sh -c 'COMMAND'"
        raise CannotPreview(f"{shell} needs a shell, and the hub starts programs without one. {advice}")
    if (added := _added_by_client(words)) is not None:
        return _one(file, *added)
    fields: dict[str, object] = {"command": words[0], "args": words[1:]}
    fields |= {"env": variables} if variables else {}
    return _one(file, _name_of_entry(fields), fields)


def _added_by_client(words: list[str]) -> tuple[str, dict[str, object]] | None:
    """The server that `claude mcp add`, its like in other clients, or `isthmus add` would add; None for programs.

    Raises:
        CannotPreview: an argument is missing.
    """
    program = Path(words[0]).name
    if program in _CLIENT_COMMANDS and words[1:3] in (["mcp", "add"], ["mcp", "add-json"]):
        is_json, rest = words[2] == "add-json", words[3:]
    elif program == OWN.name and words[1:2] == ["add"]:
        is_json, rest = False, words[2:]
    else:
        return None
    options: dict[str, list[str]] = {}
    named: list[str] = []
    while rest:
        word = rest.pop(0)
        if word == "--":
            named += rest
            break
        is_program = len(named) > 1 and _URL.fullmatch(named[1]) is None  # what follows belongs to it
        if is_program or not word.startswith("-"):
            named.append(word)
        elif "=" in word:
            options.setdefault(word.partition("=")[0], []).append(word.partition("=")[2])
        elif rest and word not in _FLAGS:
            options.setdefault(word, []).append(rest.pop(0))
    named += options.get("--url", [])
    if len(named) < 2:
        raise CannotPreview(f"{' '.join(words[:3])} needs a name and a URL or a command. Paste the whole line.")
    name, first, *others = named
    if is_json:
        try:
            entry = json.loads(first)
        except (ValueError, RecursionError) as error:
            raise CannotPreview("The entry of add-json is not JSON. Paste the whole line, with its quotes.") from error
        return name, entry
    if _URL.fullmatch(first):
        kind = next((value for key in ("--transport", "-t", "--type") for value in options.get(key, ())), None)
        lines = [*options.get("--header", ()), *options.get("-H", ())]
        headers = dict(pair for line in lines for pair in _pair(line, ":"))
        return name, {"url": first, **({"type": kind} if kind else {}), **({"headers": headers} if headers else {})}
    lines = [*options.get("--env", ()), *options.get("-e", ())]
    env = dict(pair for line in lines for pair in _pair(line, "="))
    return name, {"command": first, "args": others, **({"env": env} if env else {})}


def _pair(line: str, mark: str) -> Iterator[tuple[str, str]]:
    name, found, value = line.partition(mark)
    if found:
        yield name.strip(), value.strip()


# -- names ---------------------------------------------------------------------------------------------------


def _name_of_entry(fields: Mapping[str, object]) -> str:
    """A name for an entry that has none, from its address or its command."""
    for key in ("url", "serverUrl", "httpUrl", "server_url", "uri", "endpoint", "rpc", "agent"):
        if isinstance(url := fields.get(key), str):
            return _name_of_url(url)
    command, args = fields.get("command", fields.get("cmd")), fields.get("args")
    words = [str(word) for word in command] if isinstance(command, list) else [str(command or "")]
    words += [str(word) for word in args] if isinstance(args, list) else []
    if words and words[0]:
        return _name_of_command(words)
    return legal_server_name(str(fields.get("python") or "server").rpartition(".")[2] or "server")


def _name_of_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "server"
    labels = host.split(".")
    if host == "localhost" or ":" in host or all(label.isdecimal() for label in labels):
        return f"local-{port}" if port else "local"
    telling = [label for label in labels[:-1] if label not in _DULL_LABELS]
    return legal_server_name(telling[-1] if telling else labels[0])


def _name_of_command(words: list[str]) -> str:
    program = re.split(r"[/\\]", words[0])[-1].removesuffix(".exe").removesuffix(".cmd")
    name = program
    if program in _RUNNERS or program in _INTERPRETERS:
        following, rest = "", words[1:]
        while rest:
            word = rest.pop(0)
            if word in _WITH_VALUE:
                rest = rest[1:]
            elif word not in ("--", "-") and not word.startswith("-") and word not in _RUNNER_WORDS:
                following = word
                break
        name = following or program
    scope = ""
    if not name.startswith((".", "/", "~")) and "/" in name:
        scope, _, name = name.rpartition("/")  # a scope or a registry
    name = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    name = re.split(r"(?<!^)[@:]|==", name)[0].lstrip("@")  # a version or a tag
    name = re.sub(r"\.(?:py|m?js|c?js|ts|sh|rb|jar|exe)$", "", name)
    plain = _AFFIXES.sub("", name.replace("_", "-"))
    if plain in ("", "mcp", "server"):  # `@playwright/mcp` says it in its scope
        plain = re.split(r"[/@]", scope)[-1]
    return legal_server_name((plain if len(plain) > 1 else name) or "server")


# -- what goes into the file ---------------------------------------------------------------------------------


def _place(target: ServerFile, root: Keys) -> str:
    suffix, name = target.file.suffix.lower(), ".".join(root)
    if suffix == ".toml":
        return "At the end of the file."
    if not target.text:
        return "The whole file."
    if not _has_root(target, root):
        is_empty = _is_there(target, root)  # in YAML braces, which lines cannot follow
        return f"In place of the empty {name}." if is_empty else "In the outermost object of the file."
    if suffix in (".yaml", ".yml"):
        return f"Below {name}, after the last server."
    return f"Inside {name}: a comma after the last server, then this." if target.at(root) else f"Inside {name}."


def _has_root(target: ServerFile, root: Keys) -> bool:
    """Whether lines for servers can go into a table that the file has."""
    is_yaml = target.file.suffix.lower() in (".yaml", ".yml")
    return bool(target.at(root)) if is_yaml else _is_there(target, root)


def _is_there(target: ServerFile, root: Keys) -> bool:
    *above, last = root
    return last in target.at(above)


def _snippet(target: ServerFile, root: Keys, tables: Mapping[str, Mapping[str, object]]) -> str:
    """The lines for servers in the format of the file; with the table around them if the file has none yet."""
    suffix = target.file.suffix.lower()
    if suffix == ".toml":
        return "\n".join(toml_table(name, fields, ".".join(root)) for name, fields in tables.items())
    has_root = _has_root(target, root)
    content: object = tables
    for key in () if has_root else reversed(root):
        content = {key: content}
    if suffix in (".yaml", ".yml"):
        import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - it loads slowly, and few files are YAML

        made: str = yaml.safe_dump(
            json.loads(json.dumps(content, default=str)),
            sort_keys=False, allow_unicode=True, default_flow_style=False, width=4096,
        )  # fmt: skip
        indent = " " * 2 * len(root) if has_root else ""
        return "".join(f"{indent}{line}\n" for line in made.splitlines())
    made = _json_lines(content, len(root) + 1 if not has_root else 1)
    if not target.text:
        return f"{made}\n"
    # Without the braces: the members go into an object that is there.
    return "\n".join(line.removeprefix("  ") for line in made.splitlines()[1:-1]) + "\n"


def _json_lines(content: object, depth: int, indent: str = "") -> str:
    """JSON with one key of a server in a line: `depth` objects are around the entries."""
    if depth < 0 or not isinstance(content, dict) or not content:
        return json.dumps(content, ensure_ascii=False, default=str)
    inner = indent + "  "
    members = [
        f"{inner}{json.dumps(key, ensure_ascii=False)}: {_json_lines(value, depth - 1, inner)}"
        for key, value in content.items()
    ]
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


def _not_editable(target: ServerFile, root: Keys, tables: Mapping[str, Mapping[str, object]]) -> list[Finding]:
    """A finding if the file is written so that adding to it could change something else."""
    text = target.text
    try:
        for name, fields in tables.items():
            text = edit(target.file, text, (*root, name), fields)
    except CannotEdit as error:
        message = f"cannot be extended as it is: {error}"
        return [Place(target.file).finding(message, advice="add the server by hand", code=finding_codes.SYNTAX)]
    return []


def _add_command(name: str, fields: Mapping[str, object], target: ServerFile, around: HostContext) -> str | None:
    """The `isthmus add` for an entry; None if it lacks an option for one of the keys."""
    options: list[str] = []
    rest = dict(fields)
    way = next((key for key in ("command", "url", "rpc", "agent") if key in rest), None)
    if way is None:
        return None
    goal = str(rest.pop(way))
    if way == "command":
        args, env = rest.pop("args", []), rest.pop("env", {})
        options += [word for key, value in _texts(env).items() for word in ("--env", f"{key}={value}")]
        if "cwd" in rest:
            options += ["--cwd", str(rest.pop("cwd"))]
        words = ["--", goal, *(map(str, args) if isinstance(args, list) else ())]
    else:
        kind = rest.pop("type", None)
        if way == "url" and kind in ("http", "sse"):
            options += ["--type", str(kind)]
        elif way != "url":
            options += ["--type", way]
        lines = _texts(rest.pop("headers", {}))
        options += [word for key, value in lines.items() for word in ("--header", f"{key}: {value}")]
        words = [goal]
    if rest:
        return None
    if target.file not in usual_files(around.environment, around.home):
        options += ["--config", str(target.file)]
    return shlex.join(["isthmus", "add", name, *(words + options if way != "command" else options + words)])


def _texts(table: object) -> dict[str, str]:
    return {str(key): str(value) for key, value in table.items()} if isinstance(table, dict) else {}
