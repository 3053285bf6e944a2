"""Every kind of mistake, made once: its code, its place and its message."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from isthmus.cli.config import access_of
from isthmus.config import finding_codes
from isthmus.config.finding_codes import CODES, FindingCode
from isthmus.config.findings import ConfigError, Finding
from isthmus.config.load import load

KEY = "k3y-of-the-planner-0123"
LONELY = f'[callers.a]\nkey = "{KEY}"\nallow = ["*"]\n'


@dataclass(frozen=True)
class Mistake:
    """A file with one thing wrong, and what is said of it."""

    code: FindingCode
    text: str
    message: str
    file: str = "isthmus.toml"
    environment: dict[str, str] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)


def server(line: str) -> str:
    return f'[servers.a]\ncommand = "x"\n{line}\n'


def entry(members: str) -> str:
    return f'{{"mcpServers": {{"a": {{{members}}}}}}}'


MISTAKES = [
    Mistake(
        finding_codes.UNRESOLVED_VARIABLE,
        server('args = ["${GONE}"]'),
        "isthmus.toml: servers.a.args.0 has '${GONE}', which is not set; it stays as it is",
    ),
    Mistake(
        finding_codes.UNREADABLE_SECRET,
        server('env = { K = "file:/no/such" }'),
        "isthmus.toml: servers.a.env.K must name a readable file, not file:/no/such (No such file or directory)",
    ),
    Mistake(
        finding_codes.CODE_NOT_RUN,
        entry('"url": "http://a", "headersHelper": "x"'),
        ".mcp.json: mcpServers.a.headersHelper is a program that prints headers; the hub does not run it",
        ".mcp.json",
    ),
    Mistake(
        finding_codes.UNANSWERED_INPUT,
        '{"servers": {"a": {"url": "http://a", "headers": {"K": "${input:my-key}"}}}}',
        "mcp.json: servers.a.headers.K has '${ISTHMUS_INPUT_MY_KEY}', which is not set; it stays as it is",
        ".vscode/mcp.json",
    ),
    Mistake(finding_codes.ENV_FILE, "", ".env: line 1 is not NAME=value and is skipped", beside={".env": "hunter22"}),
    Mistake(
        finding_codes.BAD_VALUE,
        server("timeout = 0"),
        "isthmus.toml: servers.a.timeout must be over 0 and at most 86400 seconds, not 0",
    ),
    Mistake(
        finding_codes.UNKNOWN_KEY,
        server("tiemout = 5"),
        "isthmus.toml: servers.a.tiemout is not known and has no effect (did you mean timeout?)",
    ),
    Mistake(
        finding_codes.IDLE_KEY, server("headers = {}"), "isthmus.toml: servers.a.headers has no effect beside command"
    ),
    Mistake(finding_codes.NO_WAY, "[servers.a]", "isthmus.toml: servers.a needs `command` or `url`"),
    Mistake(
        finding_codes.SEVERAL_WAYS,
        server('url = "http://a"'),
        "isthmus.toml: servers.a must have a command or a url, not both",
    ),
    Mistake(
        finding_codes.TRANSPORT_WORD,
        server('type = "sse"'),
        "isthmus.toml: servers.a.type must be stdio beside command, not 'sse'",
    ),
    Mistake(
        finding_codes.LOOKS_LIKE_SSE,
        '[servers.a]\nurl = "http://a/sse"\ntype = "http"',
        "isthmus.toml: servers.a.type is http, but an address that ends in /sse usually has the earlier transport",
    ),
    Mistake(
        finding_codes.RENAMED,
        '[servers."a b"]\ncommand = "x"',
        'isthmus.toml: servers."a b" cannot be the name of a server, so the server is called a-b '
        "(use 1 to 50 letters, digits, _ and -)",
    ),
    Mistake(
        finding_codes.LOOK_ALIKES,
        '[servers.a-b]\ncommand = "x"\n[servers.A_B]\ncommand = "x"',
        "isthmus.toml: servers has names that differ only by case or by - and _: a-b, A_B",
    ),
    Mistake(
        finding_codes.TAKEN_NAME,
        server("") + '[mcpServers.a]\ncommand = "y"',
        "isthmus.toml: servers.a is already under mcpServers and is skipped",
    ),
    Mistake(
        finding_codes.MILLISECONDS,
        entry('"command": "x", "timeout": 60000'),
        "mcp.json: mcpServers.a.timeout is over 600, so it is read as milliseconds: 60 seconds",
        "mcp.json",
    ),
    Mistake(
        finding_codes.MILLISECONDS,
        entry('"command": "x", "timeout": 500'),
        ".mcp.json: mcpServers.a.timeout is below 1000, which Claude Code ignores "
        "(write it in milliseconds, or remove it)",
        ".mcp.json",
    ),
    Mistake(
        finding_codes.CAPPED,
        entry('"command": "x", "timeout": 7200'),
        "mcp.json: mcpServers.a.timeout is 7200 seconds; a call may take at most 3600",
        ".roo/mcp.json",
    ),
    Mistake(
        finding_codes.REPEATED_KEY,
        entry('"command": "x", "command": "y"'),
        "mcp.json: mcpServers.a.command is written twice in one object; the last one counts",
        "mcp.json",
    ),
    Mistake(
        finding_codes.NOT_A_SERVER,
        "extensions:\n  developer: {type: builtin}\n",
        "config.yaml: extensions has entries that only Goose can run; the hub skips them: developer",
        "goose/config.yaml",
    ),
    Mistake(
        finding_codes.MISSING_FILE,
        'import = ["/no/such.json"]',
        "isthmus.toml: import.0 must name a file that is there, not '/no/such.json'",
    ),
    Mistake(
        finding_codes.UNREADABLE_FILE,
        "",
        "isthmus.ini: must be a .toml, .yaml or .json file, not '.ini'",
        "isthmus.ini",
    ),
    Mistake(finding_codes.SYNTAX, "{", "mcp.json: line 1, column 2 is not JSON: Expecting property name", "mcp.json"),
    Mistake(
        finding_codes.NO_SERVERS,
        '{"theme": 1}',
        "mcp.json: has no servers (servers belong under mcpServers)",
        "mcp.json",
    ),
    Mistake(
        finding_codes.UNKNOWN_TABLE,
        "[server.a]",
        "isthmus.toml: server is not known and has no effect (did you mean servers?)",
    ),
    Mistake(
        finding_codes.UNKNOWN_CLIENT,
        'import = ["cursr"]',
        "isthmus.toml: import.0 must be a client or a path, not 'cursr' (did you mean cursor?)",
    ),
    Mistake(
        finding_codes.NOTHING_TO_IMPORT, 'import = ["cursor"]', "isthmus.toml: import.0 has no file of Cursor to read"
    ),
    Mistake(
        finding_codes.OTHER_PROJECTS,
        '{"projects": {"/other": {"mcpServers": {"a": {"command": "x"}}}}, "mcpServers": {}}',
        ".claude.json: projects has servers for 1 other folders; the hub skips them",
        ".claude.json",
    ),
    Mistake(
        finding_codes.SERVER_MAP,
        "",
        "MCP_SERVER_MAP must be a JSON object of names and addresses, not another text",
        environment={"MCP_SERVER_MAP": "[]"},
    ),
    Mistake(
        finding_codes.BAD_CALLER,
        LONELY + '[callers.b]\nallow = ["*"]',
        "isthmus.toml: callers.b.key must be given, not left out (this caller is left out)",
    ),
    Mistake(
        finding_codes.WEAK_KEY,
        LONELY + '[callers.b]\nkey = "abc"\nallow = ["*"]',
        "isthmus.toml: callers.b.key must have 16 characters or more, not 3 (this caller is left out; make one with",
    ),
    Mistake(
        finding_codes.MAY_CALL_NOTHING,
        f'[callers.a]\nkey = "{KEY}"',
        'isthmus.toml: callers.a may call nothing (allow = ["*"] would allow everything)',
    ),
    Mistake(
        finding_codes.SHARED_KEY,
        LONELY
        + LONELY.replace("callers.a", "callers.b")
        + LONELY.replace("callers.a", "callers.c").replace("k3y", "K3Y"),
        "isthmus.toml: callers have the same key: a, b (these callers are left out)",
    ),
    Mistake(
        finding_codes.NO_USABLE_CALLER,
        "[callers.a]",
        "isthmus.toml: callers are configured but none is usable, and the hub must not be open",
    ),
    Mistake(
        finding_codes.OPEN_TO_NETWORK,
        '[hub]\nhost = "0.0.0.0"',
        "hub.host must be loopback while no caller is configured, not '0.0.0.0' ",
    ),
    Mistake(
        finding_codes.BAD_AGENT,
        '[relay.agents.kitchen]\nallow = ["a*"]',
        "isthmus.toml: relay.agents.kitchen.allow.0 must be *, server.*, server.tool, agent:KEY, tag:NAME or hint:NAME,"
        " not 'a*'",
    ),
    Mistake(
        finding_codes.KEY_STORE,
        '[hub]\nstate = "state"',
        "",
        beside={"state/keys/keys.json": "[]"},
    ),
    Mistake(
        finding_codes.BAD_TENANT,
        '[tenants.acme]\ndenny = ["files"]',
        "isthmus.toml: tenants.acme must have only allow, deny, max_calls, not 'denny' (did you mean deny? Until",
    ),
    Mistake(
        finding_codes.BAD_ISSUER,
        '[issuers.corp]\nissuer = "https://login.example"\naudience = "a"\nallow = ["*"]\n[issuers.b]\nissuer = "x"',
        "isthmus.toml: issuers.b.audience must be given where the hub has no public_url, not left out (this issuer",
    ),
    Mistake(
        finding_codes.UNKNOWN_SERVER,
        '[servers.files]\ncommand = "x"\n[tenants.acme]\ndeny = ["Files.delete"]',
        "isthmus.toml: tenants.acme.deny.0 must name a server that is configured, not 'Files.delete' "
        "(did you mean files.delete?)",
    ),
    Mistake(
        finding_codes.BAD_SET,
        server('[sets.a]\ntools = ["*"]'),
        "isthmus.toml: sets.a must have another name than a server, not 'a' (rename the set; until then callers",
    ),
    Mistake(
        finding_codes.UNKNOWN_SET,
        '[callers.ann]\nkey = "0123456789abcdef"\nallow = ["*"]\nset = "dev"',
        "isthmus.toml: callers.ann.set must be the name of a set, not 'dev'",
    ),
    Mistake(
        finding_codes.SET_NAMES_COLLIDE,
        '[sets.dev]\ntools = ["*"]\n[sets.dev.tool]\n"a.x" = {name = "z"}\n"a.y" = {name = "z"}',
        "isthmus.toml: sets.dev gives the name z to a.x, a.y",
    ),
    Mistake(
        finding_codes.BAD_FLEET,
        '[fleets.dev]\nmembers = "a.b"',
        "isthmus.toml: fleets.dev.members: a member must be server-*, dialin:server-*, agent:KEY"
        " or tag:NAME, not 'a.b'",
    ),
    Mistake(finding_codes.IDLE_SET_ENTRY, "[sets.dev]", "isthmus.toml: sets.dev picks nothing"),
    Mistake(
        finding_codes.BAD_APPROVAL_RULE,
        '[approvals.a]\ntools = ["*"]\nby = "nobody"\n',
        "isthmus.toml: approvals.a.by must be operator or caller, not 'nobody' (write by = \"operator\", or remove it)",
    ),
    Mistake(
        finding_codes.IDLE_APPROVAL_RULE,
        '[approvals.a]\ntools = ["*"]\n[approvals.b]\ntools = ["x.y"]\napprove = false\n',
        "isthmus.toml: approvals.b decides about no call: a comes first and matches the same calls (move it before a)",
    ),
    Mistake(
        finding_codes.BAD_BUDGET,
        "[budgets.a]\ncalls = 'many'\n",
        "isthmus.toml: budgets.a.calls must be a whole number, not 'many'",
    ),
    Mistake(
        finding_codes.IDLE_BUDGET,
        '[callers.agent]\nkey = "0123456789abcdef"\nallow = ["*"]\n[budgets.a]\ncalls = 1\ncallers = ["agnet"]\n',
        "isthmus.toml: budgets.a.callers.0 must name one of the callers in this file, not 'agnet'",
    ),
    Mistake(
        finding_codes.BAD_EXTENSION,
        '[extensions]\nidentity = ["nobody-has-this"]',
        "isthmus.toml: extensions.identity.nobody-has-this must be an entry point of isthmus.identity "
        "that is installed",
    ),
]


def found(mistake: Mistake, folder: Path) -> list[Finding]:
    file = folder / mistake.file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(mistake.text)
    for name, text in mistake.beside.items():
        beside = file.parent / name
        beside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside.write_text(text)
        beside.chmod(0o600)
    try:
        configuration = load(file, mistake.environment, folder, folder / "home")
        access_of(configuration)
    except ConfigError as error:
        return list(error.findings)
    return list(configuration.warnings)


def test_every_kind_of_mistake_is_made_here() -> None:
    # Only the lists of servers tell which tools cannot be in a set, and which patterns and arguments name none.
    assert {mistake.code for mistake in MISTAKES} == set(CODES) - {
        finding_codes.LEFT_OUT_OF_SET,
        finding_codes.IDLE_PATTERN,
        finding_codes.LACKING_ARGUMENT,
    }


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.code.name)
def test_a_mistake_is_named_exactly(mistake: Mistake, tmp_path: Path) -> None:
    received = [finding for finding in found(mistake, tmp_path) if finding.code is mistake.code]
    assert [str(finding)[: len(mistake.message)] for finding in received] == [mistake.message]
    assert received[0].fix
