"""What tools looked like when they were first seen, and what becomes of one that looks otherwise later.

A server that was trusted for what it said of its tools may say something else once it is. Each tool's definition has a
fingerprint, which is remembered across restarts; one that changes is told to the operator, and where that is wanted
(`strict`) callers do not see the tool until the operator has approved of it. `core.catalog.review` asks it about
everything that a server lists; `app` keeps what it remembers and tells what it found.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName

Pinning: TypeAlias = Literal["off", "warn", "strict", "approve"]
"""`warn` tells of a change, `strict` also keeps the tool from callers until it is approved, and `approve` does so with
every tool that was never seen before as well."""

WITHHOLDING: frozenset[Pinning] = frozenset({"strict", "approve"})
"""Those that keep tools from callers."""

PINNINGS: tuple[str, ...] = get_args(Pinning)

MEMBERS: Final = ("title", "description", "inputSchema", "outputSchema", "annotations")
"""What a model, or a program, goes by. What else a server writes beside these may change as it likes."""

APART: Final = "links of their own"
"""To whom a tool is listed where that is neither everybody nor those who can be asked something."""

PINS_MAX: Final = 200_000
"""Tools that are remembered: those who dial in may list ever new ones."""

PINS_PER_SERVER_MAX: Final = 10_000
"""Of one server, which may list ever new ones too, and must not take the room of others."""

FINGERPRINTS_KEPT: Final = 20_000


class Sighting(msgspec.Struct, frozen=True):
    """A tool that looks as it was never seen to look.

    `variant` names those to whom it was listed so, where that is not everybody.
    """

    server: ServerName
    variant: str
    tool: FeatureName
    fingerprint: bytes
    definition: bytes
    """As JSON, its members in order."""
    is_change: bool
    """Whether it was seen before, looking otherwise."""
    is_withheld: bool
    """Whether callers do not see it until it is approved."""


PinKey: TypeAlias = tuple[ServerName, str, FeatureName]
"""Server, variant and tool."""


class Pins:
    """The fingerprints of all tools; `tell` hears of each sighting once.

    It also hears of a tool that was withheld and looks again as it was known to.
    """

    def __init__(
        self,
        known: Mapping[PinKey, bytes],
        mode_of: Callable[[ServerName], Pinning],
        tell: Callable[[Sighting], None],
        waiting: Iterable[PinKey] = (),
    ) -> None:
        """`waiting` are those that were withheld when it was last looked."""
        self._known: dict[PinKey, bytes] = {}
        self._counts: Counter[ServerName] = Counter()
        self._variants: dict[ServerName, set[str]] = {}
        self._mode_of = mode_of
        self._tell = tell
        self._fingerprints: dict[bytes, bytes] = {}
        self._told: dict[PinKey, bytes] = dict.fromkeys(waiting, b"")
        """What was told last of tools that are withheld: servers list them again and again."""
        self._told_counts: Counter[ServerName] = Counter(server for server, _, _ in self._told)
        self.learn(known)

    def learn(self, known: Mapping[PinKey, bytes]) -> None:
        """Go by this from now on, and by nothing else."""
        self._known.clear()
        self._counts.clear()
        self._variants.clear()
        for key, fingerprint in known.items():
            self._remember(key, fingerprint)

    def withholds(self, server: ServerName) -> bool:
        """Whether a tool of this server that looks otherwise is kept from callers."""
        return self._mode_of(server) in WITHHOLDING

    def passes(self, tool: Tool, client_caps: ClientCapabilities = NO_CAPABILITIES) -> bool:
        """Whether callers may see a tool that looks like this."""
        return self._passes(tool, variant_of(client_caps))

    def passes_apart(self, tool: Tool, client_caps: ClientCapabilities = NO_CAPABILITIES) -> bool:
        """Whether a tool may be called that looks like this on a link of single callers.

        It may if it is what they are shown, which is listed elsewhere, or was approved for such links.
        """
        variant = variant_of(client_caps)
        is_as_shown = self._known_as((tool.server, variant, tool.name)) == self._fingerprint(tool)
        return is_as_shown or self._passes(tool, variant or APART)

    def _passes(self, tool: Tool, variant: str) -> bool:
        mode = self._mode_of(tool.server)
        if mode == "off":
            return True
        key = (tool.server, variant, tool.name)
        fingerprint = self._fingerprint(tool)
        known = self._known_as(key)
        if known == fingerprint:
            if self._forget_told(key):
                self._tell(Sighting(*key, fingerprint, canonical_definition(tool), is_change=False, is_withheld=False))
            return True
        is_full = self._is_full(key)
        is_withheld = mode == "approve" or (mode == "strict" and (known is not None or is_full))
        if is_withheld:
            if not self._is_news(key, fingerprint):
                return False
        elif is_full:
            return True
        else:
            self._remember(key, fingerprint)
            self._forget_told(key)
        self._tell(Sighting(*key, fingerprint, canonical_definition(tool), known is not None, is_withheld))
        return not is_withheld

    def prepare(self, tool: Tool) -> None:
        """Have at hand what `passes` needs of a tool."""
        if self._mode_of(tool.server) != "off":
            self._fingerprint(tool)

    def _known_as(self, key: PinKey) -> bytes | None:
        """How a tool was known to look. Who lists it otherwise to some than to others has changed it, for these."""
        server, _, tool = key
        known = self._known.get(key) or self._known.get((server, "", tool))
        if known is None:
            others = (self._known.get((server, variant, tool)) for variant in self._variants.get(server, ()))
            known = next((fingerprint for fingerprint in others if fingerprint is not None), None)
        return known

    def _is_full(self, key: PinKey) -> bool:
        if key in self._known:
            return False
        return len(self._known) >= PINS_MAX or self._counts[key[0]] >= PINS_PER_SERVER_MAX

    def _is_news(self, key: PinKey, fingerprint: bytes) -> bool:
        """Whether something is to be told of a tool that is withheld."""
        if self._told.get(key) == fingerprint:
            return False
        if key not in self._told:
            if self._told_counts[key[0]] >= PINS_PER_SERVER_MAX or len(self._told) >= PINS_MAX:
                return False
            self._told_counts[key[0]] += 1
        self._told[key] = fingerprint
        return True

    def _forget_told(self, key: PinKey) -> bool:
        if self._told.pop(key, None) is None:
            return False
        self._told_counts[key[0]] -= 1
        return True

    def _fingerprint(self, tool: Tool) -> bytes:
        """Thousands who dial in may list the very same tools."""
        key = tool.digest + tool.name.encode("utf-8", "surrogatepass")
        fingerprint = self._fingerprints.get(key)
        if fingerprint is None:
            if len(self._fingerprints) >= FINGERPRINTS_KEPT:
                self._fingerprints.clear()
            fingerprint = self._fingerprints[key] = fingerprint_of(canonical_definition(tool))
        return fingerprint

    def approve(self, server: ServerName, variant: str, tool: FeatureName, fingerprint: bytes) -> None:
        """Let a tool be seen that looks so."""
        key = (server, variant, tool)
        self._remember(key, fingerprint)
        self._forget_told(key)

    def _remember(self, key: PinKey, fingerprint: bytes) -> None:
        if key not in self._known:
            server, variant, _ = key
            self._counts[server] += 1
            if variant:
                self._variants.setdefault(server, set()).add(variant)
        self._known[key] = fingerprint


def variant_of(client_caps: ClientCapabilities) -> str:
    """What those are called who can be asked this; empty for everybody."""
    return " ".join(sorted(client_caps))


def canonical_definition(tool: Tool) -> bytes:
    """What counts of a definition, as JSON in which the order of members says nothing."""
    members = {key: tool.definition[key] for key in MEMBERS if key in tool.definition}
    try:
        value = {key: msgspec.json.decode(raw) for key, raw in members.items()}
        return msgspec.json.encode({"name": tool.name, **value}, order="deterministic")
    except (msgspec.MsgspecError, RecursionError, ValueError):
        # Numbers that no machine can hold, say: then it is the text that counts.
        texts = {key: bytes(raw).decode("utf-8", "backslashreplace") for key, raw in members.items()}
        return msgspec.json.encode({"name": tool.name, **texts})


def fingerprint_of(definition: bytes) -> bytes:
    """Of a definition in its canonical form."""
    return hashlib.sha256(definition).digest()


def known_of(rows: Iterable[tuple[str, str, str, bytes]]) -> dict[PinKey, bytes]:
    """What was remembered, as `Pins` takes it; of server, variant, tool and fingerprint."""
    return {(ServerName(server), variant, FeatureName(tool)): mark for server, variant, tool, mark in rows}
