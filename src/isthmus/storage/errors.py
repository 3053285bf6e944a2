"""Why a journal cannot be opened."""

from __future__ import annotations


class StateInUse(Exception):
    """Another hub keeps its tasks in the same place."""


class StateUnusable(Exception):
    """The place where tasks are to be kept cannot be reached, or cannot be used by this hub."""
