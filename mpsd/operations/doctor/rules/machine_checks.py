"""What `mpsd doctor` saw of a node; and its checks of what a machine needs before MPS runs: limits files, driver,
programs and folders, and nothing else in the way.

The checks hold for a machine on which mpsd has never run. What somebody else has started or set is named, with how to
undo it, and never undone here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mpsd.containers.engines.configuration import Engine
from mpsd.model.domain import State
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.node_status import NodeStatus
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy
from mpsd.operations.doctor.rules.checks import CheckTable, Fact, Finding, NotApplicable, Severity, Unknown, each, known


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """A GPU. lost: why it does not answer; uuid and name are then empty. compute_mode: NVML's number. instances: the
    UUIDs of its MIG instances."""

    ordinal: int
    uuid: str
    name: str
    lost: str
    capability: Fact[str]
    mig: Fact[bool]
    compute_mode: Fact[int]
    instances: Fact[tuple[str, ...]] = ()

    def __str__(self) -> str:
        return f"gpu{self.ordinal} ({self.name})" if self.name else f"gpu{self.ordinal}"


@dataclass(frozen=True, slots=True)
class RunDirectorySeen:
    """The run directory. wanted_owner: the uid of whoever runs mpsd there, or would; that of the owner where it does
    not exist. unwritable: why it takes no files; empty where it does. filesystem: its kind, of /run/mpsd alone.
    """

    path: str
    owner: int
    wanted_owner: int
    unwritable: str
    filesystem: Fact[str]


@dataclass(frozen=True, slots=True)
class DomainSeen:
    """A domain's record of this boot, and whether the daemon that it names lives."""

    record: DomainRecord
    daemon_lives: bool

    def is_in(self, state: State) -> bool:
        return self.record.state is state and self.daemon_lives


@dataclass(frozen=True, slots=True)
class DaemonSeen:
    """A process `nvidia-cuda-mps-control` that serves.

    pipe: its pipe directory; empty where that is not known. pipe_is_there: whether that has a socket for commands.
    """

    pid: int
    pipe: str
    pipe_is_there: bool = True


class AgentSilent(Unknown):
    """No agent answers. why: with the remedy."""


@dataclass(frozen=True, slots=True)
class LauncherSeen:
    """The program that engines start containers with. missing: files that it starts and that do not exist.

    next_runtimes: in its order. next_found: the first of them that exists; empty where none does.
    """

    missing: tuple[str, ...]
    next_runtimes: tuple[str, ...]
    next_found: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Everything seen of a node: a frozen picture, without a judgement. ours: the version of this program.

    limits_faults: every fault in both limits files. nvml: why it does not answer; empty while it does. holder: the pid
    of `mpsd up` or `mpsd control`; None where neither runs. unreadable: of the records of domains, why they cannot be
    read. uvm: whether /dev/nvidia-uvm is there. default_pipe: whether /tmp/nvidia-mps is. selinux: the label's type of
    each folder of clients, with the level where one container has it, empty for none; no folder where SELinux does not
    enforce. engines: the configuration of each; None where there is no such file. launcher: None where there is none.
    toolkit: whether nvidia-container-runtime is installed. kubelet: the folder in which device plugins register, where
    it is missing; empty where it is there.
    """

    ours: str
    limits_folder: str
    limits_faults: Fact[tuple[str, ...]]
    policy: Fact[Policy]
    gpu_facts: Fact[GpuFacts]
    nvml: Fact[str]
    driver: Fact[str]
    gpus: Fact[tuple[GpuSeen, ...]]
    control_program: Fact[bool]
    run_directory: Fact[RunDirectorySeen]
    holder: Fact[int | None]
    domains: Fact[tuple[DomainSeen, ...]]
    unreadable: Fact[tuple[str, ...]]
    daemons: Fact[tuple[DaemonSeen, ...]]
    agent: Fact[NodeStatus]
    uvm: Fact[bool]
    default_pipe: Fact[bool]
    selinux: Fact[Mapping[str, str]]
    engines: Fact[Mapping[Engine, Fact[str | None]]]
    launcher: Fact[LauncherSeen | None]
    toolkit: Fact[bool]
    kubelet: Fact[str]


RECORDS = "record.json of each domain in the run directory"
# The first driver whose MPS takes memory limits of clients: they came with CUDA 11.5, which shipped with R495
# (developer.nvidia.com/blog/revealing-new-features-in-the-cuda-11-5-toolkit); its release notes ask for 495.29.05.
OLDEST_DRIVER = 495
READ_OFF_DRIVER = 580  # what docs/mps-observed.md was read off
_OLDEST_CAPABILITY = 7.0  # from Volta on a client has limits of its own (NVIDIA's manual of MPS)
_MODES = {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}  # NVML's numbers; 0 is DEFAULT
_PROHIBITED, _EXCLUSIVE = 2, 3
_COMPUTE_MODE, _HOLDER = "NVML: nvmlDeviceGetComputeMode", "who holds the run directory"
_STOPS, _BREAKS, _NOTE = Severity
_MIG = "NVML: MIG modes and devices"

MACHINE_CHECKS = CheckTable[NodeFacts]()
_check = MACHINE_CHECKS.check


def domains(facts: NodeFacts) -> tuple[DomainSeen, ...]:
    if found := known(facts.domains):
        return found
    raise NotApplicable("mpsd has no domain here")


def parted(error: str, remedy: str) -> Finding:
    """error: ends with its remedy behind a semicolon, or has none; then this one."""
    what, _semicolon, own = error.rpartition("; ")
    return Finding(what or error, own if what else remedy)


@_check("limits-unsound", _STOPS, "the limits files are sound", how="policy.yaml and gpus.yaml")
def _limits_unsound(facts: NodeFacts) -> Iterator[Finding]:
    for fault in known(facts.limits_faults):
        yield Finding(fault, f"correct it, and verify it with `mpsd check {facts.limits_folder}`")


# -- the driver and the GPUs -------------------------------------------------------------------------------------------


@_check("driver-silent", _STOPS, "the driver answers", how="NVML: nvmlInit")
def _driver_silent(facts: NodeFacts) -> Iterator[Finding]:
    if error := known(facts.nvml):
        yield parted(error, "check that `nvidia-smi` works")


@_check("gpu-lost", _STOPS, "every GPU answers", how="NVML: each GPU by its number")
def _gpu_lost(facts: NodeFacts) -> Iterator[Finding]:
    if not known(facts.gpus):
        to_do = "see `dmesg | grep -i nvrm`, and whether a GPU is plugged in"
        yield Finding("the driver answers and shows no GPU", to_do)
    for gpu in known(facts.gpus):
        if gpu.lost:
            yield Finding(f"gpu{gpu.ordinal} does not answer: {gpu.lost}", "reset it or restart the machine")


@_check("driver-old", _STOPS, "the driver is new enough", how="NVML: its version")
def _driver_old(facts: NodeFacts) -> Iterator[Finding]:
    branch = _branch(driver := known(facts.driver))
    if branch is not None and branch < OLDEST_DRIVER:
        what = f"driver {driver} is too old: MPS has memory limits since driver {OLDEST_DRIVER}"
        yield Finding(what, f"install driver {READ_OFF_DRIVER} or newer")


@_check("driver-untested", _NOTE, "this driver is tested", how=f"NVML: its version, and {RECORDS}")
def _driver_untested(facts: NodeFacts) -> Iterator[Finding]:
    driver = known(facts.driver)
    canaries = [one.record.canary for one in known(facts.domains) if one.record.canary]
    # A driver that passed the canary on this machine was tried there, which is worth more than a number here.
    passed = any(canary.driver == driver and not canary.problem for canary in canaries)
    if _branch(driver) != READ_OFF_DRIVER and not passed:
        what = f"driver {driver} is untested: mpsd was developed with {READ_OFF_DRIVER}, and no canary has passed here"
        yield Finding(what, "let `mpsd up` run its canary (policy.yaml: canary)")


def _branch(driver: str) -> int | None:
    number = driver.partition(".")[0]
    return int(number) if number.isascii() and number.isdigit() else None


@_check("capability-old", _STOPS, "MPS can limit every GPU", how="NVML: capability")
def _capability_old(facts: NodeFacts) -> Iterator[Finding]:
    for gpu, capability in each(known(facts.gpus), lambda gpu: gpu.capability):
        if float(capability) < _OLDEST_CAPABILITY:
            what = f"{gpu} has compute capability {capability}: MPS enforces no limits before {_OLDEST_CAPABILITY}"
            yield Finding(what, "remove the card from this machine, or do not share this machine with mpsd")


@_check("capability-unlisted", _STOPS, "gpus.yaml lists every GPU's compute capability", how="NVML and gpus.yaml")
def _capability_unlisted(facts: NodeFacts) -> Iterator[Finding]:
    listed = {row.compute_capability for row in known(facts.gpu_facts).capabilities}
    for gpu, capability in each(known(facts.gpus), lambda gpu: gpu.capability):
        if capability not in listed and float(capability) >= _OLDEST_CAPABILITY:
            what = f"{gpu} has compute capability {capability}, which gpus.yaml does not list"
            yield Finding(what, f"add a row for it under capabilities in {facts.limits_folder}/gpus.yaml")


@_check("mig-on", _STOPS, "no GPU has MIG on and no instance", how=_MIG)
def _mig(facts: NodeFacts) -> Iterator[Finding]:
    for gpu, is_on in each(known(facts.gpus), lambda gpu: gpu.mig):
        if is_on and not known(gpu.instances):
            make = f"create one (nvidia-smi mig -i {gpu.ordinal} -cgi PROFILE -C)"
            remedy = f"{make}, or switch MIG off (nvidia-smi -i {gpu.ordinal} -mig 0)"
            yield Finding(f"MIG is on for {gpu}, which has no instance, and so serves nothing", remedy)


@_check("mig-instances", _NOTE, "no MIG instance is served", how=_MIG)
def _mig_instances(facts: NodeFacts) -> Iterator[Finding]:
    """What mpsd does there follows from NVIDIA's documentation alone, and one of its walls is missing."""
    for gpu, instances in each(known(facts.gpus), lambda gpu: gpu.instances):
        if instances:
            number = "a MIG instance" if len(instances) == 1 else f"{len(instances)} MIG instances"
            what = f"{gpu} has {number}: how MPS limits programs there is documented, not observed"
            mode = "no compute mode keeps programs from running beside MPS there; only the watchdog acts on them"
            yield Finding(f"{what}; {mode}", "read docs/hardware.md, and run the contract tests on an instance")


# -- programs and folders ----------------------------------------------------------------------------------------------


@_check("no-control-program", _STOPS, "MPS is installed", how="PATH")
def _no_program(facts: NodeFacts) -> Iterator[Finding]:
    if not known(facts.control_program):
        yield Finding("nvidia-cuda-mps-control is not on PATH", "install the driver's compute utilities")


@_check("no-uvm", _STOPS, "/dev/nvidia-uvm is there", how="/dev")
def _no_uvm(facts: NodeFacts) -> Iterator[Finding]:
    if not known(facts.uvm):
        yield Finding("/dev/nvidia-uvm is missing; CUDA requires it", "run `nvidia-modprobe -u -c 0`")


@_check("run-directory", _STOPS, "the run directory can be used", how="its owner, mode and file system")
def _run_directory(facts: NodeFacts) -> Iterator[Finding]:
    seen = known(facts.run_directory)
    if seen.owner != seen.wanted_owner:
        what = f"the run directory {seen.path} belongs to user {seen.owner}, not to user {seen.wanted_owner}"
        yield Finding(what, f"chown {seen.wanted_owner} {seen.path}, or select another with --run-dir")
    elif seen.unwritable:
        to_do = "fix that, or select another with --run-dir"
        yield Finding(f"the run directory {seen.path} takes no files: {seen.unwritable}", to_do)


@_check("run-not-tmpfs", _NOTE, "/run/mpsd is on tmpfs", how="/proc/self/mounts")
def _not_tmpfs(facts: NodeFacts) -> Iterator[Finding]:
    seen = known(facts.run_directory)
    if (kind := known(seen.filesystem)) != "tmpfs":
        what = f"{seen.path} is on {kind}, not on tmpfs: its gates and sockets outlive a reboot"
        yield Finding(what, "make /run a tmpfs, as systemd does")


# -- what else uses the GPUs -------------------------------------------------------------------------------------------


@_check("other-daemon", _STOPS, "every control daemon is mpsd's", how=f"/proc, and {RECORDS}")
def _other_daemon(facts: NodeFacts) -> Iterator[Finding]:
    """A daemon inside the run directory belongs to the process that holds the directory."""
    ours = {one.record.daemon.pid for one in known(facts.domains) if one.record.daemon and one.daemon_lives}
    directory = f"{known(facts.run_directory).path}/"
    unsure = known(facts.unreadable)
    for daemon in known(facts.daemons):
        is_inside = daemon.pipe.startswith(directory)
        if is_inside and unsure and known(facts.holder) is None:
            raise Unknown("which daemons are mpsd's is in records that cannot be read")
        if daemon.pid not in ours and not (is_inside and known(facts.holder) is not None):
            yield _stray(daemon, was_ours=is_inside and not daemon.pipe_is_there)


def _stray(daemon: DaemonSeen, *, was_ours: bool) -> Finding:
    kill = f"kill {daemon.pid}"
    if was_ours:  # mpsd once started it, and it takes no commands any more
        what = f"a control daemon (pid {daemon.pid}) still runs, but its folder {daemon.pipe} was removed"
        to_do = f"run `{kill}` once its programs have ended, which would lose their GPU, and start mpsd again"
        return Finding(what, to_do)
    where = f" in {daemon.pipe}" if daemon.pipe else ""
    quits = f"echo quit | CUDA_MPS_PIPE_DIRECTORY={daemon.pipe} nvidia-cuda-mps-control"
    what = f"another control daemon (pid {daemon.pid}{where}) runs on this machine; mpsd did not start it"
    return Finding(what, f"stop it ({quits if daemon.pipe and daemon.pipe_is_there else kill}), and whatever starts it")


@_check("compute-mode-left", _STOPS, "no compute mode was left behind", how=f"{_COMPUTE_MODE}, and {_HOLDER}")
def _mode_left(facts: NodeFacts) -> Iterator[Finding]:
    runs = known(facts.holder) is not None or any(one.daemon_lives for one in known(facts.domains))
    recorded = {uuid for one in known(facts.domains) for uuid in one.record.compute_modes}
    for gpu, mode in each(known(facts.gpus), lambda gpu: gpu.compute_mode):
        if mode and (mode == _PROHIBITED or not runs):
            by_hand = f"run `nvidia-smi -i {gpu.ordinal} -c DEFAULT`"
            remedy = "`mpsd control --release` puts it back" if gpu.uuid in recorded and not runs else by_hand
            where = "" if runs else " while no mpsd runs"
            yield Finding(f"{gpu} is in compute mode {_MODES.get(mode, mode)}{where}", remedy)


@_check("compute-mode-lost", _BREAKS, "nothing can run beside MPS", how=f"{_COMPUTE_MODE}, and policy.yaml")
def _mode_lost(facts: NodeFacts) -> Iterator[Finding]:
    serving = {uuid for one in domains(facts) if one.is_in(State.READY) for uuid in one.record.gpus}
    required = known(facts.policy).exclusive_process
    for gpu, mode in each(known(facts.gpus), lambda gpu: gpu.compute_mode):
        if required and gpu.uuid in serving and mode != _EXCLUSIVE:
            remedy = f"run `nvidia-smi -i {gpu.ordinal} -c EXCLUSIVE_PROCESS`, or set exclusive_process: false"
            what = f"{gpu} is not in compute mode EXCLUSIVE_PROCESS, as the policy requires"
            yield Finding(f"{what}: programs may run beside MPS, without limits", remedy)
