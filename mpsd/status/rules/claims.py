"""The resource claims of pods that wait: what they ask for, and what keeps one of mpsd from being
allocated, whatever the GPUs have left."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from mpsd.admission.rules.claims import ClaimAsked, asked_of, classes_of, wrong_in_claim
from mpsd.kubelet.dra.rules.slices import MEMORY
from mpsd.kubelet.rules.gpu_choice import SharedPod
from mpsd.model.fields import FieldReader, Fields
from mpsd.model.grants import Request
from mpsd.model.names import CLAIM_DRIVER
from mpsd.model.pod import CLAIM, ClaimName
from mpsd.model.policy import Policy
from mpsd.model.problem import shown_name
from mpsd.model.quantity import whole
from mpsd.status.rules.pods import PodSeen, SeenClaim

_INSTALL = "an administrator sets dra.enabled (docs/dra.md)"
_MOST_PROBLEMS = 2
_NOTHING = Request(0, None, 1)


@dataclass(frozen=True, slots=True)
class ClaimsServed:
    """classes, nodes: by name; None where nobody may ask. whole_mib: of the largest GPU, 0 where
    none is known."""

    classes: frozenset[str] | None
    nodes: frozenset[str] | None
    whole_mib: int


def read_served(classes: Iterable[Fields] | None, slices: Iterable[Fields] | None) -> ClaimsServed:
    """slices: of mpsd."""
    fields = FieldReader()
    largest = 0
    nodes = set[str]()
    for one in slices or ():
        spec = fields.mapping(one, "spec", "")
        nodes.add(fields.text(spec, "nodeName", ""))
        for _where, device in fields.entries(spec, "devices", ""):
            memory = fields.mapping(fields.mapping(device, "capacity", ""), MEMORY, "")
            largest = max(largest, whole(memory.get("value")) or 0)
    names = [fields.text(fields.mapping(one, "metadata", ""), "name", "") for one in classes or ()]
    return ClaimsServed(
        None if classes is None else frozenset(names),
        None if slices is None else frozenset(nodes),
        largest // 1024**2,
    )


def with_claim(
    pod: PodSeen,
    things: Mapping[tuple[str, ClaimName], Fields],
    missing: Collection[tuple[str, ClaimName]],
    served: ClaimsServed,
    policy: Policy,
) -> PodSeen:
    """The pod, with `shared` and `claim` where it has a claim of mpsd. things: claims and templates
    by namespace and name. missing: those that do not exist."""
    namespace = pod.name.namespace
    found = dict[ClaimName, tuple[str, ClaimAsked, Fields]]()
    for name in pod.claims:
        thing = things.get((namespace, name))
        words = f"{name.kind} {shown_name(f'{namespace}/{name.name}')}"
        if thing is not None and (asked := asked_of(thing, name.kind, policy)):
            found[name] = words, asked, thing
        elif (namespace, name) in missing and pod.is_pending and not pod.node:
            lacking = f"its {words} does not exist; create it, or correct the name in"
            lacking += " spec.resourceClaims"
            return _claiming(pod, SeenClaim(words, served.nodes, lacking), _NOTHING)
    if not found:
        return pod
    (name, (words, asked, thing)), *_more = found.items()
    impossible = _of_several(pod, found, policy) or _never(words, thing, name, policy)
    lacking = "" if impossible else _lacking(words, thing, name, policy, served)
    memory_mib = served.whole_mib if asked.memory_mib is None else asked.memory_mib
    request = Request(memory_mib, asked.reserved_percent or None, asked.gpus or 1, asked.clients)
    return _claiming(pod, SeenClaim(words, served.nodes, lacking, impossible), request)


def _claiming(pod: PodSeen, claim: SeenClaim, request: Request) -> PodSeen:
    shared = SharedPod(
        pod.name,
        request,
        pod.node,
        {},
        pod.scheduler,
        0,
        "",
        finished=False,
        terminating=pod.terminating,
    )
    return replace(pod, shared=pod.shared or shared, claim=claim)


def _of_several(
    pod: PodSeen, found: Mapping[ClaimName, tuple[str, ClaimAsked, Fields]], policy: Policy
) -> str:
    """Why it can never start with all that it has; empty where it has one."""
    # two entries of one template are two claims, and two of one claim are one
    names = [name for name in pod.claims if name in found and name.kind != CLAIM]
    names += [name for name in found if name.kind == CLAIM]
    said = [found[name][0] for name in names]
    if pod.shared:
        said.append(policy.resources.memory)
    if len(said) < 2:
        return ""
    return (
        f"it has {' and '.join(said)}, and a pod has one claim or request of mpsd's GPUs, so it"
        " never starts; recreate it with one claim for all of it"
    )


def _never(words: str, thing: Fields, name: ClaimName, policy: Policy) -> str:
    problems = wrong_in_claim(thing, name.kind, policy, None).problems
    if not problems:
        return ""
    said = ", and ".join(map(str, problems[:_MOST_PROBLEMS]))
    return f"its {words} can never be served: {said}; then recreate it and the pod"


def _lacking(
    words: str, thing: Fields, name: ClaimName, policy: Policy, served: ClaimsServed
) -> str:
    named = [one for one in classes_of(thing, name.kind) if one in policy.admission.device_classes]
    why = ""
    if served.classes is not None and named[0] not in served.classes:
        why = f"its {words} asks for the DeviceClass {shown_name(named[0])}, which does not exist"
    elif served.nodes is not None and not served.nodes:
        why = f"no node offers a GPU for its {words}: there is no ResourceSlice of {CLAIM_DRIVER}"
    return why and f"{why}; {_INSTALL}"
