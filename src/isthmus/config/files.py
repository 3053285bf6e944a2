"""Find and read the configuration file, and resolve paths in it.

`config.formats` parses the text and `config.client_formats` recognizes the client. Nothing here knows what the values
mean.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from isthmus.config import finding_codes, values
from isthmus.config.client_formats import PROJECT_NAMES, ClientDialect, dialect_of
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.formats import PARSERS, parse

FILE_VARIABLE = "ISTHMUS_CONFIG"

MAP_VARIABLE = "MCP_SERVER_MAP"
"""Names further servers, by address."""

STATE = "state"
"""The key of `[hub]` with the state folder."""

STATES_FOLDER = "hubs"
"""The folder in the usual state folder with those of configuration files, one each."""

FILE_BYTES_MAX = 32 * 1024 * 1024
"""Some clients store their whole history in the file with their servers, but not more than this."""

NO_HOME = Path(os.devnull, "home")
"""Stands for the folder of a user without one: it can never exist."""

# Without O_NONBLOCK, opening a pipe waits for a writer. Windows has neither the flag nor the wait.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """A file as read."""

    file: Path
    table: dict[str, object]
    dialect: ClientDialect
    warnings: tuple[Finding, ...] = ()

    def section(self, root: str) -> dict[str, object]:
        """Return one of the outermost tables; a missing one is empty.

        Raises:
            ConfigError: it is not a table.
        """
        try:
            return values.table(root, self.table.get(root, {}))
        except ValueError as error:
            raise ConfigError(Place(self.file).mistake(error)) from error

    def base(self, home: Path, cwd: Path | None = None) -> Path:
        """Return the folder where relative paths in the file start.

        A client's file is in a hidden folder of its project; one in the home folder is for whichever project is open.
        """
        if self.dialect.is_own:
            return self.file.parent
        hidden = self._hidden_folder(cwd)
        folder = self.file.parent if hidden is None else hidden.parent
        return cwd if cwd is not None and folder == home else folder

    def project(self, home: Path, cwd: Path | None = None) -> Path | None:
        """Return the project that the file belongs to, where its servers are meant to run.

        None for our own file, whose servers run where the hub does, and for a file of all the user's projects.
        """
        hidden = self._hidden_folder(cwd)
        if self.dialect.is_own or (hidden is not None and hidden.parent == home):
            return None
        if hidden is None and not self.dialect.has_hub and self.file.name not in PROJECT_NAMES:
            return None
        return Path(os.path.normpath(self.file.parent if hidden is None else hidden.parent))

    def _hidden_folder(self, cwd: Path | None) -> Path | None:
        if self.file.parent == cwd and not _is_hidden(self.file.parent):
            return None  # the working folder itself may be below a hidden one
        return next(filter(_is_hidden, self.file.parents), None)


FileVersion: TypeAlias = tuple[int, ...]
"""Identifies a version of a file without reading it."""


def version_of(status: os.stat_result) -> FileVersion:
    """The version of a file that has this status."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_hidden(folder: Path) -> bool:
    return folder.name.startswith(".") and folder.name != ".."


def find_file(named: Path | None, environment: Mapping[str, str], cwd: Path, home: Path) -> Path | None:
    """Return the file to read; None if no place has one.

    Raises:
        ConfigError: a file is named, by argument or by `ISTHMUS_CONFIG`, and does not exist.
    """
    searched = search_paths(named, environment, cwd, home)
    if named is None and not environment.get(FILE_VARIABLE):
        return next((place for place in searched if os.path.isfile(place)), None)
    [file] = searched
    # Not the methods of `Path`, which raise for a name that is too long.
    if not os.path.isfile(file):
        why = "is not a file" if os.path.exists(file) else "does not exist"
        place = Place(None, str(file))
        raise ConfigError(
            place.finding(why, advice="it was named as the configuration", code=finding_codes.MISSING_FILE)
        )
    return file


def search_paths(named: Path | None, environment: Mapping[str, str], cwd: Path, home: Path) -> tuple[Path, ...]:
    """Return where the hub looks for the file, first choice first: only the named path if there is one."""
    if named is None and environment.get(FILE_VARIABLE):
        named = Path(environment[FILE_VARIABLE])
    if named is not None:
        file = resolve_path(str(named), cwd, home)
        # Only with `..`: the path of a symbolic link stays as it was named.
        return (Path(os.path.realpath(file.parent), file.name) if ".." in file.parts else file,)
    return (cwd / "isthmus.toml", cwd / "mcp.json", *usual_files(environment, home))


def usual_files(environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Return the places of the user's own configuration, which is used in every folder without another."""
    folders = (_base_folder("XDG_CONFIG_HOME", environment, home / ".config"), home / ".config")
    return (*dict.fromkeys(folder / "isthmus" / "isthmus.toml" for folder in folders), home / ".isthmus" / "mcp.json")


def _base_folder(variable: str, environment: Mapping[str, str], default: Path) -> Path:
    """Return a folder of the XDG specification, which says to ignore relative paths."""
    named = Path(environment.get(variable, ""))
    return named if named.is_absolute() else default


def read_document(file: Path, dialect: ClientDialect | None = None) -> ParsedFile:
    """Read a file; its path and content tell the dialect, unless it is given.

    Raises:
        ConfigError: the file cannot be read, or its text breaks the rules of its format.
    """
    if file.suffix.lower() not in PARSERS:
        message = "must be a .toml, .yaml or .json file"
        raise ConfigError(Place(file).finding(message, value=f"{file.suffix!r}", code=finding_codes.UNREADABLE_FILE))
    try:
        # Editors on Windows write a byte order mark, which no format allows.
        text = read_regular_file(file, FILE_BYTES_MAX).decode("utf-8-sig")
    except FileTooLong as error:
        raise ConfigError(Place(file).finding("is longer than 32 MiB", code=finding_codes.UNREADABLE_FILE)) from error
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise ConfigError(Place(file).finding(message, code=finding_codes.UNREADABLE_FILE)) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            Place(file, f"line {line}").finding("is not UTF-8 text", code=finding_codes.UNREADABLE_FILE)
        ) from error
    table, warnings = parse(file, text)
    return ParsedFile(file, table, dialect or dialect_of(file, table), warnings)


# -- state folders -------------------------------------------------------------------------------------------


def usual_state(environment: Mapping[str, str], home: Path) -> Path:
    """Return the state folder of a hub without a file, or with the user's own."""
    return _base_folder("XDG_STATE_HOME", environment, home / ".local" / "state") / "isthmus"


def derived_state(file: Path | None, environment: Mapping[str, str], home: Path) -> Path:
    """Return the state folder of a configuration that names none: each file has its own.

    The folder's name begins with the names of the file and its folder, for people, and ends with a digest of the path.
    """
    usual = usual_state(environment, home)
    if file is None or (path := file_identity(file)) in map(file_identity, usual_files(environment, home)):
        return usual
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{path.parent.name}-{path.stem}").strip("-.")[:48]
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    return usual / STATES_FOLDER / f"{readable or 'hub'}-{digest}"


def state_folder(document: ParsedFile | None, environment: Mapping[str, str], home: Path) -> Path:
    """Return the state folder that a file names, or its own."""
    if document is None:
        return derived_state(None, environment, home)
    named = document.section("hub").get(STATE) if document.dialect.has_hub else None
    if isinstance(named, str):
        return resolve_path(named, document.file.parent, home)
    return derived_state(document.file, environment, home)


def file_identity(file: Path) -> Path:
    """Return the one path of a configuration file, without links in its folder.

    The file itself may be a link whose goal changes with its content, as in mounted volumes of Kubernetes.
    """
    return Path(os.path.realpath(file.parent), file.name)


# -- paths ---------------------------------------------------------------------------------------------------


def home_folder() -> Path:
    """Return the user's folder; `NO_HOME` without a home, as in many containers."""
    try:
        return Path.home()
    except RuntimeError:
        return NO_HOME


def resolve_path(path: str, folder: Path, home: Path) -> Path:
    """Return `path` as seen from `folder`; a leading `~` is `home`."""
    if path == "~" or path.startswith("~/"):
        return home / path[2:]
    return folder / path


def resolve_program(command: str, folder: Path, home: Path) -> str:
    """Return the command to start: a path as seen from `folder`, or a plain name for `PATH`."""
    is_path = "/" in command or os.sep in command
    # A path that starts with an unset variable stays as it is.
    return str(resolve_path(command, folder, home)) if is_path and not command.startswith("${") else command


# -- contents ------------------------------------------------------------------------------------------------


class FileTooLong(ValueError):
    """A file longer than its limit."""


def read_regular_file(file: Path, limit_bytes: int) -> bytes:
    """Return the content of a regular file, never of a pipe or a device that might not end.

    Raises:
        OSError: it cannot be read, or is not a regular file.
        FileTooLong: it is longer than `limit_bytes`.
        ValueError: the path is invalid.
    """
    with open(os.open(file, _FLAGS), "rb") as stream:
        mode = os.fstat(stream.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise FileTooLong(f"over {limit_bytes} bytes")
    return content
