"""Records what a real kube-scheduler asks an extender, as tests/data/extender has it. From the top
of the checkout:

PATH="$PWD/.venv/bin:$PATH" tests/e2e/kube/with-cluster.sh --control-plane \
    python -m tests.e2e.scheduler.record tests/data/extender/1.20.2
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.cluster import Cluster, Object
from tests.e2e.installation import COUNT, MEMORY, PERCENT
from tests.e2e.scheduler.kube_scheduler import configuration, kube_scheduler
from tests.e2e.scheduler.recorder import Recorder, recording
from tests.e2e.waiting import eventually

NAMESPACE, SCHEDULER = "recorded", "recorded-scheduler"
NODES = ("node-a", "node-b")
REASON = "gpu0 has 4 of 7 GiB free, gpu1 3"


def _prepare(cluster: Cluster) -> None:
    cluster.do("create", "namespace", NAMESPACE)
    cluster.wait_until_it_takes_pods(NAMESPACE)
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
    }
    cluster.do("create", "-f", "-", given=priority | {"value": 1000})
    amounts = {
        "cpu": "8",
        "memory": "16Gi",
        "pods": "110",
        MEMORY: "46",
        PERCENT: "200",
        COUNT: "2",
    }
    for name in NODES:
        cluster.do(
            "create",
            "-f",
            "-",
            given={"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}},
        )
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        cluster.do("patch", "node", name, "--subresource=status", "-p", json.dumps(status))


def _pod(
    name: str,
    gib: int,
    *,
    percent: int = 0,
    labels: Mapping[str, str] | None = None,
    **spec: object,
) -> Object:
    limits = {MEMORY: str(gib)} | ({PERCENT: str(percent)} if percent else {})
    fields: Object = {
        "schedulerName": SCHEDULER,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": fields | spec,
    }


def _create(recorder: Recorder, pod: Object, *verbs: str) -> None:
    """And waits until the scheduler has asked all that it asks about it."""
    name = pod["metadata"]["name"]
    recorder.cluster.do("create", "-n", NAMESPACE, "-f", "-", given=pod)
    for verb in verbs:
        eventually(lambda verb=verb: recorder.heard(verb, name), f"{verb} of {name}")


def _scheduled(recorder: Recorder) -> None:
    for pod in (
        _pod("one", 7),
        _pod("percent", 7, percent=30),
        _pod("two-gpus", 14, labels={COUNT: "2"}),
    ):
        _create(recorder, pod, "filter", "prioritize", "bind")


def _refused(recorder: Recorder) -> None:
    recorder.refused = {"refused": REASON}
    _create(recorder, _pod("refused", 7), "filter")

    def said() -> str:
        selector = "involvedObject.name=refused,reason=FailedScheduling"
        return recorder.cluster.do(
            "get", "events", "-n", NAMESPACE, "--field-selector", selector
        ).out

    eventually(lambda: REASON in said(), "what a person reads")
    _remove(recorder, "refused")


def _preempting(recorder: Recorder) -> None:
    """Once where the node's sum is too small, so that the scheduler proposes victims, and once
    where it is not: then it proposes none, and the extender must name them, or nothing comes of it.
    """
    for node in NODES:
        _create(recorder, _pod(f"low-{node}", 30, nodeName=node))
    urgent = {"priorityClassName": "urgent"}
    _create(recorder, _pod("sum-too-small", 40, **urgent), "preempt")
    _remove(recorder, "sum-too-small", *(f"low-{node}" for node in NODES))
    for node in NODES:
        _create(recorder, _pod(f"low-{node}", 5, nodeName=node))
    recorder.refused, recorder.victims = {"sum-suffices": REASON}, {"sum-suffices": ("low-node-a",)}
    _create(recorder, _pod("sum-suffices", 7, **urgent), "filter", "preempt")

    def has_gone() -> bool:
        found = recorder.cluster.kubectl("get", "pod", "low-node-a", "-n", NAMESPACE, "-o", "json")
        return not found.ok or "deletionTimestamp" in json.loads(found.out)["metadata"]

    eventually(has_gone, "the victim that the extender named")
    _remove(recorder, "sum-suffices", *(f"low-{node}" for node in NODES))


def _remove(recorder: Recorder, *names: str) -> None:
    """There is no kubelet that would."""
    gone = ("delete", "pod", "-n", NAMESPACE, "--grace-period=0", "--force", "--ignore-not-found")
    recorder.cluster.do(*gone, *names)


def _write(recorder: Recorder, folder: Path) -> None:
    """The first request of every kind for each pod."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for verb, name, body in reversed(recorder.asked):
        (folder / f"{verb}-{name}.json").write_text(json.dumps(body, indent=1) + "\n")


def main(target: Path) -> None:
    cluster = Cluster(Path(os.environ["KUBECONFIG"]).absolute())
    programs = Path(os.environ["MPSD_E2E_PROGRAMS"])
    _prepare(cluster)
    for kind, cached in (("names", True), ("nodes", False)):
        with recording(cluster) as recorder, tempfile.TemporaryDirectory() as work:
            verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "bind", "preempt")}
            managed = [{"name": MEMORY, "ignoredByScheduler": False}]
            extender: Object = {
                "urlPrefix": f"http://127.0.0.1:{recorder.port}",
                "weight": 1,
                **verbs,
            }
            said = configuration(
                SCHEDULER, extender | {"nodeCacheCapable": cached, "managedResources": managed}
            )
            with kube_scheduler(programs / "kube-scheduler", cluster.kubeconfig, said, Path(work)):
                _scheduled(recorder)
                _refused(recorder)
            with kube_scheduler(
                programs / "kube-scheduler-preempting", cluster.kubeconfig, said, Path(work)
            ):
                _preempting(recorder)
        _remove(recorder, "one", "percent", "two-gpus")
        _write(recorder, target / kind)
        print(
            f"{target / kind}: {len(list((target / kind).iterdir()))} requests of"
            f" {len(recorder.asked)}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
