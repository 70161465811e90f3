"""What `make release` makes of a checkout, but for the image: that takes minutes, root and a
mirror."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import mpsd
from images import release
from tests.manifests.helm import files_by_helm, values
from tests.manifests.version import PLACES, TOP, with_version

_EPOCH = 1_760_000_000
_WHEEL, _SDIST, _CHART = (
    f"mpsd-{mpsd.__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".tgz")
)
_STATUS = (
    b"Package: tini\nVersion: 0.19.0-1\n\nPackage: libc6\nVersion: 2.36-9+deb12u13\nDescription: C"
    b" library\n more\n"
)


def _made(folder: Path, epoch: int) -> dict[str, bytes]:
    """Every file of a release but the image's, made in a folder of its own."""
    folder.mkdir()
    source = folder / "source"
    release.export(source)
    for path in source.rglob("*"):
        os.utime(path, (epoch, epoch), follow_symlinks=False)
        path.chmod(path.stat().st_mode | 0o020)  # as another umask has it
    release.packages(source, folder / "dist", _EPOCH)
    release.archive(folder / "dist" / _CHART, source / "manifests/chart", "mpsd", _EPOCH)
    return {path.name: path.read_bytes() for path in (folder / "dist").iterdir()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("release") / "one"
    return folder / "dist", _made(folder, 1_700_000_000)


def test_two_builds_are_the_same_bytes(made: tuple[Path, dict[str, bytes]], tmp_path: Path) -> None:
    _folder, first = made
    assert first.keys() == {_WHEEL, _SDIST, _CHART}
    second = _made(tmp_path / "two", 1_600_000_000)
    assert [name for name in first if first[name] != second[name]] == []


def test_wheel_and_sdist_have_what_is_committed(made: tuple[Path, dict[str, bytes]]) -> None:
    folder, _files = made
    with zipfile.ZipFile(folder / _WHEEL) as wheel:
        names = set(wheel.namelist())
    assert {"mpsd/__init__.py", "mpsd/_limits/policy.yaml", "mpsd/_manifests/install.yaml"} <= names
    assert f"mpsd-{mpsd.__version__}.dist-info/METADATA" in names
    with tarfile.open(folder / _SDIST) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "LICENSE", "limits/gpus.yaml", "docs/install.md"} <= names
    assert not any(name.startswith((".venv", "build/", ".git/")) for name in names)


def test_helm_renders_the_chart_package_as_the_folder(made: tuple[Path, dict[str, bytes]]) -> None:
    folder, _files = made
    packed = files_by_helm(values(), chart=folder / _CHART)
    assert "templates/control/daemonset.yaml" in packed
    assert packed == files_by_helm(values(), chart=folder.parent / "source/manifests/chart")


@pytest.mark.parametrize("place", PLACES)
def test_a_file_that_repeats_the_version_says_that_of_the_package(place: str) -> None:
    assert (TOP / place).read_text() == with_version(place), "python -m tests.manifests.version"
    assert with_version(place, "77.8.9") != with_version(place)


def test_the_sbom_lists_what_is_installed_in_the_image(tmp_path: Path) -> None:
    tree, layout = tmp_path / "tree", tmp_path / "layout"
    for name, text in (
        ("usr/lib/os-release", b'NAME="Ubuntu"\nID=ubuntu\n'),
        ("var/lib/dpkg/status", _STATUS),
        (
            "opt/mpsd/lib/python3.11/site-packages/rich-14.0.0.dist-info/METADATA",
            b"Name: rich\nVersion: 14.0.0\n",
        ),
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(text)
    (layout / "blobs/sha256").mkdir(parents=True)
    release.archive(layout / "blobs/sha256/layer", tree, "", _EPOCH)
    for path, found in (
        ("blobs/sha256/manifest", {"layers": [{"digest": "sha256:layer"}]}),
        ("index.json", {"manifests": [{"digest": "sha256:manifest"}]}),
    ):
        (layout / path).write_text(json.dumps(found))
    document = release.sbom(layout, _EPOCH)
    assert document["creationInfo"] == {
        "created": "2025-10-09T08:53:20Z",
        "creators": [f"Tool: mpsd-release-{mpsd.__version__}"],
    }
    found = {one["externalRefs"][0]["referenceLocator"] for one in document["packages"]}
    assert found == {
        "pkg:oci/mpsd@sha256%3Amanifest",
        "pkg:deb/ubuntu/libc6@2.36-9%2Bdeb12u13",
        "pkg:deb/ubuntu/tini@0.19.0-1",
        "pkg:pypi/rich@14.0.0",
    }


_DIGEST = "0" * 63 + "1"


def test_the_provenance_names_each_file_and_what_it_was_built_from(tmp_path: Path) -> None:
    made, layout = tmp_path / "dist", tmp_path / "layout"
    made.mkdir()
    layout.mkdir()
    (layout / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:22"}]}))
    release.archive(made / "mpsd-1-image.tar", layout, "", _EPOCH)
    (made / "mpsd-1.tgz").write_bytes(b"chart")
    base = f"docker.io/library/python:3.12-slim@sha256:{_DIGEST}"
    found = release.provenance(made, TOP, "c0ffee", base)
    assert found == release.provenance(made, TOP, "c0ffee", base), "without a time"
    names = {one["name"]: one["digest"]["sha256"] for one in found["subject"]}
    chart = hashlib.sha256(b"chart").hexdigest()
    assert names.keys() == {"mpsd", "mpsd-1-image.tar", "mpsd-1.tgz"}
    assert (names["mpsd"], names["mpsd-1.tgz"]) == ("22", chart)
    of = found["predicate"]["buildDefinition"]["resolvedDependencies"]
    locks = ("images/requirements.lock", "images/build.lock")
    assert [one["digest"] for one in of] == [
        {"gitCommit": "c0ffee"},
        *({"sha256": hashlib.sha256((TOP / lock).read_bytes()).hexdigest()} for lock in locks),
        {"sha256": _DIGEST},
    ]


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not here")
def test_the_sums_are_signed_so_that_a_changed_line_is_seen(tmp_path: Path) -> None:
    key, sums = tmp_path / "key", tmp_path / "SHA256SUMS"
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key]
    subprocess.run(made, check=True, timeout=30)
    sums.write_text("00  mpsd-1.tgz\n")
    release.sign(sums, str(key))
    (tmp_path / "signers").write_text(f"release@mpsd {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", tmp_path / "signers", "-I", "release@mpsd"]
    verify += ["-n", "mpsd-release", "-s", f"{sums}.sig"]
    codes = []
    for text in (sums.read_text(), "01  mpsd-1.tgz\n"):
        done = subprocess.run(verify, input=text, text=True, capture_output=True, timeout=30)
        codes.append(done.returncode == 0)
    assert codes == [True, False]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"BASE": "python:3.12-slim"}, "BASE is python:3.12-slim: "),
        ({"BASE": f"python@sha256:{_DIGEST}"}, ""),
        ({"SIGN_KEY": "/no/such"}, "SIGN_KEY is /no/such: no such file"),
    ],
)
def test_a_base_without_a_digest_and_a_key_that_is_not_there_are_refused(
    given: dict[str, str], said: str
) -> None:
    found = [one for one in release.what_is_missing(given) if one.startswith(("BASE", "SIGN"))]
    assert len(found) == bool(said)
    assert all(one.startswith(said) for one in found)


def test_what_is_missing_is_said_in_one_sentence_and_dist_is_as_it_was(tmp_path: Path) -> None:
    clone = tmp_path / "mpsd"
    subprocess.run(["git", "clone", "--quiet", TOP, clone], check=True, timeout=60)
    (clone / "dist").mkdir()
    (clone / "dist/kept").write_text("")
    (clone / "README.md").write_text("changed")
    (clone / "new.txt").write_text("")
    command = [sys.executable, clone / "images/release.py"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").symlink_to(shutil.which("git") or "git")
    environment = {"PATH": str(tmp_path / "bin")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    said = (
        "make release: not as committed: README.md, …: commit or stash it; not found: buildah,"
        " debootstrap: "
    )
    assert done.stderr.startswith(said), done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in (clone / "dist").iterdir()] == ["kept"]
