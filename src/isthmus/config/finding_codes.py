"""The kinds of findings, each with a number that never changes.

Texts may change, numbers do not: scripts look for them. The table in `docs/reference/configuration.md` is generated
from here. A problem in a given file is a `config.findings.Finding`, which has one of these codes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FindingCode:
    """One kind of finding."""

    number: str
    name: str
    fix: str
    """What to do, where the finding itself has no better advice."""
    meaning: str = ""
    """What is wrong and what the hub does, in Markdown."""

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


# -- variables and secrets -----------------------------------------------------------------------------------

UNRESOLVED_VARIABLE = FindingCode(
    "ISC-101",
    "unresolved-variable",
    "set the variable where the hub starts, or in the .env beside the file",
    "A variable is not set. Its placeholder stays in the text.",
)
UNREADABLE_SECRET = FindingCode(
    "ISC-102",
    "unreadable-secret",
    "create the file and make it readable for the hub",
    "`file:PATH` or `${file:PATH}` names a file that is missing, too long, not text or not a regular file.",
)
CODE_NOT_RUN = FindingCode(
    "ISC-103",
    "code-not-run",
    "run it yourself and pass its output in a variable",
    "A file asks to run a program (`headersHelper`, an input of type `command`). The hub does not run it.",
)
UNANSWERED_INPUT = FindingCode(
    "ISC-104", "unanswered-input", "set the variable that the finding names", "An input of VS Code has no value."
)
ENV_FILE = FindingCode(
    "ISC-105",
    "env-file",
    "write it as lines of NAME=value in UTF-8",
    "A `.env` file, or an `env_file`, cannot be read, or a line of it is not `NAME=value`.",
)

# -- servers -------------------------------------------------------------------------------------------------

BAD_VALUE = FindingCode(
    "ISC-201",
    "bad-value",
    "write what the finding asks for, then: isthmus config check",
    "A value has the wrong type or is out of range. A server is skipped; for a table of the hub the file is refused.",
)
UNKNOWN_KEY = FindingCode(
    "ISC-202", "unknown-key", "correct its spelling or remove it", "A key of our own file is unknown. It has no effect."
)
IDLE_KEY = FindingCode(
    "ISC-203", "idle-key", "remove it", "A key has no effect together with the other keys of its entry."
)
NO_WAY = FindingCode(
    "ISC-204",
    "no-way-to-reach",
    "add one of command, url, rpc, agent or python",
    "A server has none of `command`, `url`, `rpc`, `agent`, `python`.",
)
SEVERAL_WAYS = FindingCode(
    "ISC-205",
    "several-ways-to-reach",
    "keep one of command, url, rpc, agent and python",
    "A server has more than one of them, and its `type` does not decide.",
)
TRANSPORT_WORD = FindingCode(
    "ISC-206",
    "transport-word",
    "correct type, or remove it: the hub detects the transport",
    "The transport is unknown, or contradicts the rest of the entry or the address.",
)
LOOKS_LIKE_SSE = FindingCode(
    "ISC-207",
    "looks-like-sse",
    'write type = "sse", or remove type',
    '`type = "http"` with an address that ends in `/sse`.',
)
RENAMED = FindingCode(
    "ISC-208",
    "server-renamed",
    "give the server a name of letters, digits, _ and -",
    "The name cannot be the name of a server. The server gets another one.",
)
LOOK_ALIKES = FindingCode(
    "ISC-210", "names-look-alike", "rename one of them", "Names differ only by case, or by `-` and `_`."
)
TAKEN_NAME = FindingCode(
    "ISC-211", "name-taken", "rename one of the two servers", "Two different servers have one name. The first counts."
)
MILLISECONDS = FindingCode(
    "ISC-212",
    "milliseconds",
    "nothing if that is meant; if not, write it in the unit of its client",
    "A timeout was read as milliseconds, or is so short that its client ignores it.",
)
CAPPED = FindingCode(
    "ISC-213",
    "timeout-capped",
    "raise limits.hard_seconds if it needs longer",
    "A timeout in another client's file is over `limits.hard_seconds`. The hub uses `limits.hard_seconds`.",
)
REPEATED_KEY = FindingCode(
    "ISC-214", "repeated-key", "remove one of the two", "A key is written twice in one object. The last one counts."
)
NOT_A_SERVER = FindingCode(
    "ISC-215",
    "not-a-server",
    "nothing: only that client can run it",
    "Entries that only their client can run, such as Goose's own extensions.",
)

# -- files ---------------------------------------------------------------------------------------------------

MISSING_FILE = FindingCode(
    "ISC-301", "missing-file", "correct the path, or create the file", "A named file does not exist."
)
UNREADABLE_FILE = FindingCode(
    "ISC-302",
    "unreadable-file",
    "make it a text file that the hub may read",
    "A file cannot be opened, is not UTF-8 text, is too long, or has another format.",
)
SYNTAX = FindingCode(
    "ISC-303",
    "syntax",
    "correct the line that the finding names",
    "A text breaks the rules of its format. The finding has line and column.",
)
NO_SERVERS = FindingCode(
    "ISC-304", "no-servers", "put servers under mcpServers", "A file has no key under which servers can be."
)
UNKNOWN_TABLE = FindingCode(
    "ISC-305",
    "unknown-table",
    "correct its spelling or remove it",
    "A table of our own file is unknown. If it looks like `callers`, `tenants`, `issuers`, `approvals`, `budgets` or"
    " `extensions`, the file is refused.",
)
UNKNOWN_CLIENT = FindingCode(
    "ISC-306",
    "unknown-client",
    "see the names with: isthmus import --help",
    "A name in `import` is neither a client nor a path.",
)
NOTHING_TO_IMPORT = FindingCode(
    "ISC-307",
    "nothing-to-import",
    "remove the client from import, or install it",
    "A client in `import` has no file on this machine.",
)
OTHER_PROJECTS = FindingCode(
    "ISC-308",
    "other-projects",
    "start in the folder whose servers you want",
    "A file has servers for other folders than this one.",
)
SERVER_MAP = FindingCode(
    "ISC-309",
    "server-map",
    'write MCP_SERVER_MAP as JSON: {"name": "http://host:port"}',
    "`MCP_SERVER_MAP` is not a JSON object of names and addresses.",
)

# -- callers -------------------------------------------------------------------------------------------------

BAD_CALLER = FindingCode(
    "ISC-401",
    "bad-caller",
    "fix the entry: until then its owner is rejected",
    "An entry of a caller has a mistake. It is left out, so its key is rejected.",
)
WEAK_KEY = FindingCode(
    "ISC-402",
    "weak-key",
    "make one with: openssl rand -hex 32",
    "A key has fewer than 16 characters. Its caller is left out; for the key of the relay the file is refused.",
)
MAY_CALL_NOTHING = FindingCode(
    "ISC-403",
    "may-call-nothing",
    'give it allow = ["server.*"], or remove it',
    "A caller or issuer has no `allow`.",
)
SHARED_KEY = FindingCode(
    "ISC-404",
    "shared-key",
    "give each caller a key of its own",
    "Several callers have the same key. All of them are left out.",
)
NO_USABLE_CALLER = FindingCode(
    "ISC-405",
    "no-usable-caller",
    "fix one of the callers",
    "Callers are configured and none is usable. The file is refused.",
)
OPEN_TO_NETWORK = FindingCode(
    "ISC-406",
    "open-to-network",
    "add a caller, or listen on 127.0.0.1",
    "Others could reach the hub and no caller is configured. The hub does not start.",
)
BAD_AGENT = FindingCode(
    "ISC-407",
    "bad-agent",
    "fix the entry, then: isthmus config check",
    "An agent under `[relay.agents]` has a mistake. The entry is skipped; if it may contain a `deny`, the agent's"
    " devices see nothing.",
)
KEY_STORE = FindingCode(
    "ISC-408",
    "key-store",
    "restore or fix the file, then: isthmus token list",
    "The list of keys in the state folder, which `isthmus token create` writes, is damaged or missing. The hub does not"
    " start.",
)
BAD_TENANT = FindingCode(
    "ISC-411",
    "bad-tenant",
    "fix the entry: until then callers of the tenant may call nothing",
    "A tenant under `[tenants]` has a mistake. Its callers may call nothing.",
)
BAD_ISSUER = FindingCode(
    "ISC-412",
    "bad-issuer",
    "fix the entry: until then its tokens are rejected",
    "An issuer under `[issuers]` has a mistake. It is left out, so its tokens are rejected; if none is left, the file"
    " is refused.",
)
UNKNOWN_SERVER = FindingCode(
    "ISC-413",
    "unknown-server",
    "correct the name; nothing, if a server of that name will dial in",
    "A pattern of a permission or a set names an unknown server with nearly the name of a known one. It matches"
    " nothing, unless a server of that name dials in.",
)
IDLE_PATTERN = FindingCode(
    "ISC-414",
    "idle-pattern",
    "correct its spelling or remove it",
    "A pattern of a permission, a rule for approvals or a budget names a tool that its connected server does not list."
    " It matches nothing.",
)

# -- sets ----------------------------------------------------------------------------------------------------

BAD_SET = FindingCode(
    "ISC-421",
    "bad-set",
    "fix the entry, then: isthmus config check",
    "A set under `[sets]` has a mistake, or the name of a server. It is left out; callers that are bound to it see"
    " nothing.",
)
UNKNOWN_SET = FindingCode(
    "ISC-422",
    "unknown-set",
    "correct the name, or add the set",
    "A caller or issuer is bound to a set that does not exist. It sees nothing.",
)
SET_NAMES_COLLIDE = FindingCode(
    "ISC-423",
    "set-names-collide",
    "give each of them a name of its own",
    "A set gives one name to several tools, or to several prompts. The first by `server.tool` has it, the others keep"
    " their usual names.",
)
IDLE_SET_ENTRY = FindingCode(
    "ISC-424",
    "idle-set-entry",
    "correct its spelling or remove it",
    "A set picks nothing, has a pattern that matches nothing, or changes what it does not pick.",
)
LEFT_OUT_OF_SET = FindingCode(
    "ISC-425",
    "left-out-of-set",
    "correct fixed and hide as the finding says, or exclude the tool or prompt",
    "A set fixes or hides an argument that its tool or prompt does not have, cannot do without, or whose schema cannot"
    " be changed safely. The tool or prompt is left out of the set.",
)

# -- approvals -----------------------------------------------------------------------------------------------

BAD_APPROVAL_RULE = FindingCode(
    "ISC-431",
    "bad-approval-rule",
    "fix the rule, then: isthmus config check",
    "A rule under `[approvals]` has a mistake. The file is refused: without the rule, calls that it should hold would"
    " run.",
)
IDLE_APPROVAL_RULE = FindingCode(
    "ISC-432",
    "idle-approval-rule",
    "correct the rule as the finding says, or remove it",
    "A rule under `[approvals]` decides about no call: an earlier rule matches all calls that it matches, its callers"
    " are not in the file but look like one of its names, or `spent.above` is not below the cost of its budget.",
)
LACKING_ARGUMENT = FindingCode(
    "ISC-433",
    "lacking-argument",
    "correct its spelling or remove it",
    "A rule under `[approvals]` tests an argument that no tool has which it matches. Where it names the tool or its"
    " server, it holds every call of these tools.",
)

# -- fleets --------------------------------------------------------------------------------------------------

BAD_FLEET = FindingCode(
    "ISC-441",
    "bad-fleet",
    "fix the entry, then: isthmus config check",
    "A fleet under `[fleets]` has a mistake, or the name of a server. It is left out; its members are listed"
    " themselves.",
)

# -- budgets -------------------------------------------------------------------------------------------------

BAD_BUDGET = FindingCode(
    "ISC-451",
    "bad-budget",
    "fix the budget, then: isthmus config check",
    "A budget under `[budgets]` has a mistake. The file is refused: without the budget, calls would have no limit.",
)
IDLE_BUDGET = FindingCode(
    "ISC-452",
    "idle-budget",
    "correct the name, or remove it",
    "A budget under `[budgets]` names a caller, a tenant or a set that the file does not have, but that looks like one"
    " of its names. The budget may limit nothing.",
)

# -- extensions ----------------------------------------------------------------------------------------------

BAD_EXTENSION = FindingCode(
    "ISC-501",
    "bad-extension",
    "install its package where the hub is, or remove it from [extensions]",
    "An entry under `[extensions]` is not installed, cannot be loaded, or is invalid. The file is refused.",
)

CODES: tuple[FindingCode, ...] = tuple(code for code in list(globals().values()) if isinstance(code, FindingCode))
"""All codes, in the order of their numbers."""
