"""What a server is asked to tell of, and what it has agreed to: one piece for each era, held by a link.

An earlier server is asked about each resource by itself (`LegacySubscriptions`); a modern one about all of them at once, with a
request that stays open and takes the place of the one before (`ModernSubscriptions`). How requests travel is the link's. Who wants
to hear what, and how many of them, is for `core.watch.subscriptions`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

import msgspec
import structlog

from isthmus.model.faults import BadReply, Fault, ServerError, TooManySubscriptions
from isthmus.model.names import ServerName
from isthmus.upstream.waiters import HubRequest, Waiter
from isthmus.wire import jsonrpc

log = structlog.get_logger(__name__)

SUBSCRIBE = "resources/subscribe"
UNSUBSCRIBE = "resources/unsubscribe"

AGREE_SECONDS = 30.0
"""How long a server may take to agree to tell of a resource."""

LEAVE_SECONDS = 5.0
"""How long who comes next waits for a server to say that it tells no more of a resource."""

HEARING_SECONDS = 5.0
"""How long a modern server may take to acknowledge what it is to tell; one that never does is believed then."""

REFUSALS_MAX = 100
"""Requests that may be refused in search of the resources for which they are; the rest is then refused with them."""

WATCHED_BYTES_MAX = 768 * 1024
"""What the names of all that one modern server is asked to tell of may come to: many take requests of a megabyte."""

Answer: TypeAlias = "asyncio.Future[Fault | None]"


class LegacySubscriptions:
    """Has an earlier server tell of each resource by itself.

    Requests about the same resource go one after the other: a server may take up two of them in any order, and end
    with what was wanted before. `ask` sends one, `forget` gives up one that is not answered.
    """

    def __init__(
        self, server: ServerName, ask: Callable[[str, str], HubRequest], forget: Callable[[Waiter], None]
    ) -> None:
        self._server = server
        self._ask = ask
        self._forget = forget
        self._wanted: dict[str, Answer] = {}
        self._told: set[str] = set()
        self._under_way: set[str] = set()

    async def want(self, uri: str) -> None:
        """Have the server tell of a resource, also if it was asked already: it may have forgotten. Raises `Fault`."""
        answer = self._wanted.get(uri)
        if answer is None or answer.done():
            answer = self._wanted[uri] = asyncio.get_running_loop().create_future()
        self._told.discard(uri)
        self._settle(uri)
        await _raised(answer)

    def drop(self, uri: str) -> None:
        """Have it tell no more."""
        _give(self._wanted.pop(uri, None), None)
        self._settle(uri)

    def _settle(self, uri: str) -> None:
        """Ask for what is wanted now, if that is something else than what the server does."""
        if uri in self._under_way:
            return
        if uri in self._wanted and uri not in self._told:
            self._send(SUBSCRIBE, uri, AGREE_SECONDS)
        elif uri not in self._wanted and uri in self._told:
            self._told.discard(uri)
            self._send(UNSUBSCRIBE, uri, LEAVE_SECONDS)

    def _send(self, method: str, uri: str, within: float) -> None:
        self._under_way.add(uri)
        own_request = self._ask(method, uri)
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
            assert refusal is None or isinstance(refusal, Fault), "waiters are told nothing else"
            self._agreed(uri, refusal)
        self._settle(uri)

    def _agreed(self, uri: str, refusal: Fault | None) -> None:
        if refusal is None:
            self._told.add(uri)
            _give(self._wanted.get(uri), None)
        else:
            _give(self._wanted.pop(uri, None), refusal)


class ModernSubscriptions:
    """Has a modern server tell of its lists and of all that is watched, by one request at a time that names everything.

    `ask` sends such a request; the link says how it went by `acknowledged`, `refused` or `interrupted`. What is new in
    a request is a group. If the server refuses it, its halves are asked for by themselves, so that one resource which
    cannot be watched costs only itself; what the server told before, it goes on to tell.
    """

    def __init__(self, server: ServerName, ask: Callable[[Collection[str]], None]) -> None:
        self._server = server
        self._ask = ask
        self.wanted: set[str] = set()
        """Everything that is watched or is to be; the rest here may name more until it is looked at."""
        self._wanted_bytes = 0
        self._told: set[str] = set()
        """What the server has agreed to tell."""
        self._groups: deque[set[str]] = deque()
        self._newest: set[str] = set()
        """The group that new ones join, as long as it waits."""
        self._trial: set[str] | None = None
        """What is new in the request that was sent and not answered."""
        self._is_overdue = False
        """That request need not be waited for: it was not answered for long, or broke off. What is new in it is new in
        the next one too."""
        self._named = 0
        """How many resources it names."""
        self._answers: dict[str, Answer] = {}
        self._is_due = False
        """The server is to be asked once more though nothing is new."""
        self._is_open = False
        """The server tells what it acknowledged last."""
        self._refusals = 0
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None

    @property
    def is_asking(self) -> bool:
        """Whether some of what is watched has not been agreed to yet."""
        return bool(self._groups or self._trial)

    # -- what is wanted --------------------------------------------------------------------------------------------

    async def want(self, uri: str) -> None:
        """Have the server tell of a resource as well. Raises `Fault` if it does not agree."""
        if uri in self._told:
            return
        if uri not in self._answers:
            self._add(uri)
        await _raised(self._answers[uri])

    def _add(self, uri: str) -> None:
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

    def drop(self, uri: str) -> None:
        """Have it tell no more of a resource: who leaves with a thousand of them has it asked once."""
        if uri in self.wanted:
            self._end(uri, None)
            self._is_due = True
            self._advance_soon()

    def _end(self, uri: str, answer: Fault | None) -> None:
        """Watch it no more."""
        if uri in self.wanted:
            self.wanted.discard(uri)
            self._wanted_bytes -= _size(uri)
        self._told.discard(uri)
        if self._trial is not None:
            self._trial.discard(uri)
        _give(self._answers.pop(uri, None), answer)

    # -- asking ----------------------------------------------------------------------------------------------------

    def again(self) -> None:
        """Ask for everything that is watched, unless a request is on its way."""
        if self._trial is None or self._is_overdue:
            self._is_due = True
            self._advance()

    def _advance_soon(self) -> None:
        """Ask at the end of this turn of the loop, once for all that is wanted in it."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        """Send the next request, if there is one to send and the last need not be waited for."""
        self._stop_soon()
        is_free = self._trial is None or self._is_overdue
        if self._groups and (is_free or not self._trial):  # one that asks for nothing new is not waited for
            self._try(self._groups.popleft())
        elif self._is_due and is_free:
            self._try(set())
        elif not self.is_asking:
            self._refusals = 0

    def _try(self, group: set[str]) -> None:
        self._trial = {*group, *(self._trial or ())} & self.wanted
        self._is_overdue = self._is_due = False
        named = self._told | self._trial
        self._named = len(named)
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(HEARING_SECONDS, self._believe)
        self._ask(sorted(named))

    def _stop_soon(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- how it went -----------------------------------------------------------------------------------------------

    def acknowledged(self, honoured: Collection[str] | None) -> None:
        """The server tells what it was last asked to; of resources only these, if it says which."""
        self._is_open = True
        for uri in self._take_trial():
            # It may spell them in its own way; if it names as many as it was asked for, they are those.
            if honoured is None or uri in honoured or len(honoured) >= self._named:
                self._told.add(uri)
                _give(self._answers.pop(uri, None), None)
            else:
                self._give_up(uri, ServerError(self._server, jsonrpc.INVALID_PARAMS, "It does not tell of its updates"))
        self._advance_soon()

    def refused(self, refusal: Fault) -> None:
        """The server does not tell what it was last asked to; what it told before that it still tells."""
        group = sorted(self._take_trial())
        self._refusals += 1
        if len(group) > 1 and self._refusals <= REFUSALS_MAX and not _is_unknown(refusal):
            middle = len(group) // 2
            self._groups.extend(({*group[:middle]}, {*group[middle:]}))
        else:
            for uri in group:
                self._give_up(uri, refusal)
        # Not even the lists are told of, which the server may agree to alone.
        self._is_due |= bool(group) and not self._is_open
        self._advance_soon()

    def interrupted(self) -> None:
        """The last request broke off, which says nothing of what it asked for."""
        self._is_overdue = True

    def closed(self) -> None:
        """The server tells nothing any more: what it agreed to once it may refuse the next time."""
        self._is_open = False
        if self._told:
            self._groups.appendleft(self._told)
            self._told = set()

    def stop(self) -> None:
        """The link is lost: the next one is asked for the same."""
        self._stop_timer()
        self._stop_soon()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            _give(answer, None)

    def _take_trial(self) -> set[str]:
        self._stop_timer()
        trial, self._trial = self._trial or set(), None
        self._is_overdue = False
        return trial

    def _give_up(self, uri: str, refusal: Fault) -> None:
        if uri not in self._answers:  # it told of it before, or was believed to, and nobody asks now
            log.warning("server tells no more of a resource", server=self._server, reason=refusal.message)
        self._end(uri, refusal)

    def _believe(self) -> None:
        """It was silent for long enough."""
        self._timer = None
        self._is_overdue = True
        for uri in self._trial or ():
            _give(self._answers.pop(uri, None), None)
        self._advance_soon()


async def _raised(answer: Answer) -> None:
    """Wait for an answer, without giving it up when who waits does: others may wait for the same."""
    await asyncio.wait({answer})
    if (refusal := answer.result()) is not None:
        raise refusal


def _give(answer: Answer | None, refusal: Fault | None) -> None:
    if answer is not None and not answer.done():
        answer.set_result(refusal)


def _is_unknown(refusal: Fault) -> bool:
    """Whether the server knows nothing of such requests, whatever they name."""
    return isinstance(refusal, ServerError) and refusal.code == jsonrpc.METHOD_NOT_FOUND


def _size(uri: str) -> int:
    """What it comes to in a request, with what parts it from the next."""
    return len(msgspec.json.encode(uri)) + 1
