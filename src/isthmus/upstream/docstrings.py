"""What a docstring says of a function and of each of its parameters.

Reads the three ways in which people write it (Google, NumPy, Sphinx) and takes everything else for prose. It knows
nothing of signatures. Called by `upstream.signatures`.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

_HEADING = re.compile(r"(args|arguments|parameters|params)(:|)\s*", re.IGNORECASE)
_RULE = re.compile(r"-{3,}\s*")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_SPHINX = re.compile(r":param\s+(?:[^:\s]+\s+)*?\*{0,2}(\w+):\s*(.*)")


@dataclass(slots=True)
class Docstring:
    """The prose without the parameters, and the parameters' own words."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(docstring: str | None) -> Docstring:
    """Read a docstring as `inspect.getdoc` gives it."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    parameters: dict[str, str] = {}
    rest: list[str] = []
    position = 0
    while position < len(lines):
        end = _sphinx(lines, position, parameters) or _section(lines, position, parameters)
        if end is None:
            rest.append(lines[position])
        position = end or position + 1
    return Docstring(re.sub(r"\n{3,}", "\n\n", "\n".join(rest)).strip(), parameters)


def _section(lines: list[str], start: int, parameters: dict[str, str]) -> int | None:
    """Read a section of parameters that starts here; return where it ends, None if there is none."""
    heading = _HEADING.fullmatch(lines[start])
    if heading is None:
        return None
    if not heading[2]:
        is_ruled = start + 1 < len(lines) and _RULE.fullmatch(lines[start + 1]) is not None
        return _numpy(lines, start + 2, parameters) if is_ruled else None
    return _google(lines, start + 1, parameters)


def _google(lines: list[str], start: int, parameters: dict[str, str]) -> int:
    """`name (type): words`, indented; what is indented further goes on with the words."""
    margin = _indent(lines[start]) if start < len(lines) else 0
    position, name = start, ""
    while position < len(lines) and (not lines[position].strip() or _indent(lines[position]) >= margin > 0):
        line = lines[position]
        entry = _GOOGLE.fullmatch(line.strip()) if _indent(line) == margin else None
        if entry is not None:
            name = entry[1]
            parameters[name] = entry[2].strip()
        elif name:
            _go_on(name, line, parameters)
        position += 1
    return position


def _numpy(lines: list[str], start: int, parameters: dict[str, str]) -> int:
    """`name : type`, then the words, indented, until the next heading."""
    position, names = start, [""]
    while position < len(lines) and not _is_ruled(lines, position):
        line = lines[position]
        if line.strip() and _indent(line) == 0:
            entry = _NUMPY.fullmatch(line.strip())
            if entry is None:
                break
            names = [name.strip() for name in entry[1].split(",")]
            parameters.update(dict.fromkeys(names, ""))
        else:
            for name in filter(None, names):
                _go_on(name, line, parameters)
        position += 1
    return position


def _sphinx(lines: list[str], start: int, parameters: dict[str, str]) -> int | None:
    """`:param type name: words`, and what is indented below; return where it ends, None if there is none."""
    entry = _SPHINX.fullmatch(lines[start])
    if entry is None:
        return None
    parameters[entry[1]] = entry[2].strip()
    position = start + 1
    while position < len(lines) and lines[position].strip() and _indent(lines[position]) > 0:
        _go_on(entry[1], lines[position], parameters)
        position += 1
    return position


def _is_ruled(lines: list[str], position: int) -> bool:
    return position + 1 < len(lines) and bool(lines[position].strip()) and bool(_RULE.fullmatch(lines[position + 1]))


def _go_on(name: str, line: str, parameters: dict[str, str]) -> None:
    parameters[name] = f"{parameters[name]} {line.strip()}".strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
