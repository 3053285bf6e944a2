"""Replace variables: `${VAR}`, `${file:PATH}`, `env:NAME`, `file:PATH`, `keyring:NAME`, and read `.env` files.

The environment is passed in; the process's own is never read here. A variable may hold a secret, so every value is
remembered for redaction. Other clients' forms are translated before (`config.client_formats`). Called by
`config.entries_to_settings`, `config.callers` and `config.tables`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from isthmus.config.files import FileTooLong, read_regular_file, resolve_path
from isthmus.config.finding_codes import ENV_FILE, UNREADABLE_SECRET, UNRESOLVED_VARIABLE
from isthmus.config.findings import CodedError, ConfigError, Finding, Place

SECRET_FILE_BYTES = 64 * 1024
"""More than any key or certificate; a larger file is a mistake."""

ENV_FILE_BYTES = 1024 * 1024
"""More variables than a process can have."""

ENV_NAME = ".env"

KEYRING_SERVICE = "isthmus"
"""The default service in the keyring."""

_PUBLIC = frozenset({"HOME", "USER", "LOGNAME", "PATH", "PWD", "TMPDIR", "SHELL", "LANG", "HOSTNAME"})
"""Variables that are not secrets: logs stay readable with the home folder in them."""

_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
# Without a name there is only the default: `${:-file:x}` escapes a text that would be a reference.
_REFERENCE = re.compile(r"(?:(?:env:)?([A-Za-z_][A-Za-z0-9_]*))?(?::-(.*))?", re.DOTALL)
_FILE = "file:"
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*)", re.DOTALL)
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_SINGLE = re.compile(r"'([^']*)'\s*(?:#.*)?")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


SecretSource: TypeAlias = Callable[[str], str]
"""Returns a secret by its name, or raises."""


@dataclass(slots=True)
class UsedVariables:
    """What one entry has used so far."""

    secrets: set[str] = field(default_factory=set)
    unresolved: list[str] = field(default_factory=list)
    """Placeholders of unset variables; the caller clears the list."""


class Variables:
    """The variables that one file can use."""

    def __init__(
        self,
        values: Mapping[str, str],
        folder: Path,
        home: Path,
        sources: Mapping[str, SecretSource] | None = None,
    ) -> None:
        """`sources` are those of extensions, by their prefix."""
        self._values = values
        self._folder = folder
        self._home = home
        self._sources = sources or {}

    def expand(self, text: str, used: UsedVariables) -> str:
        """Return `text` with `${VAR}`, `${VAR:-default}` and `${file:PATH}` replaced.

        A default replaces a variable that is unset or empty. A placeholder that cannot be resolved stays: an empty text
        would start servers with half a command. Replaced text is not expanded again.
        """

        def value_of(match: re.Match[str]) -> str:
            if match[1].startswith(_FILE):
                try:
                    return self._from_file("", match[1].removeprefix(_FILE), used)
                except ValueError:
                    used.unresolved.append(match[0])
                    return match[0]
            reference = _REFERENCE.fullmatch(match[1])
            name, default = reference.groups() if reference else (None, None)
            value = self._values.get(name) if name else None
            if value or (value is not None and default is None):
                return _mark_secret(value, name, used)
            if default is not None:
                return default
            used.unresolved.append(match[0])
            return match[0]

        return _PLACEHOLDER.sub(value_of, text)

    def secret(self, key: str, text: str, used: UsedVariables) -> str:
        """Return a secret that may be literal, `env:NAME`, `file:PATH`, `keyring:NAME` or hold `${VAR}`.

        Raises:
            ValueError: what it refers to is not there, in the words "<key> must …".
        """
        kind, colon, rest = text.partition(":")
        match kind if colon else "":
            case "env":
                if (value := self._values.get(rest)) is None:
                    raise CodedError(UNRESOLVED_VARIABLE, f"{key} must name a variable that is set, not env:{rest}")
                return _mark_secret(value.strip(), None, used)
            case "file":
                return self._from_file(key, rest, used)
            case "keyring":
                return _from_keyring(key, rest, used)
            case _ if kind in self._sources and not rest.startswith("//"):  # that would be an address
                return self._from_source(key, kind, rest, used)
            case _:
                return self.expand(text, used)

    def _from_source(self, key: str, kind: str, name: str, used: UsedVariables) -> str:
        try:
            found: object = self._sources[kind](name)
        except ConfigError:
            raise
        except Exception as error:
            # Only the type of the error: its message may contain a secret.
            text = f"{key} must name a secret that {kind} has, not {kind}:{name} ({type(error).__name__})"
            raise CodedError(UNREADABLE_SECRET, text) from error
        if not isinstance(found, str) or not found:
            raise CodedError(UNREADABLE_SECRET, f"{key} must name a secret that {kind} has, not {kind}:{name}")
        return _mark_secret(found, None, used)

    def _from_file(self, key: str, path: str, used: UsedVariables) -> str:
        try:
            content = read_regular_file(resolve_path(path, self._folder, self._home), SECRET_FILE_BYTES)
            return _mark_secret(content.decode().strip(), None, used)
        except OSError as error:
            text = f"{key} must name a readable file, not file:{path} ({error.strerror})"
            raise CodedError(UNREADABLE_SECRET, text) from error
        except ValueError as error:
            raise CodedError(UNREADABLE_SECRET, f"{key} must name a short text file, not file:{path}") from error


def _from_keyring(key: str, name: str, used: UsedVariables) -> str:
    """Read the system's keyring; the package `keyring` is loaded only for this."""
    service, slash, entry = name.rpartition("/")
    service, entry = (service, entry) if slash else (KEYRING_SERVICE, name)
    if not entry or not service:
        raise CodedError(UNREADABLE_SECRET, f"{key} must be keyring:NAME or keyring:SERVICE/NAME, not keyring:{name}")
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        message = (
            f"{key} must be env: or file: without the package keyring (isthmus[keyring] has it), not keyring:{name}"
        )
        raise CodedError(UNREADABLE_SECRET, message) from None
    try:
        value = keyring.get_password(service, entry)
    except Exception as error:  # noqa: BLE001 - each system's keyring fails in its own way, and none may stop a hub
        message = f"{key} must be in a keyring that opens, not keyring:{name} ({type(error).__name__})"
        raise CodedError(UNREADABLE_SECRET, message) from None
    if value is None:
        message = f"{key} must be in the keyring (put it there with: keyring set {service} {entry}), not keyring:{name}"
        raise CodedError(UNREADABLE_SECRET, message)
    return _mark_secret(str(value).strip(), None, used)


def _mark_secret(value: str, name: str | None, used: UsedVariables) -> str:
    if value and name not in _PUBLIC:
        used.secrets.add(value)
    return value


def variables_of(file: Path, environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[Finding, ...]]:
    """Return the variables that a file can use, with those of a `.env` beside it; the real environment wins."""
    beside = file.with_name(ENV_NAME)
    if not beside.exists():
        return dict(environment), ()
    values, findings = read_env(beside)
    return {**values, **environment}, findings


def read_env(file: Path, named_at: Place | None = None) -> tuple[dict[str, str], tuple[Finding, ...]]:
    """Return the variables of a `.env` file, with findings.

    `named_at` is where an entry names the file; without it, the file is the `.env` beside the configuration.
    """
    try:
        text = read_regular_file(file, ENV_FILE_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            why = f"cannot be read ({error.strerror})"
        else:
            why = "is longer than 1 MiB" if isinstance(error, FileTooLong) else "cannot be read as text"
        if named_at is None:
            return {}, (Place(file).finding(f"{why} and is skipped", code=ENV_FILE),)
        advice = f"create that file, as lines of NAME=value, or correct {named_at.path.rpartition('.')[2]}"
        message = f"names {file}, which {why}; the server starts without its variables"
        return {}, (named_at.finding(message, advice=advice, code=ENV_FILE),)
    values, bad_lines = parse_env(text)
    # The line is not quoted: it may be a secret without its name.
    message = "is not NAME=value and is skipped"
    return values, tuple(Place(file, f"line {line}").finding(message, code=ENV_FILE) for line in bad_lines)


def parse_env(text: str) -> tuple[dict[str, str], tuple[int, ...]]:
    """Return the values of a `.env` file, and the numbers of invalid lines."""
    values: dict[str, str] = {}
    bad_lines: list[int] = []
    for position, line in enumerate(map(str.strip, text.split("\n")), start=1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        value = _unquoted(match[2]) if match else None
        if match is None or value is None:
            bad_lines.append(position)
        else:
            values[match[1]] = value
    return values, tuple(bad_lines)


def _unquoted(value: str) -> str | None:
    """Return a value without its quotes; None if they do not close."""
    if value.startswith('"'):
        match = _DOUBLE.fullmatch(value)
        return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), match[1]) if match else None
    if value.startswith("'"):
        match = _SINGLE.fullmatch(value)
        return match[1] if match else None
    return _COMMENT.sub("", value, count=1).rstrip()
