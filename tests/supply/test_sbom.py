"""The software bill of materials names every package that a hub runs on, and is reproducible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus import __version__
from tests.supply import sbom
from tests.supply.pins import SHIPPED, Pin, file_of, pins_of

PINS = pins_of(file_of(SHIPPED))


def test_the_sbom_names_every_shipped_package_with_its_version_and_hashes() -> None:
    made = sbom.cyclonedx(PINS)
    assert made["metadata"]["component"]["version"] == __version__
    assert [each["purl"] for each in made["components"]] == [f"pkg:pypi/{pin.name}@{pin.version}" for pin in PINS]
    for pin, each in zip(PINS, made["components"], strict=True):
        assert set(pin.hashes) <= {each_property["value"] for each_property in each["properties"]}


def test_the_sbom_lists_dependencies_between_packages() -> None:
    needs = {each["ref"]: each["dependsOn"] for each in sbom.cyclonedx(PINS)["dependencies"]}
    purls = {pin.name: f"pkg:pypi/{pin.name}@{pin.version}" for pin in PINS}
    assert purls["anyio"] in needs[purls["watchfiles"]]
    assert purls["anyio"] not in needs[f"pkg:pypi/isthmus@{__version__}"]
    assert purls["msgspec"] in needs[f"pkg:pypi/isthmus@{__version__}"]
    assert {ref for refs in needs.values() for ref in refs} == set(purls.values()), (
        "every package is needed by another one"
    )


def test_the_same_pins_make_the_same_sbom_and_other_pins_another() -> None:
    first, again = sbom.to_json(sbom.cyclonedx(PINS)), sbom.to_json(sbom.cyclonedx(PINS))
    assert first == again
    other = sbom.cyclonedx([*PINS, Pin("one-more", "1", "", ("0" * 64,), ("click",))])
    assert other["serialNumber"] != json.loads(first)["serialNumber"]


def test_the_timestamp_is_written_only_if_one_is_given() -> None:
    assert "timestamp" not in sbom.cyclonedx(PINS)["metadata"]
    assert sbom.cyclonedx(PINS, "0")["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"


def test_main_writes_the_file_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "isthmus.cdx.json"
    assert sbom.main([str(file)]) == 0
    assert json.loads(file.read_text())["bomFormat"] == "CycloneDX"
    assert f"{len(PINS)} packages" in capsys.readouterr().err
