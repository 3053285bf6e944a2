"""Web pages that call the hub: where `origins` lists them they read every answer, and others read nothing (CORS)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.browser import Site, site, visited
from tests.frontends.wire import BASE, Reply, connected, encoded, key_header, legacy, until
from tests.hubs import HubProcess, serving, write_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "page-key-0123456789abcdef"
CALLERS = {"page": {"key": KEY, "allow": ["builtin"]}}
LISTED, OTHER = "app.test", "evil.test"
CORS = "access-control-"


@pytest.fixture(scope="module")
def pages() -> Iterator[Site]:
    with site() as it:
        yield it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory, pages: Site) -> AsyncIterator[HubProcess]:
    settings = {"origins": [pages.origin(LISTED)], "public_url": "http://hub.test"}
    limits = {"wrong_keys_per_minute": 3}
    async with serving(tmp_path_factory.mktemp("hub"), callers=CALLERS, hub=settings, limits=limits) as running:
        yield running


# -- in a browser ------------------------------------------------------------------------------------------------------

HELPERS = """
const json = value => JSON.stringify(value);
const rpc = (method, params, id = 1) => json({jsonrpc: '2.0', id, method, params});
const send = async (path, options = {}) => {
  const answer = await fetch(HUB + path, options);
  return {status: answer.status, headers: Object.fromEntries(answer.headers), text: await answer.text()};
};
const accept = 'application/json, text/event-stream';
const type = {'content-type': 'application/json', accept};
const keyed = {...type, authorization: 'Bearer ' + KEY};
const post = (path, body, headers = keyed) => send(path, {method: 'POST', headers, body});
"""


async def run(pages: Site, hub: HubProcess, host: str, script: str) -> Any:
    constants = f"const HUB = 'http://127.0.0.1:{hub.port}'; const KEY = {json.dumps(KEY)};"
    return await visited(pages, host, constants + HELPERS + script)


async def test_a_listed_page_speaks_mcp_rest_and_a2a(hub: HubProcess, pages: Site) -> None:
    response = await run(
        pages,
        hub,
        LISTED,
        """
        const hello = {protocolVersion: '2025-06-18', capabilities: {}, clientInfo: {name: 'page', version: '1'}};
        const greeted = await post('/mcp', rpc('initialize', hello));
        const session = {...keyed, 'mcp-protocol-version': '2025-06-18'};
        session['mcp-session-id'] = greeted.headers['mcp-session-id'];
        const call = {name: 'builtin.echo', arguments: {text: 'from a page'}};
        const called = await post('/mcp', rpc('tools/call', call), session);
        const own = await post('/mcp/builtin', rpc('tools/list', {}));
        const stream = await fetch(HUB + '/mcp', {headers: {...session, accept: 'text/event-stream'}});
        await stream.body.cancel();
        const ended = await send('/mcp', {method: 'DELETE', headers: session});
        const listed = await send('/v1/tools', {headers: {'x-api-key': KEY}});
        const rest = await post('/v1/tools/builtin.echo', json({text: 'rest'}));
        const parts = [{data: {tool: 'builtin.echo', arguments: {text: 'a2a'}}}];
        const say = messageId => ({message: {messageId, role: 'ROLE_USER', parts}});
        const versed = {...keyed, 'a2a-version': '1.0'};
        const sent = await post('/a2a', rpc('SendMessage', say('m1')), versed);
        const streamed = await post('/a2a', rpc('SendStreamingMessage', say('m2')), versed);
        const card = await send('/.well-known/agent-card.json');
        const catalog = await send('/.well-known/ai-catalog.json', {headers: {'x-api-key': KEY}});
        const kept = stream.headers.get('cache-control');
        return {greeted, called, own, stream: stream.status, kept, ended, listed, rest, sent, streamed, card, catalog};
        """,
    )
    assert "failed" not in response, response
    assert response["greeted"]["headers"]["mcp-session-id"]
    assert "from a page" in response["called"]["text"]
    assert '"echo"' in response["own"]["text"]
    assert "no-store" in response["kept"], "else Chromium often sends the DELETE twice"
    assert (response["stream"], response["ended"]["status"]) == (200, 204)
    assert "builtin.echo" in response["listed"]["text"]
    assert "rest" in response["rest"]["text"]
    assert "TASK_STATE_COMPLETED" in response["sent"]["text"]
    assert "TASK_STATE_COMPLETED" in response["streamed"]["text"]
    assert "skills" in response["card"]["text"]
    assert response["catalog"]["status"] == 200


async def test_a_listed_page_reads_why_it_is_refused(hub: HubProcess, pages: Site) -> None:
    received = await run(
        pages,
        hub,
        LISTED,
        """
        const unkeyed = [];
        for (const path of ['/mcp', '/v1/tools', '/a2a']) unkeyed.push(await post(path, rpc('ping', {}), type));
        let slowed;
        for (let guess = 0; guess < 8; guess++)
          slowed = await send('/v1/tools', {headers: {'x-api-key': 'wrong-key-' + guess + '-0123456789'}});
        const unknown = await send('/nowhere');
        return {unkeyed, slowed, unknown};
        """,
    )
    assert "failed" not in received, received
    assert [answer["status"] for answer in received["unkeyed"]] == [401, 401, 401]
    assert all("Bearer" in answer["headers"]["www-authenticate"] for answer in received["unkeyed"]), received["unkeyed"]
    assert received["slowed"]["status"] == 429
    assert int(received["slowed"]["headers"]["retry-after"]) > 0
    assert received["unknown"]["status"] == 404


async def test_another_page_reads_nothing_and_runs_nothing(hub: HubProcess, pages: Site) -> None:
    response = await run(
        pages,
        hub,
        OTHER,
        """
        const call = {name: 'builtin.chat_log', arguments: {}};
        const tries = {
          mcp: ['/mcp', {method: 'POST', headers: keyed, body: rpc('tools/call', call)}],
          rest: ['/v1/tools', {headers: {'x-api-key': KEY}}],
          a2a: ['/a2a', {method: 'POST', headers: keyed, body: rpc('ListTasks', {})}],
          simple: ['/mcp', {method: 'POST', body: rpc('tools/call', call)}],
        };
        const told = {};
        for (const [name, [path, options]] of Object.entries(tries))
          told[name] = await send(path, options).then(answer => answer.status, error => error.name);
        return told;
        """,
    )
    assert response == dict.fromkeys(("mcp", "rest", "a2a", "simple"), "TypeError")


# -- on the wire -------------------------------------------------------------------------------------------------------

PATHS = ("/mcp", "/mcp/builtin", "/sse", "/v1/tools", "/v1/tools/builtin.echo", "/a2a", "/.well-known/agent-card.json")


async def ask(hub: HubProcess, method: str, path: str, *headers: tuple[str, str], body: bytes = b"") -> Reply:
    async with connected(hub.port) as wire:
        return await wire.request(body, [*BASE, *headers], method=method, path=path)


def cors_in(reply: Reply) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith(CORS)}


@pytest.mark.parametrize("path", PATHS)
async def test_a_preflight_is_answered_to_a_listed_page(hub: HubProcess, pages: Site, path: str) -> None:
    wanted = "authorization,content-type,mcp-session-id,mcp-param-city"
    asked = [("access-control-request-method", "DELETE"), ("access-control-request-headers", wanted)]
    private = ("access-control-request-private-network", "true")
    reply = await ask(hub, "OPTIONS", path, ("origin", pages.origin(LISTED)), *asked, private)
    received = cors_in(reply)
    assert (reply.status, received["access-control-allow-origin"]) == (204, pages.origin(LISTED))
    names = {name.strip() for name in received["access-control-allow-headers"].split(",")}
    assert {*wanted.split(","), "x-api-key", "last-event-id", "a2a-version", "mcp-protocol-version"} <= names
    assert "DELETE" in received["access-control-allow-methods"]
    assert received["access-control-allow-private-network"] == "true"
    assert int(received["access-control-max-age"]) > 0
    assert "access-control-allow-credentials" not in received
    for origin in (pages.origin(OTHER), "null", f"{pages.origin(LISTED)}0", "*"):
        other = await ask(hub, "OPTIONS", path, ("origin", origin), *asked, private)
        assert "access-control-allow-private-network" not in other.headers
        assert cors_in(other).get("access-control-allow-origin", "") in ("", "*")


@pytest.mark.parametrize("path", ["/mcp", "/v1/tools", "/a2a"])
async def test_an_answer_names_the_one_origin_that_asked(hub: HubProcess, pages: Site, path: str) -> None:
    body = encoded(legacy("ping"))
    for headers, has_key in (((), False), (key_header(KEY), True)):
        response = await ask(hub, "POST", path, ("origin", pages.origin(LISTED)), *headers, body=body)
        assert response.headers["access-control-allow-origin"] == pages.origin(LISTED)
        assert response.headers["vary"] == "origin"
        assert (response.status == 401) is not has_key
        for origin in ((), (("origin", pages.origin(OTHER)),)):
            assert not cors_in(await ask(hub, "POST", path, *origin, *headers, body=body))


async def test_pages_and_programs_on_one_connection_are_distinguished(hub: HubProcess, pages: Site) -> None:
    body, origin = encoded(legacy("ping")), ("origin", pages.origin(LISTED))
    async with connected(hub.port) as wire:
        for headers in ([], [origin], [], [], [origin], []):
            reply = await wire.request(body, [*BASE, *key_header(KEY), *headers])
            assert reply.json["result"] == {}
            assert bool(cors_in(reply)) is bool(headers)
        twice = await wire.request(body, [*BASE, *key_header(KEY), origin, origin])
        assert (twice.status, cors_in(twice)) == (403, {})


async def test_a_reload_changes_the_readers(tmp_path: Any, pages: Site) -> None:
    page = ("origin", pages.origin(LISTED))
    async with serving(tmp_path, callers=CALLERS) as hub:
        assert not cors_in(await ask(hub, "GET", "/v1/tools", page, *key_header(KEY)))
        write_config(tmp_path, {}, callers=CALLERS, hub={"origins": [pages.origin(LISTED)]})

        async def is_listed() -> bool:
            return bool(cors_in(await ask(hub, "GET", "/v1/tools", page, *key_header(KEY))))

        await until(is_listed)
