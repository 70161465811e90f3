"""The simulated cluster behind the API: its objects, who may change them, and the controllers that do.

One rule: it knows nothing of HTTP; `api_server` is one way to it.
"""

import asyncio
from contextlib import suppress
from typing import Any

from mpsd.simulator.api_server.admission import Admission, Admitted, Attempt
from mpsd.simulator.api_server.api_daemon_sets import DaemonSets
from mpsd.simulator.api_server.api_garbage import Garbage
from mpsd.simulator.api_server.api_jobs import Jobs
from mpsd.simulator.api_server.api_kinds import NAMESPACES, PODS, Kind, Kinds, Object
from mpsd.simulator.api_server.api_objects import Objects
from mpsd.simulator.api_server.api_store import Store
from mpsd.simulator.api_server.patches import patched
from mpsd.simulator.api_server.refusals import Cause, Refused, invalid, modified
from mpsd.simulator.api_server.reviews import Reviews
from mpsd.simulator.api_server.scheduler import Scheduler

ADMIN, CONTROLLER = "simulated-admin", "system:serviceaccount:kube-system:simulated-controller"
_LOOK_S = 0.5  # between two looks of the controllers that no change asked for
_TRIES = 5  # of a change that loses a race while admission takes its time


class Cluster:
    def __init__(self, store: Store | None = None) -> None:
        self.kinds = Kinds()
        self.objects = Objects(store or Store(), self.kinds)
        self.store = self.objects.store
        self.reviews = Reviews(self.objects, self.kinds)
        self.logs: dict[tuple[str, str, bool], str] = {}  # by namespace, pod, and whether it is the one before
        self._admission = Admission(self.objects)
        self._controllers: asyncio.Task[None] | None = None  # None while they do not run
        for namespace in ("default", "kube-system"):
            with suppress(Refused):
                self.objects.create(NAMESPACES, "", {"metadata": {"name": namespace}})

    def start(self) -> None:
        self._controllers = asyncio.create_task(self._control())

    async def stop(self) -> None:
        if self._controllers:
            self._controllers.cancel()
            await asyncio.gather(self._controllers, return_exceptions=True)
        await self._admission.close()
        self._admission = Admission(self.objects)

    async def create(
        self, kind: Kind, version: str, namespace: str, body: Object, *, user: str = ADMIN, dry_run: bool = False
    ) -> Admitted:
        thing = self.objects.new(kind, version, namespace, body)
        admitted = await self._admission.admit(Attempt("CREATE", kind, version, thing, None, user, dry_run=dry_run))
        if not dry_run:
            admitted.thing = self.objects.add(kind, admitted.thing)
        return admitted

    async def update(self, kind: Kind, version: str, namespace: str, body: Object, path: tuple[str, str]) -> Admitted:
        """path: the name and the subresource that the request names."""
        return await self._change(kind, version, namespace, path, lambda _before: body)

    async def patch(
        self, kind: Kind, version: str, namespace: str, patch: Any, content_type: str, path: tuple[str, str]
    ) -> Admitted:
        def body(before: Object) -> Object:
            thing: Object = patched(content_type, before, patch, custom=kind.custom)
            metadata = before["metadata"]
            if thing["metadata"].get("uid") != metadata["uid"]:
                cause = Cause("metadata.uid", f'Invalid value: "{thing["metadata"].get("uid")}": field is immutable')
                raise invalid(kind.name, metadata["name"], [cause])
            return thing

        return await self._change(kind, version, namespace, path, body)

    async def _change(self, kind: Kind, version: str, namespace: str, path: tuple[str, str], body: Any) -> Admitted:
        """A change that names no version is tried again where another came between."""
        name, subresource = path
        for _try in range(_TRIES):
            before = self.objects.found(kind, namespace, name)
            thing = self.objects.changed(kind, version, before, body(before), subresource)
            attempt = Attempt("UPDATE", kind, version, thing, before, ADMIN, subresource)
            admitted = await self._admission.admit(attempt)
            if self.store.get(self.objects.key(kind, namespace, name)) is before:
                admitted.thing = self.objects.replace(kind, before, admitted.thing)
                return admitted
        raise modified(kind.plural, name)

    async def _create_pod(self, namespace: str, body: Object) -> Object:
        return (await self.create(PODS, "v1", namespace, body, user=CONTROLLER)).thing

    async def _control(self) -> None:
        """Lets every controller look, after each change and now and then."""
        jobs, daemon_sets = Jobs(self.objects, self._create_pod), DaemonSets(self.objects, self._create_pod)
        scheduler, garbage = Scheduler(self.objects), Garbage(self.objects)
        while True:
            version = self.store.version
            await jobs.look()
            await daemon_sets.look()
            scheduler.look()
            garbage.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self.store.changed(version)
