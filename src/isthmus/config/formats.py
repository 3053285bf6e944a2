"""Parse TOML, YAML, and JSON with comments and trailing commas into a table of plain values.

What the values mean is not known here. A text that breaks its format is rejected with line and column. No text, however
deep, repetitive or self-referring, takes more time than its length justifies. Called by `config.files`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from isthmus.config import values
from isthmus.config.finding_codes import REPEATED_KEY, SYNTAX
from isthmus.config.findings import ConfigError, Finding, Place

NODES_MAX = 100_000
"""How many values a YAML file may contain when its aliases are followed."""

DEPTH_MAX = 200
"""How deep a YAML file may nest."""

REPEATED_MAX = 20
"""How many duplicate keys are reported."""

_TOML_POSITION = re.compile(r"\s*\(at line (\d+), column (\d+)\)$")
_STRING = r'("[^"\\]*(?:\\.[^"\\]*)*"?)'
# What does not close goes on to the end: looking for the end of each such comment anew would be quadratic.
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*(?:.*?\*/|.*)", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_NOT_LINE_END = re.compile(r"[^\r\n]")
_YAML_TAG = "tag:yaml.org,2002:"
_YAML_WORDS = {
    "merge": re.compile(r"<<\Z"),
    "null": re.compile(r"(?:~|null|Null|NULL|)\Z"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "int": re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
    "float": re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
    ),
}
"""Scalars without quotes that are not texts: the core schema of YAML 1.2, and the merge key of 1.1.

By the rules of 1.1 `NO` is a boolean, `22:22` and `0777` are other numbers, and a date is not a text.
"""

Parsed = tuple[dict[str, object], tuple[Finding, ...]]
"""A table, with findings about its text."""

_Repeated = tuple[dict[str, object], str]
"""A table, and a key that is written twice in it."""

_Trail = tuple[Any, str | int] | None
"""The path to a value, from its end: the trail of its container, and the last step."""


def parse(file: Path, text: str) -> Parsed:
    """Parse a text into a table.

    Raises:
        ConfigError: it breaks the rules of its format, or holds no table.
    """
    return PARSERS[file.suffix.lower()](file, text)


def _toml(file: Path, text: str) -> Parsed:
    try:
        return tomllib.loads(text, parse_float=_float), ()
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


def _float(text: str) -> float | str:
    return values.keep_written(text, float(text))


def _repeated_keys(file: Path, trails: Iterable[_Trail]) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    for repeated in islice(trails, REPEATED_MAX):
        # Paths are built only here: a long key above many values would be copied for each of them.
        trail, steps = repeated, list[str | int]()
        while trail is not None:
            trail, step = trail
            steps.append(step)
        message = "is written twice in one object; the last one counts"
        findings.append(Place(file).at(*reversed(steps)).finding(message, code=REPEATED_KEY))
    return tuple(findings)


# -- JSON ----------------------------------------------------------------------------------------------------


def _json(file: Path, text: str) -> Parsed:
    repeated = list[_Repeated]()

    def table_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
        """Make a table and note duplicate keys; JSON silently keeps the last."""
        table: dict[str, object] = {}
        for key, value in pairs:
            if key in table:
                repeated.append((table, key))
            table[key] = value
        return table

    try:
        value = json.loads(strict_json(text), parse_float=_float, object_pairs_hook=table_of)
    except json.JSONDecodeError as error:
        raise _syntax(file, "JSON", error.lineno, error.colno, error.msg) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, "JSON", error) from error
    return _as_table(file, "JSON", value), _repeated_keys(file, _trails_to(repeated, value))


def strict_json(text: str) -> str:
    """Return JSON without comments and trailing commas; everything else keeps its position."""
    return _LAST_COMMA.sub(_blank, without_comments(text))


def without_comments(text: str) -> str:
    """Return JSON without comments; everything else keeps its position."""
    return _COMMENT.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    # The same length, so that errors elsewhere have their true line and column.
    return match[1] if match[1] is not None else _NOT_LINE_END.sub(" ", match[0])


def _trails_to(repeated: list[_Repeated], root: object) -> Iterator[_Trail]:
    """Yield the paths of the noted keys; the parser does not know them."""
    keys: dict[int, list[str]] = {}
    for table, key in repeated:
        keys.setdefault(id(table), []).append(key)
    stack: list[tuple[object, _Trail]] = [(root, None)] if keys else []
    while stack:
        value, trail = stack.pop()
        yield from ((trail, key) for key in keys.get(id(value), ()))
        if isinstance(value, dict):
            stack += [(inner, (trail, key)) for key, inner in value.items()]
        elif isinstance(value, list):
            stack += [(inner, (trail, position)) for position, inner in enumerate(value)]


# -- YAML ----------------------------------------------------------------------------------------------------


def _yaml(file: Path, text: str) -> Parsed:
    import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - few have a file of this kind, and it loads slowly

    made_by = _loader_by(getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    loader = made_by(text)
    repeated = list[_Trail]()
    try:
        # Deep nesting is rejected before it is built: the fast loader recurses in C, where that crashes the process.
        depth = 0
        for event in yaml.parse(text, Loader=made_by):
            kind = type(event).__name__
            depth += kind in ("MappingStartEvent", "SequenceStartEvent")
            depth -= kind in ("MappingEndEvent", "SequenceEndEvent")
            if depth > DEPTH_MAX:
                raise ValueError(f"it nests more than {DEPTH_MAX} levels deep")
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
    return _as_table(file, "YAML", value), _repeated_keys(file, repeated)


@cache
def _loader_by(base: Any) -> Any:
    """Return a loader with the rules of `_YAML_WORDS` that keeps the characters of numbers and booleans."""
    words = [(_YAML_TAG + tag, form) for tag, form in _YAML_WORDS.items()]
    made: Any = type("Loader", (base,), {"yaml_implicit_resolvers": {None: words}})
    readers: dict[str, Callable[[str], float]] = {
        "int": lambda text: int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)),
        # Python writes `inf` and `nan` without a dot.
        "float": lambda text: float(re.sub(r"\.(?=[a-z])", "", text.lower())),
        "bool": lambda text: text.lower() == "true",
    }

    def constructor(read: Callable[[str], float]) -> Callable[[Any, Any], object]:
        def construct(loader: Any, node: Any) -> object:
            text = loader.construct_scalar(node)
            return values.keep_written(text, read(text))

        return construct

    for tag, read in readers.items():
        made.add_constructor(_YAML_TAG + tag, constructor(read))
    return made


def _check_nodes(root: Any, repeated: list[_Trail]) -> None:
    """Reject a file whose aliases expand too far, and make every key a text."""
    sizes: dict[int, int] = {}
    # Children first, without recursion: a node is met once to open it and once to add up what is in it.
    stack: list[tuple[Any, _Trail, bool]] = [(root, None, False)]
    while stack:
        node, trail, is_open = stack.pop()
        if is_open:
            sizes[id(node)] = 1 + sum(sizes.get(id(child), NODES_MAX) for _, child in _children(node))
            if sizes[id(node)] > NODES_MAX:
                raise ValueError("its aliases refer to themselves or stand for too much")
        elif id(node) not in sizes:
            repeated += [(trail, key) for key in _name_keys(node)]
            sizes[id(node)] = NODES_MAX  # until it is known: a node that contains itself is too large
            stack.append((node, trail, True))
            stack.extend((child, (trail, step), False) for step, child in _children(node))


def _children(node: Any) -> list[tuple[str | int, Any]]:
    """Return the children of a node, keys included, each with its step."""
    if node.id == "mapping":
        steps = [str(key.value) if key.id == "scalar" else "" for key, _ in node.value]
        return [(step, part) for step, pair in zip(steps, node.value, strict=True) for part in pair]
    return list(enumerate(node.value)) if node.id == "sequence" else []


def _name_keys(node: Any) -> list[str]:
    """Make every key of a node a text, and return duplicate ones."""
    seen: set[str] = set()
    repeated: list[str] = []
    for key, _ in node.value if node.id == "mapping" else ():
        if key.id == "scalar" and not key.tag.endswith(":merge"):
            key.tag = f"{_YAML_TAG}str"  # `true` and `1` are names here, not a boolean and a number
            repeated.extend([key.value] if key.value in seen else [])
            seen.add(key.value)
    return repeated


PARSERS: dict[str, Callable[[Path, str], Parsed]] = {
    ".toml": _toml,
    ".json": _json,
    ".jsonc": _json,
    ".yaml": _yaml,
    ".yml": _yaml,
}
