"""The kinds of things that can be wrong with a configuration, each under a number that stays the same.

Texts change, numbers do not: a script may look for one, and `docs/configuration.md` lists them all. What is
wrong in a given file is a `config.findings.Finding`, which has one of these. Read by every module of this
room, and by the commands that print findings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FindingCode:
    """One kind of finding."""

    number: str
    name: str
    mend: str
    """What to do about it, where the finding itself has no better advice."""

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


# -- what a file borrows from elsewhere ----------------------------------------------------------------------

UNRESOLVED_VARIABLE = FindingCode(
    "ISC-101", "unresolved-variable", "set the variable where the hub starts, or in the .env beside the file"
)
UNREADABLE_SECRET = FindingCode("ISC-102", "unreadable-secret", "make the file that it names, readable for the hub")
CODE_NOT_RUN = FindingCode("ISC-103", "code-not-run", "run it yourself and give its output by a variable")
UNANSWERED_INPUT = FindingCode("ISC-104", "unanswered-input", "set the variable that the finding names")
ENV_FILE = FindingCode("ISC-105", "env-file", "write it as lines of NAME=value in UTF-8")

# -- servers -------------------------------------------------------------------------------------------------

BAD_VALUE = FindingCode("ISC-201", "bad-value", "write what the finding asks for, then: isthmus config check")
UNKNOWN_KEY = FindingCode("ISC-202", "unknown-key", "correct its spelling or take it out")
IDLE_KEY = FindingCode("ISC-203", "idle-key", "take it out")
NO_WAY = FindingCode("ISC-204", "no-way-to-reach", "give it one of command, url, rpc, agent or python")
SEVERAL_WAYS = FindingCode("ISC-205", "several-ways-to-reach", "leave one of command, url, rpc, agent and python")
TRANSPORT_WORD = FindingCode("ISC-206", "transport-word", "correct type, or take it out: the hub finds out by itself")
LOOKS_LIKE_SSE = FindingCode("ISC-207", "looks-like-sse", 'write type = "sse", or take type out')
RENAMED = FindingCode("ISC-208", "server-renamed", "give the server a name of letters, digits, _ and -")
LOOK_ALIKES = FindingCode("ISC-210", "names-look-alike", "rename one of them")
TAKEN_NAME = FindingCode("ISC-211", "name-taken", "rename one of the two servers")
MILLISECONDS = FindingCode(
    "ISC-212", "milliseconds", "nothing if that is meant; if not, write it in the unit of its client"
)
CAPPED = FindingCode("ISC-213", "timeout-capped", "raise limits.hard_seconds if it needs longer")
REPEATED_KEY = FindingCode("ISC-214", "repeated-key", "take one of the two out")
NOT_A_SERVER = FindingCode("ISC-215", "not-a-server", "nothing: only that client can run it")

# -- files ---------------------------------------------------------------------------------------------------

MISSING_FILE = FindingCode("ISC-301", "missing-file", "correct the path, or make the file")
UNREADABLE_FILE = FindingCode("ISC-302", "unreadable-file", "make it a text file that the hub may read")
SYNTAX = FindingCode("ISC-303", "syntax", "correct the line that the finding names")
NO_SERVERS = FindingCode("ISC-304", "no-servers", "put servers under mcpServers")
UNKNOWN_TABLE = FindingCode("ISC-305", "unknown-table", "correct its spelling or take it out")
UNKNOWN_CLIENT = FindingCode("ISC-306", "unknown-client", "see the names with: isthmus import --help")
NOTHING_TO_IMPORT = FindingCode("ISC-307", "nothing-to-import", "take the client out of import, or install it")
OTHER_PROJECTS = FindingCode("ISC-308", "other-projects", "start in the folder whose servers you want")
SERVER_MAP = FindingCode("ISC-309", "server-map", 'write MCP_SERVER_MAP as JSON: {"name": "http://host:port"}')

# -- callers -------------------------------------------------------------------------------------------------

BAD_CALLER = FindingCode("ISC-401", "bad-caller", "mend the entry: until then its owner is refused")
WEAK_KEY = FindingCode("ISC-402", "weak-key", "make one with: openssl rand -hex 32")
MAY_CALL_NOTHING = FindingCode("ISC-403", "may-call-nothing", 'give it allow = ["server.*"], or take it out')
SHARED_KEY = FindingCode("ISC-404", "shared-key", "give each caller a key of its own")
NO_USABLE_CALLER = FindingCode("ISC-405", "no-usable-caller", "mend one of the callers")
OPEN_TO_NETWORK = FindingCode("ISC-406", "open-to-network", "add a caller, or listen on 127.0.0.1")
BAD_AGENT = FindingCode("ISC-407", "bad-agent", "mend the entry, then: isthmus config check")
KEY_STORE = FindingCode("ISC-408", "key-store", "put the file back or mend it, then: isthmus token list")
BAD_TENANT = FindingCode("ISC-411", "bad-tenant", "mend the entry: until then nobody of the tenant may call anything")
BAD_ISSUER = FindingCode("ISC-412", "bad-issuer", "mend the entry: until then its tokens are refused")
UNKNOWN_SERVER = FindingCode(
    "ISC-413", "unknown-server", "correct the name; nothing, if a server of that name will dial in"
)

# -- what other packages add ---------------------------------------------------------------------------------

BAD_EXTENSION = FindingCode(
    "ISC-501", "bad-extension", "install its package where the hub is, or take it out of [extensions]"
)

CODES: tuple[FindingCode, ...] = tuple(code for code in list(globals().values()) if isinstance(code, FindingCode))
"""All of them, in the order of their numbers."""
