"""The file by which a container runtime gives containers what a claim has, and what is read back
from it.

Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from mpsd.kubelet.dra.rules.claims import PreparedClaim
from mpsd.kubelet.rules.allocation import Answer
from mpsd.model.cuda_limit_parser import THREAD_PERCENT

_VERSION = "0.5.0"
_CLASS = "claim"


def name_of(driver: str, uid: str, device: str) -> str:
    """One device of a claim, by which kubelet names the GPU in the status of its pods. Its uid is
    never used again, so that no container can get what another one left."""
    return f"{driver}/{_CLASS}={uid}-{device}"


def file_of(driver: str, uid: str) -> str:
    return f"{driver}-{_CLASS}-{uid}.json"


def owner_of(driver: str, file: str) -> str:
    """The uid of the claim whose file this is; empty for a file of somebody else."""
    start = f"{driver}-{_CLASS}-"
    if not (file.startswith(start) and file.endswith(".json")):
        return ""
    return file.removeprefix(start).removesuffix(".json")


class _Edits(msgspec.Struct):
    env: tuple[str, ...]


class _Device(msgspec.Struct):
    edits: _Edits = msgspec.field(name="containerEdits")


class _Spec(msgspec.Struct):
    devices: tuple[_Device, ...]


def started_with(spec: bytes, variable: str = THREAD_PERCENT) -> int | None:
    """The number that a file of `spec_of` gives its containers in this variable; None where it
    gives none. ValueError for another file."""
    for device in msgspec.json.decode(spec, type=_Spec).devices:
        for text in device.edits.env:
            name, _is, value = text.partition("=")
            if name == variable and value.isascii() and value.isdecimal():
                return int(value)
    return None


def spec_of(driver: str, claim: PreparedClaim, answer: Answer) -> bytes:
    """What the container runtime gives to a container with any device of the claim, beside those
    that `answer.cdi` names."""
    mounts: list[Mapping[str, Any]] = []
    for mount in answer.mounts:
        options = ["rbind", "rprivate", "ro" if mount.read_only else "rw"]
        place = {"hostPath": mount.source, "containerPath": mount.inside}
        mounts.append({**place, "options": options})
    edits = {
        "env": [f"{name}={value}" for name, value in answer.environment.items()],
        "deviceNodes": [
            {"path": node.inside, "hostPath": node.source, "permissions": node.access}
            for node in answer.devices
        ],
        "mounts": mounts,
    }
    names = [f"{claim.uid}-{one.device}" for one in claim.devices]
    spec = {
        "cdiVersion": _VERSION,
        "kind": f"{driver}/{_CLASS}",
        "devices": [{"name": name, "containerEdits": edits} for name in names],
    }
    return msgspec.json.format(msgspec.json.encode(spec), indent=1)
