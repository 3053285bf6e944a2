"""What operators change about servers over REST: a preview of a server to add, and the switch of one that is there.

The preview writes nothing. The switch writes one key of the hub's file, as `isthmus disable` does. Files are read and
written in threads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from isthmus.app.configuration_findings import for_operators
from isthmus.config.client_file_reader import HostContext
from isthmus.config.client_formats import OWN
from isthmus.config.files import ParsedFile, home_folder, read_document
from isthmus.config.findings import ConfigError
from isthmus.config.pasting import CannotPreview, PastedServer, Preview, preview
from isthmus.config.servers_in_file import ServerFile
from isthmus.config.settings import Configuration
from isthmus.config.text_editing import CannotEdit, replace_file
from isthmus.core.admin_ports import ServerPreview, ServerPreviewEntry
from isthmus.model.names import ServerName

FILE_NAME = "isthmus.toml"
"""The file that a hub without one would find in its folder."""


class NotSaved(Exception):
    """The file was not changed; the text says why."""


class ServerEdits:
    """Reads and edits the configuration file of one hub. One edit at a time: each reads what the last one wrote."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._lock = asyncio.Lock()

    async def preview(
        self, configuration: Configuration, taken: Collection[str], text: str, name: str | None
    ) -> ServerPreview | str:
        """The servers of a pasted text as the file would have them; a string says why there is no preview."""
        try:
            return await asyncio.to_thread(self._preview, configuration, taken, text, name)
        except CannotPreview as why:
            return str(why)

    def _preview(
        self, configuration: Configuration, taken: Collection[str], text: str, name: str | None
    ) -> ServerPreview:
        context = HostContext(self._environment, Path.cwd(), home_folder())
        file = configuration.file or context.cwd / FILE_NAME
        try:
            target = _read(file) if os.path.exists(file) else ServerFile(file, "", ParsedFile(file, {}, OWN))
        except ConfigError as error:
            problems = "; ".join(finding.problem for finding in error.findings)
            raise CannotPreview(f"The hub's own file cannot be read: {problems}. Correct it first.") from error
        return _document(preview(text, name, target, configuration.servers, taken, context))

    async def save_switch(self, configuration: Configuration, server: ServerName, *, is_on: bool) -> Path:
        """Write into the hub's file whether a server is enabled, and return the file.

        Raises:
            NotSaved: the server is not in that file, or it cannot be written.
        """
        if configuration.file is None:
            raise NotSaved("the hub runs without a configuration file")
        async with self._lock:
            await asyncio.to_thread(_save_switch, configuration.file, server, is_on=is_on)
        return configuration.file


def _save_switch(file: Path, server: ServerName, *, is_on: bool) -> None:
    try:
        target = _read(file)
        path = target.find(server)
        if path is None:
            raise NotSaved(f"{server} is not in {file}: it comes from an imported file or a variable")
        if target.is_on(path) is is_on:
            return
        text = target.switched(path, is_on=is_on)
        backup = file.with_name(f"{file.name}.bak")
        replace_file(file, text.encode(), is_private=False, backup=backup)
    except ConfigError as error:
        raise NotSaved(f"{file} cannot be read as it is now") from error
    except CannotEdit as error:
        raise NotSaved(f"{file}: {error}") from error
    except OSError as error:
        raise NotSaved(f"{file} cannot be written: {error.strerror}") from error


def _read(file: Path) -> ServerFile:
    document = read_document(file)  # first: it says what is wrong with a file
    return ServerFile(file, file.read_bytes().decode(), document)


def _document(found: Preview) -> ServerPreview:
    def entry(server: PastedServer) -> ServerPreviewEntry:
        return ServerPreviewEntry(
            server.name, server.wanted, server.outcome, server.transport, server.entry, server.text, server.command,
            server.has_secrets,
        )  # fmt: skip

    return ServerPreview(
        found.form,
        found.client,
        str(found.file),
        found.is_new_file,
        found.place,
        found.text,
        [entry(server) for server in found.servers],
        [for_operators(finding) for finding in found.findings],
    )  # fmt: skip
