"""Read the files of other clients, found by a client's name or by a path.

The names come from `import` of our own file, or from `isthmus import`. A file that cannot be read is skipped with a
finding. Called by `config.load` and the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from isthmus.config import finding_codes, values
from isthmus.config.client_formats import CLIENTS, ClientDialect, places_of
from isthmus.config.extensions import Extension, Importer
from isthmus.config.files import FILE_BYTES_MAX, ParsedFile, read_document, read_regular_file, resolve_path
from isthmus.config.findings import ConfigError, Finding, Place, closest_match
from isthmus.config.formats import PARSERS

IMPORT = "import"
ALL = "all"
"""Means every client."""


@dataclass(frozen=True, slots=True)
class HostContext:
    """The environment and the folders of the process."""

    environment: Mapping[str, str]
    cwd: Path
    home: Path


@dataclass(slots=True)
class ClientFiles:
    """The files that were found."""

    documents: list[ParsedFile] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)
    """Files that exist and cannot be read."""
    sought: list[Path] = field(default_factory=list)
    """Paths that were searched, whether or not they exist."""
    findings: list[Finding] = field(default_factory=list)


def named_imports(document: ParsedFile) -> tuple[str, ...]:
    """Return the names and paths in `import` of our own file.

    Raises:
        ConfigError: it is not a list of texts.
    """
    if not document.dialect.is_own:
        return ()
    try:
        return values.texts(IMPORT, document.table.get(IMPORT, []))
    except ValueError as error:
        raise ConfigError(Place(document.file).mistake(error)) from error


def read_client_files(
    names: Iterable[str],
    place: Place,
    folder: Path,
    context: HostContext,
    dialect: ClientDialect | None = None,
    *,
    importers: Mapping[str, Extension] | None = None,
) -> ClientFiles:
    """Read the files of clients and the files at paths; relative paths start at `folder`.

    `place` is where the names are written; without a path, the command line. `importers` are clients that extensions
    add.

    Raises:
        ConfigError: a named extension cannot be used.
    """
    found = ClientFiles()
    for position, name in enumerate(names):
        here = place.at(position) if place.path else Place(None)
        if "/" in name or "\\" in name or Path(name).suffix.lower() in PARSERS or name.startswith((".", "~")):
            file = resolve_path(name, folder, context.home)
            found.sought.append(file)
            if file.is_file():
                _read_file(found, file, dialect)
            else:
                missing = here.finding(
                    "must name a file that is there", value=repr(str(file)), code=finding_codes.MISSING_FILE
                )
                found.findings.append(missing)
        elif importers is not None and name in importers:
            _read_extension(importers[name], found, here, context)
        else:
            _read_client(found, name, here, context)
    return found


def _read_client(found: ClientFiles, name: str, place: Place, context: HostContext) -> None:
    chosen = list(CLIENTS.values()) if name == ALL else [CLIENTS[name]] if name in CLIENTS else []
    if not chosen:
        meant = closest_match(name, CLIENTS)
        advice = f"did you mean {meant}?" if meant else f"known are {', '.join(CLIENTS)}"
        found.findings.append(
            place.finding(
                "must be a client or a path",
                value=values.quoted(name),
                advice=advice,
                code=finding_codes.UNKNOWN_CLIENT,
            )
        )
        return
    files = {
        file: client for client in chosen for file in places_of(client, context.home, context.cwd, context.environment)
    }
    found.sought += files
    present = [file for file in files if file.is_file()]
    for file in present:
        _read_file(found, file, files[file])
    if not present and name != ALL:
        found.findings.append(_nothing(chosen[0].title, files, place))


def _read_extension(extension: Extension, found: ClientFiles, place: Place, context: HostContext) -> None:
    """Read the files of a client that an extension knows."""
    importer = cast("Importer", extension.make("places", "servers"))
    title = str(getattr(importer, "title", extension.name))
    try:
        named: list[object] = list(importer.places(context.home, context.cwd, context.environment))
    except Exception as error:  # it is not ours, and a file may be watched, and read again, while the hub runs
        message = f"cannot be used: its places() raised {type(error).__name__}"
        raise ConfigError(extension.place.finding(message, code=finding_codes.BAD_EXTENSION)) from error
    files = [file for file in named if isinstance(file, Path)]
    if len(files) < len(named):
        kinds = sorted({type(file).__name__ for file in named if not isinstance(file, Path)})
        message = f"cannot be used: its places() must return paths, not {', '.join(kinds)}"
        raise ConfigError(extension.place.finding(message, code=finding_codes.BAD_EXTENSION))
    found.sought += files
    present = [file for file in files if file.is_file()]
    for file in present:
        try:
            servers = {
                name: dict(fields) for name, fields in importer.servers(read_regular_file(file, FILE_BYTES_MAX)).items()
            }
        except Exception as error:  # noqa: BLE001 - it is not ours, and costs only its own servers
            message = f"cannot be read as a file of {title}: {type(error).__name__}"
            found.findings.append(Place(file).finding(message, code=finding_codes.SYNTAX))
            found.unread.append(file)
        else:
            dialect = ClientDialect(extension.name, title, roots=(("mcpServers",),))
            found.documents.append(ParsedFile(file, {"mcpServers": servers}, dialect))
    if not present:
        found.findings.append(_nothing(title, files, place))


def _nothing(title: str, sought: Iterable[Path], place: Place) -> Finding:
    advice = f"looked for {', '.join(map(str, sought))}"
    verb = "has" if place.path else "there is"  # what the command line asks for is written nowhere
    return place.finding(f"{verb} no file of {title} to read", advice=advice, code=finding_codes.NOTHING_TO_IMPORT)


def _read_file(found: ClientFiles, file: Path, dialect: ClientDialect | None) -> None:
    try:
        document = read_document(file, dialect)
    except ConfigError as error:
        found.findings += error.findings
        found.unread.append(file)
    else:
        found.findings += document.warnings
        found.documents.append(document)
