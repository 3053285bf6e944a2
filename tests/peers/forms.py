"""The forms in which a full server comes (program, era, carrier) and what each form can do.

`SUPPORTS` records facts about the SDKs, which `test_full` holds them to without a hub; through the hub, the matrix
expects exactly as much. What is in no row works in every form: lists, templates, reading, prompts, completions,
progress, and logs during a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Program = Literal["sdk1", "sdk2", "fastmcp"]
Era = Literal["legacy", "modern"]
Carrier = Literal["stdio", "sse", "stateful", "stateless", "websocket"]
Ability = Literal["announces", "levels", "subscriptions", "updates"]
"""`announces`: its list changes can be heard. `levels`: what a caller asked not to hear is not sent.
`subscriptions`: it takes them. `updates`: and tells of changes."""

PROGRAMS: tuple[Program, ...] = ("sdk1", "sdk2", "fastmcp")
LEGACY_CARRIERS: tuple[Carrier, ...] = ("stdio", "sse", "stateful", "stateless")
MODERN_CARRIERS: tuple[Carrier, ...] = ("stdio", "stateless")
"""The modern era has no sessions and no HTTP+SSE."""


@dataclass(frozen=True, slots=True)
class Form:
    """One program in one era over one carrier."""

    program: Program
    era: Era
    carrier: Carrier

    @property
    def name(self) -> str:
        """A name for it, fit for a server of the hub."""
        return f"{self.program}-{self.era}-{self.carrier}"

    @property
    def peer(self) -> str:
        """The peer that serves it."""
        return f"full_{self.program}"

    @property
    def options(self) -> list[str]:
        """The options that make the peer take this form."""
        era = ["--era", self.era]
        match self.carrier:
            case "stdio":
                return era
            case "sse" | "websocket":
                return ["--transport", self.carrier, *era]
            case "stateful":
                return ["--transport", "http", *era]
            case "stateless":
                return ["--transport", "http", "--stateless", *era]

    def url(self, port: int) -> str:
        """Where it is, given the port on which its peer listens."""
        scheme = "ws" if self.carrier == "websocket" else "http"
        return f"{scheme}://127.0.0.1:{port}/{'sse' if self.carrier == 'sse' else 'mcp'}"

    @property
    def abilities(self) -> frozenset[Ability]:
        """What it can do beyond what all can."""
        return SUPPORTS[self]


SOCKET = Form("sdk1", "legacy", "websocket")
"""The only one of its carrier: the specification has none such, and later SDKs have dropped it."""

FORMS: tuple[Form, ...] = (
    *(Form(program, "legacy", carrier) for program in PROGRAMS for carrier in LEGACY_CARRIERS),
    SOCKET,
    *(Form(program, "modern", carrier) for program in PROGRAMS[1:] for carrier in MODERN_CARRIERS),
)


def _all(*abilities: Ability) -> frozenset[Ability]:
    return frozenset(abilities)


_EVERYTHING = _all("announces", "levels", "subscriptions", "updates")

SUPPORTS: Mapping[Form, frozenset[Ability]] = {
    **{Form("sdk1", "legacy", carrier): _EVERYTHING for carrier in LEGACY_CARRIERS},
    **{Form("sdk2", "legacy", carrier): _EVERYTHING for carrier in LEGACY_CARRIERS},
    SOCKET: _EVERYTHING,
    # Without a session there is nothing to remember a level or a subscription by, and no stream to announce on.
    Form("sdk1", "legacy", "stateless"): _all("subscriptions"),
    Form("sdk2", "legacy", "stateless"): _all("subscriptions"),
    # FastMCP announces on the stream of the request that made the change, so it needs no session for that; without
    # one it remembers a level for all its callers together.
    **{Form("fastmcp", "legacy", carrier): _all("announces", "levels") for carrier in LEGACY_CARRIERS},
    **{Form("sdk2", "modern", carrier): _EVERYTHING for carrier in MODERN_CARRIERS},
    # FastMCP does not answer `subscriptions/listen`; it announces on the request's own stream here, too.
    **{Form("fastmcp", "modern", carrier): _all("announces", "levels") for carrier in MODERN_CARRIERS},
}
