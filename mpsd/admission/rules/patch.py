"""What mpsd changes in a pod that is created, as a JSON Patch (RFC 6902). A variable that somebody
wrote is left to the rules, which may refuse it."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mpsd.admission.rules.requests import ENTRY, TemplateWanted, claiming, has_device_of_another
from mpsd.admission.rules.rule import ClaimClasses
from mpsd.model.client_limits import NVIDIA_VISIBLE_DEVICES
from mpsd.model.container import CONTAINER_FIELDS, PRE_STOP, PRE_STOP_S, Role
from mpsd.model.fields import Fields
from mpsd.model.names import MIRROR
from mpsd.model.pod import GRACE_ADDED, USUAL_GRACE_S, Pod
from mpsd.model.policy import HostIPC, Policy
from mpsd.model.request import asks, asks_for_gpu

Change = dict[str, object]  # one operation
HOST_IPC: Change = {"op": "add", "path": "/spec/hostIPC", "value": True}
_GRACE = "/spec/terminationGracePeriodSeconds"
OF_GPU_PODS = frozenset({HOST_IPC["path"], _GRACE})  # what is changed only in pods that get a GPU
_VOID = {"name": NVIDIA_VISIBLE_DEVICES, "value": "void"}


def patch_for_pod(
    thing: Fields,
    pod: Pod,
    policy: Policy,
    claims: ClaimClasses,
    template: TemplateWanted | None,
    *,
    has_sleep: bool,
) -> tuple[Change, ...]:
    """thing: what `pod` was read from, without a fault in its shape. template: of the claim that it
    gets in place of its request. has_sleep: whether the API server takes PRE_STOP."""
    changes = []
    if asks_for_gpu(pod, policy.resources) or claiming(pod, policy, claims):
        # Kubernetes forbids hostIPC together with hostUsers: false
        lacks = not pod.spec.host_ipc and pod.spec.host_users
        if lacks and policy.admission.host_ipc is HostIPC.INJECT:
            changes.append(HOST_IPC)
        hooked = hooked_paths(pod, policy, claims) if has_sleep else frozenset[str]()
        if added_s := added_grace_s(pod, policy, hooked):
            changes += [*_longer_grace(pod, added_s), *_hooks(thing, pod, hooked)]
    if template:
        changes += _claimed(thing, pod, policy, template)
    return (*changes, *_void(thing, pod, policy, frozenset(), template))


def hooked_paths(pod: Pod, policy: Policy, claims: ClaimClasses) -> frozenset[str]:
    """Of what runs with a GPU and has no hook before its end."""
    claimed = {one.path for one in claiming(pod, policy, claims)}
    return frozenset(
        one.path
        for one in pod.containers
        if one.role in (Role.MAIN, Role.SIDECAR)
        and one.lifecycle.pre_stop is None
        and (one.path in claimed or asks(one, policy.resources))
    )


def added_grace_s(pod: Pod, policy: Policy, hooked: Collection[str]) -> int:
    """For mpsd to end the clients of a pod with a GPU, and for its hooks, added once, so that a
    checkpoint loses nothing. A static pod keeps the grace of its file. hooked: by path."""
    is_short = pod.spec.grace_s is not None and pod.spec.grace_s <= 0
    is_kept = {GRACE_ADDED, MIRROR} & pod.annotations.keys()
    if is_short or is_kept or not policy.pod_ends or policy.graces.end_drain_s == 0:
        return 0
    return math.ceil(policy.graces.pod_end_s) + (PRE_STOP_S if hooked else 0)


def _longer_grace(pod: Pod, added_s: int) -> tuple[Change, ...]:
    grace_s = USUAL_GRACE_S if pod.spec.grace_s is None else pod.spec.grace_s
    longer: Change = {"op": "add", "path": _GRACE, "value": grace_s + added_s}
    return longer, _annotated(pod, GRACE_ADDED, str(added_s))


def _hooks(thing: Fields, pod: Pod, hooked: Collection[str]) -> Iterator[Change]:
    for (pointer, fields), container in zip(_containers(thing), pod.containers, strict=True):
        if container.path in hooked:
            pointer = f"{pointer}/lifecycle"
            if fields.get("lifecycle"):
                yield {"op": "add", "path": f"{pointer}/preStop", "value": PRE_STOP}
            else:
                yield {"op": "add", "path": pointer, "value": {"preStop": PRE_STOP}}


def _annotated(pod: Pod, name: str, value: str) -> Change:
    pointer = "/metadata/annotations"
    if not pod.annotations:
        return {"op": "add", "path": pointer, "value": {name: value}}
    return {"op": "add", "path": f"{pointer}/{_escaped(name)}", "value": value}


def _containers(thing: Fields) -> Iterator[tuple[str, Fields]]:
    """In the order of `pod.containers`."""
    for key in CONTAINER_FIELDS:
        for number, one in enumerate(_spec(thing).get(key) or ()):
            yield f"/spec/{key}/{number}", one


def _spec(thing: Fields) -> dict[str, Any]:
    spec = thing["spec"]
    assert isinstance(spec, dict), "a pod without a fault in its shape has one"
    return spec


def _claimed(thing: Fields, pod: Pod, policy: Policy, template: TemplateWanted) -> Iterator[Change]:
    for (pointer, _fields), one in zip(_containers(thing), pod.containers, strict=True):
        # names may come twice in what nobody takes
        if one.name == template.container and asks(one, policy.resources):
            for part, amounts in (("limits", one.limits), ("requests", one.requests)):
                for name in (policy.resources.memory, policy.resources.percent):
                    if name in amounts:
                        path = f"{pointer}/resources/{part}/{_escaped(name)}"
                        yield {"op": "remove", "path": path}
            yield _appended(f"{pointer}/resources/claims", {"name": ENTRY}, one.claims)
    entry = {"name": ENTRY, "resourceClaimTemplateName": template.name}
    yield _appended("/spec/resourceClaims", entry, _spec(thing).get("resourceClaims"))


def _escaped(name: str) -> str:
    """As a step of a JSON Pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _appended(pointer: str, entry: Mapping[str, object], others: object) -> Change:
    """An entry of a list, which may be absent, null or empty."""
    if others:
        return {"op": "add", "path": f"{pointer}/-", "value": entry}
    return {"op": "add", "path": pointer, "value": [entry]}


def patch_for_debugging(thing: Fields, pod: Pod, policy: Policy, before: Pod) -> tuple[Change, ...]:
    """Of a pod that gets ephemeral containers: nothing but the new ones may change."""
    untouched = frozenset(container.name for container in before.containers)
    return tuple(_void(thing, pod, policy, untouched, None))


def _void(
    thing: Fields,
    pod: Pod,
    policy: Policy,
    untouched: frozenset[str],
    template: TemplateWanted | None,
) -> Iterator[Change]:
    """For containers that get no GPU, whatever their image says; a pod's word beats it."""
    if not policy.admission.void_visible_devices:
        return
    claimed = template.container if template else None
    for (pointer, fields), container in zip(_containers(thing), pod.containers, strict=True):
        if container.name in untouched:
            continue
        gets_gpu = asks(container, policy.resources) or has_device_of_another(container, policy)
        is_set = any(variable.name == NVIDIA_VISIBLE_DEVICES for variable in container.env)
        if not is_set and (container.name == claimed or not gets_gpu):
            yield _appended(f"{pointer}/env", dict(_VOID), fields.get("env"))
