"""Translate other clients' variables into the form that `config.variables` reads.

`$VAR`, `%VAR%` and `{env:VAR}` become `${VAR}`. Variables of an editor, such as `${workspaceFolder}`, become their
value. `${input:id}`, which an editor asks its user for, becomes a variable that can be set. No value is looked up here.
Called by `config.entries`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.config.dialects.clients import Dialect

INPUT_PREFIX = "ISTHMUS_INPUT_"
"""Prefix of the variable that holds an input's value."""

_EDITOR = re.compile(r"\$\{(userHome|workspaceFolder|workspaceRoot|workspaceFolderBasename|cwd|pathSeparator|/)\}")
_INPUT = re.compile(r"\$\{input:([^{}]*)\}")
_NO_NAME = re.compile(r"[^A-Z0-9]+")
_WAYS = {
    "dollar": re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)"),
    "percent": re.compile(r"%([A-Za-z_][A-Za-z0-9_]*)%"),
    "curly": re.compile(r"(?<!\$)\{env:([A-Za-z_][A-Za-z0-9_]*)\}"),
}
_CURLY_FILE = re.compile(r"(?<!\$)\{file:([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class WorkspaceContext:
    """The workspace of a client, and the inputs that it would ask its user for."""

    folder: Path
    """The folder that is open in the client."""
    home: Path
    inputs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By id, as the file declares them."""


def with_hub_variables(text: str, dialect: Dialect, around: WorkspaceContext) -> str:
    """Return `text` with its variables written as `${VAR}`."""
    for way in dialect.syntax:
        text = _WAYS[way].sub(r"${\1}", text)
    if "curly" in dialect.syntax:
        text = _CURLY_FILE.sub(r"${file:\1}", text)
    text = _EDITOR.sub(lambda found: _editor_value(found[1], around), text)
    return _INPUT.sub(lambda found: _input_placeholder(found[1], around), text)


def _editor_value(word: str, around: WorkspaceContext) -> str:
    match word:
        case "userHome":
            return str(around.home)
        case "workspaceFolderBasename":
            return around.folder.name
        case "pathSeparator" | "/":
            return os.sep
        case _:
            return str(around.folder)


def _input_placeholder(id: str, around: WorkspaceContext) -> str:
    default = around.inputs.get(id, {}).get("default")
    # A placeholder cannot contain a brace.
    stands_in = f":-{default}" if isinstance(default, str) and not set(default) & set("{}") else ""
    return f"${{{input_variable(id)}{stands_in}}}"


def input_variable(id: str) -> str:
    """Return the name of the variable that holds an input's value."""
    return INPUT_PREFIX + _NO_NAME.sub("_", id.upper()).strip("_")


def inputs_used(text: str) -> list[str]:
    """Return the ids of the inputs in a text."""
    return _INPUT.findall(text)
