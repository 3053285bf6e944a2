"""Pinned tool definitions: those that were first seen or approved, and what happens when one changes.

A server may change its definitions after an operator has trusted them. Each definition has a fingerprint that is
stored across restarts. A change is reported to the operator, and with `strict` callers do not see the tool until the
operator approves. `core.catalog.definition_review` checks everything that a server lists; `app` stores the pins and
reports.
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
"""`warn` reports a change, `strict` also hides the tool until it is approved, and `approve` also hides every new tool.
"""

WITHHOLDING: frozenset[Pinning] = frozenset({"strict", "approve"})
"""The modes that hide tools."""

PINNINGS: tuple[str, ...] = get_args(Pinning)

MEMBERS: Final = ("title", "description", "inputSchema", "outputSchema", "annotations")
"""What a model or a program relies on; other members may change freely."""

OWN_LINK: Final = "links of their own"
"""The variant of tools that are listed on links of single callers."""

PINS_MAX: Final = 200_000
"""Pinned tools in all: servers that dial in may list ever new ones."""

PINS_PER_SERVER_MAX: Final = 50_000
"""Pinned tools of one server: it must not use up the room of others."""

FINGERPRINTS_MAX: Final = 200_000
"""Fingerprints that are kept, more than a hub has tools: 200 bytes each."""

PREPARED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Canonical definitions that wait for their report."""


class Sighting(msgspec.Struct, frozen=True):
    """A tool definition that was never seen before.

    `variant` names the clients to which it was listed so, if not to all.
    """

    server: ServerName
    variant: str
    tool: FeatureName
    fingerprint: bytes
    definition: bytes
    """The definition as JSON, with sorted members."""
    is_change: bool
    """Whether the tool was seen before with another definition."""
    is_withheld: bool
    """Whether it is hidden from callers until it is approved."""


PinKey: TypeAlias = tuple[ServerName, str, FeatureName]
"""Server, variant and tool."""


class Pins:
    """The fingerprints of all tools; `on_sighting` receives each sighting once.

    It also receives a tool that was withheld and has its known definition again.
    """

    def __init__(
        self,
        known: Mapping[PinKey, bytes],
        mode_of: Callable[[ServerName], Pinning],
        on_sighting: Callable[[Sighting], None],
        waiting: Iterable[PinKey] = (),
    ) -> None:
        """`waiting` are the tools that were withheld before."""
        self._known: dict[PinKey, bytes] = {}
        self._counts: Counter[ServerName] = Counter()
        self._variants: dict[ServerName, set[str]] = {}
        self._mode_of = mode_of
        self._on_sighting = on_sighting
        self._fingerprints: dict[bytes, bytes] = {}
        self._prepared: dict[bytes, bytes] = {}
        self._prepared_bytes = 0
        self._reported: dict[PinKey, bytes] = dict.fromkeys(waiting, b"")
        """The last reported fingerprint of each withheld tool: servers list them again and again."""
        self._reported_counts: Counter[ServerName] = Counter(server for server, _, _ in self._reported)
        self._revision = 0
        self.replace_all(known)

    def replace_all(self, known: Mapping[PinKey, bytes]) -> None:
        """Replace all pins."""
        self._revision += 1
        self._known.clear()
        self._counts.clear()
        self._variants.clear()
        for key, fingerprint in known.items():
            self._remember(key, fingerprint)

    def withholds(self, server: ServerName) -> bool:
        """Whether changed tools of this server are hidden."""
        return self._mode_of(server) in WITHHOLDING

    def state_of(self, server: ServerName) -> object:
        """A value that is equal as long as `passes` gives the same answers for this server."""
        return self._revision, self._mode_of(server)

    def passes(self, tool: Tool, client_caps: ClientCapabilities = NO_CAPABILITIES) -> bool:
        """Whether callers may see this tool."""
        return self._passes(tool, variant_of(client_caps))

    def passes_on_own_link(self, tool: Tool, client_caps: ClientCapabilities = NO_CAPABILITIES) -> bool:
        """Whether a tool with this definition may be called on a link of a single caller.

        It may if it equals the tool that callers see, or was approved for such links.
        """
        variant = variant_of(client_caps)
        is_as_shown = self._known_as((tool.server, variant, tool.name)) == self._fingerprint(tool)
        return is_as_shown or self._passes(tool, variant or OWN_LINK)

    def _passes(self, tool: Tool, variant: str) -> bool:
        mode = self._mode_of(tool.server)
        if mode == "off":
            return True
        key = (tool.server, variant, tool.name)
        fingerprint = self._fingerprint(tool)
        known = self._known_as(key)
        if known == fingerprint:
            if self._forget_report(key):
                self._on_sighting(
                    Sighting(*key, fingerprint, self._definition(tool), is_change=False, is_withheld=False)
                )
            return True
        is_full = key not in self._known and (
            len(self._known) >= PINS_MAX or self._counts[key[0]] >= PINS_PER_SERVER_MAX
        )
        is_withheld = mode == "approve" or (mode == "strict" and (known is not None or is_full))
        if is_withheld:
            if not self._is_news(key, fingerprint):
                return False
        elif is_full:
            return True
        else:
            self._remember(key, fingerprint)
            self._forget_report(key)
        self._on_sighting(Sighting(*key, fingerprint, self._definition(tool), known is not None, is_withheld))
        return not is_withheld

    def prepare(self, tool: Tool, definition: bytes | None = None) -> None:
        """Compute what `passes` needs: the fingerprint, and the canonical definition of a tool to report.

        `definition` is the canonical one, if the caller has computed it.
        """
        if self._mode_of(tool.server) == "off":
            return
        key = _cache_key(tool)
        if key not in self._fingerprints:
            definition = canonical_definition(tool) if definition is None else definition
            self._note_fingerprint(key, definition)
        if self._known_as((tool.server, "", tool.name)) == self._fingerprints[key]:
            return
        if self._prepared_bytes > PREPARED_BYTES_MAX:
            self._prepared.clear()
            self._prepared_bytes = 0
        definition = self._prepared[key] = canonical_definition(tool) if definition is None else definition
        self._prepared_bytes += len(definition)

    def needs(self, tool: Tool) -> bool:
        """Whether the fingerprint of a tool is still to be computed."""
        return self._mode_of(tool.server) != "off" and _cache_key(tool) not in self._fingerprints

    def _definition(self, tool: Tool) -> bytes:
        """The canonical definition; a list of thousands takes too long at once, so it is prepared."""
        definition = self._prepared.pop(_cache_key(tool), None)
        if definition is None:
            return canonical_definition(tool)
        self._prepared_bytes -= len(definition)
        return definition

    def _known_as(self, key: PinKey) -> bytes | None:
        """The known fingerprint of a tool. Listing it differently to some clients counts as a change for these."""
        server, _, tool = key
        known = self._known.get(key) or self._known.get((server, "", tool))
        if known is None:
            others = (self._known.get((server, variant, tool)) for variant in self._variants.get(server, ()))
            known = next((fingerprint for fingerprint in others if fingerprint is not None), None)
        return known

    def _is_news(self, key: PinKey, fingerprint: bytes) -> bool:
        """Whether a withheld tool is to be reported."""
        if self._reported.get(key) == fingerprint:
            return False
        if key not in self._reported:
            if self._reported_counts[key[0]] >= PINS_PER_SERVER_MAX or len(self._reported) >= PINS_MAX:
                return False
            self._reported_counts[key[0]] += 1
        self._reported[key] = fingerprint
        return True

    def _forget_report(self, key: PinKey) -> bool:
        if self._reported.pop(key, None) is None:
            return False
        self._reported_counts[key[0]] -= 1
        return True

    def _fingerprint(self, tool: Tool) -> bytes:
        """The fingerprint, cached: thousands of servers may list the same tools."""
        key = _cache_key(tool)
        fingerprint = self._fingerprints.get(key)
        return self._note_fingerprint(key, canonical_definition(tool)) if fingerprint is None else fingerprint

    def _note_fingerprint(self, key: bytes, definition: bytes) -> bytes:
        if len(self._fingerprints) >= FINGERPRINTS_MAX:
            self._fingerprints.clear()
        fingerprint = self._fingerprints[key] = fingerprint_of(definition)
        return fingerprint

    def approve(self, server: ServerName, variant: str, tool: FeatureName, fingerprint: bytes) -> None:
        """Let callers see a tool with this definition."""
        self._revision += 1
        key = (server, variant, tool)
        self._remember(key, fingerprint)
        self._forget_report(key)

    def learn_from_node(self, key: PinKey, fingerprint: bytes) -> bool:
        """Another node has accepted this definition; return whether this changes anything here.

        In the mode `warn`, definitions that this node has seen stay known; otherwise nodes that see different
        definitions would report each other's for ever.
        """
        known = self._known.get(key)
        if known == fingerprint or (known is not None and not self.withholds(key[0])):
            return False
        self.approve(*key, fingerprint)
        return True

    def report_again(self, key: PinKey) -> bool:
        """Report a tool again if it is still withheld here; return whether it was reported before."""
        self._revision += 1
        return self._forget_report(key)

    def _remember(self, key: PinKey, fingerprint: bytes) -> None:
        if key not in self._known:
            server, variant, _ = key
            self._counts[server] += 1
            if variant:
                self._variants.setdefault(server, set()).add(variant)
        self._known[key] = fingerprint


def _cache_key(tool: Tool) -> bytes:
    return tool.digest + tool.name.encode("utf-8", "surrogatepass")


def variant_of(client_caps: ClientCapabilities) -> str:
    """The variant of clients with these capabilities; empty for all."""
    return " ".join(sorted(client_caps))


def canonical_definition(tool: Tool) -> bytes:
    """The pinned members of a definition, as JSON with sorted members."""
    members = {key: tool.definition[key] for key in MEMBERS if key in tool.definition}
    try:
        value = {key: msgspec.json.decode(raw) for key, raw in members.items()}
        return msgspec.json.encode({"name": tool.name, **value}, order="deterministic")
    except (msgspec.MsgspecError, RecursionError, ValueError):
        # For example, numbers that Python cannot hold: then the text itself is compared.
        texts = {key: bytes(raw).decode("utf-8", "backslashreplace") for key, raw in members.items()}
        return msgspec.json.encode({"name": tool.name, **texts})


def fingerprint_of(definition: bytes) -> bytes:
    """The fingerprint of a canonical definition."""
    return hashlib.sha256(definition).digest()


def known_of(rows: Iterable[tuple[str, str, str, bytes]]) -> dict[PinKey, bytes]:
    """Stored rows of server, variant, tool and fingerprint, as `Pins` takes them."""
    return {(ServerName(server), variant, FeatureName(tool)): mark for server, variant, tool, mark in rows}
