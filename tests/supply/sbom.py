"""`python -m tests.supply.sbom [FILE]`: the software bill of materials, as CycloneDX 1.6, of what a hub runs on.

It is built from the pins in `requirements/image.txt` alone, and the same pins always make the same document: every
package with its version, the hashes of the files that may be installed, and the packages that need it. Other tools
are not used, because those that read a requirement file do not read which package needs which. If the CycloneDX
library is installed, as in the environment that `make sbom` makes, the document is validated against the standard's
schema. Exit codes: 1 if it is invalid, 2 if a pin cannot be read.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.supply.pins import ROOT, SHIPPED, Pin, file_of, pins_of

SPEC_VERSION = "1.6"
NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
"""The namespace of URLs in RFC 9562; the names in it are package URLs."""

_VERSION = re.compile(r'__version__ = "([^"]+)"')
_EPOCH = "SOURCE_DATE_EPOCH"


def main(arguments: Sequence[str]) -> int:
    """Write the bill to a file, or to standard output."""
    try:
        text = to_json(cyclonedx(pins_of(file_of(SHIPPED)), os.environ.get(_EPOCH)))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if (fault := schema_error(text)) is not None:
        print(f"not valid CycloneDX {SPEC_VERSION}: {fault}", file=sys.stderr)
        return 1
    if not arguments:
        sys.stdout.write(text)
        return 0
    Path(arguments[0]).parent.mkdir(parents=True, exist_ok=True)
    Path(arguments[0]).write_text(text, encoding="utf-8")
    print(f"{arguments[0]}: {len(json.loads(text)['components'])} packages", file=sys.stderr)
    return 0


def cyclonedx(pins: Sequence[Pin], epoch: str | None = None) -> dict[str, Any]:
    """The whole document; `epoch` is its time in seconds since 1970, and without it there is no timestamp."""
    hub = _hub()
    document: dict[str, Any] = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {"component": hub},
        "components": [_component(pin) for pin in pins],
        "dependencies": _dependencies(hub["bom-ref"], pins),
    }
    if epoch is not None:
        document["metadata"]["timestamp"] = datetime.fromtimestamp(int(epoch), UTC).isoformat()
    # The same pins have the same number, others have another.
    document["serialNumber"] = uuid.uuid5(NAMESPACE, to_json(document)).urn
    return document


def to_json(document: dict[str, Any]) -> str:
    """The document as it is shipped."""
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _hub() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = _VERSION.search((ROOT / "src" / "isthmus" / "__init__.py").read_text(encoding="utf-8"))
    if found is None:
        raise ValueError("the package does not say its version")
    purl = f"pkg:pypi/isthmus@{found[1]}"
    return {
        "type": "application",
        "bom-ref": purl,
        "name": "isthmus",
        "version": found[1],
        "description": project["description"],
        "licenses": [{"license": {"id": project["license"], "acknowledgement": "declared"}}],
        "purl": purl,
    }


def _component(pin: Pin) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _purl(pin),
        "name": pin.name,
        "version": pin.version,
        "purl": _purl(pin),
        # Not `hashes`, which would say that one component has all of them: each is of one of its files.
        "properties": [{"name": "isthmus:file:sha256", "value": each} for each in sorted(pin.hashes)],
    }
    if pin.marker:
        component["properties"].append({"name": "isthmus:marker", "value": pin.marker})
    return component


def _purl(pin: Pin) -> str:
    return f"pkg:pypi/{pin.name}@{pin.version}"


def _dependencies(hub: str, pins: Sequence[Pin]) -> list[dict[str, Any]]:
    """Which package needs which; the hub depends on those that no package needs, such as build tools."""
    purls = {pin.name: _purl(pin) for pin in pins}
    needs: dict[str, set[str]] = {hub: set(), **{purl: set() for purl in purls.values()}}
    for pin in pins:
        for dependent in pin.whose:
            if not dependent.startswith("-c "):
                needs[purls.get(dependent, hub)].add(_purl(pin))
    return [{"ref": ref, "dependsOn": sorted(needed)} for ref, needed in sorted(needs.items())]


def schema_error(text: str) -> str | None:
    """Why the document violates the standard's schema; None if it is valid, or if no validator is installed."""
    try:
        from cyclonedx.schema import SchemaVersion  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415
        from cyclonedx.validation.json import (  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415
            JsonStrictValidator,
        )
    except ImportError:
        print("not validated: run make sbom, which installs the CycloneDX validator", file=sys.stderr)
        return None
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    return None if fault is None else str(fault)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
