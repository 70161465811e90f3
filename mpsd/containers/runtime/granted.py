"""What mpsd answers about a container: `grants.rules.container_messages` as they arrive.

One rule: what is not of the form that this version knows is refused before anything is changed.
"""

from mpsd.containers.runtime.asking import Answer
from mpsd.containers.runtime.fields import rows, table, text, texts, word
from mpsd.containers.runtime.refused import Refused

_ANSWER = "mpsd's answer"
CREATED = 201
NOTHING_ASKED = 204
_NOT_FOUND = 404


class Mount:
    """A folder of this machine, seen in the container at `inside`."""

    def __init__(self, source: str, inside: str, read_only: bool) -> None:
        self.source = source
        self.inside = inside
        self.read_only = read_only


class Device:
    """A device node of this machine, made again in the container at `inside`, for `access`."""

    def __init__(self, source: str, inside: str, access: str) -> None:
        self.source = source
        self.inside = inside
        self.access = access


class Granted:
    """What goes into the bundle."""

    def __init__(self, body: object) -> None:
        """Refused."""
        answer = table(body, _ANSWER)
        self.grant = text(answer, "grant", _ANSWER)
        self.environment = environment(answer)
        self.mounts = [_mount(row) for row in rows(answer, "mounts", _ANSWER)]
        self.devices = [_device(row) for row in rows(answer, "devices", _ANSWER)]
        self.messages = texts(answer, "messages", _ANSWER)


def environment(answer: dict[str, object]) -> dict[str, str]:
    """Its variables. Refused."""
    read = table(answer.get("environment"), f"{_ANSWER}: environment")
    for name in read:
        if not name or "=" in name or "\0" in name:
            raise Refused(f"{_ANSWER} names a variable {name!a}; see its log")
    return {name: word(value, f"{_ANSWER}: environment: {name}") for name, value in read.items()}


def refusal(answer: Answer) -> Refused:
    """Why mpsd refuses, in its own words where it has any."""
    reasons = texts(answer.body, "reasons", _ANSWER) if isinstance(answer.body, dict) else []
    if not reasons and answer.status == _NOT_FOUND:
        return Refused("the mpsd that runs here knows nothing of containers; upgrade it")
    return Refused(*reasons) if reasons else Refused(f"mpsd answers {answer.status} and no reason; see its log")


def _mount(row: object) -> Mount:
    read = table(row, f"{_ANSWER}: a mount")
    return Mount(_path(read, "source"), _path(read, "inside"), read.get("read_only") is not False)


def _device(row: object) -> Device:
    read = table(row, f"{_ANSWER}: a device")
    access = text(read, "access", _ANSWER)
    if not access or access.strip("rwm"):
        raise Refused(f"{_ANSWER} names the access {access!a}; see its log")
    return Device(_path(read, "source"), _path(read, "inside"), access)


def _path(read: dict[str, object], name: str) -> str:
    path = text(read, name, _ANSWER)
    if not path.startswith("/"):
        raise Refused(f"{_ANSWER} names the path {path!a}, which is not absolute; see its log")
    return path
