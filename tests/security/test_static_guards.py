"""Code that must not appear anywhere, or in one place only, checked in the source.

A new way out, a new way to start a program or an address that is taken from a request fails here before anybody has to
find it in a review. Where an exception is right it is listed by name, with its reason. That secrets are compared in
constant time is T29's, that statements hold no values T62's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.security.source import dotted, imported, nodes, strings, texts, using, with_words

pytestmark = pytest.mark.xdist_group("source")  # which is read once

WAYS_OUT = {
    "app/serve.py": "binds the addresses before anything else; connects nothing",
    "transport/egress.py": "the guard itself",
    "transport/process.py": "makes pairs of sockets to its own children; connects nothing",
    "transport/flow_control.py": "closes a connection that is there",
    "frontends/http/listener.py": "listens",
    "credentials/interactive_login.py": "listens on loopback for the local user's browser during a login",
    "storage/postgres.py": "the database that the operator names under [storage]; its driver dials by itself",
    "storage/postgres_state.py": "the same database, for what nodes share; its driver dials by itself",
    "storage/postgres_cluster.py": "the same database, to ask whether it answers; its driver dials by itself",
    "storage/audit_postgres.py": "uses the connection of storage/postgres.py",
    "frontends/a2a/grpc.py": "serves; makes no channel",
    "cluster/nats.py": "the servers that the operator names under [cluster]; their client dials by itself",
    "cluster/unix.py": "sockets in a folder of its own, between the workers of one machine",
}
NETWORK_MODULES = {
    "socket", "_socket", "socketserver", "http.client", "urllib.request", "urllib3", "requests", "httpx", "httpx2",
    "httpcore", "aiohttp", "pycurl", "ftplib", "smtplib", "poplib", "imaplib", "nntplib", "telnetlib", "xmlrpc.client",
    "asyncpg", "psycopg", "grpc", "grpc.aio", "websocket", "paramiko", "asyncssh", "dns", "multiprocessing.connection",
    "logging.handlers", "anyio.streams", "trio", "curio", "zmq", "nats", "redis", "pymongo",
}  # fmt: skip
SOCKET_CALLS = {
    "open_connection", "create_connection", "sock_connect", "create_datagram_endpoint", "create_unix_connection",
    "open_unix_connection", "connect_ex", "getaddrinfo", "gethostbyname", "urlopen", "urlretrieve", "start_server",
    "create_server", "create_unix_server", "start_unix_server", "insecure_channel", "secure_channel", "fromfd",
    "socketpair", "create_subprocess_connection", "connect_tcp", "connect_unix", "create_udp_socket",
    "create_connected_udp_socket", "get_server_certificate", "connect_accepted_socket",
}  # fmt: skip

PROGRAMS = {
    "app/workers.py": "forks the workers of `serve --workers`; starts no other program",
    "transport/process.py": "servers of the operator's own files, without a shell",
}
PROGRAM_MODULES = {
    "subprocess",
    "multiprocessing",
    "pty",
    "pexpect",
    "sh",
    "plumbum",
    "webbrowser",
    "asyncio.subprocess",
}
PROGRAM_CALLS = {
    "Popen", "create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell", "system",
    "popen", "execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp", "execlpe", "spawnl", "spawnle",
    "spawnlp", "spawnlpe", "spawnv", "spawnve", "spawnvp", "spawnvpe", "posix_spawn", "posix_spawnp", "fork", "forkpty",
    "startfile", "getoutput", "getstatusoutput", "check_output", "check_call",
}  # fmt: skip


def uses(modules: set[str], calls: set[str]) -> Iterator[tuple[str, str]]:
    """Which modules import one of these, or name something that is called so, whether or not they call it there."""
    words = calls | {module.partition(".")[0] for module in modules}
    for name, found in with_words(rf"(?:\.|import\b.*|^\s+|from )\b(?:{'|'.join(sorted(words))})\b"):
        for module in imported(found):
            if module in modules or module.partition(".")[0] in modules or module.rpartition(".")[2] in calls:
                yield name, module
        for node in found:
            if isinstance(node, ast.Attribute) and node.attr in calls:
                yield name, dotted(node)


def test_connections_are_made_by_the_guard_alone() -> None:
    found = dict(uses(NETWORK_MODULES, SOCKET_CALLS))
    assert found.keys() - WAYS_OUT.keys() == set(), found
    assert WAYS_OUT.keys() - found.keys() == set(), "an exception that nobody needs any more"


def test_only_the_guard_connects_a_socket() -> None:
    """Of the exceptions above none dials: sockets are made by who listens too, and connected by the guard alone."""
    for name, found in using({"socket", "sock_connect", "connect"}):
        made = {dotted(node.func) for node in found if isinstance(node, ast.Call)}
        if name != "transport/egress.py":
            assert "loop.sock_connect" not in made, name
            assert "sock.connect" not in made, name
            assert "socket.socket" not in made or name == "frontends/http/listener.py", name


def test_the_libraries_that_could_dial_are_used_without_their_io() -> None:
    """Of websockets the protocol, of uvicorn the parser, of gRPC the server."""
    allowed = {
        "client",
        "server",
        "protocol",
        "frames",
        "exceptions",
        "http11",
        "typing",
        "uri",
        "datastructures",
        "streams",
    }
    for name, found in with_words("websockets"):
        for module in imported(found):
            if module.startswith("websockets."):
                assert module.split(".")[1] in allowed, (name, module)
                assert module not in {"websockets.client.connect", "websockets.server.serve"}, name
            assert module != "websockets", name
    grpc = {dotted(node) for node in nodes("frontends/a2a/grpc.py") if isinstance(node, ast.Attribute)}
    assert not [each for each in grpc if each.endswith("channel")]


CONFIGURED = {
    "upstream/http_shared.py": "a configured server; what callers name comes with a guard that overrules it",
    "upstream/plain_jsonrpc.py": "the same",
    "upstream/websocket.py": "a configured server",
    "upstream/a2a/link.py": "a configured agent, at its own host or where `origins` lets its card lead",
    "app/dial.py": "the hub that the operator of this machine dials",
    "cli/find_hub.py": "the hub that the person at the command line names, to see whether something listens there",
    "cli/rest_client.py": "the hub that the person at the command line names",
}
"""Who may say that an address is the operator's, and so exempt from the deny table."""


def test_few_may_say_that_an_address_is_the_operators() -> None:
    found = set()
    for name, tree in with_words("is_configured"):
        for node in tree:
            is_said = isinstance(node, ast.keyword) and node.arg == "is_configured"
            if is_said and isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant) and node.value.value:
                found.add(name)
    assert found == CONFIGURED.keys()


def test_programs_are_started_in_one_place() -> None:
    found = dict(uses(PROGRAM_MODULES, PROGRAM_CALLS))
    assert found.keys() == PROGRAMS.keys(), found


def test_there_is_no_shell() -> None:
    for name, found in with_words(r"shell|/bin/sh|bash"):
        for node in found:
            assert not (isinstance(node, ast.keyword) and node.arg == "shell"), name
        names = set() if name == "cli/completion.py" else {"bash"}  # it writes a script for the shell that is named so
        assert not set(strings(found)) & {"/bin/sh", "/bin/bash", "sh", "-c", *names}, name


EVALUATING = {"eval", "exec", "compile", "__import__", "pickle.loads", "pickle.load", "marshal.loads", "yaml.load"}


def test_nothing_that_is_said_is_run() -> None:
    for name, found in using({each.partition(".")[0] for each in EVALUATING}):
        called = {dotted(node.func) for node in found if isinstance(node, ast.Call)}
        assert not called & EVALUATING, (name, called & EVALUATING)


ASKED = {"admit", "identify"}
"""How a frontend asks its authenticator who is calling."""

OTHERWISE = {
    "frontends/oauth/http.py": "issues tokens for keys; checks the keys, Host and Origin itself",
    "frontends/relay/http.py": "asks for the key of a relay in the handshake, behind the same check of Host and Origin",
}
"""Frontends without an authenticator, and why; each is a row of `endpoints` too."""


def test_every_frontend_authenticates_the_caller() -> None:
    """Every class that takes requests from the listener asks an authenticator who is calling."""
    found = {
        name: _calls_to_authenticators(tree)
        for name, tree in using({"serve", "take"})
        if any(map(_takes_request, tree))
    }
    assert found.keys() >= {
        "frontends/mcp/http.py",
        "frontends/mcp/sse.py",
        "frontends/rest/http.py",
        "frontends/a2a/http.py",
    }
    asking = {name for name, asked in found.items() if asked & ASKED and name.startswith("frontends/")}
    assert {name for name in found if name.startswith("frontends/")} - asking == OTHERWISE.keys()


def _calls_to_authenticators(tree: tuple[ast.AST, ...]) -> set[str]:
    calls = {dotted(node.func) for node in tree if isinstance(node, ast.Call)}
    return {call.rpartition(".")[2] for call in calls if "_auth." in call}


def _takes_request(node: ast.AST) -> bool:
    if not isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
        return False
    names = {argument.arg for argument in node.args.args}
    return (node.name == "serve" and "scope" in names) or (node.name == "take" and "arrival" in names)


HOSTS = {
    "frontends/http/auth.py": "holds Host and Origin against what the hub answers for (T01)",
    "frontends/oauth/discovery.py": "chooses among the hub's own names, which are the operator's",
}
"""Who reads the Host of a request."""

AUTHORITY = {b"host", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-for", b"forwarded", b"x-original-url",
             b"x-rewrite-url", b"x-real-ip"}  # fmt: skip


def test_no_address_is_built_from_request_headers() -> None:
    """Neither Host nor what proxies write: addresses of the hub come from `public_url`, authority from the route."""
    found: dict[str, set[str]] = {}
    for name, tree in with_words(r"""(?i)["'](?:host|x-forwarded|forwarded|x-original|x-rewrite|x-real)"""):
        if name.partition("/")[0] not in ("frontends", "app", "identity"):
            continue
        for node in tree:
            value = node.value if isinstance(node, ast.Constant) else None
            word = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""
            if word.lower() in AUTHORITY and _is_looked_up(node, tree):
                found.setdefault(name, set()).add(word.decode())
    assert found.keys() == HOSTS.keys(), found


def _is_looked_up(constant: ast.AST, tree: tuple[ast.AST, ...]) -> bool:
    """Whether a text is what something is asked by: `fields.get(b"host")`, `headers["host"]`, or compared."""
    return any(constant in _asked_by(node) for node in tree)


def _asked_by(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Call(func=ast.Attribute(attr="get" | "getlist" | "pop")):
            # Of a file's tables `host` is the operator's own setting.
            return [] if dotted(node.func).startswith(("values.", "table.", "read.")) else list(node.args)
        case ast.Subscript():
            return [node.slice]
        case ast.Compare():
            return [node.left, *node.comparators]
        case _:
            return []


def test_the_package_is_all_there() -> None:
    """Else the tests above look at nothing."""
    assert len(texts()) > 250
    assert WAYS_OUT.keys() | PROGRAMS.keys() | CONFIGURED.keys() <= texts().keys()
