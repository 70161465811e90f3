"""Checks of `mpsd doctor` of what a machine needs before MPS runs: limits files, driver, programs and folders, and
nothing else in the way.

They hold for a machine on which mpsd has never run. What somebody else has started or set is named, with how to undo
it, and never undone here.
"""

from collections.abc import Iterator

from mpsd.model.domain import State
from mpsd.operations.doctor.rules.checks import (
    CheckTable,
    Finding,
    NotApplicable,
    NotKnown,
    Severity,
    Unknown,
    each,
    known,
)
from mpsd.operations.doctor.rules.node_facts import DaemonSeen, DomainSeen, NodeFacts

RECORDS = "record.json of each domain in the run directory"
# The first driver whose MPS takes memory limits of clients: they came with CUDA 11.5, which shipped with R495
# (developer.nvidia.com/blog/revealing-new-features-in-the-cuda-11-5-toolkit); its release notes ask for 495.29.05.
OLDEST_DRIVER = 495
READ_OFF_DRIVER = 580  # what docs/mps-observed.md was read off
_OLDEST_CAPABILITY = (7, 0)  # from Volta on a client has limits of its own (NVIDIA's manual of MPS)
_MODES = {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}  # NVML's numbers; 0 is DEFAULT
_PROHIBITED, _EXCLUSIVE = 2, 3
_COMPUTE_MODE = "NVML: nvmlDeviceGetComputeMode"
_STOPS, _BREAKS, _NOTE = Severity

MACHINE_CHECKS = CheckTable[NodeFacts]()
_check = MACHINE_CHECKS.check


def domains_of(facts: NodeFacts) -> tuple[DomainSeen, ...]:
    """NotKnown where there is none."""
    domains = known(facts.domains)
    if not domains:
        raise NotKnown(NotApplicable("mpsd has no domain here"))
    return domains


def is_in(one: DomainSeen, state: State) -> bool:
    return one.record.state is state and one.daemon_lives


@_check("limits-unsound", _STOPS, "the limits files are sound", "limits", how="both files")
def _limits_unsound(facts: NodeFacts) -> Iterator[Finding]:
    limits = known(facts.limits)
    for fault in limits.wrong:
        yield Finding(fault, f"`mpsd check {limits.folder}` says when it is sound")


# -- the driver and the GPUs -------------------------------------------------------------------------------------------


@_check("driver-silent", _STOPS, "the driver answers", "nvml", how="NVML: nvmlInit")
def _driver_silent(facts: NodeFacts) -> Iterator[Finding]:
    if error := known(facts.nvml):
        what, _semicolon, remedy = error.rpartition("; ")
        yield Finding(what or error, remedy if what else "`nvidia-smi` says whether the driver works")


@_check("gpu-lost", _STOPS, "every GPU answers", "gpus", how="NVML: each GPU by its number")
def _gpu_lost(facts: NodeFacts) -> Iterator[Finding]:
    gpus = known(facts.gpus)
    if not gpus:
        yield Finding("the driver answers and shows no GPU", "see `dmesg | grep -i nvrm`, and that one is plugged in")
    for gpu in gpus:
        if gpu.lost:
            yield Finding(f"gpu{gpu.ordinal} does not answer: {gpu.lost}", "reset it or restart the machine")


@_check("driver-old", _STOPS, "the driver is new enough", "driver", how="NVML: its version")
def _driver_old(facts: NodeFacts) -> Iterator[Finding]:
    driver = known(facts.driver)
    branch = _branch(driver)
    if branch is not None and branch < OLDEST_DRIVER:
        what = f"driver {driver} is too old: MPS takes memory limits from {OLDEST_DRIVER} on"
        yield Finding(what, f"install driver {READ_OFF_DRIVER} or newer")


@_check("driver-untested", _NOTE, "this driver was tried", "driver", "domains", how=f"NVML: its version, and {RECORDS}")
def _driver_untested(facts: NodeFacts) -> Iterator[Finding]:
    """A driver that passed the canary on this machine was tried there, which is worth more than a number here."""
    driver = known(facts.driver)
    canaries = [one.record.canary for one in known(facts.domains) if one.record.canary]
    passed = any(canary.driver == driver and not canary.problem for canary in canaries)
    if _branch(driver) != READ_OFF_DRIVER and not passed:
        what = f"driver {driver} was never tried: mpsd was written for {READ_OFF_DRIVER}, and no canary has passed here"
        yield Finding(what, "let `mpsd up` run its canary (policy.yaml: canary)")


def _branch(driver: str) -> int | None:
    """The number before the first point; None where there is none."""
    number = driver.partition(".")[0]
    return int(number) if number.isascii() and number.isdigit() else None


@_check("capability-old", _STOPS, "MPS can limit every GPU", "gpus", how="NVML: capability")
def _capability_old(facts: NodeFacts) -> Iterator[Finding]:
    for gpu, capability in each(known(facts.gpus), lambda gpu: gpu.capability):
        if _number(capability) < _OLDEST_CAPABILITY:
            what = f"{gpu} has compute capability {capability}: MPS enforces no limits before 7.0"
            yield Finding(what, "take the card out of this machine, or do not share this machine by mpsd")


@_check(
    "capability-unlisted",
    _STOPS,
    "gpus.yaml lists every GPU's compute capability",
    "gpus",
    "limits",
    how="NVML and gpus.yaml",
)
def _capability_unlisted(facts: NodeFacts) -> Iterator[Finding]:
    limits = known(facts.limits)
    listed = known(limits.capabilities)
    for gpu, capability in each(known(facts.gpus), lambda gpu: gpu.capability):
        if capability not in listed and _number(capability) >= _OLDEST_CAPABILITY:
            what = f"{gpu} has compute capability {capability}, which gpus.yaml does not list"
            yield Finding(what, f"add a row for it under capabilities in {limits.folder}/gpus.yaml")


def _number(capability: str) -> tuple[int, int]:
    major, _point, minor = capability.partition(".")
    return int(major), int(minor)


@_check("mig-on", _STOPS, "MIG is off", "gpus", how="NVML: nvmlDeviceGetMigMode")
def _mig(facts: NodeFacts) -> Iterator[Finding]:
    for gpu, is_on in each(known(facts.gpus), lambda gpu: gpu.mig):
        if is_on:
            remedy = f"switch it off (nvidia-smi -i {gpu.ordinal} -mig 0), or leave this GPU to others"
            yield Finding(f"MIG is on for {gpu}, and MPS does not share such a GPU", remedy)


# -- programs and folders ----------------------------------------------------------------------------------------------


@_check("no-control-program", _STOPS, "MPS is installed", "control_program", how="PATH")
def _no_program(facts: NodeFacts) -> Iterator[Finding]:
    if not known(facts.control_program):
        yield Finding("nvidia-cuda-mps-control is not on PATH", "install the driver's compute utilities")


@_check("no-uvm", _STOPS, "/dev/nvidia-uvm is there", "uvm", how="/dev")
def _no_uvm(facts: NodeFacts) -> Iterator[Finding]:
    if not known(facts.uvm):
        yield Finding("/dev/nvidia-uvm is missing; CUDA requires it", "run `nvidia-modprobe -u -c 0`")


@_check(
    "run-directory", _STOPS, "the run directory can be used", "run_directory", how="its owner, mode and file system"
)
def _run_directory(facts: NodeFacts) -> Iterator[Finding]:
    seen = known(facts.run_directory)
    if not seen.is_there:
        return
    if seen.owner != seen.wanted_owner:
        what = f"the run directory {seen.path} belongs to user {seen.owner}, not to user {seen.wanted_owner}"
        yield Finding(what, f"chown {seen.wanted_owner} {seen.path}, or name another with --run-dir")
    elif seen.unwritable:
        yield Finding(f"the run directory {seen.path} takes no files: {seen.unwritable}", "mend that, or use --run-dir")


@_check("run-not-tmpfs", _NOTE, "/run/mpsd is on tmpfs", "run_directory", how="/proc/self/mounts")
def _not_tmpfs(facts: NodeFacts) -> Iterator[Finding]:
    seen = known(facts.run_directory)
    if not (seen.is_there and seen.is_system):
        raise NotKnown(NotApplicable("the run directory is not the system's"))
    if (kind := known(seen.filesystem)) != "tmpfs":
        what = f"{seen.path} is on {kind}, not on tmpfs: its gates and sockets outlive a reboot"
        yield Finding(what, "make /run a tmpfs, as systemd does")


# -- what else uses the GPUs -------------------------------------------------------------------------------------------


@_check(
    "other-daemon",
    _STOPS,
    "every control daemon is mpsd's",
    *("daemons", "domains", "run_directory", "unreadable"),
    how=f"/proc, and {RECORDS}",
)
def _other_daemon(facts: NodeFacts) -> Iterator[Finding]:
    """A daemon inside the run directory belongs to the process that holds the directory."""
    ours = {one.record.daemon.pid for one in known(facts.domains) if one.record.daemon and one.daemon_lives}
    directory = f"{known(facts.run_directory).path}/"
    unsure = known(facts.unreadable)
    for daemon in known(facts.daemons):
        is_inside = daemon.pipe.startswith(directory)
        if is_inside and unsure and known(facts.holder) is None:
            raise NotKnown(Unknown("which daemons are mpsd's is in records that cannot be read"))
        if daemon.pid not in ours and not (is_inside and known(facts.holder) is not None):
            yield _removed(daemon) if is_inside and not daemon.pipe_is_there else _foreign(daemon)


def _foreign(daemon: DaemonSeen) -> Finding:
    where = f" in {daemon.pipe}" if daemon.pipe else ""
    can_be_asked = daemon.pipe and daemon.pipe_is_there
    quits = f"echo quit | CUDA_MPS_PIPE_DIRECTORY={daemon.pipe} nvidia-cuda-mps-control"
    return Finding(
        f"another control daemon (pid {daemon.pid}{where}) is on this machine, which mpsd has not started",
        f"stop it ({quits if can_be_asked else f'kill {daemon.pid}'}), and whatever starts it",
    )


def _removed(daemon: DaemonSeen) -> Finding:
    """A daemon that mpsd once started and that takes no commands any more."""
    return Finding(
        f"a control daemon (pid {daemon.pid}) runs on though its folder {daemon.pipe} was removed",
        f"run `kill {daemon.pid}` once its programs have ended, which would lose their GPU, and start mpsd again",
    )


@_check(
    "compute-mode-left",
    _STOPS,
    "no compute mode was left behind",
    *("gpus", "holder", "domains"),
    how=f"{_COMPUTE_MODE}, and who holds the run directory",
)
def _mode_left(facts: NodeFacts) -> Iterator[Finding]:
    runs = known(facts.holder) is not None or any(one.daemon_lives for one in known(facts.domains))
    recorded = {uuid for one in known(facts.domains) for uuid in one.record.compute_modes}
    for gpu, mode in each(known(facts.gpus), lambda gpu: gpu.compute_mode):
        if mode and (mode == _PROHIBITED or not runs):
            by_hand = f"run `nvidia-smi -i {gpu.ordinal} -c DEFAULT`"
            remedy = "`mpsd control --release` puts it back" if gpu.uuid in recorded and not runs else by_hand
            where = "" if runs else " while no mpsd runs"
            yield Finding(f"{gpu} is in compute mode {_MODES.get(mode, mode)}{where}", remedy)


@_check(
    "compute-mode-lost",
    _BREAKS,
    "nothing can run beside MPS",
    *("gpus", "domains", "limits"),
    how=f"{_COMPUTE_MODE}, and policy.yaml",
)
def _mode_lost(facts: NodeFacts) -> Iterator[Finding]:
    serving = {uuid for one in domains_of(facts) if is_in(one, State.READY) for uuid in one.record.gpus}
    if not serving or not known(known(facts.limits).policy).exclusive_process:
        return
    for gpu, mode in each(known(facts.gpus), lambda gpu: gpu.compute_mode):
        if gpu.uuid in serving and mode != _EXCLUSIVE:
            remedy = f"run `nvidia-smi -i {gpu.ordinal} -c EXCLUSIVE_PROCESS`, or set exclusive_process: false"
            what = f"{gpu} is not in compute mode EXCLUSIVE_PROCESS, as the policy requires"
            yield Finding(f"{what}: programs may run beside MPS, without limits", remedy)
