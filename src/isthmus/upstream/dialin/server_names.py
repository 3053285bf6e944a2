"""Which dial-in server gets which name.

A name must not depend on which server connects first: a permission could then mean another agent's server. So the
strongest claim gets the name, and the registry renames the others.
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
"""The longest server name."""

DEFAULT_ID = "default"
"""The id of a server without a name of its own."""

ID_LENGTH_MAX = 64
"""The longest id that is made from a server's own name."""

LOOKED_AT_MAX = 100
"""How many possible names are searched for the one that a server had before."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


class NameClaim(msgspec.Struct, frozen=True):
    """One server, and the strength of its claim to a name."""

    agent: str
    """The agent's key."""
    server_id: str
    prefix: str
    """The common prefix of the agent's servers, possibly with illegal characters."""
    is_configured: bool
    """Whether its agent is configured."""
    is_barred: bool
    """Its plain name begins with the prefix of another agent, which is configured."""

    @property
    def plain(self) -> ServerName:
        """`{agent}_{server_id}` with legal characters, of any length."""
        return ServerName(_legal(f"{self.prefix}_{self.server_id}"))

    @property
    def strength(self) -> tuple[bool, bool, int, bool, str, str]:
        """The greater one gets the name; no two servers have the same.

        Configured agents come first, then names that were legal from the start, then longer agents: a token proves the
        agent, but a server chooses its own id. The other members only make the order total.
        """
        is_exact = self.plain == f"{self.prefix}_{self.server_id}"
        rank = self.is_configured, self.is_configured or is_exact, len(self.prefix), is_exact
        return *rank, self.agent, self.server_id

    def names(self) -> Iterator[ServerName]:
        """Its possible names, the best first: its plain name if that is allowed, then names with digits of a hash.

        They are endless: an attacker could predict the digits and occupy a limited number of names.
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
        """Its possible names from `last` on, its former name: a better one may belong to another server meanwhile."""
        if last not in islice(self.names(), LOOKED_AT_MAX):
            return self.names()
        return dropwhile(lambda name: name != last, self.names())


class NameRules:
    """Makes claims by the configuration: names with the prefix of a configured agent are reserved for it."""

    def __init__(self, agents: Mapping[str, AgentRules]) -> None:
        self._prefixes = {key: rules.name or key for key, rules in agents.items()}
        self._kept = {_legal(prefix) for prefix in self._prefixes.values()}

    def __eq__(self, other: object) -> bool:
        """Whether both lead to the same names."""
        return isinstance(other, NameRules) and self._prefixes == other._prefixes

    __hash__ = None  # type: ignore[assignment]

    def bid(self, agent: str, server_id: str) -> NameClaim:
        """The claim of a server."""
        prefix = self._prefixes.get(agent, agent)
        is_configured = agent in self._prefixes
        plain = _legal(f"{prefix}_{server_id}")
        ends = (at for at in range(len(plain) - 1, 0, -1) if plain[at] == "_")
        reserved = next((plain[:at] for at in ends if plain[:at] in self._kept), None)  # the longest
        is_barred = reserved is not None and not (is_configured and reserved == _legal(prefix))
        return NameClaim(agent, server_id, prefix, is_configured, is_barred)


def _legal(text: str) -> str:
    return _ILLEGAL.sub("_", text)


def own_id(name: str | None) -> str:
    """The id of a server that is made from its own name."""
    text = "".join(character for character in name or "" if character.isprintable()).strip()
    return text[:ID_LENGTH_MAX].strip() or DEFAULT_ID


def twin_id(server_id: str, number: int) -> str:
    """The id of the nth server with the same name; the first has the plain one."""
    return server_id if number == 1 else f"{server_id}_{number}"
