"""The functions marked with `@tool`, for all hubs of this process.

Only a table: no loop, no thread, no import. Any thread may change it; watchers are called in that thread. Filled by
`library.own_tools`, read by `upstream.python.builtin` and `upstream.python.link`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from isthmus.core.catalog.names import BUILTIN
from isthmus.upstream.python.signatures import Runnable

RESERVED = frozenset({"echo", "timestamp", "chat_log"})
"""The tools that every hub has under `builtin`."""


class NameTaken(ValueError):
    """Another tool has this name; the message says which function it is."""


class FunctionOrigin(msgspec.Struct, frozen=True):
    """Where a function was written."""

    module: str
    qualname: str
    file: str = ""

    def is_same(self, other: FunctionOrigin) -> bool:
        """Whether both are the same source, run again: a notebook cell, or a module that is also the main program."""
        if self.qualname != other.qualname:
            return False
        return self.module == other.module or (bool(self.file) and self.file == other.file)

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname}"


class FunctionRegistry:
    """Functions by name. A claimed module is a server of its own, and its functions are not built in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: tuple[tuple[FunctionOrigin, Runnable], ...] = ()
        self._claimed: frozenset[str] = frozenset()
        self._watchers: dict[Callable[[], None], None] = {}
        self.version = 0
        """Increased after every change. Read it before the functions: it tells whether a copy is current."""

    # -- changing --------------------------------------------------------------------------------------------------

    def add(self, function: Runnable, origin: FunctionOrigin) -> None:
        """Add a function; it replaces the one that the same source registered before.

        Raises:
            NameTaken: another function has this name.
        """
        name = function.name
        with self._lock:
            is_claimed = origin.module in self._claimed
            if not is_claimed and name in RESERVED:
                raise NameTaken(f"{BUILTIN}.{name} is a tool that every hub has: give this one another name")
            for where, known in self._entries:
                is_same_server = where.module == origin.module if is_claimed else where.module not in self._claimed
                if known.name == name and is_same_server and not where.is_same(origin):
                    raise NameTaken(f"{name!r} is already the tool of {where}: give one of the two another name")
            kept = (entry for entry in self._entries if entry[1].name != name or not entry[0].is_same(origin))
            self._entries = (*kept, (origin, function))
            self.version += 1
        self._notify()

    def remove(self, name: str) -> bool:
        """Remove a built-in function; False for an unknown name."""
        return self._remove(lambda where, known: known.name == name and where.module not in self._claimed)

    def forget(self, module: str) -> None:
        """Remove the functions of a module that is about to be imported again: its source may have changed."""
        self._remove(lambda where, _known: where.module == module)

    def _remove(self, is_removed: Callable[[FunctionOrigin, Runnable], bool]) -> bool:
        with self._lock:
            kept = tuple(entry for entry in self._entries if not is_removed(*entry))
            was_there = len(kept) < len(self._entries)
            self._entries = kept
            self.version += was_there
        if was_there:
            self._notify()
        return was_there

    def claim(self, module: str) -> None:
        """List the functions of this module only under the server that the module is."""
        with self._lock:
            if module in self._claimed:
                return
            self._claimed |= {module}
            self.version += 1
        self._notify()

    def release(self, module: str) -> None:
        """Undo `claim` for a module without marked functions: those that are registered later are built in."""
        with self._lock:
            self._claimed -= {module}

    # -- reading ---------------------------------------------------------------------------------------------------

    def functions(self) -> Mapping[str, Runnable]:
        """The built-in functions by name."""
        return MappingProxyType(
            {known.name: known for where, known in self._entries if where.module not in self._claimed}
        )

    def of_module(self, module: str) -> list[Runnable]:
        """The functions that a module defines."""
        return [known for where, known in self._entries if where.module == module]

    def has_any_below(self, module: str) -> bool:
        """Whether a module, or a submodule of it, defines functions."""
        return any(f"{where.module}.".startswith(f"{module}.") for where, _ in self._entries)

    # -- watching --------------------------------------------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every change, in the thread that makes it; the returned function stops that."""
        with self._lock:
            self._watchers[callback] = None

        def unwatch() -> None:
            with self._lock:
                self._watchers.pop(callback, None)

        return unwatch

    def _notify(self) -> None:
        with self._lock:
            watchers = tuple(self._watchers)
        for callback in watchers:
            callback()

    def forked(self) -> None:
        """In a forked child: drop the watchers, and the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()
        self._watchers = {}


REGISTRY = FunctionRegistry()
"""The registry of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=REGISTRY.forked)
