"""Which annotations of a pod must be written.

One rule: only keys that are wanted are touched, and only on the very pod that is meant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpsd.model.identity import PodName


@dataclass(frozen=True, slots=True)
class PodMarks:
    """has: the pod's annotations as last seen. wants: those that it must have, the same from look to look."""

    pod: PodName
    has: Mapping[str, str]
    wants: Mapping[str, str]

    @property
    def missing(self) -> dict[str, str]:
        return {key: value for key, value in self.wants.items() if self.has.get(key) != value}


def marks_patch(marks: PodMarks) -> dict[str, Any]:
    """A merge patch, refused with a conflict where another pod has the name by now."""
    uid = {"uid": marks.pod.uid} if marks.pod.uid else {}
    return {"metadata": {**uid, "annotations": marks.missing}}
