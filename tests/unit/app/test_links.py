"""Links of a hub: programs are told how many hubs started each other down to them, and there is an end to it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from isthmus.app.links import HOPS_VARIABLE, Links, hops_in
from isthmus.core.crew import Crew
from isthmus.core.settings import Limits
from isthmus.core.watch.tasks import Tasks
from isthmus.model.names import ServerName
from isthmus.upstream.link import BaseLink, ConnectFailed
from isthmus.upstream.settings import ServerSettings, StdioSettings

PROGRAM = """
import json, os, sys
answer = {"supportedVersions": ["2026-07-28"], "_meta": {"isthmus/hubs": {os.environ["ISTHMUS_HOPS"]: 5}}}
for line in sys.stdin:
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": answer}), flush=True)
"""


@asynccontextmanager
async def linked(environment: Mapping[str, str]) -> AsyncIterator[BaseLink]:
    crew = Crew("links")
    links = Links(Limits(), environment, crew, Tasks(lambda: 0.0))
    reach = StdioSettings(sys.executable, ("-c", PROGRAM), env={HOPS_VARIABLE: "0"})
    link = await links.connect(ServerSettings(ServerName("files"), reach), "auto")
    try:
        yield link
    finally:
        await link.aclose()
        await crew.aclose()


@pytest.mark.parametrize(("before", "told"), [({}, "1"), ({HOPS_VARIABLE: "7"}, "8"), ({HOPS_VARIABLE: "many"}, "1")])
async def test_a_program_is_told_how_many_hubs_started_each_other(before: Mapping[str, str], told: str) -> None:
    async with linked(before) as link:
        await link.greet("modern")
        assert link.hubs == {told: 5}


async def test_a_hub_at_the_end_of_a_long_row_starts_nothing() -> None:
    with pytest.raises(ConnectFailed, match="8 hubs have started each other"):
        async with linked({HOPS_VARIABLE: "8"}):
            pass


@pytest.mark.parametrize("text", ["", "-1", "1.5", "9" * 50, "² "])
def test_what_is_no_number_of_hubs_is_none(text: str) -> None:
    assert hops_in({HOPS_VARIABLE: text}) == 0
