"""What `mpsd doctor` saw of a node: a frozen picture, without a judgement."""

from dataclasses import dataclass

from mpsd.containers.engines.change import Engine
from mpsd.model.node_status import NodeStatus
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy
from mpsd.operations.doctor.rules.checks import Fact


@dataclass(frozen=True, slots=True)
class LimitsSeen:
    """The limits files. wrong: every fault in both. capabilities: those that gpus.yaml lists."""

    folder: str
    wrong: tuple[str, ...]
    capabilities: Fact[tuple[str, ...]]
    policy: Fact[Policy]


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """A GPU. lost: why it does not answer; uuid and name are then empty. compute_mode: NVML's number."""

    ordinal: int
    uuid: str
    name: str
    lost: str
    capability: Fact[str]
    mig: Fact[bool]
    compute_mode: Fact[int]

    def __str__(self) -> str:
        return f"gpu{self.ordinal} ({self.name})" if self.name else f"gpu{self.ordinal}"


@dataclass(frozen=True, slots=True)
class RunDirectorySeen:
    """The run directory. wanted_owner: the uid of whoever runs mpsd there, or would.

    unwritable: why it takes no files; empty where it does. is_system: it is /run/mpsd. filesystem: its kind.
    """

    path: str
    is_there: bool  # False: the rest says nothing
    owner: int
    wanted_owner: int
    unwritable: str
    is_system: bool
    filesystem: Fact[str]


@dataclass(frozen=True, slots=True)
class DomainSeen:
    """A domain's record of this boot, and whether the daemon that it names lives."""

    record: DomainRecord
    daemon_lives: bool


@dataclass(frozen=True, slots=True)
class DaemonSeen:
    """A process `nvidia-cuda-mps-control` that serves.

    pipe: its pipe directory; empty where that is not known. pipe_is_there: whether that has a socket for commands.
    """

    pid: int
    command: str
    pipe: str
    pipe_is_there: bool = True


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """What the agent reports. status: None where no agent answers, and why_not then says so with the remedy."""

    status: NodeStatus | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """A container engine. text: its configuration; None where there is no such file."""

    engine: Engine
    file: str
    text: Fact[str | None]


@dataclass(frozen=True, slots=True)
class LauncherSeen:
    """The program that engines start containers with. missing: files that it starts and that do not exist.

    next_runtimes: in its order. next_found: the first of them that exists; empty where none does.
    """

    path: str
    is_there: bool  # False: the rest says nothing
    missing: Fact[tuple[str, ...]]
    next_runtimes: tuple[str, ...] = ()
    next_found: str = ""


@dataclass(frozen=True, slots=True)
class KubeletSeen:
    """Kubelet's root. device_plugins: whether the folder exists in which device plugins register."""

    directory: str
    device_plugins: bool


@dataclass(frozen=True, slots=True)
class SelinuxSeen:
    """types: by folder of the clients, its label's type, with the level where one container has it; empty for none."""

    enforcing: bool
    types: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Everything seen. nvml: why it does not answer; empty while it does. holder: the pid of `mpsd up` or `mpsd
    control`; None where neither runs.

    unreadable: of the records of domains, why they cannot be read. uvm: whether /dev/nvidia-uvm is there. default_pipe:
    whether /tmp/nvidia-mps is. toolkit: whether nvidia-container-runtime is installed. ours: the version of this
    program.
    """

    limits: Fact[LimitsSeen]
    nvml: Fact[str]
    driver: Fact[str]
    gpus: Fact[tuple[GpuSeen, ...]]
    control_program: Fact[bool]
    run_directory: Fact[RunDirectorySeen]
    holder: Fact[int | None]
    domains: Fact[tuple[DomainSeen, ...]]
    unreadable: Fact[tuple[str, ...]]
    daemons: Fact[tuple[DaemonSeen, ...]]
    agent: Fact[AgentSeen]
    uvm: Fact[bool]
    default_pipe: Fact[bool]
    selinux: Fact[SelinuxSeen]
    engines: Fact[tuple[EngineSeen, ...]]
    launcher: Fact[LauncherSeen]
    toolkit: Fact[bool]
    kubelet: Fact[KubeletSeen]
    ours: Fact[str]
