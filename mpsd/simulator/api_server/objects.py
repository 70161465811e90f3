"""What can be done to the objects of the simulated API server: create, update, delete, bind, evict.

Everything that comes from outside (a client, a kubelet, a controller of ours) changes objects here
and nowhere else, so that versions, conflicts and deletions are the same for all.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from mpsd.simulator.api_server import kinds as refusals
from mpsd.simulator.api_server.bodies import check, new_object, stamp, typed
from mpsd.simulator.api_server.kinds import (
    BUDGETS,
    CRDS,
    NAMESPACES,
    PODS,
    Cause,
    Kinds,
    Object,
    ObjectKind,
    expired,
    labels_of,
    matches,
    unknown_keywords,
)

# -- every object, and what became of each
# A stored object is never changed, only replaced, and every replacement counts the one
# resourceVersion up.

HISTORY = 10_000  # changes that a watch may go back


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    group: str
    plural: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Stored:
    """One change. before, now: None where the object was not there before, or is gone."""

    version: int
    key: ObjectKey
    before: Object | None
    now: Object | None


class Store:
    def __init__(self, history: int = HISTORY) -> None:
        self._objects: dict[ObjectKey, Object] = {}
        self._history: deque[Stored] = deque(maxlen=history)
        self._forgotten = 0  # the version up to which watches are not told any more
        self._waiting: set[asyncio.Event] = set()
        self.version = 1

    def get(self, key: ObjectKey) -> Object | None:
        return self._objects.get(key)

    def all(self, kind: ObjectKind, namespace: str = "") -> list[tuple[ObjectKey, Object]]:
        """In the order of namespace and name. namespace: empty for all."""
        found = [
            (key, thing) for key, thing in self._objects.items() if _is_of(key, kind, namespace)
        ]
        return sorted(found, key=lambda pair: pair[0])

    def all_at(
        self, version: int, kind: ObjectKind, namespace: str = ""
    ) -> list[tuple[ObjectKey, Object]]:
        """The same as it was at this version. Refused where that is no longer known."""
        if self._history and version < self._history[0].version - 1:
            raise expired(f"{version} ({self._history[0].version - 1})")
        found = dict(self.all(kind, namespace))
        for change in reversed(self._history):
            if change.version <= version:
                break
            if not _is_of(change.key, kind, namespace):
                continue
            if change.before is None:
                del found[change.key]
            else:
                found[change.key] = change.before
        return sorted(found.items(), key=lambda pair: pair[0])

    def everything(self) -> list[tuple[ObjectKey, Object]]:
        return list(self._objects.items())

    def put(self, key: ObjectKey, thing: Object) -> Object:
        """The object as it is stored; the one that is there where it is the same."""
        before = self._objects.get(key)
        thing = copy.deepcopy(thing)
        if before is not None and _unversioned(before) == _unversioned(thing):
            return before
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = thing
        self._note(Stored(self.version, key, before, thing))
        return thing

    def remove(self, key: ObjectKey) -> Object:
        """The object as it was last, with the version of its removal."""
        self.version += 1
        before = self._objects.pop(key)
        last: Object = {
            **before,
            "metadata": {**before["metadata"], "resourceVersion": str(self.version)},
        }
        self._note(Stored(self.version, key, before, None))
        return last

    def since(self, version: int) -> Iterator[Stored]:
        """The changes after this version. Refused where they are no longer all known."""
        if version < self.oldest:
            raise expired(f"{version} ({self.oldest})")
        return (change for change in list(self._history) if change.version > version)

    @property
    def oldest(self) -> int:
        """The oldest version that a watch may start from."""
        return max(self._forgotten, self._history[0].version - 1 if self._history else self.version)

    def forget(self) -> None:
        """Tells watches no change of before, as a server that has started anew; it can still list
        what was."""
        self._forgotten = self.version

    async def changed(self, version: int) -> None:
        """Returns once there is a change after this version."""
        if self.version > version:
            return
        waiting = asyncio.Event()
        self._waiting.add(waiting)
        try:
            await waiting.wait()
        finally:
            self._waiting.discard(waiting)

    def _note(self, change: Stored) -> None:
        self._history.append(change)
        for waiting in self._waiting:
            waiting.set()


def _is_of(key: ObjectKey, kind: ObjectKind, namespace: str) -> bool:
    """namespace: empty for all."""
    return (key.group, key.plural) == (kind.group, kind.plural) and namespace in ("", key.namespace)


def _unversioned(thing: Object) -> Any:
    metadata = {key: value for key, value in thing["metadata"].items() if key != "resourceVersion"}
    return {**thing, "metadata": metadata}


_ENDED = frozenset({"Succeeded", "Failed"})
# What a client's object says of these never counts.
_OURS = (
    "uid",
    "creationTimestamp",
    "namespace",
    "name",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


class Objects:
    def __init__(self, store: Store, kinds: Kinds) -> None:
        self.store = store
        self.kinds = kinds

    def key(self, kind: ObjectKind, namespace: str, name: str) -> ObjectKey:
        return ObjectKey(kind.group, kind.plural, namespace if kind.namespaced else "", name)

    def found(self, kind: ObjectKind, namespace: str, name: str) -> Object:
        thing = self.store.get(self.key(kind, namespace, name))
        if thing is None:
            raise refusals.not_found(kind.plural, name)
        return thing

    # -- create

    def new(self, kind: ObjectKind, version: str, namespace: str, body: Object) -> Object:
        """What `add` may store; admission comes between the two."""
        if kind.namespaced:
            self._check_namespace(namespace)
        return new_object(kind, version, namespace, body)

    def add(self, kind: ObjectKind, thing: Object) -> Object:
        check(kind, thing)
        metadata = thing["metadata"]
        key = self.key(kind, metadata.get("namespace", ""), metadata["name"])
        if self.store.get(key) is not None:
            raise refusals.already_exists(kind.plural, key.name)
        if kind is CRDS:
            self._define(thing)
        return self.store.put(key, thing)

    def create(self, kind: ObjectKind, namespace: str, body: Object) -> Object:
        """As a controller creates, without admission."""
        return self.add(kind, self.new(kind, kind.versions[0], namespace, body))

    def _check_namespace(self, namespace: str) -> None:
        found = self.store.get(self.key(NAMESPACES, "", namespace))
        if found is None:
            raise refusals.not_found("namespaces", namespace)
        if found["metadata"].get("deletionTimestamp"):
            why = (
                f"unable to create new content in namespace {namespace} because it is being"
                " terminated"
            )
            raise refusals.forbidden(why)

    def _define(self, definition: Object) -> None:
        for version in definition["spec"]["versions"]:
            schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
            unknown = unknown_keywords(schema)
            if unknown:
                causes = [
                    Cause(f"spec.versions.schema{path}", "is not simulated") for path in unknown
                ]
                raise refusals.invalid(
                    "CustomResourceDefinition", definition["metadata"]["name"], causes
                )
        self.kinds.define(definition)
        done = [
            {
                "type": "Established",
                "status": "True",
                "lastTransitionTime": stamp(),
                "reason": "Simulated",
            }
        ]
        definition["status"] = {"conditions": done}

    # -- update

    def changed(
        self, kind: ObjectKind, version: str, before: Object, body: Object, subresource: str
    ) -> Object:
        """What `replace` may store where a client wants `body` instead of `before`."""
        name = before["metadata"]["name"]
        sent = body.get("metadata") or {}
        if sent.get("name", name) != name:
            raise refusals.bad_request("the name of the object does not match the name on the URL")
        if sent.get("resourceVersion") not in (None, "", before["metadata"]["resourceVersion"]):
            raise refusals.modified(kind.plural, name)
        body = typed(kind, version, body)
        ours: tuple[str, ...] = _OURS
        if subresource == "status":
            thing = copy.deepcopy(before) | {"status": body.get("status") or {}}
            sent = before["metadata"] if kind.custom else sent
            ours = (*_OURS, "ownerReferences") if kind is PODS else _OURS
        else:
            thing = body
            if kind.has_status:
                thing.pop("status", None)
                thing |= {"status": copy.deepcopy(before["status"])} if "status" in before else {}
        kept = {field: before["metadata"][field] for field in ours if field in before["metadata"]}
        thing["metadata"] = {**_without(sent, *ours), **kept}
        thing["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        if kind.counts and _without(thing, "metadata", "status") != _without(
            before, "metadata", "status"
        ):
            thing["metadata"]["generation"] = before["metadata"]["generation"] + 1
        return thing

    def replace(self, kind: ObjectKind, before: Object, thing: Object) -> Object:
        """Stores it, unless something else was stored since `before`."""
        check(kind, thing)
        metadata = thing["metadata"]
        key = self.key(kind, metadata.get("namespace", ""), metadata["name"])
        if self.store.get(key) is not before:
            raise refusals.modified(kind.plural, key.name)
        if kind is CRDS:
            self._define(thing)
        stored = self.store.put(key, thing)
        waits = kind is NAMESPACES or metadata.get("deletionGracePeriodSeconds", 0) > 0
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and not waits:
            return self._remove(kind, key)
        return stored

    def change(self, key: ObjectKey, edit: Callable[[Object], None]) -> None:
        """As a controller changes: whatever it likes, of what is there now."""
        before = self.store.get(key)
        if before is None:
            return
        thing = copy.deepcopy(before)
        edit(thing)
        self.store.put(key, thing)

    # -- delete

    def delete(self, kind: ObjectKind, namespace: str, name: str, options: Object) -> Object:
        """The object as it is after that, still there where something has to end first."""
        thing = self.found(kind, namespace, name)
        key = self.key(kind, namespace, name)
        metadata = thing["metadata"]
        for field, wanted in (options.get("preconditions") or {}).items():
            if wanted and metadata.get(field) != wanted:
                what = {"uid": "UID", "resourceVersion": "ResourceVersion"}.get(field, field)
                why = (
                    f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta:"
                    f" {metadata[field]}"
                )
                raise refusals.conflict(kind.plural, name, why)
        grace_s = _grace_s(kind, thing, options)
        if kind is NAMESPACES or metadata.get("finalizers") or grace_s > 0:
            return self._begin_end(kind, key, thing, grace_s)
        return self._remove(kind, key)

    def _begin_end(self, kind: ObjectKind, key: ObjectKey, thing: Object, grace_s: int) -> Object:
        """Marks an object that somebody else (a kubelet, the owner of a finalizer) removes once it
        has ended."""
        metadata = thing["metadata"]
        if (
            metadata.get("deletionTimestamp")
            and metadata.get("deletionGracePeriodSeconds", 0) <= grace_s
        ):
            return thing
        at = (datetime.now(UTC) + timedelta(seconds=grace_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        ending = {**metadata, "deletionTimestamp": at, "deletionGracePeriodSeconds": grace_s}
        phase = (
            {"status": {**thing["status"], "phase": "Terminating"}} if kind is NAMESPACES else {}
        )
        return self.store.put(key, {**thing, "metadata": ending, **phase})

    def _remove(self, kind: ObjectKind, key: ObjectKey) -> Object:
        last = self.store.remove(key)
        if kind is CRDS:
            dropped = self.kinds.named(_api_of(last), last["spec"]["names"]["kind"])
            for other, _thing in self.store.all(dropped) if dropped else ():
                self.store.remove(other)
            self.kinds.drop(last)
        return last

    def remove(self, kind: ObjectKind, key: ObjectKey) -> None:
        """At once, as a controller that knows that nothing is left of it."""
        if self.store.get(key) is not None:
            self._remove(kind, key)

    # -- what only pods have

    def bind(self, namespace: str, name: str, binding: Object) -> None:
        """Gives a pod its node, and the annotations of the binding in the same step."""
        pod = self.found(PODS, namespace, name)
        metadata = pod["metadata"]
        sent = binding.get("metadata") or {}
        if sent.get("uid") not in (None, "", metadata["uid"]):
            raise refusals.conflict(
                "pods/binding", name, f"the UID in the precondition is {sent['uid']}"
            )
        node = (binding.get("target") or {}).get("name")
        if not node:
            raise refusals.invalid(
                "Binding", name, [Cause("target.name", "Required value", "FieldValueRequired")]
            )
        if pod["spec"].get("nodeName"):
            raise refusals.conflict(
                "pods/binding",
                name,
                f"pod {name} is already assigned to node {pod['spec']['nodeName']!r}",
            )
        if metadata.get("deletionTimestamp"):
            raise refusals.conflict(
                "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host"
            )

        def edit(thing: Object) -> None:
            thing["spec"]["nodeName"] = node
            if sent.get("annotations"):
                thing["metadata"]["annotations"] = {
                    **(metadata.get("annotations") or {}),
                    **sent["annotations"],
                }
            set_condition(thing, "PodScheduled", "True")

        self.change(self.key(PODS, namespace, name), edit)

    def evict(self, namespace: str, name: str, eviction: Object) -> None:
        """Deletes a pod unless a disruption budget forbids it. Only `maxUnavailable: 0` ever
        forbids here."""
        pod = self.found(PODS, namespace, name)
        for _key, budget in self.store.all(BUDGETS, namespace):
            spec = budget.get("spec") or {}
            selected = matches(spec.get("selector") or {}, labels_of(pod))
            if (
                selected
                and spec.get("maxUnavailable") == 0
                and pod["status"].get("phase") == "Running"
            ):
                raise refusals.too_many_requests(
                    "Cannot evict pod as it would violate the pod's disruption budget."
                )
        self.delete(PODS, namespace, name, eviction.get("deleteOptions") or {})


def set_condition(
    thing: Object, kind: str, status: str, reason: str = "", message: str = ""
) -> None:
    """Adds or changes a condition of an object that may be changed."""
    conditions = thing.setdefault("status", {}).setdefault("conditions", [])
    wanted = {"type": kind, "status": status} | (
        {"reason": reason, "message": message} if reason else {}
    )
    before = next((one for one in conditions if one["type"] == kind), None)
    if before is None:
        conditions.append(wanted | {"lastTransitionTime": stamp()})
    elif {key: before.get(key) for key in wanted} != wanted:
        since = before["lastTransitionTime"] if before["status"] == status else stamp()
        before |= wanted | {"lastTransitionTime": since}


def _grace_s(kind: ObjectKind, thing: Object, options: Object) -> int:
    """How long a pod may take to end: none where no kubelet has it, or it has ended."""
    if (
        kind is not PODS
        or not thing["spec"].get("nodeName")
        or thing["status"].get("phase") in _ENDED
    ):
        return 0
    asked = options.get("gracePeriodSeconds")
    return int(thing["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)


def _api_of(definition: Object) -> str:
    return f"{definition['spec']['group']}/{definition['spec']['versions'][0]['name']}"


def _without(thing: Object, *fields: str) -> dict[str, Any]:
    return {key: value for key, value in thing.items() if key not in fields}
