"""How an entry says its server is reached: the word for the transport, and what stands in for it.

Whether the values make sense is checked by `upstream.settings`; nothing is started or dialled. Called by
`config.servers`, with variables already replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never, cast, get_args
from urllib.parse import urlsplit

from isthmus.config import codes, values
from isthmus.config.entries import (
    AGENT_KEYS,
    LOGIN_KEYS,
    PYTHON_KEYS,
    REACH_KEYS,
    RPC_KEYS,
    STDIO_KEYS,
    TRANSPORT_KEYS,
    URL_KEYS,
    Entry,
)
from isthmus.config.files import located, program
from isthmus.config.findings import Finding, Mistake
from isthmus.config.process_limits import process_limits
from isthmus.config.tool_rules import declared_tools
from isthmus.upstream.settings import (
    PIN_ARGV,
    PIN_PROGRAM,
    AgentSettings,
    Carrier,
    Era,
    HttpSettings,
    PythonSettings,
    Reach,
    RpcSettings,
    SocketSettings,
    StdioSettings,
)

Word = Literal["stdio", "http", "sse", "ws", "rpc", "agent", "python", "auto"]
Way = Literal["command", "url", "rpc", "agent", "python"]

_WORDS: Mapping[str, Word] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "https": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamablehttp": "http",  # also streamableHttp: words are compared in lower case
    "streaming": "http",
    "sse": "sse",
    "ws": "ws",
    "websocket": "ws",
    "rpc": "rpc",
    "agent": "agent",
    "a2a": "agent",
    "python": "python",
    "auto": "auto",
    "remote": "auto",
}
_ALLOWED: Mapping[Way, tuple[Word, ...]] = {
    "command": ("stdio",),
    "url": ("http", "sse", "ws", "rpc", "auto"),
    "rpc": ("rpc",),
    "agent": ("agent",),
    "python": ("python",),
}
_READ: Mapping[Way, frozenset[str]] = {
    "command": STDIO_KEYS | {"era", "limits", "sha256"},
    "url": URL_KEYS | LOGIN_KEYS | {"era"},
    "rpc": RPC_KEYS | LOGIN_KEYS,
    "agent": AGENT_KEYS | LOGIN_KEYS,
    "python": PYTHON_KEYS,
}

_OURS_ALONE = frozenset({"era", "limits", "sha256", "user_headers"}) | LOGIN_KEYS


@dataclass(frozen=True, slots=True)
class Filled:
    """An entry whose variables are replaced, and the folders that its paths are seen from."""

    entry: Entry
    fields: Mapping[str, object]
    findings: list[Finding]
    folder: Path
    home: Path
    env_of: Callable[[Path], Mapping[str, str]]
    """Returns the variables in a file, and remembers what is secret and odd about it."""


def reach_of(filled: Filled) -> Reach:
    """Return how the server is reached.

    Raises:
        ValueError: it cannot be told, or a value makes no sense, in the words "<key> must …".
    """
    way = _way(filled.fields)
    word = _word(way, filled.fields)
    _tell_of_idle_keys(filled, way, word)
    match way:
        case "command":
            return _stdio(filled)
        case "url":
            return _dialled(word, filled)
        case "rpc":
            return _rpc("rpc", filled)
        case "agent":
            return _agent(filled)
        case "python":
            return _python(filled)
        case _:
            assert_never(way)


def _way(fields: Mapping[str, object]) -> Way:
    # An empty text is how some programs write that there is none.
    given = [way for way in get_args(Way) if fields.get(way, "") != ""]
    if not given:
        raise Mistake(codes.NO_WAY, "must have a command or a url, not neither")
    if given == ["command", "url"] and (meant := _meant(fields)) is not None:
        return meant
    if len(given) > 1:
        told = "both" if given == ["command", "url"] else " and ".join(given)
        raise Mistake(codes.SEVERAL_WAYS, f"must have a command or a url, not {told}")
    return cast(Way, given[0])


def _meant(fields: Mapping[str, object]) -> Way | None:
    """Which of a command and an address the word for the transport is about: some files keep both beside each other."""
    said = [fields[key] for key in TRANSPORT_KEYS if fields.get(key, "") != ""]
    words = {_WORDS.get(word.strip().lower()) for word in said if isinstance(word, str)}
    if words == {"stdio"}:
        return "command"
    return "url" if words and words <= {"http", "sse", "ws"} else None


def _word(way: Way, fields: Mapping[str, object]) -> Word | None:
    """Return the word for the transport, None if there is none, and refuse one that says otherwise."""
    found: Word | None = None
    for key in TRANSPORT_KEYS:
        if fields.get(key, "") != "":
            found = _checked(key, fields[key], way)
    return found


def _checked(key: str, value: object, way: Way) -> Word:
    word = _WORDS.get(values.text(key, value).strip().lower())
    if word is None:
        known = ", ".join(dict.fromkeys(_WORDS.values()))
        raise Mistake(codes.TRANSPORT_WORD, f"{key} must be one of {known}, not {values.shown(value)}")
    if word not in _ALLOWED[way]:
        known = " or ".join(", ".join(_ALLOWED[way]).rsplit(", ", 1))
        raise Mistake(codes.TRANSPORT_WORD, f"{key} must be {known} beside {way}, not {values.shown(value)}")
    return word


def _tell_of_idle_keys(filled: Filled, way: Way, word: Word | None) -> None:
    entry = filled.entry
    is_rpc = word == "rpc"
    read = (_READ[way] - {"era"}) | RPC_KEYS if is_rpc else _READ[way]
    # In a file that other programs read too, what has no effect here may have one there; these only we know.
    ours = REACH_KEYS | _OURS_ALONE if entry.dialect.is_own else _OURS_ALONE
    for key in sorted(filled.fields.keys() & (ours - read)):
        beside = f'type = "{word}"' if is_rpc and way == "url" else way
        filled.findings.append(entry.at(key).finding(f"has no effect beside {beside}", code=codes.IDLE_KEY))


# -- each way ------------------------------------------------------------------------------------------------


def _stdio(filled: Filled) -> StdioSettings:
    fields, home = filled.fields, filled.home
    cwd = values.text("cwd", fields.get("cwd", ""))
    return StdioSettings(
        command=program(values.text("command", fields["command"]), filled.folder, home),
        args=values.words("args", fields.get("args", [])),
        env={**_env_file(filled), **values.table_of_words("env", fields.get("env", {}))},
        cwd=str(located(cwd, filled.folder, home)) if cwd else None,
        era=_era(fields),
        limits=process_limits(fields.get("limits", {})),
        sha256=_digests(filled),
    )


def _digests(filled: Filled) -> dict[str, str]:
    """Digests by what they are of: a text is the program's."""
    given = filled.fields.get("sha256", {})
    if isinstance(given, str):
        given = {PIN_PROGRAM: given}
    digests = values.table_of_words("sha256", given)
    return {
        what if what in (PIN_PROGRAM, PIN_ARGV) else str(located(what, filled.folder, filled.home)): digest.lower()
        for what, digest in digests.items()
    }


def _env_file(filled: Filled) -> Mapping[str, str]:
    named = values.text("env_file", filled.fields.get("env_file", ""))
    return filled.env_of(located(named, filled.folder, filled.home)) if named else {}


def _dialled(word: Word | None, filled: Filled) -> HttpSettings | SocketSettings | RpcSettings:
    url = values.text("url", filled.fields["url"])
    is_socket = url.lower().startswith(("ws:", "wss:"))
    _check_scheme(url, filled, word, is_socket=is_socket)
    if word == "rpc":
        return _rpc("url", filled)
    if word == "ws" or is_socket:
        if "user_headers" in filled.fields:
            told = "has no effect beside a WebSocket, which has headers only when it is opened"
            filled.findings.append(filled.entry.at("user_headers").finding(told, code=codes.IDLE_KEY))
        return SocketSettings(url, _headers(filled.fields), _era(filled.fields))
    return HttpSettings(
        url,
        _headers(filled.fields),
        _era(filled.fields),
        _carrier(word, url, filled),
        user_headers=_user_headers(filled.fields),
    )


def _check_scheme(url: str, filled: Filled, word: Word | None, *, is_socket: bool) -> None:
    """Refuse a word for the transport that the address itself contradicts."""
    wanted = ("ws", "auto") if is_socket else tuple(known for known in _ALLOWED["url"] if known != "ws")
    is_address = is_socket or url.lower().startswith(("http:", "https:"))
    if word is not None and is_address and word not in wanted:
        key, scheme = _transport_key(filled), url.partition(":")[0].lower()
        known = " or ".join(", ".join(wanted).rsplit(", ", 1))
        text = f"{key} must be {known} beside an address with {scheme}://, not {values.shown(filled.fields[key])}"
        raise Mistake(codes.TRANSPORT_WORD, text)


def _carrier(word: Word | None, url: str, filled: Filled) -> Carrier:
    dialect, is_sse = filled.entry.dialect, _ends_with_sse(url)
    match word:
        case "sse":
            return "sse"
        case "http":
            if is_sse and dialect.http == "http":
                told = "says http, but an address that ends in /sse is usually of the earlier transport"
                filled.findings.append(filled.entry.at(_transport_key(filled)).finding(told, code=codes.LOOKS_LIKE_SSE))
            return dialect.http
        case None if dialect.bare_url == "path":
            return "sse" if is_sse else "http"
        case None:
            return cast(Carrier, dialect.bare_url)
        case _:
            return "auto"


def _ends_with_sse(url: str) -> bool:
    try:
        return urlsplit(url).path.rstrip("/").endswith("/sse")
    except ValueError:
        return False  # the settings refuse it, with a reason


def _transport_key(filled: Filled) -> str:
    return next(key for key in TRANSPORT_KEYS if filled.fields.get(key, "") != "")


def _rpc(key: str, filled: Filled) -> RpcSettings:
    try:
        return RpcSettings(
            url=values.text(key, filled.fields[key]),
            headers=_headers(filled.fields),
            tools=declared_tools(filled.fields, filled.entry, filled.findings),
            user_headers=_user_headers(filled.fields),
        )
    except ValueError as error:
        text = str(error)
        raise ValueError(f"{key}{text.removeprefix('rpc')}" if text.startswith("rpc ") else text) from error


def _agent(filled: Filled) -> AgentSettings:
    return AgentSettings(
        url=values.text("agent", filled.fields["agent"]),
        headers=_headers(filled.fields),
        origins=values.texts("origins", filled.fields.get("origins", [])),
    )


def _python(filled: Filled) -> PythonSettings:
    path = values.text("path", filled.fields.get("path", ""))
    return PythonSettings(
        target=values.text("python", filled.fields["python"]),
        path=str(located(path, filled.folder, filled.home)) if path else None,
    )


def _headers(fields: Mapping[str, object]) -> dict[str, str]:
    return values.table_of_words("headers", fields.get("headers", {}))


def _user_headers(fields: Mapping[str, object]) -> tuple[str, ...]:
    return values.texts("user_headers", fields.get("user_headers", []))


def _era(fields: Mapping[str, object]) -> Era:
    era = fields.get("era", "auto")
    if era not in get_args(Era):
        raise ValueError(f"era must be one of {', '.join(get_args(Era))}, not {values.shown(era)}")
    return cast(Era, era)
