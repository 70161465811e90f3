"""What `mpsd run` and the agent say to each other about a grant.

One rule: names here are an interface between versions; fields are added, never renamed. Nothing is imported, because
every program that is started waits for this to load.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgramAsks:
    """As it was written. gpu_core None: no share of the threads. wait_s 0: an answer now or never."""

    gpu_mem: str
    gpu_core: str | None
    gpus: str
    wait_s: float
    command: str


@dataclass(frozen=True, slots=True)
class GrantAnswer:
    """grant: its id. environment: what the program is to be started with. path_first: a folder to put first on its
    PATH, or empty.
    """

    grant: str
    environment: dict[str, str]
    path_first: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """reasons: each a sentence. for_ever: asking again, or waiting, will not help."""

    reasons: tuple[str, ...]
    for_ever: bool
