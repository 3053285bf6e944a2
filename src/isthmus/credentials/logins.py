"""The logins of a running hub: one for each server and name, and an eye on those that somebody makes meanwhile.

`app.links` asks here for what a link is to show.
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
"""How often it is looked whether somebody has logged in, or out, by the command line."""

PROVING = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})
"""Headers by which servers know who calls: beside a caller's own, those of everybody would make it somebody else."""

LOGINS_MAX = 4_096
"""Logins that are remembered; callers with tokens of their own may be many."""


_Place: TypeAlias = tuple[Slot, str]
"""Whose login it is, and with which rights, where it was had by exchange for a token that has these."""


class Logins:
    """All logins of one hub."""

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
        """Hears of a server that is shown something else from now on, or nothing any more."""
        self._egress = egress
        self._known: OrderedDict[_Place, tuple[object, Login]] = OrderedDict()
        self._is_watching = False
        self._has_exchanges = False
        """Whether there ever was a server for which callers' tokens are exchanged; else none of them is kept."""

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
        """The login to show this server, in everybody's name or in one caller's."""
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
        # What everybody has in common stays out of it, but for headers that prove nothing and are not given anew.
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
        """A caller has shown a token of an issuer, which was verified: it may be exchanged, and goes nowhere else."""
        if self._has_exchanges:
            subject = Subject(caller.tenant, caller.name, caller.rights)
            self.subjects.note(subject, credential.decode("ascii", "replace"), until)

    def forget(self, server: ServerName) -> None:
        """A server is not there any more."""
        for place in [place for place in self._known if place[0].server == server]:
            self._known.pop(place)[1].close()

    def fetcher(self, url: str, settings: OAuthSettings, ca: str) -> Fetcher:
        """Fetches for a login at this server: there, where the operator says, and wherever is public."""
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
    """Fetches for a login at the server with this address; a place is checked each time, whatever it was before.

    The server's own authority, `ca`, is believed there and wherever else the operator named.
    """
    own, _ = parse_url(url)

    def is_named(origin: HttpOrigin) -> bool:
        return origin == own or settings.allows(origin.scheme, origin.host, origin.port)

    return Fetcher(egress, background, is_named, egress.trusting(ca) if ca else None)


class StaticCredentials:
    """Headers by server, as configured."""

    generation = 0
    signer = None

    def __init__(self, headers: Mapping[ServerName, Mapping[str, str]]) -> None:
        self._headers = headers

    def headers_for(self, server: ServerName) -> Mapping[str, str]:
        """The server's headers; none if it has none."""
        return self._headers.get(server, {})
