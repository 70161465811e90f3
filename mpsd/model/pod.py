"""The parts of a pod that mpsd reads, whichever object the pod was found in.

One rule: reading never raises; what has the wrong shape is noted by `Shape` with its path.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mpsd.model.container import Container, Role, RunAs, read_container, read_run_as
from mpsd.model.fields import Fields, Shape, at
from mpsd.model.problem import Problem, printable


@dataclass(frozen=True, slots=True)
class HostVolume:
    """A volume that is a path of the host. path: leads to that path in the object."""

    host_path: str
    path: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, or the template of one. path: leads to it from the object's root, empty for a bare pod.

    host_users: whether uid 0 inside is uid 0 on the host. scheduler, node, runtime_class: empty where not named.
    is_placed: a node has taken it already, so that where it runs is no longer its own wish.
    """

    path: str
    labels: Fields
    annotations: Fields
    host_ipc: bool
    host_pid: bool
    host_users: bool
    scheduler: str
    node: str
    runtime_class: str
    is_placed: bool
    host_volumes: tuple[HostVolume, ...]
    containers: tuple[Container, ...]


CONTAINER_FIELDS = {"initContainers": Role.INIT, "containers": Role.MAIN, "ephemeralContainers": Role.EPHEMERAL}


def read_pod(shape: Shape, fields: Fields, path: str) -> Pod:
    """The pod whose `metadata` and `spec` are in `fields`."""
    metadata, metadata_path = shape.mapping(fields, "metadata", path), at(path, "metadata")
    spec, spec_path = shape.needed(fields, "spec", path), at(path, "spec")
    if spec is None:
        spec = {}
    elif spec.get("containers") in (None, []):
        problem = Problem("field-missing", at(spec_path, "containers"), "", "holds no container", "add a container")
        shape.problems.append(problem)
    return Pod(
        path=path,
        labels=shape.mapping(metadata, "labels", metadata_path),
        annotations=shape.mapping(metadata, "annotations", metadata_path),
        host_ipc=shape.flag(spec, "hostIPC", spec_path),
        host_pid=shape.flag(spec, "hostPID", spec_path),
        host_users=shape.flag(spec, "hostUsers", spec_path, absent=True),
        scheduler=shape.text(spec, "schedulerName", spec_path),
        node=shape.text(spec, "nodeName", spec_path),
        runtime_class=shape.text(spec, "runtimeClassName", spec_path),
        is_placed=_is_placed(fields),
        host_volumes=tuple(_host_volumes(shape, spec, spec_path)),
        containers=tuple(_containers(shape, spec, spec_path)),
    )


def _containers(shape: Shape, spec: Fields, path: str) -> Iterator[Container]:
    security = shape.mapping(spec, "securityContext", path)
    run_as = read_run_as(shape, security, at(path, "securityContext"), RunAs(uid=None, non_root=False))
    for key, role in CONTAINER_FIELDS.items():
        for entry_path, entry in shape.entries(spec, key, path):
            yield read_container(shape, entry, entry_path, role, run_as)


def _host_volumes(shape: Shape, spec: Fields, path: str) -> Iterator[HostVolume]:
    for entry_path, entry in shape.entries(spec, "volumes", path):
        source = shape.mapping(entry, "hostPath", entry_path)
        if source:
            name = printable(shape.text(entry, "name", entry_path))
            source_path = f"{path}.volumes[{name}].hostPath"
            yield HostVolume(shape.text(source, "path", source_path), at(source_path, "path"))


def _is_placed(fields: Fields) -> bool:
    """A kubelet has written into the status. The API server empties the status of every pod that is created."""
    status = fields.get("status")
    return isinstance(status, dict) and bool(status.get("startTime"))
