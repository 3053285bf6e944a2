"""One connection to a hub, kept up: dialled, used until it is lost, dialled again after a pause that fits the reason.

`app.dial` has one for all servers, or one for each where the hub does not know how to share a socket. Local servers
do not notice when a connection goes: only what the hub was waiting for is withdrawn.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import msgspec
import structlog

from isthmus.app.dial_talk import Channels, LocalOffer, OfferShare, Talk, Wire
from isthmus.app.hub import RunningHub
from isthmus.model.relay import MUX_SUBPROTOCOL
from isthmus.transport.egress import SOCKET_SCHEMES, DialFailed, Egress, EgressRefused, HttpOrigin, parse_url
from isthmus.transport.websocket import DialledSocket, HandshakeFailed, WebSocketAddress
from isthmus.upstream.backoff import Backoff

PATH = "/mcp_endpoint/mcp/"
"""Where servers dial in, at an Isthmus hub and at the original relay; the latter wants the last slash."""

DEVICE_PATH = "/mcp_endpoint/call"

OWN_TOKEN = "isr1."  # noqa: S105 - what our tokens begin with, and no token
"""Such a token is shown in a header instead of the address, which others on the way may write down."""

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class BadAddress(ValueError):
    """The address cannot be dialled; the message says why and quotes no query."""


class BadToken(BadAddress):
    """Only its token is missing, or is none."""


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A hub's address. `str` of it is fit to be shown."""

    origin: HttpOrigin
    path: str
    query: tuple[str, ...] = field(default=(), repr=False)
    """What else the address asks for, as it was written."""
    token: str = field(default="", repr=False)
    server_id: str | None = None
    """The one that the address names."""

    def __str__(self) -> str:
        return f"{self.origin}{self.path}"

    def endpoint(self, server_id: str | None, subprotocols: tuple[str, ...], limit_bytes: int) -> WebSocketAddress:
        """What to dial, for one server or for several."""
        query = list(self.query)
        headers = {}
        if self.token.startswith(OWN_TOKEN):
            headers["Authorization"] = f"Bearer {self.token}"
        elif self.token:
            query.append(f"token={quote(self.token, safe='')}")
        if server_id is not None:
            query.append(f"server_id={quote(server_id, safe='')}")
        target = f"{self.path}?{'&'.join(query)}" if query else self.path
        return WebSocketAddress(self.origin, target, subprotocols, limit_bytes, headers)


def read_address(url: str, token: str | None = None) -> HubAddress:
    """Read what was given; `token` wins over one in the address.

    Raises:
        BadAddress: it is no address of a hub; a `BadToken` if that is all that is wrong.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        raise BadAddress("the hub's address must begin with ws://, wss://, http:// or https://")
    try:
        origin, target = parse_url(f"{_SCHEMES[scheme.lower()]}://{rest}", SOCKET_SCHEMES)
    except ValueError as error:
        raise BadAddress(f"the hub's address cannot be used: {error}") from None
    parts = urlsplit(target)
    found: dict[str, str] = {}
    others: list[str] = []
    for item in parts.query.split("&") if parts.query else ():
        name, _, value = item.partition("=")
        if name in ("token", "server_id"):
            found[name] = unquote(value)  # a bare `+` stands for itself: base64 has it, and no token has a blank
        else:
            others.append(item)
    path = _path(parts.path, is_socket=scheme.lower() in SOCKET_SCHEMES)
    return HubAddress(origin, path, tuple(others), _token(token or found.get("token", "")), found.get("server_id"))


def _path(path: str, *, is_socket: bool) -> str:
    if DEVICE_PATH in path:
        raise BadAddress(f"{path} is where devices call; servers dial in at {PATH}")
    if is_socket and path.rstrip("/") and not path.endswith(PATH.rstrip("/")):
        return path
    return path.rstrip("/").removesuffix(PATH.rstrip("/")) + PATH


def _token(text: str) -> str:
    token = text.strip()
    if not token:
        raise BadToken("there is no token: paste the address as the hub printed it, with ?token=…")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadToken("the token must be one line of plain text without blanks")
    return token


log = structlog.get_logger(__name__)

PAUSE_SECONDS_MAX = 60.0
"""No pause before the next attempt is longer, unless another took our place."""

REPLACED_SECONDS = 60.0
REPLACED_SECONDS_MAX = 600.0
"""Who was replaced stays away at least so long, and twice as long each time: two programs that take each other's place
would else do so for ever, and each time calls would be lost."""

SETTLED_SECONDS = 2 * REPLACED_SECONDS_MAX
"""Who had its place this long had no rival that waits for it."""

HEALTHY_SECONDS = 10.0
"""A connection that lived this long, or on which a call was answered, was well: its loss starts the pauses anew."""

SOON_SECONDS = 1.0
"""A hub that said that it restarts is back in a moment; not everybody comes in the same one."""

TRIAL_SECONDS = 3.0
"""How long after it was replaced a connection is tried again that may have been by one of our own: long enough that
who else may have done it is not taken for one."""

CONNECT_SECONDS = 10.0

RESTARTING, REFUSED, TRY_LATER = 1012, 1008, 1013
REPLACED = "新连接替换"
"""What a hub says to a connection whose place another has taken."""

RIVAL = "another connection has this server id: give one of the two another (--server-id, or its name in the file)"

NOT_ALLOWED, NOT_FOUND = (401, 403), 404

State: TypeAlias = Literal["starting", "connecting", "connected", "pausing"]


class HubRefused(Exception):
    """The hub does not want us, and asking again would not change that; `is_missing` if there is no relay at all."""

    def __init__(self, reason: str, *, is_missing: bool = False) -> None:
        super().__init__(reason)
        self.is_missing = is_missing


class OnlyOne(Exception):
    """The relay keeps one connection for an agent, and takes the newest: all servers must share it."""


class LineLost(msgspec.Struct, frozen=True):
    """Why a connection ended, or was never there; with the code and the words of a hub that said goodbye."""

    reason: str
    code: int | None = None
    words: str = ""
    seconds: float = 0.0
    """How long it was there."""


class HubRefusal(msgspec.Struct, frozen=True):
    """A server that the hub does not have just now, though it could: why, and when it is offered again."""

    reason: str
    again_at: float
    """In seconds since the epoch."""


class LineShown(msgspec.Struct, frozen=True):
    """How a connection stands; times are in seconds since the epoch."""

    state: State
    since: float
    reason: str | None = None
    """Why it was lost, or could not be made, last."""
    again_at: float | None = None
    is_muxed: bool = False
    is_refused: bool = False
    """The hub was there, and did not want it."""


def is_about_token(words: str) -> bool:
    """Whether a hub that closes a socket as not allowed says so of its token, which no second attempt mends."""
    return "token" in words.lower() or "agentId" in words


def verdict_on(lost: LineLost) -> str | None:
    """Why there is no use in another attempt; None if there is."""
    return lost.words if lost.code == REFUSED and is_about_token(lost.words) else None


def is_refusal(lost: LineLost) -> bool:
    """Whether the hub closed it because it does not want it, or has no room; not for what happened on it."""
    is_early = lost.seconds < HEALTHY_SECONDS
    return lost.words == REPLACED or (is_early and lost.code in (REFUSED, TRY_LATER))


def in_words(lost: LineLost) -> str:
    """Why it was lost, for a person; a hub that says so in words of the original's is put into plain ones."""
    return RIVAL if lost.words == REPLACED else lost.reason


class Pauses:
    """How long to wait before the next attempt, by what ended those before."""

    def __init__(self) -> None:
        self._backoff = Backoff(PAUSE_SECONDS_MAX)
        self._replaced = 0

    def after(self, lost: LineLost, chance: float) -> float:
        """The next pause; `chance` is uniform in [0, 1)."""
        if lost.code == RESTARTING:
            return SOON_SECONDS * chance
        if lost.words == REPLACED:
            return self._after_a_rival(lost.seconds)
        if lost.code == REFUSED and lost.seconds < HEALTHY_SECONDS:  # later on, it was cut for something else
            return PAUSE_SECONDS_MAX  # asking often would not help
        return self._backoff.next(chance)

    def _after_a_rival(self, held: float) -> float:
        self._replaced = 1 if held > SETTLED_SECONDS else self._replaced + 1
        return min(REPLACED_SECONDS * 2.0 ** min(self._replaced - 1, 10), REPLACED_SECONDS_MAX)

    def reset(self) -> None:
        """It was well. That says nothing of a rival, which only waits."""
        self._backoff.reset()


class LineHandler(Protocol):
    """What a connection needs of the whole; `app.dial.Dialler` fits."""

    running: RunningHub
    address: HubAddress
    share: OfferShare
    egress: Egress

    def is_ready(self, offer: LocalOffer) -> bool:
        """Whether the server has been up, and so can be offered."""

    def rival_of(self, line: Line) -> Line | None:
        """Another connection of ours that was made a moment ago, and after this one."""

    def named(self, offer: LocalOffer, server: str | None) -> None:
        """What a server is called in the hub; None if the hub has it no more."""

    def waits(self, offer: LocalOffer, seconds: float) -> None:
        """For how long calls wait in the hub while their server is away."""

    def changed(self) -> None:
        """There is something else to show."""


class Line:
    """One connection, for as long as `run` is not cancelled."""

    def __init__(
        self, desk: LineHandler, offers: Sequence[LocalOffer], *, may_share: bool, on_single: Callable[[], None]
    ) -> None:
        """`on_single` hears if the hub wants a socket for each server, and that only the first has this one."""
        self._desk = desk
        self.offers = tuple(offers)
        self._may_share = may_share
        self._on_single = on_single
        self._pauses = Pauses()
        self._channels: Channels | None = None
        self._talk: Talk | None = None
        """What is said on a socket that is one server's."""
        self._reopening: dict[LocalOffer, tuple[asyncio.TimerHandle, HubRefusal]] = {}
        self._pauses_of: dict[LocalOffer, Pauses] = {offer: Pauses() for offer in offers}
        self._named_at: dict[LocalOffer, float] = {}
        self._was_connected = False
        self.connected_at = 0.0
        """When it was connected last, on the loop's clock."""
        self.is_trial = False
        """It was replaced when another of ours had just been made, and is made anew to see whether that is why."""
        self.socket: DialledSocket | None = None
        self.shown = LineShown("starting", time.time())

    async def run(self) -> None:
        """Keep the connection up.

        Raises:
            HubRefused: there is no use in another attempt.
            OnlyOne: there is none either as long as others of ours are connected.
        """
        while True:
            lost = await self._once()
            rival = self._desk.rival_of(self) if lost.words == REPLACED else None
            if rival is not None and rival.is_trial:
                raise OnlyOne
            if (verdict := verdict_on(lost)) is not None:
                raise HubRefused(verdict)
            self.is_trial = rival is not None
            pause = TRIAL_SECONDS if self.is_trial else self._pauses.after(lost, random.random())  # noqa: S311 - spread
            reason = in_words(lost)
            self._show("pausing", reason=reason, again_at=time.time() + pause, is_refused=is_refusal(lost))
            log.warning("hub not connected", hub=str(self._desk.address), reason=reason, again_in=round(pause, 1))
            await asyncio.sleep(pause)

    # -- one connection ----------------------------------------------------------------------------------------------

    async def _once(self) -> LineLost:
        """Connect and stay until it is lost; say why it was, or could not be made."""
        self._show("connecting", reason=self.shown.reason)
        wire = self._wire()
        try:
            self.socket = await self._dial(wire)
        except (DialFailed, EgressRefused) as failed:
            return LineLost(str(getattr(failed, "reason", failed)))
        except HandshakeFailed as failed:
            self._judge(failed.status, str(failed))
            return LineLost(str(failed))
        self.connected_at = asyncio.get_running_loop().time()
        self._was_connected = True
        answered = self._answered()
        lost = await self._use(self.socket, wire)
        if self._answered() > answered or lost.seconds > HEALTHY_SECONDS:
            self._pauses.reset()
        return lost

    def _wire(self) -> Wire:
        limits = self._desk.running.hub.limits
        return Wire(limits.lag_bytes, limits.lag_bytes + 4 * limits.reply_bytes)

    async def _dial(self, wire: Wire) -> DialledSocket:
        subprotocols = (MUX_SUBPROTOCOL,) if self._may_share else ()
        limit_bytes = self._desk.running.hub.limits.reply_bytes
        endpoint = self._desk.address.endpoint(self.offers[0].server_id, subprotocols, limit_bytes)
        return await DialledSocket.connect(
            self._desk.egress, endpoint, wire, is_configured=True, within=CONNECT_SECONDS
        )

    def _judge(self, status: int | None, reason: str) -> None:
        """Raises `HubRefused` if an answer in HTTP says that there is no use in asking again."""
        if status in NOT_ALLOWED:
            raise HubRefused(f"{reason}: the token is not good there")
        if status == NOT_FOUND and not self._was_connected:  # else it may only be restarting behind its proxy
            raise HubRefused(f"{reason}: there is no relay at this address", is_missing=True)

    async def _use(self, socket: DialledSocket, wire: Wire) -> LineLost:
        is_muxed = socket.chosen == MUX_SUBPROTOCOL
        self._show("connected", is_muxed=is_muxed)
        log.info("connected", hub=str(self._desk.address), shared=is_muxed)
        end = self._open_channels(socket, wire) if is_muxed else self._begin_single(socket, wire)
        try:
            reason = await wire.over
        except asyncio.CancelledError:
            socket.kill()
            raise
        finally:
            end("the hub is not connected any more")
        code, words = socket.goodbye or (None, "")
        return LineLost(reason, code, words, asyncio.get_running_loop().time() - self.connected_at)

    def _begin_single(self, socket: DialledSocket, wire: Wire) -> Callable[[str], None]:
        """The hub takes one server a socket: this is the first one's from now on."""
        self._may_share = False
        self._desk.running.share_links()
        others, self.offers = self.offers[1:], self.offers[:1]
        talk = self._talk = self._talk_on(self.offers[0], wire.send, wire)
        wire.begin(socket, talk.take)
        if others:
            self._on_single()
        return talk.end

    def leave(self) -> None:
        """We are about to end: take no further calls, and let a hub that knows how hold back those of its callers."""
        if self._channels is not None:
            self._channels.leave()
        elif self._talk is not None:
            self._talk.leave()

    def _talk_on(self, offer: LocalOffer, deliver: Callable[[bytes], None], wire: Wire) -> Talk:
        return Talk(self._desk.running, self._desk.share, offer, deliver, wire)

    def _answered(self) -> int:
        counts = self._desk.running.counters.servers
        return sum(counts[offer.name].calls for offer in self.offers if offer.name in counts)

    # -- channels ----------------------------------------------------------------------------------------------------

    def _open_channels(self, socket: DialledSocket, wire: Wire) -> Callable[[str], None]:
        channels = self._channels = Channels(wire, lambda offer, say: self._talk_on(offer, say, wire), self)
        wire.begin(socket, channels.take)
        self.offer_ready()
        return self._close_channels

    def _close_channels(self, why: str) -> None:
        channels, self._channels = self._channels, None
        for timer, _ in self._reopening.values():
            timer.cancel()
        self._reopening.clear()
        self._named_at.clear()
        if channels is not None:
            channels.end(why)

    def offer_ready(self) -> None:
        """Give the hub every server that can be offered and that it neither has nor has just refused."""
        if self._channels is not None:
            for offer in self.offers:
                if self._desk.is_ready(offer) and offer not in self._reopening:
                    self._channels.open(offer)

    def named(self, offer: LocalOffer, server: str) -> None:
        """See `dial_talk.Ear`."""
        self._pauses_of[offer].reset()
        self._named_at.setdefault(offer, asyncio.get_running_loop().time())
        self._desk.named(offer, server)

    def waits(self, offer: LocalOffer, seconds: float) -> None:
        """See `dial_talk.Ear`."""
        self._desk.waits(offer, seconds)

    def closed(self, offer: LocalOffer, code: int, reason: str) -> None:
        """See `dial_talk.Ear`: offer the server again after a while."""
        loop = asyncio.get_running_loop()
        seconds = loop.time() - self._named_at.pop(offer, loop.time())
        lost = LineLost(reason or f"it closed the channel with code {code}", code, reason, seconds)
        pause = self._pauses_of[offer].after(lost, random.random())  # noqa: S311 - spread, not secrecy
        refusal = HubRefusal(in_words(lost), time.time() + pause)
        log.warning(
            "server refused by the hub", server=offer.server_id, reason=refusal.reason, again_in=round(pause, 1)
        )
        self._reopening[offer] = loop.call_later(pause, self._reopen, offer), refusal
        self._desk.named(offer, None)

    def refusal(self, offer: LocalOffer) -> HubRefusal | None:
        """Why the hub does not have a server that could be there; None where it has it, or nothing is known."""
        if offer in self._reopening:
            return self._reopening[offer][1]
        shown = self.shown
        if not shown.is_refused or offer not in self.offers:
            return None
        assert shown.reason is not None
        assert shown.again_at is not None
        return HubRefusal(shown.reason, shown.again_at)

    def _reopen(self, offer: LocalOffer) -> None:
        del self._reopening[offer]
        self.offer_ready()
        self._desk.changed()

    def _show(
        self,
        state: State,
        *,
        reason: str | None = None,
        again_at: float | None = None,
        is_muxed: bool = False,
        is_refused: bool = False,
    ) -> None:
        self.shown = LineShown(state, time.time(), reason, again_at, is_muxed, is_refused)
        self._desk.changed()
