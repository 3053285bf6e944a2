"""Servers ask, callers answer: every official client at the reference server, both eras on both sides.

Servers on mcp 1.x are there too, with the same tools. Whatever the eras are, callers get the same
questions and the same results. The hub forwards the capabilities of callers to servers.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import pytest_asyncio

from tests.choices import representative
from tests.fork_server import quick_isthmus
from tests.hubs import PATIENT, HubProcess, environment, serving, stdio, write_config
from tests.matrix.answering_clients import BEHAVIOURS, Answerer, ClientName, ToolCallResult, command_client, run
from tests.matrix.field import until_complete
from tests.peers.forking import quickly
from tests.peers.launch import CHECKOUT, http_peer, listening_peer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("questions")]

Era = Literal["legacy", "modern"]
Way = Literal["own", "all"]
SERVERS = ("legacy-http", "legacy-stdio", "modern-http", "modern-stdio", "sdk1-http", "sdk1-websocket")
WORDS = [sys.executable, str(CHECKOUT / "tests" / "conformance")]

FORM = ["elicitation/create", "What is your name?"]
CONFIRM = ["elicitation/create", "Please confirm."]
LOGIN = ["elicitation/create", "Please log in."]
COLOUR = ["elicitation/create", "Which colour do you like, Ada?"]
CAPITAL = ["sampling/createMessage", "What is the capital of France?"]
GREETING = ["sampling/createMessage", "Write a greeting."]
ROOTS = ["roots/list", ""]

ASKS = {
    "form": "test_input_required_result_elicitation",
    "sampling": "test_input_required_result_sampling",
    "roots": "test_input_required_result_list_roots",
    "several": "test_input_required_result_multiple_inputs",
    "rounds": "test_input_required_result_multi_round",
    "state": "test_input_required_result_request_state",
    "elsewhere": "test_elicitation_url",
    "possible": "test_input_required_result_capabilities",
    "plain": "test_simple_text",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One client at one server, by one way in."""

    client_name: ClientName
    server: str
    way: Way

    def __str__(self) -> str:
        return f"{self.client_name}:{self.server}:{self.way}"


def _facts(cell: Cell) -> Iterator[tuple[str, ...]]:
    yield cell.client_name, cell.server.partition("-")[0]
    yield cell.client_name, cell.way
    yield cell.server, cell.way
    yield str(cell.client_name.endswith("modern")), cell.server


CELLS = representative((Cell(*cell) for cell in product(get_args(ClientName), SERVERS, get_args(Way))), _facts)


class AskingServers:
    """The hub in front of the servers in all their forms, and the results of the clients that ran so far."""

    def __init__(self, hub: HubProcess, config: Path) -> None:
        self._hub = hub
        self.config = config
        self._results: dict[Cell, dict[str, dict[str, ToolCallResult]]] = {}

    async def results(self, cell: Cell) -> dict[str, dict[str, ToolCallResult]]:
        """The results of every behaviour in this cell; runs all cells of the same client by the same way."""
        if cell not in self._results:
            group = [other for other in CELLS if (other.client_name, other.way) == (cell.client_name, cell.way)]
            runs = await run(cell.client_name, [self._visit(there) for there in group])
            self._results.update(zip(group, runs, strict=True))
        return self._results[cell]

    def _visit(self, cell: Cell) -> tuple[str, dict[str, tuple[str, dict[str, Any]]]]:
        prefix = "" if cell.way == "own" else f"{cell.server}."
        url = self._hub.url_of(cell.server) if cell.way == "own" else self._hub.url
        return url, {step: (prefix + tool, {}) for step, tool in ASKS.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AskingServers]:
    folder: Path = tmp_path_factory.mktemp("servers")
    async with AsyncExitStack() as stack:
        entries: dict[str, Any] = {}
        for era in get_args(Era):
            entries[f"{era}-stdio"] = stdio(quickly([*WORDS, "--era", era]))
            words = [*WORDS, "--transport", "http", "--era", era]
            peer = await stack.enter_async_context(listening_peer(quickly(words)))
            entries[f"{era}-http"] = {"url": peer.url}
        old = await stack.enter_async_context(http_peer("asking_sdk1"))
        sockets = await stack.enter_async_context(http_peer("asking_sdk1", "--transport", "websocket"))
        entries |= {"sdk1-http": {"url": old.url}, "sdk1-websocket": {"url": sockets.socket_url}}
        hub = await stack.enter_async_context(serving(folder, entries))
        await until_complete(hub.url)
        yield AskingServers(hub, write_config(tmp_path_factory.mktemp("command"), entries, limits=PATIENT))


cells = pytest.mark.parametrize("cell", CELLS, ids=str)


@cells
async def test_a_client_with_elicitation_is_asked_and_its_answers_count(servers: AskingServers, cell: Cell) -> None:
    results = (await servers.results(cell))["able"]
    assert results["form"] == {"text": "Hello, Ada!", "asked": [FORM]}
    assert results["sampling"] == {"text": "state-ok, answered: capital_question", "asked": [CAPITAL]}
    assert results["roots"] == {"text": "state-ok, answered: client_roots", "asked": [ROOTS]}
    assert results["several"] == {
        "text": "state-ok, answered: client_roots, greeting, user_name",
        "asked": [FORM, ROOTS, GREETING],
    }
    assert results["rounds"] == {"text": "Ada likes blue.", "asked": [FORM, COLOUR]}
    assert results["state"] == {"text": "state-ok, answered: confirm", "asked": [CONFIRM]}
    assert results["elsewhere"] == {"text": "state-ok, answered: login", "asked": [LOGIN]}


@cells
@pytest.mark.parametrize("who", ["declining", "cancelling"])
async def test_a_user_that_declines_is_an_answer_too(servers: AskingServers, cell: Cell, who: str) -> None:
    results = (await servers.results(cell))[who]
    assert results["form"] == {"text": "Hello, nothing!", "asked": [FORM]}
    assert results["rounds"]["text"] == "nothing likes nothing."


@cells
async def test_a_caller_that_refuses_the_question_gets_an_error(servers: AskingServers, cell: Cell) -> None:
    results = (await servers.results(cell))["refusing"]
    assert results["form"]["asked"] == [FORM]
    assert "User rejected" in (results["form"].get("error") or results["form"]["text"])
    assert results["roots"]["text"] == "state-ok, answered: client_roots"


@cells
async def test_a_server_knows_its_callers_capabilities(servers: AskingServers, cell: Cell) -> None:
    results = await servers.results(cell)
    answered = {name: results[name]["possible"]["text"] for name in ("able", "without a user", "unable")}
    assert answered == {
        "able": "state-ok, answered: greeting, user_name",
        "without a user": "state-ok, answered: greeting",
        "unable": "nothing can be asked",
    }


@cells
async def test_a_client_without_elicitation_gets_an_error_and_no_question(servers: AskingServers, cell: Cell) -> None:
    results = await servers.results(cell)
    for who, step in (("unable", "form"), ("unable", "sampling"), ("unable", "roots"), ("without a user", "form")):
        assert results[who][step]["asked"] == [], (who, step)
        assert "error" in results[who][step], (who, step)
    assert results["without a user"]["roots"]["text"] == "state-ok, answered: client_roots"


@cells
async def test_a_tool_that_asks_nothing_makes_no_question(servers: AskingServers, cell: Cell) -> None:
    results = await servers.results(cell)
    assert {name: results[name]["plain"] for name in BEHAVIOURS} == {
        name: {"text": "This is a text.", "asked": []} for name in BEHAVIOURS
    }


@pytest.mark.parametrize("client_name", ["sdk2-legacy", "sdk2-modern"])
async def test_a_client_that_runs_the_hub_as_a_command_is_asked_as_well(
    servers: AskingServers, client_name: ClientName
) -> None:
    answerer, results = Answerer(BEHAVIOURS["able"]), {}
    async with command_client(
        quick_isthmus("stdio", "--config", str(servers.config)), environment(), answerer, client_name
    ) as client:
        for server in SERVERS:
            for step in ("form", "several", "rounds"):
                results[server, step] = await answerer.call(client, f"{server}.{ASKS[step]}", {})
    for server in SERVERS:
        assert results[server, "form"] == {"text": "Hello, Ada!", "asked": [FORM]}
        assert results[server, "several"]["asked"] == [FORM, ROOTS, GREETING]
        assert results[server, "rounds"] == {"text": "Ada likes blue.", "asked": [FORM, COLOUR]}
