"""What replies over HTTP say of themselves, and what an operator may do about them. The kinds of links call it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urljoin

from isthmus.core.calls.inflight import InFlight
from isthmus.model.faults import BadArguments
from isthmus.transport.egress import HttpOrigin, parse_url
from isthmus.transport.http import ConnectionLost, HttpClient, Ticket, header_lines
from isthmus.upstream.link import ConnectFailed

OK = 200
UNAUTHORIZED = 401
FORBIDDEN = 403
EVENT_STREAM = "text/event-stream"

ADVICE = {
    401: "; check the credentials in its headers",
    403: "; check the credentials in its headers",
    405: "; check that its url is an MCP endpoint",
}
"""What an operator may do about a status."""


URL_LENGTH_MAX = 2_000
"""Longer ones are no addresses that a person could visit."""

_METADATA = re.compile(r"""\bresource_metadata\s*=\s*(?:"([^"\s]+)"|([^\s,"]+))""", re.IGNORECASE)


def login_url(status: int, headers: Mapping[str, str]) -> str | None:
    """Where a server that wants to know who one is says how that is proven (RFC 9728)."""
    found = _METADATA.search(headers.get("www-authenticate", "")) if status == UNAUTHORIZED else None
    place = (found[1] or found[2]) if found is not None else ""
    is_place = place.lower().startswith(("https://", "http://")) and place.isprintable()
    return place if is_place and len(place) <= URL_LENGTH_MAX else None


_SCOPE = re.compile(r"""\bscope\s*=\s*"([\x21\x23-\x5b\x5d-\x7e ]{1,500})\"""", re.IGNORECASE)


def advice_for(status: int, headers: Mapping[str, str], server: str, *, can_log_in: bool) -> str:
    """What an operator may do about a status; of what one may not do, what one would have to be allowed."""
    challenge = headers.get("www-authenticate", "")
    found = _SCOPE.search(challenge) if "insufficient_scope" in challenge else None
    if status != FORBIDDEN or found is None:
        return ADVICE.get(status, "")
    scope = " ".join(found[1].split())
    told = f"; it wants the scope {scope!r}"
    # A stranger's text in a command that somebody may copy into a shell: single quotes keep all of it a text.
    quoted = scope.replace("'", "'\\''")
    return f"{told}: run isthmus login {server} --scope '{quoted}'" if can_log_in else told


def media_type(headers: Mapping[str, str]) -> str:
    """What kind of content a reply has."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def same_origin_target(origin: HttpOrigin, target: str, reference: str, does: str, *, stays: bool = False) -> str:
    """The request target that `reference` means at `origin` and `target`; `does` says in words what the server did.

    Where it must stay, the two may differ by a slash at the end and by nothing else.

    Raises:
        ConnectFailed: it is no address, or another origin's, which the credentials must not reach.
    """
    try:
        if not reference.isprintable():
            # `urljoin` would silently remove some of these, so what was checked would not be what was said.
            raise ValueError("it contains a control character")
        place, found = parse_url(urljoin(f"{origin}{target}", reference))
    except ValueError as error:
        raise ConnectFailed(f"it {does} something that is no address ({error})") from error
    if place != origin:
        raise ConnectFailed(f"it {does} {place}, which is not {origin}; configure that address if it is the right one")
    if stays and _plain(found) != _plain(target):
        raise ConnectFailed(f"it {does} another path; name that one if it is the right one")
    return found


def _plain(target: str) -> tuple[str, str]:
    path, _, query = target.partition("?")
    return path.rstrip("/"), query


HEADERS_BYTES_MAX = 8 * 1024
"""All of them together: many servers take no more in a whole head, and answer no better than with a bare 431."""


class CallerHeaders:
    """Which headers of callers one server receives."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower(): name for name in names}

    def lines_for(self, inflight: InFlight) -> bytes | None:
        """What a call's requests have in their head beside what all have; None if that cannot be written.

        Then the call has ended so. Nothing is quoted of what a header says: it may be a secret.
        """
        given = {name.lower(): value for name, value in inflight.call.headers.items()}
        try:
            lines = header_lines({name: given[low] for low, name in self._names.items() if low in given})
        except ValueError as error:
            inflight.fail(BadArguments(inflight.call.name, str(error)))
            return None
        if len(lines) > HEADERS_BYTES_MAX:
            detail = f"its headers have {len(lines)} bytes, and a server is sent {HEADERS_BYTES_MAX} at most"
            inflight.fail(BadArguments(inflight.call.name, detail))
            return None
        return lines


ONE_WAY_MAX = 256
"""How many may be under way; a server that asks faster than it listens gets no more of them."""

ONE_WAY_SECONDS = 5.0
"""How long a server may take to acknowledge one, before the connection is taken back."""

REPLY_SECONDS = 60.0
"""How long an answer that the server waits for may itself wait for a connection: others are acknowledged slowly."""


class OneWayPosts:
    """Those that are under way on one client."""

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self._under_way: set[_OneWayPost] = set()
        self._quiet: asyncio.Future[None] | None = None

    def has_room(self) -> bool:
        """Whether another one would be sent."""
        return len(self._under_way) < ONE_WAY_MAX

    def send(self, head: bytes, message: bytes) -> None:
        """Send one, unless too many are under way."""
        if self.has_room():
            notice = _OneWayPost(self, head, message)
            self._under_way.add(notice)
            notice.send()

    def answer(self, head: bytes, message: bytes) -> None:
        """Send what the server waits for, however many others do: a call has only so many questions."""
        _ReplyPost(self, head, message).send()

    async def quiet(self) -> None:
        """Wait until no notification is under way, which takes `ONE_WAY_SECONDS` at most."""
        while self._under_way:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet

    def done(self, notice: _OneWayPost) -> None:
        """One was taken, lost, or given up."""
        self._under_way.discard(notice)
        if not self._under_way and self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)


class _OneWayPost:
    """One of them: a sink that reads nothing, until the reply ends or its time is over."""

    def __init__(self, notices: OneWayPosts, head: bytes, message: bytes) -> None:
        self._one_way_posts = notices
        self._head = head
        self._message = message
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def send(self) -> None:
        """Put it on its way, and give it up after a while."""
        self._watch(self._one_way_posts.client.send(self._head, self._message, self))

    def _watch(self, ticket: Ticket) -> None:
        self._timer = self._loop.call_later(ONE_WAY_SECONDS, self._expire, ticket)

    def _expire(self, ticket: Ticket) -> None:
        ticket.abort()
        self._one_way_posts.done(self)

    def on_head(self, status: int, headers: Mapping[str, str]) -> None: ...

    def on_body(self, chunk: bytes) -> None: ...

    def on_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._one_way_posts.done(self)

    def on_lost(self, lost: ConnectionLost) -> None:
        self.on_end()


class _ReplyPost(_OneWayPost):
    """One that its server waits for: its time begins when a connection takes it, and it is tried a second time.

    Only if it provably did not leave, though a server that had it twice would drop the second: its id is used up.
    """

    def __init__(self, notices: OneWayPosts, head: bytes, message: bytes) -> None:
        super().__init__(notices, head, message)
        self._until = self._loop.time() + REPLY_SECONDS
        self._is_second = False
        self._is_taken = False
        """Whether a connection had taken it when it was last looked at."""

    def _watch(self, ticket: Ticket) -> None:
        self._is_taken = ticket.has_boarded
        super()._watch(ticket)

    def _expire(self, ticket: Ticket) -> None:
        if self._is_taken or self._loop.time() >= self._until:
            super()._expire(ticket)
        else:
            self._watch(ticket)

    def on_lost(self, lost: ConnectionLost) -> None:
        if lost.may_have_left or self._is_second:
            self.on_end()
            return
        self._is_second = True
        if self._timer is not None:
            self._timer.cancel()
        self.send()
