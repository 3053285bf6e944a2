"""Each file of `inside` is run once, when the first of its tests is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.frameworks.running import Run, run_inside

Inside = Callable[[str], Run]


@pytest.fixture(scope="session")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    """What came of a file's tests in the frameworks' environment."""
    runs: dict[str, Run] = {}
    folder = tmp_path_factory.mktemp("frameworks")

    def ran(file: str) -> Run:
        if file not in runs:
            runs[file] = run_inside(file, folder)
        return runs[file]

    return ran
