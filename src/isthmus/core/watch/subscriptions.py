"""Which callers are subscribed to which resources, and on which link. Each link is subscribed once per resource.

A caller receives updates from the process that it would read the resource from. If its calls use a link of its own, it
is this link, as soon as it is connected and subscribed; until then, and for all other callers, it is the shared link.
So each update is sent once, though both links may report it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

import structlog

from isthmus.core.ports import PrivateLinks, Subscriber, SubscriptionLink
from isthmus.model.fault_table import Fault, NotConnected
from isthmus.model.names import ServerName

log = structlog.get_logger(__name__)

OnUpdate: TypeAlias = Callable[[], None]
Key: TypeAlias = tuple[ServerName, str]
"""A server, and its own URI of the resource."""
Answer: TypeAlias = "asyncio.Future[Fault | None]"
Sharing: TypeAlias = dict[SubscriptionLink, list[Subscriber]]
"""The subscribers whose calls use a link, as far as they are looked up."""

LEVELS_MAX = 32
LENGTH_MAX = 2048
"""How many levels up subscribers to a parent resource are looked for; servers may send updates very often."""


class Subscriptions:
    """The subscriptions of all callers of one hub. They outlast a lost link: the next one is subscribed again."""

    def __init__(self) -> None:
        self._listeners: dict[Key, dict[OnUpdate, Subscriber | None]] = {}
        self._uris: dict[ServerName, dict[str, None]] = {}
        """The subscribed URIs per server: every new link needs them, and there may be thousands of links."""
        self._followed: dict[ServerName, dict[Subscriber, dict[str, int]]] = {}
        """The URIs of each subscriber with their counts: looked up where there are far more listeners."""
        self._common: dict[ServerName, SubscriptionLink] = {}
        self._owners: dict[ServerName, PrivateLinks] = {}
        self._asked: WeakKeyDictionary[SubscriptionLink, dict[str, Answer]] = WeakKeyDictionary()
        """The requests of each link that were not refused: later subscribers wait for the same response."""

    # -- callers ---------------------------------------------------------------------------------------------------

    async def add(self, key: Key, notify: OnUpdate, follower: Subscriber | None = None) -> Fault | None:
        """Call `notify` at every update from now on; return the fault if the server refuses.

        A caller without a `follower` has no link of its own.
        """
        owners = self._owners.get(key[0])
        if owners and follower is not None and (refusal := owners.refusal(follower)) is not None:
            return refusal
        listeners = self._listeners.setdefault(key, {})
        listeners[notify] = follower  # before the request: an update may come with its response
        self._uris.setdefault(key[0], {})[key[1]] = None
        self._count(key, follower, 1)
        links = self._links(key[0], follower)
        if links:
            # The resource would be read from the first link. The others may have to replace it later: they are
            # subscribed in the background once it has succeeded.
            fault = await self.subscribe(links[0], key[1])
            others = [link for link in links[1:] if key[1] not in self._asked.get(link, {})]
            current = self._owners.get(key[0])
            if fault is None and others and current is not None and follower is not None:
                current.subscribe_also(follower, others, key[1])
        else:  # the next link will be subscribed
            why = NotConnected(key[0], "it cannot be subscribed to now")
            fault = why if len(listeners) == 1 and not self._is_separate(owners, follower) else None
        if fault is not None and self._drop(key, notify):
            self._release(key, [link for link in links if key[1] in self._asked.get(link, {})], {})
        return fault

    def remove(self, key: Key, notify: OnUpdate) -> None:
        """Remove a subscription; the last one also unsubscribes at the server."""
        self.leave([(key, notify)])

    def leave(self, followed: Iterable[tuple[Key, OnUpdate]], unsent: Collection[Key] = ()) -> None:
        """Remove several subscriptions: which subscribers share a link is then computed once.

        `unsent` are resources with an update that was not sent yet. The subscriber's other subscriptions get it: a
        client opens the next subscription before it ends the one that it replaces.
        """
        sharing: Sharing = {}
        for key, notify in followed:
            follower = self._listeners.get(key, {}).get(notify)
            if self._drop(key, notify):
                self._release(key, self._links(key[0], follower), sharing)
            if key in unsent and follower is not None:
                others = [other for other, owner in self._listeners.get(key, {}).items() if owner == follower]
                self._notify(key[0], others)

    def _drop(self, key: Key, notify: OnUpdate) -> bool:
        listeners = self._listeners.get(key, {})
        if notify not in listeners:
            return False
        self._count(key, listeners.pop(notify), -1)
        if not listeners:
            server, uri = key
            del self._listeners[key]
            del self._uris[server][uri]
            if not self._uris[server]:
                del self._uris[server]
        return True

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
        """Unsubscribe these links from a resource if no subscriber is left on them."""
        for link in links:
            if not self._is_used(key, link, sharing):
                self.stop(link, key[1])

    def stop(self, link: SubscriptionLink, uri: str) -> None:
        """Unsubscribe a link from a resource."""
        self._asked.get(link, {}).pop(uri, None)
        link.unsubscribe(uri)

    def _is_used(self, key: Key, link: SubscriptionLink, sharing: Sharing) -> bool:
        """Whether any subscriber of a resource receives it from this link."""
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
        """Use `announcer` as the shared link from now on; None if the server has no link.

        `owners` are the links that not all callers share. They may exist while the shared one does not.
        """
        self._common.pop(server, None)
        if announcer is not None:
            self._common[server] = announcer
        if owners is not None:
            self._owners[server] = owners

    def detach(self, server: ServerName) -> None:
        """Remove a server's links."""
        self._common.pop(server, None)
        self._owners.pop(server, None)

    def shared_uris(self, server: ServerName) -> list[str]:
        """The URIs that a new shared link of this server must subscribe to."""
        owners = self._owners.get(server)
        uris = self._uris.get(server, ())
        if not owners:
            return list(uris)
        # Subscribers with credentials of their own use their own links.
        return [
            uri
            for uri in uris
            if any(not self._is_separate(owners, each) for each in self._listeners[server, uri].values())
        ]

    def _is_separate(self, owners: PrivateLinks | None, follower: Subscriber | None) -> bool:
        return bool(owners) and owners is not None and follower is not None and owners.is_separate(follower)

    def followers(self, server: ServerName) -> Mapping[Subscriber, Collection[str]]:
        """What callers with a possible link of their own are subscribed to: that link is subscribed too."""
        return self._followed.get(server, {})

    async def subscribe(self, link: SubscriptionLink, uri: str) -> Fault | None:
        """Subscribe a link to a resource, unless it is; return the fault if the server refuses."""
        asked = self._asked.setdefault(link, {})
        while (answer := asked.get(uri)) is not None:
            if not answer.done():
                await asyncio.wait({answer})
            if not answer.cancelled():
                return answer.result()
        # There was no request, or it was cancelled before its response.
        answer = asked[uri] = asyncio.get_running_loop().create_future()
        fault: Fault | None = None
        try:
            try:
                await link.subscribe(uri)
            except Fault as refused:
                fault = refused
            answer.set_result(fault)
        finally:
            answer.cancel()
            if not _has_agreed(answer) and asked.get(uri) is answer:
                del asked[uri]
        return fault

    async def subscribe_also(self, key: Key, follower: Subscriber, links: Sequence[SubscriptionLink]) -> None:
        """Subscribe further links to a resource, unless its subscriber has left."""
        server, uri = key
        if uri in self.followers(server).get(follower, ()):
            await asyncio.gather(*(self.subscribe(link, uri) for link in links))

    def subscribed(self, link: SubscriptionLink) -> list[str]:
        """The URIs that a link is subscribed to, or being subscribed to."""
        return list(self._asked.get(link, ()))

    def forget(self, link: SubscriptionLink) -> None:
        """A link is lost, or its server has dropped its subscriptions."""
        self._asked.pop(link, None)

    # -- news ------------------------------------------------------------------------------------------------------

    def updated(self, server: ServerName, uri: str, link: SubscriptionLink | None = None) -> None:
        """A server reports that a resource was updated, perhaps a part of one that was subscribed to.

        `link` is None for the shared link.
        """
        self._notify(
            server, [notify for whole in _with_parents(uri) for notify in self._listeners_on(server, whole, link)]
        )

    def missed(self, server: ServerName, uri: str, link: SubscriptionLink | None = None) -> None:
        """A link was interrupted: subscribers of this resource on it are notified once, to read it again."""
        self._notify(server, self._listeners_on(server, uri, link))

    def _listeners_on(self, server: ServerName, uri: str, link: SubscriptionLink | None) -> list[OnUpdate]:
        """The listeners that receive updates of a resource from this link; None for the shared one."""
        listeners = self._listeners.get((server, uri))
        if listeners is None:
            return []
        owners = self._owners.get(server)
        if not owners:  # the usual case, so that many updates cost less
            return list(listeners) if link is None else []
        return [notify for notify, follower in listeners.items() if self._receives(owners, follower, uri, link)]

    def _receives(
        self, owners: PrivateLinks, follower: Subscriber | None, uri: str, link: SubscriptionLink | None
    ) -> bool:
        own = () if follower is None else owners.own(follower)
        if link is not None:
            return link in own
        if self._is_separate(owners, follower):
            return False
        return not any(_has_agreed(self._asked.get(each, {}).get(uri)) for each in own)

    def _links(self, server: ServerName, follower: Subscriber | None) -> list[SubscriptionLink]:
        """The links that can serve a subscriber, its own first."""
        owners, common = self._owners.get(server), self._common.get(server)
        own = [] if owners is None or follower is None else owners.own(follower)
        return [*own, *(() if common is None or self._is_separate(owners, follower) else (common,))]

    def _notify(self, server: ServerName, listeners: list[OnUpdate]) -> None:
        for notify in listeners:
            try:
                notify()
            except Exception:  # one broken listener must not affect the others, or the link
                log.exception("a listener of a resource failed", server=server)


def _has_agreed(answer: Answer | None) -> bool:
    return answer is not None and answer.done() and not answer.cancelled() and answer.result() is None


def _with_parents(uri: str) -> Iterator[str]:
    """A URI, and those of its parent folders, with and without a slash at the end."""
    yield uri
    for _ in range(LEVELS_MAX if len(uri) <= LENGTH_MAX else 0):
        uri = uri[:-1] if uri.endswith("/") else uri[: uri.rfind("/") + 1]
        if not uri:
            return
        yield uri
