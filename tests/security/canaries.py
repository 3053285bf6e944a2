"""Secrets to look for afterwards: one for each place that can hold a secret, and a search for them."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

KEPT_FOR_THEMSELVES = (
    "relay/key",
    "audit/key",
    "credentials/key",
    "oauth/key",
    "journal.key",
    "push.key",
    "access/key",
)
"""Files of a state folder that are there to hold a key of the hub's own; what is sealed with it is looked through."""


class Canaries:
    """By place: a text that is found nowhere else in the world."""

    def __init__(self) -> None:
        self._by_place: dict[str, str] = {}
        self._cores: dict[str, str] = {}

    def __getitem__(self, place: str) -> str:
        """The secret of a place, made when it is first asked for."""
        if place not in self._by_place:
            self._cores[place] = secrets.token_hex(12)
            self._by_place[place] = f"canary{self._cores[place]}"
        return self._by_place[place]

    def __len__(self) -> int:
        return len(self._by_place)

    def watch(self, place: str, secret: str) -> str:
        """Look for a secret made elsewhere; its prefix may be public."""
        self._by_place[place] = secret
        self._cores[place] = secret[-24:]
        return secret

    def found_in(self, text: bytes | str) -> set[str]:
        """The places whose secrets are in a text, in whichever spelling."""
        data = text.encode(errors="replace") if isinstance(text, str) else text
        return {place for place, core in self._cores.items() if any(each in data for each in _spellings(core))}

    def found_under(self, folder: Path) -> dict[str, set[str]]:
        """The same of every file in a folder, but for those that are there to hold a key."""
        found: dict[str, set[str]] = {}
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            name = str(file.relative_to(folder))
            if name not in KEPT_FOR_THEMSELVES and (places := self.found_in(file.read_bytes())):
                found[name] = places
        return found


def _spellings(core: str) -> set[bytes]:
    """The text itself, in hex, and in base64 wherever it may begin."""
    plain = core.encode()
    shifted = (base64.b64encode(b"x" * shift + plain) for shift in range(3))
    return {plain, plain.hex().encode(), plain[::-1], *(text[4:-4] for text in shifted)}
