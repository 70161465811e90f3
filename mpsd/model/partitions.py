"""Static SM partitions of MPS: parts of a GPU's SMs that belong to their clients alone (docs/hardware.md).

Documented, not observed. A control daemon that was started with -S divides the SMs of its GPU into chunks; a partition
is some of them, and a client that names none gets no context. Source: NVIDIA, Multi-Process Service, release 615.
"""

from collections.abc import Iterable
from dataclasses import dataclass

CONTROLLER = 13010  # the first `nvidia-cuda-mps-control -v` that has them (Isaac ROS, "MPS GPU partitioning")


@dataclass(frozen=True, slots=True)
class Partition:
    """name: the value of CUDA_MPS_SM_PARTITION for it, the GPU's UUID and what the daemon calls it. in_use: whether a
    client is in it, so that it cannot be removed."""

    name: str
    chunks: int
    sms: int
    in_use: bool


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition that a grant was given. name: what its programs are started with, so that they can be in no other."""

    name: str
    chunks: int


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """What a daemon says of its one GPU. chunks: how many there are in all; SMs that make no whole chunk belong to
    nobody. lost: the names of partitions of an earlier daemon, whose programs cannot be told of another one."""

    chunks: int
    partitions: tuple[Partition, ...] = ()
    lost: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(partition.name for partition in self.partitions)

    def of(self, names: Iterable[str]) -> tuple[Partition, ...]:
        """Those of these names that are there."""
        wanted = frozenset(names)
        return tuple(partition for partition in self.partitions if partition.name in wanted)

    def missing(self, held: Iterable[HeldPartition]) -> tuple[HeldPartition, ...]:
        """Those of a grant that are to be made anew, since they were an earlier daemon's."""
        return tuple(one for one in held if one.name not in self.names and one.name not in self.lost)

    def strays(self, held: Iterable[HeldPartition]) -> tuple[Partition, ...]:
        """The partitions that belong to no grant. held: of all grants."""
        names = {one.name for one in held}
        return tuple(one for one in self.partitions if one.name not in names)


@dataclass(frozen=True, slots=True)
class ChunkRoom:
    """How many chunks of a GPU are free, and how many there are."""

    free: int
    chunks: int

    def holds(self, *percents: int | None) -> bool:
        """Each of these shares has chunks of its own. Nothing where one asks for none: a client without a partition
        gets no context."""
        return all(percents) and sum(chunks_for(percent or 0, self.chunks) for percent in percents) <= self.free


def chunks_for(percent: int, chunks: int) -> int:
    """The fewest of `chunks` chunks that are no less than this percentage, 1 to 100, of them."""
    return max(1, -(-percent * chunks // 100))


def chunks_needed(percent: int, room: ChunkRoom) -> str:
    """How many chunks a share takes and how many are free, in plain words."""
    needed = chunks_for(percent, room.chunks)
    takes = f"{percent} % of its threads {'take' if percent > 1 else 'takes'} {needed} of the {room.chunks} chunks"
    return f"{takes} of its SMs, and {max(0, room.free)} {'is' if room.free == 1 else 'are'} free"


NO_SHARE = "its SMs are divided into static partitions, so that a program without a share of the threads can have none"
