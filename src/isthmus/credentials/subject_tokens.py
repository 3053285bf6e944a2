"""Verified tokens of callers, for token exchange at servers that are called in their name (RFC 8693).

The latest token of each caller is held in memory until it expires. It is sent only to the configured token endpoint,
which exchanges it. `identity.issuers` reports verified tokens; `logins` uses them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from isthmus.model.credentials import Subject

SUBJECTS_MAX = 10_000
"""The maximum number of callers; the least recently seen one is forgotten first."""


class SubjectTokens:
    """The latest token of each caller."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._known: OrderedDict[Subject, tuple[str, float]] = OrderedDict()

    def note(self, subject: Subject, token: str, expires_at: float) -> None:
        """Remember a caller's verified token."""
        self._known[subject] = (token, expires_at)
        self._known.move_to_end(subject)
        if len(self._known) > SUBJECTS_MAX:
            self._known.popitem(last=False)

    def token_of(self, subject: Subject) -> str | None:
        """The caller's latest token; None if it has expired."""
        token, expires_at = self._known.get(subject, ("", 0.0))
        return token if expires_at > self._clock() else None

    def __repr__(self) -> str:
        return f"SubjectTokens({len(self._known)} callers)"
