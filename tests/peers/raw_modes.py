"""How a raw server misbehaves: the names of the modes and how they are written.

Modes are written as `sleep:0.5,sse`. They come from `--mode`, from POST /control, or with one call as its
argument `mode`, which then adds to the server's. The raw server and the tests use this; it does nothing
itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KNOWN = {
    "echo": "answer honestly",
    "progress": ":N notifications before the answer, if the caller gave a token",
    "sleep": ":SECONDS between the ledger and the answer; a cancellation ends it",
    "until": ":PATH a file that the answer waits for, once the ledger is written; a cancellation ends it",
    "hang": "take the call, do not run it, never answer",
    "hang_init": "never answer initialize or server/discover",
    "die_before_write": "die before the ledger is written",
    "die_after_ledger": "die once the ledger is written, before the answer",
    "die_mid_reply": ":K die after K bytes of the answer, HTTP head included",
    "drop": "break the connection once the ledger is written, before the answer",
    "dup_reply": "answer twice (over HTTP: two events of one stream)",
    "wrong_id": "answer under an id that nobody asked with, and not otherwise",
    "late_reply": ":SECONDS answer when the call was cancelled, or after so long",
    "garbage": "things that are not messages between the messages",
    "huge": ":BYTES of text in the answer",
    "nonewline": ":BYTES that never come to the end of a line, then silence",
    "endless_sse": "a stream of events (over stdio: of notifications) without end or answer",
    "sse": "answer as an event stream",
    "gzip": "compress JSON answers, asked or not",
    "redirect": ":URL answer 307 to everything",
    "stderr_flood": ":BYTES to stderr from the start",
    "notify_flood": ":N list changes and progress for unknown tokens before the answer",
    "lying_list": ":KIND a wrong tools/list: mixed, not_list, nameless, duplicates, bad_schema, cyclic, circle",
    "many": ":N tools more, in 200 pages",
    "pages": ":N pages instead, with `many`",
    "described": ":BYTES of description for each of them, with `many`",
    "churn": ":N times a second the list changes, and says so",
    "no_endpoint": "over HTTP+SSE: never say where messages go",
    "absolute_endpoint": "over HTTP+SSE: say it with the whole address",
    "foreign_endpoint": ":ORIGIN over HTTP+SSE: say that it is on another server",
    "session_expire": ":N forget a session after N calls and answer 404 to it",
    "fork": "leave a child that holds the pipes",
    "ignore_sigterm": "outlive SIGTERM and the end of stdin",
}


@dataclass(frozen=True, slots=True)
class Modes:
    """The modes in force, each with what was written after its colon."""

    given: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Modes:
        """Read `name:argument,name`; a name that is not known is an error, since it would test nothing."""
        pairs = [word.strip().partition(":") for word in text.split(",") if word.strip()]
        if unknown := [name for name, _, _ in pairs if name not in KNOWN]:
            raise ValueError(f"unknown modes {unknown}; known are {', '.join(KNOWN)}")
        return cls({name: argument for name, _, argument in pairs})

    def with_more(self, text: object) -> Modes:
        """These and what `text` says, which wins; anything but a string says nothing."""
        return Modes(self.given | Modes.parse(text).given) if isinstance(text, str) else self

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def number(self, name: str, default: float) -> float:
        """The number after the colon."""
        return float(self.given[name] or default) if name in self.given else default

    def count(self, name: str, default: int) -> int:
        """The whole number after the colon."""
        return int(self.number(name, default))
