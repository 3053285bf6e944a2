"""The process that runs scripts: Monty's workers, and one thread per running script. `code.sandbox_in_hub` starts it.

A script reaches nothing but `_call` and `_call_and_wait`, which stop it until the hub resumes it. Only text crosses the
border: the worker itself turns arguments into JSON and results into values, within its own limits of time and memory,
so that neither a huge value nor one that contains itself many times costs the hub anything.

On a busy core the process computes little: it lowers its own priority, which needs no rights, and its workers inherit
that from their start. So it is apart from the hub: a thread of the hub with such a priority would stop the others
whenever it holds the interpreter's lock. Requests come from stdin, responses go to stdout, both as frames (`frame`). It
ends with its stdin.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.code.settings import CodeSettings
from isthmus.code.signatures import HEADER, signatures, words_in
from isthmus.code.type_check import GATHER_ADVICE, real_errors, unsupported

if TYPE_CHECKING:
    from pydantic_monty import FunctionSnapshot, Monty, MontyError, MontySession, MontyTypingError, SyncSnapshot

CALL: Final = "_call"
CALL_AND_WAIT: Final = "_call_and_wait"
"""The functions of the host: the first returns something to await, the second returns the answer. A script may use them
as well: the hub checks every call in any case."""

GATHER: Final = "gather"
"""The only function that runs calls side by side. A script that does not name it waits within each call, which costs
one message to its worker and one answer less."""

SLEEP: Final = "system.sleep"
ASYNC_SLEEP: Final = "system.async_sleep"
"""What `time.sleep` and `asyncio.sleep` call."""

SLEPT: Final = ""
"""The answer to a sleep; it is no JSON."""

GRACE_SECONDS = 1.0
"""How long a worker that has reached its time limit may take to stop by itself; then it is killed."""

SLEEP_SECONDS_MAX = 10.0
SLEEPS_SECONDS_MAX = 60.0
"""How long a script sleeps at once, however long it wants to, and in all."""

NICENESS = 10
"""How much less a script counts than other programs: on a busy core it still gets a tenth of what they get."""

PRINT_SECONDS = 0.05
"""How long a worker collects output before it sends it: each time the hub has to wake."""

DROPPED_SECONDS = 0.05
"""How long a script waits for each piece of output that is dropped. Without it a worker prints 350 MB a second, and the
hub has to read them."""

TIME_LIMIT: Final = "feed time limit exceeded"
"""What the library says of a script that reached its time limit."""

NO_KEYWORDS: Final = "gather() does not yet support keyword arguments"
"""What the library says of `asyncio.gather(..., return_exceptions=True)`."""

VALUES_MAX = 50_000
"""How many values the result of a script may have; a value that occurs often counts each time."""

DEPTH_MAX = 60

ERROR_LENGTH_MAX = 4_000
SHOWN_LENGTH_MAX = 1_000

UNAWAITED: Final = "_unawaited"
"""How many calls of each tool a script has created and not awaited."""

PRELUDE: Final = f"import json as _json\n{UNAWAITED} = {{}}\n"
_WRAPPER: Final = """
def {name}(*_positional, **_arguments):
    if _positional:
        raise TypeError('{name}() takes keyword arguments only')
    async def {name}():
        {unawaited}['{name}'] -= 1
        _sent = _json.dumps(_arguments)
        return _json.loads({call}({exposed}, _sent))
    {unawaited}['{name}'] = {unawaited}.get('{name}', 0) + 1
    return {name}()
"""

_OWN_FRAME: Final = re.compile(r'  File "<python-input-0>", line \d+, in (\w+)\n')
LINES_MAX = 5
"""Lines of a script that a traceback names in place of one that is not known."""

COROUTINE: Final = re.compile(r"<coroutine object (\w+)>")
"""A coroutine in a result: the sandbox returns it as this text."""


# -- what crosses the border -------------------------------------------------------------------------------------------


class ScriptTool(msgspec.Struct, frozen=True, array_like=True):
    """A tool that a script names: its Python name, its exposed name, and what its signature is written from."""

    name: str
    exposed: str
    definition: Mapping[str, bytes]
    """Members of the definition, as JSON."""


class ScriptSource(msgspec.Struct, frozen=True, array_like=True):
    """What to run: a script with its tools and limits, and the state to continue from."""

    code: str
    tools: tuple[ScriptTool, ...]
    settings: CodeSettings
    state: bytes | None = None
    printed: str = ""
    count: int = 0
    """How many calls it has made."""
    is_durable: bool = False

    def stubs(self) -> str:
        """The signatures of the tools."""
        return signatures((each.name, each.exposed, _raw(each.definition)) for each in self.tools)


def _raw(members: Mapping[str, bytes]) -> dict[str, Raw]:
    return {name: Raw(each) for name, each in members.items()}


class StartScript(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Run a script under this number."""

    script: int
    source: ScriptSource


class AnswerCall(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """Answer a call that a script waits for: with JSON, or with why it failed."""

    script: int
    call: int
    json: str = ""
    failure: str | None = None


class CancelScript(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """End a script at the next point where it waits."""

    script: int


class PrepareSpare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """Have a warm worker for the next script, which may compute for so long."""

    cpu_seconds: float


SandboxRequest: TypeAlias = StartScript | AnswerCall | CancelScript | PrepareSpare


class ScriptCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that a script makes: its number in the script, the exposed name of the tool, and the arguments as JSON.

    Without a tool, it is a sleep: its argument is the number of seconds.
    """

    id: int
    tool: str
    arguments: str


class ScriptStop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """A point at which a script waits: its new calls, all calls it waits for, and its state if that is wanted."""

    script: int
    calls: tuple[ScriptCall, ...]
    pending: tuple[int, ...]
    printed: str
    state: bytes | None


EndKind: TypeAlias = Literal["returned", "refused", "failed", "limit", "crashed", "cancelled"]
"""How a script ended. `refused`: it did not start, because its types or its syntax are wrong. `failed`: an exception.
`limit`: it reached a limit. `crashed`: its worker died. `cancelled`: the hub has ended it, or leaves it to the next."""


class ScriptEnd(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """How a script ended: its result as JSON or what was wrong, and what it printed."""

    script: int
    kind: EndKind
    printed: str = ""
    result: str = ""
    message: str = ""


class SpareReady(msgspec.Struct, frozen=True, array_like=True, tag="spare"):
    """A warm worker waits for the next script."""


SandboxResponse: TypeAlias = ScriptStop | ScriptEnd | SpareReady

LENGTH_BYTES: Final = 4
_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(SandboxRequest).decode


def frame(message: SandboxRequest | SandboxResponse) -> bytes:
    """A message as it crosses the border: its length, and MessagePack."""
    body = _encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


# -- workers -----------------------------------------------------------------------------------------------------------


WARM_UP_STUBS = f"""{HEADER}
class Warm(TypedDict):
    one: NotRequired[Literal["a"]]
async def warm(*, text: str, more: Warm = ...) -> Warm: ...
"""
WARM_UP = """
import asyncio, json
async def one() -> dict[str, int]:
    return json.loads('{"a": 1}')
found = {str(each): sum(each.values()) for each in await asyncio.gather(one(), one())}
try:
    text = ', '.join(f'{key}' for key in sorted(found))
except (RuntimeError, KeyError) as error:
    text = str(error)
"""
"""What a spare worker checks the types of: the checker then has read what most scripts use, and needs 13 ms instead of
20 for the next one."""


def worker_cores(cores: Collection[int]) -> list[int]:
    """The cores that workers may use, of those that the hub may use: all but one, which is the hub's."""
    return sorted(cores)[1:] or sorted(cores)


def yield_to_others() -> None:
    """Let the hub, its servers and all others compute before this process and what it starts from now on.

    On Linux workers also leave one core alone, where others wake without delay. The policy for idle programs would be
    worse: Linux takes a core that runs nothing else for an idle one and wakes others there, who then wait for the next
    tick, up to 4 ms.
    """
    if sys.platform != "linux":
        os.nice(NICENESS)
        return
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(OSError):  # it has ended, or a container forbids it
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
            os.sched_setaffinity(thread, worker_cores(os.sched_getaffinity(0)))


class Workers:
    """The worker processes: one for each script, and a spare one that the next script starts in.

    A worker is ended with its script: one that a script has broken must not serve another caller.
    """

    def __init__(self, program: str, on_spare: Callable[[], None]) -> None:
        """`program` is the worker's; `on_spare` is called when a spare worker is ready."""
        self._program = program
        self._on_spare = on_spare
        self._lock = threading.Lock()
        self._spare: tuple[float, Monty] | None = None
        """With the limit of time that it was started for."""
        self._cpu_seconds = 0.0
        self._wanted = threading.Event()

    def take(self, cpu_seconds: float) -> Monty:
        """A worker for a script that may compute for so long, the spare one if there is one; end it with `end`."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None and spare[0] == cpu_seconds:
            return spare[1]
        if spare is not None:  # the settings have changed
            self.end(spare[1])
        return self._new(cpu_seconds)

    def _new(self, cpu_seconds: float) -> Monty:
        from pydantic_monty import Monty  # noqa: PLC0415 - an optional library

        return Monty(
            binary_path=self._program,
            min_processes=1,
            max_processes=1,
            # Between two stops a script cannot take longer than it may compute in all.
            request_timeout=cpu_seconds + 2 * GRACE_SECONDS,
            feed_duration_limit_grace=GRACE_SECONDS,
            turn_duration_limit_grace=GRACE_SECONDS,
        ).__enter__()

    def end(self, worker: Monty) -> None:
        """End a worker."""
        worker.__exit__(None, None, None)

    def prepare(self, cpu_seconds: float) -> None:
        """Have the next spare worker started, unless there is one. Costs next to nothing: a thread does it."""
        self._cpu_seconds = cpu_seconds
        if self._spare is None:
            self._wanted.set()

    def keep_spare(self) -> None:
        """Start a spare worker whenever one is wanted; for a thread."""
        while True:
            self._wanted.wait()
            if self._spare is None:
                self._start_spare(self._cpu_seconds)
            self._wanted.clear()

    def _start_spare(self, cpu_seconds: float) -> None:
        worker: Monty | None = None
        try:
            worker = self._new(cpu_seconds)
            with worker.checkout(type_check=True, type_check_stubs=WARM_UP_STUBS) as session:
                session.feed_start(WARM_UP)
        except Exception:  # noqa: BLE001 - the next script starts its own worker, and says what is wrong
            traceback.print_exc()
            if worker is not None:
                self.end(worker)
            return
        with self._lock:
            self._spare = cpu_seconds, worker
        self._on_spare()


class ScriptThread:
    """One running script. `answer` and `cancel` are called from the main thread, everything else from its own."""

    def __init__(
        self, workers: Workers, number: int, source: ScriptSource, respond: Callable[[SandboxResponse], None]
    ) -> None:
        self._workers = workers
        self._number = number
        self._settings = source.settings
        self._source = source
        self._respond = respond
        self._answers: queue.SimpleQueue[AnswerCall | None] = queue.SimpleQueue()
        self._printed: list[str] = [source.printed] if source.printed else []
        self._printed_bytes = len(source.printed.encode("utf-8", "replace"))
        self._calls: list[ScriptCall] = []
        self._calls_bytes = 0
        self._count = source.count
        self._slept = 0.0
        self._cancelled = threading.Event()

    def answer(self, answer: AnswerCall) -> None:
        """Answer a call that the script waits for."""
        self._answers.put(answer)

    def cancel(self) -> None:
        """Stop at the next point where the script waits."""
        self._cancelled.set()
        self._answers.put(None)

    def run(self) -> None:
        """Run the script to its end, and then end its worker."""
        worker: Monty | None = None
        seconds = self._settings.cpu_seconds
        try:
            worker = self._workers.take(seconds)
            end = self._run(worker)
        except Exception:  # noqa: BLE001 - a defect here must end its own script, and be seen
            traceback.print_exc()
            end = self._end("crashed", message="The sandbox failed; the hub's log says how")
        self._respond(end)
        self._workers.prepare(seconds)
        if worker is not None:
            self._workers.end(worker)

    def _run(self, worker: Monty) -> ScriptEnd:
        import pydantic_monty as monty  # noqa: PLC0415 - an optional library

        if self._source.state is None and (errors := unsupported(self._source.code)):
            return self._end("refused", message="\n".join(errors))
        try:
            # It is not returned to its pool: that ends with it.
            session = worker.checkout(**self._checkout()).__enter__()
            return self._drive(session)
        except monty.MontyTypingError as error:
            return self._end("refused", message=_cut("\n".join(self._errors(error))))
        except monty.MontySyntaxError as error:
            return self._end("refused", message=_cut(_without_prelude(error.display(), self._source.code)))
        except monty.MontyCrashedError as error:
            return self._end("crashed", message=_crash_words(error, timed_out=error.timed_out))
        except monty.MontyRuntimeError as error:
            return self._failure(error)
        except monty.MontyError as error:
            return self._end("crashed", message=_cut(str(error)))

    def _checkout(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "limits": {
                "max_feed_duration_secs": settings.cpu_seconds,
                "max_memory": settings.memory_bytes,
                "max_recursion_depth": settings.recursion,
                # Each call stops a script at most twice; sleeping and looking up names stop it, too.
                "max_suspensions": 4 * settings.calls + 100,
            },
            "type_check": self._source.state is None,
            "type_check_stubs": self._source.stubs() if self._source.state is None else "",
            "type_check_format": "concise",
            "print_flush_interval": PRINT_SECONDS,
            "script_name": "script.py",
        }

    def _drive(self, session: MontySession) -> ScriptEnd:
        import pydantic_monty as monty  # noqa: PLC0415 - as in `_run`

        step: SyncSnapshot
        is_known = self._source.state is not None
        """The hub knows the call at which the script continues."""
        if self._source.state is None:
            tools = {each.name: each.exposed for each in self._source.tools}
            session.feed_run(prelude(tools, self._source.code), skip_type_check=True)
            step = self._start(session)
        else:
            step = session.load_snapshot(self._source.state, print_callback=self._print)
        while True:
            match step:
                case monty.MontyComplete():
                    return self._returned(step.output, session)
                case monty.FunctionSnapshot():
                    if step.is_os_function:
                        step = self._os_call(step)
                    elif step.function_name not in (CALL, CALL_AND_WAIT):
                        step = step.resume({"exc_type": "NameError", "message": f"name {step.function_name!r}"})
                    elif not is_known and (refused := self._add_call(step.call_id, step.args)) is not None:
                        step = step.resume({"exc_type": "RuntimeError", "message": refused})
                    elif step.function_name == CALL:
                        step = step.resume({"future": ...})
                    else:
                        answers = self._wait((step.call_id,), step.dump)
                        if isinstance(answers, ScriptEnd):
                            return answers
                        step = step.resume(answers[step.call_id])
                case monty.NameLookupSnapshot():
                    step = step.resume()
                case monty.FutureSnapshot():
                    answers = self._wait(tuple(step.pending_call_ids), step.dump)
                    if isinstance(answers, ScriptEnd):
                        return answers
                    step = step.resume(answers)
            is_known = False

    def _start(self, session: MontySession) -> SyncSnapshot:
        """Check the script's types and start it. Only errors refuse it, such as a wrong argument; warnings do not."""
        import pydantic_monty as monty  # noqa: PLC0415 - as in `_run`

        try:
            return session.feed_start(self._source.code, print_callback=self._print)
        except monty.MontyTypingError as found:
            if self._errors(found):
                raise
        return session.feed_start(self._source.code, print_callback=self._print, skip_type_check=True)

    def _errors(self, found: MontyTypingError) -> list[str]:
        return real_errors(found.display(), self._source.stubs(), self._source.code)

    def _os_call(self, step: FunctionSnapshot) -> SyncSnapshot:
        """Answer a call of the system: only sleeping is allowed; no files, no variables, nothing else."""
        if step.function_name not in (SLEEP, ASYNC_SLEEP):
            return step.resume_not_handled()
        seconds = step.args[0] if step.args and isinstance(step.args[0], int | float) else 0.0
        seconds = min(max(seconds, 0.0), SLEEP_SECONDS_MAX)  # as the sandbox does itself
        self._slept += seconds
        if self._slept > SLEEPS_SECONDS_MAX:
            said = f"a script may sleep {SLEEPS_SECONDS_MAX:g} s in all"
            return step.resume({"exc_type": "ValueError", "message": said})
        if step.function_name == ASYNC_SLEEP:
            self._calls.append(ScriptCall(step.call_id, "", repr(float(seconds))))
            return step.resume({"future": ...})
        self._cancelled.wait(seconds)
        return step.resume({"return_value": None})

    def _add_call(self, id: int, given: tuple[Any, ...]) -> str | None:
        """Note a call; a string says why it is refused."""
        if len(given) != 2 or not all(isinstance(each, str) for each in given):
            return f"{CALL} takes the name of a tool and its arguments as JSON (executed: no)"
        self._count += 1
        if self._count > self._settings.calls:
            return f"limit: a script may make {self._settings.calls} calls (executed: no)"
        self._calls_bytes += len(given[1])
        if self._calls_bytes > self._settings.memory_bytes:
            return "limit: the arguments of calls that start at once are longer than [code] memory_bytes (executed: no)"
        self._calls.append(ScriptCall(id, given[0], given[1]))
        return None

    def _wait(self, pending: tuple[int, ...], dump: Callable[[], bytes]) -> dict[int, Any] | ScriptEnd:
        """Tell the hub what the script waits for, and wait for one answer or more."""
        state = None
        if self._source.is_durable:
            state = dump()
            if len(state) > self._settings.snapshot_bytes:
                most = self._settings.snapshot_bytes
                said = f"The script holds {len(state)} bytes while it calls a tool; [code] snapshot_bytes is {most}"
                return self._end("limit", message=said)
        calls, self._calls, self._calls_bytes = tuple(self._calls), [], 0
        self._respond(ScriptStop(self._number, calls, pending, "".join(self._printed), state))
        self._workers.prepare(self._settings.cpu_seconds)
        answers: dict[int, Any] = {}
        while not answers or not self._answers.empty():
            answer = self._answers.get()
            if answer is None:
                return self._end("cancelled")
            if answer.call in pending:
                answers[answer.call] = _resumed(answer)
        return answers

    def _print(self, stream: str, text: str) -> None:
        """Keep what the script prints, up to the limit; the rest is dropped and said to be."""
        room = self._settings.output_bytes - self._printed_bytes
        if room < 0:  # it was cut
            self._cancelled.wait(DROPPED_SECONDS)
            return
        written = text.encode("utf-8", "replace")
        self._printed_bytes += len(written)
        if len(written) > room:
            text = f"{written[:room].decode('utf-8', 'ignore')}\n… the rest was cut (output_bytes)\n"
        self._printed.append(text)

    def _returned(self, value: object, session: MontySession) -> ScriptEnd:
        try:
            text = bounded_json(value, self._settings.output_bytes)
        except ValueError as error:
            return self._end("limit", message=f"The result {error}; return less, or print a part of it")
        if forgotten := self._unawaited(text, session):
            names = ", ".join(f"`{name}`" for name in forgotten)
            said = f"You forgot `await` before a call of {names}: without it the function does not run"
            return self._end("failed", message=_cut(said))
        return self._end("returned", result=text)

    def _unawaited(self, result: str, session: MontySession) -> list[str]:
        """The functions that were called without `await`: tools, and the script's own if they are in its result."""
        import pydantic_monty as monty  # noqa: PLC0415 - as in `_run`

        code = self._source.code
        own = [name for name in COROUTINE.findall(result) if re.search(rf"async\s+def\s+{name}\b", code)]
        counts: object = {}
        # An error in one of gathered calls keeps others from starting, which were awaited.
        if not ("gather" in code and "except" in code):
            with suppress(monty.MontyError):  # the state is that of an earlier version
                counts = session.feed_run(UNAWAITED, skip_type_check=True)
        tools = [name for name, count in counts.items() if count] if isinstance(counts, dict) else []
        return list(dict.fromkeys([*tools, *own]))

    def _failure(self, error: MontyError) -> ScriptEnd:
        words = _without_prelude(error.display(), self._source.code) if hasattr(error, "display") else str(error)
        inner = error.exception()
        kind: EndKind = "limit" if isinstance(inner, MemoryError | TimeoutError | RecursionError) else "failed"
        if isinstance(inner, TimeoutError) and TIME_LIMIT in str(inner):
            seconds = self._settings.cpu_seconds
            words = words.replace(f"TimeoutError: {inner}", f"The script computed longer than {seconds:g} s")
            words += " ([code] cpu_seconds). Time in which it waits for calls does not count."
        if NO_KEYWORDS in words:
            words += f"\n{GATHER_ADVICE}"
        return self._end(kind, message=_cut(words))

    def _end(self, kind: EndKind, *, result: str = "", message: str = "") -> ScriptEnd:
        return ScriptEnd(self._number, kind, "".join(self._printed), result, message)


def prelude(tools: Mapping[str, str], code: str) -> str:
    """What a script finds before it starts: a function for each tool that it names."""
    call = f"await {CALL}" if GATHER in words_in(code) else CALL_AND_WAIT
    written = (
        _WRAPPER.format(name=name, exposed=ascii(exposed), call=call, unawaited=UNAWAITED)
        for name, exposed in tools.items()
    )
    return PRELUDE + "".join(written)


def _resumed(answer: AnswerCall) -> dict[str, str | None]:
    if answer.failure is not None:
        return {"exc_type": "RuntimeError", "message": answer.failure}
    return {"return_value": None if answer.json == SLEPT else answer.json}


def _without_prelude(display: str, code: str) -> str:
    """A traceback without the hub's own functions: a frame has up to three lines.

    A gathered call has only these: then the lines of the script that name the tool take their place.
    """
    kept: list[str] = []
    is_ours = False
    if '"<python-input-1>"' not in display and (tool := _OWN_FRAME.search(display)) is not None:
        named = re.compile(rf"\b{tool[1]}\b").search
        lines = [str(number) for number, line in enumerate(code.splitlines(), 1) if named(line)]
        where = f'  File "script.py", line {" or ".join(lines[:LINES_MAX])}, in a gathered call of {tool[1]}\n'
        display = f"{display[: tool.start()]}{where}{display[tool.start() :]}"
    for line in display.splitlines():
        if line.startswith("  File "):
            is_ours = '"<python-input-0>"' in line
        elif not line.startswith("    "):
            is_ours = False
        if not is_ours:
            kept.append(line.replace('"<python-input-1>"', '"script.py"', 1))
    return "\n".join(kept)


def _crash_words(error: Exception, *, timed_out: bool) -> str:
    if timed_out:
        return "The script did not stop at its time limit, and its worker was ended ([code] cpu_seconds)"
    return f"The worker of the script ended: {_cut(str(error))}"


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= ERROR_LENGTH_MAX else f"{text[:ERROR_LENGTH_MAX]}\n…"


# -- results -----------------------------------------------------------------------------------------------------------


def bounded_json(value: object, bytes_max: int) -> str:
    """A value of a script as JSON. Values that JSON does not have are written as their text.

    Raises:
        ValueError: it is too long, too deep or contains itself; the message continues "The result …".
    """
    budget = [VALUES_MAX, bytes_max]
    plain = _plain(value, budget, 0)
    text = msgspec.json.encode(plain)
    if len(text) > bytes_max:
        raise ValueError(f"has {len(text)} bytes, and [code] output_bytes is {bytes_max}")
    return text.decode()


def _plain(value: object, budget: list[int], depth: int) -> object:
    """The value, made of JSON's types only. The budget bounds a value that contains another one many times."""
    budget[0] -= 1
    if budget[0] < 0:
        raise ValueError(f"has over {VALUES_MAX} values")
    if depth > DEPTH_MAX:
        raise ValueError(f"is nested over {DEPTH_MAX} levels, or contains itself")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else _text(_shown(value), budget)
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)
    if isinstance(value, str):
        return _text(value, budget)
    if isinstance(value, Mapping):
        return {_key(key, budget): _plain(each, budget, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return _plain_items(value, budget, depth)
    return _text(_shown(value), budget)


def _plain_items(values: Iterable[object], budget: list[int], depth: int) -> list[object]:
    return [_plain(each, budget, depth + 1) for each in values]


def _key(key: object, budget: list[int]) -> str:
    return _text(key if isinstance(key, str) else _shown(key), budget)


def _text(text: str, budget: list[int]) -> str:
    budget[1] -= len(text)
    if budget[1] < 0:
        raise ValueError("is longer than [code] output_bytes")
    return text.encode("utf-8", "replace").decode()


def _shown(value: object) -> str:
    """A value of a kind that JSON does not have, in a bounded time: a date, bytes, an object of the script."""
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 256 else f"<a number of {value.bit_length()} bits>"
    if isinstance(value, bytes):
        return repr(value[:SHOWN_LENGTH_MAX])
    return f"<{type(value).__name__}>" if isinstance(value, tuple | frozenset) else str(value)[:SHOWN_LENGTH_MAX]


# -- the process -------------------------------------------------------------------------------------------------------


class SandboxProcess:
    """Reads requests, and starts a thread for each script."""

    def __init__(self, program: str, read: BinaryIO, written: int) -> None:
        """`program` is the worker's; `written` is the descriptor for responses."""
        self._read = read
        self._written = written
        self._writing = threading.Lock()
        self._workers = Workers(program, lambda: self._respond(SpareReady()))
        self._scripts: dict[int, ScriptThread] = {}

    def run(self) -> None:
        """Serve until the end of the input."""
        threading.Thread(target=self._workers.keep_spare, name="spare worker", daemon=True).start()
        while len(head := self._read.read(LENGTH_BYTES)) == LENGTH_BYTES:
            request: SandboxRequest = _decode_request(self._read.read(int.from_bytes(head, "big")))
            match request:
                case StartScript(number, source):
                    thread = self._scripts[number] = ScriptThread(self._workers, number, source, self._respond)
                    threading.Thread(target=thread.run, name=f"script {number}", daemon=True).start()
                case AnswerCall(number) as answer:
                    if (running := self._scripts.get(number)) is not None:
                        running.answer(answer)
                case CancelScript(number):
                    if (running := self._scripts.get(number)) is not None:
                        running.cancel()
                case PrepareSpare(cpu_seconds):
                    self._workers.prepare(cpu_seconds)

    def _respond(self, response: SandboxResponse) -> None:
        if isinstance(response, ScriptEnd):
            self._scripts.pop(response.script, None)
        left = memoryview(frame(response))
        with self._writing, suppress(OSError):  # the hub has ended, and so will this process
            while left:
                left = left[os.write(self._written, left) :]


def main() -> None:
    """Be the process."""
    # What libraries print must not get between the responses.
    written = os.dup(1)
    os.dup2(2, 1)
    # Before the priority is lowered: on a busy machine, loading it would take seconds.
    from pydantic_monty._binary import find_monty_binary  # noqa: PLC0415 - an optional library

    program = find_monty_binary()
    yield_to_others()
    try:
        SandboxProcess(program, os.fdopen(0, "rb"), written).run()
    finally:
        if sys.platform != "win32" and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with its workers
        os._exit(0)


if __name__ == "__main__":
    main()
