"""What mpsd changes in a pod that is created, as a JSON Patch (RFC 6902).

One rule: a change adds what is missing; a variable that somebody wrote is left to the rules, which may refuse it.
"""

from collections.abc import Iterator

from mpsd.admission.rules.admission_books import has_device_of_another
from mpsd.admission.rules.admission_case import VISIBLE_DEVICES
from mpsd.model.container import Container
from mpsd.model.fields import Fields
from mpsd.model.pod import CONTAINER_FIELDS, Pod
from mpsd.model.policy import HostIPC, Policy
from mpsd.model.share_request import asks, asks_for_gpu

Change = dict[str, object]  # one operation of the patch

HOST_IPC: Change = {"op": "add", "path": "/spec/hostIPC", "value": True}
_VOID = {"name": VISIBLE_DEVICES, "value": "void"}


def patch_for_pod(thing: Fields, pod: Pod, policy: Policy) -> tuple[Change, ...]:
    """The changes to a pod that is created. thing: what `pod` was read from, without a fault in its shape."""
    return (*_host_ipc(pod, policy), *_void(thing, pod, policy, frozenset()))


def patch_for_debugging(thing: Fields, pod: Pod, policy: Policy, before: Pod) -> tuple[Change, ...]:
    """The changes to a pod that gets ephemeral containers: to the new ones alone, since nothing else may change."""
    return tuple(_void(thing, pod, policy, frozenset(container.name for container in before.containers)))


def _host_ipc(pod: Pod, policy: Policy) -> Iterator[Change]:
    if policy.admission.host_ipc is HostIPC.INJECT and not pod.host_ipc and asks_for_gpu(pod, policy.resources):
        yield HOST_IPC


def _void(thing: Fields, pod: Pod, policy: Policy, untouched: frozenset[str]) -> Iterator[Change]:
    """NVIDIA_VISIBLE_DEVICES=void for containers that get no GPU, whatever their image says; a pod's word beats it."""
    if not policy.admission.void_visible_devices:
        return
    for (pointer, env), container in zip(_places(thing), pod.containers, strict=True):
        if container.name not in untouched and _gets_none(container, policy):
            if env:
                yield {"op": "add", "path": f"{pointer}/env/-", "value": dict(_VOID)}
            else:  # absent, null or empty
                yield {"op": "add", "path": f"{pointer}/env", "value": [dict(_VOID)]}


def _gets_none(container: Container, policy: Policy) -> bool:
    """Whether nothing gives the container a GPU, and nothing in its own environment says so yet."""
    return not (
        asks(container, policy.resources)
        or has_device_of_another(container, policy)
        or any(variable.name == VISIBLE_DEVICES for variable in container.variables)
    )


def _places(thing: Fields) -> Iterator[tuple[str, object]]:
    """Where each container is and what it has under env, in the order in which containers are read."""
    spec = thing["spec"]
    assert isinstance(spec, dict), "a pod without a fault in its shape has one"
    for key in CONTAINER_FIELDS:
        for position, container in enumerate(spec.get(key) or ()):
            yield f"/spec/{key}/{position}", container.get("env")
