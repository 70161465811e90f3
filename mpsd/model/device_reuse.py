"""Which container of a pod gets some of an earlier one's devices, and not all.

One rule: nobody is asked which devices kubelet uses again. Of those that init containers have held, the next container
gets whichever come first in a Go map (devicesToAllocate of pkg/kubelet/cm/devicemanager/manager.go): where it needs
fewer than there are and they lie on several GPUs, it gets more of one than of another, and cannot start so.
"""

from collections.abc import Sequence

from mpsd.model.container import Role


def taken_in_part(asked: Sequence[tuple[Role, int]]) -> tuple[int, int] | None:
    """The positions of an init container and of the first after it that gets a part of its devices; None for none.

    asked: the containers in the order in which kubelet allocates, each with the number of devices that it asks for.
    """
    holder, left = 0, 0
    for position, (role, units) in enumerate(asked):
        if 0 < units < left:
            return holder, position
        if role is Role.INIT and units:
            holder, left = position, units
        elif units:
            left = 0  # a container that goes on keeps what it has
    return None
