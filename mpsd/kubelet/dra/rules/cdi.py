"""The file by which a container runtime gives containers what a claim has, and what is read back
from it.

Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from collections.abc import Mapping
from typing import Any

from mpsd.kubelet.dra.rules.claims import PreparedClaim
from mpsd.kubelet.rules.allocation import Answer
from mpsd.model.cuda_limit_parser import THREAD_PERCENT
from mpsd.model.fields import FieldReader

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
    end = ".json"
    return file[len(start) : -len(end)] if file.startswith(start) and file.endswith(end) else ""


def started_with(spec: object, variable: str = THREAD_PERCENT) -> int | None:
    """The number that a file of `spec_of` gives its containers in this variable; None where it
    gives none."""
    fields = FieldReader()
    devices = fields.entries(spec, "devices", "") if isinstance(spec, dict) else []
    texts = (
        fields.texts(fields.mapping(each, "containerEdits", ""), "env", "")
        for _where, each in devices
    )
    pairs = (text.partition("=") for each in texts for text in each)
    value = next((value for name, _is, value in pairs if name == variable), "")
    return int(value) if value.isascii() and value.isdecimal() else None


def spec_of(driver: str, claim: PreparedClaim, answer: Answer) -> Mapping[str, Any]:
    """What the container runtime gives to a container with any device of the claim, beside those
    that `answer.cdi` names."""
    edits: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in answer.environment.items()],
        "deviceNodes": [
            {"path": node.inside, "hostPath": node.source, "permissions": node.access}
            for node in answer.devices
        ],
        "mounts": [
            {
                "hostPath": mount.source,
                "containerPath": mount.inside,
                "options": ["rbind", "rprivate", "ro" if mount.read_only else "rw"],
            }
            for mount in answer.mounts
        ],
    }
    return {
        "cdiVersion": _VERSION,
        "kind": f"{driver}/{_CLASS}",
        "devices": [
            {"name": f"{claim.uid}-{one.device}", "containerEdits": edits} for one in claim.devices
        ],
    }
