"""Which API server is asked and how: what mpsd reads by itself, what the package does, and what
kubectl would ask."""

import asyncio
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from mpsd.model.problem import InvalidInput
from mpsd.platform import kube_access
from mpsd.platform.kube import Access, Kube, Resource, Unavailable
from mpsd.platform.kube_access import (
    NotPlain,
    of_kubeconfig,
    of_service_account,
    open_kube,
    open_kube_of_user,
)
from tests.whole.webhook.api_server import TOKEN, ApiServer, api_server

MAPS = Resource("v1", "configmaps")
AT = "/api/v1/namespaces/a/configmaps/b"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with api_server() as running:
        running.put(AT, {"metadata": {"name": "b"}})
        yield running


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> dict[str, Any]:
    """What is in a kubeconfig that has a token."""
    read: dict[str, Any] = yaml.safe_load(server.kubeconfig(tmp_path).read_text())
    return read


def written(kubeconfig: Mapping[str, Any], folder: Path) -> Path:
    path = folder / "written"
    path.write_text(yaml.safe_dump(kubeconfig))
    return path


def name_of(kube: Kube) -> str:
    """Of the one object that the server has."""

    async def main() -> str:
        try:
            return str((await kube.get(MAPS, "b", "a"))["metadata"]["name"])
        finally:
            kube.close()

    return asyncio.run(main())


def account(folder: Path, server: ApiServer) -> tuple[Path, dict[str, str]]:
    """A service account of this server, as a pod has one: its folder, and the pod's environment."""
    kubeconfig = yaml.safe_load(server.kubeconfig(folder).read_text())
    cluster = kubeconfig["clusters"][0]["cluster"]
    authority = b64decode(cluster["certificate-authority-data"])
    (folder / "ca.crt").write_bytes(authority)
    (folder / "token").write_text(f"{TOKEN}\n")
    return folder, {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
    }


def test_a_pod_is_let_in_by_its_service_account(server: ApiServer, tmp_path: Path) -> None:
    assert name_of(Kube(of_service_account(*account(tmp_path, server)))) == "b"


def test_a_token_that_is_replaced_counts(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, environment = account(tmp_path, server)
    monkeypatch.setattr(kube_access, "_READ_AGAIN_S", 0.0)
    access = of_service_account(folder, environment)
    (folder / "token").write_text("another")
    assert access.authorization() == {"Authorization": "Bearer another"}
    (folder / "token").write_text("")  # while it is being replaced
    assert access.authorization() == {"Authorization": "Bearer another"}
    (folder / "token").unlink()
    assert access.authorization() == {"Authorization": "Bearer another"}


@pytest.mark.parametrize(
    "missing", ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "ca.crt", "token"]
)
def test_half_a_service_account_is_none(server: ApiServer, tmp_path: Path, missing: str) -> None:
    folder, environment = account(tmp_path, server)
    environment.pop(missing, None)
    (folder / missing).unlink(missing_ok=True)
    with pytest.raises(NotPlain):
        of_service_account(folder, environment)


def with_authority_in_a_file(kubeconfig: dict[str, Any], folder: Path) -> None:
    cluster = kubeconfig["clusters"][0]["cluster"]
    (folder / "authority").write_bytes(b64decode(cluster.pop("certificate-authority-data")))
    cluster["certificate-authority"] = "authority"  # beside the kubeconfig


def with_no_authority(kubeconfig: dict[str, Any], _folder: Path) -> None:
    cluster = kubeconfig["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    cluster["insecure-skip-tls-verify"] = True


def with_token_in_a_file(kubeconfig: dict[str, Any], folder: Path) -> None:
    (folder / "a-token").write_text(TOKEN)
    kubeconfig["users"][0]["user"] = {"tokenFile": "a-token", "token": "which does not count"}


@pytest.mark.parametrize(
    "change", [with_authority_in_a_file, with_no_authority, with_token_in_a_file]
)
def test_a_kubeconfig_with_a_token_is_read_here(
    kubeconfig: dict[str, Any], tmp_path: Path, change: Any
) -> None:
    change(kubeconfig, tmp_path)
    assert name_of(Kube(of_kubeconfig(written(kubeconfig, tmp_path)))) == "b"


@pytest.mark.parametrize(
    "call", ["open_kube(pathlib.Path(sys.argv[1]))", "open_kube_of_user(sys.argv[1], None)"]
)
def test_what_is_read_here_loads_no_package(
    kubeconfig: dict[str, Any], tmp_path: Path, call: str
) -> None:
    file = written(kubeconfig, tmp_path)
    program = (
        "import pathlib, sys; from mpsd.platform.kube_access import open_kube, open_kube_of_user;"
        f" {call}.close()"
    )
    asked = f"{program}; sys.exit('kubernetes' in sys.modules)"
    subprocess.run([sys.executable, "-c", asked, str(file)], check=True)


MORE: Mapping[str, tuple[str, dict[str, Any]]] = {
    "a program that logs in": (
        "user",
        {"exec": {"command": "login", "apiVersion": "client.authentication.k8s.io/v1"}},
    ),
    "no token": ("user", {"token": ""}),
    "a proxy": ("cluster", {"server": "https://a", "proxy-url": "http://b"}),
    "no server": ("cluster", {}),
    "no base64": ("cluster", {"server": "https://a", "certificate-authority-data": "*"}),
}


@pytest.mark.parametrize("more", MORE)
def test_what_takes_more_is_left_to_the_package(
    kubeconfig: dict[str, Any], tmp_path: Path, more: str
) -> None:
    kind, said = MORE[more]
    kubeconfig[f"{kind}s"][0][kind] = said
    with pytest.raises(NotPlain):
        of_kubeconfig(written(kubeconfig, tmp_path))


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_way_through_a_proxy_is_left_to_the_package(
    kubeconfig: dict[str, Any], tmp_path: Path, name: str
) -> None:
    with pytest.raises(NotPlain):
        of_kubeconfig(written(kubeconfig, tmp_path), {name: "http://proxy:3128"})
    assert isinstance(of_kubeconfig(written(kubeconfig, tmp_path), {name: ""}), Access)


def test_what_the_package_reads_works_too(kubeconfig: dict[str, Any], tmp_path: Path) -> None:
    kubeconfig["clusters"][0]["cluster"]["extensions"] = []
    with pytest.raises(NotPlain):
        of_kubeconfig(written(kubeconfig, tmp_path))
    assert name_of(open_kube(written(kubeconfig, tmp_path))) == "b"


# -- what kubectl would ask

PORTS = {"a": 1, "b": 2, "c": 3}  # where nobody listens


def with_contexts(path: Path, current: str | None, *contexts: str) -> Path:
    """A kubeconfig whose contexts each have a cluster of their name, at its port."""
    entries = [{"name": name, "context": {"cluster": name, "user": name}} for name in contexts]
    clusters = [
        {"name": name, "cluster": {"server": f"http://127.0.0.1:{PORTS[name]}"}}
        for name in contexts
    ]
    users = [{"name": name, "user": {"token": "t"}} for name in contexts]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "contexts": entries,
        "clusters": clusters,
        "users": users,
    }
    path.write_text(yaml.safe_dump(config | ({"current-context": current} if current else {})))
    return path


def asked(kubeconfig: Path | None, context: str | None, environment: dict[str, str]) -> str:
    """The cluster that is asked."""

    async def ask() -> None:
        kube = open_kube_of_user(str(kubeconfig) if kubeconfig else None, context, environment)
        try:
            await kube.get(Resource("v1", "nodes"), "n")
        finally:
            kube.close()

    with pytest.raises(Unavailable) as away:
        asyncio.run(ask())
    (found,) = (
        name for name, port in PORTS.items() if re.search(rf"port={port}\b", str(away.value))
    )
    return found


def problem(kubeconfig: Path | None, context: str | None, environment: dict[str, str]) -> str:
    with pytest.raises(InvalidInput) as wrong:
        open_kube_of_user(str(kubeconfig) if kubeconfig else None, context, environment)
    (found,) = wrong.value.problems
    return str(found)


def test_a_flag_beats_the_variable_and_a_context_the_current_one(tmp_path: Path) -> None:
    one, other = (
        with_contexts(tmp_path / "one", "a", "a", "b"),
        with_contexts(tmp_path / "other", "c", "c"),
    )
    assert asked(one, None, {"KUBECONFIG": str(other)}) == "a"
    assert asked(one, "b", {}) == "b"
    assert asked(None, None, {"KUBECONFIG": str(other)}) == "c"


def test_several_files_are_one_and_the_first_current_context_counts(tmp_path: Path) -> None:
    one, other, none = (
        with_contexts(tmp_path / "one", None, "a"),
        with_contexts(tmp_path / "other", "b", "b"),
        tmp_path / "none",
    )
    third = with_contexts(tmp_path / "third", "a", "c")
    variable = {"KUBECONFIG": f"{none}:{one}:{other}:{third}"}
    assert asked(None, None, variable) == "b"
    assert asked(None, "c", variable) == "c"


def test_what_cannot_be_used_is_said_with_what_can(tmp_path: Path) -> None:
    config = with_contexts(tmp_path / "config", None, "a", "b")
    assert '--context is "x": is in no kubeconfig; name one with --context: a, b' in problem(
        config, "x", {}
    )
    assert "names no current context; name one with --context: a, b" in problem(config, None, {})
    assert problem(tmp_path / "none", None, {}).startswith(
        f'--kubeconfig is "{tmp_path}/none": is not there; '
    )
    assert problem(None, None, {"KUBECONFIG": "/none"}).startswith(
        'KUBECONFIG is "/none": is not there; '
    )


@pytest.mark.parametrize(
    "text", ["", "- a", "a: [", "\0", "contexts: 3", "contexts: [3, {name: [x]}]"]
)
def test_a_file_that_is_no_kubeconfig_is_no_traceback(text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    assert problem(tmp_path / "config", None, {}).startswith("--kubeconfig is ")


def test_a_context_without_its_cluster_is_said(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "{contexts: [{name: a, context: {cluster: b, user: c}}], current-context: a}"
    )
    with pytest.raises(Unavailable, match="cannot be reached: "):
        open_kube_of_user(str(tmp_path / "config"), None, {})
