"""Who computes, of samples that name MPS servers in their clients' place."""

from itertools import product

from mpsd.model.node_view import Client
from mpsd.status.rules.use import sm_percent
from tests.model.worlds import UUIDS, identity, view

SERVER = 500  # of the first GPU, as `worlds.domain` has it


def client(pid: int, of: str | None, *, on_mps: bool = True, gpu: int = 0) -> Client:
    return Client(identity(pid), UUIDS[gpu], 100, on_mps, "train", of)


def said(
    clients: tuple[Client, ...] | None, samples: dict[int, int | None] | None, of: str = "a"
) -> int | None:
    return sm_percent(of, UUIDS[0], view(clients=clients), samples)


def test_what_the_server_has_is_the_grants_whose_clients_are_all_that_it_has() -> None:
    assert said((client(1, "a"), client(2, "a")), {SERVER: 97}) == 97


def test_clients_on_another_gpu_of_the_same_server_do_not_matter() -> None:
    assert said((client(1, "a"), client(2, "b", gpu=1)), {SERVER: 40}) == 40


def test_while_no_server_computes_all_of_its_clients_are_idle() -> None:
    both = (client(1, "a"), client(2, "b"))
    assert [said(both, {}, of) for of in "ab"] == [0, 0]


def test_who_runs_beside_mps_has_a_number_of_his_own() -> None:
    clients = (client(1, "a"), client(2, "b", on_mps=False))
    assert [said(clients, {SERVER: 30, 2: 60}, of) for of in "ab"] == [30, 60]


def test_times_overlap_and_are_never_more_than_all_of_it() -> None:
    assert said((client(1, "a"), client(2, "a", on_mps=False)), {SERVER: 70, 2: 60}) == 100


def test_nothing_is_said_where_nvml_says_nothing_or_nothing_that_can_be() -> None:
    one = (client(1, "a"),)
    assert (said(one, None), said(None, {}), said((), {}), said(one, {SERVER: None})) == (None,) * 4


def test_a_number_is_never_someone_elses() -> None:
    """Of every small world: whoever has a number over 0 is alone on MPS, or has a sample of his
    own."""
    for owners, modes, sampled in product(
        product((None, "a", "b"), repeat=2), product((True, False), repeat=2), (0, 9)
    ):
        clients = tuple(
            client(n + 1, of, on_mps=mode)
            for n, (of, mode) in enumerate(zip(owners, modes, strict=True))
        )
        found = said(clients, {SERVER: 50, sampled: 7} if sampled else {SERVER: 50})
        alone = {one.grant for one in clients if one.on_mps} == {"a"} and not sampled
        assert not found or alone, clients
