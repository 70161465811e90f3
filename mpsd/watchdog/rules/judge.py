"""One look at the processes on the GPUs: who takes more than was granted, and whom that is to end.

One rule: nobody is ended without need. A process is told of once, gets a second look where the first may deceive, and
is left alone where its grant is within once others have ended; what is not known is never punished.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mpsd.model.events import Reason
from mpsd.model.grants import Gpu, Grant
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.policy import Policy, Response
from mpsd.model.violations import Violation, ViolationKind, most_mib, named
from mpsd.watchdog.rules.processes import (
    Books,
    Examined,
    Place,
    ProcessFinding,
    WatchdogView,
    age,
    crowd,
    lifted,
    strangers,
)

AGAIN_S = 2.0  # a process that was signalled and is still listed counts again after this; memory is back in 0.07 s
SECOND_LOOK_S = 0.03  # after the first: a process that starts or ends may show outside MPS for a moment
_APART_S = 0.02  # that two looks must be to count as two
_TWO_LOOKS = frozenset({ViolationKind.OUTSIDE_MPS, ViolationKind.WITHOUT_GRANT, ViolationKind.IN_NO_POD})

_Key = tuple[
    ViolationKind | str, ProcessIdentity | str, str
]  # what of whom, a process or a grant, on the GPU with this UUID


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to be told that is nobody's violation. pods: those it concerns. reason: of its events; None: none."""

    gpu: str
    pods: tuple[PodName, ...]
    reason: Reason | None
    message: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What one look leaves to the next.

    within: what each process used when its grant was last within, by grant and GPU. ending: until when a process that
    is being ended does not count. since: when each thing that needs a second look was first seen. told: what was seen
    to be wrong and still is, and whether anybody heard of it.
    """

    within: Mapping[Books, Mapping[ProcessIdentity, int]] = field(default_factory=dict)
    ending: Mapping[ProcessIdentity, float] = field(default_factory=dict)
    since: Mapping[_Key, float] = field(default_factory=dict)
    told: Mapping[_Key, bool] = field(default_factory=dict)
    examined: Mapping[Place, Examined] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """Whether the same look again would find nothing new, however late."""
        return not self.ending and not self.since


@dataclass(frozen=True, slots=True)
class WatchdogVerdict:
    """violations: each once, and again where its process does not end. look_again: soon, before anybody is punished."""

    violations: tuple[Violation, ...]
    notices: tuple[Notice, ...]
    look_again: bool


def judge(seen: WatchdogView, memory: Memory, policy: Policy) -> tuple[WatchdogVerdict, Memory]:
    """What is wrong now and was not said yet, with what the next look must remember."""
    look = _JudgeLook(seen, memory, policy)
    for stranger in strangers(seen, policy.resources.memory):
        look.note(stranger)
    by_ledger = seen.by_ledger()
    examined = lifted(seen, by_ledger, memory.examined)
    for (grant_id, gpu), clients in by_ledger.items():
        grant = seen.grants[grant_id]
        look.at_environments(grant, gpu, clients, examined)
        for one_more in crowd(grant, seen.label(gpu), clients, look.ending) if len(clients) > grant.clients else ():
            look.note(one_more)
        look.at_memory(grant, gpu, clients)
    for gpu_seen in seen.gpus:
        look.at_room(gpu_seen)
    return look.verdict(), look.memory(examined)


class _JudgeLook:
    """A look under way. Who is to end for one reason is not counted for the next."""

    def __init__(self, seen: WatchdogView, before: Memory, policy: Policy) -> None:
        self._seen = seen
        self._before = before
        self._policy = policy
        listed = {client.process for client in seen.clients} if before.ending else set[ProcessIdentity]()
        self.ending = {
            one: until for one, until in before.ending.items() if seen.now < until and (one in listed or seen.unseen)
        }
        self._late = (before.ending.keys() & listed) - self.ending.keys()
        # What was known of a GPU holds while NVML does not answer for it.
        self._within = {
            one: was for one, was in before.within.items() if one[1] in seen.unseen and one[0] in seen.grants
        }
        self._since: dict[_Key, float] = {}
        self._told = {key: heard for key, heard in before.told.items() if key[2] in seen.unseen}
        self._violations: list[Violation] = []
        self._notices: list[Notice] = []

    def verdict(self) -> WatchdogVerdict:
        return WatchdogVerdict(tuple(self._violations), tuple(self._notices), look_again=bool(self._since))

    def memory(self, examined: Mapping[Place, Examined]) -> Memory:
        return Memory(self._within, self.ending, self._since, self._told, examined)

    def at_environments(
        self, grant: Grant, gpu: str, clients: list[Client], examined: Mapping[Place, Examined]
    ) -> None:
        for client in clients:
            known = examined.get((client.process, gpu))
            for escape in known.found if known else ():
                self.note(ProcessFinding(escape.kind, client, grant.pod, f"lifts its limit: {escape.message}"))

    def at_memory(self, grant: Grant, gpu: str, clients: list[Client]) -> None:
        """A grant whose processes together use more than it of a GPU, those that are being ended left out."""
        used: dict[ProcessIdentity, int] = {}
        counted = [client for client in clients if client.process not in self.ending] if self.ending else clients
        for client in counted:
            if client.used_mib is None:
                self._say_unknown(client)
            else:
                used[client.process] = client.used_mib
        before = self._before.within.get((grant.id, gpu), {})
        part = grant.part_of(gpu)
        total_mib, limit_mib = sum(used.values()), most_mib(part, self._policy)
        if total_mib <= limit_mib:
            self._within[grant.id, gpu] = used if len(used) == len(counted) else before
            return
        self._within[grant.id, gpu] = before
        growth = {process: mib - before.get(process, 0) for process, mib in used.items()}
        culprits = [client for client in counted if client.process in used]
        left_mib = total_mib
        for client in sorted(culprits, key=lambda one: (growth[one.process], age(one)), reverse=True):
            taken = f"took {growth[client.process]} MiB since its grant was last within"
            message = (
                f"{taken if before else f'holds {used[client.process]} MiB'}: "
                f"{total_mib} MiB of {self._seen.label(gpu)} are used where {part.memory_mib} MiB were granted"
            )
            finding = ProcessFinding(ViolationKind.MEMORY_OVER_GRANT, client, grant.pod, message)
            self.note(finding, as_one=grant.id)
            left_mib -= used[client.process]
            if left_mib <= limit_mib or not self._response(finding).ends:
                return

    def at_room(self, gpu: Gpu) -> None:
        """A GPU that takes no further client of MPS."""
        clients = [client for client in self._seen.clients if client.on_mps and client.gpu == gpu.uuid]
        if len(clients) < gpu.capability.clients:
            return
        grants = filter(None, (self._seen.grants.get(client.grant or "") for client in clients))
        pods = {grant.pod for grant in grants if grant.pod}
        message = (
            f"{gpu.label} has {gpu.capability.clients} MPS clients, which is all that it takes: "
            f"the next process gets CUDA error 808 (CUDA_ERROR_MPS_MAX_CLIENTS_REACHED)"
        )
        notice = Notice(gpu.uuid, tuple(sorted(pods, key=str)), Reason.TOO_MANY_CLIENTS, message)
        self._say(("full", "", gpu.uuid), notice)

    def _say_unknown(self, client: Client) -> None:
        label = self._seen.label(client.gpu)
        message = f"NVML does not say how much {named(client)} uses of {label}: that is not counted"
        self._say(("unknown", client.process, client.gpu), Notice(client.gpu, (), None, message))

    def _say(self, key: _Key, notice: Notice) -> None:
        self._told[key] = True
        if key not in self._before.told:
            self._notices.append(notice)

    def note(self, finding: ProcessFinding, as_one: str = "") -> None:
        """Something is wrong with a process. as_one: the grant of which only one of its processes is to be told."""
        client = finding.client
        key: _Key = (finding.kind, as_one or client.process, client.gpu)
        heard = self._before.told.get(key)
        if client.process in self.ending:
            self._told |= {} if heard is None else {key: heard}
            return
        if finding.kind in _TWO_LOOKS and heard is None:
            since = self._before.since.get(key, self._seen.now)
            if self._seen.now - since < _APART_S:
                self._since[key] = since
                return
        response = self._response(finding)
        self._told[key] = response.tells or bool(heard)
        if response.ends:
            self.ending[client.process] = self._seen.now + AGAIN_S
        elif heard or heard is response.tells:  # what was only counted is told of where the policy now says so
            return
        self._violations.append(
            Violation(
                kind=finding.kind,
                response=response,
                gpu=client.gpu,
                grant=client.grant,
                pod=finding.pod,
                client=client,
                message=finding.message,
                again=response.ends and client.process in self._late,
            )
        )

    def _response(self, finding: ProcessFinding) -> Response:
        """As the policy says, but that nobody without a pod can be evicted, and the exempt are only observed."""
        response, pod = finding.kind.response(self._policy), finding.pod
        if (
            finding.kind is ViolationKind.WITHOUT_GRANT
            and pod
            and pod.namespace in self._policy.admission.exempt_namespaces
        ):
            return Response.OBSERVE
        return Response.KILL if response is Response.EVICT and pod is None else response
