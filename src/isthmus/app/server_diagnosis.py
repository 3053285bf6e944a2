"""What is wrong with a server, and how its operator fixes it.

Each kind of finding has a number that never changes (`docs/operating.md` lists them all); the texts may. `isthmus
doctor` prints the findings; a running hub gives operators the fix of each server that cannot be used.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from isthmus.config.finding_codes import FindingCode
from isthmus.config.settings import Configuration, Origin
from isthmus.config.value_sources import Keys, line_numbers, split_path
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.model.stderr_summary import telling_line
from isthmus.upstream.server_settings import (
    AgentSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)

SLOW_SECONDS = 5.0
"""A slower start is reported: people wait, and clients give up after about ten seconds."""

CERTIFICATE_ENV = '"env": {"SSL_CERT_FILE": "${SSL_CERT_FILE}"} (Node.js: NODE_EXTRA_CA_CERTS)'
"""How a server gets the certificates of a company's proxy: it has only the variables of its entry and ten harmless
ones."""

DOWNLOADERS = ("npx", "bunx", "uvx", "pipx", "docker", "podman")
"""Programs that may download a server before they start it."""

# -- servers that cannot be used -------------------------------------------------------------------------------------

DIED = FindingCode("ISD-101", "server-died", "run its command by hand and read its output")
NOT_STARTED = FindingCode("ISD-102", "command-not-started", "install the program, or correct command")
NOT_REACHED = FindingCode("ISD-103", "not-reached", "correct url, or start the server")
NOT_LET_IN = FindingCode("ISD-104", "not-let-in", "put a valid credential into its headers")
WRONG_TRANSPORT = FindingCode("ISD-105", "wrong-transport", "remove type: the hub detects the transport")
NOT_MCP = FindingCode("ISD-106", "not-mcp", "correct url: the server there does not speak MCP")
HTTP_ERROR = FindingCode("ISD-107", "http-error", "read the server's own log")
NOT_IMPORTED = FindingCode("ISD-108", "not-imported", "correct python, or set path to the module's folder")
NO_ANSWER = FindingCode("ISD-109", "no-answer-yet", "wait longer: isthmus doctor --wait 60")
NOT_CONNECTED = FindingCode("ISD-110", "not-connected", "read the server's own log")
NO_LIST = FindingCode("ISD-111", "no-tools-list", "declare its tools, each as [servers.NAME.tools.TOOL]")
MOVED = FindingCode("ISD-112", "moved", "replace its address by the one that it redirects to")
WRONG_ERA = FindingCode("ISD-113", "wrong-era", "remove era: the hub detects it")
ELSEWHERE = FindingCode("ISD-114", "agent-elsewhere", "add the card's addresses to origins, if you trust them")
AWAY = FindingCode("ISD-115", "away", "check it where it runs: it dials in again by itself")
WANTS_LOGIN = FindingCode("ISD-116", "wants-login", "log in: isthmus login SERVER")
NO_MEMBERS = FindingCode("ISD-117", "no-members", "connect a server that matches members, or correct the patterns")
MEMBERS_AWAY = FindingCode("ISD-118", "members-away", "check its members: isthmus servers")
TOO_LONG = FindingCode("ISD-119", "message-too-long", "raise limits.reply_bytes, if you trust the server")

# -- servers that work, with something to note -----------------------------------------------------------------------

SLOW = FindingCode("ISD-201", "slow-start", "nothing, unless callers complain: it is listed as soon as it is ready")
OPEN_FOLDER = FindingCode("ISD-202", "open-folder", "remove the write permission of others: chmod o-w FOLDER")
SECRET_IN_ARGUMENTS = FindingCode("ISD-203", "secret-in-arguments", "pass it by env, if the server reads it there")
NAMES_CLASH = FindingCode("ISD-301", "names-clash", "rename one of the servers, if the digits are in the way")
NAME_CUT = FindingCode("ISD-302", "name-cut", "give the server a shorter name")
SHARED_URI = FindingCode("ISD-303", "shared-uri", "read it by its listed name: isthmus resources")
ODD_LIST = FindingCode("ISD-401", "odd-list", "report it to the server's author; the rest of the server works")
LIST_CUT = FindingCode("ISD-402", "list-cut", "raise the limit that the message names, if you need all of the list")
NOT_CHECKED = FindingCode(
    "ISD-403", "schema-not-checked", "report it to the server's author; the server checks by itself"
)
UNLISTED = FindingCode("ISD-404", "unlisted", "nothing, if callers know its methods; to list them, declare its tools")
SET_ENTRY = FindingCode("ISD-405", "set-entry", "correct the entry of the set, or the pattern")
WITHHELD = FindingCode("ISD-406", "withheld", "review and approve them: isthmus approve SERVER")
MEMBERS_DIFFER = FindingCode("ISD-407", "members-differ", "give these members the same version, or take them out")
DIALLED_FLEET = FindingCode("ISD-408", "dialled-fleet", "check it at the running hub: isthmus doctor --hub URL")
OLD_LIST = FindingCode("ISD-409", "old-list", "read the message and the server's own log; the last lists still work")
DISABLED = FindingCode("ISD-501", "disabled", "remove disabled to use it")

CODES: tuple[FindingCode, ...] = tuple(code for code in list(globals().values()) if isinstance(code, FindingCode))
"""All of them, in the order of their numbers."""

_CAUSES: Sequence[tuple[str, FindingCode]] = (
    ("could not be started", NOT_STARTED),
    ("raise limits.reply_bytes", TOO_LONG),
    ("exited with code", DIED),
    ("killed by signal", DIED),
    ("closed its output", DIED),
    ("closed its input", DIED),
    ("requires a login", WANTS_LOGIN),
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
"""Parts of the reasons that the hub gives for an unusable server, and their codes; the first match counts."""

_NOTES = (
    ("and was cut; to read all of it, raise limits.", LIST_CUT),
    ("its lists could not be read again", OLD_LIST),
    ("the fleet does not call it there", MEMBERS_DIFFER),
)
"""Parts of the notes about a server that works, and their codes."""

_FLEET_CAUSES = (("the fleet has no members", NO_MEMBERS), ("of the fleet", MEMBERS_AWAY))
"""The same for a fleet."""

_MCP_SIGNS = ("http 406", "event-stream", "session", "initializ", "protocol version", "mcp-")
"""Words, in lower case, with which an MCP server rejects a request of plain JSON-RPC."""

_APPROVAL = ": run isthmus approve "
"""In the note about a withheld tool, what stands between the problem and its name."""

_REDIRECT = re.compile(r"redirects to (\S+), which")

_NOT_IN_ENTRY = (AWAY, NO_ANSWER, NOT_CONNECTED, HTTP_ERROR, SLOW, TOO_LONG, UNLISTED)
"""Findings that no change of the server's entry fixes."""

_COMMANDS = (WANTS_LOGIN, WITHHELD)
"""Findings that a command with the server's name fixes."""

_JSONRPC_FIXES = {
    NOT_REACHED: "correct rpc, or start the server",
    WRONG_TRANSPORT: "write url instead of rpc: the server there speaks MCP",
    NOT_MCP: "correct rpc: the server there does not speak JSON-RPC",
}
_AGENT_FIXES = {
    NOT_REACHED: "start the agent, or correct agent",
    NOT_MCP: "correct agent: there is no A2A card below that address",
    ELSEWHERE: "add the card's addresses to origins, if you trust them with the same credentials",
}

WORKING = ("ready", "disabled")

FAILED = ("retrying", "login", "away")
"""States that need a person's action; a server that is starting may still succeed."""


class ServerReport(msgspec.Struct, frozen=True):
    """The state of one server. A running hub does not report every member."""

    server: str
    state: str
    reason: str | None = None
    era: str | None = None
    tools: int = 0
    seconds: float | None = None
    """Duration of its first attempt to connect."""
    said: str | None = None
    """The last lines that a dead process wrote to standard error."""
    notes: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether nothing has to be fixed."""
        return self.state in WORKING


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding and its fix."""

    code: FindingCode
    server: str
    message: str
    fix: str

    @property
    def is_grave(self) -> bool:
        """Whether it makes the server unusable."""
        return self.code.number.startswith("ISD-1")


@dataclass(frozen=True, slots=True)
class ConfiguredServer:
    """A server's settings, and where its entry is."""

    settings: ServerSettings
    place: str


def entry_of(server: ServerSettings, configuration: Configuration) -> ConfiguredServer:
    """A server of a configuration, with the place of its entry."""
    origin = configuration.origins.get(f"servers.{server.name}")
    place = f"servers.{server.name}" if origin is None else origin.path
    if origin is not None and origin.file is not None:
        place += f" of {origin.file}"
    return ConfiguredServer(server, place)


class EntryPlaces:
    """File and line of entries. A thread reads the files: a long one would hold the event loop."""

    def __init__(self) -> None:
        self._lines: dict[Path, dict[Keys, int]] = {}
        self._ages: dict[Path, float] = {}
        """When each file was last changed before it was read."""
        self._version = 0

    def version(self) -> int:
        """A number that changes with the places. Changed files are read again."""
        for file in list(self._ages):
            self._read_file(file)
        return self._version

    def place_of(self, origin: Origin | None) -> str | None:
        """Where an entry is; without its line until the file is read, and if the line is not certain."""
        if origin is None or (file := origin.file) is None:
            return None
        self._read_file(file)
        line = self._lines.get(file, {}).get(split_path(origin.path))
        return f"{file}" if line is None else f"{file}:{line}"

    def _read_file(self, file: Path) -> None:
        with suppress(OSError):
            if self._ages.get(file) != (age := file.stat().st_mtime):
                self._ages[file] = age
                reading = asyncio.get_running_loop().run_in_executor(None, line_numbers, file)
                reading.add_done_callback(partial(self._read, file))

    def _read(self, file: Path, reading: asyncio.Future[dict[Keys, int]]) -> None:
        if not reading.cancelled() and reading.result() != self._lines.get(file):
            self._lines[file] = reading.result()
            self._version += 1


# -- one server ------------------------------------------------------------------------------------------------------


def check_server(report: ServerReport, entry: ConfiguredServer | None) -> list[Diagnosis]:
    """The findings of one server; without its entry, with general fixes only."""
    found = []
    if report.state == "disabled":
        found.append(_finding(DISABLED, report, entry, "it is disabled in the configuration"))
    elif not report.is_well:
        message = report.reason or f"it is {report.state}"
        if line := telling_line(report.said or ""):
            message = f"{message}; its last output: {line}"
        found.append(_finding(_cause(report, entry), report, entry, message))
    elif report.seconds is not None and report.seconds > SLOW_SECONDS:
        found.append(_finding(SLOW, report, entry, f"it took {report.seconds:.1f} s to start"))
    for note in report.notes:
        if _APPROVAL in note or note.endswith(" more are withheld"):
            message = note.partition(_APPROVAL)[0]
            found.append(_finding(WITHHELD, report, entry, message))
            continue
        if "it has no tools/list" not in note:
            code = next((code for text, code in _NOTES if text in note), ODD_LIST)
            found.append(Diagnosis(code, report.server, note, code.fix))
            continue
        reach = None if entry is None else entry.settings.reach
        code = WRONG_TRANSPORT if isinstance(reach, JsonRpcSettings) and _is_mcp(note, reach) else UNLISTED
        found.append(_finding(code, report, entry, note))
    return found


def fix_of(status: ServerStatus, entry: ConfiguredServer | None) -> str | None:
    """How to fix a server that cannot be used; None if it works, or if its reason tells no fix."""
    if status.state not in FAILED:
        return None
    report = ServerReport(status.server, status.state, status.reason, said=status.detail)
    code = _cause(report, entry)
    return None if code is NOT_CONNECTED else _finding(code, report, entry, "").fix


def _finding(code: FindingCode, report: ServerReport, entry: ConfiguredServer | None, message: str) -> Diagnosis:
    if code is WANTS_LOGIN and "wants the scope" in (report.reason or ""):
        # The scope itself is the server's text, and people copy commands: only the message quotes it.
        fix = f"log in with the scope in the message: isthmus login {report.server} --scope SCOPE"
    elif code in _COMMANDS:
        fix = code.fix.replace("SERVER", report.server)
    else:
        fix = code.fix if entry is None else _fix(code, report, entry)
    return Diagnosis(code, report.server, message, fix)


def _cause(report: ServerReport, entry: ConfiguredServer | None) -> FindingCode:
    reason = report.reason or ""
    if report.state == "starting":
        return NO_ANSWER
    if report.state == "away":
        return next((code for text, code in _FLEET_CAUSES if text in reason), AWAY)
    reach = None if entry is None else entry.settings.reach
    # With some entries, a reason means something else.
    if isinstance(reach, PythonSettings):
        return NOT_IMPORTED
    if isinstance(reach, JsonRpcSettings):
        if _is_mcp(reason, reach):
            return WRONG_TRANSPORT
    elif reach is not None and reach.era == "legacy" and "refused to initialize" in reason:
        return WRONG_ERA
    code = next((code for text, code in _CAUSES if text in reason), NOT_CONNECTED)
    # If both transports were tried, another type would not help.
    is_neither = "answered a POST of MCP with" in reason and "gives no event stream" in reason
    return NOT_MCP if code is WRONG_TRANSPORT and is_neither else code


def _is_mcp(reason: str, reach: JsonRpcSettings) -> bool:
    """Whether an MCP server rejected a request of plain JSON-RPC."""
    is_refusal = "it has no tools/list" in reason or "answered HTTP 4" in reason
    path = urlsplit(reach.url).path.rstrip("/")
    return is_refusal and (path.endswith(("/mcp", "/sse")) or any(sign in reason.lower() for sign in _MCP_SIGNS))


def _fix(code: FindingCode, report: ServerReport, entry: ConfiguredServer) -> str:
    """The fix for this server in particular."""
    reach = entry.settings.reach
    if isinstance(reach, StdioSettings) and (fix := _fix_process(code, report, entry, reach)) is not None:
        return fix
    fix = _fix_address(code, report, reach)
    return fix if code in _NOT_IN_ENTRY else f"in {entry.place}, {fix}"


def _fix_address(code: FindingCode, report: ServerReport, reach: Reach) -> str:
    if code is MOVED:
        key = {JsonRpcSettings: "rpc", AgentSettings: "agent"}.get(type(reach), "url")
        target = _REDIRECT.search(report.reason or "")
        if target is None:
            return f"set {key} to the address that it redirects to"
        return f"set {key} to {target[1]}, if you trust that with the same credentials"
    if code is NO_LIST:
        return f"declare its tools, each as [servers.{report.server}.tools.TOOL]"
    if code is UNLISTED:
        return f"to list its methods, declare them, each as [servers.{report.server}.tools.TOOL]"
    if isinstance(reach, WebSocketSettings) and code is WRONG_TRANSPORT:
        return "correct url: the server there does not accept WebSockets"
    if isinstance(reach, JsonRpcSettings):
        return _JSONRPC_FIXES.get(code, code.fix)
    return _AGENT_FIXES.get(code, code.fix) if isinstance(reach, AgentSettings) else code.fix


def _fix_process(code: FindingCode, report: ServerReport, entry: ConfiguredServer, reach: StdioSettings) -> str | None:
    redact, program = entry.settings.redact, Path(reach.command).name
    reason = report.reason or ""
    if code is DIED and "certificate" in (report.said or "").lower():
        # By hand it may work: a shell has variables that the hub does not pass on.
        return f"in {entry.place}, give it this machine's certificates: {CERTIFICATE_ENV}"
    if code is DIED:
        # Redact each word by itself: quoting would change a secret that has quotes.
        words = (reach.command, *reach.args)
        shown = [redact(word) for word in words]
        how = "" if shown == [*words] else ", with its secrets instead of ***,"
        return f"run it by hand{how} and read its output: {shlex.join(shown)}"
    if code is NOT_STARTED and "sha256 is" in reason:
        return f"find out who changed it; if the change is right, write the new sha256 in {entry.place}"
    if code is NOT_STARTED and "can write to" in reason:
        return "remove the write permission of others"
    if code is NOT_STARTED and "working directory" in reason:
        return f"in {entry.place}, correct cwd, or create the folder"
    if code is NOT_STARTED:
        return f"in {entry.place}, correct command, or install {redact(reach.command)}"
    if code is SLOW and program in DOWNLOADERS:
        return f"install the server beforehand: {program} may download it at every start"
    return None
