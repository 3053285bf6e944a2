"""The settings of code mode: `[code]`."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class CodeSettings:
    """`[code]`: the limits of scripts. A limit is for one script unless it says otherwise."""

    workers: int = 4
    """How many scripts run at once, each in a process of its own; those that wait for people do not count. One caller
    uses at most half of them."""
    queued: int = 32
    """How many scripts wait for a worker; more are refused."""
    seconds: float = 300.0
    """How long a script may take, with its calls; a caller may ask for less."""
    cpu_seconds: float = 10.0
    """How long a script may compute, without the time of its calls."""
    memory_bytes: int = 32 * MIB
    """How much memory a script may use."""
    recursion: int = 200
    """How deep functions of a script may call each other."""
    calls: int = 200
    """How many tools a script may call."""
    calls_at_once: int = 16
    """How many calls of a script may run at once; more wait."""
    script_bytes: int = 64 * KIB
    """How long a script may be."""
    output_bytes: int = 64 * KIB
    """How much a script may print, and how long its result may be."""
    result_bytes: int = 4 * MIB
    """How long the result of one call may be; a longer one raises an exception in the script."""
    snapshot_bytes: int = 4 * MIB
    """How large the stored state of a durable script may be."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
