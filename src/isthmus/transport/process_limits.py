"""Limits of the system on one child process. `transport.process` sets them as soon as the child exists.

The system counts memory, open files and CPU time per process, and processes per user (but not for root). The settings
of a server hold the values, so this module is apart from the one that starts processes: T22 proves which packages
cannot reach that one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields

if sys.platform == "linux":
    import resource

MEMORY_BYTES_MIN = 16 * 1024 * 1024
"""With less no program starts, without a visible reason."""


class Unbounded(Exception):
    """This system cannot bound a process that runs."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """None: as much as the hub itself may have. A child never leaves its memory behind in a file when it crashes."""

    memory_bytes: int | None = None
    """Address space, which programs with a garbage collector reserve far more of than they use."""
    files: int | None = None
    """Open files and sockets."""
    processes: int | None = None
    """Processes and threads of the user that the hub runs as."""
    cpu_seconds: int | None = None
    """Time on a processor, after which the process is ended."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and value < 1:
                raise ValueError(f"{limit.name} must be at least 1, not {value}")
        if self.memory_bytes is not None and self.memory_bytes < MEMORY_BYTES_MIN:
            raise ValueError(f"memory_bytes must be at least {MEMORY_BYTES_MIN}, not {self.memory_bytes}")

    def __bool__(self) -> bool:
        return any(getattr(self, limit.name) is not None for limit in fields(self))


def bound(pid: int, limits: ProcessLimits) -> None:
    """Set the limits of a child that has just started.

    From outside, and not between fork and exec: code that runs there can hang in a program with threads. Processes that
    the child starts inherit the limits, unless they are started within the first moments.

    Raises:
        Unbounded: the system cannot set limits, and there are some.
    """
    if sys.platform != "linux":
        if limits:
            raise Unbounded("limits can be set on Linux only; take them out of its entry")
        return
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_CPU: limits.cpu_seconds,
    }
    try:
        for kind, most in wanted.items():
            if most is not None:
                _, hard = resource.prlimit(pid, kind)
                lower = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(pid, kind, (lower, lower))
    except ProcessLookupError:
        return  # it has ended already
    except OSError as error:
        # The program has more rights than the hub, or a sandbox forbids setting limits.
        if limits:
            raise Unbounded("the system does not let the hub set its limits; take them out of its entry") from error
