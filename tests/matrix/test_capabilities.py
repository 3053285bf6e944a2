"""Every capability of every form of server, through the hub, by the official clients of the same era."""

from __future__ import annotations

import pytest

from tests.matrix.full_servers import CELLS, Cell, FullServerMatrix
from tests.peers import content
from tests.peers.expectations import assert_changed, assert_logged, assert_looked

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("capabilities")]

every_cell = pytest.mark.parametrize("cell", CELLS, ids=str)


@every_cell
async def test_lists_reading_prompts_and_completions_are_the_servers_own(
    full_servers: FullServerMatrix, cell: Cell
) -> None:
    assert_looked(await full_servers.survey(cell))


@every_cell
async def test_log_lines_come_with_their_call_from_the_level_on_that_was_asked_for(
    full_servers: FullServerMatrix, cell: Cell
) -> None:
    # The hub knows each caller's level itself, so it holds also where the server remembers none.
    assert_logged(await full_servers.survey(cell), era=cell.form.era, keeps_levels=True)


@every_cell
async def test_changes_are_announced_wherever_the_server_can(full_servers: FullServerMatrix, cell: Cell) -> None:
    assert_changed(await full_servers.survey(cell), cell.form)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.way == "own"], ids=str)
async def test_the_shown_capabilities_are_those_of_the_server(full_servers: FullServerMatrix, cell: Cell) -> None:
    shown = (await full_servers.survey(cell)).capabilities

    # Tasks are what the hub itself does for servers that have none.
    assert {key: shown[key] for key in shown if key not in ("extensions", "tasks")} == {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": "subscriptions" in cell.form.abilities},
        "completions": {},
        "logging": {},
    }


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.way == "own"], ids=str)
async def test_a_resource_can_be_watched_exactly_where_the_server_takes_subscriptions(
    full_servers: FullServerMatrix, cell: Cell
) -> None:
    found = await full_servers.survey(cell)

    takes = "subscriptions" in cell.form.abilities
    if cell.form.era == "legacy":
        assert found.answers["listening"]["ok"] == takes
    else:
        watched = {"resourceSubscriptions": [content.WATCHED_URI]} if takes else {}
        lists = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
        assert found.answer("listening")["honored"] == {**lists, **watched}
