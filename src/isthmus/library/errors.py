"""The exceptions of the library. Every message names the value and says what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from isthmus.library.public_types import ToolResult


class LibraryError(Exception):
    """Base class of the library's exceptions."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default Python calls the class with the message alone. That raises, and breaks a process pool.
        return _unpickle, (type(self), self.args, self.__dict__)


def _unpickle(kind: type[LibraryError], args: tuple[object, ...], fields: dict[str, object]) -> LibraryError:
    error = kind.__new__(kind, *args)
    Exception.__init__(error, *args)  # an OSError gets its args only here
    error.__dict__.update(fields)
    return error


class ConfigurationError(LibraryError, ValueError):
    """A configuration or argument is invalid."""


class ServiceClosedError(LibraryError, RuntimeError):
    """A service is not initialized, was shut down, or belongs to another process."""


class WrongThreadError(LibraryError, RuntimeError):
    """A blocking call on the hub's own loop, which would wait for itself for ever."""


class ServerConnectionError(LibraryError, ConnectionError):
    """A required server cannot be reached."""

    def __init__(self, server: str, why: str) -> None:
        super().__init__(f"Server {server!r} cannot be reached: {why}")
        self.server = server


class ToolRegistryError(LibraryError, ValueError):
    """A tool cannot be registered: its name is taken."""


class ToolError(LibraryError):
    """Base class of errors about one tool or its name."""

    @property
    def executed(self) -> Literal["no", "yes", "unknown"]:
        """Whether the tool ran. A call that found no tool ran none."""
        return "no"

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class ToolNotFoundError(ToolError, LookupError):
    """No tool has this name. `suggestions` are similar full names; they are never used automatically."""

    def __init__(self, name: str, suggestions: Sequence[str] = (), hint: str = "") -> None:
        hints = f" Did you mean {' or '.join(suggestions)}?" if suggestions else ""
        super().__init__(name, f"There is no tool {name!r}.{hints}{f' {hint}' if hint else ''}")
        self.suggestions = tuple(suggestions)


class ToolUnreachableError(ToolNotFoundError):
    """The tool's server is not connected and never listed its tools, so it may have this one."""

    def __init__(self, name: str, server: str, why: str) -> None:
        super().__init__(name, hint=f"Server {server} is not connected: {why}")
        self.server = server
        self.why = why


class AmbiguousToolError(ToolError, LookupError):
    """Several tools have this name; `candidates` are their full names."""

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        super().__init__(name, f"{name!r} could be {', '.join(candidates)}: use one of these full names.")
        self.candidates = tuple(candidates)


class ToolDeniedError(ToolError, PermissionError):
    """The user may not use this tool."""

    def __init__(self, name: str, user: str | None = None) -> None:
        subject = f"user {user!r}" if user else "this user"
        super().__init__(name, f"{subject} may not use {name}: its permissions do not cover it.")


class UnresolvedToolsError(LibraryError, LookupError):
    """Several names have no tool; `problems` has the error of each name."""

    def __init__(self, problems: Mapping[str, ToolError]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems.values()))
        self.problems = dict(problems)


class ToolExecutionError(ToolError):
    """A call failed; `result` says how."""

    def __init__(self, name: str, message: str, result: ToolResult | None = None) -> None:
        super().__init__(name, message)
        self.result = result

    @property
    def executed(self) -> Literal["no", "yes", "unknown"]:
        """Whether the tool ran."""
        return self.result.error.executed if self.result is not None and self.result.error is not None else "unknown"
