"""The package as text and as syntax trees, for tests that forbid certain code.

Only files that have a word in question are parsed, and each once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

import isthmus

ROOT = Path(isthmus.__file__).parent


@cache
def texts() -> dict[str, str]:
    """By its path below the package: what is in each module."""
    return {str(file.relative_to(ROOT)): file.read_text() for file in sorted(ROOT.rglob("*.py"))}


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """Every node of a module."""
    return tuple(ast.walk(ast.parse(texts()[name])))


@cache
def _used(name: str) -> frozenset[str]:
    """The words of a module that are called or imported from, as its text looks."""
    text = texts()[name]
    return frozenset(re.findall(r"(\w+)\(", text) + re.findall(r"(?m)^\s*(?:import|from)\s+(\w+)", text))


def using(words: Set[str]) -> Iterator[tuple[str, tuple[ast.AST, ...]]]:
    """The modules that call or import one of these, each with all of its nodes."""
    for name in texts():
        if not _used(name).isdisjoint(words):
            yield name, nodes(name)


def with_words(pattern: str) -> Iterator[tuple[str, tuple[ast.AST, ...]]]:
    """The modules whose text matches, each with all of its nodes."""
    for name, text in texts().items():
        if re.search(pattern, text, re.MULTILINE):
            yield name, nodes(name)


def strings(found: tuple[ast.AST, ...]) -> Iterator[str]:
    """The texts in these that are no docstrings."""
    docs = {id(node.value) for node in found if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in found:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def dotted(node: ast.AST) -> str:
    """A name as it is written: `asyncio.open_connection`; empty for other nodes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else f".{node.attr}"
    return ""


def imported(found: tuple[ast.AST, ...]) -> Iterator[str]:
    """The modules that are imported here, wherever in the text; of `from a import b`, `a` and `a.b`."""
    for node in found:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
