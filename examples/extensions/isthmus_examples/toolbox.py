"""isthmus.importers: the servers in the `toolbox.ini` of a program that the hub does not know."""

from __future__ import annotations

import configparser
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path


class Toolbox:
    """See `isthmus.config.extensions.Importer`."""

    title = "Toolbox"

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._name = str(settings.get("file", "toolbox.ini"))

    def places(self, home: Path, cwd: Path, environment: Mapping[str, str]) -> Iterable[Path]:
        """Where such files may be; this looks for them and reads none."""
        return (cwd / self._name, home / ".config" / "toolbox" / self._name)

    def servers(self, content: bytes) -> Mapping[str, Mapping[str, object]]:
        """What a file says, in the words of `mcpServers`; the hub checks it as it checks every other file's."""
        read = configparser.ConfigParser(interpolation=None)
        read.read_string(content.decode())
        return {name: _server(read[name]) for name in read.sections()}


def _server(section: Mapping[str, str]) -> Mapping[str, object]:
    if "address" in section:
        return {"url": section["address"]}
    command, *arguments = shlex.split(section["run"])
    return {"command": command, "args": arguments}
