"""Records calls into a cassette: every event, question, answer and outcome passes a call's `RecordedInFlight`.

A hub without a cassette uses plain `InFlight`s and pays nothing. A thread redacts, encodes and writes. Calls are
written in the order in which they began, so that the file is the same for the same calls. One whose predecessor takes
long waits in memory, within a bound. The file takes its name when the hub closes: a killed hub replaces no cassette.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import IO, Any, BinaryIO, Literal, NamedTuple, TypeAlias
from weakref import ref

import msgspec
import structlog
from msgspec import Raw

from isthmus.core.calls.running_call import InFlight, OpenQuestion
from isthmus.core.cassette_matching import (
    FORMAT,
    RULED,
    AnswerLine,
    CallLine,
    EndCount,
    EndLine,
    FaultLine,
    FeatureLine,
    HeadLine,
    Line,
    LogLine,
    ProgressLine,
    QuestionLine,
    RecordedFault,
    ResultLine,
    SecretFinder,
    ServerLine,
    on_one_line,
    without_fixed,
    write_line,
)
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.snapshot import FeatureLists, ServerStatus
from isthmus.core.catalog.view import Route, ruled_route
from isthmus.core.ports import Exchange, Recorder
from isthmus.model.callers import Exposure
from isthmus.model.calls import (
    Answered,
    Call,
    Declined,
    Event,
    LogMessage,
    OnReply,
    Outcome,
    Progress,
    Question,
    Reply,
    Result,
)
from isthmus.model.fault_table import Fault, ServerError
from isthmus.model.features import Feature, ListName
from isthmus.model.names import ServerName
from isthmus.model.tasks import ABSENT

log = structlog.get_logger(__name__)

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Ended calls that wait for an earlier call. Beyond it they are written before that one."""

UNWRITTEN_BYTES_MAX = 256 * 1024 * 1024
"""Calls that the thread has not written. Beyond it the disk is too slow, and the recording fails."""

EVENTS_MAX = 10_000
"""Events of one call that are recorded: a server may report progress without end."""

CALLS_END = re.compile(rb'\{"end":\{"calls":[1-9][0-9]*\}\}\n\Z')
END_LENGTH_MAX = 100
"""How the last line of a cassette with calls looks, and how long it is at most."""

SECRET_LENGTH_MIN = 4
"""Shorter secret arguments are replaced in the arguments only: elsewhere they would match ordinary words."""

Redact: TypeAlias = Callable[[str], str]
"""Removes secrets from a text."""

RedactPayload: TypeAlias = Callable[[Raw, Redact], Raw]
"""Removes secrets from JSON."""


class CassetteSettings(NamedTuple):
    """Where a cassette is written, and how."""

    file: Path
    names: Literal["canonical", "llm"] = "canonical"
    has_timing: bool = True
    expose: Exposure = "all"
    max_result_bytes: int = 0


class RecordedInFlight(InFlight):
    """A running call whose events, questions, answers and outcome are recorded."""

    __slots__ = ("_record", "_recording")

    def __init__(
        self,
        recording: CassetteRecorder,
        call: Call,
        exchange: Exchange,
        recorder: Recorder,
        loop: asyncio.AbstractEventLoop,
        within: ref[InFlight] | None = None,
    ) -> None:
        super().__init__(call, exchange, recorder, loop, within)
        self._recording = recording
        self._record = recording.begin(self)

    def emit(self, event: Event) -> None:
        """See `InFlight`."""
        if not self.is_done:
            self._record.add(event)
        super().emit(event)

    def ask(
        self, question: Question, reply: OnReply, others: Sequence[InFlight] = (), *, lasts: bool = False
    ) -> OpenQuestion | None:
        """See `InFlight`."""
        record = self._record
        record.questions += 1
        number = record.questions
        record.add(_SentQuestion(number, question, lasts))

        def answered(answer: Reply) -> None:
            if not self.is_done:  # else the hub answered in the caller's place, because the call had ended
                record.add(_Replied(number, question, answer))
            reply(answer)

        return super().ask(question, answered, others, lasts=lasts)

    def finish(self, outcome: Outcome) -> bool:
        """See `InFlight`."""
        if not self.is_done:
            self._recording.call_ended(self, self._record, outcome)
        return super().finish(outcome)

    def abandon(self) -> None:
        """See `InFlight`."""
        super().abandon()
        self._recording.drop(self._record)

    def redirect(self, call: Call) -> None:
        """See `InFlight`."""
        super().redirect(call)
        self._record.call = call

    def put_back(self) -> bool:
        """See `InFlight`."""
        is_back = super().put_back()
        if is_back:
            self._recording.drop(self._record)
        return is_back


class _SentQuestion(NamedTuple):
    number: int
    question: Question
    lasts: bool


class _Replied(NamedTuple):
    number: int
    question: Question
    answer: Reply


_Happening: TypeAlias = Event | _SentQuestion | _Replied


class _Record:
    """What was recorded of one call. In its place in the queue it waits for its end."""

    __slots__ = ("began", "call", "ending", "happenings", "is_ended", "overlaps", "questions", "size_bytes")

    def __init__(self, call: Call, *, overlaps: bool) -> None:
        self.call = call
        """As its caller made it: the hub may add arguments to it later."""
        self.overlaps = overlaps
        self.began = perf_counter()
        self.questions = 0
        self.happenings: list[tuple[_Happening, int]] = []
        self.is_ended = False
        self.ending: _Ending | None = None
        """None for an ended call that is not recorded."""
        self.size_bytes = 0

    def add(self, happening: _Happening) -> None:
        """Something happened now."""
        if len(self.happenings) < EVENTS_MAX:
            self.happenings.append((happening, self.milliseconds()))
        elif len(self.happenings) == EVENTS_MAX:
            log.warning("a call reports too much: the cassette has only the beginning", tool=self.call.name)
            self.happenings.append((happening, self.milliseconds()))

    def milliseconds(self) -> int:
        """How long the call has run."""
        return int((perf_counter() - self.began) * 1000)


class _Ending(NamedTuple):
    server: ServerName
    name: str
    schema: Raw | None
    outcome: Outcome
    ms: int
    redact: Redact
    fixed: tuple[str, ...]


class CassetteRecorder:
    """Records the calls and lists of one hub. `new_inflight` makes the hub's running calls."""

    def __init__(
        self, settings: CassetteSettings, redact_for: Callable[[InFlight], Redact], redact_payload: RedactPayload
    ) -> None:
        """Raises: OSError if the file cannot be written."""
        self._settings = settings
        self._redact_for = redact_for
        self._redact_payload = redact_payload
        self._queue: deque[_Record] = deque()
        """Calls in the order in which they began, from the first that has not ended."""
        self._running: dict[_Record, InFlight] = {}
        self._waiting_bytes = 0
        self._calls = 0
        self._submitted_bytes = 0
        self._written_bytes = 0
        """Changed by the thread only."""
        self._servers: set[ServerName] = set()
        """Servers of recorded calls."""
        self._approvals: dict[str, str] = {}
        """What the cassette calls the approvals of refused calls; used by the thread only."""
        self._spool: IO[bytes] = tempfile.TemporaryFile(dir=settings.file.parent)  # noqa: SIM115 - `aclose`
        """The calls so far. The file has no name, so that a killed hub leaves nothing behind."""
        self._failure: OSError | None = None
        self._worker = ThreadPoolExecutor(1, "cassette")
        self.is_discarded = False
        """Whether the recording is deleted at the end instead of taking its name."""
        self.may_be_empty = False
        """Whether a recording without calls may replace a cassette that has some."""
        self._is_kept = False
        """Whether such a cassette was kept."""

    def new_inflight(
        self,
        call: Call,
        exchange: Exchange,
        recorder: Recorder,
        loop: asyncio.AbstractEventLoop,
        within: ref[InFlight] | None = None,
    ) -> InFlight:
        """A running call that is recorded. Calls of members of a fleet are not: a replaying hub has the fleet's own."""
        if call.fleet:
            return InFlight(call, exchange, recorder, loop, within)
        return RecordedInFlight(self, call, exchange, recorder, loop, within)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def begin(self, inflight: InFlight) -> _Record:
        """A call begins. Calls of the hub's own tools are not recorded, so nothing overlaps them."""
        record = _Record(inflight.call, overlaps=not all(map(_is_of_hub, self._running.values())))
        self._running[record] = inflight
        self._queue.append(record)
        return record

    def call_ended(self, inflight: InFlight, record: _Record, outcome: Outcome) -> None:
        """A call ends now. Of calls that reached no server, only those in `RULED` are recorded."""
        route = inflight.route
        is_sent = inflight.server_queue is not None or isinstance(outcome, Result)
        is_recorded = is_sent or (isinstance(outcome, Fault) and outcome.reason in RULED)
        if route is not None and is_recorded and route.feature.server != BUILTIN:
            server = route.feature.server
            schema = route.feature.definition.get("inputSchema") if record.call.kind == "tool" else None
            ms, redact = record.milliseconds(), self._redact_for(inflight)
            record.ending = _Ending(server, inflight.name, schema, outcome, ms, redact, _fixed(route))
            record.size_bytes = len(memoryview(record.call.arguments))
            if isinstance(outcome, Result):
                record.size_bytes += len(memoryview(outcome.payload))
            self._servers.add(server)
        self.drop(record)

    def drop(self, record: _Record) -> None:
        """A call has ended, perhaps without an outcome: write what can be written."""
        if record.is_ended:
            return
        record.is_ended = True
        del self._running[record]
        self._waiting_bytes += record.size_bytes
        while self._queue and self._queue[0].is_ended:
            self._write(self._queue.popleft())
        if self._waiting_bytes > WAITING_BYTES_MAX:
            ended = [each for each in self._queue if each.is_ended]
            self._queue = deque(each for each in self._queue if not each.is_ended)
            for each in ended:
                self._write(each)

    def _write(self, record: _Record) -> None:
        self._waiting_bytes -= record.size_bytes
        if record.ending is not None:
            self._calls += 1
            if self._submitted_bytes - self._written_bytes > UNWRITTEN_BYTES_MAX:
                self._failure = OSError("the disk is too slow")
            if self._failure is None:
                self._submitted_bytes += record.size_bytes
                with suppress(RuntimeError):  # a call that ends after the hub has closed
                    self._worker.submit(self._append, record, record.ending)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def aclose(
        self, statuses: Mapping[ServerName, ServerStatus], redact_list: Callable[[ServerName], Redact]
    ) -> None:
        """Write the whole file, with the lists of these servers."""
        self._worker.submit(self._complete, statuses, redact_list, self._calls)
        await asyncio.get_running_loop().run_in_executor(None, self._worker.shutdown)
        if self._failure is not None:
            reason = self._failure.strerror or str(self._failure)
            log.error("the cassette could not be written", file=str(self._settings.file), reason=reason)
        elif self._is_kept:
            log.error("no call was recorded: the cassette stays as it was", file=str(self._settings.file))
        elif not self.is_discarded:
            log.info("cassette written", file=str(self._settings.file), calls=self._calls)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _append(self, record: _Record, ending: _Ending) -> None:
        try:
            for line in self._lines_of(record, ending):
                self._spool.write(write_line(line))
        except OSError as error:
            self._failure = error
        except Exception:  # a defect must not end the thread, and the file without this call would be wrong
            log.exception("a call could not be recorded", server=ending.server, name=ending.name)
            self._failure = OSError("a call could not be recorded: see the log")
        self._written_bytes += record.size_bytes

    def _lines_of(self, record: _Record, ending: _Ending) -> Iterator[Line]:
        call = record.call
        finder = SecretFinder(ending.schema)
        extra = Raw(msgspec.json.encode(call.extra, order="sorted")) if call.extra else ABSENT
        sent, extra = without_fixed(call.kind, call.arguments, extra, ending.fixed)  # a call by `call_tool` has them
        arguments = finder.redacted(sent) if bytes(sent) else Raw(b"{}")
        for happening, _ in record.happenings:
            if isinstance(happening, _Replied) and isinstance(happening.answer, Answered):
                finder.found += _secrets_of(happening.question, happening.answer).found
        redact = _redact_also(ending.redact, finder.found)

        def hidden(payload: Raw) -> Raw:
            return on_one_line(payload if redact is str else self._redact_payload(payload, redact))

        shown = hidden(arguments)
        shown_extra = hidden(extra) if bytes(extra) else extra
        yield CallLine(
            call=ending.name,
            kind=call.kind,
            server=ending.server,
            arguments=shown,
            extra=shown_extra,
            overlaps=record.overlaps,
            redacted=_differs(shown, sent) or _differs(shown_extra, extra),
            fixed=ending.fixed,
        )
        for happening, ms in record.happenings:
            yield _step_line(happening, self._time(ms), hidden)
        outcome, ended = ending.outcome, self._time(ending.ms)
        if isinstance(outcome, Result):
            yield ResultLine(result=hidden(outcome.payload), bare=outcome.is_bare, ms=ended)
        else:
            yield FaultLine(fault=self._recorded_fault(outcome, hidden, redact), ms=ended)

    def _recorded_fault(self, fault: Fault, hidden: Callable[[Raw], Raw], redact: Redact) -> RecordedFault:
        about: dict[str, Any] = {}
        if isinstance(fault, ServerError):
            about["code"] = fault.code
            if fault.data is not None:
                about["data"] = hidden(fault.data)
        message = redact(fault.message)
        if fault.approval is not None:  # the same number in each recording of the same calls
            about["approval"] = self._approvals.setdefault(fault.approval, f"ap_{len(self._approvals) + 1}")
            message = message.replace(fault.approval, about["approval"])
        return RecordedFault(fault.reason, message, fault.executed, retry_after=fault.retry_after, **about)

    def _time(self, ms: int) -> int | None:
        return ms if self._settings.has_timing else None

    def _complete(
        self, statuses: Mapping[ServerName, ServerStatus], redact_list: Callable[[ServerName], Redact], calls: int
    ) -> None:
        file = self._settings.file
        draft = file.with_name(f"{file.name}.{os.getpid()}.new")
        try:
            self._spool.seek(0)
            self._is_kept = not (calls or self.may_be_empty or self.is_discarded) and _has_calls(file)
            if self._is_kept:
                return
            if self._failure is None and not self.is_discarded:
                names = sorted({*statuses, *self._servers} - {BUILTIN})
                servers = (statuses.get(name) or ServerStatus(name) for name in names)
                with _create(draft) as target:
                    target.write(write_line(self._head()))
                    for status in servers:
                        target.writelines(map(write_line, self._list_lines(status, redact_list(status.server))))
                    shutil.copyfileobj(self._spool, target)
                    target.write(write_line(EndLine(end=EndCount(calls))))
                draft.replace(file)
        except OSError as error:
            self._failure = error
            draft.unlink(missing_ok=True)
        finally:
            self._spool.close()

    def _head(self) -> HeadLine:
        settings = self._settings
        return HeadLine(
            cassette=FORMAT,
            names=settings.names,
            expose=settings.expose,
            max_result_bytes=settings.max_result_bytes,
        )

    def _list_lines(self, status: ServerStatus, redact: Redact) -> Iterator[Line]:
        common = FeatureLists(status.tools, status.prompts, status.resources, status.templates, status.abilities)
        variants = sorted((sorted(caps), lists) for caps, lists in status.variants.items())
        for caps, lists in ((None, common), *variants):
            capabilities = None if caps is None else tuple(caps)
            abilities = tuple(sorted(lists.abilities))
            yield ServerLine(
                server=status.server, abilities=abilities, capabilities=capabilities, unlisted=status.is_unlisted
            )
            for name, feature in _visible(status, lists):
                definition = Raw(msgspec.json.encode(feature.definition))
                shown = definition if redact is str else self._redact_payload(definition, redact)
                yield FeatureLine(list=name, definition=on_one_line(shown))


def _fixed(route: Route) -> tuple[str, ...]:
    """The arguments that a set fills in, and its callers cannot send."""
    changes = route.changes
    return (
        () if changes is None or changes.accepted is None else tuple(sorted(changes.defaults.keys() - changes.accepted))
    )


def _is_of_hub(inflight: InFlight) -> bool:
    return inflight.route is not None and inflight.route.feature.server == BUILTIN


def _has_calls(file: Path) -> bool:
    """Whether a file ends as a cassette with calls does."""
    try:
        with file.open("rb") as source:
            source.seek(max(0, source.seek(0, os.SEEK_END) - END_LENGTH_MAX))
            return CALLS_END.search(source.read()) is not None
    except FileNotFoundError:
        return False


def _create(path: Path) -> BinaryIO:
    """A new file that only its owner can read: results may be private."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    return open(os.open(path, flags, 0o600), "wb")


def _visible(status: ServerStatus, lists: FeatureLists) -> Iterator[tuple[ListName, Feature]]:
    """The entries of lists that callers see, with the operator's rules applied: replaying applies none."""
    gone = {*status.withheld, *status.left_out}
    for tool in lists.tools:
        if tool.name not in gone and status.rules.shows(tool.name):
            yield "tools", ruled_route(tool, tool.name, status.rules).feature
    others: tuple[tuple[ListName, Sequence[Feature]], ...] = (
        ("prompts", lists.prompts),
        ("resources", lists.resources),
        ("templates", lists.templates),
    )
    for name, features in others:
        yield from ((name, feature) for feature in features)


def _secrets_of(question: Question, answer: Answered) -> SecretFinder:
    """The secrets in an answer to an elicitation, as its schema marks them."""
    params = _members(question.params)
    schema = params.get("requestedSchema")
    written = None if schema is None else Raw(b'{"properties":{"content":%b}}' % bytes(schema))
    finder = SecretFinder(written)
    finder.redacted(answer.result)
    return finder


def _members(payload: Raw) -> dict[str, Raw]:
    try:
        return msgspec.json.decode(payload, type=dict[str, Raw])
    except msgspec.MsgspecError:
        return {}


def _redact_also(redact: Redact, secrets: Sequence[str]) -> Redact:
    """A redaction that also removes these texts, the longest first: one may be a part of another."""
    texts = sorted({text for text in secrets if len(text) >= SECRET_LENGTH_MIN}, key=len, reverse=True)
    if not texts:
        return redact

    def both(text: str) -> str:
        for secret in texts:
            text = text.replace(secret, "***")
        return redact(text)

    return both


def _differs(shown: Raw, given: Raw) -> bool:
    return bytes(shown) != bytes(on_one_line(given)) if bytes(given) else False


def _step_line(happening: _Happening, ms: int | None, hidden: Callable[[Raw], Raw]) -> Line:
    match happening:
        case Progress():
            return ProgressLine(progress=hidden(Raw(msgspec.json.encode(happening.members))), ms=ms)
        case LogMessage():
            return LogLine(log=hidden(Raw(msgspec.json.encode(happening.members))), ms=ms)
        case _SentQuestion(number, question, lasts):
            params = hidden(question.params)
            return QuestionLine(question=number, method=question.method, params=params, lasts=lasts, ms=ms)
        case _Replied(number, question, Answered() as answer):
            reply = hidden(_secrets_of(question, answer).redacted(answer.result))
            return AnswerLine(answer=number, reply=reply, redacted=_differs(reply, answer.result), ms=ms)
        case _Replied(number):
            assert isinstance(happening.answer, Declined)
            return AnswerLine(answer=number, declined=happening.answer, ms=ms)
