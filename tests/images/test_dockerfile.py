"""What the image promises before it is built; tests/e2e runs the built one."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.manifests.rendering import rendered

_TOP = Path(__file__).parents[2]
_DOCKERFILE = _TOP / "images" / "Dockerfile"


def _instructions(stage: int) -> list[str]:
    """The lines of a stage, counted from 0, -1 for the last: comments left out, continued lines
    joined."""
    text = re.sub(r"^#.*\n", "", _DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return re.split(r"^FROM ", text, flags=re.MULTILINE)[1:][stage].splitlines()


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [program, _DOCKERFILE], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_stage_starts_from_the_base_that_the_builder_chose() -> None:
    stages = re.findall(r"^FROM (\S+)", _DOCKERFILE.read_text(), flags=re.MULTILINE)
    assert set(stages) == {"${BASE}"}
    assert re.search(r"^ARG BASE=\S+:[0-9]\S+$", _DOCKERFILE.read_text(), flags=re.MULTILINE), (
        "a version, not latest"
    )


def test_it_is_nobody_by_default_and_asks_for_no_gpu() -> None:
    last = _instructions(-1)
    assert "USER 65532:65532" in last
    assert not any("NVIDIA_VISIBLE_DEVICES" in line for line in last), (
        "which GPUs is for the manifests to say"
    )
    assert any("NVIDIA_DRIVER_CAPABILITIES=compute,utility" in line for line in last)


def test_the_last_stage_runs_nothing_so_that_no_compiler_cache_or_package_list_is_left_in_it() -> (
    None
):
    assert not any(line.startswith("RUN") for line in _instructions(-1))
    (entrypoint,) = [line for line in _instructions(-1) if line.startswith("ENTRYPOINT")]
    assert entrypoint == 'ENTRYPOINT ["/opt/mpsd/init/tini", "-s", "--", "mpsd"]'


def test_what_pip_must_know_is_a_secret_of_the_build() -> None:
    text = _DOCKERFILE.read_text()
    assert not re.search(r"^(ARG|ENV) .*(PIP_|INDEX|PROXY)", text, flags=re.MULTILINE)
    for line in _instructions(0):
        if "/pip " in line:
            assert "--no-cache-dir" in line
            assert "id=pip,target=/etc/pip.conf" in line or "--no-index" in line


def test_pip_takes_files_of_a_known_hash_or_none_from_an_index() -> None:
    commands = re.findall(r"tools/bin/pip [^&\n]*", "\n".join(_instructions(0)))
    assert len(commands) == 4
    for command in commands:
        assert "--require-hashes -r " in command or "--no-index" in command
        assert " wheel " not in command or "--no-build-isolation" in command, "fetches the backend"


def test_tini_is_of_one_version_whoever_has_it() -> None:
    (line,) = [line for line in _instructions(0) if "apt-get install" in line]
    version = re.search(r"'tini=([0-9.]+)-\*'", line)
    assert version
    assert f'"tini version {version[1]}"*) ;; *) exit 1' in line


def test_the_image_names_its_base() -> None:
    (line,) = [line for line in _instructions(-1) if line.startswith("LABEL")]
    assert 'org.opencontainers.image.base.name="${BASE}"' in line
    assert "ARG BASE" in _instructions(-1), "else it is empty in this stage"


def test_the_builder_sees_nothing_that_the_image_is_not_made_of() -> None:
    lines = [
        line
        for line in (_TOP / ".dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert lines[0] == "*"
    seen = {line.removeprefix("!") for line in lines if line.startswith("!")}
    ours = {"limits", "manifests/install.yaml", "mpsd", "pyproject.toml", "README.md", "LICENSE"}
    assert seen == ours | {"images/requirements.lock", "images/build.lock"}


def _locked(name: str) -> dict[str, set[str]]:
    """By distribution, its versions: several where Pythons differ. Each has hashes."""
    text = re.sub(r"^ *#.*\n", "", (_TOP / "images" / name).read_text(), flags=re.MULTILINE)
    found: dict[str, set[str]] = {}
    for entry in text.replace("\\\n", " ").splitlines():
        pinned, *hashes = entry.split(" --hash=")
        match = re.fullmatch(r"([\w.-]+)==([\w.]+)( ; .*)?", pinned.strip())
        assert match, entry[:80]
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64} *", one) for one in hashes), entry[:80]
        found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


_ROLES = ("agent", "scheduler", "webhook")


@pytest.mark.parametrize("lock", ["requirements.lock", "build.lock"])
def test_a_lock_has_what_pyproject_asks_for_and_what_that_needs(lock: str) -> None:
    """`make lock` makes them."""
    pyproject = tomllib.loads((_TOP / "pyproject.toml").read_text())
    project, locked = pyproject["project"], _locked(lock)
    asked = pyproject["build-system"]["requires"]
    if lock == "requirements.lock":
        extras = [project["optional-dependencies"][role] for role in _ROLES]
        asked = [*project["dependencies"], *(one for extra in extras for one in extra)]
    waiting = [Requirement(one) for one in asked]
    seen = set[str]()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        assert name in locked, one
        assert all(one.specifier.contains(version) for version in locked[name]), one
        if name not in seen:  # its own, as installed here
            seen.add(name)
            needs = map(Requirement, requires(name) or ())
            waiting += [
                need for need in needs if not need.marker or need.marker.evaluate({"extra": ""})
            ]


def test_it_installs_what_its_roles_need_and_nothing_of_the_tests() -> None:
    names = _locked("requirements.lock").keys()
    assert {"aiohttp", "cryptography", "kubernetes", "msgspec", "numpy", "nvidia-ml-py"} <= names
    assert not names & {"mpsd", "pytest", "hypothesis", "mypy", "ruff", "hatchling"}


def test_the_manifests_name_our_one_image_beside_kubernetes_own_and_never_latest() -> None:
    for place in ("", "scheduler"):
        text = str(rendered(place))
        images = set(re.findall(r"'image': '([^']+)'", text))
        assert {image.rpartition(":")[0] for image in images} <= {
            "mpsd",
            "registry.k8s.io/kube-scheduler",
        }
        assert "mpsd:latest" not in images
