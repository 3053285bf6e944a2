"""Ten jobs by a scripted agent: plain calls, search and scripts return the same; with scripts a model reads least."""

from __future__ import annotations

from pathlib import Path

from bench.jobs import MODES, run_all
from tests.peers.npm_servers import npm_command

PAGE = Path(__file__).parent.parent.parent / "docs" / "code-mode.md"


async def test_ten_jobs_have_the_same_results_in_every_mode_and_the_documented_number_of_calls() -> None:
    npm_command("everything")  # without the servers from npm the test is skipped
    found = await run_all()
    assert len(found) == 10
    rows = {line.split("|")[1].strip(): line.split("|")[2:5] for line in PAGE.read_text().splitlines() if " · " in line}
    for name, done in found.items():
        plain, search, code = (done[mode] for mode in MODES)
        assert plain.result == search.result == code.result, name
        assert [each.turns for each in (plain, search, code)] == [int(cell.split()[0]) for cell in rows[name]], name
        assert code.read_bytes < min(plain.read_bytes, search.read_bytes), name
    assert found["add up a column"]["plain"].result == sum(number * number for number in range(1, 16))
    assert found["who works on proofs"]["search"].result == [1, ["Edsger", "Tony"]]
