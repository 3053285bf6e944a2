"""One hub for all tests of the relay that do not end it, and an agent of its own for each test.

That they share it is part of what is tested: what one agent's peers do must not reach another's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import count
from urllib.parse import quote, quote_plus, unquote

import pytest
import pytest_asyncio

from tests.hubs import HubProcess, serving
from tests.relay import tokens
from tests.relay.tokens import KEY, python_token

WAIT_SECONDS = 0.5
"""How long that hub waits for servers that do not answer."""

LAG_SECONDS = 1.5
"""How long a peer there may not read."""

PART = 20
"""So many characters of a secret in the log are no accident."""

_numbers = count(1)


@pytest.fixture
def new_agent() -> Callable[[], str]:
    """Makes an agent that nobody else has."""
    return lambda: f"agent{next(_numbers)}"


@pytest.fixture
def agent(new_agent: Callable[[], str]) -> str:
    return new_agent()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    relay = {"key": KEY, "wait": WAIT_SECONDS, "agents": {"guest": {"allow": ["builtin.echo"]}}}
    limits = {"lag_seconds": LAG_SECONDS}
    async with serving(tmp_path_factory.mktemp("relay"), relay=relay, limits=limits) as running:
        yield running
    received = "".join(running.said)
    assert "Traceback" not in received, received
    agents = (f"agent{number}" for number in range(1, next(_numbers)))
    for secret in (KEY, *map(python_token, agents), *tokens.shown):
        assert not [part for part in parts_of(secret) if part in received], "a secret was logged"


def parts_of(secret: str) -> set[str]:
    """How it begins and ends, as it is and as addresses have it; what is short is said by accident."""
    forms = {form(unquote(secret)) for form in (str, quote, quote_plus)}
    return {part for form in forms if len(form) >= PART for part in (form[:PART], form[-PART:])}
