"""The checks of `mpsd doctor` of what must be there before there are domains: limits files, programs, folders.

One rule: they hold for a machine on which mpsd has never run.
"""

from collections.abc import Iterator

from mpsd.operations.doctor.rules.doctor import Check, Severity, Wrong
from mpsd.operations.doctor.rules.doctor_facts import Elsewhere, NodeFacts, NotKnown, known


def _limits_unsound(facts: NodeFacts) -> Iterator[Wrong]:
    limits = known(facts.limits)
    for fault in limits.wrong:
        yield Wrong(fault, f"`mpsd check {limits.folder}` says when it is sound")


def _no_program(facts: NodeFacts) -> Iterator[Wrong]:
    if not known(facts.control_program):
        what = "nvidia-cuda-mps-control is not on PATH"
        yield Wrong(what, "install the driver's compute utilities")


def _no_uvm(facts: NodeFacts) -> Iterator[Wrong]:
    if not known(facts.uvm):
        yield Wrong("/dev/nvidia-uvm is not there, and CUDA cannot start without", "run `nvidia-modprobe -u -c 0`")


def _run_directory(facts: NodeFacts) -> Iterator[Wrong]:
    seen = known(facts.run_directory)
    if not seen.is_there:
        return
    if seen.owner != seen.wanted_owner:
        what = f"the run directory {seen.path} belongs to user {seen.owner}, not to user {seen.wanted_owner}"
        yield Wrong(what, f"chown {seen.wanted_owner} {seen.path}, or name another with --run-dir")
    elif seen.unwritable:
        yield Wrong(f"the run directory {seen.path} takes no files: {seen.unwritable}", "mend that, or use --run-dir")


def _not_tmpfs(facts: NodeFacts) -> Iterator[Wrong]:
    seen = known(facts.run_directory)
    if not (seen.is_there and seen.is_system):
        raise NotKnown(Elsewhere("it is not the system's"))
    if (kind := known(seen.filesystem)) != "tmpfs":
        what = f"{seen.path} is on {kind}, not on tmpfs: its gates and sockets outlive a reboot"
        yield Wrong(what, "make /run a tmpfs, as systemd does")


_STOPS = Severity.STOPS

LIMITS_CHECK = Check("limits-unsound", _STOPS, "the limits files are sound", ("limits",), "both files", _limits_unsound)
FILE_CHECKS = (
    Check("no-control-program", _STOPS, "MPS is installed", ("control_program",), "PATH", _no_program),
    Check("no-uvm", _STOPS, "/dev/nvidia-uvm is there", ("uvm",), "/dev", _no_uvm),
    Check(
        "run-directory",
        _STOPS,
        "the run directory can be used",
        ("run_directory",),
        "its owner, mode and file system",
        _run_directory,
    ),
)
TMPFS_CHECK = Check(
    "run-not-tmpfs", Severity.NOTE, "/run/mpsd is on tmpfs", ("run_directory",), "/proc/self/mounts", _not_tmpfs
)
