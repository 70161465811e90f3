"""What `mpsd doctor` saw of a node, without a judgement."""

from collections.abc import Mapping
from dataclasses import dataclass

from mpsd.containers.engines.configuration import Engine
from mpsd.model.domain import State
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.node_report import NodeReport
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy
from mpsd.model.seen_gpus import SeenGpu
from mpsd.operations.doctor.rules.checks import Fact, Unknown


@dataclass(frozen=True, slots=True)
class GpuSeen:
    ordinal: int
    #: Empty where it does not answer.
    uuid: str
    name: str
    #: Why it does not answer; empty where it does.
    lost: str
    seen: Fact[SeenGpu]
    #: NVML's number.
    compute_mode: Fact[int]

    def __str__(self) -> str:
        if not self.name:
            return f"gpu{self.ordinal}"
        return f"gpu{self.ordinal} ({self.name})"


@dataclass(frozen=True, slots=True)
class RunDirectorySeen:
    path: str
    #: A uid, as `wanted_owner`.
    owner: int
    #: Whoever runs mpsd there, or would; the owner where it does not exist.
    wanted_owner: int
    #: Why it takes no files; empty where it does.
    unwritable: str


@dataclass(frozen=True, slots=True)
class DomainSeen:
    """A domain's record of this boot, and whether the daemon that it names lives."""

    record: DomainRecord
    daemon_lives: bool

    def is_in(self, state: State) -> bool:
        return self.record.state is state and self.daemon_lives


@dataclass(frozen=True, slots=True)
class DaemonSeen:
    """A process `nvidia-cuda-mps-control` that serves."""

    pid: int
    #: Its pipe directory; empty where that is not known.
    pipe: str
    #: Whether that has a socket for commands.
    pipe_is_there: bool = True


class AgentSilent(Unknown):
    """No agent answers. why: with the remedy."""


@dataclass(frozen=True, slots=True)
class LauncherSeen:
    """The program that engines start containers with."""

    #: Files that it starts and that do not exist.
    missing: tuple[str, ...]
    #: In its order.
    next_runtimes: tuple[str, ...]
    #: The first of them that exists; empty where none does.
    next_found: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    limits_folder: str
    #: Every fault in both limits files.
    limits_faults: Fact[tuple[str, ...]]
    policy: Fact[Policy]
    gpu_facts: Fact[GpuFacts]
    #: Why NVML does not answer; empty while it does.
    nvml: Fact[str]
    driver: Fact[str]
    gpus: Fact[tuple[GpuSeen, ...]]
    control_program: Fact[bool]
    run_directory: Fact[RunDirectorySeen]
    #: The pid of `mpsd up` or `mpsd control`; None where neither runs.
    holder: Fact[int | None]
    domains: Fact[tuple[DomainSeen, ...]]
    #: Why records of domains cannot be read.
    unreadable: Fact[tuple[str, ...]]
    daemons: Fact[tuple[DaemonSeen, ...]]
    agent: Fact[NodeReport]
    #: Whether /dev/nvidia-uvm is there.
    uvm: Fact[bool]
    #: Whether /tmp/nvidia-mps is there.
    default_pipe: Fact[bool]
    #: The label's type of each folder of clients, with the level where one container has it; none
    #: where SELinux does not enforce.
    selinux: Fact[Mapping[str, str]]
    #: The configuration of each; None where there is no such file.
    engines: Fact[Mapping[Engine, Fact[str | None]]]
    #: None where there is none.
    launcher: Fact[LauncherSeen | None]
    #: Whether nvidia-container-runtime is installed.
    toolkit: Fact[bool]
    #: The device nodes of GPUs that have no link in /dev/char.
    unlinked: Fact[tuple[str, ...]]
    #: The folder in which device plugins register, where it is missing; empty where it is there.
    kubelet: Fact[str]
