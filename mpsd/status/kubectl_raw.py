"""Reads from the cluster that kubectl asks, by kubectl itself: `kubectl get --raw PATH`.

What kubectl cannot answer is None here, with nothing said; who asked then asks by `platform.kube`, which says
what is wrong and what to do. kubectl starts in a tenth of the time that a client of our own takes to load, works beside
us meanwhile, and logs in as people are used to.
"""

import subprocess
import sys
import time

_DEADLINE_S = 15.0  # of the request, as in platform.kube
_LONGEST_S = 180.0  # with a log-in, which kubectl may ask a person for
_PATIENCE_S = 2.0  # then what kubectl says is shown: it may be asking for that log-in
_PAUSE_S = 0.25


class KubectlRead:
    """One answer to come; kubectl is asked at once."""

    def __init__(self, path: str, kubeconfig: str | None, context: str | None) -> None:
        self._deadline = time.monotonic() + _LONGEST_S
        self._asked = _started(path, kubeconfig, context)

    def answer(self) -> bytes | None:
        """Waits for it."""
        if self._asked is None:
            return None
        try:
            return self._answer(self._asked)
        finally:
            self.stop()

    def stop(self) -> None:
        """Nobody waits for it any more."""
        if self._asked is None:
            return
        with self._asked as process:  # closes its pipes and takes its end
            process.kill()
        self._asked = None

    def _answer(self, process: "subprocess.Popen[bytes]") -> bytes | None:
        passed_on, patience_s = 0, _PATIENCE_S
        while True:
            try:
                read, said = process.communicate(timeout=patience_s)
            except subprocess.TimeoutExpired as waiting:
                if time.monotonic() > self._deadline:
                    return None
                said = waiting.stderr or b""
                sys.stderr.buffer.write(said[passed_on:])
                sys.stderr.flush()
                passed_on, patience_s = len(said), _PAUSE_S
            else:
                return read if process.returncode == 0 else None


def _started(path: str, kubeconfig: str | None, context: str | None) -> "subprocess.Popen[bytes] | None":
    """None where there is no kubectl."""
    words = ["kubectl", "get", "--raw", path, f"--request-timeout={_DEADLINE_S:g}s"]
    words += ["--kubeconfig", kubeconfig] if kubeconfig else []
    words += ["--context", context] if context else []
    try:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError:
        return None
