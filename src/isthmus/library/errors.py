"""What the library raises. Every message names the value and says what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isthmus.model.places import without_places

if TYPE_CHECKING:
    from isthmus.library.contracts import ToolResult


class LibraryError(Exception):
    """Base of all of them."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would make it anew of its message alone. A pool of processes breaks over one that cannot be.
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[LibraryError], args: tuple[object, ...], fields: dict[str, object]) -> LibraryError:
    error = kind.__new__(kind, *args)
    Exception.__init__(error, *args)  # an OSError has them from there only
    error.__dict__.update(fields)
    return error


class ConfigurationError(LibraryError, ValueError):
    """Something that a service is to be made of cannot be used."""


class ServiceClosedError(LibraryError, RuntimeError):
    """A service that was not initialised, was shut down, or is another process's."""


class WrongThreadError(LibraryError, RuntimeError):
    """A synchronous call on the loop that would have to answer it: it would wait for itself for ever."""


class ServerConnectionError(LibraryError, ConnectionError):
    """A server that is needed cannot be reached."""

    def __init__(self, server: str, why: str) -> None:
        super().__init__(f"Server {server!r} cannot be reached: {why}")
        self.server = server


class ToolRegistryError(LibraryError, ValueError):
    """A tool cannot be registered, since its name is taken."""


class ToolError(LibraryError):
    """Base of what is wrong with one tool, or with its name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class ToolNotFoundError(ToolError, LookupError):
    """No tool has this name. `suggestions` are full names that look like it; none is ever taken for it."""

    def __init__(self, name: str, suggestions: Sequence[str] = (), hint: str = "") -> None:
        meant = f" Did you mean {' or '.join(suggestions)}?" if suggestions else ""
        super().__init__(name, f"There is no tool {name!r}.{meant}{f' {hint}' if hint else ''}")
        self.suggestions = tuple(suggestions)


class ToolUnreachableError(ToolNotFoundError):
    """The tool's server is not connected and has never said what it has, so that it may well have this tool."""

    def __init__(self, name: str, server: str, why: str) -> None:
        super().__init__(name, hint=f"Server {server} is not connected: {why}")
        self.server = server
        self.why = why

    def without_places(self) -> ToolUnreachableError:
        """The same for users and models, who are not told where the program keeps its servers."""
        return ToolUnreachableError(self.name, self.server, without_places(self.why))


class AmbiguousToolError(ToolError, LookupError):
    """Several tools have this short name; `candidates` are their full names."""

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        super().__init__(name, f"{name!r} could be {', '.join(candidates)}: use one of these full names.")
        self.candidates = tuple(candidates)


class ToolDeniedError(ToolError, PermissionError):
    """The user may not use this tool."""

    def __init__(self, name: str, user: str | None = None) -> None:
        who = f"user {user!r}" if user else "this user"
        super().__init__(name, f"{who} may not use {name}: its permissions do not cover it.")


class UnresolvedToolsError(LibraryError, LookupError):
    """Several names at once that are no tool's; `problems` has each with its own error."""

    def __init__(self, problems: Mapping[str, ToolError]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems.values()))
        self.problems = dict(problems)


class ToolExecutionError(ToolError):
    """A tool was executed, or should have been, and failed; `result` says how."""

    def __init__(self, name: str, message: str, result: ToolResult | None = None) -> None:
        super().__init__(name, message)
        self.result = result
