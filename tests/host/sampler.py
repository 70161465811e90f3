"""Looks at the ledger again and again, from another thread: is more of a card granted than it has,
at any moment?

One rule: it looks at both places where a grant is kept, what `mpsd up` says and what is on disk,
and keeps the most.
"""

import threading
from collections import Counter
from contextlib import suppress
from typing import Self

from mpsd.platform import local_api
from tests.host.host import Host

_EVERY_S = 0.01


class Sampler:
    """most_mib, most_percent: of any card at any look. looks: at mpsd up and at the disk."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self.most_mib = self.most_percent = 0
        self.looks = [0, 0]
        self.failure: Exception | None = None  # None while it looks

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.failure:
            raise self.failure

    def _look_on(self) -> None:
        try:
            while not self._over.wait(_EVERY_S):
                self._look_at_mpsd()
                self._look_at_disk()
        except Exception as error:  # a thread's own end would be silent
            self.failure = error

    def _look_at_mpsd(self) -> None:
        with suppress(local_api.NotRunning):
            for gpu in self._host.node().gpus:
                self._note(gpu.granted_mib, gpu.granted_percent)
            self.looks[0] += 1

    def _look_at_disk(self) -> None:
        mib: Counter[str] = Counter()
        percent: Counter[str] = Counter()
        for grant in self._host.grants_on_disk():
            for part in grant["parts"]:
                mib[part["gpu"]] += part["memory_mib"]
                percent[part["gpu"]] += part["reserved_percent"]
        self._note(max(mib.values(), default=0), max(percent.values(), default=0))
        self.looks[1] += 1

    def _note(self, mib: int, percent: int) -> None:
        self.most_mib, self.most_percent = max(self.most_mib, mib), max(self.most_percent, percent)
