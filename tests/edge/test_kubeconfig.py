"""Which cluster is asked: the one that kubectl would ask, and in plain words where there is none."""

import asyncio
import re
from pathlib import Path

import pytest
import yaml

from mpsd.core.problem import InvalidInput
from mpsd.edge.kube import Away, Resource
from mpsd.edge.kube_time import seconds, stamp
from mpsd.edge.kubeconfig import open_kube_of_user

PORTS = {"a": 1, "b": 2, "c": 3}  # where nobody listens


def written(path: Path, current: str | None, *contexts: str) -> Path:
    """A kubeconfig whose contexts each have a cluster of their name, at its port."""
    entries = [{"name": name, "context": {"cluster": name, "user": name}} for name in contexts]
    clusters = [{"name": name, "cluster": {"server": f"http://127.0.0.1:{PORTS[name]}"}} for name in contexts]
    users = [{"name": name, "user": {"token": "t"}} for name in contexts]
    config = {"apiVersion": "v1", "kind": "Config", "contexts": entries, "clusters": clusters, "users": users}
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

    with pytest.raises(Away) as away:
        asyncio.run(ask())
    (found,) = (name for name, port in PORTS.items() if re.search(rf"port={port}\b", str(away.value)))
    return found


def problem(kubeconfig: Path | None, context: str | None, environment: dict[str, str]) -> str:
    with pytest.raises(InvalidInput) as wrong:
        open_kube_of_user(str(kubeconfig) if kubeconfig else None, context, environment)
    (found,) = wrong.value.problems
    return str(found)


def test_a_flag_beats_the_variable_and_a_context_the_current_one(tmp_path: Path) -> None:
    one, other = written(tmp_path / "one", "a", "a", "b"), written(tmp_path / "other", "c", "c")
    assert asked(one, None, {"KUBECONFIG": str(other)}) == "a"
    assert asked(one, "b", {}) == "b"
    assert asked(None, None, {"KUBECONFIG": str(other)}) == "c"


def test_several_files_are_one_and_the_first_current_context_counts(tmp_path: Path) -> None:
    one, other, none = written(tmp_path / "one", None, "a"), written(tmp_path / "other", "b", "b"), tmp_path / "none"
    third = written(tmp_path / "third", "a", "c")
    variable = {"KUBECONFIG": f"{none}:{one}:{other}:{third}"}
    assert asked(None, None, variable) == "b"
    assert asked(None, "c", variable) == "c"


def test_what_cannot_be_used_is_said_with_what_can(tmp_path: Path) -> None:
    config = written(tmp_path / "config", None, "a", "b")
    assert '--context is "x": is in no kubeconfig; name one with --context: a, b' in problem(config, "x", {})
    assert "names no current context; name one with --context: a, b" in problem(config, None, {})
    assert problem(tmp_path / "none", None, {}).startswith(f'--kubeconfig is "{tmp_path}/none": is not there; ')
    assert problem(None, None, {"KUBECONFIG": "/none"}).startswith('KUBECONFIG is "/none": is not there; ')


@pytest.mark.parametrize("text", ["", "- a", "a: [", "\0", "contexts: 3", "contexts: [3, {name: [x]}]"])
def test_a_file_that_is_no_kubeconfig_is_no_traceback(text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    assert problem(tmp_path / "config", None, {}).startswith("--kubeconfig is ")


def test_a_context_without_its_cluster_is_said(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{contexts: [{name: a, context: {cluster: b, user: c}}], current-context: a}")
    with pytest.raises(Away, match="cannot be reached: "):
        open_kube_of_user(str(tmp_path / "config"), None, {})


def test_a_time_is_read_as_it_was_written() -> None:
    assert stamp(seconds("2026-11-21T08:30:00Z") or 0) == "2026-11-21T08:30:00Z"
    assert seconds("2026-11-21T09:30:00.500000+01:00") == (seconds("2026-11-21T08:30:00Z") or 0) + 0.5


@pytest.mark.parametrize("text", ["", "T", "2026-11-21", "2026-11-21T08:30:00", "9999-99-99T00:00:00Z", "now"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert seconds(text) is None
