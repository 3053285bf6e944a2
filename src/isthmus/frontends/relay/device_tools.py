"""What one agent's devices see: exposed name → tool. Listing and calling read the same table.

Tools of servers that are away are in it for devices that listed them before, and are not listed.

A table is a value of one moment; `faces.relay.agents` makes another when a server's standing changes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from isthmus.core.catalog.view import Route
from isthmus.model.calls import Surface
from isthmus.wire.mcp.lists import TOOLS, write_entry
from isthmus.wire.relay.messages import SERVER_ID

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_\-\u4e00-\u9fff]")


def sanitised(name: str) -> str:
    """What a device makes of a name before it shows it to its language model."""
    return _ILLEGAL.sub("_", name)


def exposed_names(tools: Iterable[tuple[str, str]]) -> list[str]:
    """The names of these tools, each given with the id of its server, in the order in which their servers came.

    The first keeps its bare name, a later one of the same name is `server_id.tool`, and one that is still the same
    to a device ends in six hex digits. No two are equal, not even after the device's own sanitising.
    """
    taken: set[str] = set()
    names: list[str] = []
    for server_id, tool in tools:
        name = _free_name(server_id, tool, taken)
        taken.add(sanitised(name))
        names.append(name)
    return names


def _free_name(server_id: str, tool: str, taken: set[str]) -> str:
    for name in (tool, f"{server_id}.{tool}"):
        if sanitised(name) not in taken:
            return name
    digest = hashlib.blake2b(f"{server_id}\0{tool}".encode()).hexdigest()
    digits = (digest[start : start + 6] for start in range(len(digest) - 6))
    return next(name for six in digits if sanitised(name := f"{server_id}.{tool}_{six}") not in taken)


class Entry(msgspec.Struct, frozen=True, eq=False):
    """Where an exposed name leads: to a tool, by its own name, on its server's own surface."""

    server_id: str
    surface: Surface
    route: Route
    is_listed: bool = True
    """False for a tool of a server that is away: it can be called by its name, and is not listed."""

    @property
    def tool(self) -> str:
        """What its server calls it."""
        return self.route.exposed


class Table:
    """The tools of one agent's devices, in the order in which they are listed."""

    __slots__ = ("_digest", "_frame_bytes", "_pages", "entries")

    def __init__(self, tools: Iterable[Entry], frame_bytes: int) -> None:
        """A tool whose description fills half of what a device can be sent cannot be listed, and so is not there."""
        shown = [entry for entry in tools if _size(entry.route.feature.definition) <= frame_bytes // 2]
        names = exposed_names((entry.server_id, entry.tool) for entry in shown)
        self.entries: dict[str, Entry] = dict(zip(names, shown, strict=True))
        self._frame_bytes = frame_bytes
        self._pages: list[tuple[bytes, ...]] | None = None
        self._digest: bytes | None = None

    @property
    def digest(self) -> bytes:
        """Changes exactly when the listed tools, their names or their descriptions do."""
        if self._digest is None:
            total = hashlib.blake2b(digest_size=6)
            for name, entry in self._listed():
                total.update(f"{name}\0{entry.server_id}\0".encode() + entry.route.feature.digest)
            self._digest = total.digest()
        return self._digest

    def _listed(self) -> Iterator[tuple[str, Entry]]:
        return ((name, entry) for name, entry in self.entries.items() if entry.is_listed)

    def page(self, position: int) -> tuple[bytes, ...]:
        """The entries of one page, each as it is listed; none where there is no such page."""
        return self._cut()[position] if self.has_page(position) else ()

    def has_page(self, position: int) -> bool:
        """Whether there is such a page."""
        return position < len(self._cut())

    def _cut(self) -> list[tuple[bytes, ...]]:
        if self._pages is None:
            listed = [_listed(name, entry) for name, entry in self._listed()]
            self._pages = _pages(listed, self._frame_bytes * 3 // 4)  # the rest is for what is said beside them
        return self._pages

    def cursor(self, position: int) -> str:
        """What a device gives back to be told that page."""
        return base64.urlsafe_b64encode(self.digest + b"%d" % position).decode()

    def position(self, cursor: str) -> int | None:
        """The page that a cursor stands for, the first if the table has changed since; None if it is no cursor."""
        try:
            text = base64.urlsafe_b64decode(cursor.encode())
            position = int(text[len(self.digest) :])
        except ValueError:
            return None
        return position if text.startswith(self.digest) and position >= 0 else 0


def _size(definition: Mapping[str, msgspec.Raw]) -> int:
    return sum(len(key) + len(memoryview(value)) + 4 for key, value in definition.items())


def _listed(name: str, entry: Entry) -> bytes:
    own = {key: value for key, value in entry.route.feature.definition.items() if key != SERVER_ID}
    # At the end, where no member of the server's own can follow it.
    return write_entry(TOOLS, name, {**own, SERVER_ID: msgspec.Raw(msgspec.json.encode(entry.server_id))})


def _pages(listed: list[bytes], page_bytes: int) -> list[tuple[bytes, ...]]:
    pages: list[tuple[bytes, ...]] = []
    page: list[bytes] = []
    size = 0
    for entry in listed:
        if page and size + len(entry) > page_bytes:
            pages.append(tuple(page))
            page, size = [], 0
        page.append(entry)
        size += len(entry) + 1
    return [*pages, tuple(page)] if page else pages
