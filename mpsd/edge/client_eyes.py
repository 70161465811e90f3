"""Looks at the processes on the GPUs: who they are, and under which grant they run.

One rule: what a process was started with, and in which pod, is read once and kept for as long as that very process
lives. Beside a kubelet only the pod counts: whoever could choose a mark could hide behind another pod's grant.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mpsd.core.identity import ProcessIdentity
from mpsd.core.node_view import Client
from mpsd.edge import processes
from mpsd.edge.living import Living
from mpsd.edge.nvml import Nvml
from mpsd.edge.pod_processes import PodProcesses


@dataclass(frozen=True, slots=True)
class _Known:
    identity: ProcessIdentity
    mark: str | None
    command: str
    pod: str | None


class ClientEyes:
    """mark: the variable in whose value a process carries the id of its grant, through every child it starts.

    pods: None where no kubelet is served, and then nobody is in a pod.
    """

    def __init__(self, nvml: Nvml, mark: str, pods: PodProcesses | None = None) -> None:
        self._nvml = nvml
        self._mark = mark
        self._pods = pods
        self._known: dict[int, _Known] = {}
        self._living = Living()  # of those that are known

    def look(
        self,
        gpus: Iterable[str],
        servers: Container[int],
        grants: Container[str],
        holders: Mapping[int, str],
        pods: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[Client, ...]:
        """Every living process on these GPUs but MPS servers.

        holders: from a holder's pid to its grant. pods: from the uid in a pod's cgroup to its grant. NvmlFailed where
        NVML does not say.
        """
        for ended in self._living.ask():
            self._known.pop(ended, None)
        clients = []
        for uuid in gpus:
            for use in self._nvml.processes(uuid):
                known = None if use.pid in servers else self._who(use.pid)
                if known:
                    marked = known.mark if known.mark in grants else holders.get(use.pid)
                    grant = pods.get(known.pod or "") if self._pods else marked
                    clients.append(Client(known.identity, uuid, use.used_mib, use.on_mps, known.command, grant, known.pod))
        seen = {client.pid for client in clients}
        self._known = {pid: known for pid, known in self._known.items() if pid in seen}
        self._living.keep_only(seen)
        return tuple(clients)

    def _who(self, pid: int) -> _Known | None:
        known = self._known.get(pid)
        if known and pid in self._living:
            return known
        identity = processes.identity_of(pid)
        if identity is None:
            return None
        if known is None or known.identity != identity:
            environment = processes.environment_of(pid) or {}
            pod = self._pods.pod_of(pid) if self._pods else None
            known = _Known(identity, environment.get(self._mark), processes.command_of(pid), pod.uid if pod else None)
            if environment:  # empty in the middle of an exec: then it is read again at the next look
                self._known[pid] = known
                self._living.add(identity)
        return known
