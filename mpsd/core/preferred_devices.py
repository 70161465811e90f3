"""Which devices kubelet should take for a container: those of one GPU, or of as many GPUs of one domain as it asks.

One rule: whatever is available, the answer has the size that kubelet asked for and holds what kubelet must include;
where nothing fits one domain it is no good selection, and Allocate refuses it with the reason.
"""

from collections.abc import Mapping, Sequence

from mpsd.core.allocation import Asking
from mpsd.core.grants import Gpu, Grant
from mpsd.core.policy import Policy


def preferred(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    pod: Asking | None,
    gpus: Sequence[Gpu],
    domain_of: Mapping[str, str],
    policy: Policy,
    held: Sequence[str] = (),
    grants: Sequence[Grant] = (),
) -> tuple[str, ...]:
    """`size` ids of `available` that include `must_include`. Ids of the percent resource are taken by their numbers.

    domain_of: from UUID to domain. held: devices that other containers of the pod have; their GPUs come first, then
    those that the scheduler wrote on the pod, then the policy's placement. grants: everybody's, so that a GPU whose
    threads or clients are promised is passed over where another one would do.
    """
    raise NotImplementedError
