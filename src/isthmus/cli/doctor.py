"""`isthmus doctor`: checks the configuration and each server, and says how to fix what is wrong.

Each kind of finding has a number that never changes (`docs/operating.md` lists them all); the texts may. Findings of
a configuration have numbers of their own (`config.codes`). The `check_*` functions decide, the rest asks and prints.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from isthmus.cli.config import access_of, configuration_of, finding_as_json, servers_folder
from isthmus.cli.documents import ListedFeature, read_listing, read_servers
from isthmus.cli.exits import Exit
from isthmus.cli.hub import HubSource, find_hub, with_hub
from isthmus.cli.lists import protocol_name
from isthmus.cli.local_hub import start_local_hub
from isthmus.cli.options import with_json, with_wait
from isthmus.cli.output import (
    Row,
    aligned,
    counted,
    first_line,
    print_hanging,
    print_json,
    print_output,
    print_table,
)
from isthmus.cli.rest_client import HubClient, RemoteSource
from isthmus.cli.running import quiet_logs, run_command
from isthmus.config import codes
from isthmus.config.codes import FindingCode
from isthmus.config.files import MAP_VARIABLE
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.redaction import secrets_of
from isthmus.config.settings import Configuration
from isthmus.core.catalog.argument_validation import UnusableSchema, compile_check
from isthmus.core.catalog.names import LLM_LENGTH_MAX, Pair, is_qualified, llm_form, split_qualified
from isthmus.core.settings import Limits
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.process_output import telling_line
from isthmus.upstream.server_settings import (
    AgentSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)
from isthmus.upstream.stdio import open_paths, program_of
from isthmus.wire.mcp.lists import RESOURCES, TOOLS

SLOW_SECONDS = 5.0
"""A slower start keeps people waiting; clients give up after about ten seconds."""

SCHEMAS_MAX = 2_000
"""At most so many schemas are checked: compiling one takes up to a millisecond."""

CERTIFICATE_ENV = '"env": {"SSL_CERT_FILE": "${SSL_CERT_FILE}"} (Node.js: NODE_EXTRA_CA_CERTS)'
"""How a server gets the certificates of a company's proxy: it has only the variables of its entry and ten harmless
ones."""

DOWNLOADERS = ("npx", "bunx", "uvx", "pipx", "docker", "podman")
"""Programs that may download a server before they start it."""

# -- servers that cannot be used -------------------------------------------------------------------------------------

DIED = FindingCode("ISD-101", "server-died", "run its command by hand and read its output")
NOT_STARTED = FindingCode("ISD-102", "command-not-started", "install the program, or correct command")
NOT_REACHED = FindingCode("ISD-103", "not-reached", "start the server, or correct url")
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
WANTS_LOGIN = FindingCode("ISD-116", "wants-login", "run the command in the message: isthmus login SERVER")

# -- servers that work, with something to note -----------------------------------------------------------------------

SLOW = FindingCode("ISD-201", "slow-start", "nothing, unless callers complain: it is listed as soon as it is ready")
OPEN_FOLDER = FindingCode("ISD-202", "open-folder", "remove the write permission of others: chmod o-w FOLDER")
TOLD_SECRET = FindingCode("ISD-203", "secret-in-arguments", "pass it by env, if the server reads it there")
NAMES_CLASH = FindingCode("ISD-301", "names-clash", "rename one of the servers, if the digits are in the way")
NAME_CUT = FindingCode("ISD-302", "name-cut", "give the server a shorter name")
SHARED_URI = FindingCode("ISD-303", "shared-uri", "read it by its listed name: isthmus resources")
ODD_LIST = FindingCode("ISD-401", "odd-list", "report it to the server's author; the rest of the server works")
LIST_CUT = FindingCode("ISD-402", "list-cut", "raise limits.tools_per_server if you need all of them")
NOT_CHECKED = FindingCode(
    "ISD-403", "schema-not-checked", "report it to the server's author; the server checks by itself"
)
UNLISTED = FindingCode("ISD-404", "unlisted", "nothing, if callers know its methods; to list them, declare its tools")
SET_ENTRY = FindingCode("ISD-405", "set-entry", "correct the entry of the set")
DISABLED = FindingCode("ISD-501", "disabled", "remove disabled to use it")

CODES: tuple[FindingCode, ...] = tuple(code for code in list(globals().values()) if isinstance(code, FindingCode))
"""All of them, in the order of their numbers."""

_CAUSES: Sequence[tuple[str, FindingCode]] = (
    ("could not be started", NOT_STARTED),
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

_MCP_SIGNS = ("http 406", "event-stream", "session", "initializ", "protocol version", "mcp-")
"""Words, in lower case, with which an MCP server rejects a request of plain JSON-RPC."""

_REDIRECT = re.compile(r"redirects to (\S+), which")

_NOT_IN_ENTRY = (NO_ANSWER, NOT_CONNECTED, HTTP_ERROR, SLOW, UNLISTED)
"""Findings that no change of the server's entry fixes."""

_JSONRPC_FIXES = {
    NOT_REACHED: "start the server, or correct rpc",
    WRONG_TRANSPORT: "write url instead of rpc: the server there speaks MCP",
    NOT_MCP: "correct rpc: the server there does not speak JSON-RPC",
}
_AGENT_FIXES = {
    NOT_REACHED: "start the agent, or correct agent",
    NOT_MCP: "correct agent: there is no A2A card below that address",
    ELSEWHERE: "add the card's addresses to origins, if you trust them with the same credentials",
}

WORKING = ("ready", "disabled")


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


@click.command()
@with_hub
@with_wait
@with_json
@click.option("--codes", "lists_codes", is_flag=True, help="List every kind of finding and its fix.")
def doctor(source: HubSource, wait: float, *, is_json: bool, lists_codes: bool) -> int:
    """Check the configuration and each server, and say how to fix what is wrong.

    The running hub of the configuration tells the state of its servers. Otherwise, and with --private, each server is
    started once, and its start is timed.
    """
    if lists_codes:
        return show_codes(is_json=is_json)
    quiet_logs()
    return run_command(examine(source, wait=wait, is_json=is_json))


def show_codes(*, is_json: bool) -> Exit:
    """Print every kind of finding: the doctor's, then those of configurations."""
    known = [*CODES, *codes.CODES]
    if is_json:
        listed = [{"code": code.number, "kind": code.name, "fix": code.fix} for code in known]
        print_json(msgspec.json.encode({"codes": listed}))
    else:
        print_output("\n".join(aligned([(code.number, code.name, code.fix) for code in known])))
    return Exit.SUCCESS


async def examine(source: HubSource, *, wait: float, is_json: bool) -> Exit:
    """Print the state of a hub and its servers.

    Raises:
        CommandFailed: the configuration cannot be used, or the running hub cannot be reached.
    """
    loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    configuration, settled_at = None, {}
    if isinstance(source, RemoteSource):
        hub = HubClient(source)
    else:
        configuration = configuration_of(source.file)
        running = None if source.is_private else find_hub(source.file)
        if running is not None:
            hub = HubClient(running)
        else:
            local = await start_local_hub(configuration, os.environ, within=wait)
            hub, settled_at = local.client, local.settled_at
    try:
        await hub.list(TOOLS)  # gives starting servers a moment
        seconds = loop.time() - began
        reports = [
            ServerReport(
                server=server.name,
                state=server.state,
                reason=None if server.state == "disabled" else server.reason,
                era=server.era,
                tools=server.tools,
                seconds=settled_at[name] - began if (name := ServerName(server.name)) in settled_at else None,
                said=server.detail,
                notes=server.notes,
            )
            for server in read_servers(await hub.servers())
        ]
        found = await _diagnose(hub, reports, configuration)
    finally:
        await hub.aclose()
    described: dict[str, object]
    if configuration is not None:
        described = {
            "configuration": {
                "file": None if configuration.file is None else str(configuration.file),
                "findings": [finding_as_json(finding, "warning") for finding in configuration.warnings],
                "access": _access(configuration)[0],
            }
        }
    else:
        described = {"hub": {"url": hub.url, "seconds": round(seconds, 3)}}
    if is_json:
        print_json(msgspec.json.encode({**described, **_as_json(reports, found)}))
    else:
        if configuration is not None:
            _print_configuration(configuration)
        else:
            print_output(f"hub: {hub.url}, reached in {_milliseconds(seconds)}")
        _print(reports, found)
    if configuration is not None and configuration.warnings:
        return Exit.CONFIGURATION
    return Exit.SUCCESS if all(report.is_well for report in reports) else Exit.CALL_FAILED


async def _diagnose(
    hub: HubClient, reports: Sequence[ServerReport], configuration: Configuration | None
) -> list[Diagnosis]:
    """Check every server, and the lists of all together. The configuration of a running hub is unknown."""
    entries: dict[str, ConfiguredServer] = {}
    for server in () if configuration is None else configuration.servers:
        origin = None if configuration is None else configuration.origins.get(f"servers.{server.name}")
        place = f"servers.{server.name}" if origin is None else origin.path
        if origin is not None and origin.file is not None:
            place += f" of {origin.file}"
        entries[server.name] = ConfiguredServer(server, place)
    limits = Limits() if configuration is None else configuration.hub.limits
    tools = read_listing(await hub.list(TOOLS), TOOLS).offers
    resources = read_listing(await hub.list(RESOURCES), RESOURCES).offers
    found = [each for report in reports for each in check_server(report, entries.get(report.server))]
    for entry in entries.values():
        reach = entry.settings.reach
        if isinstance(reach, StdioSettings):
            found += [check_open_path(entry, path) for path in open_paths(reach, program_of(reach, os.environ))]
    for entry in entries.values():
        found += check_arguments(entry)
    # The other findings are those of the file, which are printed with it.
    found += [
        Diagnosis(SET_ENTRY, each.path, each.problem, each.fix)
        for each in await hub.findings()
        if each.code in (codes.LEFT_OUT_OF_SET.number, codes.IDLE_SET_ENTRY.number)
        and (configuration is None or each.path not in {warning.path for warning in configuration.warnings})
    ]
    return [*found, *check_names(tools), *check_uris(resources), *check_schemas(tools, limits)]


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
        if "it has no tools/list" not in note:
            code = LIST_CUT if "entries and was cut" in note else ODD_LIST
            found.append(Diagnosis(code, report.server, note, code.fix))
            continue
        reach = None if entry is None else entry.settings.reach
        code = WRONG_TRANSPORT if isinstance(reach, JsonRpcSettings) and _is_mcp(note, reach) else UNLISTED
        found.append(_finding(code, report, entry, note))
    return found


def _finding(code: FindingCode, report: ServerReport, entry: ConfiguredServer | None, message: str) -> Diagnosis:
    return Diagnosis(code, report.server, message, code.fix if entry is None else _fix(code, report, entry))


def _cause(report: ServerReport, entry: ConfiguredServer | None) -> FindingCode:
    reason = report.reason or ""
    if report.state == "starting":
        return NO_ANSWER
    if report.state == "away":
        return AWAY
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
        return f"run it by hand and read its output: {redact(shlex.join([reach.command, *reach.args]))}"
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


def check_open_path(entry: ConfiguredServer, path: Path) -> Diagnosis:
    """The finding for a path where any user could place code that the server runs as the hub's user."""
    text = f"every user of this machine can write to {path}, where it starts or its program is"
    return Diagnosis(OPEN_FOLDER, entry.settings.name, text, f"chmod o-w {shlex.quote(str(path))}")


def check_arguments(entry: ConfiguredServer) -> list[Diagnosis]:
    """A finding if the arguments of a process hold a secret: they are public."""
    reach = entry.settings.reach
    if not isinstance(reach, StdioSettings) or not secrets_of({"args": list(reach.args)}):
        return []
    text = "its args seem to hold a secret; every user of this machine can read them while it runs"
    return [Diagnosis(TOLD_SECRET, entry.settings.name, text, f"in {entry.place}, {TOLD_SECRET.fix}")]


# -- the lists of all servers ----------------------------------------------------------------------------------------


def check_names(tools: Iterable[ListedFeature]) -> list[Diagnosis]:
    """Findings for tools whose names for language models are changed."""
    shared: defaultdict[str, list[Pair]] = defaultdict(list)
    for offer in tools:
        pair = (ServerName(offer.server), FeatureName(offer.name.removeprefix(f"{offer.server}.")))
        shared[llm_form(pair)].append(pair)
    found = []
    for name, pairs in shared.items():
        if len(pairs) > 1:
            both = " and ".join(sorted(f"{server}.{tool}" for server, tool in pairs))
            text = f"{both} would both be {name} to a language model, so they get digits at the end"
            found.append(Diagnosis(NAMES_CLASH, pairs[0][0], text, NAMES_CLASH.fix))
    for name, pairs in shared.items():
        if len(name) > LLM_LENGTH_MAX:
            server, tool = pairs[0]
            text = f"{server}.{tool} has {len(name)} characters; language models see {LLM_LENGTH_MAX} of them"
            found.append(Diagnosis(NAME_CUT, server, text, NAME_CUT.fix))
    return found


def check_uris(resources: Iterable[ListedFeature]) -> list[Diagnosis]:
    """Findings for resources that several servers have under one URI."""
    shared: defaultdict[str, list[str]] = defaultdict(list)
    for offer in resources:
        if is_qualified(offer.name):
            server, own = split_qualified(offer.name)
            shared[own].append(server)
    return [
        Diagnosis(SHARED_URI, servers[0], f"{' and '.join(servers)} have the same URI: {own}", SHARED_URI.fix)
        for own, servers in shared.items()
    ]


def check_schemas(tools: Sequence[ListedFeature], limits: Limits) -> list[Diagnosis]:
    """Findings for tools whose arguments the hub cannot check."""
    found = []
    for offer in tools[:SCHEMAS_MAX]:
        try:
            compile_check(offer.definition.get("inputSchema", msgspec.Raw(b"{}")), limit_bytes=limits.schema_bytes)
        except UnusableSchema as why:
            text = f"arguments of {offer.name} are not checked: {why}"
            found.append(Diagnosis(NOT_CHECKED, offer.server, text, NOT_CHECKED.fix))
    return found


# -- printing --------------------------------------------------------------------------------------------------------


def _as_json(reports: Sequence[ServerReport], found: Sequence[Diagnosis]) -> dict[str, Any]:
    servers = [msgspec.structs.asdict(report) for report in reports]
    for server in servers:
        if server["seconds"] is not None:
            server["seconds"] = round(server["seconds"], 3)
    return {
        "servers": servers,
        "findings": [
            {
                "code": diagnosis.code.number,
                "kind": diagnosis.code.name,
                "server": diagnosis.server,
                "message": diagnosis.message,
                "fix": diagnosis.fix,
            }
            for diagnosis in found
        ],
    }


def _print_configuration(configuration: Configuration) -> None:
    if configuration.file is not None:
        print_output(f"configuration: {configuration.file}")
        if (folder := servers_folder(configuration)) is not None:
            print_output(f"  its servers run in {folder}, where their relative arguments start")
    elif configuration.servers:
        print_output(f"configuration: no file found; servers come from {MAP_VARIABLE}")
    else:
        print_output("configuration: no file found, so there are only the built-in tools")
    by_code: dict[FindingCode, list[Finding]] = {}
    for finding in configuration.warnings:
        by_code.setdefault(finding.code, []).append(finding)
    for code, group in by_code.items():
        is_one = len(group) == 1
        if not is_one:
            print_output(f"  {code.number} {counted(len(group), 'finding')}: {code.name}")
        fixes = list(dict.fromkeys(finding.fix for finding in group))
        for finding in group:
            print_hanging(f"  {code.number if is_one else ' '} {finding.problem}", "    " if is_one else "      ")
            if len(fixes) > 1:
                print_hanging(f"      fix: {finding.fix}", "           ")
        if len(fixes) == 1:
            print_hanging(f"    fix: {fixes[0]}", "         ")
    print_hanging(f"access: {_access(configuration)[1]}", "        ")


def _access(configuration: Configuration) -> tuple[str, str]:
    """Who may call a hub with this configuration, for programs and for people."""
    try:
        mode = access_of(configuration)
    except ConfigError as error:
        return "refused", f"isthmus serve would refuse to start: {error}"
    if mode == "keys":
        return mode, "every caller needs a key"
    published = configuration.hub.public_url if configuration.hub.is_published else None
    who = "every program on this machine" if published is None else f"everybody who can reach {published}"
    return mode, f"open: {who} may call everything; isthmus token create makes a key"


def _print(reports: Sequence[ServerReport], found: Sequence[Diagnosis]) -> None:
    rows: list[Row] = [
        (
            "✓" if report.is_well else "✗",
            report.server,
            report.state,
            counted(report.tools, "tool"),
            "" if report.seconds is None else _milliseconds(report.seconds),
            protocol_name(report.era),
        )
        for report in reports
    ]
    head: Row = (" ", "SERVER", "STATE", "TOOLS", "STARTED IN", "PROTOCOL")
    if all(report.seconds is None for report in reports):  # a running hub does not tell it
        head, rows = (*head[:4], head[5]), [(*row[:4], row[5]) for row in rows]
    print_table(head, rows, ("", "bold", *([""] * (len(head) - 2))))
    by_code: dict[tuple[bool, FindingCode], list[Diagnosis]] = {}
    for diagnosis in sorted(found, key=lambda diagnosis: not diagnosis.is_grave):
        by_code.setdefault((diagnosis.is_grave, diagnosis.code), []).append(diagnosis)
    for (is_grave, code), group in by_code.items():
        print_output("")
        _print_group("✗" if is_grave else "·", code, group)
    failed = [report.server for report in reports if not report.is_well]
    if failed:
        print_output(f"\n{len(failed)} of {counted(len(reports), 'server')} failed: {', '.join(failed)}")
    else:
        print_output("\nall servers are well")


def _print_group(mark: str, code: FindingCode, group: Sequence[Diagnosis]) -> None:
    """Print the findings with one code: a sentence about several servers is printed once."""
    servers: dict[tuple[str, str], list[str]] = {}
    for diagnosis in group:
        servers.setdefault((first_line(diagnosis.message), first_line(diagnosis.fix)), []).append(diagnosis.server)
    fixes = {fix for _, fix in servers}
    if len(servers) == 1:
        ((message, fix),) = servers
        print_hanging(f"{mark} {code.number} {', '.join(servers[message, fix])}: {message}", "    ")
        print_hanging(f"    fix: {fix}", "         ")
        return
    print_output(f"{mark} {code.number} {counted(len(group), 'finding')}: {code.name}")
    for (message, fix), names in servers.items():
        print_hanging(f"    {', '.join(names)}: {message}", "      ")
        if len(fixes) > 1:
            print_hanging(f"      fix: {fix}", "           ")
    if len(fixes) == 1:
        print_hanging(f"    fix: {fixes.pop()}", "         ")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
