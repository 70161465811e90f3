"""Which devices a resource claim gets on a node of the simulated cluster, and how much of each, as
kube-scheduler does.

The first devices that fit are taken, in the order of the slices. tests/kube_contract compares it
with the real one. What is left out is refused: alternatives (`firstAvailable`), admin access,
counters that devices share, `validValues`, and selectors beyond the driver,
`allowMultipleAllocations` and attributes; `allNodes` is not offered. Sources:
k8s.io/dynamic-resource-allocation, structured; KEP-5075 (consumable capacity), KEP-5055 (taints).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from mpsd.model.quantity import whole
from mpsd.simulator.api_server.kinds import Object, tolerates

_TERM = re.compile(
    r"""device\.(?:driver\s*==\s*(?P<quote>['"])(?P<driver>[^'"]+)(?P=quote)"""
    r"""|(?P<shared>allowMultipleAllocations)"""
    r"""|attributes\[['"](?P<domain>[^'"]+)['"]\]"""
    r"""\.(?P<name>\w+)\s*==\s*['"](?P<value>[^'"]*)['"])"""
)
_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti")


class CannotAllocate(Exception):
    """Why a claim gets nothing here; another node, or a later moment, may have room."""


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device of a slice that counts."""

    driver: str
    pool: str
    thing: Object

    @property
    def key(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.thing["name"]

    @property
    def is_shared(self) -> bool:
        return bool(self.thing.get("allowMultipleAllocations"))

    def attribute(self, name: str) -> Any:
        """By its whole name; that of the driver is the domain of names without one. None where it
        has none."""
        domain, _, short = name.rpartition("/")
        attributes = self.thing.get("attributes") or {}
        found = attributes.get(name) or (
            attributes.get(short) if domain in ("", self.driver) else None
        )
        return next(iter(found.values())) if found else None


@dataclass(slots=True)
class ConsumedCapacity:
    """What claims have taken: whole devices, and amounts of shared ones."""

    whole: set[tuple[str, str, str]] = field(default_factory=set)
    amounts: dict[tuple[str, str, str], dict[str, int]] = field(default_factory=dict)

    def add(self, result: Object, times: int = 1) -> None:
        key = (result["driver"], result["pool"], result["device"])
        if not result.get("shareID"):
            (self.whole.add if times > 0 else self.whole.discard)(key)
        of = self.amounts.setdefault(key, {})
        for name, amount in (result.get("consumedCapacity") or {}).items():
            of[name] = of.get(name, 0) + times * _number(amount)


def results_of(claim: Object) -> list[Object]:
    """What the claim holds; empty while it is not allocated."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def offered(slices: Iterable[Object], node: str) -> Iterator[OfferedDevice]:
    """The devices on a node: of each pool those of its newest generation, once all of its slices
    are there."""
    pools: dict[tuple[str, str], list[Object]] = {}
    for spec in (one["spec"] for one in slices):
        pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    for (driver, pool), specs in pools.items():
        newest = max(spec["pool"]["generation"] for spec in specs)
        current = [spec for spec in specs if spec["pool"]["generation"] == newest]
        if len(current) == current[0]["pool"]["resourceSliceCount"]:
            here = (spec for spec in current if spec.get("nodeName") == node)
            yield from (
                OfferedDevice(driver, pool, thing)
                for spec in here
                for thing in spec.get("devices") or ()
            )


def allocated(
    claim: Object,
    node: str,
    devices: Sequence[OfferedDevice],
    classes: Mapping[str, Object],
    used: ConsumedCapacity,
) -> Object:
    """What the scheduler writes to the claim's `status.allocation`. classes: by name.
    CannotAllocate."""
    spec = claim["spec"].get("devices") or {}
    requests = [_Request(each, classes) for each in spec.get("requests") or ()]
    wanted = [request for request in requests for _ in range(request.count)]
    search = _Search(devices, spec.get("constraints") or (), used)
    if not search.find(wanted):
        raise CannotAllocate("cannot allocate all claims")
    config = [
        {"source": "FromClass", "requests": [request.name], **each}
        for request in requests
        for each in request.config
    ]
    config += [{"source": "FromClaim", **each} for each in spec.get("config") or ()]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    held = {"results": search.results, **({"config": config} if config else {})}
    return {"devices": held, "nodeSelector": {"nodeSelectorTerms": [term]}}


class _Request:
    def __init__(self, thing: Object, classes: Mapping[str, Object]) -> None:
        exactly = thing.get("exactly")
        if (
            not exactly
            or exactly.get("adminAccess")
            or exactly.get("allocationMode", "ExactCount") != "ExactCount"
        ):
            raise CannotAllocate(f"request {thing.get('name')} is of a kind that is not simulated")
        chosen = classes.get(exactly["deviceClassName"])
        if chosen is None:
            raise CannotAllocate(f"device class {exactly['deviceClassName']} does not exist")
        spec = chosen.get("spec") or {}
        self.name, self.count = thing["name"], int(exactly.get("count", 1))
        self.capacity: Mapping[str, Any] = (exactly.get("capacity") or {}).get("requests") or {}
        self.tolerations: list[Object] = exactly.get("tolerations") or []
        self.config: list[Object] = spec.get("config") or []
        self._selectors = [*(spec.get("selectors") or ()), *(exactly.get("selectors") or ())]

    def selects(self, device: OfferedDevice) -> bool:
        return all(
            _holds(term, device)
            for each in self._selectors
            for term in each["cel"]["expression"].split("&&")
        )

    def tolerates(self, device: OfferedDevice) -> bool:
        effects = ("NoSchedule", "NoExecute")
        taints = [taint for taint in device.thing.get("taints") or () if taint["effect"] in effects]
        return all(any(tolerates(each, taint) for each in self.tolerations) for taint in taints)

    def consumed(self, device: OfferedDevice) -> dict[str, str] | None:
        """What it takes of each capacity of the device; None where the device cannot give that."""
        capacities = device.thing.get("capacity") or {}
        if not self.capacity.keys() <= capacities.keys():
            return None
        found = {name: _consumed(self.capacity.get(name), has) for name, has in capacities.items()}
        return (
            {name: amount for name, amount in found.items() if amount}
            if all(found.values())
            else None
        )


def _holds(term: str, device: OfferedDevice) -> bool:
    match = _TERM.fullmatch(term.strip())
    if match is None:
        raise CannotAllocate(f"the selector {term.strip()!r} is not simulated")
    if match["driver"]:
        return device.driver == match["driver"]
    return (
        device.is_shared
        if match["shared"]
        else device.attribute(f"{match['domain']}/{match['name']}") == match["value"]
    )


def _consumed(asked: Any, capacity: Object) -> str:
    """By the capacity's requestPolicy: its default where nothing is asked for, else rounded up to
    what it allows; empty where it allows nothing as large."""
    policy = capacity.get("requestPolicy") or {}
    default = policy.get("default", capacity["value"])
    if asked is None:
        return str(default)
    amount = _number(asked)
    if policy.get("validValues"):
        raise CannotAllocate("a requestPolicy with validValues is not simulated")
    ranged = policy.get("validRange") or {}
    if ranged:
        least = _number(ranged["min"])
        step = _number(ranged.get("step", 0))
        if amount <= least:
            return str(ranged["min"])
        rounded = least + -(-(amount - least) // step) * step if step else amount
        over = "max" in ranged and rounded > _number(ranged["max"]) and rounded != _number(default)
        return "" if over else _written(rounded) if step else str(asked)
    return str(asked)


def _number(amount: Any) -> int:
    found = whole(amount)
    if found is None:
        raise CannotAllocate(f"{amount!r} is no whole number")
    return found


def _written(amount: int) -> str:
    """As the API server writes a number with suffixes for bytes."""
    power = max((n for n in range(len(_SUFFIXES)) if amount and amount % 1024**n == 0), default=0)
    return f"{amount // 1024**power}{_SUFFIXES[power]}"


class _Search:
    """Depth first, as the scheduler looks. results: of the devices that were found."""

    def __init__(
        self,
        devices: Sequence[OfferedDevice],
        constraints: Iterable[Object],
        used: ConsumedCapacity,
    ) -> None:
        self._devices, self._constraints, self._used = devices, list(constraints), used
        self._chosen: list[tuple[_Request, OfferedDevice]] = []
        self.results: list[Object] = []

    def find(self, wanted: Sequence[_Request]) -> bool:
        if not wanted:
            return True
        request, *others = wanted
        for device in self._devices:
            result = None if (request, device) in self._chosen else self._result(request, device)
            if result is None:
                continue
            self._chosen.append((request, device))
            self.results.append(result)
            self._used.add(result)
            if self._keeps_constraints() and self.find(others):
                return True
            self._used.add(result, -1)
            self._chosen.pop()
            self.results.pop()
        return False

    def _result(self, request: _Request, device: OfferedDevice) -> Object | None:
        """None where the device cannot be given for the request."""
        if (
            device.key in self._used.whole
            or not request.selects(device)
            or not request.tolerates(device)
        ):
            return None
        consumed = request.consumed(device)
        taken = self._used.amounts.get(device.key, {})
        if consumed is None or (not device.is_shared and any(taken.values())):
            return None
        capacities = device.thing.get("capacity") or {}
        if any(
            taken.get(name, 0) + _number(n) > _number(capacities[name]["value"])
            for name, n in consumed.items()
        ):
            return None
        driver, pool, name = device.key
        result = {"request": request.name, "driver": driver, "pool": pool, "device": name}
        result |= {"tolerations": request.tolerations} if request.tolerations else {}
        return result | (
            {"consumedCapacity": consumed, "shareID": str(uuid4())} if device.is_shared else {}
        )

    def _keeps_constraints(self) -> bool:
        for constraint in self._constraints:
            named = constraint.get("requests") or ()
            name = constraint.get("matchAttribute") or constraint.get("distinctAttribute") or ""
            values = [
                device.attribute(name)
                for request, device in self._chosen
                if not named or request.name in named
            ]
            most = 1 if constraint.get("matchAttribute") else len(values)
            if None in values or (len(set(values)) != most if values else False):
                return False
        return True
