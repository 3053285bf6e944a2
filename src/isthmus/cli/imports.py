"""`isthmus import`: reads the servers of other clients and writes them into `isthmus.toml`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import click
import msgspec

from isthmus.cli.config import finding_as_json, home
from isthmus.cli.exits import CommandFailed, Exit, refused
from isthmus.cli.options import with_json
from isthmus.cli.output import aligned, counted, harmless, print_error, print_json, print_output, show_table
from isthmus.config.client_files import ClientFiles, HostContext, read_client_files
from isthmus.config.dialects import DIALECTS
from isthmus.config.editing import CannotEdit, replace_file
from isthmus.config.extensions import Extension, read_extensions
from isthmus.config.files import find_file, read_document
from isthmus.config.findings import ConfigError, Finding, Place, closest_match
from isthmus.config.importing import ImportCandidate, ImportPlan, Outcome, transport_of
from isthmus.config.variables import Variables, variables_of

FILE_NAME = "isthmus.toml"
BACKUP_SUFFIX = ".bak"

_OUTCOMES: dict[Outcome, str] = {
    "new": "new",
    "same": "already there",
    "differs": "differs, left unchanged",
    "replaced": "replaced",
    "broken": "broken, skipped",
}

Row: TypeAlias = tuple[str, ...]


@click.command("import")
@click.argument("sources", nargs=-1, required=True, metavar="FILE|CLIENT|all...")
@click.option("--dialect", metavar="D", help="The client whose format a file has, if its path does not tell.")
@click.option("--into", type=click.Path(path_type=Path), metavar="FILE", help="The isthmus.toml to write.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show what would be written.")
@click.option("--replace", "may_replace", is_flag=True, help="Replace servers that differ in the file.")
@with_json
def import_command(
    sources: tuple[str, ...],
    dialect: str | None,
    into: Path | None,
    *,
    is_dry: bool,
    may_replace: bool,
    is_json: bool,
) -> int:
    """Import the servers of other clients into isthmus.toml.

    CLIENT is one of claude-desktop, claude-code, cursor, vscode, windsurf, cline, roo, gemini, codex, goose, zed,
    kiro, copilot, opencode, mcpproxy, fastmcp.
    """
    options = ImportOptions(sources, dialect, into, is_dry=is_dry, may_replace=may_replace, is_json=is_json)
    return import_servers(options)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options of the command line."""

    sources: Sequence[str]
    dialect: str | None = None
    into: Path | None = None
    is_dry: bool = False
    may_replace: bool = False
    is_json: bool = False


def import_servers(options: ImportOptions) -> Exit:
    """Read the servers, write them into our own file, and print them.

    Raises:
        CommandFailed: our own file cannot be read or written.
    """
    context = HostContext(os.environ, Path.cwd(), home())
    file = _target(options.into, context)
    try:
        found = _read_sources(options, context, file)
        plan = ImportPlan(file, context, options.may_replace)
        plan.begin(read_document(file) if file.exists() else None)
    except ConfigError as error:
        raise refused(error) from error
    # `all` may find our own file, too.
    plan.add(document for document in found.documents if not _is_same(document.file, file))
    is_written = not options.is_dry and _write(plan)
    if options.is_json:
        print_json(_as_json(found, plan, is_written=is_written))
    else:
        _print(found, plan, is_dry=options.is_dry, is_written=is_written)
    return Exit.SUCCESS if plan.candidates else Exit.CONFIGURATION


def _read_sources(options: ImportOptions, context: HostContext, file: Path) -> ClientFiles:
    importers: dict[str, Extension] = {}
    if file.exists():  # its extensions may read the files of other programs
        variables = Variables(variables_of(file, context.environment)[0], file.parent, context.home)
        extensions, _ = read_extensions(read_document(file), variables)
        importers = {each.name: each for each in extensions.of("importers")}
    dialect = None
    if options.dialect is not None:
        dialect = DIALECTS.get(options.dialect)
        if dialect is None:
            meant = closest_match(options.dialect, DIALECTS)
            advice = f"Did you mean {meant}?" if meant else f"Known dialects: {', '.join(DIALECTS)}."
            raise CommandFailed(Exit.USAGE, f"there is no dialect {options.dialect!r}", advice)
    return read_client_files(options.sources, Place(None), context.cwd, context, dialect, importers=importers)


def _target(into: Path | None, context: HostContext) -> Path:
    """The file to write: the named one, the one in use, or a new one here."""
    try:
        used = into if into is not None else find_file(None, context.environment, context.cwd, context.home)
    except ConfigError as error:
        raise refused(error) from error
    if into is None and (used is None or used.suffix != ".toml"):
        used = context.cwd / FILE_NAME
    assert used is not None
    if used.suffix.lower() != ".toml":
        advice = f"Name a file that ends in .toml, or leave --into out for ./{FILE_NAME}."
        raise CommandFailed(Exit.USAGE, f"--into must be a TOML file, got {used.name}", advice)
    # A symbolic link stays; the file behind it is written.
    return Path(os.path.realpath(context.cwd / used))


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


# -- writing ---------------------------------------------------------------------------------------------------------


def _write(plan: ImportPlan) -> bool:
    """Write the file if there is anything to add, and keep a backup of the old one."""
    added = [candidate for candidate in plan.candidates if candidate.is_taken]
    if not added:
        return False
    file = plan.file
    try:
        before = file.read_bytes() if file.exists() else b""
        mark = b"\xef\xbb\xbf" if before.startswith(b"\xef\xbb\xbf") else b""
        text = plan.merged_into(before.removeprefix(mark).decode())
        backup = file.with_name(file.name + BACKUP_SUFFIX)
        is_private = any(candidate.has_secrets for candidate in added)
        replace_file(file, mark + text.encode(), is_private=is_private, backup=backup)
    except CannotEdit as error:
        advice = "Write it as [servers.NAME] tables, or import into another file with --into FILE."
        raise CommandFailed(Exit.CONFIGURATION, f"{file}: {error}", advice) from error
    except OSError as error:
        advice = "Nothing was changed. Import into another file with --into FILE."
        raise CommandFailed(Exit.CONFIGURATION, f"{file} cannot be written: {error.strerror}", advice) from error
    return True


# -- printing --------------------------------------------------------------------------------------------------------


def _as_json(found: ClientFiles, plan: ImportPlan, *, is_written: bool) -> bytes:
    servers = [
        {
            "name": candidate.name,
            "client": candidate.entry.dialect.name,
            "file": str(candidate.entry.place.file),
            "path": candidate.entry.place.path,
            "transport": None if candidate.server is None else transport_of(candidate.server.reach),
            "outcome": candidate.outcome,
            "literal_secrets": candidate.has_secrets,
        }
        for candidate in plan.candidates
    ]
    return msgspec.json.encode(
        {
            "into": str(plan.file),
            "written": is_written,
            "files": [{"file": str(document.file), "client": document.dialect.name} for document in found.documents],
            "servers": servers,
            "findings": [finding_as_json(finding, "warning") for finding in _findings(found, plan)],
        }
    )


def _findings(found: ClientFiles, plan: ImportPlan) -> list[Finding]:
    return list(dict.fromkeys([*found.findings, *plan.findings]))


def _print(found: ClientFiles, plan: ImportPlan, *, is_dry: bool, is_written: bool) -> None:
    if plan.candidates and sys.stdout.isatty():
        groups: dict[str, list[Row]] = {}
        for candidate in plan.candidates:
            heading = f"{candidate.entry.dialect.title}: {candidate.entry.place.file}"
            groups.setdefault(heading, []).append(_row(candidate))
        show_table(sys.stdout, list(groups.items()), ("cyan", "", ""))
    elif plan.candidates:
        rows = [(*_row(candidate), str(candidate.entry.place.file)) for candidate in plan.candidates]
        print_output("\n".join(aligned(rows)))
    for finding in _findings(found, plan):
        print_error(f"{finding.code.number}: {finding}")
    added = [candidate for candidate in plan.candidates if candidate.is_taken]
    count = counted(len(added), "server")
    if not plan.candidates:
        print_error("No servers were found.")
    elif is_dry:
        print_error(f"Would write {count} into {plan.file}. Run it without --dry-run to write them.")
    elif is_written:
        print_error(f"Wrote {count} into {plan.file}.")
    else:
        print_error(f"Nothing new for {plan.file}.")
    print_notes(added)
    if plan.can_replace:
        print_error("To import the ones that differ: --replace.")
    # A new isthmus.toml replaces an mcp.json beside it as the configuration.
    beside, backup = plan.file.with_name("mcp.json"), plan.file.with_name(plan.file.name + BACKUP_SUFFIX)
    is_hidden = is_written and not backup.exists() and beside.exists()
    if is_hidden and not any(_is_same(document.file, beside) for document in found.documents):
        print_error(f"{beside} is no longer read now that {plan.file.name} exists: import it too.")


def print_notes(added: Sequence[ImportCandidate]) -> None:
    """Say of imported servers in which folder they run, and which have secrets in the file."""
    for candidate in added:
        if candidate.entry.folder is not None:
            print_error(f"{candidate.name} runs in {candidate.entry.folder} (cwd), the folder of its file.")
    if with_secrets := [candidate.name for candidate in added if candidate.has_secrets]:
        contain = "contains" if len(with_secrets) == 1 else "contain"
        print_error(
            f"{', '.join(with_secrets)} {contain} plaintext secrets. Only you may read the file; env:NAME is safer."
        )


def _row(candidate: ImportCandidate) -> Row:
    transport = "" if candidate.server is None else transport_of(candidate.server.reach)
    return harmless(candidate.name, keep=""), transport, _OUTCOMES[candidate.outcome]
