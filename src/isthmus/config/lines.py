"""In which line of a file a value stands, for `isthmus config show --origin`.

The parsers that read a file for the hub forget where things were; this looks at the text once more, for
people. It guesses nothing: what it is unsure of it does not name. Called by the command line.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from isthmus.config.contents import contents_of
from isthmus.config.files import FILE_BYTES_MAX
from isthmus.config.formats import strict_json

Keys = tuple[str, ...]

LINES_MAX = 200_000
"""How many values are looked at: aliases can make more of a file than it is long."""

_STEP = re.compile(r'"(?:[^"\\]|\\.)*"|[^.]+')
_TOKEN = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|[{}\[\],]|\n')
_TOML_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'))*)\s*="""
)
_TOML_HEADER = re.compile(r"\s*(\[[^\[\]\n]+\])\s*(?:#.*)?")


def keys_of(path: str) -> Keys:
    """Return the keys of a path as findings and origins write it."""
    return tuple(json.loads(step) if step.startswith('"') else step for step in _STEP.findall(path))


def lines_of(file: Path) -> dict[Keys, int]:
    """Return the line of each value that can be told, by its keys; nothing at all for a file that is gone."""
    find = _FINDERS.get(file.suffix.lower())
    try:
        text = contents_of(file, FILE_BYTES_MAX).decode("utf-8-sig")
        # The first counts: later ones are what a table is continued with.
        return {} if find is None else dict(reversed(list(islice(find(text), LINES_MAX))))
    except (OSError, ValueError, IndexError, RecursionError):
        return {}


def _json(text: str) -> Iterator[tuple[Keys, int]]:
    """Yield the keys of objects and the positions of lists, going through the brackets."""
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


def _toml(text: str) -> Iterator[tuple[Keys, int]]:
    header: Keys = ()
    for number, line in enumerate(text.split("\n"), start=1):
        if found := _TOML_HEADER.fullmatch(line.rstrip("\r")):
            header = _only_path(tomllib.loads(found[1]))
            yield header, number
        elif found := _TOML_KEY.match(line):
            yield header + _only_path(tomllib.loads(f"{found[1]} = {{}}")), number


def _only_path(table: dict[str, Any]) -> Keys:
    keys: list[str] = []
    while table:
        [(key, table)] = table.items()
        keys.append(key)
    return tuple(keys)


def _yaml(text: str) -> Iterator[tuple[Keys, int]]:
    import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - few have a file of this kind, and it loads slowly

    try:
        return _of_node(yaml.compose(text, Loader=yaml.SafeLoader), ())
    except yaml.YAMLError:
        return iter(())


def _of_node(node: Any, keys: Keys) -> Iterator[tuple[Keys, int]]:
    if node is None or node.id == "scalar":
        return
    members = node.value if node.id == "mapping" else [(None, item) for item in node.value]
    for position, (key, value) in enumerate(members):
        here = (*keys, str(position) if key is None else str(key.value))
        yield here, (value if key is None else key).start_mark.line + 1
        yield from _of_node(value, here)


_FINDERS: dict[str, Callable[[str], Iterator[tuple[Keys, int]]]] = {
    ".json": _json,
    ".jsonc": _json,
    ".toml": _toml,
    ".yaml": _yaml,
    ".yml": _yaml,
}
