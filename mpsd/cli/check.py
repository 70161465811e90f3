"""`mpsd check`: whether limits files are sound, and which values they set."""

import os
import sys

from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput
from mpsd.model.quantity import memory_unit
from mpsd.platform.command_line import OUTPUT, option, takes
from mpsd.platform.console import ExitCode, Format, answers, print_invalid, print_json
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, read_limits, shipped_folder
from mpsd.platform.settings import LIMITS_DIRECTORY, read_settings
from mpsd.platform.yaml_files import UnreadableFile


@takes(
    option(
        "directory",
        nargs="?",
        metavar="DIR",
        help="The folder with policy.yaml and gpus.yaml (MPSD_LIMITS; else those shipped).",
    ),
    OUTPUT,
)
def check(*, directory: str | None = None, output: Format = Format.TEXT) -> None:
    """Report every fault in policy.yaml and gpus.yaml at once, or in one line each what they put in
    force, and which rules of admission the policy does not name.

    Needs no GPU and no cluster. Exits with 1 when a file has a fault, with 2 when one cannot be
    read at all.

        mpsd check
        mpsd check limits -o json
    """
    chosen = read_settings({"directory": LIMITS_DIRECTORY}, {"directory": directory}, os.environ)
    folder = chosen["directory"] or shipped_folder()
    reading = read_limits(folder)
    files = {str(folder / POLICY_FILE): reading.policy, str(folder / GPU_FACTS_FILE): reading.facts}
    wrong = [held for held in files.values() if isinstance(held, InvalidInput)]
    if output is Format.JSON:
        print_json([_record(file, held) for file, held in files.items()])
    else:
        for file, held in files.items():
            _print(file, held)
    if any(isinstance(error, UnreadableFile) for error in wrong):
        sys.exit(ExitCode.MISUSE)
    sys.exit(ExitCode.of(not wrong))


def _record(file: str, held: Policy | GpuFacts | InvalidInput) -> dict[str, object]:
    if isinstance(held, InvalidInput):
        problems = held.problems
        return {"file": file, "sound": False, "in_force": "", "problems": problems}
    record = {"file": file, "sound": True, "in_force": _in_force(held), "problems": []}
    if isinstance(held, Policy):
        record["rules_by_default"] = _modes_by_default(held)
    return record


def _print(file: str, held: Policy | GpuFacts | InvalidInput) -> None:
    if isinstance(held, InvalidInput):
        print_invalid(held)
        return
    answers().print(f"{file}: {_in_force(held)}")
    if isinstance(held, Policy) and (modes := _modes_by_default(held)):
        listed = ", ".join(f"{rule}: {mode}" for rule, mode in modes.items())
        why = "admission.rules does not name every rule; these have their shipped mode"
        answers().print(f"  {why}: {listed}")


def _modes_by_default(policy: Policy) -> dict[str, str]:
    """The rules of admission that the file does not name."""
    rules = policy.admission.rules
    return {rule.value: rules[rule].value for rule in rules.by_default}


def _in_force(held: Policy | GpuFacts) -> str:
    if isinstance(held, GpuFacts):
        largest = held.largest_room
        measured = sum(row.measured for row in held.capabilities)
        tried = sum(row.measured for row in held.cards)
        return (
            f"{len(held.capabilities)} compute capabilities ({measured} measured), "
            f"{len(held.cards)} cards ({tried} measured), "
            f"the largest is {largest.card.name} with {largest.mib} MiB for programs"
        )
    part = held.oversubscription
    admission = held.admission
    return (
        f"{held.resources.memory} in {memory_unit(held.resources.memory_unit_mib).name},"
        f" {held.placement} placement, {part.memory_percent} % of a GPU's memory and"
        f" {part.thread_percent} % of its threads allocatable, hostIPC {admission.host_ipc},"
        f" {len(admission.blocked_environment)} patterns of blocked environment, memory over the"
        f" grant: {held.violations.memory_over_grant.action}, exclusive process"
        f" {'on' if held.exclusive_process else 'off'}, canary {held.canary}, end_drain_s"
        f" {held.graces.end_drain_s:g}, pod_ends {'on' if held.pod_ends else 'off'}"
    )
