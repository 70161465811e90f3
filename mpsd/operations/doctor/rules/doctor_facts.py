"""What `mpsd doctor` saw of a node: a frozen picture, without a judgement.

One rule: what could not be read is Unknown, with why; what there is none of here is Elsewhere. Neither is ever a value.
"""

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from mpsd.containers.engines.change import Engine
from mpsd.model.node_status import NodeStatus
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy


@dataclass(frozen=True, slots=True)
class Unknown:
    """why: the reason that it could not be read, as the end of a sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """There is no such thing here. why: as the end of a sentence."""

    why: str


Value = TypeVar("Value")
Fact: TypeAlias = Value | Unknown | Elsewhere


class NotKnown(Exception):
    """A check cannot be made."""

    def __init__(self, fact: Unknown | Elsewhere) -> None:
        super().__init__(fact.why)
        self.fact = fact


def known(fact: Fact[Value]) -> Value:
    """The value. NotKnown where there is none."""
    if isinstance(fact, Unknown | Elsewhere):
        raise NotKnown(fact)
    return fact


@dataclass(frozen=True, slots=True)
class LimitsSeen:
    """wrong: every fault in both files. capabilities: those that gpus.yaml lists."""

    folder: str
    wrong: tuple[str, ...]
    capabilities: Fact[tuple[str, ...]]
    policy: Fact[Policy]


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """uuid: empty where NVML does not even say that, and `lost` says why. compute_mode: NVML's number."""

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
    """is_there False: the rest says nothing. wanted_owner: the uid of whoever runs mpsd there, or would.

    unwritable: why it takes no files; empty where it does. is_system: it is /run/mpsd. filesystem: its kind.
    """

    path: str
    is_there: bool
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
    """told: None where nobody answers. why_not: with the remedy; empty where somebody does."""

    told: NodeStatus | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """text: its configuration; None where there is no such file."""

    engine: Engine
    file: str
    text: Fact[str | None]


@dataclass(frozen=True, slots=True)
class LauncherSeen:
    """is_there False: the rest says nothing. missing: of the files that it starts, those that are not there.

    next_runtimes: in its order; next_found: the first of them that is there, empty for none. text: what it says,
    Unknown where it is none that this version writes.
    """

    path: str
    is_there: bool
    missing: Fact[tuple[str, ...]]
    next_runtimes: tuple[str, ...] = ()
    next_found: str = ""


@dataclass(frozen=True, slots=True)
class KubeletSeen:
    """device_plugins: whether the folder is there in which device plugins register."""

    directory: str
    device_plugins: bool


@dataclass(frozen=True, slots=True)
class SelinuxSeen:
    """types: by folder of the clients, the type of its label, with its level where that is one container's; empty for
    none.
    """

    enforcing: bool
    types: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """nvml: why it does not answer; empty while it does. holder: the pid of `mpsd up` or `mpsd control`, None for none.

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
