"""The pins of a requirement file, as uv writes them. Standard library only, because the auditor has no more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"

SHIPPED = "image"
"""The file of what a hub runs on, extras included; `serve` is a part of it."""

_PIN = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._-]*)(?:\[[^]]*\])?==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>.*?))?\s*\\?"
)
_HASH = re.compile(r"\s+--hash=sha256:([0-9a-f]{64})\s*\\?")
_VIA = re.compile(r"\s+#(?:\s+via)?\s*(?P<whose>.*)")


@dataclass(frozen=True, slots=True)
class Pin:
    """One package at the one version that is installed."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    """SHA-256 of every file of this version that may be installed."""
    whose: tuple[str, ...]
    """Who asked for it: packages, files such as `image.in`, and `isthmus` itself."""


def file_of(stem: str) -> Path:
    """Where the pins of this name are."""
    return FOLDER / f"{stem}.txt"


def pins_of(file: Path) -> tuple[Pin, ...]:
    """Everything that is pinned in a file, in its order.

    Raises:
        ValueError: a line is none that uv writes.
    """
    blocks: list[list[str]] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            blocks.append([line])
        elif line.strip() and blocks:
            blocks[-1].append(line)
    return tuple(_pin(block) for block in blocks)


def _pin(block: list[str]) -> Pin:
    found = _PIN.fullmatch(block[0])
    if found is None:
        raise ValueError(f"not a pin: {block[0]!r}")
    hashes: list[str] = []
    whose: list[str] = []
    for line in block[1:]:
        if (hashed := _HASH.fullmatch(line)) is not None:
            hashes.append(hashed[1])
        elif (via := _VIA.fullmatch(line)) is not None:
            whose += [via["whose"]] if via["whose"] else []
        else:
            raise ValueError(f"neither a hash nor a reason: {line!r}")
    return Pin(found["name"], found["version"], found["marker"] or "", tuple(hashes), tuple(whose))
