"""The parts of a pod that mpsd reads, whichever object the pod was found in.

Reading never raises; what has the wrong shape is noted by `FieldReader` with its path.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from mpsd.model.fields import FieldReader, Fields, at
from mpsd.model.names import CLAIMS_LABEL
from mpsd.model.problem import Problem, printable

PRIORITY = "mpsd.io/gpu-priority"  # an annotation of a pod
GRACE_ADDED = "mpsd.io/grace-added"  # another: the seconds by which the webhook has lengthened its grace
USUAL_GRACE_S = 30  # Kubernetes' own, of a pod that names none

_CONTAINER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a DNS label, as Kubernetes asks


class Role(StrEnum):
    """When a container runs: beside the others, before them, before and beside them, or added while they run."""

    MAIN = "main"
    INIT = "init"
    SIDECAR = "sidecar"
    EPHEMERAL = "ephemeral"


class Variable(NamedTuple):
    """One entry of `env` of the container at this path. value: None when it comes from elsewhere (`valueFrom`). A
    tuple, since a pod can have thousands, and a frozen dataclass takes twice as long to make.
    """

    name: str
    value: str | None
    container: str

    @property
    def path(self) -> str:
        return f"{self.container}.env[{printable(self.name)}]"


@dataclass(frozen=True, slots=True)
class VariableSource:
    """One entry of `envFrom`: every key of a ConfigMap or Secret becomes a variable, behind the prefix."""

    kind: str
    name: str
    prefix: str
    path: str


class ClaimName(NamedTuple):
    """What a pod gets a resource claim by: the claim itself, or the template that it is made of. Both are in the pod's
    namespace."""

    kind: str
    name: str


class PodPriority(NamedTuple):
    """What a pod says of its priority. value: `spec.priority`, which Kubernetes fills in when a pod is created; None
    before that. class_name: its PriorityClass, empty where it names none. written: the annotation PRIORITY; None where
    it has none."""

    value: int | None = None
    class_name: str = ""
    written: str | None = None


@dataclass(frozen=True, slots=True)
class RunAs:
    """Who a container's programs run as. uid: None where the image says."""

    uid: int | None
    non_root: bool


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A place inside a container where a volume appears, as a folder, a file or a raw device. entry, key: lead to it in
    the object. volume: its name. sub_path: what of the volume appears, empty for all of it; is_expanded: it may name
    variables (`subPathExpr`).
    """

    inside: str
    entry: str
    key: str
    volume: str
    sub_path: str
    is_expanded: bool

    @property
    def path(self) -> str:
        return at(self.entry, self.key)


@dataclass(frozen=True, slots=True)
class Container:
    """A container. path: leads to it from the object's root, with its name in place of its position. limits, requests:
    its resources, as they were written. claims: what the pod calls the resource claims that it uses. capabilities:
    those added, as they were written. drops_all: whether it drops all others. may_escalate: whether a setuid program
    has its effect. run_as: what the pod says, where the container does not.
    """

    name: str
    role: Role
    path: str
    limits: Fields
    requests: Fields
    claims: tuple[str, ...]
    variables: tuple[Variable, ...]
    sources: tuple[VariableSource, ...]
    privileged: bool
    capabilities: tuple[str, ...]
    drops_all: bool
    may_escalate: bool
    run_as: RunAs
    mounts: tuple[VolumeMount, ...]


_SOURCES = {"configMapRef": "ConfigMap", "secretRef": "Secret"}
_PLACES = {"volumeMounts": "mountPath", "volumeDevices": "devicePath"}


def read_container(shape: FieldReader, fields: Fields, path: str, role: Role, pod_runs_as: RunAs) -> Container:
    """The container in `fields`; role INIT becomes SIDECAR where it restarts always."""
    name = shape.text(fields, "name", path)
    if _CONTAINER_NAME.fullmatch(name):
        path = f"{path.rpartition('[')[0]}[{name}]"
    if role is Role.INIT and shape.text(fields, "restartPolicy", path) == "Always":
        role = Role.SIDECAR
    resources, resources_path = shape.mapping(fields, "resources", path), f"{path}.resources"
    security, security_path = shape.mapping(fields, "securityContext", path), f"{path}.securityContext"
    capabilities = shape.mapping(security, "capabilities", security_path)
    return Container(
        name=name or "(no name)",
        role=role,
        path=path,
        limits=shape.mapping(resources, "limits", resources_path),
        requests=shape.mapping(resources, "requests", resources_path),
        claims=tuple(
            shape.text(entry, "name", entry_path)
            for entry_path, entry in shape.entries(resources, "claims", resources_path)
        ),
        variables=_variables(shape, fields, path),
        sources=tuple(_sources(shape, fields, path)),
        privileged=shape.flag(security, "privileged", security_path),
        capabilities=shape.texts(capabilities, "add", f"{security_path}.capabilities"),
        drops_all="ALL" in shape.texts(capabilities, "drop", f"{security_path}.capabilities"),
        may_escalate=shape.flag(security, "allowPrivilegeEscalation", security_path, absent=True),
        run_as=read_run_as(shape, security, security_path, pod_runs_as),
        mounts=tuple(
            _mount(shape, entry, entry_path, place)
            for key, place in _PLACES.items()
            for entry_path, entry in shape.entries(fields, key, path)
        ),
    )


def _mount(shape: FieldReader, entry: Fields, path: str, place: str) -> VolumeMount:
    inside, volume, sub_path = (shape.text(entry, key, path) for key in (place, "name", "subPath"))
    expression = shape.text(entry, "subPathExpr", path)
    return VolumeMount(inside, path, place, volume, expression or sub_path, bool(expression))


def read_run_as(shape: FieldReader, security: Fields, path: str, otherwise: RunAs) -> RunAs:
    """What a security context says, and `otherwise` where it is silent."""
    if not security:
        return otherwise
    return RunAs(
        uid=shape.number(security, "runAsUser", path, absent=otherwise.uid),
        non_root=shape.flag(security, "runAsNonRoot", path, absent=otherwise.non_root),
    )


def _variables(shape: FieldReader, container: Fields, path: str) -> tuple[Variable, ...]:
    found = []
    for position, entry in shape.numbered(container, "env", path):
        name, value = entry.get("name"), entry.get("value")
        if type(name) is not str or type(value) is not str:  # nearly every one has both
            where = f"{path}.env[{position}]"
            name, value = shape.text(entry, "name", where), shape.text(entry, "value", where)
        found.append(Variable(name, None if entry.get("valueFrom") is not None else value, path))
    return tuple(found)


def _sources(shape: FieldReader, container: Fields, path: str) -> Iterator[VariableSource]:
    for entry_path, entry in shape.entries(container, "envFrom", path):
        prefix = shape.text(entry, "prefix", entry_path)
        for key, kind in _SOURCES.items():
            if reference := shape.mapping(entry, key, entry_path):
                name = shape.text(reference, "name", at(entry_path, key))
                yield VariableSource(kind, name or "(no name)", prefix, entry_path)


@dataclass(frozen=True, slots=True)
class HostVolume:
    """A volume that is a path of the host. path: leads to that path in the object."""

    name: str
    host_path: str
    path: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, or the template of one. path: leads to it from the object's root, empty for a bare pod. host_users:
    whether uid 0 inside is uid 0 on the host. shares_processes: whether its containers see each other's processes.
    grace_s: how long it has to end; None for USUAL_GRACE_S. scheduler, node, runtime_class: empty where
    not named. is_placed: a node has taken it already, so that where it runs is no longer its own wish. on_claim_nodes:
    it goes only to nodes with CLAIMS_LABEL. claims: by the names that its containers use.
    """

    path: str
    labels: Fields
    annotations: Fields
    host_ipc: bool
    host_pid: bool
    host_users: bool
    shares_processes: bool
    grace_s: int | None
    scheduler: str
    node: str
    runtime_class: str
    is_placed: bool
    priority: PodPriority
    on_claim_nodes: bool
    claims: Mapping[str, ClaimName]
    host_volumes: tuple[HostVolume, ...]
    containers: tuple[Container, ...]


CLAIM, CLAIM_TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"
_CLAIMS = {"resourceClaimName": CLAIM, "resourceClaimTemplateName": CLAIM_TEMPLATE}
CONTAINER_FIELDS = {"initContainers": Role.INIT, "containers": Role.MAIN, "ephemeralContainers": Role.EPHEMERAL}


def read_pod(shape: FieldReader, fields: Fields, path: str) -> Pod:
    """The pod whose `metadata` and `spec` are in `fields`."""
    metadata, metadata_path = shape.mapping(fields, "metadata", path), at(path, "metadata")
    spec, spec_path = shape.needed(fields, "spec", path), at(path, "spec")
    if spec is None:
        spec = {}
    elif spec.get("containers") in (None, []):
        problem = Problem("field-missing", at(spec_path, "containers"), "", "holds no container", "add a container")
        shape.problems.append(problem)
    security = shape.mapping(spec, "securityContext", spec_path)
    run_as = read_run_as(shape, security, at(spec_path, "securityContext"), RunAs(uid=None, non_root=False))
    return Pod(
        path=path,
        labels=shape.mapping(metadata, "labels", metadata_path),
        annotations=shape.mapping(metadata, "annotations", metadata_path),
        host_ipc=shape.flag(spec, "hostIPC", spec_path),
        host_pid=shape.flag(spec, "hostPID", spec_path),
        host_users=shape.flag(spec, "hostUsers", spec_path, absent=True),
        shares_processes=shape.flag(spec, "shareProcessNamespace", spec_path),
        grace_s=shape.number(spec, "terminationGracePeriodSeconds", spec_path, absent=None),
        scheduler=shape.text(spec, "schedulerName", spec_path),
        node=shape.text(spec, "nodeName", spec_path),
        runtime_class=shape.text(spec, "runtimeClassName", spec_path),
        # A kubelet has written into the status. The API server empties the status of every pod that is created.
        is_placed=isinstance(status := fields.get("status"), dict) and bool(status.get("startTime")),
        priority=read_priority(shape, metadata, spec, path),
        on_claim_nodes=_selects_claim_nodes(shape, spec, spec_path),
        claims=read_claims(shape, spec, spec_path),
        host_volumes=tuple(_host_volumes(shape, spec, spec_path)),
        containers=tuple(
            read_container(shape, entry, entry_path, role, run_as)
            for key, role in CONTAINER_FIELDS.items()
            for entry_path, entry in shape.entries(spec, key, spec_path)
        ),
    )


def read_priority(shape: FieldReader, metadata: Fields, spec: Fields, path: str) -> PodPriority:
    """Of a pod with this metadata and spec, which are at `path`."""
    annotations, written = metadata.get("annotations"), None
    if isinstance(annotations, dict) and annotations.get(PRIORITY) is not None:
        written = shape.text(annotations, PRIORITY, at(path, "metadata", "annotations"))
    spec_path = at(path, "spec")
    value = shape.number(spec, "priority", spec_path, absent=None)
    return PodPriority(value, shape.text(spec, "priorityClassName", spec_path), written)


def _selects_claim_nodes(shape: FieldReader, spec: Fields, path: str) -> bool:
    """By its nodeSelector, or in every term of its required node affinity, of which any may be met."""
    if shape.mapping(spec, "nodeSelector", path).get(CLAIMS_LABEL) == "true":
        return True
    affinity = shape.mapping(spec, "affinity", path)
    if not affinity:
        return False
    where = at(path, "affinity", "nodeAffinity")
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    required = shape.mapping(shape.mapping(affinity, "nodeAffinity", at(path, "affinity")), key, where)
    wanted = {"key": CLAIMS_LABEL, "operator": "In", "values": ["true"]}
    terms = [
        [one for _path, one in shape.entries(term, "matchExpressions", inner)]
        for inner, term in shape.entries(required, "nodeSelectorTerms", at(where, key))
    ]
    return bool(terms) and all(wanted in term for term in terms)


def read_claims(shape: FieldReader, spec: Fields, path: str) -> dict[str, ClaimName]:
    """The resource claims of a pod with this spec, by the names that its containers use."""
    found = {}
    for entry_path, entry in shape.entries(spec, "resourceClaims", path):
        for key, kind in _CLAIMS.items():
            if name := shape.text(entry, key, entry_path):
                found[shape.text(entry, "name", entry_path)] = ClaimName(kind, name)
    return found


def _host_volumes(shape: FieldReader, spec: Fields, path: str) -> Iterator[HostVolume]:
    for entry_path, entry in shape.entries(spec, "volumes", path):
        if source := shape.mapping(entry, "hostPath", entry_path):
            name = shape.text(entry, "name", entry_path)
            source_path = f"{path}.volumes[{printable(name)}].hostPath"
            yield HostVolume(name, shape.text(source, "path", source_path), at(source_path, "path"))
