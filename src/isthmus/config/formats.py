"""The text of a file as a table of plain values: TOML, YAML, and JSON with the liberties that editors allow.

What the values mean is not known here. A text that breaks its format is refused with the line and column;
nothing in it, however deep, repeated or self-referring, may cost more than its length. Called by `config.files`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from isthmus.config.codes import REPEATED_KEY, SYNTAX
from isthmus.config.findings import ConfigError, Finding, Place

NODES_MAX = 100_000
"""How many values a YAML file may stand for once its aliases are followed."""

DEPTH_MAX = 200
"""How deep a YAML file may nest."""

_TOML_POSITION = re.compile(r"\s*\(at line (\d+), column (\d+)\)$")
_STRING = r'("[^"\\]*(?:\\.[^"\\]*)*"?)'
# What does not close goes on to the end: looking for the end of each such comment anew would be quadratic.
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*(?:.*?\*/|.*)", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_NOT_LINE_END = re.compile(r"[^\r\n]")

Parsed = tuple[dict[str, object], tuple[Finding, ...]]
"""A table, and what is odd about its text."""


def parse(file: Path, text: str) -> Parsed:
    """Return the table that a text stands for.

    Raises:
        ConfigError: it breaks the rules of its format, or holds no table.
    """
    return PARSERS[file.suffix.lower()](file, text)


def _toml(file: Path, text: str) -> Parsed:
    try:
        return tomllib.loads(text), ()
    except tomllib.TOMLDecodeError as error:
        why, position = str(error), _TOML_POSITION.search(str(error))
        if position:
            raise _syntax(file, "TOML", int(position[1]), int(position[2]), why[: position.start()]) from error
        lines = text.split("\n")
        raise _syntax(file, "TOML", len(lines), len(lines[-1]) + 1, why) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, "TOML", error) from error


def _syntax(file: Path, form: str, line: int, column: int, why: str) -> ConfigError:
    place = Place(file, f"line {line}, column {column}")
    return ConfigError(place.finding(f"is not {form}: {why}", code=SYNTAX))


def _unreadable(file: Path, form: str, error: Exception) -> ConfigError:
    return ConfigError(Place(file).finding(f"cannot be read as {form}: {error}", code=SYNTAX))


def _as_table(file: Path, form: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ConfigError(Place(file).finding(f"must hold a {form} object, not another value", code=SYNTAX))
    return value


def _told_twice(file: Path, keys: list[str]) -> tuple[Finding, ...]:
    said = "is written twice in one object; the last one counts"
    return tuple(Place(file).at(key).finding(said, code=REPEATED_KEY) for key in keys)


# -- JSON ----------------------------------------------------------------------------------------------------


def _json(file: Path, text: str) -> Parsed:
    repeated = list[str]()
    try:
        value = json.loads(strict_json(text), object_pairs_hook=lambda pairs: _table(pairs, repeated))
    except json.JSONDecodeError as error:
        raise _syntax(file, "JSON", error.lineno, error.colno, error.msg) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, "JSON", error) from error
    return _as_table(file, "JSON", value), _told_twice(file, repeated)


def strict_json(text: str) -> str:
    """Return JSON without comments and without commas after the last item, everything else where it was."""
    return _LAST_COMMA.sub(_blank, _COMMENT.sub(_blank, text))


def _blank(found: re.Match[str]) -> str:
    # The same length, so that whatever is wrong elsewhere is named by its true line and column.
    return found[1] if found[1] is not None else _NOT_LINE_END.sub(" ", found[0])


def _table(pairs: list[tuple[str, object]], repeated: list[str]) -> dict[str, object]:
    """Make a table and note the keys that JSON would silently take the last of."""
    table: dict[str, object] = {}
    for key, value in pairs:
        if key in table:
            repeated.append(key)
        table[key] = value
    return table


# -- YAML ----------------------------------------------------------------------------------------------------


def _yaml(file: Path, text: str) -> Parsed:
    import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - few have a file of this kind, and it loads slowly

    made_by = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = made_by(text)
    repeated = list[str]()
    try:
        _check_depth(yaml.parse(text, Loader=made_by))
        node = loader.get_single_node()
        if node is None:
            return {}, ()
        _check_nodes(node, repeated)
        value = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = error.problem or error.context or "it cannot be understood"
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _syntax(file, "YAML", line, column, why) from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise _unreadable(file, "YAML", error) from error
    finally:
        loader.dispose()
    return _as_table(file, "YAML", value), _told_twice(file, repeated)


def _check_depth(events: Iterable[Any]) -> None:
    """Refuse what nests too deep before it is built: the fast loader recurses in C, where that ends the process."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name in ("MappingStartEvent", "SequenceStartEvent")
        depth -= name in ("MappingEndEvent", "SequenceEndEvent")
        if depth > DEPTH_MAX:
            raise ValueError(f"it nests more than {DEPTH_MAX} levels deep")


def _check_nodes(root: Any, repeated: list[str]) -> None:
    """Refuse a file whose aliases make more of it than it says, and make every key a text."""
    sizes: dict[int, int] = {}
    # Children first, without recursion: a node is met once to open it and once to add up what is in it.
    stack = [(root, False)]
    while stack:
        node, is_open = stack.pop()
        if is_open:
            sizes[id(node)] = 1 + sum(sizes.get(id(child), NODES_MAX) for child in _children(node))
            if sizes[id(node)] > NODES_MAX:
                raise ValueError("its aliases refer to themselves or stand for too much")
        elif id(node) not in sizes:
            _name_keys(node, repeated)
            sizes[id(node)] = NODES_MAX  # until it is known: whatever contains itself is too much
            stack.append((node, True))
            stack.extend((child, False) for child in _children(node))


def _children(node: Any) -> list[Any]:
    if node.id == "mapping":
        return [part for pair in node.value for part in pair]
    return node.value if node.id == "sequence" else []


def _name_keys(node: Any, repeated: list[str]) -> None:
    seen: set[str] = set()
    for key, _ in node.value if node.id == "mapping" else ():
        if key.id == "scalar" and not key.tag.endswith(":merge"):
            key.tag = "tag:yaml.org,2002:str"  # `on` and `1` are names here, not a boolean and a number
            repeated.extend([key.value] if key.value in seen else [])
            seen.add(key.value)


PARSERS: dict[str, Callable[[Path, str], Parsed]] = {
    ".toml": _toml,
    ".json": _json,
    ".jsonc": _json,
    ".yaml": _yaml,
    ".yml": _yaml,
}
