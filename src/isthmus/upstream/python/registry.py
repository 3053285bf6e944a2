"""The functions marked with `@tool`, for all hubs of this process.

Only a table: no loop, no thread, no import. Any thread may change it; watchers are called in that thread. Filled by
`library.functions`, read by `upstream.python.builtin` and `upstream.python.modules`.
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
"""What every hub has already, under `builtin`."""


class NameTaken(ValueError):
    """A tool of this name is there already; the message says whose it is."""


class FunctionOrigin(msgspec.Struct, frozen=True):
    """Where a function was written."""

    module: str
    qualname: str
    file: str = ""

    def is_same(self, other: FunctionOrigin) -> bool:
        """Whether this is the other's text, run once more: a cell, or a module that is also the program itself."""
        if self.qualname != other.qualname:
            return False
        return self.module == other.module or (bool(self.file) and self.file == other.file)

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname}"


class FunctionRegistry:
    """Functions by name. Those of a claimed module are that module's own server's, and not built in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: tuple[tuple[FunctionOrigin, Runnable], ...] = ()
        self._claimed: frozenset[str] = frozenset()
        self._watchers: dict[Callable[[], None], None] = {}
        self.version = 0
        """Another one after every change; who keeps something of this reads it first."""

    # -- changing --------------------------------------------------------------------------------------------------

    def add(self, function: Runnable, origin: FunctionOrigin) -> None:
        """Take a function in, in place of what the same text made of itself before.

        Raises:
            NameTaken: another has this name.
        """
        with self._lock:
            self._check_free(function.name, origin)
            kept = tuple(
                (where, known)
                for where, known in self._entries
                if known.name != function.name or not where.is_same(origin)
            )
            self._entries = (*kept, (origin, function))
            self.version += 1
        self._tell()

    def _check_free(self, name: str, origin: FunctionOrigin) -> None:
        is_own = origin.module in self._claimed
        if not is_own and name in RESERVED:
            raise NameTaken(f"{BUILTIN}.{name} is a tool that every hub has: give this one another name")
        for where, known in self._entries:
            is_beside = where.module == origin.module if is_own else where.module not in self._claimed
            if known.name == name and is_beside and not where.is_same(origin):
                raise NameTaken(f"{name!r} is already the tool of {where}: give one of the two another name")

    def remove(self, name: str) -> bool:
        """Forget the built-in of this name; False if there is none."""
        with self._lock:
            kept = tuple(
                (where, known) for where, known in self._entries if known.name != name or where.module in self._claimed
            )
            was_there = len(kept) < len(self._entries)
            self._entries = kept
            self.version += was_there
        if was_there:
            self._tell()
        return was_there

    def forget(self, module: str) -> None:
        """Forget what was written in a module that is about to be imported anew: its text may be another by now."""
        with self._lock:
            kept = tuple((where, known) for where, known in self._entries if where.module != module)
            was_there = len(kept) < len(self._entries)
            self._entries = kept
            self.version += was_there
        if was_there:
            self._tell()

    def claim(self, module: str) -> None:
        """From now on, the functions of this module are shown by the server that it is, and nowhere else."""
        with self._lock:
            if module in self._claimed:
                return
            self._claimed |= {module}
            self.version += 1
        self._tell()

    def release(self, module: str) -> None:
        """There is nothing in a claimed module that was marked: what somebody else makes a tool of is built in."""
        with self._lock:
            self._claimed -= {module}

    # -- reading ---------------------------------------------------------------------------------------------------

    def functions(self) -> Mapping[str, Runnable]:
        """Those that every hub shows among its own, by name."""
        return MappingProxyType({known.name: known for where, known in self._entries if self._is_built_in(where)})

    def _is_built_in(self, where: FunctionOrigin) -> bool:
        return where.module not in self._claimed

    def of_module(self, module: str) -> list[Runnable]:
        """Those that were written in a module."""
        return [known for where, known in self._entries if where.module == module]

    def has_any_below(self, module: str) -> bool:
        """Whether something was written in a module, or in one of its package."""
        return any(f"{where.module}.".startswith(f"{module}.") for where, _ in self._entries)

    # -- telling ---------------------------------------------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every change, in whichever thread makes it; what is returned ends that."""
        with self._lock:
            self._watchers[callback] = None
        return lambda: self._unwatch(callback)

    def _unwatch(self, callback: Callable[[], None]) -> None:
        with self._lock:
            self._watchers.pop(callback, None)

    def _tell(self) -> None:
        with self._lock:
            watchers = tuple(self._watchers)
        for callback in watchers:
            callback()

    def forked(self) -> None:
        """In a forked child: who watched is not there, and the lock may be held by a thread that is not either."""
        self._lock = threading.Lock()
        self._watchers = {}


REGISTRY = FunctionRegistry()
"""The one of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=REGISTRY.forked)
