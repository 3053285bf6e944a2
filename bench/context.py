"""`python -m bench.context`: what the tools of 3, 10 and 50 real servers cost a model before its first word.

A hub has the servers of `tests/search` in the order of that file, with the definitions that were recorded from them. An
MCP client lists the tools as four callers: with all tools, with a set of twelve, with tool search, and in code mode.
What counts is what a client gives to its model: name, description and input schema of each tool, as JSON. Tokens are
those of `o200k_base`, which the vocabulary inside the package `bpe-openai` counts, offline: `make tokens` installs it
into an environment of its own. Without it only bytes are printed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from bench.processes import Program
from bench.search import DATA, read_queries

SERVERS = (3, 10, 50)
MODES = ("plain", "set", "search", "code")
TOOLS_OF_SET = (
    *("filesystem.read_text_file", "filesystem.write_file", "filesystem.edit_file", "filesystem.search_files"),
    *("github.create_issue", "github.list_issues", "github.create_pull_request", "github.search_code"),
    *("playwright.browser_navigate", "playwright.browser_click", "playwright.browser_type"),
    "playwright.browser_snapshot",
)
"""A set for one job: tools of the first three servers with which a bug of a web page is found, fixed and reported."""

SEARCHES = 50
TOKENIZER = Path(__file__).parent.parent / ".venv-tokens" / "bin" / "python"
COUNT = (
    "import bpe_openai, json, sys; encode = bpe_openai.get_encoding('o200k_base').encode_ordinary;"
    "print(json.dumps([len(encode(text)) for text in json.load(sys.stdin)]))"
)
READY_SECONDS = 60.0
LISTENING = re.compile(r'http://127\.0\.0\.1:(\d+)/mcp".*"event": "listening"')
"""How the hub says its own port, and not that of a server."""


class Cost(msgspec.Struct, frozen=True):
    """What one mode costs before the first word."""

    tools: int
    texts: tuple[str, ...]
    """What the model reads of each tool."""

    @property
    def bytes(self) -> int:
        """The length of all texts."""
        return sum(len(text.encode()) for text in self.texts)


# -- servers -----------------------------------------------------------------------------------------------------------


def read_definitions() -> dict[str, list[dict[str, Any]]]:
    """The recorded tools by server, in the order of the file."""
    servers: dict[str, list[dict[str, Any]]] = {}
    for line in (DATA / "tools.jsonl").read_text().splitlines():
        tool = json.loads(line)
        servers.setdefault(tool.pop("server"), []).append(tool)
    return servers


@contextmanager
def recorded_servers(servers: Mapping[str, Sequence[object]]) -> Iterator[int]:
    """Serve recorded tools over HTTP on the port that is yielded; the path of a server is its name."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "id" not in request:
                self._answer(202, b"")
                return
            answer: dict[str, Any]
            match request["method"]:
                case "initialize":
                    info = {"name": self.path, "version": "1"}
                    capabilities: dict[str, Any] = {"tools": {}}
                    version = request["params"]["protocolVersion"]
                    answer = {"result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}}
                case "tools/list":
                    answer = {"result": {"tools": servers[self.path[1:]]}}
                case "ping":
                    answer = {"result": {}}
                case method:
                    answer = {"error": {"code": -32601, "message": f"no method {method}"}}
            self._answer(200, json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}).encode())

        def do_GET(self) -> None:
            self._answer(405, b"")

        def do_DELETE(self) -> None:
            self._answer(200, b"")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # a hub that ends leaves its requests
                super().handle_error(request, client_address)

    with Listener(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield http.server_port
        finally:
            http.shutdown()
            thread.join()


# -- the hub -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def client_of(url: str, key: str) -> AsyncIterator[Client]:
    """A client of the official SDK with a key."""
    # The SDK's own HTTP client reads proxies from the environment.
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=READY_SECONDS) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode="legacy", cache=None) as client:
            yield client


async def list_tools(client: Client) -> list[dict[str, Any]]:
    """All pages of the list."""
    tools: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += [tool.model_dump(by_alias=True, exclude_unset=True) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return tools


def text_of(tool: Mapping[str, Any]) -> str:
    """What a model reads of a tool."""
    return json.dumps(
        {key: tool[key] for key in ("name", "description", "inputSchema") if key in tool},
        ensure_ascii=False,
        separators=(",", ":"),
    )


@contextmanager
def hub_of(servers: Mapping[str, object], **tables: object) -> Iterator[str]:
    """Run a hub with these servers and a caller for each mode, two of them for code; its MCP address is yielded."""
    with tempfile.TemporaryDirectory() as folder:
        callers: dict[str, dict[str, str]] = {
            "plain": {"expose": "all"},
            **({"set": {"set": "work"}} if "sets" in tables else {}),
            "search": {"expose": "search"},
            "code": {"expose": "code"},
            "other": {"expose": "code"},
        }
        config = {
            "hub": {"state": f"{folder}/state"},
            "servers": servers,
            "callers": {mode: {"key": key_of(mode), "allow": ["*"], **more} for mode, more in callers.items()},
            **tables,
        }
        file = Path(folder) / "isthmus.json"
        file.write_text(json.dumps(config))
        with Program("isthmus", "serve", "--config", str(file), "--port", "0") as hub:
            yield f"http://127.0.0.1:{hub.port(LISTENING)}/mcp"


def key_of(mode: str) -> str:
    """The key of the caller with this mode."""
    return f"the-key-of-{mode}-for-the-bench"


async def listed(client: Client, at_least: int) -> list[dict[str, Any]]:
    """The list of tools, as soon as it has so many: servers may be slower than the first list."""
    async with asyncio.timeout(READY_SECONDS):
        while len(tools := await list_tools(client)) < at_least:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.2)
    return tools


async def costs_of(
    count: int, definitions: Mapping[str, list[dict[str, Any]]], searches: int
) -> tuple[dict[str, Cost], list[str]]:
    """What each mode costs with the first so many servers, and the answers of so many searches."""
    chosen = dict(list(definitions.items())[:count])
    least = {"plain": sum(map(len, chosen.values())), "set": len(TOOLS_OF_SET)}
    found: dict[str, Cost] = {}
    with recorded_servers(chosen) as port:
        servers = {name: {"url": f"http://127.0.0.1:{port}/{name}", "type": "http"} for name in chosen}
        with hub_of(servers, sets={"work": {"tools": TOOLS_OF_SET}}) as url:
            for mode in MODES:
                async with client_of(url, key_of(mode)) as client:
                    tools = await listed(client, least.get(mode, 1))
                    found[mode] = Cost(len(tools), tuple(map(text_of, tools)))
            async with client_of(url, key_of("search")) as client:
                answers = [await _search(client, query.query) for query in read_queries()[:searches]]
    return found, answers


async def _search(client: Client, query: str) -> str:
    result = await client.call_tool("search_tools", {"query": query})
    return "".join(part.text for part in result.content if part.type == "text")


# -- the table ---------------------------------------------------------------------------------------------------------


def tokens_of(texts: Sequence[str]) -> list[int] | None:
    """The tokens of each text; None without the tokenizer."""
    if not TOKENIZER.exists():
        return None
    counted = subprocess.run(
        [TOKENIZER, "-c", COUNT], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    return msgspec.json.decode(counted.stdout, type=list[int])


def shown(cost: Cost) -> str:
    """A cell of the table: tokens if they can be counted, and bytes."""
    tokens = tokens_of(cost.texts)
    return f"{cost.bytes:,} B" if tokens is None else f"{sum(tokens):,} ({cost.bytes:,} B)"


async def measure() -> None:
    """Print the table."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # the SDK reports messages that arrive while it closes
    definitions = read_definitions()
    print("| servers | tools | plain | set | search | code |\n|---:|---:|---:|---:|---:|---:|")
    answers: list[str] = []
    for count in SERVERS:
        costs, answers = await costs_of(count, definitions, SEARCHES)
        print(f"| {count} | {costs['plain'].tools} | {' | '.join(shown(costs[mode]) for mode in MODES)} |")
    tokens = tokens_of(answers)
    if tokens is None:
        print(f"\nno tokens: {TOKENIZER} is not there; run `make tokens`", file=sys.stderr)
    else:
        print(f"\nan answer of search_tools: {sum(tokens) / len(tokens):.0f} tokens (mean of {len(tokens)} queries)")


if __name__ == "__main__":
    asyncio.run(measure())
