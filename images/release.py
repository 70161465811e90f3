"""Builds a release into dist/: `python images/release.py`, as `make release` calls it.

wheel, sdist, chart, image (an OCI layout in a tar), SBOM of the image (SPDX 2.3), provenance (SLSA
1.0, an in-toto statement) and SHA256SUMS, of the commit that is checked out and dated as it. The
same commit, base of the image, Debian packages and buildah make the same bytes. SIGN_KEY=FILE, a
key of OpenSSH, signs SHA256SUMS. dist/ is replaced when all is there, and not before.
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from email import message_from_bytes
from pathlib import Path

import mpsd

TOP = Path(__file__).resolve().parents[1]
_BY_DIGEST = re.compile(r"@sha256:([0-9a-f]{64})$")
_LOCKS = ("images/requirements.lock", "images/build.lock")


def main() -> int:
    if missing := what_is_missing(os.environ):
        print(f"make release: {'; '.join(missing)}", file=sys.stderr)
        return 1
    (TOP / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOP / "build") as folder:
        work = Path(folder)
        source, made = work / f"mpsd-{mpsd.__version__}", work / "dist"
        epoch = int(_git("log", "-1", "--format=%ct"))
        export(source)
        packages(source, made, epoch)
        archive(made / f"mpsd-{mpsd.__version__}.tgz", source / "manifests/chart", "mpsd", epoch)
        layout = work / "image"
        build = [source / "tests/e2e/image/build.sh", "--oci", layout]
        subprocess.run(build, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)})
        archive(made / f"mpsd-{mpsd.__version__}-image.tar", layout, "", epoch)
        (made / f"mpsd-{mpsd.__version__}.spdx.json").write_text(
            json.dumps(sbom(layout, epoch), indent=1) + "\n"
        )
        base = os.environ.get("BASE", "")
        (made / f"mpsd-{mpsd.__version__}.provenance.json").write_text(
            json.dumps(provenance(made, source, _git("rev-parse", "HEAD"), base), indent=1) + "\n"
        )
        sums = [f"{_sha256(path)}  {path.name}\n" for path in sorted(made.iterdir())]
        (made / "SHA256SUMS").write_text("".join(sums))
        if key := os.environ.get("SIGN_KEY"):
            sign(made / "SHA256SUMS", key)
        shutil.rmtree(TOP / "dist", ignore_errors=True)
        made.rename(TOP / "dist")
    print("".join(sums), end="")
    print(f"dist/: mpsd {mpsd.__version__}, image {image_digest(TOP / 'dist')}")
    return 0


def what_is_missing(environment: Mapping[str, str]) -> list[str]:
    """Why nothing is built, each with its remedy."""
    missing = []
    if changed := _git("status", "--porcelain").splitlines():
        missing.append(
            f"not as committed: {changed[0][3:]}{', …' * (len(changed) > 1)}: commit or stash it"
        )
    programs = ["buildah"] if environment.get("BASE") else ["buildah", "debootstrap"]
    if lacks := [name for name in programs if not shutil.which(name)]:
        missing.append(
            f"not found: {', '.join(lacks)}: install it (Debian: apt-get install {' '.join(lacks)})"
        )
    base, key = environment.get("BASE", ""), environment.get("SIGN_KEY", "")
    if base and not _BY_DIGEST.search(base):
        missing.append(
            f"BASE is {base}: its tag may name another image tomorrow: write IMAGE@sha256:…, as"
            " `skopeo inspect` prints it"
        )
    if key and not Path(key).is_file():
        missing.append(f"SIGN_KEY is {key}: no such file: name a key of ssh-keygen, or none")
    if os.geteuid() != 0:
        missing.append("the image needs root: run it as root")
    return missing


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", TOP, *words], check=True, capture_output=True, text=True
    ).stdout.rstrip()


def export(folder: Path) -> None:
    """What is committed, with modes that no umask changes."""
    tar = folder.with_suffix(".tar")
    _git("-c", "tar.umask=0022", "archive", f"--output={tar}", "HEAD")
    with tarfile.open(tar) as found:
        found.extractall(folder, filter="tar")
    tar.unlink()


def packages(source: Path, target: Path, epoch: int) -> None:
    """Wheel and sdist."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", target]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)


def archive(target: Path, folder: Path, root: str, epoch: int) -> None:
    """The folder's files as `root`, sorted, of nobody, of one time. Compressed where the name ends
    in .tgz."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime, entry.mode = epoch, 0o644
        return entry

    with target.open("wb") as raw:
        stream = (
            gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) if target.suffix == ".tgz" else raw
        )
        with stream, tarfile.open(fileobj=stream, mode="w") as tar:
            for path in sorted(one for one in folder.rglob("*") if one.is_file()):
                tar.add(path, Path(root, path.relative_to(folder)), filter=plain)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def image_digest(folder: Path) -> str:
    """Of the image in a release."""
    (path,) = folder.glob("*-image.tar")
    with tarfile.open(path) as tar:
        digest: str = json.loads(_read(tar, tar.getmember("index.json")))["manifests"][0]["digest"]
    return digest


def sign(sums: Path, key: str) -> None:
    """Writes SUMS.sig beside it. The key may be one of ssh-agent: its public half."""
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "mpsd-release", sums]
    subprocess.run(command, check=True)


def provenance(made: Path, source: Path, commit: str, base: str) -> dict[str, object]:
    """What the files in `made` were built from: the commit, the base of the image, and the locks of
    what pip fetched. base: as in BASE; empty for Debian's packages, which the SBOM lists. Without
    times, so that the same files have the same one."""
    subjects = [{"name": one.name, "digest": {"sha256": _sha256(one)}} for one in made.iterdir()]
    image = image_digest(made).removeprefix("sha256:")
    subjects.append({"name": "mpsd", "digest": {"sha256": image}})
    dependencies: list[dict[str, object]] = [
        {"name": "mpsd", "digest": {"gitCommit": commit}},
        *({"name": name, "digest": {"sha256": _sha256(source / name)}} for name in _LOCKS),
    ]
    if found := _BY_DIGEST.search(base):
        dependencies.append({"uri": f"pkg:docker/{base}", "digest": {"sha256": found[1]}})
    definition = {
        "buildType": "https://mpsd.io/release/v1",
        "externalParameters": {"version": mpsd.__version__, "base": base or "debootstrap"},
        "resolvedDependencies": dependencies,
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": sorted(subjects, key=lambda one: str(one["name"])),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": definition,
            "runDetails": {"builder": {"id": "https://mpsd.io/make-release"}},
        },
    }


# -- the SBOM ------------------------------------------------------------------------------------


def sbom(layout: Path, epoch: int) -> dict[str, object]:
    """An SPDX 2.3 document of every Debian package and Python distribution in the image."""
    digest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    image = _spdx_package(
        "SPDXRef-image", "mpsd", mpsd.__version__, f"pkg:oci/mpsd@{digest.replace(':', '%3A')}"
    )
    parts = [
        _spdx_package(
            f"SPDXRef-{at}",
            name,
            version,
            f"pkg:{kind}/{name.lower()}@{version.replace('+', '%2B')}",
        )
        for at, (kind, name, version) in enumerate(sorted(_installed(layout, digest)))
    ]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"mpsd-{mpsd.__version__}",
        "documentNamespace": (
            f"https://mpsd.io/spdx/mpsd-{mpsd.__version__}-{digest.partition(':')[2]}"
        ),
        "creationInfo": {
            "created": f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%dT%H:%M:%SZ}",
            "creators": [f"Tool: mpsd-release-{mpsd.__version__}"],
        },
        "packages": [image, *parts],
        "relationships": [
            _relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image"),
            *(_relation("SPDXRef-image", "CONTAINS", str(one["SPDXID"])) for one in parts),
        ],
    }


def _spdx_package(id_: str, name: str, version: str, purl: str) -> dict[str, object]:
    reference = {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": purl,
    }
    return {
        "SPDXID": id_,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [reference],
    }


def _relation(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _installed(layout: Path, digest: str) -> set[tuple[str, str, str]]:
    """What is installed, off the image's layers: the kind that package URLs give it, name and
    version."""

    def blob(digest: str) -> Path:
        return layout / "blobs" / digest.replace(":", "/")

    python, debian, system = set(), set(), "debian"
    for layer in json.loads(blob(digest).read_text())["layers"]:
        with tarfile.open(blob(layer["digest"])) as tar:
            for entry in tar:
                name = entry.name.removeprefix("./")
                if name.endswith(".dist-info/METADATA"):
                    one = message_from_bytes(_read(tar, entry))
                    python.add((one["Name"], one["Version"]))
                elif name == "var/lib/dpkg/status":
                    parts = [
                        message_from_bytes(part)
                        for part in _read(tar, entry).strip().split(b"\n\n")
                    ]
                    debian |= {(one["Package"], one["Version"]) for one in parts}
                elif name == "usr/lib/os-release":
                    words = dict(
                        line.split("=", 1)
                        for line in _read(tar, entry).decode().splitlines()
                        if "=" in line
                    )
                    system = words["ID"].strip('"')
    return {*(("pypi", *one) for one in python), *((f"deb/{system}", *one) for one in debian)}


def _read(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(entry)
    if file is None:
        raise ValueError(f"{entry.name} in the image is no file")
    return file.read()


if __name__ == "__main__":
    sys.exit(main())
