"""Every target by its name: what `make fuzz`, CI and the tests run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

Target = Callable[[bytes], None]

CORPUS = Path(__file__).with_name("corpus")

_PLACES = {
    "endpoints": ("http", "mcp", "agent", "rest", "relay", "answered"),
    "replies": ("events", "lines", "envelopes", "of_server", "of_agent", "of_dialled_in"),
    "binary": ("grpc",),
    "addresses": ("addresses",),
    "proofs": ("tokens", "key_sets", "metadata"),
}
"""By module; one is loaded when it is wanted, because atheris takes its time with each."""

NAMES = tuple(name for names in _PLACES.values() for name in names)


def target_of(name: str) -> Target:
    """The target of this name."""
    module = next(module for module, names in _PLACES.items() if name in names)
    return cast(Target, getattr(import_module(f"fuzz.{module}"), name))


def corpus_of(name: str) -> list[bytes]:
    """The inputs that are kept for a target, in the order of their names."""
    return [file.read_bytes() for file in sorted((CORPUS / name).iterdir()) if file.is_file()]
