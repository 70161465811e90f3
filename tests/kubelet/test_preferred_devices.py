"""Which devices kubelet should take: of one GPU wherever that can be, and always as many as it
asked for."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.rules.allocation import allocate_memory, memory_devices, units_by_gpu
from mpsd.kubelet.rules.gpu_choice import Offer, preferred
from mpsd.kubelet.rules.node_pods import RequestingContainer
from mpsd.model.domain import Domain, domains
from mpsd.model.grants import Gpu, Grant, rooms
from mpsd.model.policy import Policy
from tests.model.worlds import CAPABILITY, GPUS, POLICY, SPREAD, UUIDS, grant
from tests.status.node_worlds import container, mem_ids, node_pod, percent_ids

EIGHT = tuple(Gpu(f"GPU-{n}", n, "NVIDIA H200", 143155, 132, CAPABILITY) for n in range(8))
FOUR = tuple(replace(gpu, memory_mib=8 * 1024 + 76) for gpu in EIGHT[:4])
PAIRS = replace(POLICY, domains=[[0, 1], [2, 3]])
ALL = memory_devices(GPUS, POLICY)


def asking(
    mem: int, percent: int | None = None, gpus: int | None = None, chosen: str = ""
) -> RequestingContainer:
    """A pod that asks for this. chosen: the GPUs that its scheduler wrote on it."""
    written = {"mpsd.io/gpu": chosen} if chosen else {}
    pod = node_pod("train-0", container(mem=mem, percent=percent), gpus=gpus, annotations=written)
    return RequestingContainer(pod, pod.requests[0])


def choose(
    available: Sequence[str],
    size: int,
    pod: RequestingContainer | None = None,
    *,
    must: Sequence[str] = (),
    gpus: Sequence[Gpu] = GPUS,
    policy: Policy = POLICY,
    held: Sequence[str] = (),
    grants: Sequence[Grant] = (),
) -> dict[str, int]:
    """How many devices of which GPU are preferred, with kubelet's contract checked."""
    domain_of = {uuid: domain.name for domain in domains(gpus, policy) for uuid in domain.gpus}
    offer = Offer(available, must, size, pod.request.gpus if pod else 1)
    taken = preferred(offer, pod, rooms(gpus, domain_of, grants, policy), policy, held)
    assert len(taken) == len(set(taken)) == size
    assert set(must) <= set(taken) <= set(available)
    return units_by_gpu(taken)


def test_a_container_stays_on_one_gpu_and_fills_the_fullest_that_has_room() -> None:
    assert choose(ALL, 7) == {UUIDS[0]: 7}
    assert choose([*mem_ids(9), *mem_ids(23, gpu=1)], 7) == {UUIDS[0]: 7}
    assert choose([*mem_ids(6), *mem_ids(23, gpu=1)], 7) == {UUIDS[1]: 7}


def test_spread_takes_the_emptiest() -> None:
    assert choose([*mem_ids(9), *mem_ids(23, gpu=1)], 7, policy=SPREAD) == {UUIDS[1]: 7}


def test_the_scheduler_s_gpu_is_taken_where_it_has_room() -> None:
    scheduled = asking(7, chosen=UUIDS[1])
    assert choose([*mem_ids(9), *mem_ids(23, gpu=1)], 7, scheduled) == {UUIDS[1]: 7}
    assert choose([*mem_ids(9), *mem_ids(6, gpu=1)], 7, scheduled) == {UUIDS[0]: 7}


def test_a_pod_s_second_container_goes_where_its_first_is() -> None:
    scheduled = asking(7, chosen=UUIDS[0])
    assert choose(ALL[:-1], 7, scheduled, held=mem_ids(1, gpu=1, first=22)) == {UUIDS[1]: 7}


def test_a_gpu_whose_threads_are_promised_is_passed_over_where_another_has_some() -> None:
    busy = grant("a", 1, gpu=0, reserved_percent=80)
    available = [*mem_ids(22), *mem_ids(23, gpu=1)]
    assert choose(available, 7, asking(7, percent=30), grants=[busy]) == {UUIDS[1]: 7}
    assert choose(available, 7, asking(7, percent=20), grants=[busy]) == {UUIDS[0]: 7}
    assert choose(available[:22], 7, asking(7, percent=30), grants=[busy]) == {UUIDS[0]: 7}


def test_several_gpus_are_of_one_domain_and_share_evenly() -> None:
    available = memory_devices(FOUR, PAIRS)
    assert choose(available, 6, asking(6, gpus=2), gpus=FOUR, policy=PAIRS) == {
        "GPU-0": 3,
        "GPU-1": 3,
    }
    fuller = [*(f"GPU-0/{n}" for n in range(2)), *available[8:]]
    assert choose(fuller, 6, asking(6, gpus=2), gpus=FOUR, policy=PAIRS) == {"GPU-2": 3, "GPU-3": 3}


@pytest.mark.parametrize("wish", ["GPU-3", "GPU-2,GPU-3"])
def test_a_scheduler_may_name_one_or_all_of_several_gpus(wish: str) -> None:
    pod = asking(6, gpus=2, chosen=wish)
    chosen = choose(memory_devices(FOUR, PAIRS), 6, pod, gpus=FOUR, policy=PAIRS)
    assert chosen == {"GPU-2": 3, "GPU-3": 3}


def test_what_must_be_included_is_and_the_rest_comes_from_beside_it() -> None:
    must = mem_ids(3, gpu=1, first=20)
    assert choose(ALL, 7, must=must) == {UUIDS[1]: 7}
    assert choose(ALL, 3, must=must) == {UUIDS[1]: 3}
    available = memory_devices(FOUR, PAIRS)
    must = ("GPU-2/0", "GPU-2/1", "GPU-3/5")
    assert choose(available, 8, asking(8, gpus=2), must=must, gpus=FOUR, policy=PAIRS) == {
        "GPU-2": 4,
        "GPU-3": 4,
    }


def test_what_fits_no_gpu_is_still_as_much_as_kubelet_asked_for() -> None:
    assert sum(choose(ALL, 30).values()) == 30
    assert sum(choose(ALL, 7, asking(7, gpus=2)).values()) == 7


def test_percents_are_taken_by_number() -> None:
    taken = preferred(
        Offer(percent_ids(100)[::-1], percent_ids(1, first=50), 4, 1), None, (), POLICY
    )
    assert sorted(taken) == ["percent/0", "percent/1", "percent/2", "percent/50"]


def test_too_few_are_all() -> None:
    assert set(preferred(Offer(mem_ids(3), (), 7, 1), None, (), POLICY)) == set(mem_ids(3))


EVERY_WORLD = st.sampled_from(
    [(FOUR, PAIRS), (FOUR, POLICY), (FOUR, replace(PAIRS, placement=SPREAD.placement))]
)


@given(st.data(), EVERY_WORLD)
def test_any_choice_is_valid_and_fits_one_domain_where_anything_does(
    data: st.DataObject, world: tuple[Sequence[Gpu], Policy]
) -> None:
    gpus, policy = world
    every = memory_devices(gpus, policy)
    available = data.draw(st.lists(st.sampled_from(every), unique=True, min_size=1))
    size = data.draw(st.integers(1, len(available)))
    count = data.draw(st.sampled_from([None, 1, 2]))
    wish = data.draw(st.sampled_from(["", "GPU-0", "GPU-3", "GPU-1,GPU-2", "x"]))
    pod = asking(size, gpus=count, chosen=wish) if count else None
    must = available[: data.draw(st.integers(0, size))]
    held = data.draw(st.sampled_from([(), ("GPU-2/1",), ("GPU-0/0", "GPU-1/0"), ("junk",)]))
    taken = choose(available, size, pod, must=must, gpus=gpus, policy=policy, held=held)
    fitting = [d for d in domains(gpus, policy) if _fits(d, available, must, size, count or 1)]
    if fitting:
        ids = [f"{uuid}/{n}" for uuid, units in taken.items() for n in range(units)]
        assert allocate_memory(ids, pod, domains(gpus, policy), policy).domain in {
            d.name for d in fitting
        }


def _fits(
    domain: Domain, available: Sequence[str], must: Sequence[str], size: int, count: int
) -> bool:
    """Whether devices for the container can be found in this domain, by looking."""
    if size % count:
        return False
    there, needed = units_by_gpu(available), units_by_gpu(must)
    large = [
        uuid for uuid in domain.gpus if needed.get(uuid, 0) <= size // count <= there.get(uuid, 0)
    ]
    return set(needed) <= set(large) and len(needed) <= count <= len(large)
