"""What links over HTTP share: statuses and advice, redirects, caller headers, and POSTs without a useful response."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urljoin

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.ports import Credentials
from isthmus.core.settings import Limits
from isthmus.model.fault_table import BadArguments
from isthmus.model.names import ServerName
from isthmus.transport.egress import Egress, HttpOrigin, parse_url
from isthmus.transport.http_client import ConnectionLost, HttpClient, Ticket, header_lines, request_head
from isthmus.upstream.base_link import ConnectFailed
from isthmus.upstream.response_waiters import PendingRequest

OK = 200
UNAUTHORIZED = 401
FORBIDDEN = 403
TURNED_AWAY = (307, 308, UNAUTHORIZED, FORBIDDEN, 405, 406, 415)
"""Statuses that prove that the server did not process the request."""

ADVICE = {
    401: "; check the credentials in its headers",
    403: "; check the credentials in its headers",
    405: "; check that its url is an MCP endpoint",
}
"""What an operator can do about a status."""


URL_LENGTH_MAX = 2_000
"""Longer URLs are not addresses that a person would visit."""

_METADATA = re.compile(r"""\bresource_metadata\s*=\s*(?:"([^"\s]+)"|([^\s,"]+))""", re.IGNORECASE)


def login_url(status: int, headers: Mapping[str, str]) -> str | None:
    """The URL where a server describes its login (RFC 9728); None if it does not."""
    match = _METADATA.search(headers.get("www-authenticate", "")) if status == UNAUTHORIZED else None
    place = (match[1] or match[2]) if match is not None else ""
    is_place = place.lower().startswith(("https://", "http://")) and place.isprintable()
    return place if is_place and len(place) <= URL_LENGTH_MAX else None


_SCOPE = re.compile(r"""\bscope\s*=\s*"([\x21\x23-\x5b\x5d-\x7e ]{1,500})\"""", re.IGNORECASE)


def advice_for(status: int, headers: Mapping[str, str], server: str, *, can_log_in: bool) -> str:
    """What an operator can do about a status; for a missing permission, the scope to ask for."""
    challenge = headers.get("www-authenticate", "")
    match = _SCOPE.search(challenge) if "insufficient_scope" in challenge else None
    if status != FORBIDDEN or match is None:
        return ADVICE.get(status, "")
    scope = " ".join(match[1].split())
    wanted_scope = f"; it wants the scope {scope!r}"
    # The server's text goes into a command that a person may copy into a shell: single quotes keep it one argument.
    quoted = scope.replace("'", "'\\''")
    return f"{wanted_scope}: run isthmus login {server} --scope '{quoted}'" if can_log_in else wanted_scope


def same_origin_target(origin: HttpOrigin, target: str, reference: str, does: str, *, stays: bool = False) -> str:
    """Resolve `reference` against `origin` and `target`; `does` says what the server did, for messages.

    With `stays`, the result may differ from `target` by a trailing slash only.

    Raises:
        ConnectFailed: it is not a URL, or is at another origin, which must not get the credentials.
    """
    try:
        if not reference.isprintable():
            # `urljoin` would silently remove some of these; the checked URL would differ from the given one.
            raise ValueError("it contains a control character")
        place, found = parse_url(urljoin(f"{origin}{target}", reference))
    except ValueError as error:
        raise ConnectFailed(f"it {does} something that is not an address ({error})") from error
    if place != origin:
        raise ConnectFailed(f"it {does} {place}, which is not {origin}; configure that address if it is the right one")
    if stays and _plain(found) != _plain(target):
        raise ConnectFailed(f"it {does} another path; name that one if it is the right one")
    return found


def _plain(target: str) -> tuple[str, str]:
    path, _, query = target.partition("?")
    return path.rstrip("/"), query


class HttpEndpoint:
    """Where a link sends its requests over HTTP: the connections to the origin, and the operator's headers for it."""

    __slots__ = ("_credentials", "_generation", "_server", "client", "origin", "target")

    def __init__(
        self,
        server: ServerName,
        url: str,
        limits: Limits,
        credentials: Credentials,
        egress: Egress,
        background: BackgroundTasks,
        *,
        connections: int,
    ) -> None:
        self._server = server
        self.origin, self.target = parse_url(url)
        self._credentials = credentials
        self._generation = credentials.generation
        self.client = HttpClient(
            self.origin,
            egress,
            background,
            is_configured=True,
            limit=connections,
            connect_seconds=limits.connect_seconds,
            signer=credentials.signer,
        )

    def head(self, verb: str, headers: Mapping[str, str], target: str | None = None) -> bytes:
        """The head of a request. The protocol's own headers precede the operator's, whatever their case."""
        own = {name.lower(): value for name, value in self._credentials.headers_for(self._server).items()}
        return request_head(verb, target or self.target, self.origin, {**own, **headers})

    def has_new_credentials(self) -> bool:
        """Whether the credentials have changed since the last question, so that heads are outdated."""
        before, self._generation = self._generation, self._credentials.generation
        return before != self._generation


class HttpRequest(PendingRequest):
    """A request that is a POST of its own."""

    __slots__ = ()

    @property
    def may_have_left(self) -> bool:
        """False while the request provably has not left."""
        return self.ticket is not None and self.ticket.may_have_left

    def abandon(self) -> None:
        """Stop the POST."""
        if self.ticket is not None:
            self.ticket.abort()


HEADERS_BYTES_MAX = 8 * 1024
"""All caller headers together: many servers accept only this much in a whole head, and answer with a bare 431."""


class CallerHeaders:
    """Which headers of callers one server receives. Headers that are not configured never leave the hub."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower(): name for name in names}

    def lines_for(self, inflight: InFlight) -> bytes | None:
        """The header lines of one call; None if they cannot be written.

        In that case the call has failed. Header values are never quoted: they may be secrets.
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
"""POSTs at the same time; a server that asks faster than it reads must wait."""

ONE_WAY_SECONDS = 5.0
"""How long a server may take to acknowledge a POST before the connection is closed."""

REPLY_SECONDS = 60.0
"""How long a reply to the server may wait for a connection while other POSTs are acknowledged slowly."""


CANCEL_PAUSES = (0.05, 0.5)
"""The pauses before a cancellation is sent again. A busy server reads its new connections some turns of its event loop
later than those it knows, and each acknowledgement shows that it has had another turn."""


class OneWayPosts:
    """Notifications and replies that are being posted. No call waits for them."""

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self._under_way: set[_OneWayPost] = set()
        self._all_sent: asyncio.Future[None] | None = None

    def has_room(self) -> bool:
        """Whether another POST would be sent."""
        return len(self._under_way) < ONE_WAY_MAX

    def send(self, head: bytes, message: bytes | None) -> None:
        """Post a message, unless too many are being posted; None is a request without a body."""
        self.start(_OneWayPost(self, head, message))

    def cancel_unread(self, head: bytes, message: bytes, is_wanted: Callable[[], bool]) -> None:
        """Post the cancellation of a request that the server may read later than this; again while it is wanted.

        Each travels over a connection of its own, and a server ignores the cancellation of a request that it has not
        read: it would run on although its caller has left.
        """
        self.start(_Cancellation(self, head, message, is_wanted))

    def start(self, post: _OneWayPost) -> None:
        """Send it, unless too many are being posted."""
        if self.has_room():
            self._under_way.add(post)
            post.send()

    def answer(self, head: bytes, message: bytes) -> None:
        """Post a reply that the server waits for, however many POSTs are running: questions per call are limited."""
        _ReplyPost(self, head, message).send()

    async def wait_sent(self) -> None:
        """Wait until no notification is being posted; `ONE_WAY_SECONDS` at most."""
        while self._under_way:
            self._all_sent = asyncio.get_running_loop().create_future()
            await self._all_sent

    def post_ended(self, post: _OneWayPost) -> None:
        """A POST was acknowledged, lost, or given up."""
        self._under_way.discard(post)
        if not self._under_way and self._all_sent is not None and not self._all_sent.done():
            self._all_sent.set_result(None)


class _OneWayPost:
    """One POST whose response is ignored; it ends with the response or at its deadline."""

    def __init__(self, posts: OneWayPosts, head: bytes, message: bytes | None) -> None:
        self._one_way_posts = posts
        self._head = head
        self._message = message
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def send(self) -> None:
        """Send the POST and start its deadline."""
        self._watch(self._one_way_posts.client.send(self._head, self._message, self))

    def _watch(self, ticket: Ticket) -> None:
        self._timer = self._loop.call_later(ONE_WAY_SECONDS, self._expire, ticket)

    def _expire(self, ticket: Ticket) -> None:
        ticket.abort()
        self._one_way_posts.post_ended(self)

    def on_head(self, status: int, headers: Mapping[str, str]) -> None: ...

    def on_body(self, chunk: bytes) -> None: ...

    def on_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._one_way_posts.post_ended(self)

    def on_lost(self, lost: ConnectionLost) -> None:
        self.on_end()


class _Cancellation(_OneWayPost):
    """A cancellation that is repeated after it was acknowledged, lost, or given up."""

    def __init__(self, posts: OneWayPosts, head: bytes, message: bytes, is_wanted: Callable[[], bool]) -> None:
        super().__init__(posts, head, message)
        self._is_wanted = is_wanted
        self._pauses = iter(CANCEL_PAUSES)

    def on_end(self) -> None:
        super().on_end()
        self._repeat_later()

    def _expire(self, ticket: Ticket) -> None:
        super()._expire(ticket)
        self._repeat_later()

    def _repeat_later(self) -> None:
        pause = next(self._pauses, None)
        if pause is not None and self._is_wanted():
            self._loop.call_later(pause, self._repeat)

    def _repeat(self) -> None:
        if self._is_wanted():
            self._one_way_posts.start(self)


class _ReplyPost(_OneWayPost):
    """A reply that the server waits for. Its deadline starts when a connection takes it.

    It is retried once, if it provably did not leave. A server that got it twice would drop the second one, because the
    id is used up.
    """

    def __init__(self, posts: OneWayPosts, head: bytes, message: bytes) -> None:
        super().__init__(posts, head, message)
        self._until = self._loop.time() + REPLY_SECONDS
        self._is_second = False
        self._is_taken = False
        """Whether a connection had taken it at the last look."""

    def _watch(self, ticket: Ticket) -> None:
        self._is_taken = ticket.has_connection
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
