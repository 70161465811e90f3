"""A simulated machine with GPUs, in a folder.

What the simulator knows about a card comes from `limits/gpus.yaml`, worked out into tables here, so
that the programs need neither that file nor its reader.
"""

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from pathlib import Path

import mpsd
from mpsd.model.gpu_facts import Capability, Card, GpuFacts, MigProfile
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.simulator import card
from mpsd.simulator.gpus import (
    FOLDER,
    MIB,
    SimulatedGpu,
    card_path,
    device_path,
    gpus_path,
    read_gpus,
    uvm_path,
)

# NVML's total less CUDA's, read off an H200 (driver 580.159.04); taken to be the same on every
# card.
RESERVED_MIB = 616
# Of a MIG instance (documented, not observed): of an A100's 1g.10gb nvidia-smi shows 9856 MiB, CUDA
# 9728.
INSTANCE_RESERVED_MIB = 128

MOST_GPUS = 16

_HOME = Path(mpsd.__file__).parents[1]  # where Python finds this package

_PROGRAMS = {
    "nvidia-cuda-mps-control": "mpsd.simulator.mps.control_daemon",
    "sim-cuda": "mpsd.simulator.cuda_client",
}
_TIMES = r"(?:[×xX*](?P<count>[0-9]{1,9}))?"
_ASKED = re.compile(rf"(?P<short>[A-Za-z0-9-]+?){_TIMES}")
_PARTS = re.compile(r"(?P<short>[A-Za-z0-9-]+):(?P<parts>.+)")
_PROFILE = re.compile(rf"(?P<profile>[0-9]+g\.[0-9]+gb){_TIMES}")
# The ids that the driver gives to GPU instances begin here, by their compute slices ("Creating GPU
# instances" of the MIG user guide); those of one size follow each other.
_FIRST_ID = {7: 0, 4: 1, 3: 1, 2: 3, 1: 7}


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
        """The state of one GPU: who holds what; where `lost` and `mig` can be set to rehearse a
        failure."""
        return card.CardView(card_path(self.folder, self.gpus[ordinal]))

    def divide(
        self, ordinal: int, profiles: Sequence[MigProfile], capability: Capability
    ) -> "SimulatedNode":
        """Rehearses a change of the GPU's MIG layout: it has these instances from now on, in place
        of those it had; MIG is off where there is none. An instance of a size that was there is the
        same one. capability: of the GPU. What processes hold of an instance that goes they keep, as
        no driver would let them."""
        whole = self.gpus[ordinal]
        others = [gpu for gpu in self.gpus if gpu.parent != whole.uuid]
        parts = tuple(instances_of(whole, profiles, capability))
        for part in parts:
            if not card_path(self.folder, part).exists():
                card.create_card(card_path(self.folder, part), part.memory_mib * MIB)
        _write_gpus(self.folder, [*others, *parts])
        self.card(ordinal).mig = bool(parts)
        return open_node(self.folder)

    def regenerate(self, ordinal: int, compute_capability: str) -> "SimulatedNode":
        """Has the GPU be of this compute capability for whoever opens NVML from now on."""
        whole = replace(self.gpus[ordinal], compute_capability=compute_capability)
        _write_gpus(self.folder, [*self.gpus[:ordinal], whole, *self.gpus[ordinal + 1 :]])
        return open_node(self.folder)


@dataclass(frozen=True, slots=True)
class DividedCard(Card):
    """A card with MIG on, and its instances."""

    profiles: tuple[MigProfile, ...] = ()


def cards_asked(text: str, facts: GpuFacts) -> tuple[Card, ...]:
    """The cards in a text such as `H200×2` or `A30x2,T4`; one with MIG instances as
    `A100:3g.40gb×2`, several sizes with + between. InvalidInput with every problem in it."""
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


def _cards_of_entry(entry: str, facts: GpuFacts) -> Sequence[Card] | Problem:
    if divided := _PARTS.fullmatch(entry):
        return _divided_card(divided["short"], divided["parts"], facts)
    match = _ASKED.fullmatch(entry)
    count = int(match["count"] or 1) if match else 0
    if match is None or count == 0:
        return _problem(
            "gpus-unreadable",
            entry,
            "is not a card and a count",
            "write it like H200×2 or A30x2,T4",
        )
    if count > MOST_GPUS:
        return _too_many(entry, count)
    named = _card_named(match["short"], facts)
    return named if isinstance(named, Problem) else [named] * count


def _card_named(short: str, facts: GpuFacts) -> Card | Problem:
    for known in facts.cards:
        if known.short.lower() == short.lower():
            return known
    names = ", ".join(known.short for known in facts.cards)
    return _problem(
        "gpu-unknown", short, "is not a card the simulator can play", f"write one of {names}"
    )


def _divided_card(short: str, parts: str, facts: GpuFacts) -> Sequence[Card] | Problem:
    """One card with MIG instances."""
    whole = _card_named(short, facts)
    if isinstance(whole, Problem):
        return whole
    known = {row.profile: row for row in facts.profiles(whole)}
    if not known:
        names = ", ".join(dict.fromkeys(row.card for row in facts.mig))
        message = "has no MIG instances that the simulator can play"
        return _problem("mig-unknown", whole.short, message, f"write one of {names}")
    found: list[MigProfile] = []
    for part in parts.split("+"):
        match = _PROFILE.fullmatch(part)
        count = int(match["count"] or 1) if match else 0
        if match is None or match["profile"] not in known or not 0 < count <= MOST_GPUS:
            names = ", ".join(known)
            remedy = (
                f"write one of {names}, and a count after it, such as"
                f" {whole.short}:{next(iter(known))}×2"
            )
            return _problem(
                "mig-unknown", part, f"is not a MIG instance of {whole.short} and a count", remedy
            )
        found += [known[match["profile"]]] * count
    if why := why_not_together(found):
        message = f"does not fit on one {whole.short}: {why}"
        return _problem(
            "mig-too-large", f"{whole.short}:{parts}", message, "ask for fewer or smaller instances"
        )
    values = {each.name: getattr(whole, each.name) for each in fields(Card)}
    return [DividedCard(**values, profiles=tuple(found))]


def _too_many(asked: str, count: int) -> Problem:
    message = f"is {count} GPUs, and a simulated machine has at most {MOST_GPUS}"
    return _problem("too-many-gpus", asked, message, f"ask for {MOST_GPUS} or fewer")


def _problem(rule: str, value: str, message: str, remedy: str) -> Problem:
    return Problem(rule=rule, where="gpus", value=shown(value), message=message, remedy=remedy)


def create_node(
    folder: Path, cards: Sequence[Card], capabilities: Sequence[Capability]
) -> SimulatedNode:
    """Make a simulated machine with these cards; the folder must not hold one yet."""
    by_name = {row.compute_capability: row for row in capabilities}
    gpus = [
        _gpu(folder, ordinal, model, by_name[model.compute_capability])
        for ordinal, model in enumerate(cards)
    ]
    for place in ("bin", "programs"):
        (folder / place).mkdir(parents=True)
    for gpu in gpus:
        card.create_card(card_path(folder, gpu), gpu.memory_mib * MIB)
    for path in (uvm_path(folder), *(device_path(folder, gpu) for gpu in gpus)):
        path.touch()
        path.chmod(0o666)
    for program, module in _PROGRAMS.items():
        _write_program(folder, program, module)
    _write_gpus(folder, gpus)
    node = open_node(folder)
    for ordinal, model in enumerate(cards):
        if isinstance(model, DividedCard):
            node = node.divide(ordinal, model.profiles, by_name[model.compute_capability])
    return node


def _write_gpus(folder: Path, gpus: Sequence[SimulatedGpu]) -> None:
    """In one piece: every simulated program reads it at its start."""
    new = gpus_path(folder).with_suffix(".new")
    new.write_text(json.dumps([asdict(gpu) for gpu in gpus]))
    new.replace(gpus_path(folder))


def open_node(folder: Path) -> SimulatedNode:
    """The machine that `create_node` made in this folder."""
    return SimulatedNode(folder, read_gpus(folder))


def _gpu(folder: Path, ordinal: int, model: Card, capability: Capability) -> SimulatedGpu:
    return SimulatedGpu(
        ordinal=ordinal,
        uuid=_uuid("GPU", f"{folder}/{ordinal}"),
        name=model.name,
        pci_id=f"00000000:00:{6 + ordinal:02x}.0",
        compute_capability=model.compute_capability,
        memory_mib=model.memory_mib,
        reserved_mib=RESERVED_MIB,
        sms=model.sms,
        cores_per_sm=capability.cores_per_sm,
        clients=capability.clients,
        server_mib=capability.server_mib,
        sms_by_percent=_sms_by_percent(model.sms, capability),
        context_mib_by_sms=_context_mib_by_sms(model.sms, capability),
        reserved_kib_by_sms=[capability.reserved_kib(sms) for sms in range(model.sms + 1)],
    )


def _sms_by_percent(sms: int, capability: Capability) -> list[int]:
    return [0, *(capability.sms_given(percent, sms) for percent in range(1, 101))]


def _context_mib_by_sms(sms: int, capability: Capability) -> list[int]:
    return [capability.context_cost_mib(number) for number in range(sms + 1)]


def instances_of(
    whole: SimulatedGpu, profiles: Sequence[MigProfile], capability: Capability
) -> Iterator[SimulatedGpu]:
    """The instances of a GPU with this layout: one compute instance in each GPU instance."""
    taken: set[int] = set()
    for row in profiles:
        slices = int(row.profile[0])
        number = _FIRST_ID[slices]
        while number in taken:
            number += 1
        taken.add(number)
        yield replace(
            whole,
            uuid=_uuid("MIG", f"{whole.uuid}/{row.profile}/{number}"),
            name=f"{whole.name} MIG {row.profile}",
            memory_mib=row.memory_mib,
            reserved_mib=INSTANCE_RESERVED_MIB,
            sms=row.sms,
            clients=capability.of_part(row.part).clients,
            sms_by_percent=_sms_by_percent(row.sms, capability),
            context_mib_by_sms=_context_mib_by_sms(row.sms, capability),
            parent=whole.uuid,
            profile=row.profile,
            gpu_instance=number,
            slices=slices,
            of_slices=slices,
        )


def _uuid(kind: str, seed: str) -> str:
    digits = hashlib.sha256(seed.encode()).hexdigest()
    return f"{kind}-" + "-".join(
        (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32])
    )


def _write_program(folder: Path, program: str, module: str) -> None:
    """A wrapper that knows its machine, for callers with an environment of their own.

    What it starts is a file of the program's own name. -S and the end without a clean-up: a
    question to the daemon is a process each time, and a third of it would be looking for packages,
    of which nothing here needs any, and tidying up. -P: whatever lies in the caller's current
    directory is not imported.
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


def why_not_together(profiles: Sequence[MigProfile]) -> str:
    """Why one GPU cannot have all these instances; empty where it can. Where they lie on it is not
    looked at."""
    for what, parts in (
        ("SMs", [row.compute for row in profiles]),
        ("memory", [row.memory for row in profiles]),
    ):
        if sum(map(Fraction, parts)) > 1:
            return f"they take {' + '.join(parts)} of its {what}"
    return ""
