"""Why a pod that has no node has none.

One rule: what keeps the pod out whatever the GPUs have is said before what the GPUs lack, and `no room` only where
there is none on any node that may take it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mpsd.grants.rules.placement import gib
from mpsd.model.grants import Request
from mpsd.model.problem import shown, shown_name
from mpsd.platform.rules.kubernetes_node import LABELS, NodeWishes
from mpsd.scheduler.rules.node_books import Source
from mpsd.scheduler.rules.shortage import can_ever, has_domain
from mpsd.status.rules.cluster_shortage import Candidate, candidates, most_mib, shortage, too_large
from mpsd.status.rules.pod_scene import Scene, Story, Why, listed
from mpsd.status.rules.pod_seen import PodSeen, quoted

_NOBODY_SAID = "the default-scheduler"


def waiting_story(pod: PodSeen, request: Request, scene: Scene) -> Story:
    """Of a pod that is bound to no node."""
    for look in (_ending, _gated, _scheduled_by_others):
        if story := look(pod, scene):
            return story
    if words := _promises(scene).get(pod.name.uid):
        return _waits(pod, Why.PROMISED, words)
    outlook = _outlook(request, pod.wishes, scene)
    return _fits(pod, outlook.room) if outlook.why is None else _waits(pod, outlook.why, outlook.words, outlook.room)


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What there is for a request. why None: there is room that the pod may have. room: that, or what it is kept away
    from."""

    why: Why | None
    words: str = ""
    room: tuple[Candidate, ...] = ()


@lru_cache(maxsize=256)
def _outlook(request: Request, wishes: NodeWishes, scene: Scene) -> _Outlook:
    nodes = candidates(request, wishes, scene)
    if not any(one.books for one in nodes):
        return _Outlook(Why.NO_NODE, _no_node(nodes, scene))
    fitting = tuple(one for one in nodes if one.gpus)
    if free := tuple(one for one in fitting if not one.away):
        return _Outlook(None, "", free)
    if fitting:
        return _Outlook(Why.KEPT_AWAY, _kept_away(request, fitting, nodes), fitting)
    if words := too_large(request, nodes):
        return _Outlook(Why.TOO_LARGE, f"it {words}, so it never fits; ask for less")
    return _Outlook(Why.NO_ROOM, f"{shortage(request, nodes)}; {_when(request, nodes, scene)}")


def _waits(pod: PodSeen, why: Why, sentence: str, room: Sequence[Candidate] = ()) -> Story:
    return Story(why, f"pod {shown_name(str(pod.name))} waits: {sentence}", room=tuple(one.room for one in room))


def _ending(pod: PodSeen, _scene: Scene) -> Story | None:
    if not pod.terminating:
        return None
    return Story(
        Why.ENDS, f"pod {shown_name(str(pod.name))} never ran: it is being deleted, and waits for its finalizers"
    )


def _gated(pod: PodSeen, _scene: Scene) -> Story | None:
    if not pod.gates:
        return None
    gates = listed([shown_name(gate) for gate in pod.gates])
    many = len(pod.gates) > 1
    words = f"no scheduler looks at it before its scheduling gate{'s' * many} {gates} {'are' if many else 'is'} removed"
    return _waits(pod, Why.GATED, f"{words}, by whoever set {'them' if many else 'it'} (spec.schedulingGates)")


def _scheduled_by_others(pod: PodSeen, scene: Scene) -> Story | None:
    known = scene.policy.admission.schedulers
    if not pod.scheduler or pod.scheduler in known:
        return None
    words = f"it names the scheduler {shown(pod.scheduler)}, which does not ask mpsd"
    return _waits(pod, Why.OTHER_SCHEDULER, f"{words}; make it anew with spec.schedulerName: {' or '.join(known)}")


def _no_node(nodes: Sequence[Candidate], scene: Scene) -> str:
    if nodes:
        where = listed([shown_name(one.node) for one in nodes])
        words = f"{where} {'is' if len(nodes) == 1 else 'are'} labelled {LABELS[0]}, and mpsd tells of no GPU there"
        return f"{words}; see whether the pods run: kubectl get pods -A -o wide -l app.kubernetes.io/part-of=mpsd"
    words = "no node has an MPSNode" if scene.machines is None else f"no node is labelled {LABELS[0]}"
    return f"{words}; an administrator does it: kubectl label node NODE {LABELS[0]}"


@lru_cache(maxsize=4)
def _promises(scene: Scene) -> Mapping[str, str]:
    """By uid of a pod, where a scheduler has promised it room."""
    found = {}
    for books in scene.books.values():
        for one in books.taken:
            if one.source is Source.RESERVED:
                gpus = listed([gpu.label for gpu, _total in books.totals if gpu.uuid in one.gpus])
                words = f"its scheduler has promised it {gpus} of {shown_name(books.node)}"
                found[one.pod.uid] = f"{words}, and binds it there or gives that up within a minute"
    return found


def _fits(pod: PodSeen, fitting: Sequence[Candidate]) -> Story:
    room = f"{listed([one.room for one in fitting])} {'has' if len(fitting) == 1 else 'have'} room"
    describe = f"kubectl describe pod {shown_name(pod.name.name)} -n {shown_name(pod.name.namespace)}"
    if pod.unscheduled:
        words = f'{room}, and its scheduler says "{quoted(pod.unscheduled)}"; more in {describe}'
        return _waits(pod, Why.SCHEDULER_SAYS, words, fitting)
    scheduler = shown(pod.scheduler) if pod.scheduler else _NOBODY_SAID
    words = f"{room}, and its scheduler, {scheduler}, has said nothing of it yet; see whether that runs"
    return _waits(pod, Why.NOT_LOOKED_AT, words, fitting)


_REMEDIES = (
    ("cordoned", "kubectl uncordon takes pods there again"),
    ("taint ", "a toleration in the pod lets it there"),
    ("not ready", "kubectl describe node says what is wrong there"),
    ("not labelled", f"the label {LABELS[0]} lets mpsd share it"),
)


def _kept_away(request: Request, fitting: Sequence[Candidate], nodes: Sequence[Candidate]) -> str:
    rooms = listed([f"{one.room} ({one.away})" for one in fitting])
    remedy = [words for start, words in _REMEDIES if any(one.away.startswith(start) for one in fitting)]
    rest = [one for one in nodes if not one.gpus]
    elsewhere = [f"elsewhere, {shortage(request, rest)}"] if rest else []
    return "; ".join([f"there is room only where it may not go: {rooms}", *remedy, *elsewhere])


def _when(request: Request, nodes: Sequence[Candidate], scene: Scene) -> str:
    """When it will start, and what would do sooner."""
    open_ones = [one.books for one in nodes if one.books and not one.away]
    if not open_ones:
        return "kubectl mps shows how each node is"
    unit_mib = scene.policy.resources.memory_unit_mib
    less_mib = most_mib(nodes) // unit_mib * unit_mib
    ask_less = f"ask for {gib(less_mib)} GiB or less" if 0 < less_mib < request.memory_mib and request.gpus == 1 else ""
    if not any(has_domain(request, books) for books in open_ones):
        return f"it never fits until an administrator makes a domain of {request.gpus} GPUs; or ask for one GPU"
    if any(can_ever(request, books) for books in open_ones):
        return "; or ".join(filter(None, ["it starts when others end, which kubectl mps shows", ask_less]))
    return "; ".join(filter(None, ["what is counted is too small for it even when empty", ask_less]))
