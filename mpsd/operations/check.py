"""`mpsd check`: whether limits files are sound, and which values they set."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput
from mpsd.model.quantity import memory_unit
from mpsd.platform.console import ExitCode, Format, answers, print_invalid, print_json
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, limits_folder, read_limits
from mpsd.platform.options import OutputFormat
from mpsd.platform.yaml_files import UnreadableFile


def check(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            envvar="MPSD_LIMITS",
            help="The folder with policy.yaml and gpus.yaml; else those shipped.",
            show_default=False,
        ),
    ] = None,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Report every fault in policy.yaml and gpus.yaml at once, or in one line each what they put in force, and which
    rules of admission the policy does not name.

    Needs no GPU and no cluster. Exits with 1 when a file has a fault, with 2 when one cannot be read at all.

        mpsd check
        mpsd check limits -o json
    """
    folder = limits_folder(directory)
    reading = read_limits(folder)
    files = {POLICY_FILE: reading.policy, GPU_FACTS_FILE: reading.facts}
    wrong = [held for held in files.values() if isinstance(held, InvalidInput)]
    if output is Format.JSON:
        print_json([_record(str(folder / name), held) for name, held in files.items()])
    else:
        for name, held in files.items():
            if isinstance(held, InvalidInput):
                print_invalid(held)
            else:
                answers().print(f"{folder / name}: {_in_force(held)}")
                for line in _defaults(held):
                    answers().print(f"  {line}")
    if any(isinstance(error, UnreadableFile) for error in wrong):
        raise typer.Exit(ExitCode.MISUSE)
    raise typer.Exit(ExitCode.NO if wrong else ExitCode.YES)


def _record(file: str, held: Policy | GpuFacts | InvalidInput) -> dict[str, object]:
    if isinstance(held, InvalidInput):
        problems = [problem.record() for problem in held.problems]
        return {"file": file, "sound": False, "in_force": "", "problems": problems}
    defaults = {"rules_by_default": _modes_by_default(held)} if isinstance(held, Policy) else {}
    return {"file": file, "sound": True, "in_force": _in_force(held), "problems": [], **defaults}


def _modes_by_default(policy: Policy) -> dict[str, str]:
    """The rules of admission that the file does not name, with the mode that they have therefore."""
    rules = policy.admission.rules
    return {rule.value: rules[rule].value for rule in rules.by_default}


def _defaults(held: Policy | GpuFacts) -> Iterator[str]:
    modes = _modes_by_default(held) if isinstance(held, Policy) else {}
    if modes:
        listed = ", ".join(f"{rule}: {mode}" for rule, mode in modes.items())
        yield f"admission.rules does not name every rule; these have their shipped mode: {listed}"


def _in_force(held: Policy | GpuFacts) -> str:
    return ", ".join(_policy_values(held) if isinstance(held, Policy) else _facts_values(held))


def _policy_values(policy: Policy) -> Iterator[str]:
    allocatable = policy.oversubscription
    yield f"{policy.resources.memory} in {memory_unit(policy.resources.memory_unit_mib).name}"
    yield f"{policy.placement} placement"
    memory, threads = allocatable.memory_percent, allocatable.thread_percent
    yield f"{memory} % of a GPU's memory and {threads} % of its threads allocatable"
    yield f"hostIPC {policy.admission.host_ipc}"
    yield f"{len(policy.admission.blocked_environment)} patterns of blocked environment"
    yield f"memory over the grant: {policy.violations.memory_over_grant.action}"
    yield f"exclusive process {'on' if policy.exclusive_process else 'off'}"
    yield f"canary {policy.canary}"


def _facts_values(facts: GpuFacts) -> Iterator[str]:
    largest = facts.largest_room
    yield f"{len(facts.capabilities)} compute capabilities ({sum(row.measured for row in facts.capabilities)} measured)"
    yield f"{len(facts.cards)} cards ({sum(card.measured for card in facts.cards)} measured)"
    yield f"the largest is {largest.card.name} with {largest.mib} MiB for programs"
