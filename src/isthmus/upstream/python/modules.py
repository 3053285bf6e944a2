"""Imports the operator's Python modules and finds their tools.

A module may fail in any way while it is imported, exit the process, or hang; each is reported in one sentence with file
and line. Called by `upstream.python.link`, and by `app.hub` for modules with `@tool` functions.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import structlog

from isthmus.upstream.link import ConnectFailed
from isthmus.upstream.python.registry import REGISTRY
from isthmus.upstream.python.runner import PRINTS_TO_STDERR
from isthmus.upstream.python.signatures import Function, Runnable, Unusable
from isthmus.upstream.settings import PythonSettings

log = structlog.get_logger(__name__)


class Loaded(NamedTuple):
    """The functions that a target names, and what had to be left out of it and why."""

    functions: list[Runnable]
    notes: list[str]


LoadWork: TypeAlias = Callable[[PythonSettings], Loaded]

_under_way: dict[tuple[LoadWork, PythonSettings], Future[Loaded]] = {}
"""Imports that have not ended. One that hangs is waited for again, and not begun again: its thread cannot be ended."""


def begin_to_load(reach: PythonSettings) -> Future[Loaded]:
    """Import a server's functions in a thread of its own; the future raises `ConnectFailed`, and is not cancelled."""
    return _begin(load, reach)


def begin_to_import(reach: PythonSettings) -> Future[Loaded]:
    """The same for a module whose functions are made tools by `@tool`, which become built-in ones by that."""
    return _begin(import_marked, reach)


def _begin(work: LoadWork, reach: PythonSettings) -> Future[Loaded]:
    key = (work, reach)
    future = _under_way.get(key)
    if future is None:
        future = _under_way[key] = Future()
        future.set_running_or_notify_cancel()
        threading.Thread(target=_work_into, args=(future, key), name=f"import {reach.target}", daemon=True).start()
    return future


def _work_into(future: Future[Loaded], key: tuple[LoadWork, PythonSettings]) -> None:
    PRINTS_TO_STDERR.set(True)
    work, reach = key
    try:
        loaded = work(reach)
    except BaseException as error:  # noqa: BLE001 - whoever waits for the future hears it, whatever it is
        del _under_way[key]
        future.set_exception(error)
    else:
        del _under_way[key]
        future.set_result(loaded)


def import_marked(reach: PythonSettings) -> Loaded:
    """Import a module, and see that it made a tool of something.

    Raises:
        ConnectFailed: it cannot be imported, or has nothing that is marked by `@tool`.
    """
    name = reach.target
    _import(name, reach.path, "it is looked for beside the configuration's file, and wherever Python looks")
    if not REGISTRY.has_any_below(name):
        raise ConnectFailed(f"nothing in the module {name} is marked by @tool")
    return Loaded(REGISTRY.of_module(name), [])


def load(reach: PythonSettings) -> Loaded:
    """Import the target and read its functions.

    Raises:
        ConnectFailed: there is none, it cannot be imported, or nothing in it can be a tool.
    """
    name, _, attribute = reach.target.partition(":")
    REGISTRY.claim(name)  # before its functions are marked, or they would be built-in ones for a moment
    module = _import(name, reach.path)
    marked = REGISTRY.of_module(name)
    if not marked:
        REGISTRY.release(name)
    if attribute:
        return Loaded([_single(module, attribute)], [])
    if marked:
        return Loaded(marked, [])
    loaded = _read_all(module)
    if not loaded.functions:
        found = "; ".join(loaded.notes) or "it defines no public function"
        raise ConnectFailed(f"nothing in the module {name} can be a tool: {found}")
    return loaded


# -- importing -----------------------------------------------------------------------------------------------------


def _import(name: str, path: str | None, where: str = "path says where to look for one") -> ModuleType:
    if path is not None:
        _search_first(path)
    if name not in sys.modules:
        REGISTRY.forget(name)
    importlib.invalidate_caches()  # the file may have been written since the last attempt
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # `sys.exit` in a module must cost that module only
        log.warning("a Python module could not be imported", module=name, exc_info=error)
        raise ConnectFailed(_failure_reason(name, error, where)) from error
    if path is not None:
        _check_origin(module, path)
    return module


def _search_first(path: str) -> None:
    if not Path(path).is_dir():
        raise ConnectFailed(f"its path {path} is not a folder")
    if sys.path[:1] != [path]:
        sys.path[:] = [path, *(entry for entry in sys.path if entry != path)]


def _check_origin(module: ModuleType, path: str) -> None:
    """One process has one module of a name: another server's of the same name is not this one."""
    top = module.__name__.partition(".")[0]
    spec = PathFinder.find_spec(top, [path])
    loaded = getattr(sys.modules[top], "__file__", None)
    if spec is not None and spec.origin is not None and loaded is not None and spec.origin != loaded:
        raise ConnectFailed(f"a module called {top} was loaded from {loaded} before; give one of the two another name")


def _failure_reason(name: str, error: BaseException, where: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(f"{error.name}."):
        return f"there is no Python module called {error.name}; {where}"
    if isinstance(error, SystemExit):
        return f"the module {name} ended its program while it was imported{_where(error)}"
    words = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"importing {name} failed: {words}{_where(error)}"


def _where(error: BaseException) -> str:
    """The place of an error: of the text that is no Python, or the innermost that is not the import itself."""
    if isinstance(error, SyntaxError):
        return ""  # its own words end in the place
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _is_machinery(filename: str) -> bool:
    return filename.startswith("<frozen ") or filename in (__file__, importlib.__file__)


# -- reading -------------------------------------------------------------------------------------------------------


def _single(module: ModuleType, attribute: str) -> Runnable:
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise ConnectFailed(f"the module {module.__name__} has no {attribute}{_defined_in(module)}") from None
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


def _read_all(module: ModuleType) -> Loaded:
    """Every public function that the module defines, or what it says is public; one that cannot be costs itself."""
    loaded = Loaded([], [])
    for name, found in _public(module).items():
        try:
            loaded.functions.append(Function(name, found))
        except Unusable as unusable:
            loaded.notes.append(f"{name!r} left out: {unusable}{_line_of(found)}")
    return loaded


def _public(module: ModuleType) -> dict[str, Any]:
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


def _defined_in(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return "" if file is None else f" ({file})"


def _line_of(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"
