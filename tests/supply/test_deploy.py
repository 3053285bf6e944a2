"""The Dockerfile, compose.yaml and the unit for systemd agree with the hub and with each other.

`make image` builds the image, or runs its steps where there is no Docker.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.pages import clean_environment
from tests.supply.image import answers, command_of, stages
from tests.supply.pins import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
STAGES = stages(DOCKERFILE)
UNIT = (ROOT / "deploy" / "isthmus.service").read_text()


def test_everything_that_the_image_copies_is_there_and_not_ignored() -> None:
    copied = [step.rest.split()[:-1] for step in STAGES["build"] + STAGES["stdio"] if step.word == "COPY"]
    sources = {source for words in copied for source in words if not words[0].startswith("--from")}
    kept = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert {source.partition("/")[0] for source in sources} == kept


def test_packages_of_the_image_are_pinned_with_hashes() -> None:
    installs = [step.rest for steps in STAGES.values() for step in steps if " pip install " in step.rest]
    assert installs
    assert [line for line in installs if "--require-hashes" not in line and "--no-deps" not in line] == []
    assert "://" not in DOCKERFILE.replace("http://127.0.0.1", "")


def test_a_container_needs_a_key_first_and_then_serves(tmp_path: Path) -> None:
    isthmus, *words = command_of(STAGES["slim"])
    assert isthmus == "isthmus"
    program = [sys.executable, "-m", "isthmus"]
    env = clean_environment(tmp_path)
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    command = [*program, *words, "--port", "0"]
    refused = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=60, check=False)
    assert refused.returncode == 3
    create = [*program, "token", "create", "me", "--allow", "*"]
    subprocess.run(create, cwd=tmp_path, env=env, capture_output=True, timeout=60, check=True)
    assert answers(command, tmp_path, env)


def test_compose_matches_the_image() -> None:
    hub = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["hub"]
    assert hub["build"]["target"] in STAGES
    offered = {step.word: step.rest for step in STAGES["slim"]}
    targets = [volume.split(":")[1] for volume in hub["volumes"]]
    assert targets == [offered["WORKDIR"], offered["VOLUME"]]
    assert [port.rpartition(":")[2] for port in hub["ports"]] == [offered["EXPOSE"]]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit_as_hardened(tmp_path: Path) -> None:
    unit = tmp_path / "isthmus.service"
    unit.write_text(UNIT.replace("/opt/isthmus/bin/isthmus", sys.executable).replace("User=isthmus", "User=daemon"))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    if "Failed to connect" in verified.stderr or "Operation not permitted" in verified.stderr:
        pytest.skip(f"systemd-analyze cannot run here: {verified.stderr}")
    assert (verified.returncode, verified.stderr) == (0, "")
    exposure = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert exposure.returncode == 0, exposure.stdout[-2000:]


def test_the_unit_starts_the_hub_with_options_that_it_has() -> None:
    [start] = re.findall(r"^ExecStart=\S+ (.*)$", UNIT, re.MULTILINE)
    said = subprocess.run(
        [sys.executable, "-m", "isthmus", *start.split(), "--help"], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0
    assert "--config" in said.stdout
