"""`isthmus completion`: shell completion."""

from __future__ import annotations


def server_names() -> list[str]:
    """The servers of the configuration in use."""
    return []
