"""`isthmus import`: servers from other clients' files, shown and put into `isthmus.toml`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from isthmus.cli.config import finding_as_json, home, refused
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.output import aligned, harmless, print_error, print_json, print_output, show_table
from isthmus.config.client_files import ClientFiles, HostContext, read_client_files
from isthmus.config.dialects.clients import DIALECTS
from isthmus.config.extensions import Extension, read_extensions
from isthmus.config.files import Document, find_file, read_document
from isthmus.config.findings import ConfigError, Finding, Place, closest_match
from isthmus.config.importing import CannotMerge, ImportCandidate, ImportPlan, Outcome
from isthmus.config.variables import Variables, variables_of
from isthmus.upstream.settings import (
    AgentSettings,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    StdioSettings,
    WebSocketSettings,
)

FILE_NAME = "isthmus.toml"
BACKUP_SUFFIX = ".bak"
PRIVATE = 0o600
"""Only the owner may read a file that may hold secrets."""

_SAID: dict[Outcome, str] = {
    "new": "new",
    "same": "already there",
    "differs": "differs, kept as it was",
    "replaced": "replaced",
    "broken": "broken, left out",
}

Row: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What was asked for on the command line."""

    sources: Sequence[str]
    dialect: str | None = None
    into: Path | None = None
    is_dry: bool = False
    may_replace: bool = False
    is_json: bool = False


def import_servers(wanted: ImportOptions) -> Exit:
    """Find servers, show them and merge them into our own file.

    Raises:
        CommandFailed: our own file cannot be read or added to.
    """
    around = HostContext(os.environ, Path.cwd(), home())
    file = _target(wanted.into, around)
    try:
        found = _look_up(wanted, around, _importers(file, around))
    except ConfigError as error:
        raise refused(error) from error
    merging = _weighed(found, file, around, may_replace=wanted.may_replace)
    is_written = not wanted.is_dry and _write(merging)
    if wanted.is_json:
        print_json(_as_json(found, merging, is_written=is_written))
    else:
        _show(found, merging, is_dry=wanted.is_dry, is_written=is_written)
    return Exit.SUCCESS if merging.candidates else Exit.CONFIGURATION


def _importers(file: Path, around: HostContext) -> dict[str, Extension]:
    """What the file has other programs' files read by, whose names are no clients' here."""
    if not file.exists():
        return {}
    variables = Variables(variables_of(file, around.environment)[0], file.parent, around.home)
    extensions, _ = read_extensions(read_document(file), variables)
    return {each.name: each for each in extensions.of("importers")}


def _look_up(wanted: ImportOptions, around: HostContext, importers: Mapping[str, Extension]) -> ClientFiles:
    dialect = None
    if wanted.dialect is not None:
        dialect = DIALECTS.get(wanted.dialect)
        if dialect is None:
            meant = closest_match(wanted.dialect, DIALECTS)
            advice = f"Did you mean {meant}?" if meant else f"Known are {', '.join(DIALECTS)}."
            raise CommandFailed(Exit.USAGE, f"there is no dialect {wanted.dialect!r}", advice)
    return read_client_files(wanted.sources, Place(None), around.cwd, around, dialect, importers=importers)


def _target(into: Path | None, around: HostContext) -> Path:
    """Return the file to write: the one named, the one in use, or a new one here."""
    try:
        used = into if into is not None else find_file(None, around.environment, around.cwd, around.home)
    except ConfigError as error:
        raise refused(error) from error
    if into is None and (used is None or used.suffix != ".toml"):
        used = around.cwd / FILE_NAME
    assert used is not None
    if used.suffix.lower() != ".toml":
        advice = f"Give a file that ends in .toml, or none for ./{FILE_NAME}."
        raise CommandFailed(Exit.USAGE, f"servers are written as TOML, not into {used.name}", advice)
    # A link stays a link: what it leads to is what changes.
    return Path(os.path.realpath(around.cwd / used))


def _weighed(found: ClientFiles, file: Path, around: HostContext, *, may_replace: bool) -> ImportPlan:
    merging = ImportPlan(file, around, may_replace)
    try:
        merging.begin(_document(file))
    except ConfigError as error:
        raise refused(error) from error
    # Of the file itself there is nothing to import: it may be among what `all` finds.
    merging.add(document for document in found.documents if not _is_same(document.file, file))
    return merging


def _document(file: Path) -> Document | None:
    return read_document(file) if file.exists() else None


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


# -- writing -------------------------------------------------------------------------------------------------


def _write(merging: ImportPlan) -> bool:
    """Write the file if there is anything to add, with the old one kept beside it."""
    if not any(candidate.is_taken for candidate in merging.candidates):
        return False
    file = merging.file
    try:
        before = file.read_bytes() if file.exists() else b""
        mark = b"\xef\xbb\xbf" if before.startswith(b"\xef\xbb\xbf") else b""
        text = merging.merged_into(before.removeprefix(mark).decode())
        _replace(file, mark + text.encode(), is_private=_holds_secrets(merging))
    except CannotMerge as error:
        advice = "Write it as [servers.NAME] tables, or import into another file with --into FILE."
        raise CommandFailed(Exit.CONFIGURATION, f"{file}: {error}", advice) from error
    except OSError as error:
        advice = "Nothing was changed. Import into another file with --into FILE."
        raise CommandFailed(Exit.CONFIGURATION, f"{file} cannot be written: {error.strerror}", advice) from error
    return True


def _holds_secrets(merging: ImportPlan) -> bool:
    return any(candidate.has_secrets for candidate in merging.candidates if candidate.is_taken)


def _replace(file: Path, content: bytes, *, is_private: bool) -> None:
    """Put a whole new file in the place of the old one: whoever reads it meanwhile sees one or the other."""
    mode = PRIVATE
    if file.exists():
        backup = file.with_name(file.name + BACKUP_SUFFIX)
        shutil.copy2(file, backup)
        if is_private:
            backup.chmod(PRIVATE)
        else:
            mode = file.stat().st_mode & 0o777
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(mode)
        Path(name).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


# -- showing -------------------------------------------------------------------------------------------------


def _as_json(found: ClientFiles, merging: ImportPlan, *, is_written: bool) -> bytes:
    return msgspec.json.encode(
        {
            "into": str(merging.file),
            "written": is_written,
            "files": [{"file": str(document.file), "client": document.dialect.name} for document in found.documents],
            "servers": [_candidate_as_json(candidate) for candidate in merging.candidates],
            "findings": [finding_as_json(finding, "warning") for finding in _findings(found, merging)],
        }
    )


def _candidate_as_json(candidate: ImportCandidate) -> dict[str, object]:
    return {
        "name": candidate.name,
        "client": candidate.entry.dialect.name,
        "file": str(candidate.entry.place.file),
        "path": candidate.entry.place.path,
        "transport": None if candidate.server is None else transport_of(candidate.server.reach),
        "outcome": candidate.outcome,
        "literal_secrets": candidate.has_secrets,
    }


def _findings(found: ClientFiles, merging: ImportPlan) -> list[Finding]:
    return list(dict.fromkeys([*found.findings, *merging.findings]))


def transport_of(reach: Reach) -> str:
    """Name the way to a server in the words of the configuration."""
    match reach:
        case StdioSettings():
            return "stdio"
        case HttpSettings(carrier="auto"):
            return "http or sse"
        case HttpSettings(carrier=carrier):
            return carrier
        case WebSocketSettings():
            return "ws"
        case JsonRpcSettings():
            return "rpc"
        case AgentSettings():
            return "agent"
        case PythonSettings():
            return "python"


def _show(found: ClientFiles, merging: ImportPlan, *, is_dry: bool, is_written: bool) -> None:
    rows = [_row(candidate) for candidate in merging.candidates]
    if rows and sys.stdout.isatty():
        show_table(sys.stdout, _grouped(merging.candidates), ("cyan", "", ""))
    elif rows:
        print_output(
            "\n".join(aligned([(*row, str(candidate.entry.place.file)) for row, candidate in _paired(merging, rows)]))
        )
    for finding in _findings(found, merging):
        print_error(f"{finding.code.number}: {finding}")
    _sum_up(merging, is_dry=is_dry, is_written=is_written)
    if is_written:
        _tell_of_hidden(found, merging.file)


def _paired(merging: ImportPlan, rows: list[Row]) -> list[tuple[Row, ImportCandidate]]:
    return list(zip(rows, merging.candidates, strict=True))


def _row(candidate: ImportCandidate) -> Row:
    transport = "" if candidate.server is None else transport_of(candidate.server.reach)
    return harmless(candidate.name, keep=""), transport, _SAID[candidate.outcome]


def _grouped(candidates: Sequence[ImportCandidate]) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for candidate in candidates:
        heading = f"{candidate.entry.dialect.title}: {candidate.entry.place.file}"
        groups.setdefault(heading, []).append(_row(candidate))
    return list(groups.items())


def _sum_up(merging: ImportPlan, *, is_dry: bool, is_written: bool) -> None:
    taken = [candidate for candidate in merging.candidates if candidate.is_taken]
    count = f"{len(taken)} server{'' if len(taken) == 1 else 's'}"
    if not merging.candidates:
        print_error("No servers were found.")
    elif is_dry:
        print_error(f"Would write {count} into {merging.file}; without --dry-run it is done.")
    elif is_written:
        print_error(f"Wrote {count} into {merging.file}.")
    else:
        print_error(f"Nothing new for {merging.file}.")
    _tell_more(merging)


def _tell_more(merging: ImportPlan) -> None:
    secret = [candidate.name for candidate in merging.candidates if candidate.is_taken and candidate.has_secrets]
    if secret:
        names = ", ".join(secret)
        print_error(
            f"Secrets stand as they are in: {names}. Only you may read the file; env:NAME in their place is better."
        )
    if merging.can_replace:
        print_error("To take the ones that differ: --replace.")


def _tell_of_hidden(found: ClientFiles, file: Path) -> None:
    """Say that a file which was the configuration before is so no longer, unless it was just imported."""
    beside = file.with_name("mcp.json")
    is_new = not file.with_name(file.name + BACKUP_SUFFIX).exists()
    if is_new and beside.exists() and not any(_is_same(document.file, beside) for document in found.documents):
        print_error(f"{beside} is no longer read by itself, now that {file.name} is there: import it too.")
