"""Whatever JSON a caller gives a tool, and a tool gives back, arrives as it was, in every generation of A2A.

Over a real socket to a hub of its own process, and from there to a server that repeats its arguments letter by letter.
"""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hubs import PATIENT, HubProcess, serving, stdio
from tests.property import echo_server

SECONDS = 60.0
RPC, REST = "/a2a", "/a2a/rest/"

# Numbers as they are spelt: nothing below may make others of them.
_floats = st.floats(allow_nan=False, allow_infinity=False).map(repr)
_odd = st.sampled_from(["-0", "-0.0", "1.0", "1.50", "1E5", "1e-7", "0.1", "1e308", "123456789012345678901234567890"])
_numbers = st.one_of(st.integers(-(2**63), 2**64).map(str), st.integers(-(10**40), 10**40).map(str), _floats, _odd)
_escaped = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_texts = st.one_of(_escaped.map(json.dumps), _escaped.map(lambda text: json.dumps(text, ensure_ascii=False)))
_plain = st.one_of(st.sampled_from(["null", "true", "false"]), _numbers, _texts)


def _array(items: list[str]) -> str:
    return f"[{','.join(items)}]"


def _object(members: dict[str, str]) -> str:
    return f"{{{','.join(f'{json.dumps(key)}:{value}' for key, value in members.items())}}}"


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    keys = st.one_of(_escaped, st.sampled_from(["tool", "arguments", "data", "kind", "type", "content", "z", "a"]))
    return st.one_of(st.lists(inner, max_size=4).map(_array), st.dictionaries(keys, inner, max_size=4).map(_object))


some_object = st.dictionaries(_escaped, st.recursive(_plain, _nested, max_leaves=12), max_size=5).map(_object)


def exact(text: str | bytes) -> Any:
    """JSON with its numbers as they are spelt and its objects as pairs in their order."""
    return json.loads(text, parse_float=_number, parse_int=_number, object_pairs_hook=_pairs)


def _number(text: str) -> tuple[str, str]:
    return "number", text


def _pairs(pairs: list[tuple[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    return "object", pairs


def within(value: Any, *path: str | int) -> Any:
    """What is at a place of exact JSON."""
    for step in path:
        value = value[step] if isinstance(step, int) else dict(value[1])[step]
    return value


class Client:
    """Says the same instruction in every generation's words."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def post(self, path: str, body: str) -> str:
        """What is answered."""
        self._http.request("POST", path, body.encode(), {"content-type": "application/json"})
        return self._http.getresponse().read().decode()

    def rpc(self, method: str, params: str) -> Any:
        """What a request comes to."""
        body = f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}'
        return exact(self.post(RPC, body))


OURS = '{"tool":"e.echo","arguments":%s}'
EXECUTE = '{"target_mcp_server_id":"e","tool_name":"echo","arguments":%s}'
COMMAND = '{"mcp_target_url":"e","mcp_method":"tools/call","mcp_params":{"name":"echo","arguments":%s}}'


def latest(client: Client, given: str) -> Any:
    said = f'{{"messageId":"{uuid.uuid4()}","role":"ROLE_USER","parts":[{{"data":{OURS % given}}}]}}'
    done = client.rpc("SendMessage", f'{{"message":{said}}}')
    return within(done, "result", "task", "artifacts", 0, "parts", 0, "data")


def latest_in_text(client: Client, given: str) -> Any:
    said = f'{{"messageId":"{uuid.uuid4()}","role":"ROLE_USER","parts":[{{"text":{json.dumps(OURS % given)}}}]}}'
    done = client.rpc("SendMessage", f'{{"message":{said}}}')
    return within(done, "result", "task", "artifacts", 0, "parts", 0, "data")


def latest_streamed(client: Client, given: str) -> Any:
    said = f'{{"messageId":"{uuid.uuid4()}","role":"ROLE_USER","parts":[{{"data":{OURS % given}}}]}}'
    body = f'{{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{{"message":{said}}}}}'
    items = [exact(line[6:]) for line in client.post(RPC, body).split("\n") if line.startswith("data: ")]
    [made] = [item for item in items if dict(within(item, "result")[1]).keys() == {"artifactUpdate"}]
    return within(made, "result", "artifactUpdate", "artifact", "parts", 0, "data")


def latest_plain(client: Client, given: str) -> Any:
    said = f'{{"messageId":"{uuid.uuid4()}","role":"ROLE_USER","parts":[{{"data":{EXECUTE % given}}}]}}'
    done = exact(client.post(f"{REST}message:send", f'{{"message":{said}}}'))
    return within(done, "task", "artifacts", 0, "parts", 0, "data", "mcp_result", "structuredContent")


def earlier(client: Client, given: str) -> Any:
    parts = f'[{{"kind":"data","data":{COMMAND % given}}}]'
    said = f'{{"kind":"message","messageId":"{uuid.uuid4()}","role":"user","parts":{parts}}}'
    done = client.rpc("message/send", f'{{"message":{said},"configuration":{{"blocking":true}}}}')
    return within(done, "result", "artifacts", 0, "parts", 0, "data", "mcp_result", "structuredContent")


def earlier_plain(client: Client, given: str) -> Any:
    said = f'{{"messageId":"{uuid.uuid4()}","role":"ROLE_USER","content":[{{"data":{{"data":{OURS % given}}}}}]}}'
    body = f'{{"message":{said},"configuration":{{"blocking":true}}}}'
    done = exact(client.post(f"{REST}v1/message:send", body))
    return within(done, "task", "artifacts", 0, "parts", 0, "data", "data")


def first(client: Client, given: str) -> Any:
    said = f'{{"role":"user","parts":[{{"type":"data","data":{OURS % given}}}]}}'
    done = client.rpc("tasks/send", f'{{"id":"{next(NAMES)}","message":{said}}}')
    return within(done, "result", "artifacts", 0, "parts", 0, "data")


def vault(client: Client, given: str) -> Any:
    said = f'{{"role":"user","parts":[{{"type":"data","content":{EXECUTE % given}}}]}}'
    task = within(client.rpc("tasks/send", f'{{"message":{said}}}'), "result", "id")
    # A subscriber gets all earlier messages, and the stream ends with the task.
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tasks/sendSubscribe","params":{{"id":"{task}"}}}}'
    client.post(RPC, body)
    done = client.rpc("tasks/get", f'{{"id":"{task}"}}')
    return within(done, "result", "messages", 1, "parts", 0, "content", "mcp_result", "structuredContent")


def _names() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"mine-{number}"


NAMES = _names()
WAYS: tuple[Callable[[Client, str], Any], ...] = (
    latest, latest_in_text, latest_streamed, latest_plain, earlier, earlier_plain, first, vault,
)  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder: Path = tmp_path_factory.mktemp("hub")
    async with serving(folder, {"e": stdio(echo_server.command())}, limits=PATIENT) as running:
        yield running


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@given(given_text=some_object)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arguments_and_results_of_a_tool_arrive_unchanged(
    hub: HubProcess, way: Callable[[Client, str], Any], given_text: str
) -> None:
    with closing(Client(hub.port)) as client:
        assert way(client, given_text) == exact(given_text)


def test_nothing_here_takes_other_json_for_the_same() -> None:
    assert exact("1") != exact("1.0") != exact("1e0")
    assert exact('{"a":1,"b":2}') != exact('{"b":2,"a":1}')
    assert exact("-0") != exact("0")
    assert exact("1.5") != exact("1.50")
