"""The tools that devices of one agent see, by their exposed names. Listing and calling use the same table.

The table includes tools of servers that are away, for devices that listed them before; they are not listed. A table
never changes: `agents` makes a new one when a server changes.
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
    """The name as a device passes it to its language model."""
    return _ILLEGAL.sub("_", name)


def exposed_names(tools: Iterable[tuple[str, str]]) -> list[str]:
    """The exposed names of tools, given with their server ids in the order of servers.

    The first tool of a name keeps it, a later one becomes `server_id.tool`, and if that is taken, six hex digits are
    added. All names differ, also after the device has sanitised them.
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


class DeviceTool(msgspec.Struct, frozen=True, eq=False):
    """A tool behind an exposed name: its server's surface and the tool's own name."""

    server_id: str
    surface: Surface
    route: Route
    is_listed: bool = True
    """False for a tool of a server that is away: it can be called, but is not listed."""

    @property
    def tool(self) -> str:
        """The server's name for the tool."""
        return self.route.exposed


class DeviceTools:
    """The tools of one agent's devices, in list order."""

    __slots__ = ("_digest", "_frame_bytes", "_pages", "entries")

    def __init__(self, tools: Iterable[DeviceTool], frame_bytes: int) -> None:
        """Tools whose definition is longer than half a frame cannot be listed, and are left out."""
        fitting = [entry for entry in tools if _size(entry.route.feature.definition) <= frame_bytes // 2]
        names = exposed_names((entry.server_id, entry.tool) for entry in fitting)
        self.entries: dict[str, DeviceTool] = dict(zip(names, fitting, strict=True))
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

    def _listed(self) -> Iterator[tuple[str, DeviceTool]]:
        return ((name, entry) for name, entry in self.entries.items() if entry.is_listed)

    def page(self, position: int) -> tuple[bytes, ...]:
        """The JSON entries of one page; empty if there is no such page."""
        return self._cut()[position] if self.has_page(position) else ()

    def has_page(self, position: int) -> bool:
        """Whether there is such a page."""
        return position < len(self._cut())

    def _cut(self) -> list[tuple[bytes, ...]]:
        if self._pages is None:
            listed = [_listed(name, entry) for name, entry in self._listed()]
            self._pages = _pages(listed, self._frame_bytes * 3 // 4)  # the rest is for the other members
        return self._pages

    def cursor(self, position: int) -> str:
        """The cursor of a page."""
        return base64.urlsafe_b64encode(self.digest + b"%d" % position).decode()

    def position(self, cursor: str) -> int | None:
        """The page of a cursor, or the first page if the table has changed since; None if the cursor is invalid."""
        try:
            text = base64.urlsafe_b64decode(cursor.encode())
            position = int(text[len(self.digest) :])
        except ValueError:
            return None
        return position if text.startswith(self.digest) and position >= 0 else 0


def _size(definition: Mapping[str, msgspec.Raw]) -> int:
    return sum(len(key) + len(memoryview(value)) + 4 for key, value in definition.items())


def _listed(name: str, entry: DeviceTool) -> bytes:
    own = {key: value for key, value in entry.route.feature.definition.items() if key != SERVER_ID}
    # Last, so that no member of the server's own follows it.
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
