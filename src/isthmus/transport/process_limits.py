"""What the system lets one child process use, at most. `transport.process` sets it as soon as the child is there.

Memory, open files and CPU time are counted for each process of the child's, processes for its whole user (and never
for root): that is how the system counts. The settings of a server hold the value; nothing is read here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields

if sys.platform == "linux":
    import resource

MEMORY_BYTES_MIN = 16 * 1024 * 1024
"""With less no program starts, and nobody would see why."""


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
    """Hold a child that has just started to its limits.

    From outside, and not between its fork and its start: code that runs there can stand still for ever in a program
    with threads. What the child starts within its first moments is bound all the same, unless it is quicker than this.

    Raises:
        Unbounded: the system has no way to do so, and there are limits to be held to.
    """
    if sys.platform != "linux":
        if limits:
            raise Unbounded("limits can be set on Linux only; take them out of its entry")
        return
    _bound(pid, limits)


if sys.platform == "linux":

    def _bound(pid: int, limits: ProcessLimits) -> None:
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
                    _lower(pid, kind, most)
        except ProcessLookupError:
            return  # it has ended already
        except OSError as error:
            # A program that runs with more rights than the hub, or a sandbox in which nobody sets such limits.
            if limits:
                raise Unbounded("the system does not let the hub set its limits; take them out of its entry") from error

    def _lower(pid: int, kind: int, most: int) -> None:
        _, hard = resource.prlimit(pid, kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(pid, kind, (most, most))
