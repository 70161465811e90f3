"""Who holds what of this node's GPUs: what the agent asks, whoever keeps the books.

One rule: books that cannot be read now keep what they said last, and say so; nothing is taken for free meanwhile.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from mpsd.model.grants import Grant
from mpsd.model.identity import PodName
from mpsd.model.node_view import HeldGrant
from mpsd.platform.pod_processes import Whereabouts


class Books(Protocol):
    """`LocalGrants` on one machine, `KubeletGrants` beside a kubelet."""

    @property
    def whereabouts(self) -> Whereabouts:
        """What tells which pod, or which container that holds a grant, a process is in."""

    @property
    def pods_known(self) -> bool:
        """Whether a kubelet is served: then nothing but a pod can hold a grant. Where not, nobody is in a pod."""

    def load(self) -> None:
        """Finds again what an earlier agent knew."""

    async def refresh(self) -> None:
        """Asks whoever gives the grants; what could not be learned is in `unknown`."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """In plain words, why the books may be incomplete; empty when they are not."""

    def held(self) -> Iterable[HeldGrant]: ...

    def holders(self) -> Mapping[int, str]:
        """From the pid of each living holder to its grant."""

    def pods(self) -> Mapping[str, str]:
        """From what `whereabouts` says of the processes of each pod or container that holds a grant to that grant."""

    @property
    def ungranted(self) -> Mapping[str, PodName]:
        """By the uid in its cgroups, each pod that is known to hold no grant; the very same where nothing changed."""

    def add(self, grant: Grant) -> None: ...

    def end(self, grant: Grant) -> None: ...

    def close(self) -> None: ...
