"""The grants of programs and containers as they are kept on disk, one file each."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mpsd.model.grants import Grant
from mpsd.model.identity import HostContainer, ProcessIdentity, process_of
from mpsd.model.problem import program_of
from mpsd.platform import processes, records
from mpsd.platform.containers import ProgramCgroups
from mpsd.platform.rules.cgroups import Cgroup

# how the file of a container's grant ends; a program's ends in .json alone
CONTAINER = ".container.json"


@dataclass(frozen=True, slots=True)
class _WithCgroups(Grant):
    ending: ClassVar = ".json"
    cgroups: tuple[Cgroup, ...] = ()

    @property
    def is_somewhere(self) -> bool:
        """Whether the kernel says by cgroups which processes are under it."""
        return bool(self.cgroups)

    @property
    def own_cgroups(self) -> tuple[str, ...]:
        return tuple(one.path for one in self.cgroups if not one.hierarchy)


@dataclass(frozen=True, slots=True)
class ProgramGrant(_WithCgroups):
    """A grant to a program of this machine. cgroups: the one that mpsd made for it; none where it
    could not."""

    holder: ProcessIdentity


@dataclass(frozen=True, slots=True)
class ContainerGrant(_WithCgroups):
    """A grant to a container without Kubernetes. oom_script: called before a process of it is ended
    for its memory; empty for none. runtime: the program that made the container. cgroups: its own;
    none before the container is made."""

    ending: ClassVar = CONTAINER
    holder: HostContainer
    oom_script: str = ""
    runtime: str = "runc"

    @property
    def is_somewhere(self) -> bool:
        return self.holder.is_made


KeptGrant = ProgramGrant | ContainerGrant


def living(folder: Path) -> list[str]:
    """The holders on disk that may still start programs on their GPUs: those that live, or in whose
    cgroups processes do, and of records that cannot be read; in words."""
    found = []
    programs = ProgramCgroups()
    for path in folder.glob("*.json"):
        try:
            grant = read_grant(path)
        except records.UnreadableRecord as error:
            why = f"whose record cannot be read ({path}: {error.reason})"
            found.append(f"the holder of grant {id_of(path)}, {why}")
            continue
        if grant:
            holder = process_of(grant.holder)
            if processes.is_alive(holder) or others_live(grant, programs):
                found.append(f"{holder}: {program_of(grant.command)}")
    return found


def others_live(grant: KeptGrant, programs: ProgramCgroups) -> bool:
    """Of a grant whose holder has ended; a container ends with its first process."""
    is_program = isinstance(grant, ProgramGrant) and grant.holder.boot_id == processes.boot_id()
    return is_program and any(map(programs.has_processes, grant.cgroups))


def read_grant(path: Path) -> KeptGrant | None:
    kind: type[KeptGrant] = ContainerGrant if path.name.endswith(CONTAINER) else ProgramGrant
    grant = records.read(path, kind)
    if grant and (grant.id != id_of(path) or not grant.parts):
        raise records.UnreadableRecord(
            path, f"it is the record of grant {grant.id}, of {len(grant.parts)} GPUs"
        )
    return grant


def id_of(path: Path) -> str:
    return path.name.removesuffix(CONTAINER).removesuffix(".json")
