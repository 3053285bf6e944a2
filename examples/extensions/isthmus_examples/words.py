"""isthmus.policy: tools whose names have one of these words are for few.

It is asked for every tool that a caller's permissions allow, when the caller's table is made, and not for each call.
"""

from __future__ import annotations

from collections.abc import Mapping


class Words:
    """See `isthmus.app.extensions.PolicyExtension`: it can refuse, and never allow more."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._words = _texts(settings, "words")
        self._exempt = _texts(settings, "except")

    def allows(self, tenant: str, caller: str, server: str, tool: str) -> bool:
        """Whether this caller may see and call this tool."""
        return caller in self._exempt or not any(word in tool.lower() for word in self._words)


def _texts(settings: Mapping[str, object], key: str) -> tuple[str, ...]:
    given = settings.get(key, [])
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise ValueError(f"{key} must be a list of texts")
    return tuple(given)
