"""Every test of `inside`, run beside the real frameworks, passes or fails here under its own name.

While working on one: `PYTHONPATH=src:. .venv-frameworks/bin/python -m pytest --confcutdir=tests/frameworks/inside
tests/frameworks/inside/FILE.py`.
"""

from __future__ import annotations

import pytest

from tests.frameworks.conftest import Inside
from tests.frameworks.running import inner_tests, run_of

PARAMETERS = [
    pytest.param(
        file, name, id=f"{file.removesuffix('.py')}-{name}", marks=pytest.mark.xdist_group(f"inside_{run_of(file)}")
    )
    for file, name in inner_tests()
]


@pytest.mark.parametrize(("file", "name"), PARAMETERS)
def test_beside_the_frameworks(inside: Inside, file: str, name: str) -> None:
    run = inside(file)
    cases = run.cases.get((file, name), [])
    if not cases:
        pytest.fail(f"{file} did not run {name}:\n{run.output}", pytrace=False)
    # Also one that was skipped: the environment is made for these tests, so that nothing in it can be missing.
    if failed := [case for case in cases if case.ending != "passed"]:
        pytest.fail("\n".join(f"{case.name}: {case.ending}\n{case.words}" for case in failed), pytrace=False)
