"""What callers have proved themselves with, for servers that are called in their name (RFC 8693).

In memory only, the latest of each caller and until it expires. Nobody is sent it but the token endpoint that the
operator configured, which gives another one for it. `identity` puts in what it has verified; `logins` takes it out.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from isthmus.model.credentials import Subject

SUBJECTS_MAX = 10_000
"""Callers that are remembered; who has not shown anything for longest is forgotten first."""


class SubjectTokens:
    """The latest token of each caller."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._known: OrderedDict[Subject, tuple[str, float]] = OrderedDict()

    def note(self, subject: Subject, token: str, expires_at: float) -> None:
        """Remember what a caller has shown, which was verified."""
        self._known[subject] = (token, expires_at)
        self._known.move_to_end(subject)
        if len(self._known) > SUBJECTS_MAX:
            self._known.popitem(last=False)

    def token_of(self, subject: Subject) -> str | None:
        """What a caller has shown last; None if that holds no more."""
        token, expires_at = self._known.get(subject, ("", 0.0))
        return token if expires_at > self._clock() else None

    def __repr__(self) -> str:
        return f"SubjectTokens({len(self._known)} callers)"
