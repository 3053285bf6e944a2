"""`isthmus doctor`: the configuration, how each server stands, what is wrong or odd, and what mends it.

What is wrong is decided in `cli.doctor`; here it is asked for and shown.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from isthmus.cli.config import access_of, configuration_of, finding_as_json
from isthmus.cli.documents import ListedFeature, ServerInfo, read_listing, read_servers
from isthmus.cli.exits import Exit
from isthmus.cli.hub import HubClient, LocalHub, LocalSource, RemoteHub, RemoteSource, start_local_hub
from isthmus.cli.lists import spoken
from isthmus.cli.output import aligned, first_line, print_json, print_output, show_table
from isthmus.config import codes
from isthmus.config.codes import FindingCode
from isthmus.config.entries import MAP_VARIABLE
from isthmus.config.findings import ConfigError
from isthmus.config.redaction import secrets_of
from isthmus.config.settings import Configuration
from isthmus.core.catalog.names import LLM_LENGTH_MAX, Pair, llm_form
from isthmus.core.catalog.schema import UnusableSchema, compile_check
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.uris import is_qualified, split_qualified
from isthmus.core.settings import Limits
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.programs import open_paths, program_of
from isthmus.upstream.settings import (
    AgentSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)
from isthmus.wire.mcp.lists import RESOURCES, TOOLS

SLOW_SECONDS = 5.0
"""A server that takes longer to start keeps people waiting; clients give up after ten seconds or so."""

SCHEMAS_MAX = 2_000
"""Schemas that are looked at: compiling one takes up to a millisecond."""

FETCHING = ("npx", "bunx", "uvx", "pipx", "docker", "podman")
"""Programs that may have to fetch a server before they start it."""

# -- servers that are not there ------------------------------------------------------------------------------

DIED = FindingCode("ISD-101", "server-died", "run its command by hand and see what it says")
NOT_STARTED = FindingCode("ISD-102", "command-not-started", "install the program, or correct command")
NOT_REACHED = FindingCode("ISD-103", "not-reached", "start the server, or correct url")
NOT_LET_IN = FindingCode("ISD-104", "not-let-in", "put a valid credential into its headers")
WRONG_TRANSPORT = FindingCode("ISD-105", "wrong-transport", "take type out: the hub finds out by itself")
NOT_MCP = FindingCode("ISD-106", "not-mcp", "correct url: what answers there does not speak MCP")
HTTP_ERROR = FindingCode("ISD-107", "http-error", "look into the server's own log")
NOT_IMPORTED = FindingCode("ISD-108", "not-imported", "correct python, or say with path where the module is")
NO_ANSWER = FindingCode("ISD-109", "no-answer-yet", "give it longer: isthmus doctor --wait 60")
NOT_CONNECTED = FindingCode("ISD-110", "not-connected", "look into the server's own log")
NO_LIST = FindingCode("ISD-111", "no-tools-list", "declare its tools, each as [servers.NAME.tools.TOOL]")
MOVED = FindingCode("ISD-112", "moved", "write the address that it points to in the place of its own")
WRONG_ERA = FindingCode("ISD-113", "wrong-era", "take era out: the hub finds out by itself")
ELSEWHERE = FindingCode("ISD-114", "agent-elsewhere", "add to origins what the card names, if it is to be trusted")
AWAY = FindingCode("ISD-115", "away", "look after it where it runs: it dials in by itself when it is there")
WANTS_LOGIN = FindingCode("ISD-116", "wants-login", "run the command that it names: isthmus login SERVER")

# -- servers that are, with something odd about them ---------------------------------------------------------

SLOW = FindingCode("ISD-201", "slow-start", "nothing, unless callers complain: it is listed as soon as it is there")
OPEN_FOLDER = FindingCode("ISD-202", "open-folder", "take the right to write from others: chmod o-w FOLDER")
TOLD_SECRET = FindingCode("ISD-203", "secret-in-arguments", "give it by env, if the server reads it there")
NAMES_CLASH = FindingCode(
    "ISD-301", "names-clash", "rename one of the servers, if the digits at the end are in the way"
)
NAME_CUT = FindingCode("ISD-302", "name-cut", "give the server a shorter name")
SHARED_URI = FindingCode("ISD-303", "shared-uri", "read it by the name that is listed: isthmus resources")
ODD_LIST = FindingCode("ISD-401", "odd-list", "tell the server's author; everything else of it works")
LIST_CUT = FindingCode("ISD-402", "list-cut", "raise limits.tools_per_server if all of it is needed")
NOT_CHECKED = FindingCode("ISD-403", "schema-not-checked", "tell the server's author; the server makes its own check")
UNLISTED = FindingCode(
    "ISD-404", "unlisted", "nothing, if callers know its methods; to have them listed, declare its tools"
)
DISABLED = FindingCode("ISD-501", "disabled", "take disabled out to use it")

CODES: tuple[FindingCode, ...] = tuple(code for code in list(globals().values()) if isinstance(code, FindingCode))
"""All of them, in the order of their numbers."""

_CAUSES: Sequence[tuple[str, FindingCode]] = (
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


class ServerReport(msgspec.Struct, frozen=True):
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

    code: FindingCode
    server: str
    message: str
    mend: str

    @property
    def is_grave(self) -> bool:
        """Whether the server cannot be used for it."""
        return self.code.number.startswith("ISD-1")


@dataclass(frozen=True, slots=True)
class ConfiguredServer:
    """A server's entry: its settings, and where it is written, in words."""

    settings: ServerSettings
    place: str


def of_server(patient: ServerReport, entry: ConfiguredServer | None) -> list[Diagnosis]:
    """Say what there is to say of one server by itself; without its entry in general terms only."""
    found = []
    told = _condition(patient, entry)
    if told is not None:
        code, text = told
        found.append(Diagnosis(code, patient.server, text, _mend(code, patient, entry)))
    return [*found, *(_of_note(patient, note, entry) for note in patient.notes)]


def _condition(patient: ServerReport, entry: ConfiguredServer | None) -> tuple[FindingCode, str] | None:
    if patient.state == "disabled":
        return DISABLED, "it is disabled in the configuration"
    if not patient.is_well:
        return _cause(patient, entry), _complaint(patient)
    if patient.seconds is not None and patient.seconds > SLOW_SECONDS:
        return SLOW, f"it took {patient.seconds:.1f} s to start"
    return None


def _cause(patient: ServerReport, entry: ConfiguredServer | None) -> FindingCode:
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


def _cause_by_entry(reason: str, reach: Reach) -> FindingCode | None:
    """Tell what only an entry can: a reason may mean something else beside what is configured."""
    if isinstance(reach, PythonSettings):
        return NOT_IMPORTED
    if isinstance(reach, JsonRpcSettings) and _is_mcp(reason, reach):
        return WRONG_TRANSPORT
    if reach.era == "legacy" and not isinstance(reach, JsonRpcSettings) and "refused to initialize" in reason:
        return WRONG_ERA
    return None


def _is_mcp(reason: str, reach: JsonRpcSettings) -> bool:
    """Tell whether a refusal of plain JSON-RPC comes from an MCP server."""
    is_refusal = "it has no tools/list" in reason or "answered HTTP 4" in reason
    path = urlsplit(reach.url).path.rstrip("/")
    return is_refusal and (path.endswith(("/mcp", "/sse")) or any(sign in reason.lower() for sign in _MCP_SIGNS))


def _complaint(patient: ServerReport) -> str:
    reason = patient.reason or f"it is {patient.state}"
    if not patient.said:
        return reason
    return f"{reason}; it said: {patient.said.splitlines()[-1].strip()}"  # a traceback ends with what is wrong


def _mend(code: FindingCode, patient: ServerReport, entry: ConfiguredServer | None) -> str:
    """What to do about this server in particular, as far as its entry is known."""
    if entry is None:
        return code.mend
    reach = entry.settings.reach
    if isinstance(reach, StdioSettings) and (mend := _mend_process(code, patient, entry, reach)) is not None:
        return mend
    mend = _mend_address(code, patient, reach)
    return mend if code in _ELSEWHERE else f"in {entry.place}, {mend}"


def _mend_address(code: FindingCode, patient: ServerReport, reach: Reach) -> str:
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
    if isinstance(reach, WebSocketSettings) and code is WRONG_TRANSPORT:
        return "correct url: what answers there opens no WebSocket"
    if isinstance(reach, JsonRpcSettings):
        return _RPC_MENDS.get(code, code.mend)
    return _AGENT_MENDS.get(code, code.mend) if isinstance(reach, AgentSettings) else code.mend


def _key_of(reach: Reach) -> str:
    """The key of an entry that holds its server's address."""
    match reach:
        case JsonRpcSettings():
            return "rpc"
        case AgentSettings():
            return "agent"
        case _:
            return "url"


def _mend_process(
    code: FindingCode, patient: ServerReport, entry: ConfiguredServer, reach: StdioSettings
) -> str | None:
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


def of_open_path(entry: ConfiguredServer, path: Path) -> Diagnosis:
    """Tell of a file or a folder in which anybody could put what a server runs as the hub's user."""
    text = f"everybody on this machine can write to {path}, where it starts or its program is"
    return Diagnosis(OPEN_FOLDER, entry.settings.name, text, f"chmod o-w {shlex.quote(str(path))}")


def of_arguments(entry: ConfiguredServer) -> list[Diagnosis]:
    """Tell of a secret among the words that a server is started with, which nobody can hide."""
    reach = entry.settings.reach
    if not isinstance(reach, StdioSettings) or not secrets_of({"args": list(reach.args)}):
        return []
    text = "there seems to be a secret among its args, which everybody on this machine can read while it runs"
    return [Diagnosis(TOLD_SECRET, entry.settings.name, text, f"in {entry.place}, {TOLD_SECRET.mend}")]


def _of_note(patient: ServerReport, note: str, entry: ConfiguredServer | None) -> Diagnosis:
    if "it has no tools/list" not in note:
        code = LIST_CUT if "entries and was cut" in note else ODD_LIST
        return Diagnosis(code, patient.server, note, code.mend)
    reach = None if entry is None else entry.settings.reach
    code = WRONG_TRANSPORT if isinstance(reach, JsonRpcSettings) and _is_mcp(note, reach) else UNLISTED
    return Diagnosis(code, patient.server, note, _mend(code, patient, entry))


# -- what servers offer, seen together -----------------------------------------------------------------------


def of_names(tools: Iterable[ListedFeature]) -> list[Diagnosis]:
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


def of_uris(resources: Iterable[ListedFeature]) -> list[Diagnosis]:
    """Tell of resources that several servers have under one URI."""
    shared: defaultdict[str, list[str]] = defaultdict(list)
    for offer in resources:
        if is_qualified(offer.name):
            server, own = split_qualified(offer.name)
            shared[own].append(server)
    return [
        Diagnosis(SHARED_URI, servers[0], f"{' and '.join(servers)} have the same URI: {own}", SHARED_URI.mend)
        for own, servers in shared.items()
    ]


def of_schemas(tools: Sequence[ListedFeature], limits: Limits) -> list[Diagnosis]:
    """Tell of tools whose arguments the hub cannot check."""
    found = []
    for offer in tools[:SCHEMAS_MAX]:
        try:
            compile_check(offer.definition.get("inputSchema", msgspec.Raw(b"{}")), limit_bytes=limits.schema_bytes)
        except UnusableSchema as why:
            text = f"arguments of {offer.name} are not checked: {why}"
            found.append(Diagnosis(NOT_CHECKED, offer.server, text, NOT_CHECKED.mend))
    return found


def show_codes(*, is_json: bool) -> Exit:
    """Print every kind of finding: the doctor's own, then those of configurations."""
    known = [*CODES, *codes.CODES]
    if is_json:
        listed = [{"code": code.number, "kind": code.name, "mend": code.mend} for code in known]
        print_json(msgspec.json.encode({"codes": listed}))
    else:
        print_output("\n".join(aligned([(code.number, code.name, code.mend) for code in known])))
    return Exit.SUCCESS


async def examine(source: RemoteSource | LocalSource, *, wait: float, is_json: bool) -> Exit:
    """Print how a hub and its servers are.

    Raises:
        CommandFailed: the configuration cannot be used at all, or the running hub cannot be reached.
    """
    if isinstance(source, RemoteSource):
        return await _examine_running(source, is_json=is_json)
    return await _examine_own(source, wait=wait, is_json=is_json)


# -- a hub of this process -----------------------------------------------------------------------------------


async def _examine_own(source: LocalSource, *, wait: float, is_json: bool) -> Exit:
    configuration = configuration_of(source.file)
    began = asyncio.get_running_loop().time()
    hub = await start_local_hub(configuration, os.environ, within=wait)
    try:
        patients = _own_patients(hub, began)
        found = await _diagnose(hub, patients, configuration, configuration.hub.limits)
    finally:
        await hub.aclose()
    if is_json:
        print_json(msgspec.json.encode({"configuration": _in_json(configuration), **_as_json(patients, found)}))
    else:
        _show_configuration(configuration)
        _show(patients, found)
    return Exit.CONFIGURATION if configuration.warnings else _exit(patients)


def _own_patients(hub: LocalHub, began: float) -> list[ServerReport]:
    server_statuses = hub.running.hub.snapshot.server_statuses
    return [_patient(server_statuses[name], hub.settled_at, began) for name in sorted(server_statuses)]


def _patient(server_status: ServerStatus, settled_at: dict[ServerName, float], began: float) -> ServerReport:
    ended = settled_at.get(server_status.server)
    return ServerReport(
        server=server_status.server,
        state=server_status.state,
        reason=None if server_status.state == "disabled" else server_status.reason,
        era=server_status.era,
        tools=len(server_status.tools),
        seconds=None if ended is None else ended - began,
        said=server_status.detail,
        notes=server_status.notes,
    )


def _in_json(configuration: Configuration) -> dict[str, Any]:
    return {
        "file": None if configuration.file is None else str(configuration.file),
        "findings": [finding_as_json(finding, "warning") for finding in configuration.warnings],
        "access": _access(configuration)[0],
    }


def _show_configuration(configuration: Configuration) -> None:
    if configuration.file is None:
        rest = (
            f"; servers are those of {MAP_VARIABLE}"
            if configuration.servers
            else ", so there are only the built-in tools"
        )
        print_output(f"configuration: no file found{rest}")
    else:
        print_output(f"configuration: {configuration.file}")
    for finding in configuration.warnings:
        print_output(f"  {finding.code.number} {finding}\n    mend: {finding.mend}")
    print_output(f"access: {_access(configuration)[1]}")


def _access(configuration: Configuration) -> tuple[str, str]:
    """Who may call the hub that has this configuration, for programs and for people."""
    try:
        mode = access_of(configuration)
    except ConfigError as error:
        return "refused", f"isthmus serve would refuse to start: {error}"
    if mode == "keys":
        return mode, "everybody has to show a key"
    published = configuration.hub.public_url if configuration.hub.is_published else None
    who = "every program on this machine" if published is None else f"everybody who can reach {published}"
    return mode, f"open: {who} may call everything; isthmus token create makes a key"


# -- a hub that runs already ---------------------------------------------------------------------------------


async def _examine_running(source: RemoteSource, *, is_json: bool) -> Exit:
    began = asyncio.get_running_loop().time()
    hub = RemoteHub(source)
    try:
        await hub.list(TOOLS)  # which gives servers that only start their moment
        seconds = asyncio.get_running_loop().time() - began
        patients = [_told_patient(server) for server in read_servers(await hub.servers())]
        found = await _diagnose(hub, patients, None, Limits())
    finally:
        await hub.aclose()
    if is_json:
        told = {"hub": {"url": source.reach.url, "seconds": round(seconds, 3)}}
        print_json(msgspec.json.encode({**told, **_as_json(patients, found)}))
    else:
        print_output(f"hub: {source.reach.url}, reached in {_milliseconds(seconds)}")
        _show(patients, found)
    return _exit(patients)


def _told_patient(server: ServerInfo) -> ServerReport:
    return ServerReport(
        server=server.name,
        state=server.state,
        reason=None if server.state == "disabled" else server.reason,
        era=server.era,
        tools=server.tools,
        said=server.detail,
        notes=server.notes,
    )


# -- both ----------------------------------------------------------------------------------------------------


async def _diagnose(
    hub: HubClient, patients: Sequence[ServerReport], configuration: Configuration | None, limits: Limits
) -> list[Diagnosis]:
    """Look at every server, and at what they all offer; how a running hub is configured is not known."""
    entries = {} if configuration is None else _entries(configuration)
    tools = read_listing(await hub.list(TOOLS), TOOLS).offers
    resources = read_listing(await hub.list(RESOURCES), RESOURCES).offers
    alone = [found for patient in patients for found in of_server(patient, entries.get(patient.server))]
    told = [found for entry in entries.values() for found in of_arguments(entry)]
    return [*alone, *_opened(entries), *told, *of_names(tools), *of_uris(resources), *of_schemas(tools, limits)]


def _entries(configuration: Configuration) -> dict[str, ConfiguredServer]:
    return {
        server.name: ConfiguredServer(server, _place(server.name, configuration)) for server in configuration.servers
    }


def _opened(entries: Mapping[str, ConfiguredServer]) -> list[Diagnosis]:
    return [of_open_path(entry, path) for entry in entries.values() for path in _open_paths(entry)]


def _open_paths(entry: ConfiguredServer) -> list[Path]:
    reach = entry.settings.reach
    return open_paths(reach, program_of(reach, os.environ)) if isinstance(reach, StdioSettings) else []


def _place(name: ServerName, configuration: Configuration) -> str:
    origin = configuration.origins.get(f"servers.{name}")
    if origin is None:
        return f"servers.{name}"
    return origin.path if origin.file is None else f"{origin.path} of {origin.file}"


def _exit(patients: Sequence[ServerReport]) -> Exit:
    return Exit.SUCCESS if all(patient.is_well for patient in patients) else Exit.CALL_FAILED


def _as_json(patients: Sequence[ServerReport], found: Sequence[Diagnosis]) -> dict[str, Any]:
    return {
        "servers": [_patient_as_json(patient) for patient in patients],
        "findings": [
            {
                "code": diagnosis.code.number,
                "kind": diagnosis.code.name,
                "server": diagnosis.server,
                "message": diagnosis.message,
                "mend": diagnosis.mend,
            }
            for diagnosis in found
        ],
    }


def _patient_as_json(patient: ServerReport) -> dict[str, Any]:
    told = msgspec.structs.asdict(patient)
    return told if patient.seconds is None else {**told, "seconds": round(patient.seconds, 3)}


# -- showing -------------------------------------------------------------------------------------------------


def _show(patients: Sequence[ServerReport], found: Sequence[Diagnosis]) -> None:
    rows = [_row(patient) for patient in patients]
    if sys.stdout.isatty():
        show_table(sys.stdout, [("", rows)], ("", "bold", "", "", "", ""))
    else:
        print_output("\n".join(aligned(rows)))
    for diagnosis in sorted(found, key=lambda diagnosis: not diagnosis.is_grave):
        _show_one(diagnosis)
    broken = [patient.server for patient in patients if not patient.is_well]
    print_output(f"\nbroken: {', '.join(broken)}" if broken else "\nall servers are well")


def _row(patient: ServerReport) -> tuple[str, ...]:
    return (
        "✓" if patient.is_well else "✗",
        patient.server,
        patient.state,
        f"{patient.tools} tool{'' if patient.tools == 1 else 's'}",
        "" if patient.seconds is None else _milliseconds(patient.seconds),
        spoken(patient.era),
    )


def _show_one(diagnosis: Diagnosis) -> None:
    mark = "✗" if diagnosis.is_grave else "·"
    print_output(f"\n{mark} {diagnosis.code.number} {diagnosis.server}: {first_line(diagnosis.message)}")
    print_output(f"    mend: {first_line(diagnosis.mend)}")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
