"""`kubectl mps bundle`: everything of mpsd in a cluster, and no secret, wherever one was
planted."""

import json
import stat
import tarfile
from pathlib import Path

import pytest

from mpsd.platform.kube import MPS_NODES, NODES, PODS, Access, Ask, HttpAnswer, Resource
from tests.cli.cluster_world import ClusterWorld
from tests.cli.doctored_cluster import DAEMON_SETS, NODE, SYSTEM, DoctoredCluster
from tests.operations.test_bundle import PEM

CONFIG_MAPS, SECRETS, EVENTS = (
    Resource("v1", plural) for plural in ("configmaps", "secrets", "events")
)


@pytest.fixture
def cluster(bare_world: ClusterWorld) -> DoctoredCluster:
    return DoctoredCluster(bare_world)


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        found = {entry.name.partition("/")[2]: tar.extractfile(entry) for entry in tar.getmembers()}
        return {name: file.read().decode() for name, file in found.items() if file}


def planted(cluster: DoctoredCluster) -> list[str]:
    """Secrets in every place that a bundle reads, and in some that it must not. What must not be
    seen of each."""
    hidden = [f"hunter{number}-{place}" for number, place in enumerate("abcdefghijklm")]
    text = f"postgres://mpsd:{hidden[0]}@db/x and Authorization: Bearer {hidden[1]}\n{PEM}"
    line = json.dumps(
        {"event": "granted", "command": f"python3 train.py {hidden[2]}", "api_key": hidden[3]}
    )
    logs = cluster.world.api.cluster.logs
    logs[SYSTEM, "mpsd-agent-x", False] = f"{line}\npassword={hidden[4]}\n{text}\n"
    logs[SYSTEM, "mpsd-control-x", True] = f"token: {hidden[5]}\nits end\n"
    annotations = {"example.com/secret": hidden[6], "example.com/note": text}
    cluster.change(PODS, "mpsd-agent-x", {"metadata": {"annotations": annotations}}, SYSTEM)
    environment = [{"name": "DB_PASSWORD", "value": hidden[7]}, {"name": "NOTE", "value": text}]
    words = ["agent", f"--token={hidden[8]}", "--password", hidden[8]]
    container = {"name": "mpsd-agent", "image": "mpsd:1", "env": environment, "args": words}
    cluster.change(PODS, "mpsd-agent-x", {"spec": {"containers": [container]}}, SYSTEM)
    restarted = {"name": "mpsd-control", "restartCount": 1, "state": {"running": {}}}
    cluster.of_pod("mpsd-control", containerStatuses=[restarted])
    cluster.create(
        CONFIG_MAPS,
        {"metadata": {"name": "mpsd-limits"}, "data": {"note": f"secret={hidden[9]}\n{text}"}},
        SYSTEM,
    )
    cluster.change(
        NODES, NODE, {"metadata": {"labels": {"token": hidden[10]}, "annotations": {"note": text}}}
    )
    cluster.change(
        MPS_NODES, NODE, {"metadata": {"annotations": {"password": hidden[11], "note": text}}}
    )
    cluster.create(EVENTS, {"metadata": {"name": "e"}, "type": "Normal", "message": text}, SYSTEM)
    cluster.create(SECRETS, {"metadata": {"name": "s"}, "data": {"x": hidden[12]}}, SYSTEM)
    cluster.change(DAEMON_SETS, "mpsd-agent", {"metadata": {"annotations": {"note": text}}}, SYSTEM)
    return [*hidden, *PEM.splitlines()[1:-1]]


def test_no_secret_is_in_it_wherever_it_was(cluster: DoctoredCluster, tmp_path: Path) -> None:
    hidden = planted(cluster)
    path = tmp_path / "out.tar.gz"
    said = cluster.world.kubectl_mps("bundle", "-o", str(path))
    assert (said.code, said.output) == (0, f"{path}\n"), said
    found = contents(path)
    assert [
        (secret, name) for secret in hidden for name, text in found.items() if secret in text
    ] == []
    assert "granted" in found["logs/mpsd-agent-x/mpsd-agent.log"]
    assert (
        found["logs/mpsd-control-x/mpsd-control.previous.log"]
        == "[2 lines are not of a known form and left out]\n"
    )


def test_what_is_in_it(cluster: DoctoredCluster, tmp_path: Path) -> None:
    path = tmp_path / "out.tar.gz"
    cluster.world.kubectl_mps("bundle", "-o", str(path))
    found = contents(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(found["doctor.json"])["headline"].startswith("all is well: ")
    assert json.loads(found["mpsnodes.json"])[0]["name"] == NODE
    assert json.loads(found["nodes.json"])[0]["labels"] == {"ack.node.gpu.schedule": "mps"}
    assert json.loads(found["policy.json"])["policy"]["version"] == "v1"
    assert len(json.loads(found["pods.json"])) == 4
    assert {"workloads.json", "settings.json", "events.json", "INDEX.txt"} <= found.keys()


def test_what_may_not_be_read_is_in_the_index_with_the_right_that_is_missing(
    cluster: DoctoredCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Access.send
    asked: list[str] = []

    def refuse(access: Access, ask: Ask, deadline_s: float, most_bytes: int) -> HttpAnswer:
        asked.append(ask.resource.plural)
        if ask.resource.plural in {"daemonsets", "events"}:
            return HttpAnswer(403, json.dumps({"message": "forbidden"}).encode(), "")
        return send(access, ask, deadline_s, most_bytes)

    monkeypatch.setattr(Access, "send", refuse)
    said = cluster.world.kubectl_mps("bundle", "-o", str(tmp_path / "out.tar.gz"))
    missing = contents(tmp_path / "out.tar.gz")["INDEX.txt"].partition("Not here: ")[2]
    assert said.code == 0
    assert (
        "workloads.json: mpsd's DaemonSets and Deployments: mpsd lacks the right to list daemonsets"
        in missing
    )
    assert "secrets" not in asked


def test_a_cluster_that_cannot_be_asked_leaves_no_file(
    cluster: DoctoredCluster, tmp_path: Path
) -> None:
    cluster.world.api.stop()
    said = cluster.world.kubectl_mps("bundle", "-o", str(tmp_path / "sub.tar.gz"))
    cluster.world.api.start()
    assert (said.code, said.output) == (1, "")
    assert not list(tmp_path.glob("*sub*"))
