"""Which of a pod's containers gets a part of an init container's devices, as kubelet gives them."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.container import Role
from mpsd.model.request import taken_in_part

Asked = list[tuple[Role, int]]


def uneven(asked: Asked, gpus: int, chance: Random) -> int | None:
    """The first container that kubelet gives more of one GPU than of another, where the plugin chooses evenly."""
    reusable: set[tuple[int, int]] = set()
    fresh = 0
    for position, (role, units) in enumerate(asked):
        again = chance.sample(sorted(reusable), min(units, len(reusable)))
        each = Counter(gpu for gpu, _ in again)
        rest = [(gpu, fresh := fresh + 1) for gpu in range(gpus) for _ in range(units // gpus - each[gpu])]
        held = set(again) | set(rest[: units - len(again)])
        if len({sum(one[0] == gpu for one in held) for gpu in range(gpus)}) > 1:
            return position
        reusable = reusable | held if role is Role.INIT else reusable - held
    return None


CONTAINERS = st.tuples(
    st.lists(st.tuples(st.sampled_from([Role.INIT, Role.SIDECAR]), st.integers(0, 4)), max_size=4),
    st.lists(st.tuples(st.just(Role.MAIN), st.integers(0, 4)), min_size=1, max_size=3),
)


@given(CONTAINERS, st.integers(2, 3), st.randoms())
def test_without_a_part_taken_kubelet_divides_evenly(parts: tuple[Asked, Asked], gpus: int, chance: Random) -> None:
    asked = [(role, units * gpus) for role, units in (*parts[0], *parts[1])]
    found = taken_in_part(asked)
    odd = uneven(asked, gpus, chance)
    assert odd is None or (found is not None and found[1] <= odd)
    if found:
        assert asked[found[0]][1] > asked[found[1]][1] > 0


def test_who_takes_a_part_of_whose_devices_is_said() -> None:
    init, sidecar, main = Role.INIT, Role.SIDECAR, Role.MAIN
    assert taken_in_part([(init, 8), (main, 4)]) == (0, 1)
    assert taken_in_part([(init, 4), (init, 2), (main, 4)]) == (0, 1)
    assert taken_in_part([(init, 4), (main, 0), (main, 2)]) == (0, 2)
    assert taken_in_part([(init, 4), (sidecar, 4), (main, 2)]) is None
    assert taken_in_part([(init, 4), (main, 4), (main, 2)]) is None
