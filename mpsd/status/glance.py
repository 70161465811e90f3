"""One look at the MPSNodes of a cluster for somebody who waits at a terminal: by kubectl, which
starts in a tenth of the time that our own client takes to load, and logs in as people are used to.

What a status is made of loads while it asks, so nothing of it is imported before. Where kubectl
cannot answer, the caller asks by `platform.kube`, which says what is wrong.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from mpsd.platform import clock

TYPE_CHECKING = False  # of typing, which takes as long to load as all that kubectl is asked with
if TYPE_CHECKING:
    from mpsd.model.cluster_status import ClusterNode, ClusterStatus

_ALL = "/apis/mpsd.io/v1alpha1/mpsnodes"
_DEADLINE_S = 15.0  # of the request, as in platform.kube
_LONGEST_S = 180.0  # with a log-in, which kubectl may ask a person for
_PATIENCE_S = 2.0  # then what kubectl says is shown: it may be asking for that log-in
_PAUSE_S = 0.25
_AHEAD_S = 60.0  # a report from so far in the future shows that clocks differ


class Glance:
    """One answer to come; kubectl is asked at once. names: of nodes; all where none is named."""

    def __init__(self, names: Sequence[str], kubeconfig: str | None, context: str | None) -> None:
        self._names = frozenset(names)
        one = len(self._names) == 1 and names[0].replace("-", "").replace(".", "").isalnum()
        path = f"{_ALL}/{names[0]}" if one else _ALL
        words = ["kubectl", "get", "--raw", path, f"--request-timeout={_DEADLINE_S:g}s"]
        if kubeconfig:
            words += ["--kubeconfig", kubeconfig]
        if context:
            words += ["--context", context]
        self._deadline = time.monotonic() + _LONGEST_S
        self._asked: subprocess.Popen[bytes] | None = None  # None where there is no kubectl
        with suppress(OSError):
            self._asked = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def status(self) -> "ClusterStatus | None":
        """Waits for it. None too where a node that was asked for is not there, and where the clock
        here may be wrong: kubectl does not tell the API server's."""
        from mpsd.model.cluster_status import ClusterStatus
        from mpsd.model.mpsnode import cluster_status

        found = mpsnodes(self._answer() or b"")
        now = clock.wall_s()
        if found is None:
            return None
        nodes = cluster_status(found, now).nodes
        if any(_is_doubtful(node, now) for node in nodes):
            return None
        if self._names:
            nodes = tuple([node for node in nodes if node.name in self._names])
        return ClusterStatus(now, nodes) if self._names <= {node.name for node in nodes} else None

    def _answer(self) -> bytes | None:
        if self._asked is None:
            return None
        with self._asked as process:  # closes its pipes and takes its end
            passed_on = 0
            patience_s = _PATIENCE_S
            try:
                while time.monotonic() <= self._deadline:
                    try:
                        read, _errors = process.communicate(timeout=patience_s)
                        return read if process.returncode == 0 else None
                    except subprocess.TimeoutExpired as waiting:
                        said = waiting.stderr or b""
                        sys.stderr.buffer.write(said[passed_on:])
                        sys.stderr.flush()
                        passed_on = len(said)
                        patience_s = _PAUSE_S
                return None
            finally:
                process.kill()


def _is_doubtful(node: "ClusterNode", now: float) -> bool:
    """Whether it reports or not depends on the clock here, which may be wrong."""
    return node.stale or (node.reported_at or 0.0) > now + _AHEAD_S


def mpsnodes(body: bytes) -> Sequence[object] | None:
    """The objects of what the API server answers, a list or one MPSNode; None for anything else."""
    import msgspec

    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    match answer:
        case {"kind": "MPSNodeList", "items": [*items]}:
            return items
        case {"kind": "MPSNode"}:
            return [answer]
        case _:
            return None
