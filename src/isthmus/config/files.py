"""Finding and reading the configuration file.

Which file it is, and its text as a table of plain values; what the values mean is not known here. TOML and
JSON are told apart by extension; another format is one more row in `_PARSERS`. Called by `config.load`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from isthmus.config import values
from isthmus.config.findings import ConfigError, Finding, Place

FILE_VARIABLE = "ISTHMUS_CONFIG"

_LAST_COMMA = re.compile(r",\s*[}\]]")
_TOML_POSITION = re.compile(r"\s*\(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True, slots=True)
class Document:
    """A file as read."""

    file: Path
    table: dict[str, object]
    is_own: bool
    """Whether it is written for Isthmus alone: then an unknown key is a mistake and not somebody else's."""
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


def find(named: Path | None, environment: Mapping[str, str], cwd: Path, home: Path) -> Path | None:
    """Return the file to read, None if there is none anywhere.

    Raises:
        ConfigError: a file was named, by argument or by `ISTHMUS_CONFIG`, and is not there.
    """
    if named is None and environment.get(FILE_VARIABLE):
        named = Path(environment[FILE_VARIABLE])
    if named is not None:
        return _existing(located(str(named), cwd, home))
    return next((place for place in _usual_places(cwd, home) if place.is_file()), None)


def _usual_places(cwd: Path, home: Path) -> tuple[Path, ...]:
    return (
        cwd / "isthmus.toml",
        cwd / "mcp.json",
        home / ".config" / "isthmus" / "isthmus.toml",
        home / ".isthmus" / "mcp.json",
    )


def located(path: str, folder: Path, home: Path) -> Path:
    """Return `path` as seen from `folder`, with a leading `~` as `home`."""
    if path == "~" or path.startswith("~/"):
        return home / path[2:]
    return folder / path


def _existing(file: Path) -> Path:
    if not file.is_file():
        why = "is not a file" if file.exists() else "does not exist"
        raise ConfigError(Place(None, str(file)).finding(why, advice="it was named as the configuration"))
    return file


def read(file: Path) -> Document:
    """Read a file into a document.

    Raises:
        ConfigError: it cannot be read, or its text breaks the rules of its format.
    """
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        raise ConfigError(Place(file).finding("must be a .toml or a .json file", value=f"{file.suffix!r}"))
    return parse(file, _text_of(file))


def _text_of(file: Path) -> str:
    try:
        # Editors on Windows put a byte order mark in front, which neither format allows.
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(Place(file).finding(f"cannot be read: {error.strerror}")) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(Place(file, f"line {line}").finding("is not UTF-8 text")) from error


def _toml(file: Path, text: str) -> Document:
    try:
        return Document(file, tomllib.loads(text), is_own=True)
    except tomllib.TOMLDecodeError as error:
        why, position = str(error), _TOML_POSITION.search(str(error))
        if position:
            raise _syntax(file, int(position[1]), int(position[2]), why[: position.start()]) from error
        lines = text.split("\n")
        raise _syntax(file, len(lines), len(lines[-1]) + 1, why) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(Place(file).finding(f"cannot be read as TOML: {error}")) from error


def _json(file: Path, text: str) -> Document:
    place, repeated = Place(file), list[str]()
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _table(pairs, repeated))
    except json.JSONDecodeError as error:
        raise _syntax(file, error.lineno, error.colno, error.msg, advice=_advice(text, error.pos)) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(place.finding(f"cannot be read as JSON: {error}")) from error
    if not isinstance(value, dict):
        raise ConfigError(place.finding("must hold a JSON object, not another value"))
    warnings = tuple(place.at(key).finding("is written twice in one object; the last one counts") for key in repeated)
    return Document(file, value, is_own=file.stem == "isthmus", warnings=warnings)


def _table(pairs: list[tuple[str, object]], repeated: list[str]) -> dict[str, object]:
    """Make a table and note the keys that JSON would silently take the last of."""
    table: dict[str, object] = {}
    for key, value in pairs:
        if key in table:
            repeated.append(key)
        table[key] = value
    return table


def _advice(text: str, position: int) -> str:
    """Name the two things that people write although JSON has neither."""
    if text.startswith(("//", "/*"), position):
        return "JSON has no comments"
    comma = _LAST_COMMA.match(text, text.rfind(",", 0, position + 1)) if "," in text[: position + 1] else None
    if comma and comma.end() > position:
        return "JSON has no comma after the last item"
    return ""


def _syntax(file: Path, line: int, column: int, why: str, *, advice: str = "") -> ConfigError:
    form = file.suffix[1:].upper()
    return ConfigError(Place(file, f"line {line}, column {column}").finding(f"is not {form}: {why}", advice=advice))


_PARSERS: dict[str, Callable[[Path, str], Document]] = {".toml": _toml, ".json": _json}
