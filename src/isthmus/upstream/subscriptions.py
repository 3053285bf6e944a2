"""Subscriptions of one link to a server's resources and lists, one class per era.

A legacy server gets one request per resource (`LegacySubscriptions`). A modern server gets one request for everything,
which stays open and replaces the one before (`ModernSubscriptions`). The link sends the requests;
`core.watch.subscriptions` decides which caller gets which update.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

import msgspec
import structlog

from isthmus.model.fault_table import BadReply, Fault, ServerError, TooManySubscriptions
from isthmus.model.names import ServerName
from isthmus.upstream.response_waiters import HubRequest, Waiter
from isthmus.wire import jsonrpc

log = structlog.get_logger(__name__)

SUBSCRIBE = "resources/subscribe"
UNSUBSCRIBE = "resources/unsubscribe"

SUBSCRIBE_SECONDS = 30.0
"""How long a server may take to accept a subscription."""

UNSUBSCRIBE_SECONDS = 5.0
"""How long the next subscriber waits for a pending unsubscribe."""

LISTEN_ACK_SECONDS = 5.0
"""How long a modern server may take to acknowledge a subscription; after that it counts as accepted."""

REFUSALS_MAX = 100
"""Refused requests in the search for the refused resources; after that, the rest is refused with them."""

WATCHED_BYTES_MAX = 768 * 1024
"""Bytes of all resource names in one modern subscription: many servers accept requests of a megabyte."""

Answer: TypeAlias = "asyncio.Future[Fault | None]"


class LegacySubscriptions:
    """Subscriptions to a legacy server, one request per resource.

    Requests for the same resource are sent one after the other: a server could handle two of them in any order.
    `send_request` sends one, `forget` drops one that got no response.
    """

    def __init__(
        self, server: ServerName, send_request: Callable[[str, str], HubRequest], forget: Callable[[Waiter], None]
    ) -> None:
        self._server = server
        self._send_request = send_request
        self._forget = forget
        self._wanted: dict[str, Answer] = {}
        self._subscribed: set[str] = set()
        self._under_way: set[str] = set()

    async def want(self, uri: str) -> None:
        """Subscribe to a resource, even if subscribed already: the server may have forgotten. Raises `Fault`."""
        answer = self._wanted.get(uri)
        if answer is None or answer.done():
            answer = self._wanted[uri] = asyncio.get_running_loop().create_future()
        self._subscribed.discard(uri)
        self._sync(uri)
        await _wait_accepted(answer)

    def drop(self, uri: str) -> None:
        """Unsubscribe."""
        _resolve(self._wanted.pop(uri, None), None)
        self._sync(uri)

    def _sync(self, uri: str) -> None:
        """Send a request if the wanted state differs from the server's."""
        if uri in self._under_way:
            return
        if uri in self._wanted and uri not in self._subscribed:
            self._send(SUBSCRIBE, uri, SUBSCRIBE_SECONDS)
        elif uri not in self._wanted and uri in self._subscribed:
            self._subscribed.discard(uri)
            self._send(UNSUBSCRIBE, uri, UNSUBSCRIBE_SECONDS)

    def _send(self, method: str, uri: str, within: float) -> None:
        self._under_way.add(uri)
        own_request = self._send_request(method, uri)
        late = BadReply(self._server, f"no answer to {method} within {within:g} s")
        timer = asyncio.get_running_loop().call_later(within, own_request.fail, late)
        own_request.answer.add_done_callback(partial(self._answered, method, uri, own_request, timer))

    def _answered(
        self,
        method: str,
        uri: str,
        own_request: HubRequest,
        timer: asyncio.TimerHandle,
        answer: asyncio.Future[msgspec.Raw],
    ) -> None:
        timer.cancel()
        self._forget(own_request)
        self._under_way.discard(uri)
        refusal = answer.exception()
        if method == SUBSCRIBE:
            assert refusal is None or isinstance(refusal, Fault), "a HubRequest fails with nothing else"
            if refusal is None:
                self._subscribed.add(uri)
                _resolve(self._wanted.get(uri), None)
            else:
                _resolve(self._wanted.pop(uri, None), refusal)
        self._sync(uri)


class ModernSubscriptions:
    """Subscriptions to a modern server: one request at a time that names everything.

    `send_request` sends such a request; the link reports `acknowledged`, `refused` or `interrupted`. New resources form
    a group. If the server refuses it, both halves are tried separately, so that one bad resource affects only itself;
    earlier subscriptions stay active.
    """

    def __init__(self, server: ServerName, send_request: Callable[[Collection[str]], None]) -> None:
        self._server = server
        self._send_request = send_request
        self.wanted: set[str] = set()
        """All resources that are subscribed or wanted; other fields may name more until they are updated."""
        self._wanted_bytes = 0
        self._subscribed: set[str] = set()
        """Resources that the server has accepted."""
        self._groups: list[set[str]] = []
        self._newest: set[str] = set()
        """The waiting group that new resources join."""
        self._in_request: set[str] | None = None
        """New resources in the request that is pending."""
        self._is_overdue = False
        """The pending request timed out or broke off: do not wait for it, and repeat its new resources in the next
        one."""
        self._named = 0
        """How many resources it names."""
        self._answers: dict[str, Answer] = {}
        self._is_due = False
        """A request is needed although no resource is new."""
        self._is_open = False
        """The last acknowledged subscription is active."""
        self._refusals = 0
        self._timer: asyncio.TimerHandle | None = None
        self._advance_handle: asyncio.Handle | None = None

    @property
    def has_pending(self) -> bool:
        """Whether some resources are not accepted yet."""
        return bool(self._groups or self._in_request)

    # -- what is wanted --------------------------------------------------------------------------------------------

    async def want(self, uri: str) -> None:
        """Subscribe to a resource as well. Raises `Fault` if the server refuses."""
        if uri in self._subscribed:
            return
        if uri not in self._answers:
            if uri not in self.wanted:
                if self._wanted_bytes + _size(uri) > WATCHED_BYTES_MAX:
                    raise TooManySubscriptions(len(self.wanted))
                self.wanted.add(uri)
                self._wanted_bytes += _size(uri)
            if not any(group is self._newest for group in self._groups):
                self._newest = set()
                self._groups.append(self._newest)
            self._newest.add(uri)
            self._answers[uri] = asyncio.get_running_loop().create_future()
            self._advance_soon()
        await _wait_accepted(self._answers[uri])

    def drop(self, uri: str) -> None:
        """Unsubscribe; many at once cost one request."""
        if uri in self.wanted:
            self._end(uri, None)
            self._is_due = True
            self._advance_soon()

    def _end(self, uri: str, answer: Fault | None) -> None:
        """Remove the resource and answer its subscriber."""
        if uri in self.wanted:
            self.wanted.discard(uri)
            self._wanted_bytes -= _size(uri)
        self._subscribed.discard(uri)
        if self._in_request is not None:
            self._in_request.discard(uri)
        _resolve(self._answers.pop(uri, None), answer)

    # -- asking ----------------------------------------------------------------------------------------------------

    def resubscribe(self) -> None:
        """Subscribe to everything again, unless a request is pending."""
        if self._in_request is None or self._is_overdue:
            self._is_due = True
            self._advance()

    def _advance_soon(self) -> None:
        """Send a request at the end of this turn of the loop, one for all changes in it."""
        if self._advance_handle is None:
            self._advance_handle = asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        """Send the next request, if one is needed and the last one need not be waited for."""
        self._cancel_advance()
        is_free = self._in_request is None or self._is_overdue
        if self._groups and (is_free or not self._in_request):  # a request without new resources is not waited for
            self._request(self._groups.pop(0))
        elif self._is_due and is_free:
            self._request(set())
        elif not self.has_pending:
            self._refusals = 0

    def _request(self, group: set[str]) -> None:
        self._in_request = {*group, *(self._in_request or ())} & self.wanted
        self._is_overdue = self._is_due = False
        named = self._subscribed | self._in_request
        self._named = len(named)
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(LISTEN_ACK_SECONDS, self._assume_accepted)
        self._send_request(sorted(named))

    def _cancel_advance(self) -> None:
        if self._advance_handle is not None:
            self._advance_handle.cancel()
            self._advance_handle = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- responses --------------------------------------------------------------------------------------------------

    def acknowledged(self, honoured: Collection[str] | None) -> None:
        """The subscription is active; only for these resources, if the server names them."""
        self._is_open = True
        for uri in self._end_request():
            # The server may spell names differently; if it names as many as requested, they are those.
            if honoured is None or uri in honoured or len(honoured) >= self._named:
                self._subscribed.add(uri)
                _resolve(self._answers.pop(uri, None), None)
            else:
                self._give_up(
                    uri, ServerError(self._server, jsonrpc.INVALID_PARAMS, "It sends no updates of this resource")
                )
        self._advance_soon()

    def refused(self, refusal: Fault) -> None:
        """The server refused the last request; the subscription before it stays active."""
        group = sorted(self._end_request())
        self._refusals += 1
        is_method_unknown = isinstance(refusal, ServerError) and refusal.code == jsonrpc.METHOD_NOT_FOUND
        if len(group) > 1 and self._refusals <= REFUSALS_MAX and not is_method_unknown:
            middle = len(group) // 2
            self._groups.extend(({*group[:middle]}, {*group[middle:]}))
        else:
            for uri in group:
                self._give_up(uri, refusal)
        # Without any active subscription, try the lists alone: the server may accept these.
        self._is_due |= bool(group) and not self._is_open
        self._advance_soon()

    def interrupted(self) -> None:
        """The last request broke off, which says nothing about its resources."""
        self._is_overdue = True

    def closed(self) -> None:
        """The subscription ended: the server may refuse next time what it accepted before."""
        self._is_open = False
        if self._subscribed:
            self._groups.insert(0, self._subscribed)
            self._subscribed = set()

    def stop(self) -> None:
        """The link is lost: the next link gets the same subscriptions."""
        self._stop_timer()
        self._cancel_advance()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            _resolve(answer, None)

    def _end_request(self) -> set[str]:
        self._stop_timer()
        trial, self._in_request = self._in_request or set(), None
        self._is_overdue = False
        return trial

    def _give_up(self, uri: str, refusal: Fault) -> None:
        if uri not in self._answers:  # it was accepted before, or believed to be, and no subscriber waits now
            log.warning("server ended the subscription to a resource", server=self._server, reason=refusal.message)
        self._end(uri, refusal)

    def _assume_accepted(self) -> None:
        """No response in time counts as acceptance."""
        self._timer = None
        self._is_overdue = True
        for uri in self._in_request or ():
            _resolve(self._answers.pop(uri, None), None)
        self._advance_soon()


async def _wait_accepted(answer: Answer) -> None:
    """Wait for an answer without cancelling it: others may wait for the same."""
    await asyncio.wait({answer})
    if (refusal := answer.result()) is not None:
        raise refusal


def _resolve(answer: Answer | None, refusal: Fault | None) -> None:
    if answer is not None and not answer.done():
        answer.set_result(refusal)


def _size(uri: str) -> int:
    """The size of a name in a request, with its separator."""
    return len(msgspec.json.encode(uri)) + 1
