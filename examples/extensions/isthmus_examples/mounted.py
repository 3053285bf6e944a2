"""isthmus.secrets: `mounted:NAME` is the file NAME in a folder that the machine's owner fills, such as /run/secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path


def source(settings: Mapping[str, object]) -> Callable[[str], str]:
    """What is asked for each `mounted:NAME` when the configuration is read."""
    folder = Path(str(settings.get("folder", "/run/secrets")))

    def secret(name: str) -> str:
        if Path(name).name != name or name.startswith("."):
            raise ValueError("not the name of a file")
        return (folder / name).read_text(encoding="utf-8").strip()

    return secret
