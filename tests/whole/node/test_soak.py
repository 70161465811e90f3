"""In the end a node's ledger holds exactly the living pods, and no other was hit, whatever befalls
it in whatever order.

One node with three GPUs for all sequences, of which one is spared in each: what befalls the others,
which are joined and divided, and mpsd, kubelet and the API server, is not noticed there.
"""

import json
import random
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from mpsd.kubelet.rules.node_pods import GPU
from mpsd.model.client_limits import DENY_MIB
from mpsd.model.domain import State
from mpsd.model.node_report import NodeReport
from mpsd.platform import local_api
from mpsd.simulator.gpus import DEVICE_NODES
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.chaos import (
    ESCAPE,
    GRACES,
    IN_THE_END_S,
    Bystander,
    Chaos,
    Deed,
    seeds,
    until_quiet,
)
from tests.whole.machine.machine import Service, eventually
from tests.whole.node.cluster import MEMORY, Cluster, Object, pod
from tests.whole.node.conftest import begun

pytestmark = needs_cgroups

GPUS = ("gpu0", "gpu1", "gpu2")
_ENDED = {"Succeeded", "Failed"}
_CLIENT = f"{sys.executable} -m mpsd.simulator.cuda_client"
_ESCAPES = f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=0 {_CLIENT} {' '.join(ESCAPE)}"
# The second dies of SIGTERM, in kernels that are short enough to harm nobody.
_ACTIONS = (("info", "hold"), ("info", "launch=600"))


class PodsChaos(Chaos):
    """Pods come and go meanwhile, kubelet and the API server too. asked: GiB of each pod that was
    made."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        chance = random.Random(seed)
        self._cluster = cluster
        self._seed = seed
        self._api_is_away = False
        self.asked: dict[str, int] = {}
        self.pairs: set[str] = set()  # pods of two GPUs
        self.escapes: set[str] = set()
        self.deleted: set[str] = set()
        self._uids: dict[str, str] = {}  # and the names of their pods
        self._pods_of: dict[int, str] = {}  # the uids, by pids of clients
        self.neighbour = cluster.running(
            self._name(2), 2, annotations=self._on(chance.choice(GPUS))
        )
        # Kubelet chooses the devices, and not always of the GPU that was written on the pod.
        spared = set(cluster.grant(self.neighbour_name).gpus)
        doomed = [name for name in GPUS if not spared.intersection(self._on(name).values())]
        super().__init__(cluster, chance, doomed, cluster.control, cluster.agent)

    @property
    def deeds(self) -> list[Deed]:
        """Twice what fills the node, so that there is somebody whom the rest befalls."""
        ours = [
            self.start_pod,
            self.start_pod,
            self.start_pod,
            self.end_pod,
            self.fault,
            self.escape,
            self.escape,
        ]
        return [
            *super().deeds,
            *ours,
            self.start_pair,
            self.start_pair,
            self.roll_agent,
            self.restart_kubelet,
            self.api_goes,
            self.api_comes,
            self.cordon,
        ]

    def start_pod(self) -> None:
        gib = self.chance.choice([1, 2, 5, 9])
        again = self.chance.choice(["Always", "Never"])
        self._apply(
            pod(self._name(gib), gib, actions=self.chance.choice(_ACTIONS), restartPolicy=again)
        )

    def start_pair(self) -> None:
        """Of two GPUs, which are joined for it while nobody else uses them; else it is refused."""
        gib = self.chance.choice([2, 4, 18])
        name = self._name(gib)
        self.pairs.add(name)
        self._apply(pod(name, gib, restartPolicy="Always", labels={"aliyun.com/gpu-count": "2"}))

    def fault(self) -> None:
        """By a program that then stays, or does not; nobody else gets onto that GPU before it has
        gone.

        Kubelet may have put it on another GPU than was written on it: there it only holds its
        context.
        """
        linger, where = self.chance.choice(["linger=0.5", "linger"]), self._on(self.gpu())
        made = pod(self._name(1), 1, annotations=where)
        there = (
            f'case "${DEVICE_NODES}" in *{where[GPU]}*) exec {_CLIENT} fault {linger};; esac; exec'
            f" {_CLIENT} hold"
        )
        made["spec"]["containers"][0]["command"] = ["sh", "-c", there]
        self._apply(made)

    def escape(self) -> None:
        """On any GPU: who is spared has such a neighbour too, and lives only where its kernels have
        run at its end."""
        name = self._name(2)
        made = pod(name, 2, annotations=self._on(self.chance.choice(GPUS)))
        made["spec"]["containers"][0]["command"] = ["sh", "-c", _ESCAPES]
        self.escapes.add(name)
        self._apply(made)

    def end_pod(self) -> None:
        """Not of who takes too much: kubelet would end it amid its kernels where no agent does it
        first."""
        self.api_comes()
        others = {*self._phases()} - self.escapes - {self.neighbour_name}
        if others:
            name = self.chance.choice(sorted(others))
            self.deleted.add(name)
            self._cluster.delete(name, grace_s=self.chance.choice([0, 1, 3]))

    def roll_agent(self) -> None:
        old = self.agent
        old.send(signal.SIGTERM)
        code = old.exit_code()
        self.replace_agent()
        assert code in {0, 128 + signal.SIGTERM}, old  # the latter of one that had not begun yet

    def new_agent(self) -> Service:
        return self._cluster.launch_agent()

    def restart_kubelet(self) -> None:
        self._cluster.kubelet.send(signal.SIGTERM)
        self._cluster.kubelet.exit_code()
        self._cluster.kubelet = self._cluster.start_kubelet()

    def api_goes(self) -> None:
        self._cluster.api.send(signal.SIGSTOP)
        self._api_is_away = True

    def api_comes(self) -> None:
        if self._api_is_away:
            self._cluster.api.send(signal.SIGCONT)
            self._api_is_away = False

    def cordon(self) -> None:
        """Other GPUs than before, or none."""
        self.api_comes()
        gpus = [gpu.uuid for gpu in self._cluster.simulation.gpus]
        self._cluster.cordon(*self.chance.sample(gpus, self.chance.randrange(len(gpus) + 1)))

    def end(self) -> None:
        """Nothing more happens; what is left to do is mpsd's."""
        self.api_comes()
        self.let_daemons_go_on()
        self._cluster.control, self._cluster.agent = self.control, self.agent
        eventually(self._uncordon, "the cordon is lifted")

    # -- how it ends

    @property
    def neighbour_name(self) -> str:
        return next(iter(self.asked))

    def trouble(self) -> str:
        if not self.control_has_looked:
            return "control has not looked yet"
        try:
            node = self._cluster.node()
        except local_api.NotRunning as away:
            return str(away)
        phases = self._phases()
        living = {
            name: gib * 1024 // (2 if name in self.pairs else 1)
            for name, gib in self.asked.items()
            if phases.get(name) == "Running"
        }
        booked = sorted(
            (grant.pod.rpartition("/")[2], grant.memory_mib, grant.clients) for grant in node.grants
        )
        expected = [(name, mib, 1) for name, mib in sorted(living.items())]
        whole = sum(gpu.promised_mib // 1024 for gpu in node.gpus)
        troubles = {
            "offered": ""
            if self._cluster.offered().get(MEMORY) == str(whole)
            else self._cluster.offered(),
            "states": [one for one in node.domains if one.state != State.READY],
            "in no domain": len(node.gpus) - sum(len(one.gpus) for one in node.domains),
            "daemons": self.daemons_left(),
            "gates": [
                one.name
                for one in node.domains
                if not self.machine.folder_of(one.name).gate.exists()
            ],
            "pods under way": self._under_way(phases, whole),
            "over their grant": [name for name in self.escapes if phases.get(name) == "Running"],
            "ends under way": self.ends_left(),
            "ledger": booked if booked != expected else [],
            "limits": self._wrong_limits(node),
        }
        found = {what: those for what, those in troubles.items() if those}
        return f"{found}; {expected} live" if found else ""

    def _wrong_limits(self, node: NodeReport) -> list[str]:
        """The limit of servers to come is the largest grant of a domain."""
        largest = {domain.name: DENY_MIB for domain in node.domains}
        for domain in node.domains:
            for grant in node.grants:
                if not set(domain.gpus).isdisjoint(grant.gpus):
                    largest[domain.name] = max(largest[domain.name], grant.memory_mib)
        found = {name: self.machine.limit_mib(name) for name in largest}
        return [
            f"{name}: {found[name]}, not {mib}"
            for name, mib in largest.items()
            if found[name] != mib
        ]

    def _under_way(self, phases: Mapping[str, str], whole: int) -> list[str]:
        """Those that are about to run or to go; not who waits for more room than there is. whole:
        GiB of the node."""
        held = sum(
            self.asked[name] for name, phase in phases.items() if phase in {"Running", "Starting"}
        )
        free = whole - held
        waits = {
            name
            for name, phase in phases.items()
            if phase == "Unscheduled" and self.asked[name] > free
        }
        return [
            name
            for name, phase in phases.items()
            if phase in {"Starting", "Unscheduled"} and name not in waits
        ]

    def _phases(self) -> Mapping[str, str]:
        """Of each pod: `Starting` where it is about to run, or to go; `Unscheduled` where it has no
        node."""
        return {item["metadata"]["name"]: _phase(item) for item in self._cluster.pods()}

    # -- pods

    def look(self) -> None:
        super().look()
        for log in (self._cluster.kubelet_folder / "containers").glob("*/main/*/log"):
            with suppress(OSError, ValueError, KeyError):  # it has gone, or said nothing yet
                self._pods_of[json.loads(log.read_text().partition("\n")[0])["pid"]] = log.parts[-4]

    def is_due(self, pid: int) -> bool:
        name = self._uids.get(self._pods_of.get(pid, ""))
        return name is None or name in self.escapes | self.deleted

    def _apply(self, made: Object) -> None:
        self.api_comes()
        self._uids[self._cluster.apply(made)["metadata"]["uid"]] = made["metadata"]["name"]

    def _name(self, gib: int) -> str:
        name = f"pod{self._seed}-{len(self.asked)}"
        self.asked[name] = gib
        return name

    def _on(self, gpu: str) -> Mapping[str, str]:
        return {"mpsd.io/gpu": self._cluster.simulation.gpus[GPUS.index(gpu)].uuid}

    def _uncordon(self) -> bool:
        with suppress(OSError):
            self._cluster.cordon()
            return True
        return False


def _phase(item: Object) -> str:
    if "nodeName" not in item["spec"]:
        return "Unscheduled"
    status = item.get("status", {})
    phase = str(status.get("phase", "Pending"))
    runs = phase == "Running" and all(
        "running" in one["state"] for one in status["containerStatuses"]
    )
    stays = (runs and "deletionTimestamp" not in item["metadata"]) or phase in _ENDED
    return phase if stays else "Starting"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Cluster, Bystander]]:
    cluster = Cluster("A30x3")
    cluster.set_policy(graces=GRACES)
    bystander = Bystander(cluster)
    for begun_one in begun(cluster):
        yield begun_one, bystander
        begun_one.end_programs()


@pytest.mark.timeout(4 * IN_THE_END_S)
@pytest.mark.parametrize("seed", seeds(80))
def test_after_any_sequence_of_mishaps_the_ledger_holds_exactly_the_living_pods(
    shared: tuple[Cluster, Bystander], seed: int
) -> None:
    cluster, bystander = shared
    chaos = PodsChaos(cluster, seed)
    (neighbour,) = chaos.neighbour.heard("ready")
    try:
        try:
            chaos.play()
        finally:
            chaos.end()
        until_quiet(chaos.trouble)
        chaos.check_ends(chaos.is_due)
        assert bystander.is_well
        assert chaos.neighbour.heard("ready") == [neighbour]
        assert len(chaos.neighbour.runs) == 1
        assert Path(f"/proc/{neighbour}").exists()
    except BaseException:
        # what the next sequence would not show any more
        print(cluster.agent.errors, cluster.pods(), sep="\n")
        raise
    finally:
        cluster.empty()
