"""The files of `inside` are run when the first of their tests is asked for, several in one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.frameworks.running import Run, run_inside, run_of

Inside = Callable[[str], Run]


@pytest.fixture(scope="session")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    """What came of the run that a file belongs to, in the frameworks' environment."""
    runs: dict[str, Run] = {}
    folder = tmp_path_factory.mktemp("frameworks")

    def ran(file: str) -> Run:
        name = run_of(file)
        if name not in runs:
            runs[name] = run_inside(name, folder)
        return runs[name]

    return ran
