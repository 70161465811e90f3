"""The two limits files, what pods may have and the facts about GPUs, read at start and again whenever they change.

At start a bad file is fatal; later the last good pair stays in force, and what is wrong is reported once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import mpsd
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.rules.limits_reading import read_gpu_facts, read_policy
from mpsd.platform.yaml_files import UnreadableFile, parse_yaml, read_bytes

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
        """The pair; InvalidInput with every fault of both files."""
        if isinstance(self.policy, InvalidInput) or isinstance(self.facts, InvalidInput):
            raise _together([part for part in (self.policy, self.facts) if isinstance(part, InvalidInput)])
        return Limits(self.policy, self.facts)


def shipped_folder() -> Path:
    """The limits that came with mpsd: inside an installed wheel, else beside the package in a checkout."""
    package = Path(mpsd.__file__).parent
    packaged = package / "_limits"
    return packaged if packaged.is_dir() else package.parent / "limits"


def limits_folder(named: Path | None) -> Path:
    """Where the limits are read: the folder that was named, None for the one shipped."""
    return named or shipped_folder()


def read_limits(folder: Path) -> LimitsReading:
    """Both files of a folder, good or bad."""
    return LimitsReading(
        _read(folder / POLICY_FILE, read_policy),
        _read(folder / GPU_FACTS_FILE, read_gpu_facts),
    )


def load_limits(folder: Path | None) -> Limits:
    """The limits in a folder, None for those shipped; InvalidInput with every fault of both files."""
    return read_limits(limits_folder(folder)).limits()


class LimitsFiles:
    """The limits in force. `policy` and `facts` are always a pair that was good together."""

    def __init__(self, folder: Path | None = None) -> None:
        """Reads both files; InvalidInput where they cannot be used. folder None: the limits shipped."""
        self.folder = limits_folder(folder)
        self.wrong: InvalidInput | None = None  # why the files as they are now are not in force; None while they are
        self._seen = self._stamps()
        self._limits = load_limits(self.folder)

    @property
    def policy(self) -> Policy:
        return self._limits.policy

    @property
    def facts(self) -> GpuFacts:
        return self._limits.facts

    def read_again(self) -> InvalidInput | None:
        """Takes changed files into force, or says what keeps them out: once a change, None at every other call.

        Costs two stat calls while nothing changes. A ConfigMap's files are symbolic links that are swapped, which
        shows in the inode. Files that were only touched, as kubelet does where a pod has an fsGroup, leave the very
        same policy and facts in force.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return None
        self._seen = stamps  # taken before reading, so that a change while reading is seen at the next call
        try:
            found = load_limits(self.folder)
            self._limits = self._limits if found == self._limits else found
            self.wrong = None
        except InvalidInput as error:
            self.wrong = error
        return self.wrong

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_stamp(self.folder / name) for name in (POLICY_FILE, GPU_FACTS_FILE))


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes with a file; empty while there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _read(path: Path, read: Callable[[object, str], Held]) -> Held | InvalidInput:
    subject = str(path)
    try:
        documents = parse_yaml(read_bytes(subject), subject)
        if len(documents) > 1:
            place, message = f"line {documents[1].line}", "a second document starts here, and one is read"
            raise InvalidInput(subject, [Problem("several-documents", place, "", message, "remove it")])
        return read(documents[0].value if documents else None, subject)
    except InvalidInput as error:
        return error


def _together(errors: list[InvalidInput]) -> InvalidInput:
    """One error for several files, each problem's place led by its file."""
    if len(errors) == 1:
        return errors[0]
    kind = UnreadableFile if any(isinstance(error, UnreadableFile) for error in errors) else InvalidInput
    return kind("limits", _with_files(errors))


def _with_files(errors: list[InvalidInput]) -> Iterator[Problem]:
    for error in errors:
        for found in error.problems:
            yield Problem(found.rule, f"{error.subject}: {found.where}", found.value, found.message, found.remedy)


async def watch_limits(files: LimitsFiles, log: "Logger", looked: Callable[[], None] = lambda: None) -> None:
    """Reads changed files within seconds, until it is cancelled. looked: called after every look."""
    from asyncio import sleep  # `mpsd check` and `explain` read these files without an event loop

    while True:
        await sleep(_LOOK_S)
        wrong = files.read_again()
        looked()
        if wrong:
            log.error("limits kept", reason=str(wrong))


class PinnedResources:
    """The policy in force, with the resources that this process began with: the very same object as before while
    nothing has changed.

    What kubelet was offered under a name and in a unit is worth the same for as long as this process runs. Were it
    counted anew while pods hold it, all of them could be over their grants from one look to the next.
    """

    def __init__(self, policy: Callable[[], Policy], log: "Logger") -> None:
        self._policy = policy
        self._log = log
        self._seen = self._pinned = policy()

    def __call__(self) -> Policy:
        now = self._policy()
        if now is not self._seen:
            before, self._seen, self._pinned = self._seen, now, replace(now, resources=self._pinned.resources)
            if now.resources not in (before.resources, self._pinned.resources):
                self._log.warning("resources kept", reason="others count when the agent starts again, on an empty node")
        return self._pinned
