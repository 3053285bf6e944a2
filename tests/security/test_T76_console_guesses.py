"""T76: a stranger guesses keys where people sign in to the console.

Wrong keys are limited per address, as everywhere; a valid key always passes.
"""

from __future__ import annotations

from pathlib import Path

import httpx2

from tests.hubs import TRUSTED, serving

KEY = "the-key-of-ops-0123456789"
CALLERS = {"ops": {"key": KEY, "allow": ["*"], "operator": True}}


async def test_guesses_are_limited(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, callers=CALLERS, limits={"wrong_keys_per_minute": 5}) as hub,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=30.0, verify=TRUSTED) as http,
    ):
        guesses = [{"key": f"a-guess-that-is-long-enough-{number}"} for number in range(8)]
        answers = [await http.post("/console/session", json=guess) for guess in guesses]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 3
        assert "retry-after" in answers[-1].headers
        # A valid key always passes, because all callers may share one address.
        assert (await http.post("/console/session", json={"key": KEY})).status_code == 200
