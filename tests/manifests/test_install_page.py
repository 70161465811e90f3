"""The installation that docs/install.md has its reader copy: its lines, run by a shell, and what
Helm renders."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from mpsd.admission.rules.verdict import review_all
from mpsd.platform.limits_files import load_limits
from tests.docs.pages import ROOT, Page, page
from tests.manifests.helm import Object, merged, rendered_by_helm

IMAGE = "registry.test:5000/team/mpsd:9.9.9"
KUBERNETES = "v1.36.2"
INSTALL = page("docs/install.md")


def block(words: str, of: Page = INSTALL) -> str:
    (found,) = (fence.text for fence in of.fences if words in fence.text)
    return found


def clusters() -> dict[str, list[str]]:
    _before, table = INSTALL.text.split("| cluster | [values files](#values) |", 1)
    rows = re.findall(r"^\| ([^|]+) \| ([^|]*`[^|]*) \|", table.split("\n\n", 1)[0], re.MULTILINE)
    return {name: re.findall(r"`([\w.-]+)`", names) for name, names in rows}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the reader's: the checkout, and beside it what the page's lines make."""
    (tmp_path / "mpsd").symlink_to(ROOT)
    return tmp_path


def run(folder: Path, lines: str) -> str:
    """Without those for programs that are not here."""
    here = [
        line for line in lines.splitlines() if not line.startswith(("IMAGE=", "docker ", "mpsd "))
    ]
    variables = {"IMAGE": IMAGE, "PATH": "/usr/bin:/bin"}
    command = ["bash", "-euc", "\n".join(here)]
    return subprocess.run(
        command, cwd=folder, env=variables, check=True, capture_output=True, text=True
    ).stdout


def values(folder: Path, names: Sequence[str] = ()) -> Object:
    """The reader's file; names: of other values files than those on the page."""
    lines = block(">my-mpsd/values.yaml")
    if names:
        files = " ".join(f"mpsd/manifests/values/{name}.yaml" for name in names)
        lines = re.sub(r"mpsd/manifests/values/\{.*\}\.yaml", files, lines)
    run(folder, lines)
    return yaml.safe_load((folder / "my-mpsd/values.yaml").read_text())


def pods(things: Sequence[Object]) -> list[Object]:
    return [
        thing["spec"]["template"]["spec"]
        for thing in things
        if thing["kind"] in ("DaemonSet", "Deployment")
    ]


def images(things: Sequence[Object]) -> dict[str, str]:
    return {one["name"]: one["image"] for pod in pods(things) for one in pod["containers"]}


def policy(given: Object) -> Object:
    (found,) = (
        one
        for one in rendered_by_helm(given, KUBERNETES)
        if one["metadata"]["name"] == "mpsd-limits"
    )
    return yaml.safe_load(found["data"]["policy.yaml"])


def test_the_pages_values_name_the_readers_image_runtime_class_and_cdi(folder: Path) -> None:
    things = rendered_by_helm(values(folder), KUBERNETES)
    found = images(things)
    assert found.pop("kube-scheduler") == f"registry.k8s.io/kube-scheduler:{KUBERNETES}"
    assert found == dict.fromkeys(("agent", "control", "webhook", "scheduler"), IMAGE)
    assert [pod["runtimeClassName"] for pod in pods(things) if "runtimeClassName" in pod] == [
        "nvidia",
        "nvidia",
    ]
    (agent,) = (one for pod in pods(things) for one in pod["containers"] if one["name"] == "agent")
    assert {"name": "MPSD_DEVICE_LIST_STRATEGY", "value": "cdi-cri"} in agent["env"]


def test_kubectl_gets_the_readers_image_out_of_the_rendered_installation(folder: Path) -> None:
    (line,) = (
        one for one in INSTALL.text.splitlines() if one.startswith("sed ") and "install.yaml" in one
    )
    things = [*yaml.safe_load_all(run(folder, line.partition(" | kubectl apply")[0]))]
    assert images(things) == dict.fromkeys(("agent", "control", "webhook"), IMAGE)


@pytest.mark.parametrize("names", clusters().values(), ids=" ".join)
def test_the_values_of_every_row_make_an_installation_with_the_readers_image(
    folder: Path, names: list[str]
) -> None:
    found = images(rendered_by_helm(values(folder, names), KUBERNETES))
    found.pop("kube-scheduler", None)
    assert {*found.values()} == {IMAGE}


def test_the_readers_policy_takes_the_place_of_the_shipped_one(folder: Path) -> None:
    given = values(folder)
    run(folder, block("my-mpsd/policy-values.yaml"))
    own = folder / "my-mpsd/policy/policy.yaml"
    shipped = own.read_text()
    own.write_text(shipped.replace("placement: binpack ", "placement: spread "))
    run(folder, block("my-mpsd/policy-values.yaml").splitlines()[-1])
    changed = yaml.safe_load((folder / "my-mpsd/policy-values.yaml").read_text())
    assert policy(merged(given, changed)) == yaml.safe_load(shipped) | {"placement": "spread"}


def test_the_values_beside_nvidias_operator_are_values_of_the_chart() -> None:
    given = yaml.safe_load(block("# beside NVIDIA's GPU operator", page("docs/coexistence.md")))
    things = rendered_by_helm({"image": {"repository": "mpsd"}} | given, KUBERNETES)
    assert [pod["runtimeClassName"] for pod in pods(things) if "runtimeClassName" in pod] == [
        "nvidia",
        "nvidia",
    ]


def test_the_quick_starts_values_are_values_of_the_chart(folder: Path) -> None:
    (said,) = re.findall(r'--set "(\S+)"', block("helm template", page("docs/quick-start.md")))
    given: Object = {}
    for one in run(folder, f'echo "{said}"').strip().split(","):
        path, _equals, value = one.partition("=")
        *above, last = path.split(".")
        below: Object = {last: value}
        for name in reversed(above):
            below = {name: below}
        given = merged(given, below)
    assert images(rendered_by_helm(given, KUBERNETES)) == dict.fromkeys(
        ("agent", "control", "webhook"), IMAGE
    )


def test_the_smoke_test_is_admitted_without_a_warning() -> None:
    text = block("name: mps-smoke").partition("<<END\n")[2].partition("\nEND\n")[0]
    limits = load_limits(None)
    (verdict,) = review_all(
        yaml.safe_load(text.replace("$IMAGE", IMAGE)), limits.policy, limits.facts
    )
    assert (verdict.problems, verdict.warnings) == ((), ())
    (request,) = verdict.requests
    assert (request.memory_mib, request.thread_percent) == (7168, 30)
