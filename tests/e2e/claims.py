"""Resource claims for a part of a GPU, the pods that have them, and an installation that serves
them."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpsd.model.quantity import whole
from tests.e2e.cluster import Cluster, Object
from tests.e2e.installation import AGENT, MEMORY, SYSTEM, Installation
from tests.e2e.shares import BY_MPSD, LIFTED, Pods, share
from tests.e2e.waiting import eventually
from tests.manifests.rendering import called

_DRIVER, _CLASS = "gpu.mpsd.io", "mps.mpsd.io"
_JOURNAL = Path("/run/mpsd/agent/claims.json")
_CLAIMS = {"dra": {"enabled": True}}


def claim(name: str, gib: int, threads: int = 0, parameters: Object | None = None) -> Object:
    amounts = {"memory": f"{gib}Gi"} | ({"threads": str(threads)} if threads else {})
    request = {
        "name": "gpu",
        "exactly": {"deviceClassName": _CLASS, "capacity": {"requests": amounts}},
    }
    config = (
        [{"requests": ["gpu"], "opaque": {"driver": _DRIVER, "parameters": parameters}}]
        if parameters
        else []
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request], **({"config": config} if config else {})}},
    }


def pod_with(
    pods: Pods, name: str, claim: str, *actions: str, before: str = "", **spec: Any
) -> Object:
    """before: what its shell does first."""
    main = pods.by_shell(0, before, *actions) if before else pods.asks(0, *actions)
    main |= {"resources": {"claims": [{"name": "gpu"}]}}
    return share(name, main, resourceClaims=[{"name": "gpu", "resourceClaimName": claim}], **spec)


@dataclass(frozen=True, slots=True)
class Claims:
    """cdi: where the container runtime of the node looks."""

    mpsd: Installation
    pods: Pods
    cdi: Path

    def create(
        self, name: str, gib: int, threads: int = 0, parameters: Object | None = None
    ) -> None:
        self.pods.create(claim(name, gib, threads, parameters))

    def start(
        self, name: str, gib: int, *actions: str, threads: int = 0, **spec: Any
    ) -> list[Object]:
        """What the program said once it holds its context."""
        self.create(name, gib, threads)
        self.pods.create(pod_with(self.pods, name, name, *actions, "hold", **spec))
        return self.pods.wait_until_holding(name)

    def end(self, *names: str) -> None:
        self.pods.delete("--ignore-not-found", *names)
        self.pods.until_gone(*names)
        claims = ("resourceclaims", "-n", self.pods.namespace, "--ignore-not-found", *names)
        self.mpsd.cluster.do("delete", "--wait=false", *claims)
        # Kubernetes' controller lets go of each, and may hear late of it after an API server that
        # was killed.
        eventually(
            lambda: not self.mpsd.cluster.do("get", *claims).out,
            f"claims {names} gone",
            within_s=180.0,
        )

    def files(self) -> set[str]:
        start, end = f"{_DRIVER}-claim-", ".json"
        return {path.name[len(start) : -len(end)] for path in self.cdi.glob(f"{start}*{end}")}

    def journal(self) -> dict[str, dict[str, int]]:
        """MiB of each GPU by the uid of each claim, as the agent of this machine has written it
        down."""
        found = json.loads(_JOURNAL.read_text())["claims"] if _JOURNAL.exists() else []
        return {
            one["uid"]: {each["device"]: one["memory_mib"] for each in one["devices"]}
            for one in found
        }

    def allocated(self) -> dict[str, dict[str, int]]:
        """MiB of each GPU by the uid of each claim, as the scheduler has allocated them."""
        found: dict[str, dict[str, int]] = {}
        for claim in self.mpsd.cluster.get("resourceclaims", "-n", self.pods.namespace)["items"]:
            devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
            for result in devices.get("results", ()):
                memory = (whole(result["consumedCapacity"]["memory"]) or 0) // 1024**2
                found.setdefault(claim["metadata"]["uid"], {})[result["device"]] = memory
        return found

    def uid(self, name: str) -> str:
        return self.mpsd.cluster.get("resourceclaim", name, "-n", self.pods.namespace)["metadata"][
            "uid"
        ]

    def health(self, name: str) -> set[tuple[str, str]]:
        """Of each GPU that this pod's status names, by its CDI device."""
        resources = self.pods.status(name).get("allocatedResourcesStatus", ())
        return {
            (one["resourceID"], one["health"])
            for each in resources
            for one in each.get("resources", ())
        }

    def until_in_fault(self, name: str) -> None:
        """Tainted, and named in the status of this pod, whose claim has its name."""
        tainted, sick = set[str](), set[str]()

        def look() -> bool:
            found = [
                one
                for one in devices(self.mpsd.cluster)
                for taint in one.get("taints", ())
                if taint["value"] == "fault"
            ]
            tainted.update(one["name"] for one in found)
            sick.update(device for device, health in self.health(name) if health == "Unhealthy")
            return bool(tainted and sick)

        eventually(look, f"the fault is seen: {tainted}, {sick}", within_s=60.0)
        assert sick == {f"{_DRIVER}/claim={self.uid(name)}-{device}" for device in tainted}
        eventually(
            lambda: not any("taints" in one for one in devices(self.mpsd.cluster)),
            "it is healed",
            within_s=60.0,
        )

    def assert_greed_is_ended(self) -> None:
        self.create("greedy", 2)
        actions = ("alloc=12000", "hold")
        self.pods.create(pod_with(self.pods, "greedy", "greedy", *actions, before=LIFTED))
        assert self.pods.exit_code("greedy") == BY_MPSD
        assert self.pods.event("greedy", "GPUMemoryExceeded")
        self.end("greedy")

    def assert_a_fault_heals(self) -> None:
        self.create("faulty", 4)
        actions = ("alloc=100", "fault", "linger")
        self.pods.create(pod_with(self.pods, "faulty", "faulty", *actions))
        self.until_in_fault("faulty")
        self.start("next", 20, "alloc=100")
        self.end("faulty", "next")

    def until_nothing_is_left(self) -> None:
        eventually(
            lambda: not self.files() and not self.grants(), "nothing of claims", within_s=60.0
        )

    def grants(self) -> list[Object]:
        return self.mpsd.told().get("grants", [])


def most_of_one_gpu(held: dict[str, dict[str, int]]) -> int:
    """MiB."""
    sums: Counter[str] = Counter()
    for parts in held.values():
        sums.update(parts)
    return max(sums.values(), default=0)


def slices(cluster: Cluster) -> list[Object]:
    found = cluster.get("resourceslices")["items"]
    return [one for one in found if one["spec"]["driver"] == _DRIVER]


def devices(cluster: Cluster) -> list[Object]:
    return [device for one in slices(cluster) for device in one["spec"].get("devices", ())]


@contextmanager
def claims_instead_of_plugins(mpsd: Installation, pods: Pods, cdi: Path) -> Iterator[None]:
    """With dra.enabled on top of the installation. cdi: where the container runtime looks."""
    cluster, gpus = mpsd.cluster, len(mpsd.status()["gpus"])
    things = mpsd.objects(_CLAIMS)
    (agent,) = (thing for thing in things if called(thing) == f"DaemonSet {AGENT}")
    (volume,) = (
        one for one in agent["spec"]["template"]["spec"]["volumes"] if one["name"] == "cdi"
    )
    volume["hostPath"]["path"] = str(cdi)
    cluster.apply_all(things)
    try:
        eventually(
            lambda: len(devices(cluster)) == gpus, "the GPUs in a ResourceSlice", within_s=120.0
        )
        eventually(lambda: mpsd.is_ready("agent"), "the agent serves claims", within_s=60.0)
        yield
    finally:  # kubelet ends a claim through its driver alone
        cluster.do("delete", "pods", "-n", pods.namespace, "--all")
        mpsd.apply_without(_CLAIMS)
        mpsd.wait_until_offered()
    eventually(lambda: not slices(cluster), "the ResourceSlice gone with the driver", within_s=90.0)


@contextmanager
def policy_with(
    cluster: Cluster, was: str, now: str, workload: str, is_in_force: Callable[[bool], object]
) -> Iterator[None]:
    """workload: what is started again, so that it reads it at once. is_in_force: whether it goes
    by the new policy (True), or by the old one again."""
    name = ("configmap", "mpsd-limits", "-n", SYSTEM)
    before: str = cluster.get(*name)["data"]["policy.yaml"]

    def put(policy: str, *, new: bool) -> None:
        cluster.do(
            "patch", *name, "--type=merge", "-p", json.dumps({"data": {"policy.yaml": policy}})
        )
        cluster.do("rollout", "restart", workload, "-n", SYSTEM)
        cluster.do("rollout", "status", workload, "-n", SYSTEM, "--timeout=90s")
        eventually(lambda: is_in_force(new), "the policy in force", within_s=90.0)

    after = before.replace(was, now)
    assert after != before
    put(after, new=True)
    try:
        yield
    finally:
        put(before, new=False)


@contextmanager
def claims_for_requests(cluster: Cluster, pods: Pods) -> Iterator[None]:

    def gets_claim() -> bool:
        create = ("create", "--dry-run=server", "-o", "json", "-n", pods.namespace, "-f", "-")
        made = json.loads(cluster.do(*create, given=share("asks", pods.asks(1, "hold"))).out)
        return MEMORY not in json.dumps(made["spec"])

    def is_in_force(new: bool) -> bool:  # a replica on its way out may still be asked
        return all(gets_claim() is new for _try in range(6))

    words = ("claims_for_requests: false", "claims_for_requests: true")
    with policy_with(cluster, *words, "deployment/mpsd-webhook", is_in_force):
        yield
