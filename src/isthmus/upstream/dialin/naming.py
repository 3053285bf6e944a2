"""What a server that dials in is called on the other faces, and who has a name that several could have. Pure.

Whoever comes first must not have a name for it: another agent's server would be taken for the one that a permission
means. So of those who could have a name, the strongest has it, and `upstream.dialin.book` renames the others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import dropwhile, islice

import msgspec

from isthmus.model.names import ServerName
from isthmus.model.relay import AgentRules

LENGTH_MAX = 50
"""What a server's name may have."""

DEFAULT_ID = "default"
"""A server that says nothing of itself."""

ID_LENGTH_MAX = 64
"""What is kept of the name that a server gives itself."""

LOOKED_AT_MAX = 100
"""Names among which that is looked for which a server had before."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


class Bid(msgspec.Struct, frozen=True):
    """One server, and how good its right to a name is."""

    agent: str
    """The agent's key."""
    server_id: str
    prefix: str
    """What its agent's servers are called, before they are made legal."""
    is_configured: bool
    """Whether its agent is."""
    is_barred: bool
    """Its plain name begins as those of an agent that is configured, and it is not that agent's."""

    @property
    def plain(self) -> ServerName:
        """`{agent}_{server_id}` made legal, however long."""
        return ServerName(_legal(f"{self.prefix}_{self.server_id}"))

    @property
    def strength(self) -> tuple[bool, bool, int, bool, str, str]:
        """The greater has the name. No two servers have the same.

        What is configured first, then who has the name as it is and not only once it was made legal, then the longer
        agent: that is what a token proves, where a server calls itself what it likes. The rest is the same every time.
        """
        is_exact = self.plain == f"{self.prefix}_{self.server_id}"
        rank = self.is_configured, self.is_configured or is_exact, len(self.prefix), is_exact
        return *rank, self.agent, self.server_id

    def names(self) -> Iterator[ServerName]:
        """What it could be called, the best first: its plain name if that may be, else with digits of the pair.

        They never end: who knows the digits beforehand could have all of a few.
        """
        plain = self.plain
        if len(plain) <= LENGTH_MAX and not self.is_barred:
            yield plain
        text = f"{self.agent}\0{self.server_id}"
        while True:
            text = hashlib.blake2b(text.encode("utf-8", "surrogatepass")).hexdigest()
            for start in range(0, len(text) - 6, 6):
                yield ServerName(f"{plain[: LENGTH_MAX - 7]}_{text[start : start + 6]}")

    def names_from(self, last: ServerName) -> Iterator[ServerName]:
        """What it could be called that had this name before: no better one, which may have been another's meanwhile."""
        if last not in islice(self.names(), LOOKED_AT_MAX):
            return self.names()
        return dropwhile(lambda name: name != last, self.names())


class Names:
    """Bids, given what is configured of agents: names that begin as theirs are theirs, also before they come."""

    def __init__(self, agents: Mapping[str, AgentRules]) -> None:
        self._prefixes = {key: rules.name or key for key, rules in agents.items()}
        self._kept = {_legal(prefix) for prefix in self._prefixes.values()}

    def __eq__(self, other: object) -> bool:
        """Whether everybody is called the same by both."""
        return isinstance(other, Names) and self._prefixes == other._prefixes

    __hash__ = None  # type: ignore[assignment]

    def bid(self, agent: str, server_id: str) -> Bid:
        """An agent's server."""
        prefix = self._prefixes.get(agent, agent)
        is_configured = agent in self._prefixes
        reconnector = self._reconnector(_legal(f"{prefix}_{server_id}"))
        is_barred = reconnector is not None and not (is_configured and reconnector == _legal(prefix))
        return Bid(agent, server_id, prefix, is_configured, is_barred)

    def _reconnector(self, plain: str) -> str | None:
        """With what the names begin among which this one is kept; the longest, if there are several."""
        ends = (at for at in range(len(plain) - 1, 0, -1) if plain[at] == "_")
        return next((plain[:at] for at in ends if plain[:at] in self._kept), None)


def _legal(text: str) -> str:
    return _ILLEGAL.sub("_", text)


def own_id(name: str | None) -> str:
    """What a server is called under its agent that only gave itself a name."""
    text = "".join(character for character in name or "" if character.isprintable()).strip()
    return text[:ID_LENGTH_MAX].strip() or DEFAULT_ID


def twin_id(server_id: str, number: int) -> str:
    """What the so many-th of those with one name is called; the first just so."""
    return server_id if number == 1 else f"{server_id}_{number}"
