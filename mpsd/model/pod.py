"""A pod, or the template of one: what mpsd reads of it. It is decoded by its types at once, and
only where something has another type by `FieldReader.struct`, which notes every wrong field."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import field
from msgspec.structs import force_setattr

from mpsd.model.container import PRE_STOP, Container, Named, Read, Role, SecurityContext, place
from mpsd.model.fields import FieldReader, Fields, at
from mpsd.model.identity import PodName
from mpsd.model.names import CLAIMS_LABEL
from mpsd.model.problem import Problem, printable
from mpsd.model.quantity import is_zero

# annotations of a pod; the second: the seconds by which the webhook has lengthened its grace
PRIORITY = "mpsd.io/gpu-priority"
GRACE_ADDED = "mpsd.io/grace-added"
USUAL_GRACE_S = 30  # Kubernetes' own, of a pod that names none
FINISHED = frozenset({"Succeeded", "Failed"})  # phases of a pod that holds nothing any more
CLAIM = "ResourceClaim"
CLAIM_TEMPLATE = "ResourceClaimTemplate"
NO_BOUND = 2**63  # the API server holds 1.5 MiB of an object at most
ANY_CLAIM = "a resource claim"  # in `Pod.asked`, of one with a claim


class OwnerReference(Read, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    controller: bool = False


class _Metadata(Read, frozen=True, gc=False):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    #: RFC 3339
    created: str | None = field(default=None, name="creationTimestamp")
    #: None where its deletion was not requested
    deletion_timestamp: str | None = None
    deletion_grace_s: int | None = field(default=None, name="deletionGracePeriodSeconds")
    labels: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()


class Requirement(Read, frozen=True, gc=False):
    """One requirement of a node affinity, about a label or a field of the Node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def holds(self, found: str | None) -> bool:
        """found: the label's value; None where the Node has none."""
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "Gt" | "Lt":
                try:
                    over = int(found or "") - int(self.values[0])
                except (ValueError, IndexError):
                    return False
                return over > 0 if self.operator == "Gt" else over < 0
            case _:
                return True


class NodeSelectorTerm(Read, frozen=True, gc=False):
    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class _NodeSelector(Read, frozen=True, gc=False):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class _NodeAffinity(Read, frozen=True, gc=False):
    required: _NodeSelector = field(
        default=_NodeSelector(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(Read, frozen=True, gc=False):
    node_affinity: _NodeAffinity = _NodeAffinity()


class Toleration(Read, frozen=True, gc=False):
    #: empty for any
    key: str = ""
    operator: str = ""
    value: str = ""
    #: empty for any
    effect: str = ""


class ClaimName(NamedTuple):
    """What a pod gets a resource claim by, in its namespace: the claim itself, or a template."""

    kind: str
    name: str


class PodClaim(Read, frozen=True, gc=False):
    """An entry of `spec.resourceClaims`, or of `status.resourceClaimStatuses`."""

    name: str = ""
    claim: str | None = field(default=None, name="resourceClaimName")
    template: str | None = field(default=None, name="resourceClaimTemplateName")


class _HostPath(Read, frozen=True, gc=False):
    path: str = ""


class _Volume(Read, frozen=True, gc=False):
    name: str = ""
    host_path: _HostPath | None = None


class HostVolume(NamedTuple):
    """A volume that is a path of the host. path: to that in the object."""

    name: str
    host_path: str
    path: str


class PodSpec(Read, frozen=True, gc=False):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    host_ipc: bool = field(default=False, name="hostIPC")
    host_pid: bool = field(default=False, name="hostPID")
    #: whether uid 0 inside is uid 0 on the host
    host_users: bool = True
    shares_processes: bool = field(default=False, name="shareProcessNamespace")
    #: None for USUAL_GRACE_S
    grace_s: int | None = field(default=None, name="terminationGracePeriodSeconds")
    scheduler: str = field(default="", name="schedulerName")
    node: str = field(default="", name="nodeName")
    runtime_class: str = field(default="", name="runtimeClassName")
    #: None until the pod is created
    priority: int | None = None
    priority_class: str = field(default="", name="priorityClassName")
    scheduling_gates: tuple[Named, ...] = ()
    node_selector: dict[str, Any] = field(default_factory=dict)
    affinity: _Affinity = _Affinity()
    tolerations: tuple[Toleration, ...] = ()
    resource_claims: tuple[PodClaim, ...] = ()
    volumes: tuple[_Volume, ...] = ()
    security: SecurityContext = field(default=SecurityContext(), name="securityContext")

    @property
    def wishes(self) -> "NodeWishes":
        selector = tuple(one for one in self.node_selector.items() if isinstance(one[1], str))
        terms = self.affinity.node_affinity.required.node_selector_terms
        return NodeWishes(selector, self.tolerations, terms)


class NodeWishes(NamedTuple):
    """What a pod says of where it may run."""

    #: keys and values
    selector: tuple[tuple[str, str], ...]
    tolerations: tuple[Toleration, ...]
    #: of its required node affinity, one of which is to hold
    terms: tuple[NodeSelectorTerm, ...]

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Of a taint of a Node."""
        return any(
            one.key in ("", key)
            and (one.operator == "Exists" or one.value == value)
            and one.effect in ("", effect)
            for one in self.tolerations
        )


class PodCondition(Read, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class StateReason(Read, frozen=True, gc=False):
    """Of a container that waits or has ended, as kubelet says it."""

    reason: str = ""
    message: str = ""
    exit_code: int = 0
    #: RFC 3339
    finished_at: str | None = None


class _ContainerState(Read, frozen=True, gc=False):
    running: Any = None
    waiting: StateReason | None = None
    terminated: StateReason | None = None


class ContainerReport(Read, frozen=True, gc=False):
    name: str = ""
    state: _ContainerState = _ContainerState()
    #: of the one that it was before its last restart
    last_state: _ContainerState = _ContainerState()


class _PodStatus(Read, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[ContainerReport, ...] = ()
    container_statuses: tuple[ContainerReport, ...] = ()
    resource_claim_statuses: tuple[PodClaim, ...] = ()


class PodPriority(NamedTuple):
    #: `spec.priority`; None until the pod is created
    value: int | None = None
    #: its PriorityClass
    class_name: str = ""
    #: the annotation PRIORITY; None where it has none
    written: str | None = None


class PodDeletion(NamedTuple):
    """What a pod whose deletion was requested says of its end. Of its containers those that ask for
    devices count, or all where none does: a sidecar's hook does not hold back the others' signals.
    """

    #: seconds until kubelet kills what is left; 0 where it may be any time
    grace_s: int
    #: whether a container has a hook, other than mpsd's, that runs before it gets a signal
    has_pre_stop: bool = False
    #: in place of SIGTERM
    stop_signals: tuple[str, ...] = ()


_CLAIM_NODES = Requirement(CLAIMS_LABEL, "In", ("true",))


class Pod(Read, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()
    spec: PodSpec = PodSpec()
    status: _PodStatus = _PodStatus()
    #: leads to it from the object's root. Set by `read_pod`
    path: str = field(default="", name="/path")

    @property
    def labels(self) -> Fields:
        return self.metadata.labels

    @property
    def annotations(self) -> Fields:
        return self.metadata.annotations

    @property
    def name(self) -> PodName:
        return PodName(self.metadata.namespace, self.metadata.name, self.metadata.uid)

    @property
    def is_named(self) -> bool:
        """Whether it has been created."""
        found = self.metadata
        return bool(found.namespace and found.name and found.uid and found.created)

    @property
    def is_placed(self) -> bool:
        """A kubelet has written into its status, so that where it runs is no longer its wish. The
        API server empties that of every pod that is created."""
        return bool(self.status.start_time)

    @property
    def is_finished(self) -> bool:
        return self.status.phase in FINISHED

    @property
    def is_terminating(self) -> bool:
        """Its deletion was requested."""
        return self.metadata.deletion_timestamp is not None

    @property
    def containers(self) -> tuple[Container, ...]:
        spec = self.spec
        return (*spec.init_containers, *spec.containers, *spec.ephemeral_containers)

    @property
    def host_volumes(self) -> Iterator[HostVolume]:
        spec = at(self.path, "spec")
        for one in self.spec.volumes:
            if one.host_path is not None:
                volume = f"{spec}.volumes[{printable(one.name)}]"
                yield HostVolume(one.name, one.host_path.path, f"{volume}.hostPath.path")

    def run_as(self, container: Container) -> tuple[int | None, bool]:
        """The uid of the container's programs, None where the image says, and whether that is none
        of root, by the container or else by the pod."""
        uid = container.security.run_as_user
        if uid is None:
            uid = self.spec.security.run_as_user
        non_root = container.security.run_as_non_root
        if non_root is None:
            non_root = self.spec.security.run_as_non_root
        return uid, bool(non_root)

    @property
    def priority(self) -> PodPriority:
        written = self.annotations.get(PRIORITY)
        if not isinstance(written, str | None):
            written = ""
        return PodPriority(self.spec.priority, self.spec.priority_class, written)

    @property
    def on_claim_nodes(self) -> bool:
        """It goes only to nodes with CLAIMS_LABEL: by its nodeSelector, or by every term of its
        required node affinity, of which any may be met."""
        if self.spec.node_selector.get(CLAIMS_LABEL) == "true":
            return True
        terms = self.spec.wishes.terms
        return bool(terms) and all(_CLAIM_NODES in term.match_expressions for term in terms)

    @property
    def claims(self) -> Mapping[str, ClaimName]:
        """Its resource claims, by the names that its containers use."""
        found = {}
        for one in self.spec.resource_claims:
            if one.claim:
                found[one.name] = ClaimName(CLAIM, one.claim)
            if one.template:
                found[one.name] = ClaimName(CLAIM_TEMPLATE, one.template)
        return found

    @property
    def claims_made(self) -> Mapping[str, ClaimName]:
        """The same, with what was made of a template in its place, where that is known."""
        found = dict(self.claims)
        for one in self.status.resource_claim_statuses:
            if one.claim and one.name in found:
                found[one.name] = ClaimName(CLAIM, one.claim)
        return found

    @property
    def asked(self) -> tuple[str, ...]:
        """What its containers ask, well or badly, of device plugins, whose resources alone have a
        slash in their names; ANY_CLAIM where they have a resource claim."""
        named = set()
        for one in self.containers:
            for name, amount in (*one.limits.items(), *one.requests.items()):
                if "/" in name and not is_zero(amount):
                    named.add(name)
            if one.resources.claims:
                named.add(ANY_CLAIM)
        return tuple(sorted(named))

    @property
    def deletion(self) -> PodDeletion | None:
        """None where its deletion was not requested."""
        if not self.is_terminating:
            return None
        containers = [*self.spec.init_containers, *self.spec.containers]
        asking = [one for one in containers if one.asks_for_devices()]
        has_pre_stop = False
        signals = set()
        for one in asking or containers:
            has_pre_stop |= one.lifecycle.pre_stop not in (None, PRE_STOP)
            signals.add(one.lifecycle.stop_signal)
        grace_s = self.metadata.deletion_grace_s or 0
        return PodDeletion(grace_s, has_pre_stop, tuple(sorted(signals - {""})))

    def size(self) -> int:
        """How many entries there are that rules go through."""
        spec = self.spec
        own = self.labels, self.annotations, spec.resource_claims, spec.volumes, self.containers
        return sum(map(len, own)) + sum(one.size() for one in self.containers)


def pod_in(thing: object, shape: FieldReader | None = None) -> Pod | None:
    """The pod in a decoded object of the API, or one that was decoded as such; None for what is no
    pod. It is read to its end whatever its size, since the API server has taken it already."""
    if isinstance(thing, Pod):
        return _placed(thing, "")
    if not isinstance(thing, dict) or thing.get("kind", "Pod") != "Pod":
        return None
    return read_pod(shape or FieldReader(NO_BOUND), thing)


def read_pod(shape: FieldReader, fields: Fields, path: str = "") -> Pod:
    """The pod whose `metadata`, `spec` and `status` are in `fields`."""
    try:
        pod = msgspec.convert(fields, Pod)
    except (msgspec.ValidationError, RecursionError):
        pod = shape.struct(Pod, fields, path)
    else:
        if not shape.has_room_for(pod.size()):
            pod = shape.struct(Pod, fields, path)
    spec = fields.get("spec")
    if spec is None:
        shape.needed(fields, "spec", path)
    elif isinstance(spec, dict) and spec.get("containers") in (None, []):
        where = at(path, "spec", "containers")
        shape.problems.append(
            Problem("field-missing", where, "", "holds no container", "add a container")
        )
    if PRIORITY in pod.annotations:
        shape.text(pod.annotations, PRIORITY, at(path, "metadata", "annotations"))
    return _placed(pod, path)


def _placed(pod: Pod, path: str) -> Pod:
    """With what follows from where it and its containers are."""
    force_setattr(pod, "path", path)
    place(pod.spec.init_containers, Role.INIT, at(path, "spec", "initContainers"))
    place(pod.spec.containers, Role.MAIN, at(path, "spec", "containers"))
    place(pod.spec.ephemeral_containers, Role.EPHEMERAL, at(path, "spec", "ephemeralContainers"))
    return pod
