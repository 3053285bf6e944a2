"""A link that replays the recorded calls of one server, without a network. `app.links` creates it.

Each call is looked up in the cassette; its events, questions and outcome then follow in the recorded order, at once or
at the recorded times. The hub cannot tell it from a server: names, permissions and both eras of callers work as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from functools import partial

import msgspec
from msgspec import Raw

from isthmus.core.calls.running_call import InFlight
from isthmus.core.cassette_matching import (
    RULED,
    AnswerLine,
    FaultLine,
    IncomingCall,
    LogLine,
    Player,
    ProgressLine,
    QuestionLine,
    RecordedCall,
    RecordedLists,
    ResultLine,
    json_differences,
)
from isthmus.core.catalog.tool_rules import without_required
from isthmus.core.settings import Limits
from isthmus.core.tasks.record import StoredOutcome, restored_outcome
from isthmus.model.calls import Answered, ClientCapabilities, LogLevel, LogMessage, Progress, Question, Reply, Result
from isthmus.model.fault_table import BadReply, Bug, Fault, Lost, NotConnected, NotRecorded, Unanswered
from isthmus.model.features import Ability, ListName, Topic
from isthmus.model.names import ServerName
from isthmus.model.tasks import ABSENT
from isthmus.upstream.base_link import BaseLink
from isthmus.upstream.listing import Listing, read_lists
from isthmus.upstream.response_waiters import CallWaiter, Waiter, ask_caller, turned_away
from isthmus.upstream.server_settings import Era
from isthmus.wire.mcp.forwarded_methods import ModernDialect
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListShape, array_of
from isthmus.wire.mcp.messages import Implementation, read_log

GATHER_MS = 20
"""How long a frontend collects the questions of a call before it sends them to a modern caller."""

PAUSE_SECONDS = 0.05
"""How long the replay waits after a question, if the recorded call continued while the question was open: its caller
had received the question."""

SHAPES: tuple[tuple[ListName, ListShape], ...] = (
    ("tools", TOOLS),
    ("prompts", PROMPTS),
    ("resources", RESOURCES),
    ("templates", TEMPLATES),
)


class ReplayLink(BaseLink):
    """One server of a cassette. All links of a hub share the player."""

    carrier = "cassette"
    takes_methods = True
    is_cacheable = False
    """A replaying hub caches nothing: every recorded call comes here."""

    def __init__(self, server: ServerName, me: Implementation, limits: Limits, player: Player) -> None:
        super().__init__(server, me, limits)
        # A modern server lists to all clients on one link.
        self.dialect = ModernDialect(me)
        self._player = player
        self._recorded = player.cassette.servers[server]
        self._playing: dict[InFlight, _Playback] = {}

    async def handshake(self, era: Era) -> None:
        """Do nothing: the cassette is read."""

    async def ping(self, within: float) -> None:
        """Do nothing: a cassette cannot be lost."""

    def abilities(self) -> frozenset[Ability]:
        """What the server could do."""
        return msgspec.convert(self._recorded.lists[None].abilities, frozenset[Ability])

    async def _read_lists(self, topics: Set[Topic], known: Listing | None, client_caps: ClientCapabilities) -> Listing:
        """The recorded lists; a link may declare capabilities for all callers."""
        listing = listing_of(self.server, self._recorded.lists_for(client_caps or self.questions.client_caps))
        if not (fixed := self._player.cassette.fixed_in(self.server)):
            return listing
        # The same calls must be possible without the set, in which their callers did not send these arguments.
        tools = tuple(without_required(tool, fixed.get(tool.name, ())) for tool in listing.tools)
        return msgspec.structs.replace(listing, tools=tools)

    def set_level(self, level: LogLevel) -> None:
        """Do nothing: the frontend filters log messages."""

    def listen(self) -> None:
        """Do nothing: recorded lists do not change."""

    async def subscribe(self, uri: str) -> None:
        """Do nothing: updates of resources are not recorded."""

    def unsubscribe(self, uri: str) -> None:
        """Do nothing."""

    def send(self, inflight: InFlight) -> None:
        """Replay the call, or end it with a fault that names the nearest recorded one."""
        if self.lost.done():
            inflight.finish(NotConnected(self.server, self.lost.result()))
            return
        call = inflight.call
        extra = Raw(msgspec.json.encode(call.extra)) if call.extra else ABSENT
        found = self._player.find(IncomingCall(self.server, call.kind, inflight.name, call.arguments, extra))
        if isinstance(found, str):
            inflight.finish(NotRecorded(self.server, found))
            return
        self._playing[inflight] = _Playback(self, inflight, found, self._player)

    def forget(self, inflight: InFlight) -> None:
        """A call is over."""
        self._playing.pop(inflight, None)

    def may_have_run(self, inflight: InFlight) -> bool:
        """Whether the recorded call may have run when it ended."""
        playback = self._playing.get(inflight)
        return playback is None or playback.may_have_run

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Stop the replay of a call."""
        playback = self._playing.pop(inflight, None)
        if playback is not None:
            playback.stop()

    async def aclose(self) -> None:
        """End all calls."""
        self._lose("closed by the hub")
        for inflight, playback in list(self._playing.items()):
            playback.stop()
            inflight.finish(NotConnected(self.server, "closed by the hub"))
        self._playing.clear()

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        waiter.fail(turned_away(self.server, f"a cassette does not support {method}"))


def listing_of(server: ServerName, lists: RecordedLists) -> Listing:
    """The recorded lists as the hub uses them."""
    members = (b'"%b":%b' % (shape.member.encode(), array_of(lists.entries[name])) for name, shape in SHAPES)
    listing = read_lists(server, b"{%b}" % b",".join(members))
    return msgspec.structs.replace(listing, is_unlisted=lists.is_unlisted)


class _Playback:
    """The replay of one call: its steps, then its end."""

    def __init__(self, link: ReplayLink, inflight: InFlight, recorded: RecordedCall, player: Player) -> None:
        self._link = link
        self._inflight = inflight
        self._recorded = recorded
        self._is_timed = player.timing == "recorded"
        self._is_strict = player.match == "strict"
        self._at = 0
        self._passed_ms = 0
        self._answers: dict[int, Reply] = {}
        self._awaited: int | None = None
        """The question whose answer the replay waits for."""
        # Like a server, it answers in a later turn of the loop: exchanges rely on that for questions.
        self._timer: asyncio.Handle = asyncio.get_running_loop().call_soon(self.play)
        self._asked: QuestionLine | None = None
        """The last question, until something else happens."""

    @property
    def may_have_run(self) -> bool:
        """Whether the recorded call had perhaps run when it was cancelled."""
        ending = self._recorded.ending
        return not isinstance(ending, FaultLine) or ending.fault.executed != "no"

    def stop(self) -> None:
        """Replay nothing more."""
        self._at = len(self._recorded.steps) + 1
        self._timer.cancel()

    def play(self) -> None:
        """Replay the steps that are due, and set a timer for the next one."""
        steps = self._recorded.steps
        while self._at <= len(steps):
            if self._inflight.is_done:
                self._link.withdraw(self._inflight, "")
                return
            line = steps[self._at] if self._at < len(steps) else self._recorded.ending
            if isinstance(line, AnswerLine):
                if line.answer not in self._answers:
                    self._awaited = line.answer
                    return
                self._passed_ms = max(self._passed_ms, line.ms or 0)  # the caller takes its own time
                self._asked = None
            elif self._is_early(line):
                self._timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self.play)
                return
            if self._is_timed and line.ms is not None and line.ms > self._passed_ms:
                seconds, self._passed_ms = (line.ms - self._passed_ms) / 1000, line.ms
                self._timer = asyncio.get_running_loop().call_later(seconds, self.play)
                return
            self._at += 1
            self._step(line)

    def _is_early(self, line: ProgressLine | LogLine | QuestionLine | ResultLine | FaultLine) -> bool:
        """Whether the last question must reach its caller before this step; True once per question."""
        asked, self._asked = self._asked, None
        if asked is None:
            return False
        if asked.ms is None or line.ms is None:
            return not isinstance(line, QuestionLine)  # several questions are usually asked at once
        return line.ms - asked.ms >= GATHER_MS

    def _step(self, line: ProgressLine | LogLine | QuestionLine | AnswerLine | ResultLine | FaultLine) -> None:
        inflight, server = self._inflight, self._link.server
        match line:
            case ProgressLine():
                if inflight.call.wants_progress:
                    members = msgspec.json.decode(line.progress, type=dict[str, Raw])
                    inflight.emit(Progress(members, server if "_meta" in members else None))
            case LogLine():
                members = msgspec.json.decode(line.log, type=dict[str, Raw])
                message = read_log(members)
                if message is not None:
                    inflight.emit(LogMessage(message.level, members, server if "_meta" in members else None))
            case QuestionLine():
                self._asked = line
                reply = partial(self._answered, line.question)
                ask_caller(inflight, Question(line.method, line.params), reply, lasts=line.lasts)
            case AnswerLine():
                self._compare(line, self._answers[line.answer])
            case ResultLine() | FaultLine():
                self._end(line)

    def _answered(self, number: int, reply: Reply) -> None:
        if self._inflight.is_done:
            return
        self._answers[number] = reply
        if self._awaited == number:
            self._awaited = None
            self._timer = asyncio.get_running_loop().call_soon(self.play)

    def _compare(self, line: AnswerLine, reply: Reply) -> None:
        """In strict mode, end the call if its caller answers something else: the outcome would not fit."""
        if not self._is_strict:
            return
        if not isinstance(reply, Answered) or line.declined is not None:
            is_same = not isinstance(reply, Answered) and line.declined is not None
            found = [] if is_same else ["it was answered there or here, and declined in the other"]
        else:
            found = json_differences(line.reply, reply.result, "answer", is_redacted=line.redacted)
        if found:
            title, at = self._recorded.title, self._recorded.line
            problem = f"The caller answers a question of {title} (line {at}) differently: {'; '.join(found)}."
            self._link.withdraw(self._inflight, "")
            self._inflight.finish(NotRecorded(self._link.server, problem))

    def _end(self, line: ResultLine | FaultLine) -> None:
        inflight, server = self._inflight, self._link.server
        if isinstance(line, FaultLine):
            if line.fault.reason == "cancelled":
                return  # its caller cancelled it: it waits for that
            outcome = _fault(line, server)
        elif line.bare:
            outcome = Result(line.result, is_bare=True)
        else:
            self._link.forget(inflight)
            CallWaiter(inflight).result(line.result)
            return
        self._link.forget(inflight)
        inflight.finish(outcome)


def _fault(line: FaultLine, server: ServerName) -> Result | Fault:
    fault = line.fault
    about = StoredOutcome(
        reason=fault.reason,
        message=fault.message,
        executed=fault.executed,
        server=None if fault.reason in RULED else server,
        code=fault.code,
        data=fault.data,
        retry_after=fault.retry_after,
        approval=fault.approval,
    )
    outcome = restored_outcome(about)
    # Fields that are not recorded, because only the hub itself reads them.
    match outcome:
        case NotConnected():
            outcome.why, outcome.status, outcome.login = fault.message, None, None
        case Lost():
            outcome.why, outcome.is_behind = fault.message, True  # the link itself works
        case BadReply() | Unanswered():
            outcome.why = fault.message
        case Bug():
            outcome.incident = ""
        case _:
            pass
    return outcome
