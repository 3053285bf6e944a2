"""What every kind of link shares: asking a server the hub's own questions, greeting it, and reading its tools.

A kind (stdio, streamable, …) adds how one request travels: `_dispatch`. The supervisor owns links; lanes send calls
on them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Set

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.settings import Limits
from isthmus.model.events import Log, LogLevel
from isthmus.model.faults import BadReply, Fault, NotConnected, ServerError
from isthmus.model.features import TASK_ABILITIES, TOPICS, Ability, Topic
from isthmus.model.names import ServerName
from isthmus.model.questions import NOTHING, Answered, Profile, Question, Reply
from isthmus.upstream.dialect import Dialect, LegacyDialect, ModernDialect
from isthmus.upstream.listing import Listing, read_topic
from isthmus.upstream.settings import Era
from isthmus.upstream.waiters import Inquiry, Unheard, Waiter
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, Request, render
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.capabilities import Capabilities
from isthmus.wire.mcp.inputs import QUESTIONS
from isthmus.wire.mcp.messages import LOGGED, TOPIC_OF, UPDATED, Implementation, Members, read_log, read_string

PROBE_SECONDS = 3.0
"""How long a server may think about `server/discover` before it is greeted the earlier way as well: some old
servers ignore what comes before `initialize`, and a new one that is merely slow still answers the probe first."""

ASK_SECONDS = 30.0
"""How long the hub waits for the answer to a question of its own; a listing may take a server a while."""

HEARING_SECONDS = 5.0
"""How long a server may take to acknowledge what it is to tell. Until it has, an update could be missed."""

NOT_MODERN = (400, 404, 405, 406, 415)
"""HTTP answers to the probe that an earlier server gives to what it does not know."""

REFUSED_VERSION = -32022

OTHERS: dict[str, frozenset[Ability]] = {"legacy": frozenset({"task_handles"}), "modern": frozenset({"tasks"})}
"""What a server of one era cannot mean if it says so."""


class ConnectFailed(Exception):
    """A link could not be made; the message says why in words for the operator."""


class WrongCarrier(ConnectFailed):
    """Whoever is there does not speak this transport; another one may be what it speaks."""


class BaseLink(ABC):
    """A link being made, in use, or lost.

    `lost` ends with the reason when the link can carry nothing more; `on_lost` hears it first, before the calls
    on the link do. `on_doubt` is called when something suggests that the server is gone. `on_changed` is called
    when the server says that a list of its changed, `on_updated` when a resource was, `on_log` when it logs what
    belongs to no call, `on_renewed` when it had to be greeted anew and forgot everything, `on_gap` when it could not be
    heard for a while. `is_probing` tells a
    failed attempt's reader that the probe may have been what failed.
    """

    is_duplex = False
    """Whether everything comes on one stream, so that a question need not say which call it is about."""

    can_ask = True
    """Whether such a server may ask something of callers, and so may list and do other things for those it can ask."""

    carrier = ""
    """What carries messages, in one word for people."""

    start_seconds = ASK_SECONDS
    """How long the first answer may take: a process may have to be installed and started first."""

    def __init__(self, server: ServerName, me: Implementation, limits: Limits) -> None:
        self.server = server
        self.dialect: Dialect = LegacyDialect()
        self.capabilities = Capabilities()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_changed: Callable[[Topic], None] = lambda _topic: None
        self.on_updated: Callable[[str], None] = lambda _uri: None
        self.on_log: Callable[[Log], None] = lambda _line: None
        self.on_renewed: Callable[[], None] = lambda: None
        self.on_gap: Callable[[], None] = lambda: None
        self.on_crowded: Callable[[], None] = lambda: None
        """Hears of a question that several callers' calls could be about, so that they had better not share a link."""
        self.on_doubt: Callable[[], None] = lambda: None
        self.on_lost: Callable[[str], None] = lambda _reason: None
        self.is_probing = False
        self.is_lasting = True
        """Whether a later call of the same caller comes the same way, so that it can ask about an earlier one."""
        self._me = me
        self.profile: Profile = NOTHING
        """What those whose calls it carries can be asked; said when an earlier server is greeted."""
        self.limits = limits
        self._watched: set[str] = set()
        """Resources that a modern server is asked to tell updates of; an earlier one remembers them itself."""
        self._hearing: asyncio.Future[Fault | None] | None = None
        """Ends when a modern server has taken up what it was last asked to tell."""
        self._listening_soon: asyncio.Future[None] | None = None
        """Ends when a modern server was asked to tell all that was asked for in this turn of the loop."""
        self._last_id = 0

    @property
    def last_words(self) -> str | None:
        """What the operator may want to read beside the reason for which the link was lost."""
        return None

    # -- what a kind adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        """Send a request; its waiter hears the end."""

    @abstractmethod
    def _forget(self, waiter: Waiter) -> None:
        """Nobody waits any more."""

    @abstractmethod
    def _notify(self, method: str, params: Payload | None) -> None:
        """Send a notification."""

    @abstractmethod
    def listen(self) -> None:
        """Start hearing of changes, where the server announces them and the era needs a request for it."""

    @abstractmethod
    def send(self, inflight: InFlight) -> None:
        """See `core.ports.link.Link`."""

    @abstractmethod
    def may_have_run(self, inflight: InFlight) -> bool:
        """See `core.ports.link.Link`."""

    @abstractmethod
    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """See `core.ports.link.Link`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give the link up in good order; whatever is still on it ends as lost."""

    # -- asking ----------------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """Ids towards a server are the link's own, whatever the callers' are."""
        self._last_id += 1
        return self._last_id

    async def ask(self, method: str, params: bytes, within: float = ASK_SECONDS) -> msgspec.Raw:
        """Ask and wait for the result.

        Raises:
            Fault: the server refused, the link broke, or no answer came in time.
        """
        inquiry = Inquiry(self.server)
        self._dispatch(self.next_id(), method, params, inquiry)
        try:
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with the answer.
            async with asyncio.timeout(within):
                return await inquiry.answer
        except TimeoutError:
            raise BadReply(self.server, f"no answer to {method} within {within:g} s") from None
        finally:
            self._forget(inquiry)

    async def ping(self, within: float) -> None:
        """See whether the server still answers. Raises `Fault` if not; an error is an answer too."""
        try:
            await self.ask(self.dialect.probe, self.dialect.params(), within)
        except ServerError:
            return

    # -- greeting --------------------------------------------------------------------------------------------------

    async def greet(self, era: Era) -> None:
        """Find out the server's era, or use the one that is known, and open the link in it.

        Raises:
            ConnectFailed: it answered, but not as a server of any era would.
            Fault: it did not answer.
        """
        if era != "legacy":
            discovery = await self._discover(patience=None if era == "modern" else PROBE_SECONDS)
            if discovery is not None:
                self.dialect = ModernDialect(self._me)
                self.capabilities = discovery.capabilities
                return
            if era == "modern":
                raise ConnectFailed("it does not speak MCP 2026-07-28, as its configuration says it should")
        await self._initialize()

    async def _discover(self, patience: float | None) -> modern.Discovery | None:
        self.is_probing = True
        within = self.start_seconds if patience is None else patience
        answer: msgspec.Raw | None = None
        try:
            answer = await self._probe(within)
        except NotConnected as refused:
            if refused.status not in NOT_MODERN:
                raise
        except (ServerError, BadReply):
            pass  # an error, silence, or an answer no modern server gives: ask the earlier way
        self.is_probing = False
        return None if answer is None else modern.read_discovery(answer)

    async def _probe(self, within: float) -> msgspec.Raw:
        """Ask a server to say what it is, a second time if it refuses the version and names it as one of its own."""
        params = ModernDialect(self._me).params()
        try:
            return await self.ask(modern.DISCOVER, params, within)
        except ServerError as refused:
            if refused.code != REFUSED_VERSION or not modern.names_version(refused.data):
                raise
        return await self.ask(modern.DISCOVER, params, within)

    async def _initialize(self) -> None:
        try:
            answer = await self.ask("initialize", legacy.initialize_params(self._me, self.profile), self.start_seconds)
        except ServerError as refused:
            if refused.code == REFUSED_VERSION and (discovery := await self._discover(None)) is not None:
                # Its answer to the probe came too late; by then it had settled on the modern era.
                self.dialect = ModernDialect(self._me)
                self.capabilities = discovery.capabilities
                return
            raise ConnectFailed(f"it refused to initialize: {refused.message} ({refused.code})") from refused
        welcome = legacy.read_welcome(answer)
        if isinstance(welcome, str):
            raise ConnectFailed(welcome)
        self.dialect = LegacyDialect(welcome.protocolVersion)
        self.capabilities = welcome.capabilities
        self._notify("notifications/initialized", None)

    # -- listing ---------------------------------------------------------------------------------------------------

    def abilities(self) -> frozenset[Ability]:
        """What the server says it can do, in its own era's way."""
        told = self.capabilities.abilities() - OTHERS[self.dialect.era]
        return told if self.is_lasting else told - TASK_ABILITIES

    async def list_features(
        self, topics: Set[Topic] = frozenset(TOPICS), known: Listing | None = None, profile: Profile = NOTHING
    ) -> Listing:
        """What the server offers to those who can be asked this; of what is not among `topics`, what is known.

        Raises:
            Fault: the server gave no usable list of tools. Other lists that it cannot give are noted.
        """
        listing = known or Listing()
        if "tools" not in self.abilities():
            listing = msgspec.structs.replace(listing, tools=(), notes={"tools": ("it says that it has no tools",)})
        for topic in TOPICS:
            if topic in topics and topic in self.abilities():
                listing = await self._read_topic(topic, listing, profile)
        return listing

    async def _read_topic(self, topic: Topic, known: Listing, profile: Profile) -> Listing:
        try:
            return await read_topic(self, topic, known, profile)
        except (ServerError, BadReply) as failed:
            if topic == "tools":
                raise
            note = f"it gave no list of {topic}: {getattr(failed, 'why', failed.message)}"
            return msgspec.structs.replace(known, notes={**known.notes, topic: (note,)})

    # -- what belongs to no request --------------------------------------------------------------------------------

    def noted(self, method: str, params: Members) -> None:
        """The server tells something that is about no request, or does not say about which."""
        if (topic := TOPIC_OF.get(method)) is not None:
            self.on_changed(topic)
        elif method == UPDATED:
            if (uri := read_string(params.get("uri"))) is not None:
                self.on_updated(uri)
        elif method == LOGGED and (line := read_log(params)) is not None:
            self._logged(line)

    def _logged(self, line: Log) -> None:
        """Nobody can say whose it is: it is the operator's."""
        self.on_log(line)

    async def set_level(self, level: LogLevel) -> None:
        """Ask a server of the earlier era to log from this level on; a modern one is told with every call."""
        if self.dialect.era == "legacy" and "logging" in self.abilities():
            await self.ask("logging/setLevel", self.dialect.params({"level": msgspec.json.encode(level)}))

    async def subscribe(self, uri: str) -> None:
        """See `core.ports.announcer.Announcer`."""
        if self.dialect.era == "modern":
            if "subscribe" not in self.abilities():
                raise ServerError(self.server, jsonrpc.METHOD_NOT_FOUND, "It does not tell of updates of resources")
            self._watched.add(uri)
            await asyncio.wait({self._listen_soon()})
            await self._until_heard()
        else:
            await self.ask("resources/subscribe", self.dialect.params({"uri": msgspec.json.encode(uri)}))

    def unsubscribe(self, uri: str) -> None:
        """See `core.ports.announcer.Announcer`."""
        if self.dialect.era == "modern":
            self._watched.discard(uri)
            self.listen()
        else:
            params = self.dialect.params({"uri": msgspec.json.encode(uri)})
            self._dispatch(self.next_id(), "resources/unsubscribe", params, Unheard())

    def _listen_soon(self) -> asyncio.Future[None]:
        """Ask to be told, once for all that is asked for together: each request names everything that is watched."""
        if self._listening_soon is None:
            loop = asyncio.get_running_loop()
            self._listening_soon = loop.create_future()
            loop.call_soon(self._listen_now)
        return self._listening_soon

    def _listen_now(self) -> None:
        soon, self._listening_soon = self._listening_soon, None
        assert soon is not None, "only who sees that it is listened soon comes here"
        self.listen()
        soon.set_result(None)

    def _expect_hearing(self) -> None:
        """A modern server was asked to tell: it says when it does."""
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.get_running_loop().create_future()

    def _heard(self, refusal: Fault | None = None) -> None:
        if self._hearing is not None and not self._hearing.done():
            self._hearing.set_result(refusal)

    async def _until_heard(self, within: float = HEARING_SECONDS) -> None:
        """Wait until the server tells what it was asked to; one that never says so is believed after a while."""
        if (hearing := self._hearing) is not None:
            await asyncio.wait({hearing}, timeout=within)
            if hearing.done() and (refusal := hearing.result()) is not None:
                raise refusal

    def _listen_params(self) -> bytes:
        """Parameters of a modern `subscriptions/listen`: every list that the server has, and what is watched."""
        topics = frozenset(topic for topic in TOPICS if topic in self.abilities())
        wanted = modern.write_wanted(modern.Wanted(topics, tuple(sorted(self._watched))))
        return self.dialect.params({"notifications": wanted})

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
            self._heard()
            self.on_lost(reason)


def reply_to(request: Request) -> bytes:
    """Answer a server's own request that is for nobody: only a ping may be asked of the hub itself."""
    if request.method == "ping":
        return jsonrpc.result(request.id, b"{}")
    text = f"{request.method} is not supported by this client"
    return jsonrpc.error(request.id, jsonrpc.METHOD_NOT_FOUND, text)


def put_request(request: Request, waiter: Waiter | None, say: Callable[[bytes], None]) -> None:
    """Put a server's own request to the caller of whom it is asked, if that is known and it is a question."""
    if waiter is None or request.method not in QUESTIONS:
        say(reply_to(request))
        return
    question = Question(request.method, msgspec.Raw(render(request.params)))
    waiter.ask(question, lambda reply: say(_render_reply(request, reply)))


def _render_reply(request: Request, reply: Reply) -> bytes:
    if isinstance(reply, Answered):
        return jsonrpc.result(request.id, reply.result)
    return jsonrpc.error(request.id, reply.code, reply.message)
