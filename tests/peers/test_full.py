"""The official clients survey the full servers, with nothing between them.

This proves the servers before the hub is tested with them, and holds `forms.SUPPORTS` to what the SDKs really do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from mcp import Client

from tests.peers.client_sdk2 import Mode, client_over_http, client_over_sse, client_over_stdio
from tests.peers.expectations import assert_changed, assert_logged, assert_looked
from tests.peers.forms import FORMS, SOCKET, SUPPORTS, Form
from tests.peers.launch import command, http_peer
from tests.peers.sdk1_steps import Answer, Step, run_sdk1
from tests.peers.survey import Survey, changing, logging, looking
from tests.peers.surveyor import MessageListener, survey

KINDS = {"tools", "prompts", "resources", "completions", "logging"}

every_form_a_new_client_can_reach = pytest.mark.parametrize(
    "form", [form for form in FORMS if form != SOCKET], ids=lambda form: form.name
)
one_of_each_program = pytest.mark.parametrize(
    "form",
    [Form("sdk1", "legacy", "stdio"), SOCKET, Form("sdk2", "legacy", "stateful"), Form("fastmcp", "legacy", "sse")],
    ids=lambda form: form.name,
)


def steps_for(form: Form) -> dict[str, Step]:
    can = form.abilities
    return {**looking(), **logging(), **changing("fresh", listens="announces" in can, updates="updates" in can)}


@asynccontextmanager
async def connected(form: Form, listener: MessageListener) -> AsyncIterator[Client]:
    """An mcp 2.x client with a server of its own, in the server's era."""
    mode: Mode = "legacy" if form.era == "legacy" else "auto"
    if form.carrier == "stdio":
        async with client_over_stdio(command(form.peer, *form.options), mode=mode, listener=listener) as client:
            yield client
        return
    async with http_peer(form.peer, *form.options) as peer:
        url = form.url(peer.port)
        over_http = (
            client_over_sse(url, listener=listener)
            if form.carrier == "sse"
            else client_over_http(url, mode=mode, listener=listener)
        )
        async with over_http as client:
            yield client


async def surveyed_by_sdk1(form: Form, steps: dict[str, Step]) -> dict[str, Answer]:
    if form.carrier == "stdio":
        answers = await run_sdk1(list(steps.values()), server=command(form.peer, *form.options))
    else:
        async with http_peer(form.peer, *form.options) as peer:
            answers = await run_sdk1(list(steps.values()), url=form.url(peer.port), sse=form.carrier == "sse")
    return dict(zip(steps, answers, strict=True))


def assert_is_full(found: Survey, form: Form) -> None:
    can = form.abilities
    # FastMCP says in the modern era that its lists never change, and announces that they did.
    says_so = (form.program, form.era) != ("fastmcp", "modern")
    assert {key: value for key, value in found.capabilities.items() if key in KINDS} == {
        "tools": {"listChanged": says_so},
        "prompts": {"listChanged": says_so},
        "resources": {"listChanged": says_so, "subscribe": "subscriptions" in can},
        "completions": {},
        "logging": {},
    }
    assert found.answers["listening"]["ok"] == ("subscriptions" in can)
    assert_looked(found)
    assert_logged(found, era=form.era, keeps_levels="levels" in can)
    assert_changed(found, form, has_hub=False)


@every_form_a_new_client_can_reach
async def test_a_new_client_gets_everything_that_a_server_of_its_era_has(form: Form) -> None:
    answers = await survey(steps_for(form), lambda listener: connected(form, listener))

    assert_is_full(Survey(answers), form)


@one_of_each_program
async def test_an_old_client_gets_everything_that_a_server_of_its_era_has(form: Form) -> None:
    assert_is_full(Survey(await surveyed_by_sdk1(form, steps_for(form))), form)


def test_every_form_has_a_row_in_the_table_of_features() -> None:
    assert set(SUPPORTS) == set(FORMS)
