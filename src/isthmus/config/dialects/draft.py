"""A server's entry while it is put into our own words.

The steps that a client's file needs (`steps`, `clients`) move keys about in it; it remembers how the file
spells what was moved, so that whatever is found later names what its author wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isthmus.config.findings import Finding, Place


@dataclass(slots=True)
class Draft:
    """One entry: some keys in our words, some still in the client's."""

    place: Place
    fields: dict[str, object]
    spelt: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By our key: the path at which the file has it, where that differs."""
    findings: list[Finding] = field(default_factory=list)

    def at(self, key: str) -> Place:
        """Return where the file has what we call `key`."""
        return self.place.at(*self.spelt.get(key, (key,)))

    def rename(self, theirs: str, ours: str) -> None:
        """Give a key our name, unless that is taken: then it stays what it is, for nobody to read."""
        if theirs in self.fields and ours not in self.fields:
            self.move(ours, self.fields.pop(theirs), theirs)

    def move(self, ours: str, value: object, *spelt: str) -> None:
        """Set one of our keys to what the file has at another path."""
        self.fields[ours] = value
        self.spelt[ours] = spelt

    def merge(self, ours: str, members: dict[str, object], *spelt: str) -> None:
        """Add to one of our tables; what is in it already stays."""
        present = self.fields.get(ours, {})
        if isinstance(present, dict):
            self.fields[ours] = {**members, **present}
            self.spelt.setdefault(ours, (ours,) if present else spelt)
