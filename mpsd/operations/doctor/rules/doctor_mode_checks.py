"""The checks of `mpsd doctor` of what is in MPS's way: other daemons, and compute modes.

One rule: what somebody else has started or set is named, with how to undo it, and never undone here.
"""

from collections.abc import Iterator

from mpsd.model.domain_states import State
from mpsd.operations.doctor.rules.doctor import Check, Severity, Wrong, each
from mpsd.operations.doctor.rules.doctor_domain_checks import RECORDS, domains_of, is_in
from mpsd.operations.doctor.rules.doctor_facts import DaemonSeen, NodeFacts, NotKnown, Unknown, known

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
