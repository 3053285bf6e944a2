"""Where each value was written: file, path and line, for `isthmus config show --origin`.

`origins_of` names the place of every value that is not a default; `config.load` calls it. `line_numbers` finds the line
of a place: the parsers do not keep it, so the text is scanned once more. It names no line that it is not sure of.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from isthmus.config.callers import CALLERS
from isthmus.config.entries_to_settings import LoadedServers
from isthmus.config.files import FILE_BYTES_MAX, ParsedFile, read_regular_file
from isthmus.config.findings import Place
from isthmus.config.formats import strict_json
from isthmus.config.settings import Origin
from isthmus.config.tables import AGENTS, CREDENTIALS, HUB_TABLES, LOG, RELAY

Keys = tuple[str, ...]

LINES_MAX = 200_000
"""How many values are visited: aliases can make a YAML file larger than its text."""

_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
_STEP = re.compile(r'"(?:[^"\\]|\\.)*"|[^.]+')
_TOKEN = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|[{}\[\],]|\n')
_TOML_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'))*)\s*="""
)
_TOML_HEADER = re.compile(r"\s*(\[[^\[\]\n]+\])\s*(?:#.*)?")


def origins_of(
    document: ParsedFile | None, loaded: LoadedServers, given: Mapping[str, object], variables: Mapping[str, str]
) -> dict[str, Origin]:
    """Return the origin of every value that is not a default, by its path.

    `given` are options of the command line; `variables` are environment variables by the path that they set.
    """
    origins = {path: Origin(None, name) for path, name in variables.items()}
    if document is not None and document.dialect.has_hub:
        for root in (*HUB_TABLES, CREDENTIALS):
            place = Place(document.file, root)
            for key, value in document.section(root).items():
                path = f"hub.log_{key}" if root == LOG else place.at(key).path
                origins[path] = _origin(place.at(key), value)
        agents = document.section(RELAY).get(AGENTS)
        origins.update(_named_entries(document.section(CALLERS), Place(document.file, CALLERS)))
        origins.update(
            _named_entries(agents if isinstance(agents, dict) else {}, Place(document.file, RELAY).at(AGENTS))
        )
    origins.update({f"hub.{key}": Origin(None, f"--{key.replace('_', '-')}") for key in given})
    for name in loaded.servers:
        entry, place = loaded.entries[name], Place(None, "servers").at(name)
        origins[place.path] = Origin(entry.place.file, entry.place.path)
        origins.update({place.at(key).path: _origin(entry.at(key), value) for key, value in entry.fields.items()})
    return origins


def _named_entries(entries: Mapping[str, object], root: Place) -> Iterator[tuple[str, Origin]]:
    for name, fields in entries.items():
        place = root.at(name)
        yield place.path, Origin(root.file, place.path)
        for key, value in fields.items() if isinstance(fields, dict) else ():
            yield place.at(key).path, _origin(place.at(key), value)


def _origin(place: Place, value: object) -> Origin:
    return Origin(place.file, place.path, tuple(dict.fromkeys(_placeholders(value))))


def _placeholders(value: object) -> Iterator[str]:
    """Yield the variables that a value uses, without their defaults, which may be secrets."""
    match value:
        case str():
            is_reference = value.startswith(("env:", "file:", "keyring:"))
            yield from [value] if is_reference else [found.partition(":-")[0] for found in _PLACEHOLDER.findall(value)]
        case list():
            yield from (name for item in value for name in _placeholders(item))
        case dict():
            yield from (name for item in value.values() for name in _placeholders(item))
        case _:
            pass


# -- lines ---------------------------------------------------------------------------------------------------


def split_path(path: str) -> Keys:
    """Return the keys of a path as findings and origins write it."""
    return tuple(json.loads(step) if step.startswith('"') else step for step in _STEP.findall(path))


def line_numbers(file: Path) -> dict[Keys, int]:
    """Return the line of each value by its keys, as far as it is certain; nothing for a missing file."""
    find = _FINDERS.get(file.suffix.lower())
    try:
        text = read_regular_file(file, FILE_BYTES_MAX).decode("utf-8-sig")
        # The first line counts: TOML may continue a table further below.
        return {} if find is None else dict(reversed(list(islice(find(text), LINES_MAX))))
    except (OSError, ValueError, IndexError, RecursionError):
        return {}


def _json_lines(text: str) -> Iterator[tuple[Keys, int]]:
    """Yield the keys of objects and the positions of lists, following the brackets."""
    line, steps = 1, list[str | int]()
    for token in _TOKEN.finditer(strict_json(text)):
        match token[0]:
            case "{" | "[" as bracket:
                if steps and isinstance(steps[-1], int):
                    yield tuple(map(str, steps)), line
                steps.append("" if bracket == "{" else 0)
            case "}" | "]":
                steps.pop()
            case ",":
                steps[-1] = steps[-1] + 1 if isinstance(steps[-1], int) else steps[-1]
            case _ if token[2] is not None:
                steps[-1] = json.loads(token[1])
                yield tuple(map(str, steps)), line
            case _:
                pass
        line += token[0].count("\n")


def _toml_lines(text: str) -> Iterator[tuple[Keys, int]]:
    header: Keys = ()
    for number, line in enumerate(text.split("\n"), start=1):
        if match := _TOML_HEADER.fullmatch(line.rstrip("\r")):
            header = _only_path(tomllib.loads(match[1]))
            yield header, number
        elif match := _TOML_KEY.match(line):
            yield header + _only_path(tomllib.loads(f"{match[1]} = {{}}")), number


def _only_path(table: dict[str, Any]) -> Keys:
    keys: list[str] = []
    while table:
        [(key, table)] = table.items()
        keys.append(key)
    return tuple(keys)


def _yaml_lines(text: str) -> Iterator[tuple[Keys, int]]:
    import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - few files are YAML, and it loads slowly

    try:
        return _node_lines(yaml.compose(text, Loader=yaml.SafeLoader), ())
    except yaml.YAMLError:
        return iter(())


def _node_lines(node: Any, keys: Keys) -> Iterator[tuple[Keys, int]]:
    if node is None or node.id == "scalar":
        return
    members = node.value if node.id == "mapping" else [(None, item) for item in node.value]
    for position, (key, value) in enumerate(members):
        here = (*keys, str(position) if key is None else str(key.value))
        yield here, (value if key is None else key).start_mark.line + 1
        yield from _node_lines(value, here)


_FINDERS: dict[str, Callable[[str], Iterator[tuple[Keys, int]]]] = {
    ".json": _json_lines,
    ".jsonc": _json_lines,
    ".toml": _toml_lines,
    ".yaml": _yaml_lines,
    ".yml": _yaml_lines,
}
