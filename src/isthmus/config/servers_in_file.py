"""Where servers are in the configuration file, and how one is switched on or off there.

Texts in, texts out: the command line and `app.rest_server_edits` read and write the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.config.entries_to_settings import server_names
from isthmus.config.files import ParsedFile
from isthmus.config.text_editing import Keys, edit


@dataclass(slots=True)
class ServerFile:
    """A file with servers, as text and as the table that it means."""

    file: Path
    text: str
    document: ParsedFile

    @property
    def is_own(self) -> bool:
        """Whether only the hub reads the file."""
        return self.document.dialect.is_own

    def roots(self) -> list[Keys]:
        """The keys of the tables that have servers."""
        return [root for root in self.document.dialect.roots if self.at(root)]

    def at(self, path: Sequence[str]) -> dict[str, Any]:
        """The table at a path; empty if the path does not exist."""
        table: Any = self.document.table
        for key in path:
            table = table.get(key) if isinstance(table, dict) else None
        return table if isinstance(table, dict) else {}

    def names(self) -> list[str]:
        """The names of all servers, as the file writes them."""
        return [str(name) for root in self.roots() for name in self.at(root)]

    def root_of(self, name: str) -> Keys:
        """The keys of the table that has a server, or would have it."""
        present = self.roots()
        usual = ("servers",) if self.is_own else self.document.dialect.roots[0]
        return next((root for root in present if name in self.at(root)), present[0] if present else usual)

    def raw(self, name: str) -> dict[str, Any] | None:
        """The entry of a server as it is written; None if no server has this name."""
        return self.at(self.root_of(name)).get(name)

    def find(self, name: str) -> Keys | None:
        """The keys that lead to a server's entry, by its name in the file or in the hub; None if it is not here."""
        root = self.root_of(name)
        if name in self.at(root):
            return (*root, name)
        for written, called in server_names(self.names()).items():
            if called == name:
                return (*self.root_of(written), written)
        return None

    def is_on(self, path: Keys) -> bool:
        """Whether the server at a path is enabled."""
        fields = self.at(path)
        return not fields.get("disabled", False) and fields.get("enabled", True) is not False

    def switched(self, path: Keys, *, is_on: bool, text: str | None = None) -> str:
        """The text with the server at a path enabled or disabled, and nothing else changed.

        Raises:
            CannotEdit: something else would change.
        """
        text, fields = self.text if text is None else text, self.at(path)
        if "enabled" in fields:
            text = edit(self.file, text, (*path, "enabled"), is_on)
        if "disabled" in fields or not is_on:
            text = edit(self.file, text, (*path, "disabled"), None if is_on else True)
        return text
