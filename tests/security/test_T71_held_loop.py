"""T71: something that anybody may send or answer holds the event loop, and with it every other call.

Hundreds of kinds of legal input go through every door and come from every kind of server (`heavy_inputs`). Beside each
kind, an innocent caller calls a tool on a connection of its own and a probe asks for `/healthz`. The hub itself counts
for how long its event loop was busy without a pause, in processor time: never for over 50 ms.

`make soak` drives each class of kinds for two minutes and prints how long the innocent caller waits
(`tests.security.soak_held_loop`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.security.heavy_inputs import FAMILIES, HELD, KINDS, Field, driven, longest, open_field

pytestmark = pytest.mark.xdist_group("held_loop")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def field(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with open_field(tmp_path_factory.mktemp("heavy")) as opened:
        yield opened


def test_there_are_enough_kinds() -> None:
    names = [kind.name for kind in KINDS]
    assert len(names) == len(set(names)) >= 200


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
async def test_no_kind_of_input_holds_the_loop(field: Field, family: str) -> None:
    held: dict[str, str] = {}
    for kind in KINDS:
        if kind.family == family:
            before = await field.busy()
            await driven(field, kind)
            after = await field.busy()
            if after[HELD] > before[HELD]:
                held[kind.name] = f"over {longest(before, after)} s"
    assert not held, f"these kinds held the event loop: {held}"
