"""The messages about grants between the agent and `mpsd run`, `mpsd set`, `mpsd stop` and
`mpsd-runtime`, whose names are an interface between versions. Little is imported, because every
program that is started waits for this to load.
"""

from dataclasses import dataclass
from enum import StrEnum

from mpsd.model.grants import DeviceNode, HostMount
from mpsd.model.node_view import Queue


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """Values as they were written. gpu_core None: no share of the threads. wait_s 0: no waiting."""

    gpu_mem: str
    gpu_core: str | None
    gpus: str
    wait_s: float
    command: str


@dataclass(frozen=True, slots=True)
class GrantAnswer:
    """grant: its id. environment: what the program is to be started with. path_first: a folder to
    put first on its PATH, or empty. messages: for its user, each a sentence."""

    grant: str
    environment: dict[str, str]
    path_first: str
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """reasons: each a sentence. for_ever: neither repeating the request nor waiting will help."""

    reasons: tuple[str, ...]
    for_ever: bool


def join_s(gpus: int) -> float:
    """How long a program of so many GPUs may wait for them to be joined: each one's daemon is
    drained and ended before, and the joined one tries each of them."""
    return 15.0 + 5.0 * gpus


DIVIDE_S = 15.0  # before: while GPUs that were joined for others are divided


# -- containers: mpsd-runtime


@dataclass(frozen=True, slots=True)
class HostContainerName:
    """One container of this machine. root: the runtime's `--root`, where its state is kept; id:
    unique there."""

    root: str
    id: str


@dataclass(frozen=True, slots=True)
class HostContainerRequest:
    """A container to create. name: as people know it, empty where it has none. environment:
    VARIABLES of containers.dialects.dialect_names, as far as they are set. oom_script: as
    ALIYUN_COM_GPU_OOM_SCRIPT names it. capabilities: its bounding set. host_ipc: whether it shares
    the machine's IPC namespace. host_root: whether it may be root on this machine. runtime: the
    program that makes the container, and starts others in it later; empty for runc."""

    root: str
    id: str
    name: str
    environment: dict[str, str]
    oom_script: str = ""
    capabilities: tuple[str, ...] = ()
    host_ipc: bool = False
    runtime: str = ""
    host_root: bool = False


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    """What goes into the bundle. grant: its id. environment: replaces what the bundle has under
    these names. messages: for its user, where MPS differs from what the dialect says."""

    grant: str
    environment: dict[str, str]
    mounts: tuple[HostMount, ...]
    devices: tuple[DeviceNode, ...]
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecAnswer:
    """For a further process of the container."""

    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class HostContainerSignal:
    """A signal that a container is about to get, POST /v1/containers/end. root, id: as of
    HostContainerName."""

    root: str
    id: str
    signum: int
    #: whether each of its processes gets it, and not its first one alone
    to_all: bool = False
    #: its first process and when that started (`ProcessIdentity`), by the runtime's state; 0 where
    #: that does not say
    pid: int = 0
    start_ticks: int = 0


@dataclass(frozen=True, slots=True)
class ClientsEnded:
    """ended: clients of MPS, which would have died of the signal. is_over: the container's first
    process has ended with them, so that the signal finds nobody."""

    ended: int
    is_over: bool


# -- another size of a grant: mpsd set, POST /v1/grants/{id}


@dataclass(frozen=True, slots=True)
class GrantChangeRequest:
    """The new values; None leaves one as it is. percent 0: no cap, and nothing reserved. weight:
    cGPU's. gpu: a UUID; None for every GPU of the grant. forced: memory may go below what is used,
    and what uses it is ended."""

    memory_mib: int | None = None
    percent: int | None = None
    weight: int | None = None
    gpu: str | None = None
    forced: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CardLimits:
    """Of one GPU. weight: None where the request was not one of cGPU."""

    gpu: str
    label: str
    memory_mib: int
    reserved_percent: int
    weight: int | None


@dataclass(frozen=True, slots=True)
class GrantLimits:
    """thread_percent: what MPS holds each process of it to, 100 for no limit."""

    thread_percent: int
    cards: tuple[CardLimits, ...]


@dataclass(frozen=True, slots=True)
class GrantChanged:
    """messages: the consequences, each a sentence or two."""

    grant: str
    before: GrantLimits
    after: GrantLimits
    messages: tuple[str, ...]
    dry_run: bool


# -- the end of programs: mpsd stop, POST /v1/programs/stop


@dataclass(frozen=True, slots=True)
class ProgramsToStop:
    """grants: the ids of programs' grants. grace_s: for how long processes that handle SIGTERM may
    end by themselves; 0: they do not get it."""

    grants: tuple[str, ...]
    grace_s: float


class StopOutcome(StrEnum):
    """What became of a program that was to end, by its processes."""

    #: all ended by themselves
    TERMINATED = "terminated"
    #: some were killed
    KILLED = "killed"
    #: some are left
    LEFT = "left"
    #: nothing was done
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ProgramStopped:
    """queue: of its clients of MPS together; in use: others on their GPUs may have been struck.
    reasons: why it is not over, each a sentence."""

    grant: str
    outcome: StopOutcome
    processes: int
    took_s: float
    queue: Queue
    reasons: tuple[str, ...] = ()
