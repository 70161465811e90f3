"""What `mpsd-runtime` and `mpsd up` say to each other about a container.

One rule: names here are an interface between versions; fields are added, never renamed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContainerName:
    """One container of this machine. root: the runtime's `--root`, where its state is kept; id: unique there."""

    root: str
    id: str


@dataclass(frozen=True, slots=True)
class ContainerAsks:
    """What is to be created. name: as people know it, empty where nobody says. environment: VARIABLES of
    containers.dialects.dialect_names, as far as they are set.

    oom_script: as ALIYUN_COM_GPU_OOM_SCRIPT names it, empty for none. capabilities: its bounding set. host_ipc: whether
    it shares the machine's IPC namespace. host_root: whether it may be root on this machine. runtime: the program that
    makes the container, by which others are started in it later; empty for runc.
    """

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
class BundleMount:
    """A folder of this machine that the container sees at `inside`."""

    source: str
    inside: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class BundleDevice:
    """A device node of this machine, made again in the container at `inside`, for `access` (of r, w, m)."""

    source: str
    inside: str
    access: str


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    """What goes into the bundle. grant: its id. environment: replaces what the bundle has under these names.

    messages: what its user is told: where MPS does something else than the dialect says.
    """

    grant: str
    environment: dict[str, str]
    mounts: tuple[BundleMount, ...]
    devices: tuple[BundleDevice, ...]
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecAnswer:
    """What a further process of the container is started with."""

    environment: dict[str, str]
