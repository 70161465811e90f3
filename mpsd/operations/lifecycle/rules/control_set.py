"""The DaemonSet of the control daemons and its pods, read from the API's objects: which revision is the newest, which
pod is of it.

One rule: whatever is missing in an object reads as not there yet, so that it is waited for and never believed done.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mpsd.model.installed import CONTROL, LABEL, NAME_LABEL, PRODUCT
from mpsd.operations.lifecycle.rules.upgrade_step import ControlPod

REVISION = "controller-revision-hash"
SELECTOR = f"{LABEL}={PRODUCT},{NAME_LABEL}={CONTROL}"  # of the DaemonSet
ON_DELETE = "OnDelete"

Object = Mapping[str, Any]
Seconds = Callable[[str], float | None]


@dataclass(frozen=True, slots=True)
class ControlSet:
    """container: the name of the one that runs the daemons. revision: of the newest template; empty while the API's
    controller has not seen the last change of it.
    """

    namespace: str
    name: str
    uid: str
    container: str
    image: str
    strategy: str
    revision: str

    def __str__(self) -> str:
        return f"DaemonSet {self.namespace}/{self.name}"


def read_control_set(daemon_set: Object, revisions: Iterable[Object]) -> ControlSet:
    """revisions: ControllerRevisions, those of other objects too."""
    metadata, spec = daemon_set["metadata"], daemon_set["spec"]
    container = spec["template"]["spec"]["containers"][0]
    observed = (daemon_set.get("status") or {}).get("observedGeneration") or 0
    own = [one for one in revisions if is_owned(one, metadata["uid"])]
    newest = max(own, key=lambda one: int(one.get("revision") or 0), default=None)
    settled = newest is not None and observed >= metadata.get("generation", 0)
    return ControlSet(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        container=container["name"],
        image=str(container.get("image", "")),
        strategy=str((spec.get("updateStrategy") or {}).get("type", "")),
        revision=_labels(newest).get(REVISION, "") if newest and settled else "",
    )


def pod_selector(daemon_set: Object) -> str:
    """As a query has it."""
    wanted = (daemon_set["spec"].get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))


def control_pods(pods: Iterable[Object], owner: str, seconds: Seconds) -> dict[str, ControlPod]:
    """By node, those that this owner made. Of two on a node the one that stays counts, and of those the younger."""
    found: dict[str, ControlPod] = {}
    for pod in sorted(pods, key=lambda one: str(one["metadata"].get("creationTimestamp", ""))):
        if is_owned(pod, owner) and (read := _pod(pod, seconds)).node:
            before = found.get(read.node)
            if before is None or before.ending or not read.ending:
                found[read.node] = read
    return found


def is_owned(thing: Object, uid: str) -> bool:
    return any(one.get("uid") == uid for one in thing["metadata"].get("ownerReferences") or ())


def _pod(pod: Object, seconds: Seconds) -> ControlPod:
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    conditions = status.get("conditions") or ()
    statuses = status.get("containerStatuses") or ()
    running = [(one.get("state") or {}).get("running") or {} for one in statuses]
    began = [seconds(str(one.get("startedAt", ""))) for one in running]
    known = [at for at in began if at is not None]
    return ControlPod(
        name=metadata["name"],
        uid=metadata["uid"],
        node=str(spec.get("nodeName") or ""),
        revision=_labels(pod).get(REVISION, ""),
        image=str((spec.get("containers") or [{}])[0].get("image", "")),
        ready=any((one.get("type"), one.get("status")) == ("Ready", "True") for one in conditions),
        ending=bool(metadata.get("deletionTimestamp")),
        started_at=max(known) if known and len(known) == len(began) else None,
        trouble="; ".join(_trouble(one) for one in statuses if (one.get("state") or {}).get("waiting")),
    )


def _trouble(container: Object) -> str:
    waiting = container["state"]["waiting"]
    return f"{waiting.get('reason', 'it waits')}: {waiting.get('message', '')}".rstrip(": ")


def _labels(thing: Object) -> Mapping[str, str]:
    return thing["metadata"].get("labels") or {}
