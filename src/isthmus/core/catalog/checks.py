"""Compiled argument checks, kept by the description of the tool they belong to."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from isthmus.core.catalog.schema import ArgumentCheck, UnusableSchema, compile_check
from isthmus.model.features import Tool


class CheckCache:
    """Compiled argument checks by the description they belong to; one is compiled once, on the first call of its tool.

    Thousands of agents may have the same program dial in: all of these share one check.
    """

    def __init__(self, *, limit_bytes: int, capacity: int = 20_000) -> None:
        self._limit_bytes = limit_bytes
        self._capacity = capacity
        self._checks: dict[bytes, ArgumentCheck | None] = {}

    def of(self, tool: Tool) -> Callable[[msgspec.Raw], str | None]:
        """The check for this tool; compiling is put off until somebody calls it."""
        return lambda arguments: self._run(tool, arguments)

    def _run(self, tool: Tool, arguments: msgspec.Raw) -> str | None:
        key = tool.digest
        try:
            check = self._checks[key]
        except KeyError:
            check = self._compile(tool)
            if len(self._checks) >= self._capacity:
                self._checks.clear()
            self._checks[key] = check
        return None if check is None else check(arguments)

    def _compile(self, tool: Tool) -> ArgumentCheck | None:
        schema = tool.definition.get("inputSchema")
        if schema is None:
            return None
        try:
            return compile_check(schema, limit_bytes=self._limit_bytes)
        except UnusableSchema:
            return None  # the server makes its own check; see `catalog.schema`


def no_check(_: msgspec.Raw) -> str | None:
    """The check of whatever has no schema here: its server makes its own."""
    return None
