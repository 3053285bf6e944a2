"""`python -m fuzz.run TARGET [libFuzzer's words …]`: one target under atheris, in this process, which it ends.

With files instead, these are tried and nothing else, for which atheris is not needed: so a finding is shown again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fuzz.targets import target_of


def main() -> None:
    """Run one target."""
    name, *words = sys.argv[1:]
    files = [Path(word) for word in words if not word.startswith("-") and Path(word).is_file()]
    if files:
        target = target_of(name)
        for file in files:
            target(file.read_bytes())
        return
    import atheris  # type: ignore[import-untyped]  # noqa: PLC0415 - only who fuzzes has it

    with atheris.instrument_imports(include=["isthmus"]):
        target = target_of(name)
    atheris.Setup([sys.argv[0], *words], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
