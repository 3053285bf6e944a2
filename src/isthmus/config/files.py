"""Finding and reading the configuration file.

Which file it is, whose it is, and its text as a table of plain values (`config.formats`); what the values mean
is not known here. Called by `config.load`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from isthmus.config import codes, values
from isthmus.config.dialects.clients import Dialect
from isthmus.config.dialects.places import dialect_of
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.formats import PARSERS, parse

# Opening a pipe would wait for a writer without it; Windows has neither the flag nor the wait.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class FileTooLong(ValueError):
    """A file with more in it than it may have."""


def read_regular_file(file: Path, limit_bytes: int) -> bytes:
    """Return what is in a regular file.

    Raises:
        OSError: it cannot be read, or is no regular file.
        TooLong: there is more in it than `limit_bytes`.
        ValueError: no file can have such a path.
    """
    with open(os.open(file, _FLAGS), "rb") as stream:
        _check_kind(os.fstat(stream.fileno()).st_mode)
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise FileTooLong(f"over {limit_bytes} bytes")
    return content


def _check_kind(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file")


FILE_VARIABLE = "ISTHMUS_CONFIG"

FILE_BYTES_MAX = 32 * 1024 * 1024
"""Some clients keep their whole history beside their servers, but not more than this."""


@dataclass(frozen=True, slots=True)
class Document:
    """A file as read."""

    file: Path
    table: dict[str, object]
    dialect: Dialect
    warnings: tuple[Finding, ...] = ()

    def section(self, root: str) -> dict[str, object]:
        """Return one of the outermost tables; an absent one is empty.

        Raises:
            ConfigError: something else is in its place.
        """
        try:
            return values.table(root, self.table.get(root, {}))
        except ValueError as error:
            raise ConfigError(Place(self.file).mistake(error)) from error

    def base(self, home: Path, cwd: Path | None = None) -> Path:
        """Return the folder that relative paths in it are seen from.

        A client's file lies in a hidden folder of the project that it is about; one in the home folder is about
        whichever project is open.
        """
        if self.dialect.is_own or (self.file.parent == cwd and not _is_hidden(cwd)):
            return self.file.parent  # a working folder may well be below a hidden one
        hidden = next(filter(_is_hidden, self.file.parents), None)
        folder = self.file.parent if hidden is None else hidden.parent
        return cwd if cwd is not None and folder == home else folder


def _is_hidden(folder: Path) -> bool:
    return folder.name.startswith(".") and folder.name != ".."


def find_file(named: Path | None, environment: Mapping[str, str], cwd: Path, home: Path) -> Path | None:
    """Return the file to read, None if there is none anywhere.

    Raises:
        ConfigError: a file was named, by argument or by `ISTHMUS_CONFIG`, and is not there.
    """
    searched = search_paths(named, environment, cwd, home)
    if named is not None or environment.get(FILE_VARIABLE):
        return _existing(searched[0])
    return next((place for place in searched if place.is_file()), None)


def search_paths(named: Path | None, environment: Mapping[str, str], cwd: Path, home: Path) -> tuple[Path, ...]:
    """Return where the file is looked for, first choice first: where it is said to be, or the usual places."""
    if named is None and environment.get(FILE_VARIABLE):
        named = Path(environment[FILE_VARIABLE])
    if named is not None:
        return (resolve_path(str(named), cwd, home),)
    return (
        cwd / "isthmus.toml",
        cwd / "mcp.json",
        home / ".config" / "isthmus" / "isthmus.toml",
        home / ".isthmus" / "mcp.json",
    )


NO_HOME = Path(os.devnull, "home")
"""Stands for the folder of a user who has none: nobody can make it."""


def home_folder() -> Path:
    """The user's folder. Who has none, as in many containers, has nothing there, and can keep nothing there."""
    try:
        return Path.home()
    except RuntimeError:
        return NO_HOME


def resolve_path(path: str, folder: Path, home: Path) -> Path:
    """Return `path` as seen from `folder`, with a leading `~` as `home`."""
    if path == "~" or path.startswith("~/"):
        return home / path[2:]
    return folder / path


def resolve_program(command: str, folder: Path, home: Path) -> str:
    """Return a command as it is started: a path as seen from `folder`, a mere name as it is, for `PATH` to find."""
    is_path = "/" in command or os.sep in command
    # With a variable that is not set nobody knows where it begins.
    return str(resolve_path(command, folder, home)) if is_path and not command.startswith("${") else command


def _existing(file: Path) -> Path:
    if not file.is_file():
        why = "is not a file" if file.exists() else "does not exist"
        advice = "it was named as the configuration"
        raise ConfigError(Place(None, str(file)).finding(why, advice=advice, code=codes.MISSING_FILE))
    return file


def read_document(file: Path, dialect: Dialect | None = None) -> Document:
    """Read a file into a document; whose it is shows by its path and contents, unless said.

    Raises:
        ConfigError: it cannot be read, or its text breaks the rules of its format.
    """
    if file.suffix.lower() not in PARSERS:
        place, wanted = Place(file), "must be a .toml, .yaml or .json file"
        raise ConfigError(place.finding(wanted, value=f"{file.suffix!r}", code=codes.UNREADABLE_FILE))
    table, warnings = parse(file, _text_of(file))
    return Document(file, table, dialect or dialect_of(file, table), warnings)


def _text_of(file: Path) -> str:
    try:
        # Editors on Windows put a byte order mark in front, which no format allows.
        return read_regular_file(file, FILE_BYTES_MAX).decode("utf-8-sig")
    except FileTooLong as error:
        raise ConfigError(Place(file).finding("is longer than 32 MiB", code=codes.UNREADABLE_FILE)) from error
    except OSError as error:
        told = Place(file).finding(f"cannot be read: {error.strerror}", code=codes.UNREADABLE_FILE)
        raise ConfigError(told) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        told = Place(file, f"line {line}").finding("is not UTF-8 text", code=codes.UNREADABLE_FILE)
        raise ConfigError(told) from error
