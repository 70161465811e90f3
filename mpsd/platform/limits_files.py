"""The two limits files, read at start and whenever they change.

At start a bad file is fatal; later the last good pair stays in force.
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
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.yaml_files import UnreadableFile, read_yaml

if TYPE_CHECKING:
    from mpsd.platform.logs import Logger

POLICY_FILE = "policy.yaml"
GPU_FACTS_FILE = "gpus.yaml"
_LOOK_S = 2.0

Held = TypeVar("Held", Policy, GpuFacts)


@dataclass(frozen=True, slots=True)
class Limits:
    policy: Policy
    facts: GpuFacts


@dataclass(frozen=True, slots=True)
class LimitsReading:
    policy: Policy | InvalidInput
    facts: GpuFacts | InvalidInput

    def limits(self) -> Limits:
        """The pair; InvalidInput with every fault of both files."""
        if not isinstance(self.policy, InvalidInput) and not isinstance(self.facts, InvalidInput):
            return Limits(self.policy, self.facts)
        errors = [part for part in (self.policy, self.facts) if isinstance(part, InvalidInput)]
        if len(errors) == 1:
            raise errors[0]
        kind = InvalidInput
        problems: list[Problem] = []
        for error in errors:
            if isinstance(error, UnreadableFile):
                kind = UnreadableFile
            problems += [
                replace(one, where=f"{error.subject}: {one.where}") for one in error.problems
            ]
        raise kind("limits", problems)


def shipped_folder() -> Path:
    """The limits inside a wheel, or beside the package in a checkout."""
    package = Path(mpsd.__file__).parent
    packaged = package / "_limits"
    return packaged if packaged.is_dir() else package.parent / "limits"


def read_limits(folder: Path) -> LimitsReading:
    policy = _read(folder / POLICY_FILE, read_policy)
    return LimitsReading(policy, _read(folder / GPU_FACTS_FILE, read_gpu_facts))


def load_limits(folder: Path | None) -> Limits:
    """None for those shipped. InvalidInput with every fault of both files."""
    return read_limits(folder or shipped_folder()).limits()


class LimitsFiles:
    """`policy` and `facts` are always a pair that was good together."""

    def __init__(self, folder: Path | None = None) -> None:
        """InvalidInput. folder None: the limits shipped."""
        self.folder = folder or shipped_folder()
        # None while the files are in force
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
        """What keeps changed files out of force: once a change, None at every other call. Files
        that were only touched leave the very same policy and facts."""
        stamps = self._stamps()
        if stamps == self._seen:
            return None
        # taken before reading, so that a change while reading is seen at the next call
        self._seen = stamps
        before = self.wrong
        self.wrong = None
        try:
            found = load_limits(self.folder)
            if found != self._limits:
                self._limits = found
        except InvalidInput as error:
            self.wrong = error
            # it may become readable without a change
            if isinstance(error, UnreadableFile):
                self._seen = ()
                return None if str(error) == str(before) else error
        return self.wrong

    def _stamps(self) -> tuple[tuple[object, ...], ...]:
        """What changes with each file; empty while there is none."""
        stamps = []
        for name in (POLICY_FILE, GPU_FACTS_FILE):
            stamp: tuple[object, ...] = ()
            with suppress(OSError):
                now = (self.folder / name).stat()
                stamp = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
            stamps.append(stamp)
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
    """looked: called after every look."""
    from asyncio import sleep  # `mpsd check` and `explain` read these files without an event loop

    while True:
        await sleep(_LOOK_S)
        wrong = files.read_again()
        looked()
        if wrong:
            log.error("limits kept", reason=str(wrong))


class PinnedResources:
    """The policy in force, with the resources that this process began with; the very same object
    while nothing has changed.

    What kubelet was offered under a name and in a unit keeps its worth: counted anew, all pods that
    hold it could be over their grants.
    """

    def __init__(self, policy: Callable[[], Policy], log: "Logger") -> None:
        self._policy = policy
        self._log = log
        self._seen = self._pinned = policy()

    def __call__(self) -> Policy:
        now = self._policy()
        if now is not self._seen:
            before = self._seen.resources
            self._seen = now
            self._pinned = replace(now, resources=self._pinned.resources)
            if now.resources not in (before, self._pinned.resources):
                why = "others count when the agent starts again, on an empty node"
                self._log.warning("resources kept", reason=why)
        return self._pinned


_SHIPPED = "the shipped file (`env -u MPSD_LIMITS mpsd check` prints its path)"


def read_policy(data: object, subject: str) -> Policy:
    """data: of a YAML file. InvalidInput naming `subject`, with every problem."""
    return _held(Policy, data, subject)


def read_gpu_facts(data: object, subject: str) -> GpuFacts:
    """As `read_policy`."""
    return _held(GpuFacts, data, subject)


def _held(kind: type[Held], data: object, subject: str) -> Held:
    if not isinstance(data, dict):
        value = "nothing" if data is None else type(data).__name__
        what = ("not-a-mapping", "the file", value, "is not a mapping of fields")
        raise InvalidInput.of(subject, *what, "start it with version: v1")
    return strict_reader.read(kind, data, subject, _SHIPPED)
