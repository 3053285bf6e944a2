"""deploy/helm: helm accepts the chart, and the rendered manifests fit the hub. No Kubernetes runs here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from isthmus import __version__
from isthmus.frontends.http.health import PATHS
from tests.hubs import CHECKOUT
from tests.supply.image import stages

CHART = CHECKOUT / "deploy" / "helm" / "isthmus"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
EVERYTHING = ("--set", "autoscaling.enabled=true,serviceMonitor.enabled=true")
DRAIN_SECONDS = 30


def helm(*words: str) -> str:
    """What helm prints. Where its package has no program for this machine, a test is skipped with the reason."""
    ours = Path(sys.executable).with_name("helm")
    program = os.environ.get("HELM") or (str(ours) if ours.exists() else shutil.which("helm"))
    if program is None:
        pytest.skip("no helm on this machine; install it from https://helm.sh, or name it in HELM")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(*words: str) -> dict[str, Any]:
    """The objects by kind; services also by name."""
    objects = [each for each in yaml.safe_load_all(helm("template", "isthmus", str(CHART), *words)) if each]
    counted = Counter(f"{each['kind']}/{each['metadata']['name']}" for each in objects)
    assert max(counted.values()) == 1
    return {each["kind"]: each for each in objects} | {
        each["metadata"]["name"]: each for each in objects if each["kind"] == "Service"
    }


def test_the_chart_has_the_version_of_the_hub_and_a_good_configuration() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
    assert set(tomllib.loads(VALUES["config"])) == {"cluster", "storage", "relay", "callers"}
    compose = tomllib.loads((CHECKOUT / "deploy" / "compose" / "config" / "isthmus.toml").read_text())
    assert tomllib.loads(VALUES["config"]) == compose


def test_helm_lint_finds_nothing() -> None:
    said = helm("lint", "--strict", str(CHART))
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said
    helm("lint", "--strict", str(CHART), *EVERYTHING)


def test_pods_are_as_confined_as_containers_of_compose_and_keep_their_state() -> None:
    pod = rendered()["StatefulSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    image = {step.word: step.rest for step in stages((CHECKOUT / "Dockerfile").read_text())["slim"]}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"--uid {pod['securityContext']['runAsUser']} " in (CHECKOUT / "Dockerfile").read_text()
    assert pod["automountServiceAccountToken"] is False
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"config": image["WORKDIR"], "state": image["VOLUME"], "tmp": "/tmp"}
    assert [port["containerPort"] for port in container["ports"]] == [int(image["EXPOSE"])]


def test_probes_ask_paths_of_the_hub_and_a_pod_may_drain() -> None:
    pod = rendered()["StatefulSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    probes = [container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [probe["path"] for probe in probes] == ["/healthz", "/livez", "/readyz"]
    assert {probe["path"] for probe in probes} == set(PATHS)
    assert {probe["port"] for probe in probes} == {container["ports"][0]["name"]}
    assert VALUES["drainSeconds"] == DRAIN_SECONDS
    assert container["lifecycle"]["preStop"]["exec"]["command"][0] == "python"
    assert pod["terminationGracePeriodSeconds"] > VALUES["preStopSeconds"] + DRAIN_SECONDS


def test_selectors_and_names_lead_to_each_other() -> None:
    found = rendered(*EVERYTHING)
    spec = found["StatefulSet"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert "replicas" not in spec, "the autoscaler decides"
    assert spec["selector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    for name in ("isthmus", spec["serviceName"]):
        assert found[name]["spec"]["selector"] == labels
    assert (
        found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == found["StatefulSet"]["metadata"]["name"]
    )
    volumes = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    [endpoint] = found["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["path"] == "/metrics"
    assert rendered()["StatefulSet"]["spec"]["replicas"] == VALUES["replicas"]
