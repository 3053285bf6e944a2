"""The check for known vulnerabilities: a finding fails, and a missing answer is not a pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from tests.supply import audit
from tests.supply.audit import NOT_AUDITED, SERVICES
from tests.supply.pins import FOLDER, SHIPPED, Pin, file_of, pins_of

FILE = file_of(SHIPPED)
FLAW = {"id": "PYSEC-1", "fix_versions": ["9"], "aliases": [], "description": ""}


def answer(pins: Sequence[Pin], flaws: dict[str, list[object]], skipped: Sequence[str] = ()) -> str:
    """What pip-audit 2.10 writes."""
    received: list[dict[str, object]] = [
        {"name": pin.name, "skip_reason": "Dependency not found"}
        if pin.name in skipped
        else {"name": pin.name, "version": pin.version, "vulns": flaws.get(pin.name, [])}
        for pin in pins
    ]
    return json.dumps({"dependencies": received, "fixes": []})


def answering(flaws: dict[str, list[object]], skipped: Sequence[str] = ()) -> Callable[[Sequence[Pin], str], str]:
    return lambda pins, _: answer(pins, flaws, skipped)


def test_where_nothing_is_known_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["--strict"], answering({})) == 0
    output = capsys.readouterr().out
    assert NOT_AUDITED not in output
    assert output.startswith(f"{SHIPPED}.txt: {len(pins_of(FILE))} packages asked about, 0 known")


def test_a_vulnerability_in_a_shipped_package_fails_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([], answering({"click": [FLAW]})) == 1
    assert "(PYSEC-1), mended by 9" in capsys.readouterr().out


def test_a_vulnerability_in_a_test_package_is_reported_and_does_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([], answering({"hypothesis": [FLAW]})) == 0
    assert "PYSEC-1" in capsys.readouterr().out


@pytest.mark.parametrize("said", ["", "no JSON", "[]", '{"dependencies": []}'])
def test_silence_is_reported_loudly_and_fails_a_release(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([], lambda *_: said) == 0
    output = capsys.readouterr().out
    assert len([line for line in output.splitlines() if line.startswith(NOT_AUDITED)]) == len(
        list(FOLDER.glob("*.txt"))
    )
    assert audit.main(["--strict"], lambda *_: said) == 2


def test_a_skipped_package_is_looked_up_elsewhere_and_then_reported() -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def ask(pins: Sequence[Pin], service: str) -> str:
        asked.append((service, tuple(pin.name for pin in pins)))
        return answer(pins, {}, ["click"])

    (received,) = audit.look_at([FILE], ask)
    assert [called.split()[0] for called in received.unknown] == ["click"]
    assert [service for service, _ in asked] == list(SERVICES)
    assert asked[1][1] == ("click",)


def test_a_database_that_does_not_answer_is_not_asked_again() -> None:
    asked: list[str] = []

    def ask(pins: Sequence[Pin], service: str) -> str:
        asked.append(service)
        return "" if service == SERVICES[0] else answer(pins, {})

    audit.look_at([FILE, FILE], ask)
    assert asked == [SERVICES[0], SERVICES[1], SERVICES[1]]


def test_a_package_that_is_pinned_twice_is_asked_about_twice() -> None:
    """pip-audit refuses a file that has it two times."""
    rounds: list[list[str]] = []

    def ask(pins: Sequence[Pin], _: str) -> str:
        rounds.append([pin.name for pin in pins])
        return answer(pins, {})

    (received,) = audit.look_at([file_of("fuzz")], ask)
    assert not received.unknown
    assert [len(names) for names in rounds] == [len(set(names)) for names in rounds]
    assert sum(map(len, rounds)) == len(pins_of(file_of("fuzz"))) == len(received.known)


def test_packages_for_other_systems_are_audited_too() -> None:
    names: set[str] = set()

    def ask(pins: Sequence[Pin], _: str) -> str:
        names.update(pin.name for pin in pins)
        return answer(pins, {})

    audit.look_at([file_of("test")], ask)
    assert "colorama" in names
