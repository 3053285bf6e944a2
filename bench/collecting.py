"""Keeping the cycle collector out of what is measured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect what there is now, and nothing meanwhile: no finalizer of others' is counted or timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
