"""The software bill of materials names everything that a hub runs on, and says the same each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus import __version__
from tests.supply import bill
from tests.supply.pins import SHIPPED, Pin, file_of, pins_of

PINS = pins_of(file_of(SHIPPED))


def test_it_names_every_package_that_is_shipped_with_its_version_and_hashes() -> None:
    made = bill.bill(PINS)
    assert made["metadata"]["component"]["version"] == __version__
    assert [each["purl"] for each in made["components"]] == [f"pkg:pypi/{pin.name}@{pin.version}" for pin in PINS]
    for pin, each in zip(PINS, made["components"], strict=True):
        assert set(pin.hashes) <= {said["value"] for said in each["properties"]}


def test_it_lists_which_package_needs_which() -> None:
    needs = {each["ref"]: each["dependsOn"] for each in bill.bill(PINS)["dependencies"]}
    purls = {pin.name: f"pkg:pypi/{pin.name}@{pin.version}" for pin in PINS}
    assert purls["anyio"] in needs[purls["watchfiles"]]
    assert purls["anyio"] not in needs[f"pkg:pypi/isthmus@{__version__}"]
    assert purls["msgspec"] in needs[f"pkg:pypi/isthmus@{__version__}"]
    assert {ref for refs in needs.values() for ref in refs} == set(purls.values()), "nothing is there for nobody"


def test_the_same_pins_make_the_same_bill_and_others_another() -> None:
    first, again = bill.written(bill.bill(PINS)), bill.written(bill.bill(PINS))
    assert first == again
    other = bill.bill([*PINS, Pin("one-more", "1", "", ("0" * 64,), ("click",))])
    assert other["serialNumber"] != json.loads(first)["serialNumber"]


def test_it_says_when_only_if_that_is_said() -> None:
    assert "timestamp" not in bill.bill(PINS)["metadata"]
    assert bill.bill(PINS, "0")["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"


def test_it_is_written_where_it_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "isthmus.cdx.json"
    assert bill.main([str(file)]) == 0
    assert json.loads(file.read_text())["bomFormat"] == "CycloneDX"
    assert f"{len(PINS)} packages" in capsys.readouterr().err
