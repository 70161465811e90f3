"""The installation that docs/install.md has its reader copy: its lines, run by a shell, and what kubectl renders."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from mpsd.admission.rules.verdict import review_all
from mpsd.platform.limits_files import load_limits
from tests.docs.pages import ROOT, Page, page
from tests.manifests.helm import rendered_by_helm
from tests.manifests.rendering import Object, called, rendered

IMAGE = "registry.test:5000/team/mpsd:9.9.9"
KUBERNETES = "v1.36.2"
INSTALL = page("docs/install.md")


def block(words: str, of: Page = INSTALL) -> str:
    """The one block of code that contains these words."""
    (found,) = (fence.text for fence in of.fences if words in fence.text)
    return found


def clusters() -> dict[str, list[str]]:
    """The components of each row of the table of clusters, as far as one cluster can have them together."""
    _before, table = INSTALL.text.split("| cluster | components |", 1)
    rows = re.findall(r"^\| ([^|]+) \| ([^|]*`[^|]*) \|", table.split("\n\n", 1)[0], re.MULTILINE)
    return {name: re.findall(r"`([\w.-]+)`", names.replace(" or `scheduler-v1beta1`", "")) for name, names in rows}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the reader's: the checkout, and beside it what the page's lines make."""
    (tmp_path / "mpsd").symlink_to(ROOT)
    run(tmp_path, block(">my-mpsd/kustomization.yaml"))
    return tmp_path


def run(folder: Path, lines: str) -> None:
    variables = {"IMAGE": IMAGE, "KUBERNETES": KUBERNETES, "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-euc", lines], cwd=folder, env=variables, check=True)


def with_components(folder: Path, names: Sequence[str]) -> None:
    """Puts these in the place of the page's."""
    file = folder / "my-mpsd/kustomization.yaml"
    lines = [line for line in file.read_text().splitlines() if "/components/" not in line]
    at = next(at for at, line in enumerate(lines) if line.startswith("components:"))
    lines[at + 1 : at + 1] = [f"  - ../mpsd/manifests/components/{name}" for name in names]
    file.write_text("\n".join(lines) + "\n")


def containers(things: Sequence[Object]) -> list[Object]:
    pods = [thing["spec"]["template"]["spec"] for thing in things if thing["kind"] in ("DaemonSet", "Deployment")]
    return [container for pod in pods for container in pod["containers"]]


def policy(things: Sequence[Object]) -> Object:
    (found,) = (thing for thing in things if thing["kind"] == "ConfigMap" and "policy.yaml" in thing["data"])
    read: Object = yaml.safe_load(found["data"]["policy.yaml"])
    return read


def test_every_image_is_the_readers_and_the_runtime_class_stays_beside_the_scheduler(folder: Path) -> None:
    things = rendered(str(folder / "my-mpsd"))
    images = {container["name"]: container["image"] for container in containers(things)}
    assert images.pop("kube-scheduler") == f"registry.k8s.io/kube-scheduler:{KUBERNETES}"
    assert {*images} == {"agent", "control", "webhook", "scheduler"}
    assert {*images.values()} == {IMAGE}
    classes = [one["spec"]["template"]["spec"].get("runtimeClassName") for one in things if one["kind"] == "DaemonSet"]
    assert classes == ["nvidia", "nvidia"]
    (agent,) = (one for one in containers(things) if one["name"] == "agent")
    strategies = [one["value"] for one in agent["env"] if one["name"] == "MPSD_DEVICE_LIST_STRATEGY"]
    assert strategies == ["cdi-cri"]


def test_the_values_for_helm_make_the_same_objects(folder: Path) -> None:
    run(folder, block(">my-values.yaml"))
    values = yaml.safe_load((folder / "my-values.yaml").read_text())
    by_helm = rendered_by_helm(values, KUBERNETES)
    by_kustomize = rendered(str(folder / "my-mpsd"))
    assert sorted(map(called, by_helm)) == sorted(called(one) for one in by_kustomize if one["kind"] != "Namespace")
    for made in (by_helm, by_kustomize):
        (agent,) = (one for one in containers(made) if one["name"] == "agent")
        assert {"name": "MPSD_DEVICE_LIST_STRATEGY", "value": "cdi-cri"} in agent["env"]
    images = [{one["name"]: one["image"] for one in containers(made)} for made in (by_helm, by_kustomize)]
    assert images[0] == images[1]


def test_the_values_beside_nvidias_operator_are_values_of_the_chart() -> None:
    given = yaml.safe_load(block("# beside NVIDIA's GPU operator", page("docs/coexistence.md")))
    made = rendered_by_helm({"image": {"repository": "mpsd"}} | given, KUBERNETES)
    classes = [one["spec"]["template"]["spec"].get("runtimeClassName") for one in made if one["kind"] == "DaemonSet"]
    assert classes == ["nvidia", "nvidia"]


def test_the_quick_starts_folder_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "mpsd").symlink_to(ROOT)
    lines = block(">my-mpsd/kustomization.yaml", page("docs/quick-start.md"))
    making = [line for line in lines.splitlines() if not line.startswith(("IMAGE=", "docker ", "kubectl "))]
    run(tmp_path, "\n".join(making))
    things = rendered(str(tmp_path / "my-mpsd"))
    assert {container["image"] for container in containers(things)} == {IMAGE}


def test_the_page_has_clusters() -> None:
    assert len(clusters()) > 5
    assert all(names for names in clusters().values())


@pytest.mark.parametrize("names", clusters().values(), ids=" ".join)
def test_the_components_of_every_row_make_an_installation_with_the_readers_image(
    folder: Path, names: list[str]
) -> None:
    with_components(folder, names)
    images = {one["image"] for one in containers(rendered(str(folder / "my-mpsd"))) if one["name"] != "kube-scheduler"}
    assert images == {IMAGE}


@pytest.mark.parametrize("others", [[], ["generic"], ["hostile-tenants"]])
def test_the_readers_policy_takes_the_place_of_any_other(folder: Path, others: list[str]) -> None:
    with_components(folder, others)
    run(folder, block("mkdir -p my-mpsd/policy"))
    own = folder / "my-mpsd/policy/policy.yaml"
    own.write_text(own.read_text().replace("placement: binpack ", "placement: spread "))
    assert policy(rendered(str(folder / "my-mpsd")))["placement"] == "spread"


def test_the_policys_lines_may_be_pasted_twice(folder: Path) -> None:
    for _time in range(2):
        run(folder, block("mkdir -p my-mpsd/policy"))
    assert policy(rendered(str(folder / "my-mpsd")))["placement"] == "binpack"


def test_the_smoke_test_is_admitted_without_a_warning() -> None:
    text = block("name: mps-smoke").partition("<<END\n")[2].partition("\nEND\n")[0]
    limits = load_limits(None)
    (verdict,) = review_all(yaml.safe_load(text.replace("$IMAGE", IMAGE)), limits.policy, limits.facts)
    assert (verdict.problems, verdict.warnings) == ((), ())
    (request,) = verdict.requests
    assert (request.memory_mib, request.thread_percent) == (7168, 30)
