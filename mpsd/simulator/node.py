"""A simulated machine with GPUs, in a folder.

What the simulator knows about a card comes from `limits/gpus.yaml`, worked out into tables here, so that the
programs need neither that file nor its reader.
"""

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import mpsd
from mpsd.model.gpu_facts import Capability, Card, GpuFacts
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.simulator import card
from mpsd.simulator.gpus import FOLDER, MIB, SimulatedGpu, card_path, device_path, read_gpus, uvm_path

# NVML's total less CUDA's, read off an H200 (driver 580.159.04); taken to be the same on every card.
RESERVED_MIB = 616

MOST_GPUS = 16

_HOME = Path(mpsd.__file__).parents[1]  # where Python finds this package

_PROGRAMS = {"nvidia-cuda-mps-control": "mpsd.simulator.mps.control_daemon", "sim-cuda": "mpsd.simulator.cuda_client"}
_ASKED = re.compile(r"(?P<short>[A-Za-z0-9-]+?)(?:[×xX*](?P<count>[0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """The machine: its folder and its GPUs."""

    folder: Path
    gpus: tuple[SimulatedGpu, ...]

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process's environment needs for it to be on this machine."""
        path = os.environ.get("PATH", os.defpath)
        return {"PATH": f"{self.folder / 'bin'}{os.pathsep}{path}", FOLDER: str(self.folder)}

    def card(self, ordinal: int) -> card.CardView:
        """The state of one GPU: who holds what; where `lost` and `mig` can be set to rehearse a failure."""
        return card.CardView(card_path(self.folder, self.gpus[ordinal]))


def cards_asked(text: str, facts: GpuFacts) -> tuple[Card, ...]:
    """The cards in a text such as `H200×2` or `A30x2,T4`; InvalidInput with every problem in it."""
    cards: list[Card] = []
    problems: list[Problem] = []
    for entry in text.split(","):
        found = _cards_of_entry(entry.strip(), facts)
        if isinstance(found, Problem):
            problems.append(found)
        else:
            cards += found
    if not problems and len(cards) > MOST_GPUS:
        problems.append(_too_many(text, len(cards)))
    if problems:
        raise InvalidInput("simulated GPUs", problems)
    return tuple(cards)


def _cards_of_entry(entry: str, facts: GpuFacts) -> list[Card] | Problem:
    match = _ASKED.fullmatch(entry)
    count = int(match["count"] or 1) if match else 0
    if match is None or count == 0:
        return _problem("gpus-unreadable", entry, "is not a card and a count", "write it like H200×2 or A30x2,T4")
    if count > MOST_GPUS:
        return _too_many(entry, count)
    named = [known for known in facts.cards if known.short.lower() == match["short"].lower()]
    if not named:
        names = ", ".join(known.short for known in facts.cards)
        return _problem("gpu-unknown", match["short"], "is not a card the simulator can play", f"write one of {names}")
    return named * count


def _too_many(asked: str, count: int) -> Problem:
    message = f"is {count} GPUs, and a simulated machine has at most {MOST_GPUS}"
    return _problem("too-many-gpus", asked, message, f"ask for {MOST_GPUS} or fewer")


def _problem(rule: str, value: str, message: str, remedy: str) -> Problem:
    return Problem(rule=rule, where="gpus", value=shown(value), message=message, remedy=remedy)


def create_node(folder: Path, cards: Sequence[Card], capabilities: Sequence[Capability]) -> SimulatedNode:
    """Make a simulated machine with these cards; the folder must not hold one yet."""
    by_name = {row.compute_capability: row for row in capabilities}
    gpus = [_gpu(folder, ordinal, model, by_name[model.compute_capability]) for ordinal, model in enumerate(cards)]
    for place in ("bin", "programs"):
        (folder / place).mkdir(parents=True)
    for gpu in gpus:
        card.create_card(card_path(folder, gpu), gpu.memory_mib * MIB)
    for path in (uvm_path(folder), *(device_path(folder, gpu) for gpu in gpus)):
        path.touch()
        path.chmod(0o666)
    for program, module in _PROGRAMS.items():
        _write_program(folder, program, module)
    (folder / "gpus.json").write_text(json.dumps([asdict(gpu) for gpu in gpus]))
    return open_node(folder)


def open_node(folder: Path) -> SimulatedNode:
    """The machine that `create_node` made in this folder."""
    return SimulatedNode(folder, read_gpus(folder))


def _gpu(folder: Path, ordinal: int, model: Card, capability: Capability) -> SimulatedGpu:
    return SimulatedGpu(
        ordinal=ordinal,
        uuid=_uuid(f"{folder}/{ordinal}"),
        name=model.name,
        pci_id=f"00000000:00:{6 + ordinal:02x}.0",
        compute_capability=model.compute_capability,
        memory_mib=model.memory_mib,
        reserved_mib=RESERVED_MIB,
        sms=model.sms,
        cores_per_sm=capability.cores_per_sm,
        clients=capability.clients,
        server_mib=capability.server_mib,
        sms_by_percent=[0, *(capability.sms_given(percent, model.sms) for percent in range(1, 101))],
        context_mib_by_sms=[capability.context_cost_mib(sms) for sms in range(model.sms + 1)],
        reserved_kib_by_sms=[capability.reserved_kib(sms) for sms in range(model.sms + 1)],
    )


def _uuid(seed: str) -> str:
    digits = hashlib.sha256(seed.encode()).hexdigest()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))


def _write_program(folder: Path, program: str, module: str) -> None:
    """A wrapper that knows its machine, for callers with an environment of their own.

    What it starts is a file of the program's own name. -S and the end without a clean-up: a question to the daemon is a
    process each time, and a third of it would be looking for packages, of which nothing here needs any, and tidying up.
    -P: whatever lies in the caller's current directory is not imported.
    """
    script = folder / "programs" / program
    script.write_text(
        "import os, sys\n"
        f"sys.path[:0] = [{str(_HOME)!r}]\n"
        f"from {module} import main\n"
        "code = main()\n"
        "sys.stdout.flush()\n"
        "os._exit(code)\n"
    )
    wrapper = folder / "bin" / program
    wrapper.write_text(
        "#!/bin/sh\n"
        f"export {FOLDER}={shlex.quote(str(folder))}\n"
        f'exec {shlex.quote(sys.executable)} -S -P {shlex.quote(str(script))} "$@"\n'
    )
    wrapper.chmod(0o755)
