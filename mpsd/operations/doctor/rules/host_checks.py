"""The checks of `mpsd doctor`, in the order in which they are to be read: causes before what follows from them.

One rule: a row says what is wrong and the one thing to do, and never more than was seen. The rows themselves are beside
this, by subject.
"""

from collections.abc import Iterator

from mpsd.containers.engines.change import LAUNCHER, Engine, has_runtime
from mpsd.model.domain import State
from mpsd.model.problem import InvalidInput
from mpsd.operations.doctor.rules.facts import (
    Check,
    DaemonSeen,
    Elsewhere,
    NodeFacts,
    NotKnown,
    Severity,
    Unknown,
    Wrong,
    each,
    known,
)
from mpsd.operations.doctor.rules.node_checks import (
    AGENT_CHECKS,
    BEHIND_CHECK,
    CANARY_CHECK,
    DOMAIN_CHECKS,
    DOUBT_CHECK,
    DRAIN_CHECK,
    DRIVER_CHECKS,
    FILE_CHECKS,
    LIMITS_CHECK,
    RECORDS,
    SILENT_CHECK,
    TMPFS_CHECK,
    UNTESTED_CHECK,
    domains_of,
    is_in,
)

# The checks of `mpsd doctor` of what is around mpsd: container engines, kubelet, SELinux, other runtimes.
#
# One rule: what mpsd has no part in on this machine is no fault, so an engine counts only where it names mpsd's
# launcher.

# What container.te of container-selinux lets containers manage: container_file_t, and svirt_sandbox_file_t in
# its version 1.0.0; container_ro_file_t may only be read. NVIDIA's device plugin, too, labels its MPS folders
# container_file_t:s0 (NVIDIA/k8s-device-plugin#1105). What has categories is for one container (container_selinux(8)).
_CONTAINERS_MAY_USE = {"container_file_t", "svirt_sandbox_file_t"}


def _engines(facts: NodeFacts) -> tuple[Engine, ...]:
    """Those whose configuration names the launcher. NotKnown where there is none, or it cannot be known."""
    naming, unread = [], ""
    for seen in known(facts.engines):
        text = seen.text
        if isinstance(text, Unknown | Elsewhere):
            unread = f"{seen.file} cannot be read: {text.why}"
            continue
        try:
            if text is not None and has_runtime(seen.engine, text, seen.file, LAUNCHER):
                naming.append(seen.engine)
        except InvalidInput as error:
            unread = str(error)
    if naming:
        return tuple(naming)
    raise NotKnown(Unknown(unread) if unread else Elsewhere("no container engine here names mpsd"))


def _launcher(facts: NodeFacts) -> Iterator[Wrong]:
    engines = _engines(facts)
    names, again = " and ".join(engines), f"`mpsd install {engines[0]}` writes it anew"
    launcher = known(facts.launcher)
    if not launcher.is_there:
        yield Wrong(f"{launcher.path} is not there, and {names} would start containers with it", again)
        return
    for missing in known(launcher.missing):
        yield Wrong(f"{launcher.path}, with which {names} starts containers, needs {missing}, which is gone", again)
    if not launcher.next_found:
        tried = " or ".join(launcher.next_runtimes)
        yield Wrong(f"{launcher.path} finds no {tried} to hand containers to", "install one, or name one: --next PATH")


def _toolkit(facts: NodeFacts) -> Iterator[Wrong]:
    engines = _engines(facts)
    if not known(facts.toolkit):
        what = f"nvidia-container-runtime is not installed, and containers of {' and '.join(engines)} get no GPU"
        yield Wrong(what, "install the package nvidia-container-toolkit")


def _kubelet(facts: NodeFacts) -> Iterator[Wrong]:
    kubelet = known(facts.kubelet)
    if not kubelet.device_plugins:
        what = f"{kubelet.directory}/device-plugins is not there: kubelet takes no device plugin, so pods get no share"
        yield Wrong(what, "give `mpsd agent` the root that kubelet has: --kubelet-dir (MPSD_KUBELET_DIR)")


def _selinux(facts: NodeFacts) -> Iterator[Wrong]:
    selinux = known(facts.selinux)
    for folder, kind in selinux.types if selinux.enforcing else ():
        if kind not in _CONTAINERS_MAY_USE:
            what = f"SELinux is enforcing, and {folder} has the type {kind or '(none)'}, which confined containers"
            yield Wrong(f"{what} may not use", f"chcon -R -t container_file_t -l s0 {folder}")


def _default_pipe(facts: NodeFacts) -> Iterator[Wrong]:
    if known(facts.default_pipe):
        what = "/tmp/nvidia-mps is there: some runtimes mount it into every GPU container, past mpsd"  # noqa: S108
        yield Wrong(what, "see that no daemon serves in it, then remove it")


_ENGINES = "daemon.json of docker, config.toml of containerd, podman's mpsd.conf"
HOST_CHECKS = (
    Check(
        "launcher-broken",
        Severity.STOPS,
        "mpsd-runtime can start",
        ("engines", "launcher"),
        f"{_ENGINES}, and {LAUNCHER}",
        _launcher,
    ),
    Check(
        "no-toolkit",
        Severity.STOPS,
        "containers can have GPUs",
        ("engines", "toolkit"),
        f"{_ENGINES}, and the folders of programs",
        _toolkit,
    ),
    Check("kubelet-folder", Severity.STOPS, "kubelet takes device plugins", ("kubelet",), "kubelet's root", _kubelet),
    Check("selinux", Severity.BREAKS, "SELinux lets containers in", ("selinux",), "/sys/fs/selinux, labels", _selinux),
    Check("default-pipe", Severity.NOTE, "there is no /tmp/nvidia-mps", ("default_pipe",), "its folder", _default_pipe),
)


# The checks of `mpsd doctor` of what is in MPS's way: other daemons, and compute modes.
#
# One rule: what somebody else has started or set is named, with how to undo it, and never undone here.

_MODES = {1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}  # NVML's numbers; 0 is DEFAULT
_PROHIBITED, _EXCLUSIVE = 2, 3


def _other_daemon(facts: NodeFacts) -> Iterator[Wrong]:
    """Whoever holds the run directory has started what serves in it, or taken it over, or says that it is foreign."""
    ours = {one.record.daemon.pid for one in known(facts.domains) if one.record.daemon and one.daemon_lives}
    directory = f"{known(facts.run_directory).path}/"
    unsure = known(facts.unreadable)
    for daemon in known(facts.daemons):
        is_inside = daemon.pipe.startswith(directory)
        if is_inside and unsure and known(facts.holder) is None:
            raise NotKnown(Unknown("whose daemons are mpsd's is in records that cannot be read"))
        if daemon.pid not in ours and not (is_inside and known(facts.holder) is not None):
            yield _removed(daemon) if is_inside and not daemon.pipe_is_there else _foreign(daemon)


def _foreign(daemon: DaemonSeen) -> Wrong:
    where = f" in {daemon.pipe}" if daemon.pipe else ""
    can_be_asked = daemon.pipe and daemon.pipe_is_there
    quits = f"echo quit | CUDA_MPS_PIPE_DIRECTORY={daemon.pipe} nvidia-cuda-mps-control"
    return Wrong(
        f"another control daemon (pid {daemon.pid}{where}) is on this machine, which mpsd has not started",
        f"stop it ({quits if can_be_asked else f'kill {daemon.pid}'}), and whatever starts it",
    )


def _removed(daemon: DaemonSeen) -> Wrong:
    """What mpsd has started once, and nobody can command any more."""
    return Wrong(
        f"a control daemon (pid {daemon.pid}) runs on though its folder {daemon.pipe} was removed",
        f"run `kill {daemon.pid}` once its programs have ended, which would lose their GPU, and start mpsd again",
    )


def _mode_left(facts: NodeFacts) -> Iterator[Wrong]:
    runs = known(facts.holder) is not None or any(one.daemon_lives for one in known(facts.domains))
    recorded = {uuid for one in known(facts.domains) for uuid in one.record.compute_modes}
    for gpu, mode in each(known(facts.gpus), lambda gpu: gpu.compute_mode):
        if mode and (mode == _PROHIBITED or not runs):
            by_hand = f"nvidia-smi -i {gpu.ordinal} -c DEFAULT"
            remedy = (
                "`mpsd control --release` puts it back" if gpu.uuid in recorded and not runs else f"run `{by_hand}`"
            )
            where = "" if runs else " while no mpsd runs"
            yield Wrong(f"{gpu} is in compute mode {_MODES.get(mode, mode)}{where}", remedy)


def _mode_lost(facts: NodeFacts) -> Iterator[Wrong]:
    serving = {uuid for one in domains_of(facts) if is_in(one, State.READY) for uuid in one.record.gpus}
    if not serving or not known(known(facts.limits).policy).exclusive_process:
        return
    for gpu, mode in each(known(facts.gpus), lambda gpu: gpu.compute_mode):
        if gpu.uuid in serving and mode != _EXCLUSIVE:
            remedy = f"run `nvidia-smi -i {gpu.ordinal} -c EXCLUSIVE_PROCESS`, or set exclusive_process: false"
            what = f"{gpu} is not in compute mode EXCLUSIVE_PROCESS, as the policy has it"
            yield Wrong(f"{what}: programs may run beside MPS, without limits", remedy)


_ASKED = "NVML: nvmlDeviceGetComputeMode"

WAY_CHECKS = (
    Check(
        "other-daemon",
        Severity.STOPS,
        "every control daemon is mpsd's",
        ("daemons", "domains", "run_directory", "unreadable"),
        f"/proc, and {RECORDS}",
        _other_daemon,
    ),
    Check(
        "compute-mode-left",
        Severity.STOPS,
        "no compute mode was left behind",
        ("gpus", "holder", "domains"),
        f"{_ASKED}, and who holds the run directory",
        _mode_left,
    ),
)
LOST_CHECK = Check(
    "compute-mode-lost",
    Severity.BREAKS,
    "nothing can run beside MPS",
    ("gpus", "domains", "limits"),
    f"{_ASKED}, and policy.yaml",
    _mode_lost,
)


CHECKS: tuple[Check[NodeFacts], ...] = (
    LIMITS_CHECK,
    *DRIVER_CHECKS,
    *FILE_CHECKS,
    *WAY_CHECKS,
    CANARY_CHECK,
    *DOMAIN_CHECKS,
    SILENT_CHECK,
    LOST_CHECK,
    *AGENT_CHECKS,
    DOUBT_CHECK,
    UNTESTED_CHECK,
    BEHIND_CHECK,
    DRAIN_CHECK,
    TMPFS_CHECK,
    *HOST_CHECKS,
)
