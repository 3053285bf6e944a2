"""Runs scripts in Monty's worker processes, one thread of the hub for each running script.

A script reaches nothing but `_call`, which stops it until the hub resumes it. Only text crosses the border: the worker
itself turns arguments into JSON and results into values, within its own limits of time and memory, so that neither a
huge value nor one that contains itself many times costs the hub anything. The thread waits with the interpreter's lock
released and talks to the event loop through `ScriptHost`; it never touches anything of the loop. `code.scripts` starts
it.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec
import structlog

from isthmus.code.settings import CodeSettings
from isthmus.code.signatures import HEADER, real_errors

if TYPE_CHECKING:
    from pydantic_monty import FunctionSnapshot, Monty, MontyError, MontySession, SyncSnapshot

log = structlog.get_logger(__name__)

EXTRA = "Code mode needs a library that is not installed; get it with: pip install 'isthmus[code]'"

CALL: Final = "_call"
"""The only function of the host. A script may use it as well: the hub checks every call in any case."""

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

NICENESS = 19
"""The priority of a worker on systems that have no policy for idle programs."""

SPARE_TRIES = 4
"""How often a spare worker is started until its priority is lowered in time; on a busy machine every fourth is late."""

PRINT_SECONDS = 0.05
"""How long a worker collects output before it sends it: each time the hub has to wake."""

DROPPED_SECONDS = 0.05
"""How long a script waits for each piece of output that is dropped. Without it a worker prints 350 MB a second, and the
hub has to read them."""

TIME_LIMIT: Final = "feed time limit exceeded"
"""What the library says of a script that reached its time limit."""

VALUES_MAX = 50_000
"""How many values the result of a script may have; a value that occurs often counts each time."""

DEPTH_MAX = 60

ERROR_LENGTH_MAX = 4_000
SHOWN_LENGTH_MAX = 1_000

PRELUDE: Final = "import json as _json\n"
_WRAPPER: Final = """
async def {name}(*_positional, **_arguments):
    if _positional:
        raise TypeError('{name}() takes keyword arguments only')
    _sent = _json.dumps(_arguments)
    return _json.loads(await _call({exposed}, _sent))
"""


def is_installed() -> bool:
    """Whether the library of the sandbox is installed."""
    return find_spec("pydantic_monty") is not None


def library_version() -> str:
    """The version of the library: a snapshot can be loaded by the version that wrote it only."""
    return str(importlib.import_module("pydantic_monty").__version__)


class ToolFailure(msgspec.Struct, frozen=True):
    """Why a call failed, as the exception in the script says it."""

    message: str


CallAnswer: TypeAlias = str | ToolFailure
"""What a call returns to a script: JSON, or why it failed."""


class ScriptCall(msgspec.Struct, frozen=True):
    """A call that a script makes: its number in the script, the exposed name of the tool, and the arguments as JSON.

    Without a tool, it is a sleep: its argument is the number of seconds.
    """

    id: int
    tool: str
    arguments: str


class ScriptStop(msgspec.Struct, frozen=True):
    """A point at which a script waits: its new calls, all calls it waits for, and its state if that is wanted."""

    calls: tuple[ScriptCall, ...]
    pending: tuple[int, ...]
    printed: str
    state: bytes | None


EndKind: TypeAlias = Literal["returned", "refused", "failed", "limit", "crashed", "left"]
"""How a script ended. `refused`: it did not start, because its types or its syntax are wrong. `failed`: an exception.
`limit`: it reached a limit. `crashed`: its worker died. `left`: the hub stopped it, to continue it later."""


class ScriptEnd(msgspec.Struct, frozen=True):
    """How a script ended: its result as JSON or what was wrong, and what it printed."""

    kind: EndKind
    printed: str = ""
    result: str = ""
    message: str = ""


class ScriptHost(Protocol):
    """What the thread of a script needs from the event loop; its methods are called from that thread."""

    def stopped(self, at: ScriptStop) -> None:
        """The script waits. Answers come through `ScriptThread.answer`."""

    def ended(self, end: ScriptEnd) -> None:
        """The script has ended; called exactly once, at last."""


class ScriptSource(msgspec.Struct, frozen=True):
    """What to run: a script with its tools by their Python names, and the state to continue from."""

    code: str
    tools: Mapping[str, str]
    stubs: Callable[[], str]
    """Writes the signatures; called on the script's thread, because many take long."""
    state: bytes | None = None
    printed: str = ""
    count: int = 0
    """How many calls it has made."""
    is_durable: bool = False


_STARTING = threading.Lock()
"""Held while a worker starts: the library looks for its program with `sysconfig`, whose first use is not thread-safe in
Python 3.11, so that one of several first scripts failed."""

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


def lower_priority(pid: int | None) -> None:
    """Let the hub, its servers and all others compute before this worker; without one, do nothing.

    On Linux a worker gets the policy for idle programs: any other program that wakes takes its core at once. With a low
    priority alone, the hub would wait until a worker's time slice of 3 ms is over. Workers also leave one core alone.
    """
    if pid is None:
        return
    with suppress(OSError):  # it has ended, and its next use reports that
        if sys.platform != "linux":
            os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
        elif os.sched_getscheduler(pid) != os.SCHED_IDLE:
            _make_each_thread_idle(pid)


def _make_each_thread_idle(pid: int) -> None:
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        _make_idle(thread)


def _make_idle_early(pid: int) -> bool:
    """Do that to a worker that has just been started; False if it has several threads already.

    Threads inherit it, so a worker with one thread needs no look at /proc/PID/task. That look makes entries in /proc,
    which a thread of the worker and one of the hub delete at once when the worker ends, and the hub's spins in the
    kernel while the other gets no core: up to two seconds were seen.
    """
    try:
        _make_idle(pid)
        # The name of a program is in brackets, and may contain anything; see proc_pid_stat(5).
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[17] == b"1"
    except OSError:  # it has ended, and its next use reports that
        return True


def _make_idle(thread: int) -> None:
    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(thread, worker_cores(os.sched_getaffinity(0)))


@cache
def _worker_program() -> str | None:
    """The worker's program; the library would look for it each time, and hold the interpreter's lock for 0.2 ms."""
    try:
        from pydantic_monty._binary import find_monty_binary  # noqa: PLC0415 - an optional library
    except ImportError:  # another version, which looks for it itself
        return None
    return find_monty_binary()


def _children() -> set[int]:
    """The processes that this thread has started; none where the system does not tell."""
    if sys.platform != "linux":
        return set()
    try:
        return set(map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()))
    except OSError:
        return set()


class Sandbox:
    """The worker processes of one hub: one for each script, and a spare one that the next script starts in.

    A worker is ended with its script: one that a script has broken must not serve another caller.
    """

    def __init__(self, settings: CodeSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._spare: Monty | None = None
        self._wanted = threading.Event()
        self._keeper: threading.Thread | None = None
        self._is_closed = False

    def take(self) -> Monty:
        """A worker, the spare one if there is one; end it with `end`. Called from a script's thread."""
        with self._lock:
            spare, self._spare = self._spare, None
        return self._new() if spare is None else spare

    @property
    def has_spare(self) -> bool:
        """Whether the next script finds a worker that is warm."""
        return self._spare is not None

    def _new(self, tries: int = 1) -> Monty:
        """Start a worker, and again if it has several threads before its priority is lowered."""
        from pydantic_monty import Monty  # noqa: PLC0415 - an optional library

        while True:
            with _STARTING:
                worker = Monty(
                    binary_path=_worker_program(),
                    min_processes=1,
                    max_processes=1,
                    # Between two stops a script cannot take longer than it may compute in all.
                    request_timeout=self.settings.cpu_seconds + 2 * GRACE_SECONDS,
                    feed_duration_limit_grace=GRACE_SECONDS,
                    turn_duration_limit_grace=GRACE_SECONDS,
                )
                before = _children()
                worker.__enter__()
                started = _children() - before
            tries -= 1
            if all(map(_make_idle_early, started)):  # else `lower_priority` does it, once the worker is known
                return worker
            if not tries:
                with suppress(OSError):
                    for pid in started:
                        _make_each_thread_idle(pid)
                return worker
            self.end(worker)

    def end(self, worker: Monty) -> None:
        """End a worker."""
        worker.__exit__(None, None, None)

    def prepare(self) -> None:
        """Have the next spare worker started, unless there is one. Costs next to nothing: a thread does it."""
        if self._spare is not None or self._wanted.is_set():
            return
        with self._lock:
            if self._is_closed:
                return
            self._wanted.set()
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep_spare, name="isthmus-script-spare", daemon=True)
                self._keeper.start()

    def _keep_spare(self) -> None:
        """Start a spare worker whenever one is wanted."""
        while True:
            self._wanted.wait()
            if self._is_closed:
                return
            if self._spare is None:
                self._start_spare()
            self._wanted.clear()

    def _start_spare(self) -> None:
        worker: Monty | None = None
        try:
            worker = self._new(SPARE_TRIES)
            with worker.checkout(type_check=True, type_check_stubs=WARM_UP_STUBS) as session:
                lower_priority(session.worker_pid)
                session.feed_start(WARM_UP)
        except Exception:  # the next script starts its own worker, and says what is wrong
            log.exception("a spare worker for scripts could not be started")
            if worker is not None:
                self.end(worker)
            worker = None
        with self._lock:
            if not self._is_closed:
                self._spare, worker = worker, None
        if worker is not None:
            self.end(worker)

    def close(self) -> None:
        """End the spare worker; the others end with their scripts."""
        with self._lock:
            self._is_closed = True
            self._wanted.set()
            spare, self._spare = self._spare, None
        if spare is not None:
            self.end(spare)

    def start(self, source: ScriptSource, host: ScriptHost) -> ScriptThread:
        """Run a script; `host` is called from its thread."""
        thread = ScriptThread(self, source, host)
        # A daemon: a script must not keep the program from ending.
        threading.Thread(target=thread.run, name="isthmus-script", daemon=True).start()
        return thread


class ScriptThread:
    """One running script. `answer` and `leave` are called from the event loop, everything else from its thread."""

    def __init__(self, sandbox: Sandbox, source: ScriptSource, host: ScriptHost) -> None:
        self._sandbox = sandbox
        self._settings = sandbox.settings
        self._source = source
        self._host = host
        self._answers: queue.SimpleQueue[tuple[int, CallAnswer] | None] = queue.SimpleQueue()
        self._printed: list[str] = [source.printed] if source.printed else []
        self._printed_bytes = len(source.printed)
        self._calls: list[ScriptCall] = []
        self._count = source.count
        self._slept = 0.0
        self._left = threading.Event()

    def answer(self, call: int, answer: CallAnswer) -> None:
        """Answer a call that the script waits for."""
        self._answers.put((call, answer))

    def leave(self) -> None:
        """Stop at the next point where the script waits."""
        self._left.set()
        self._answers.put(None)

    def run(self) -> None:
        """Run the script to its end, and then end its worker."""
        worker: Monty | None = None
        try:
            worker = self._sandbox.take()
            end = self._run(worker)
        except Exception:  # a defect here must end its own script, and be seen
            log.exception("a script's thread failed")
            end = ScriptEnd("crashed", message="The sandbox failed; the hub's log says how")
        self._host.ended(end)
        self._sandbox.prepare()
        if worker is not None:
            self._sandbox.end(worker)

    def _run(self, worker: Monty) -> ScriptEnd:
        import pydantic_monty as monty  # noqa: PLC0415 - an optional library

        try:
            # It is not returned to its pool: that ends with it.
            session = worker.checkout(**self._checkout()).__enter__()
            lower_priority(session.worker_pid)
            return self._drive(session)
        except monty.MontyTypingError as error:
            return self._end("refused", message=_cut("\n".join(real_errors(error.display(), self._source.stubs()))))
        except monty.MontySyntaxError as error:
            return self._end("refused", message=_cut(_without_prelude(error.display())))
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
        if self._source.state is None:
            session.feed_run(prelude(self._source.tools), skip_type_check=True)
            step = self._start(session)
        else:
            step = session.load_snapshot(self._source.state, print_callback=self._print)
        while True:
            match step:
                case monty.MontyComplete():
                    return self._returned(step.output)
                case monty.FunctionSnapshot():
                    if step.is_os_function:
                        step = self._os_call(step)
                    elif step.function_name == CALL and (refused := self._add_call(step.call_id, step.args)) is None:
                        step = step.resume({"future": ...})
                    elif step.function_name == CALL:
                        step = step.resume({"exc_type": "RuntimeError", "message": refused or ""})
                    else:
                        step = step.resume({"exc_type": "NameError", "message": f"name {step.function_name!r}"})
                case monty.NameLookupSnapshot():
                    step = step.resume()
                case monty.FutureSnapshot():
                    answers = self._wait(tuple(step.pending_call_ids), step.dump)
                    if isinstance(answers, ScriptEnd):
                        return answers
                    step = step.resume(answers)

    def _start(self, session: MontySession) -> SyncSnapshot:
        """Check the script's types and start it. Only errors refuse it, such as a wrong argument; warnings do not."""
        import pydantic_monty as monty  # noqa: PLC0415 - as in `_run`

        try:
            return session.feed_start(self._source.code, print_callback=self._print)
        except monty.MontyTypingError as found:
            if real_errors(found.display(), self._source.stubs()):
                raise
        return session.feed_start(self._source.code, print_callback=self._print, skip_type_check=True)

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
        self._left.wait(seconds)
        return step.resume({"return_value": None})

    def _add_call(self, id: int, given: tuple[Any, ...]) -> str | None:
        """Note a call; a string says why it is refused."""
        if len(given) != 2 or not all(isinstance(each, str) for each in given):
            return f"{CALL} takes the name of a tool and its arguments as JSON (executed: no)"
        self._count += 1
        if self._count > self._settings.calls:
            return f"limit: a script may make {self._settings.calls} calls (executed: no)"
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
        calls, self._calls = tuple(self._calls), []
        self._host.stopped(ScriptStop(calls, pending, "".join(self._printed), state))
        self._sandbox.prepare()
        answers: dict[int, Any] = {}
        while not answers or not self._answers.empty():
            answer = self._answers.get()
            if answer is None:
                return self._end("left")
            if answer[0] in pending:
                answers[answer[0]] = _resumed(answer[1])
        return answers

    def _print(self, stream: str, text: str) -> None:
        """Keep what the script prints, up to the limit; the rest is dropped and said to be."""
        room = self._settings.output_bytes - self._printed_bytes
        if room <= 0:
            self._left.wait(DROPPED_SECONDS)
            return
        self._printed_bytes += len(text)
        self._printed.append(text if len(text) <= room else f"{text[:room]}\n… the rest was cut (output_bytes)\n")

    def _returned(self, value: object) -> ScriptEnd:
        try:
            text = bounded_json(value, self._settings.output_bytes)
        except ValueError as error:
            return self._end("limit", message=f"The result {error}; return less, or print a part of it")
        return self._end("returned", result=text)

    def _failure(self, error: MontyError) -> ScriptEnd:
        words = _without_prelude(error.display()) if hasattr(error, "display") else str(error)
        inner = error.exception()
        kind: EndKind = "limit" if isinstance(inner, MemoryError | TimeoutError | RecursionError) else "failed"
        if isinstance(inner, TimeoutError) and TIME_LIMIT in str(inner):
            seconds = self._settings.cpu_seconds
            words = words.replace(f"TimeoutError: {inner}", f"The script computed longer than {seconds:g} s")
            words += " ([code] cpu_seconds). Time in which it waits for calls does not count."
        return self._end(kind, message=_cut(words))

    def _end(self, kind: EndKind, *, result: str = "", message: str = "") -> ScriptEnd:
        return ScriptEnd(kind, "".join(self._printed), result, message)


def prelude(tools: Mapping[str, str]) -> str:
    """What a script finds before it starts: a function for each tool that it names."""
    written = (_WRAPPER.format(name=name, exposed=ascii(exposed)) for name, exposed in tools.items())
    return PRELUDE + "".join(written)


def _resumed(answer: CallAnswer) -> dict[str, str | None]:
    if isinstance(answer, ToolFailure):
        return {"exc_type": "RuntimeError", "message": answer.message}
    return {"return_value": None if answer == SLEPT else answer}


def _without_prelude(display: str) -> str:
    """A traceback without the hub's own functions: a frame has up to three lines."""
    kept: list[str] = []
    is_ours = False
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
