"""Which devices each container of the simulated kubelet holds, and what it gets for them, kept in a file.

One rule: what is here was answered by a plugin; kubelet gives it to a container again and again without asking.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpsd.kubelet.rules.messages import Answer, DeviceNode, Mount

Order = Callable[[Iterable[str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Holding:
    """What one container holds of one resource."""

    ids: tuple[str, ...]
    answer: Answer


class Holdings:
    """By pod uid, container and resource. file: kubelet's checkpoint, in a format of our own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._held: dict[str, dict[str, dict[str, Holding]]] = {}

    def of(self, uid: str, container: str) -> dict[str, Holding]:
        """By resource."""
        return self._held.get(uid, {}).get(container, {})

    def add(self, uid: str, container: str, resource: str, holding: Holding) -> None:
        self._held.setdefault(uid, {}).setdefault(container, {})[resource] = holding

    def keep_only(self, uids: Iterable[str]) -> bool:
        """Forgets every other pod; whether there was one."""
        kept = {uid: self._held[uid] for uid in uids if uid in self._held}
        shorter = len(kept) < len(self._held)
        self._held = kept
        return shorter

    def in_use(self) -> dict[str, set[str]]:
        """By resource."""
        used: dict[str, set[str]] = {}
        for containers in self._held.values():
            for resources in containers.values():
                for resource, holding in resources.items():
                    used.setdefault(resource, set()).update(holding.ids)
        return used

    def save(self, resources: Iterable[str]) -> None:
        """resources: those that plugins have registered."""
        made = self._file.with_name(f"{self._file.name}.new")
        held = {
            uid: {name: {each: asdict(holding) for each, holding in of.items()} for name, of in containers.items()}
            for uid, containers in self._held.items()
        }
        made.write_text(json.dumps({"held": held, "resources": sorted(resources)}))
        made.rename(self._file)

    def load(self) -> set[str]:
        """Reads the file, where there is one; the resources that had been registered."""
        if not self._file.exists():
            return set()
        read = json.loads(self._file.read_text())
        self._held = {
            uid: {name: {each: _holding(holding) for each, holding in of.items()} for name, of in containers.items()}
            for uid, containers in read["held"].items()
        }
        return set(read["resources"])


def _holding(read: Any) -> Holding:
    given = read["answer"]
    answer = Answer(
        environment=given["environment"],
        mounts=tuple(Mount(**mount) for mount in given["mounts"]),
        devices=tuple(DeviceNode(**node) for node in given["devices"]),
        annotations=given["annotations"],
        cdi=tuple(given["cdi"]),
    )
    return Holding(tuple(read["ids"]), answer)


def merged(holdings: dict[str, Holding], order: Order) -> Answer:
    """What a container gets for all that it holds; of two that say differently the first wins, in kubelet's any order.

    Source: deviceRunContainerOptions in kubelet's pod_devices.go.
    """
    answer = Answer()
    for resource in order(holdings):
        later = holdings[resource].answer
        answer = Answer(
            environment={**later.environment, **answer.environment},
            mounts=(*answer.mounts, *(mount for mount in later.mounts if mount.inside not in _insides(answer.mounts))),
            devices=(*answer.devices, *(node for node in later.devices if node.inside not in _insides(answer.devices))),
            annotations={**later.annotations, **answer.annotations},
            cdi=(*answer.cdi, *(name for name in later.cdi if name not in answer.cdi)),
        )
    return answer


def _insides(places: Iterable[Mount | DeviceNode]) -> set[str]:
    return {place.inside for place in places}
