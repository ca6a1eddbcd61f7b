"""The Helm chart: linted and rendered by helm, checked against the schemas of Kubernetes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from stillweb.cli import cli

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "stillweb"
REQUIRED = ("--set", "volume.existingClaim=packs", "--set", "keys.existingSecret=keys")
VARIANTS = {
    "defaults": (),
    "autoscaling": ("--set", "serve.autoscaling.enabled=true", "--set", "replay.replicas=3"),
    "without policies": ("--set", "networkPolicy.enabled=false", "--set", "collections={shop,wiki}"),
}


@pytest.fixture(scope="module")
def helm(python_of):
    program = python_of("helm").with_name("helm")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)

    return run


@pytest.fixture(params=VARIANTS)
def rendered(request, helm) -> str:
    ended = helm("template", "site", str(CHART), *REQUIRED, *VARIANTS[request.param])
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_chart_passes_the_linter(helm):
    ended = helm("lint", "--strict", str(CHART), *REQUIRED)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("version", ["1.27", "1.33"])
def test_objects_follow_the_schemas(rendered, python_of, tmp_path, version):
    (tmp_path / "rendered.yaml").write_text(rendered)
    validate = python_of("helm").with_name("kubernetes-validate")
    command = [validate, "--strict", "-k", version, tmp_path / "rendered.yaml"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_pods_follow_the_restricted_level(rendered):
    for pod in pods(rendered):
        security = pod["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"readinessProbe", "livenessProbe", "startupProbe"} <= container.keys()
            assert container["resources"]["limits"]["memory"]


def test_browsers_reach_replay_master_and_names_only(helm):
    ended = helm("template", "site", str(CHART), *REQUIRED)
    policies = {each["metadata"]["name"]: each["spec"] for each in objects(ended.stdout, "NetworkPolicy")}
    allowed = [target for rule in policies["site-serve"]["egress"] for target in rule["to"]]
    components = {
        target["podSelector"]["matchLabels"].get("app.kubernetes.io/component", "dns") for target in allowed
    }
    assert components == {"replay", "master", "dns"}
    assert not any("ipBlock" in target for target in allowed)
    assert policies["site-replay"]["egress"] == []


def test_rollout_servers_reach_replay_in_a_cluster_with_another_domain(helm):
    ended = helm("template", "site", str(CHART), *REQUIRED, "--set", "clusterDomain=k8s.example")
    service = "site-replay.default.svc.k8s.example"
    containers = {pod["containers"][0]["name"]: pod["containers"][0] for pod in pods(ended.stdout)}
    assert f"http://site-replay-$(( ${{HOSTNAME##*-}} % 1 )).{service}:8080" in containers["serve"]["args"][0]
    assert f"--allow-host=$(POD_NAME).{service}" in containers["replay"]["args"]


def test_missing_values_are_named(helm):
    ended = helm("template", "site", str(CHART))
    assert ended.returncode != 0
    assert "volume.existingClaim" in ended.stderr or "keys.existingSecret" in ended.stderr


def test_commands_use_options_that_exist(rendered):
    for pod in pods(rendered):
        for container in pod["containers"]:
            words = " ".join(container["args"]).replace("=", " ").split()
            command = ["replay", "serve"] if "replay" in words[:1] else ["serve"]
            known = CliRunner().invoke(cli, [*command, "--help"]).output
            for option in (word for word in words if word.startswith("--")):
                assert f"{option} " in known, f"{option} of {container['name']}"


def objects(rendered: str, kind: str) -> list[dict]:
    return [each for each in yaml.safe_load_all(rendered) if each and each["kind"] == kind]


def pods(rendered: str) -> list[dict]:
    kinds = ("StatefulSet", "Deployment")
    found = [each["spec"]["template"]["spec"] for kind in kinds for each in objects(rendered, kind)]
    assert len(found) == 3
    return found
