"""A link to the operator's Python functions, which run in the hub's process and are trusted like the hub itself.

`PythonLink` imports the module and finds its tools; `upstream.python.runner` runs them. A module may fail in any way
while it is imported, exit the process, or hang; each is reported in one sentence with file and line. `app.hub` also
imports modules with `@tool` functions from here.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Set
from concurrent.futures import Future
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, NamedTuple, TypeAlias

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.settings import Limits
from isthmus.model.calls import ClientCapabilities, LogLevel
from isthmus.model.fault_table import NotConnected
from isthmus.model.features import Ability, Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.base_link import BaseLink, ConnectFailed
from isthmus.upstream.listing import Listing
from isthmus.upstream.python.registry import REGISTRY
from isthmus.upstream.python.runner import PRINTS_TO_STDERR, Runner, redirect_prints
from isthmus.upstream.python.signatures import Function, Runnable, Unusable
from isthmus.upstream.response_waiters import Waiter, turned_away
from isthmus.upstream.server_settings import Era, PythonSettings
from isthmus.wire.mcp.forwarded_methods import LegacyDialect
from isthmus.wire.mcp.messages import Implementation

log = structlog.get_logger(__name__)


class Loaded(NamedTuple):
    """The tools of a target, and notes about the functions that were left out."""

    functions: list[Runnable]
    notes: list[str]


LoadWork: TypeAlias = Callable[[PythonSettings], Loaded]

_under_way: dict[tuple[LoadWork, PythonSettings], Future[Loaded]] = {}
"""Imports that have not ended. A hanging import is awaited again and not repeated: its thread cannot be stopped."""

_search_path_lock = threading.Lock()
"""Servers are imported at the same time, each in its thread. One would undo how another changes `sys.path`, and
`invalidate_caches` fails when it runs twice at once."""


def begin_to_load(reach: PythonSettings) -> Future[Loaded]:
    """Import a server's functions in a new thread; the future raises `ConnectFailed`, and cannot be cancelled."""
    return _begin(load, reach)


def begin_to_import(reach: PythonSettings) -> Future[Loaded]:
    """Import a module whose `@tool` functions become built-in tools; otherwise like `begin_to_load`."""
    return _begin(import_marked, reach)


def _begin(work: LoadWork, reach: PythonSettings) -> Future[Loaded]:
    key = (work, reach)
    if (known := _under_way.get(key)) is not None:
        return known
    future: Future[Loaded] = Future()
    _under_way[key] = future
    future.set_running_or_notify_cancel()

    def run() -> None:
        PRINTS_TO_STDERR.set(True)
        try:
            loaded = work(reach)
        except BaseException as error:  # noqa: BLE001 - the future raises it, whatever it is
            del _under_way[key]
            future.set_exception(error)
        else:
            del _under_way[key]
            future.set_result(loaded)

    threading.Thread(target=run, name=f"import {reach.target}", daemon=True).start()
    return future


def import_marked(reach: PythonSettings) -> Loaded:
    """Import a module that marks functions with `@tool`.

    Raises:
        ConnectFailed: it cannot be imported, or marks nothing.
    """
    name = reach.target
    _import(name, reach.path, "it is looked for beside the configuration's file, and wherever Python looks")
    if not REGISTRY.has_any_below(name):
        raise ConnectFailed(f"nothing in the module {name} is marked by @tool")
    return Loaded(REGISTRY.of_module(name), [])


def load(reach: PythonSettings) -> Loaded:
    """Import the target and read its functions: one, those marked with `@tool`, or all public ones.

    Raises:
        ConnectFailed: the target does not exist, cannot be imported, or has no function that can be a tool.
    """
    name, _, attribute = reach.target.partition(":")
    REGISTRY.claim(name)  # before the import, or its `@tool` functions would be built-in tools for a moment
    module = _import(name, reach.path)
    marked = REGISTRY.of_module(name)
    if not marked:
        REGISTRY.release(name)
    if attribute:
        return Loaded([_read_single(module, attribute)], [])
    if marked:
        return Loaded(marked, [])
    loaded = Loaded([], [])
    for public, found in _public_functions(module).items():
        try:
            loaded.functions.append(Function(public, found))
        except Unusable as unusable:
            loaded.notes.append(f"{public!r} left out: {unusable}{_line_of(found)}")
    if not loaded.functions:
        reasons = "; ".join(loaded.notes) or "it defines no public function"
        raise ConnectFailed(f"nothing in the module {name} can be a tool: {reasons}")
    return loaded


# -- importing -----------------------------------------------------------------------------------------------------


def _import(name: str, path: str | None, where: str = "path says where to look for one") -> ModuleType:
    if path is not None and not Path(path).is_dir():
        raise ConnectFailed(f"its path {path} is not a folder")
    with _search_path_lock:
        if path is not None and sys.path[:1] != [path]:
            sys.path[:] = [path, *(entry for entry in sys.path if entry != path)]
        importlib.invalidate_caches()  # the file may have been written since the last attempt
    if name not in sys.modules:
        REGISTRY.forget(name)
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # `sys.exit` in a module must not end the hub
        reason = _failure_reason(name, error, where)
        if _failures.get(name) != reason:  # each attempt to connect imports it again
            _failures[name] = reason
            cause = (type(error), error, _own_frames(error.__traceback__))
            log.warning("a Python module could not be imported", module=name, exc_info=cause)
        raise ConnectFailed(reason) from error
    _failures.pop(name, None)
    if path is not None:
        # A process has one module per name: it may be the module of another server.
        top = module.__name__.partition(".")[0]
        spec = PathFinder.find_spec(top, [path])
        loaded = getattr(sys.modules[top], "__file__", None)
        if spec is not None and spec.origin is not None and loaded is not None and spec.origin != loaded:
            raise ConnectFailed(
                f"a module called {top} was loaded from {loaded} before; give one of the two another name"
            )
    return module


_failures: Final[dict[str, str]] = {}
"""Why each module could not be imported the last time."""


def _is_importing(file: str) -> bool:
    return file.startswith("<frozen ") or file in (__file__, importlib.__file__)


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the module."""
    while trace is not None and _is_importing(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _failure_reason(name: str, error: BaseException, where: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(f"{error.name}."):
        return f"there is no Python module called {error.name}; {where}"
    place = ""
    if not isinstance(error, SyntaxError):  # the text of a SyntaxError ends with its place
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_importing(frame.filename)]
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SystemExit):
        return f"the module {name} ended its program while it was imported{place}"
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"importing {name} failed: {text}{place}"


# -- reading -------------------------------------------------------------------------------------------------------


def _read_single(module: ModuleType, attribute: str) -> Runnable:
    try:
        found = getattr(module, attribute)
    except AttributeError:
        file = getattr(module, "__file__", None)
        place = "" if file is None else f" ({file})"
        raise ConnectFailed(f"the module {module.__name__} has no {attribute}{place}") from None
    if not _can_be_called(found):
        kind = "a class" if inspect.isclass(found) else f"of type {type(found).__name__}"
        raise ConnectFailed(f"{attribute} of the module {module.__name__} is {kind} and not a function")
    marked = [known for known in REGISTRY.of_module(module.__name__) if getattr(known, "function", None) is found]
    if marked:
        return marked[0]
    try:
        return Function(attribute, found)
    except Unusable as unusable:
        raise ConnectFailed(f"{attribute} cannot be a tool: {unusable}{_line_of(found)}") from unusable


def _public_functions(module: ModuleType) -> dict[str, Any]:
    """The callables in `__all__`; without `__all__`, the public functions that the module defines itself."""
    names = getattr(module, "__all__", None)
    if names is not None:
        chosen = {str(name): getattr(module, str(name), None) for name in names}
        return {name: value for name, value in chosen.items() if _can_be_called(value)}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isroutine(value) and value.__module__ == module.__name__
    }


def _can_be_called(value: object) -> bool:
    return callable(value) and not inspect.isclass(value)


def _line_of(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


# -- the link ------------------------------------------------------------------------------------------------------


class PythonLink(BaseLink):
    """The functions of one target."""

    can_ask = False  # functions ask through their calls; the list is the same for all callers
    carrier = "python"
    start_seconds = 60.0

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        *,
        reach: PythonSettings,
        background: BackgroundTasks,
        max_calls: int,
    ) -> None:
        super().__init__(server, me, limits)
        self.dialect = LegacyDialect("Python")
        self._reach = reach
        self._runner = Runner(server, limits, background, max_calls)
        self._functions: dict[str, Runnable] = {}
        self._notes: tuple[str, ...] = ()

    async def handshake(self, era: Era) -> None:
        """Import the module.

        Raises:
            ConnectFailed: it cannot be imported, or has no function that can be a tool.
        """
        redirect_prints()
        try:
            async with asyncio.timeout(self.start_seconds):
                loaded = await asyncio.wrap_future(begin_to_load(self._reach))
        except TimeoutError:
            raise ConnectFailed(f"importing {self._reach.target} takes over {self.start_seconds:g} s") from None
        self._functions = {function.name: function for function in loaded.functions}
        self._notes = tuple(loaded.notes)

    async def ping(self, within: float) -> None:
        """Do nothing: functions of this process cannot be lost."""

    def abilities(self) -> frozenset[Ability]:
        """Tools, and logging if a function has a context."""
        does_log = any(function.takes_context for function in self._functions.values())
        return frozenset(("tools", "logging") if does_log else ("tools",))

    async def _read_lists(self, topics: Set[Topic], known: Listing | None, client_caps: ClientCapabilities) -> Listing:
        """The functions; they never change."""
        tools = [Tool.of(self.server, FeatureName(f.name), f.definition()) for f in self._functions.values()]
        return Listing(tuple(tools), notes={"tools": self._notes})

    def set_level(self, level: LogLevel) -> None:
        """Do nothing: functions send all lines, and the hub filters them."""

    def send(self, inflight: InFlight) -> None:
        """Run the function."""
        if self.fence is not None and (why := self.fence()) is not None:
            inflight.finish(NotConnected(self.server, why))
            return
        function = self._functions.get(inflight.name)
        if function is None or self.lost.done():
            inflight.finish(NotConnected(self.server, f"it no longer has a function {inflight.name}"))
            return
        self._runner.start(inflight, function)

    def may_have_run(self, inflight: InFlight) -> bool:
        """Whether the function has started; otherwise `withdraw` prevents it."""
        return self._runner.may_have_run(inflight)

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Cancel the function's task, or remove it from the queue; a running thread continues."""
        self._runner.withdraw(inflight)

    async def aclose(self) -> None:
        """End all calls; threads end when their functions return."""
        self._lose("closed by the hub")
        self._runner.close("closed by the hub")

    # -- methods of `BaseLink` without a use here ------------------------------------------------------------------

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        waiter.fail(turned_away(self.server, f"functions do not support {method}"))

    def listen(self) -> None:
        """Do nothing: the functions do not change."""
