"""Keeps a start short: the cycle collector looks seldom, and structlog does not load rich.

With that it would show tracebacks, of which the hub has it show plain ones; it is there by others' needs, and takes a
sixth of a hub's start. Begun by `main.program` alone: in a program of somebody else's, both are theirs to say.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "rich"

COLLECT = (20_000, 2, 2)
"""How seldom the collector looks: what is loaded stays, and looking at it again and again takes a tenth of a start. As
`app.collector` has it, which is not loaded here."""


class WithoutRich:
    """Finds no rich as long as structlog is being loaded; whoever wants it later, such as a server's module, has it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`; what this returns None for, others find.

        Raises:
            ModuleNotFoundError: there is none now.
        """
        if fullname == NAME and _is_loading():
            raise ModuleNotFoundError(f"No module named {NAME!r} while structlog is loaded", name=NAME)
        return None


def _is_loading() -> bool:
    """Whether structlog is there and has nothing to offer yet."""
    found = sys.modules.get("structlog")
    return found is not None and not hasattr(found, "get_logger")


def install() -> None:
    """Do so in this process from now on."""
    gc.set_threshold(*COLLECT)
    sys.meta_path.insert(0, WithoutRich())
