"""Who wants to hear that a resource was updated, and from which link. However many they are, a link is asked once.

A caller hears it from the process that it would read the resource from. Where its calls go on a link of its own, that
is this link, as soon as it is there and has agreed to tell; until then, and for everybody else, it is the link that all
share. So one update is told once, though both links may know of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

import structlog

from isthmus.core.ports import PrivateLinks, Subscriber, SubscriptionLink
from isthmus.model.faults import Fault, NotConnected
from isthmus.model.names import ServerName

log = structlog.get_logger(__name__)

Tell: TypeAlias = Callable[[], None]
Key: TypeAlias = tuple[ServerName, str]
"""A server, and what it calls the resource."""
Answer: TypeAlias = "asyncio.Future[Fault | None]"
Sharing: TypeAlias = dict[SubscriptionLink, list[Subscriber]]
"""Whose calls go on a link, as far as anybody asked."""

LEVELS_MAX = 32
LENGTH_MAX = 2048
"""How far up it is looked for who follows the whole of which a part was updated; servers tell as often as they like."""


class Subscriptions:
    """The subscriptions of all callers of one hub. They outlast a lost link: the next one is asked again."""

    def __init__(self) -> None:
        self._listeners: dict[Key, dict[Tell, Subscriber | None]] = {}
        self._uris: dict[ServerName, dict[str, None]] = {}
        """What is followed at each server: asked for by every link that comes, of which there may be thousands."""
        self._followed: dict[ServerName, dict[Subscriber, dict[str, int]]] = {}
        """What each follower follows, and how many times over: looked up where there are far more listeners."""
        self._common: dict[ServerName, SubscriptionLink] = {}
        self._owners: dict[ServerName, PrivateLinks] = {}
        self._asked: WeakKeyDictionary[SubscriptionLink, dict[str, Answer]] = WeakKeyDictionary()
        """What each link was asked to tell and has not refused: who comes before it answers waits for the same."""

    # -- callers ---------------------------------------------------------------------------------------------------

    async def add(self, key: Key, tell: Tell, follower: Subscriber | None = None) -> Fault | None:
        """Have `tell` called at every update from now on; the fault if the server does not agree.

        Without a `follower` it is somebody who has no link of its own.
        """
        owners = self._owners.get(key[0])
        if owners and follower is not None and (refusal := owners.refusal(follower)) is not None:
            return refusal
        listeners = self._listeners.setdefault(key, {})
        listeners[tell] = follower  # before the server is asked: it may tell of an update together with its answer
        self._uris.setdefault(key[0], {})[key[1]] = None
        self._count(key, follower, 1)
        links = self._links(key[0], follower)
        if links:
            fault = await self._ask_first(key, follower, links)
        else:  # the next link is asked for what is followed already
            why = NotConnected(key[0], "it cannot be asked to tell of updates now")
            fault = why if len(listeners) == 1 and not self._is_apart(owners, follower) else None
        if fault is not None and self._drop(key, tell):
            self._release(key, [link for link in links if key[1] in self._asked.get(link, {})], {})
        return fault

    async def _ask_first(
        self, key: Key, follower: Subscriber | None, links: Sequence[SubscriptionLink]
    ) -> Fault | None:
        """The answer of the first link, from which the resource would be read.

        The others may have to stand in for it later: they are asked as well once it has agreed, and not waited for.
        """
        server, uri = key
        fault = await self.ask(links[0], uri)
        others = [link for link in links[1:] if uri not in self._asked.get(link, {})]
        owners = self._owners.get(server)
        if fault is None and others and owners is not None and follower is not None:
            owners.subscribe_also(follower, others, uri)
        return fault

    def remove(self, key: Key, tell: Tell) -> None:
        """Stop telling; the last one to leave has the server told so too."""
        self.leave([(key, tell)])

    def leave(self, followed: Iterable[tuple[Key, Tell]]) -> None:
        """Stop telling of all of these: who leaves with many resources has it found out once who shares its links."""
        sharing: Sharing = {}
        for key, tell in followed:
            follower = self._listeners.get(key, {}).get(tell)
            if self._drop(key, tell):
                self._release(key, self._links(key[0], follower), sharing)

    def _drop(self, key: Key, tell: Tell) -> bool:
        listeners = self._listeners.get(key, {})
        if tell not in listeners:
            return False
        self._count(key, listeners.pop(tell), -1)
        if not listeners:
            del self._listeners[key]
            self._leave_out(key)
        return True

    def _leave_out(self, key: Key) -> None:
        server, uri = key
        del self._uris[server][uri]
        if not self._uris[server]:
            del self._uris[server]

    def _count(self, key: Key, follower: Subscriber | None, change: int) -> None:
        if follower is None:
            return
        server, uri = key
        followers = self._followed.setdefault(server, {})
        uris = followers.setdefault(follower, {})
        uris[uri] = uris.get(uri, 0) + change
        if not uris[uri]:
            del uris[uri]
        if not uris:
            del followers[follower]
        if not followers:
            del self._followed[server]

    def _release(self, key: Key, links: Sequence[SubscriptionLink], sharing: Sharing) -> None:
        """Have those links tell no more of a resource of whom nobody is left to hear it."""
        for link in links:
            if not self._is_heard(key, link, sharing):
                self.stop(link, key[1])

    def stop(self, link: SubscriptionLink, uri: str) -> None:
        """Have a link tell no more of a resource."""
        self._asked.get(link, {}).pop(uri, None)
        link.unsubscribe(uri)

    def _is_heard(self, key: Key, link: SubscriptionLink, sharing: Sharing) -> bool:
        """Whether anybody follows a resource who can hear of it from this link."""
        server, uri = key
        if link is self._common.get(server):
            return key in self._listeners
        followers = self.followers(server)
        if link not in sharing:
            sharing[link] = [each for each in followers if link in self._links(server, each)]
        return any(uri in followers.get(each, ()) for each in sharing[link])

    # -- links -----------------------------------------------------------------------------------------------------

    def attach(
        self, server: ServerName, announcer: SubscriptionLink | None, owners: PrivateLinks | None = None
    ) -> None:
        """Ask `announcer` from now on; None when there is nobody to ask.

        `owners` are the links on which not everybody's calls go. They may be there while the common one is not.
        """
        self._common.pop(server, None)
        if announcer is not None:
            self._common[server] = announcer
        if owners is not None:
            self._owners[server] = owners

    def detach(self, server: ServerName) -> None:
        """Forget a server's links: it is removed."""
        self._common.pop(server, None)
        self._owners.pop(server, None)

    def wanted(self, server: ServerName) -> list[str]:
        """What a new link to this server has to ask for, if everybody shares it."""
        owners = self._owners.get(server)
        uris = self._uris.get(server, ())
        return [uri for uri in uris if self._is_for_all(owners, self._listeners[server, uri])] if owners else list(uris)

    def _is_for_all(self, owners: PrivateLinks, listeners: Mapping[Tell, Subscriber | None]) -> bool:
        return any(not self._is_apart(owners, follower) for follower in listeners.values())

    def _is_apart(self, owners: PrivateLinks | None, follower: Subscriber | None) -> bool:
        return bool(owners) and owners is not None and follower is not None and owners.is_separate(follower)

    def followers(self, server: ServerName) -> Mapping[Subscriber, Collection[str]]:
        """What is followed by those who may have a link of their own: that is asked for it too."""
        return self._followed.get(server, {})

    async def ask(self, link: SubscriptionLink, uri: str) -> Fault | None:
        """Have a link tell of a resource, unless it was asked already; the fault if it does not agree."""
        asked = self._asked.setdefault(link, {})
        while (answer := asked.get(uri)) is not None:
            if not answer.done():
                await asyncio.wait({answer})
            if not answer.cancelled():
                return answer.result()
        # Nobody has asked, or who asked has left before it heard.
        return await self._ask(link, uri, asked)

    async def subscribe_also(self, key: Key, follower: Subscriber, links: Sequence[SubscriptionLink]) -> None:
        """Have further links tell of a resource, unless its follower has left already."""
        server, uri = key
        if uri in self.followers(server).get(follower, ()):
            await asyncio.gather(*(self.ask(link, uri) for link in links))

    async def _ask(self, link: SubscriptionLink, uri: str, asked: dict[str, Answer]) -> Fault | None:
        answer = asked[uri] = asyncio.get_running_loop().create_future()
        try:
            fault = await _subscribe(link, uri)
            answer.set_result(fault)
        finally:
            answer.cancel()
            if not _is_yes(answer) and asked.get(uri) is answer:
                del asked[uri]
        return fault

    def asked(self, link: SubscriptionLink) -> list[str]:
        """What a link tells, or is being asked to."""
        return list(self._asked.get(link, ()))

    def forget(self, link: SubscriptionLink) -> None:
        """A link is lost, or its server has forgotten what it was asked."""
        self._asked.pop(link, None)

    # -- news ------------------------------------------------------------------------------------------------------

    def updated(self, server: ServerName, uri: str, link: SubscriptionLink | None = None) -> None:
        """A server says that a resource of its was updated, perhaps a part of one that was asked about.

        It says so on a link that not everybody shares, or on the common one.
        """
        self._tell(server, [tell for whole in _and_above(uri) for tell in self._hearing(server, whole, link)])

    def missed(self, server: ServerName, uri: str, link: SubscriptionLink | None = None) -> None:
        """A link could not be heard for a while: who hears of this resource from it is told once, to look at it."""
        self._tell(server, self._hearing(server, uri, link))

    def _hearing(self, server: ServerName, uri: str, link: SubscriptionLink | None) -> list[Tell]:
        """Who hears of a resource from this link, or from the common one."""
        listeners = self._listeners.get((server, uri))
        if listeners is None:
            return []
        owners = self._owners.get(server)
        if not owners:  # as nearly everywhere, so that a storm of news costs less
            return list(listeners) if link is None else []
        return [tell for tell, follower in listeners.items() if self._hears(owners, follower, uri, link)]

    def _hears(
        self, owners: PrivateLinks, follower: Subscriber | None, uri: str, link: SubscriptionLink | None
    ) -> bool:
        own = () if follower is None else owners.own(follower)
        if link is not None:
            return link in own
        if self._is_apart(owners, follower):
            return False
        return not any(_is_yes(self._asked.get(each, {}).get(uri)) for each in own)

    def _links(self, server: ServerName, follower: Subscriber | None) -> list[SubscriptionLink]:
        """Where a follower can hear from, its own first."""
        owners, common = self._owners.get(server), self._common.get(server)
        own = [] if owners is None or follower is None else owners.own(follower)
        return [*own, *(() if common is None or self._is_apart(owners, follower) else (common,))]

    def _tell(self, server: ServerName, listeners: list[Tell]) -> None:
        for tell in listeners:
            try:
                tell()
            except Exception:  # one broken listener must not keep the others, or the link, from the news
                log.exception("a listener of a resource failed", server=server)


async def _subscribe(link: SubscriptionLink, uri: str) -> Fault | None:
    try:
        await link.subscribe(uri)
    except Fault as fault:
        return fault
    return None


def _is_yes(answer: Answer | None) -> bool:
    return answer is not None and answer.done() and not answer.cancelled() and answer.result() is None


def _and_above(uri: str) -> Iterator[str]:
    """A URI, and those of which it may be a part: its folders, written with a slash at the end or without."""
    yield uri
    for _ in range(LEVELS_MAX if len(uri) <= LENGTH_MAX else 0):
        uri = uri[:-1] if uri.endswith("/") else uri[: uri.rfind("/") + 1]
        if not uri:
            return
        yield uri
