"""What can be wrong with servers: each kind under a number that stays the same, and how to tell one from another.

Plain decisions over what a hub tells of its servers; nothing is asked or shown here. Texts change, numbers do not:
`docs/operating.md` lists them all. What is wrong with a configuration has numbers of its own (`config.codes`).
Called by `cli.doctor`.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from isthmus.cli.documents import Offer
from isthmus.config.codes import Code
from isthmus.config.redaction import secrets_of
from isthmus.core.catalog.names import LLM_LENGTH_MAX, Pair, llm_form
from isthmus.core.catalog.schema import Unchecked, compile_check
from isthmus.core.catalog.uris import is_qualified, owner_of
from isthmus.core.settings import Limits
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.settings import (
    AgentSettings,
    PythonSettings,
    Reach,
    RpcSettings,
    ServerSettings,
    SocketSettings,
    StdioSettings,
)

SLOW_SECONDS = 5.0
"""A server that takes longer to start keeps people waiting; clients give up after ten seconds or so."""

SCHEMAS_MAX = 2_000
"""Schemas that are looked at: compiling one takes up to a millisecond."""

FETCHING = ("npx", "bunx", "uvx", "pipx", "docker", "podman")
"""Programs that may have to fetch a server before they start it."""

# -- servers that are not there ------------------------------------------------------------------------------

DIED = Code("ISD-101", "server-died", "run its command by hand and see what it says")
NOT_STARTED = Code("ISD-102", "command-not-started", "install the program, or correct command")
NOT_REACHED = Code("ISD-103", "not-reached", "start the server, or correct url")
NOT_LET_IN = Code("ISD-104", "not-let-in", "put a valid credential into its headers")
WRONG_TRANSPORT = Code("ISD-105", "wrong-transport", "take type out: the hub finds out by itself")
NOT_MCP = Code("ISD-106", "not-mcp", "correct url: what answers there does not speak MCP")
HTTP_ERROR = Code("ISD-107", "http-error", "look into the server's own log")
NOT_IMPORTED = Code("ISD-108", "not-imported", "correct python, or say with path where the module is")
NO_ANSWER = Code("ISD-109", "no-answer-yet", "give it longer: isthmus doctor --wait 60")
NOT_CONNECTED = Code("ISD-110", "not-connected", "look into the server's own log")
NO_LIST = Code("ISD-111", "no-tools-list", "declare its tools, each as [servers.NAME.tools.TOOL]")
MOVED = Code("ISD-112", "moved", "write the address that it points to in the place of its own")
WRONG_ERA = Code("ISD-113", "wrong-era", "take era out: the hub finds out by itself")
ELSEWHERE = Code("ISD-114", "agent-elsewhere", "add to origins what the card names, if it is to be trusted")
AWAY = Code("ISD-115", "away", "look after it where it runs: it dials in by itself when it is there")
WANTS_LOGIN = Code("ISD-116", "wants-login", "run the command that it names: isthmus login SERVER")

# -- servers that are, with something odd about them ---------------------------------------------------------

SLOW = Code("ISD-201", "slow-start", "nothing, unless callers complain: it is listed as soon as it is there")
OPEN_FOLDER = Code("ISD-202", "open-folder", "take the right to write from others: chmod o-w FOLDER")
TOLD_SECRET = Code("ISD-203", "secret-in-arguments", "give it by env, if the server reads it there")
NAMES_CLASH = Code("ISD-301", "names-clash", "rename one of the servers, if the digits at the end are in the way")
NAME_CUT = Code("ISD-302", "name-cut", "give the server a shorter name")
SHARED_URI = Code("ISD-303", "shared-uri", "read it by the name that is listed: isthmus resources")
ODD_LIST = Code("ISD-401", "odd-list", "tell the server's author; everything else of it works")
LIST_CUT = Code("ISD-402", "list-cut", "raise limits.tools_per_server if all of it is needed")
NOT_CHECKED = Code("ISD-403", "schema-not-checked", "tell the server's author; the server makes its own check")
UNLISTED = Code("ISD-404", "unlisted", "nothing, if callers know its methods; to have them listed, declare its tools")
DISABLED = Code("ISD-501", "disabled", "take disabled out to use it")

CODES: tuple[Code, ...] = tuple(code for code in list(globals().values()) if isinstance(code, Code))
"""All of them, in the order of their numbers."""

_CAUSES: Sequence[tuple[str, Code]] = (
    ("could not be started", NOT_STARTED),
    ("exited with code", DIED),
    ("killed by signal", DIED),
    ("closed its output", DIED),
    ("closed its input", DIED),
    ("wants a login", WANTS_LOGIN),
    ("wants the scope", WANTS_LOGIN),
    ("answered HTTP 401", NOT_LET_IN),
    ("answered HTTP 403", NOT_LET_IN),
    ("it has no tools/list", NO_LIST),
    ("it redirects to", MOVED),
    ("answered HTTP 307", MOVED),
    ("answered HTTP 308", MOVED),
    ("does not speak MCP 2026-07-28, as its configuration", WRONG_ERA),
    ("answered a POST of MCP with", WRONG_TRANSPORT),
    ("gives no event stream", WRONG_TRANSPORT),
    ("its stream named no endpoint", WRONG_TRANSPORT),
    ("instead of opening a WebSocket", WRONG_TRANSPORT),
    ("HTTP 5", HTTP_ERROR),
    ("without a usable JSON-RPC answer", NOT_MCP),
    ("where its card should be", NOT_MCP),
    ("is not where its card is", ELSEWHERE),
    ("connection refused by", NOT_REACHED),
    ("no address for host", NOT_REACHED),
    ("no answer from", NOT_REACHED),
)
"""What the hub says of a lost server, and what that means; the first that fits counts."""

_MCP_SIGNS = ("http 406", "event-stream", "session", "initializ", "protocol version", "mcp-")
"""What an MCP server speaks of, in lower case, when it is asked without the manners of MCP."""

_POINTED_TO = re.compile(r"redirects to (\S+), which")

_ELSEWHERE = (NO_ANSWER, NOT_CONNECTED, HTTP_ERROR, SLOW, UNLISTED)
"""What is not mended in a server's entry."""

_RPC_MENDS = {
    NOT_REACHED: "start the server, or correct rpc",
    WRONG_TRANSPORT: "write url in the place of rpc: what answers there speaks MCP",
    NOT_MCP: "correct rpc: what answers there does not speak JSON-RPC",
}
"""What is said otherwise of a server that is not meant to know MCP."""

_AGENT_MENDS = {
    NOT_REACHED: "start the agent, or correct agent",
    NOT_MCP: "correct agent: there is no card of A2A below that address",
    ELSEWHERE: "add to origins what the card names, if it is to be trusted with the same credentials",
}
"""The same of an agent."""

GOOD = ("ready", "disabled")


class Patient(msgspec.Struct, frozen=True):
    """One server as examined. What a running hub does not tell stays None."""

    server: str
    state: str
    reason: str | None = None
    era: str | None = None
    tools: int = 0
    seconds: float | None = None
    """How long its first attempt to connect took."""
    said: str | None = None
    """The end of what a process that died said on its standard error."""
    notes: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether nothing has to be done."""
        return self.state in GOOD


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that is wrong or odd, and what to do."""

    code: Code
    server: str
    message: str
    mend: str

    @property
    def is_grave(self) -> bool:
        """Whether the server cannot be used for it."""
        return self.code.number.startswith("ISD-1")


@dataclass(frozen=True, slots=True)
class Entry:
    """A server's entry: its settings, and where it is written, in words."""

    settings: ServerSettings
    place: str


def of_server(patient: Patient, entry: Entry | None) -> list[Diagnosis]:
    """Say what there is to say of one server by itself; without its entry in general terms only."""
    found = []
    told = _condition(patient, entry)
    if told is not None:
        code, text = told
        found.append(Diagnosis(code, patient.server, text, _mend(code, patient, entry)))
    return [*found, *(_of_note(patient, note, entry) for note in patient.notes)]


def _condition(patient: Patient, entry: Entry | None) -> tuple[Code, str] | None:
    if patient.state == "disabled":
        return DISABLED, "it is disabled in the configuration"
    if not patient.is_well:
        return _cause(patient, entry), _complaint(patient)
    if patient.seconds is not None and patient.seconds > SLOW_SECONDS:
        return SLOW, f"it took {patient.seconds:.1f} s to start"
    return None


def _cause(patient: Patient, entry: Entry | None) -> Code:
    reason = patient.reason or ""
    if patient.state == "starting":
        return NO_ANSWER
    if patient.state == "away":
        return AWAY
    own = None if entry is None else _cause_by_entry(reason, entry.settings.reach)
    if own is not None:
        return own
    code = next((code for text, code in _CAUSES if text in reason), NOT_CONNECTED)
    # Where both ways were tried, neither word would help.
    is_neither = "answered a POST of MCP with" in reason and "gives no event stream" in reason
    return NOT_MCP if code is WRONG_TRANSPORT and is_neither else code


def _cause_by_entry(reason: str, reach: Reach) -> Code | None:
    """Tell what only an entry can: a reason may mean something else beside what is configured."""
    if isinstance(reach, PythonSettings):
        return NOT_IMPORTED
    if isinstance(reach, RpcSettings) and _is_mcp(reason, reach):
        return WRONG_TRANSPORT
    if reach.era == "legacy" and not isinstance(reach, RpcSettings) and "refused to initialize" in reason:
        return WRONG_ERA
    return None


def _is_mcp(reason: str, reach: RpcSettings) -> bool:
    """Tell whether a refusal of plain JSON-RPC comes from an MCP server."""
    is_refusal = "it has no tools/list" in reason or "answered HTTP 4" in reason
    path = urlsplit(reach.url).path.rstrip("/")
    return is_refusal and (path.endswith(("/mcp", "/sse")) or any(sign in reason.lower() for sign in _MCP_SIGNS))


def _complaint(patient: Patient) -> str:
    reason = patient.reason or f"it is {patient.state}"
    if not patient.said:
        return reason
    return f"{reason}; it said: {patient.said.splitlines()[-1].strip()}"  # a traceback ends with what is wrong


def _mend(code: Code, patient: Patient, entry: Entry | None) -> str:
    """What to do about this server in particular, as far as its entry is known."""
    if entry is None:
        return code.mend
    reach = entry.settings.reach
    if isinstance(reach, StdioSettings) and (mend := _mend_process(code, patient, entry, reach)) is not None:
        return mend
    mend = _mend_address(code, patient, reach)
    return mend if code in _ELSEWHERE else f"in {entry.place}, {mend}"


def _mend_address(code: Code, patient: Patient, reach: Reach) -> str:
    key = _key_of(reach)
    pointed_to = _POINTED_TO.search(patient.reason or "")
    if code is MOVED and pointed_to is not None:
        return f"write {pointed_to[1]} in {key}, if it is to be trusted with the same credentials"
    if code is MOVED:
        return f"write the address that it points to in {key}"
    if code is NO_LIST:
        return f"declare its tools, each as [servers.{patient.server}.tools.TOOL]"
    if code is UNLISTED:
        return f"declare its tools to have them listed, each as [servers.{patient.server}.tools.TOOL]"
    if isinstance(reach, SocketSettings) and code is WRONG_TRANSPORT:
        return "correct url: what answers there opens no WebSocket"
    if isinstance(reach, RpcSettings):
        return _RPC_MENDS.get(code, code.mend)
    return _AGENT_MENDS.get(code, code.mend) if isinstance(reach, AgentSettings) else code.mend


def _key_of(reach: Reach) -> str:
    """The key of an entry that holds its server's address."""
    match reach:
        case RpcSettings():
            return "rpc"
        case AgentSettings():
            return "agent"
        case _:
            return "url"


def _mend_process(code: Code, patient: Patient, entry: Entry, reach: StdioSettings) -> str | None:
    redact, program = entry.settings.redact, Path(reach.command).name
    if code is DIED:
        return f"see what it says when run by hand: {redact(shlex.join([reach.command, *reach.args]))}"
    if code is NOT_STARTED and "sha256 is" in (patient.reason or ""):
        return f"find out who changed it; if that is right, write the new sha256 in {entry.place}"
    if code is NOT_STARTED and "can write to" in (patient.reason or ""):
        return "take the right to write from others, as it says"
    if code is NOT_STARTED and "working directory" in (patient.reason or ""):
        return f"in {entry.place}, correct cwd, or make the folder"
    if code is NOT_STARTED:
        return f"in {entry.place}, correct command, or install {redact(reach.command)}"
    if code is SLOW and program in FETCHING:
        return f"install the server beforehand: {program} may fetch it at every start"
    return None


def of_open_path(entry: Entry, path: Path) -> Diagnosis:
    """Tell of a file or a folder in which anybody could put what a server runs as the hub's user."""
    text = f"everybody on this machine can write to {path}, where it starts or its program is"
    return Diagnosis(OPEN_FOLDER, entry.settings.name, text, f"chmod o-w {shlex.quote(str(path))}")


def of_arguments(entry: Entry) -> list[Diagnosis]:
    """Tell of a secret among the words that a server is started with, which nobody can hide."""
    reach = entry.settings.reach
    if not isinstance(reach, StdioSettings) or not secrets_of({"args": list(reach.args)}):
        return []
    text = "there seems to be a secret among its args, which everybody on this machine can read while it runs"
    return [Diagnosis(TOLD_SECRET, entry.settings.name, text, f"in {entry.place}, {TOLD_SECRET.mend}")]


def _of_note(patient: Patient, note: str, entry: Entry | None) -> Diagnosis:
    if "it has no tools/list" not in note:
        code = LIST_CUT if "entries and was cut" in note else ODD_LIST
        return Diagnosis(code, patient.server, note, code.mend)
    reach = None if entry is None else entry.settings.reach
    code = WRONG_TRANSPORT if isinstance(reach, RpcSettings) and _is_mcp(note, reach) else UNLISTED
    return Diagnosis(code, patient.server, note, _mend(code, patient, entry))


# -- what servers offer, seen together -----------------------------------------------------------------------


def of_names(tools: Iterable[Offer]) -> list[Diagnosis]:
    """Tell of tools whose names for language models are not what one would think."""
    shared: defaultdict[str, list[Pair]] = defaultdict(list)
    for offer in tools:
        pair = (ServerName(offer.server), FeatureName(offer.name.removeprefix(f"{offer.server}.")))
        shared[llm_form(pair)].append(pair)
    found = [_clash(name, pairs) for name, pairs in shared.items() if len(pairs) > 1]
    return found + [_cut(name, pairs[0]) for name, pairs in shared.items() if len(name) > LLM_LENGTH_MAX]


def _clash(name: str, pairs: Sequence[Pair]) -> Diagnosis:
    both = " and ".join(sorted(f"{server}.{tool}" for server, tool in pairs))
    text = f"{both} would both be {name} to a language model, and so get digits at the end"
    return Diagnosis(NAMES_CLASH, pairs[0][0], text, NAMES_CLASH.mend)


def _cut(name: str, pair: Pair) -> Diagnosis:
    text = f"{pair[0]}.{pair[1]} is cut to {LLM_LENGTH_MAX} characters for language models: it has {len(name)}"
    return Diagnosis(NAME_CUT, pair[0], text, NAME_CUT.mend)


def of_uris(resources: Iterable[Offer]) -> list[Diagnosis]:
    """Tell of resources that several servers have under one URI."""
    shared: defaultdict[str, list[str]] = defaultdict(list)
    for offer in resources:
        if is_qualified(offer.name):
            server, own = owner_of(offer.name)
            shared[own].append(server)
    return [
        Diagnosis(SHARED_URI, servers[0], f"{' and '.join(servers)} have the same URI: {own}", SHARED_URI.mend)
        for own, servers in shared.items()
    ]


def of_schemas(tools: Sequence[Offer], limits: Limits) -> list[Diagnosis]:
    """Tell of tools whose arguments the hub cannot check."""
    found = []
    for offer in tools[:SCHEMAS_MAX]:
        try:
            compile_check(offer.definition.get("inputSchema", msgspec.Raw(b"{}")), limit_bytes=limits.schema_bytes)
        except Unchecked as why:
            text = f"arguments of {offer.name} are not checked: {why}"
            found.append(Diagnosis(NOT_CHECKED, offer.server, text, NOT_CHECKED.mend))
    return found
