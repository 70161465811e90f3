"""Removes what has lost its reason in the simulated cluster: what belonged to an object that is gone, and the contents
of a namespace that ends.

One rule: an object goes when every owner that it names is gone, however it came to name them.
"""

from mpsd.simulator.api_server.api_kinds import NAMESPACES, NODES, PODS, Object
from mpsd.simulator.api_server.api_objects import Objects
from mpsd.simulator.api_server.api_store import Key


class Garbage:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def look(self) -> None:
        everything = self._objects.store.everything()
        uids = {thing["metadata"]["uid"] for _key, thing in everything}
        ending = {key.name for key, thing in everything if _is(key, NAMESPACES.plural) and _ends(thing)}
        nodes = {key.name for key, _thing in everything if _is(key, NODES.plural)}
        for key, thing in everything:
            owners = thing["metadata"].get("ownerReferences") or []
            orphaned = bool(owners) and not any(owner["uid"] in uids for owner in owners)
            if (orphaned or key.namespace in ending) and not _ends(thing):
                self._delete(key)
            elif _is(key, PODS.plural) and _ends(thing) and thing["spec"].get("nodeName") not in nodes:
                self._objects.remove(PODS, key)  # no kubelet will ever say that it has ended
        inhabited = {key.namespace for key, _thing in self._objects.store.everything()}
        for name in ending - inhabited:
            self._objects.remove(NAMESPACES, self._objects.key(NAMESPACES, "", name))

    def _delete(self, key: Key) -> None:
        kind = next(kind for kind in self._objects.kinds if (kind.group, kind.plural) == (key.group, key.plural))
        if self._objects.store.get(key) is not None:
            self._objects.delete(kind, key.namespace, key.name, {})


def _is(key: Key, plural: str) -> bool:
    return (key.group, key.plural) == ("", plural)


def _ends(thing: Object) -> bool:
    return bool(thing["metadata"].get("deletionTimestamp"))
