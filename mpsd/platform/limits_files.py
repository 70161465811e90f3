"""The two limits files, what pods may have and the facts about GPUs, read at start and again
whenever they change.

At start a bad file is fatal; later the last good pair stays in force, and what is wrong is reported
once.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import mpsd
from mpsd.model import strict_reader
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput
from mpsd.platform.yaml_files import UnreadableFile, read_yaml

if TYPE_CHECKING:  # who only reads the files once writes no log
    from mpsd.platform.logs import Logger

POLICY_FILE = "policy.yaml"
GPU_FACTS_FILE = "gpus.yaml"
_LOOK_S = 2.0

Held = TypeVar("Held", Policy, GpuFacts)


@dataclass(frozen=True, slots=True)
class Limits:
    """A pair of files that were both good."""

    policy: Policy
    facts: GpuFacts


@dataclass(frozen=True, slots=True)
class LimitsReading:
    """What each file holds, or everything that is wrong with it."""

    policy: Policy | InvalidInput
    facts: GpuFacts | InvalidInput

    def limits(self) -> Limits:
        """The pair; InvalidInput with every fault of both files, each problem's place led by its
        file."""
        if not isinstance(self.policy, InvalidInput) and not isinstance(self.facts, InvalidInput):
            return Limits(self.policy, self.facts)
        errors = [part for part in (self.policy, self.facts) if isinstance(part, InvalidInput)]
        if len(errors) == 1:
            raise errors[0]
        kind = (
            UnreadableFile
            if any(isinstance(error, UnreadableFile) for error in errors)
            else InvalidInput
        )
        found = ((error.subject, problem) for error in errors for problem in error.problems)
        raise kind(
            "limits",
            [replace(problem, where=f"{subject}: {problem.where}") for subject, problem in found],
        )


def shipped_folder() -> Path:
    """The limits that came with mpsd: inside an installed wheel, else beside the package in a
    checkout."""
    package = Path(mpsd.__file__).parent
    packaged = package / "_limits"
    return packaged if packaged.is_dir() else package.parent / "limits"


def read_limits(folder: Path) -> LimitsReading:
    return LimitsReading(
        _read(folder / POLICY_FILE, read_policy), _read(folder / GPU_FACTS_FILE, read_gpu_facts)
    )


def load_limits(folder: Path | None) -> Limits:
    """The limits in a folder, None for those shipped; InvalidInput with every fault of both
    files."""
    return read_limits(folder or shipped_folder()).limits()


class LimitsFiles:
    """The limits in force. `policy` and `facts` are always a pair that was good together."""

    def __init__(self, folder: Path | None = None) -> None:
        """Reads both files; InvalidInput where they cannot be used. folder None: the limits
        shipped."""
        self.folder = folder or shipped_folder()
        # why the files as they are now are not in force; None while they are
        self.wrong: InvalidInput | None = None
        self._seen = self._stamps()
        self._limits = load_limits(self.folder)

    @property
    def policy(self) -> Policy:
        return self._limits.policy

    def policy_now(self) -> Policy:
        return self._limits.policy

    @property
    def facts(self) -> GpuFacts:
        return self._limits.facts

    def read_again(self) -> InvalidInput | None:
        """Takes changed files into force, or says what keeps them out: once a change, None at every
        other call.

        Costs two stat calls while nothing changes. A ConfigMap's files are symbolic links that are
        swapped, which shows in the inode. Files that were only touched, as kubelet does where a pod
        has an fsGroup, leave the very same policy and facts in force.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return None
        # taken before reading, so that a change while reading is seen at the next call
        self._seen = stamps
        try:
            found = load_limits(self.folder)
            self._limits = self._limits if found == self._limits else found
            self.wrong = None
        except InvalidInput as error:
            before = self.wrong
            self.wrong = error
            # as for want of descriptors: it may be readable without a change
            if isinstance(error, UnreadableFile):
                self._seen = ()
                return None if str(error) == str(before) else error
        return self.wrong

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        """What changes with each file; empty while there is none."""
        stamps: list[tuple[int, ...]] = [(), ()]
        for position, name in enumerate((POLICY_FILE, GPU_FACTS_FILE)):
            with suppress(OSError):
                now = (self.folder / name).stat()
                stamps[position] = (
                    now.st_dev,
                    now.st_ino,
                    now.st_size,
                    now.st_mtime_ns,
                    now.st_ctime_ns,
                )
        return tuple(stamps)


def _read(path: Path, read: Callable[[object, str], Held]) -> Held | InvalidInput:
    subject = str(path)
    try:
        documents = read_yaml(subject)
        if len(documents) > 1:
            place = f"line {documents[1].line}"
            message = "a second document starts here, and one is read"
            return InvalidInput.of(subject, "several-documents", place, "", message, "remove it")
        return read(documents[0].value if documents else None, subject)
    except InvalidInput as error:
        return error


async def watch_limits(
    files: LimitsFiles, log: "Logger", looked: Callable[[], None] = lambda: None
) -> None:
    """Reads changed files within seconds, until it is cancelled. looked: called after every
    look."""
    from asyncio import sleep  # `mpsd check` and `explain` read these files without an event loop

    while True:
        await sleep(_LOOK_S)
        wrong = files.read_again()
        looked()
        if wrong:
            log.error("limits kept", reason=str(wrong))


class PinnedResources:
    """The policy in force, with the resources that this process began with: the very same object as
    before while nothing has changed.

    What kubelet was offered under a name and in a unit is worth the same for as long as this
    process runs. Were it counted anew while pods hold it, all of them could be over their grants
    from one look to the next.
    """

    def __init__(self, policy: Callable[[], Policy], log: "Logger") -> None:
        self._policy = policy
        self._log = log
        self._seen = self._pinned = policy()

    def __call__(self) -> Policy:
        now = self._policy()
        if now is not self._seen:
            before, self._seen, self._pinned = (
                self._seen,
                now,
                replace(now, resources=self._pinned.resources),
            )
            if now.resources not in (before.resources, self._pinned.resources):
                self._log.warning(
                    "resources kept",
                    reason="others count when the agent starts again, on an empty node",
                )
        return self._pinned


# -- from what a file holds to `Policy` or `GpuFacts`, or every problem in it ----------------------
# Nothing is guessed, nothing is ignored.

_SHIPPED = "the shipped file (`env -u MPSD_LIMITS mpsd check` prints its path)"


def read_policy(data: object, subject: str) -> Policy:
    """The policy in `data` (what a YAML file holds), or InvalidInput naming `subject` with every
    problem."""
    return _held(Policy, data, subject)


def read_gpu_facts(data: object, subject: str) -> GpuFacts:
    """The facts in `data` (what a YAML file holds), or InvalidInput naming `subject` with every
    problem."""
    return _held(GpuFacts, data, subject)


def _held(kind: type[Held], data: object, subject: str) -> Held:
    if not isinstance(data, dict):
        value = "nothing" if data is None else type(data).__name__
        message = "is not a mapping of fields"
        remedy = "start it with version: v1"
        raise InvalidInput.of(subject, "not-a-mapping", "the file", value, message, remedy)
    return strict_reader.read(kind, data, subject, _SHIPPED)
