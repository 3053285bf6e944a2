"""The logins of a running hub: one for each server and name. It notices logins made by the command line.

`app.links` gets the credentials of a link here.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeAlias

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.credentials.fetch import Fetcher
from isthmus.credentials.login import Login
from isthmus.credentials.subject_tokens import SubjectTokens
from isthmus.credentials.vault import Slot, Vault
from isthmus.model.callers import Caller
from isthmus.model.credentials import OAuthSettings, ServerCredentials, Subject
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress, HttpOrigin, parse_url

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
"""How often the vault is checked for logins and logouts by the command line."""

PROVING = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})
"""Headers that identify a caller. Shared ones must not be sent together with a caller's own login."""

LOGINS_MAX = 4_096
"""The maximum number of logins in memory; there may be many callers with their own tokens."""


_Place: TypeAlias = tuple[Slot, str]
"""The slot of a login, and the rights of the exchanged token, if any."""


class Logins:
    """The registry of all logins of a hub."""

    def __init__(
        self,
        vault: Vault,
        egress: Egress,
        background: BackgroundTasks,
        subjects: SubjectTokens | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.vault = vault
        self.background = background
        self._clock = clock
        self.subjects = subjects or SubjectTokens()
        self.on_changed: Callable[[ServerName, Subject | None], None] = lambda _server, _subject: None
        """Called when the credentials for a server have changed or gone."""
        self._egress = egress
        self._known: OrderedDict[_Place, tuple[object, Login]] = OrderedDict()
        self._is_watching = False
        self._has_exchanges = False
        """Whether any server ever exchanges callers' tokens; otherwise none of them is stored."""

    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self._clock()

    def of(
        self,
        server: ServerName,
        url: str,
        headers: Mapping[str, str],
        credentials: ServerCredentials,
        subject: Subject | None = None,
        ca: str = "",
    ) -> Login:
        """The login for this server, shared or for one caller."""
        slot = Slot.of(server, subject)
        self._has_exchanges |= credentials.are_exchanged
        terms = (url, dict(headers), credentials, ca)
        place = (slot, subject.rights if subject is not None and credentials.are_exchanged else "")
        known = self._known.get(place)
        if known is not None and known[0] == terms:
            self._known.move_to_end(place)
            return known[1]
        login = self._make(slot, url, headers, credentials, subject)
        if known is not None:
            known[1].close()
            login.follow(known[1])
        login.ca = ca
        self._known[place] = (terms, login)
        self._make_room()
        if not login.is_fixed:
            self._watch()
        return login

    def _make(
        self, slot: Slot, url: str, headers: Mapping[str, str], credentials: ServerCredentials, subject: Subject | None
    ) -> Login:
        if subject is None:
            return Login(self, slot, url, headers, credentials.oauth)
        own = credentials.own.get(subject.at_large)
        if own is None:
            return Login(self, slot, url, headers, credentials.oauth, subject)
        # Shared headers are left out, except those that identify nobody and that the caller does not override.
        left_out = PROVING | {name.lower() for name in own.headers}
        common = {name: value for name, value in headers.items() if name.lower() not in left_out}
        oauth = own.oauth
        if oauth is not None and oauth.is_for_each:
            return Login(self, slot, url, {**common, **own.headers}, oauth, subject)
        return Login(self, slot, url, {**common, **own.headers}, oauth)

    def _make_room(self) -> None:
        while len(self._known) > LOGINS_MAX:
            _, (_, login) = self._known.popitem(last=False)
            login.close()

    def proved(self, caller: Caller, credential: bytes, until: float) -> None:
        """Store a caller's verified token for exchange; it is used for nothing else."""
        if self._has_exchanges:
            subject = Subject(caller.tenant, caller.name, caller.rights)
            self.subjects.note(subject, credential.decode("ascii", "replace"), until)

    def forget(self, server: ServerName) -> None:
        """A server was removed."""
        for place in [place for place in self._known if place[0].server == server]:
            self._known.pop(place)[1].close()

    def fetcher(self, url: str, settings: OAuthSettings, ca: str) -> Fetcher:
        """Return the fetcher for this server: it may reach the server, configured origins and public addresses."""
        return fetcher_for(self._egress, self.background, url, settings, ca)

    def tell(self, slot: Slot) -> None:
        """What a server is shown has changed."""
        subject = Subject(slot.tenant, slot.caller) if slot.caller else None
        self.on_changed(ServerName(slot.server), subject)

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self.background.spawn("watch over logins", self._look_now_and_then())

    async def _look_now_and_then(self) -> None:
        seen = self.vault.stamp()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (stamp := self.vault.stamp()) != seen:
                seen = stamp
                for _, login in list(self._known.values()):
                    if login.look():
                        log.info("login changed", server=login.slot.server)
                        self.tell(login.slot)


def fetcher_for(
    egress: Egress, background: BackgroundTasks, url: str, settings: OAuthSettings, ca: str = ""
) -> Fetcher:
    """Return the fetcher for a login at the server with this address. Every address is checked each time.

    The server's own certificate authority, `ca`, is trusted there and at configured origins.
    """
    own, _ = parse_url(url)

    def is_named(origin: HttpOrigin) -> bool:
        return origin == own or settings.allows(origin.scheme, origin.host, origin.port)

    return Fetcher(egress, background, is_named, egress.trusting(ca) if ca else None)


class StaticCredentials:
    """The configured headers of each server."""

    generation = 0
    signer = None

    def __init__(self, headers: Mapping[ServerName, Mapping[str, str]]) -> None:
        self._headers = headers

    def headers_for(self, server: ServerName) -> Mapping[str, str]:
        """The server's headers; empty if it has none."""
        return self._headers.get(server, {})
