"""Who computes, of samples that name MPS servers in their clients' place."""

from itertools import product

import pytest

from mpsd.model.node_view import Client
from mpsd.status.rules.use import sm_percent
from tests.model.worlds import UUIDS, identity, view

SERVER = 500  # of the first GPU, as `worlds.domain` has it


def client(pid: int, of: str | None, *, on_mps: bool = True, gpu: int = 0) -> Client:
    return Client(identity(pid), UUIDS[gpu], 100, on_mps, "train", of)


def said(
    clients: tuple[Client, ...], samples: dict[int, int | None] | None, of: str = "a"
) -> int | None:
    return sm_percent(of, UUIDS[0], view(clients=clients), samples)


A, B = client(1, "a"), client(2, "b")
BESIDE = client(2, "b", on_mps=False)


@pytest.mark.parametrize(
    ("clients", "samples", "of_a", "of_b"),
    [
        # the server's is the grant's whose clients are all that it has there
        ((A, client(2, "a")), {SERVER: 97}, 97, None),
        ((A, client(2, "b", gpu=1)), {SERVER: 40}, 40, None),
        ((A, B), {}, 0, 0),
        ((A, BESIDE), {SERVER: 30, 2: 60}, 30, 60),
        # times overlap
        ((A, client(2, "a", on_mps=False)), {SERVER: 70, 2: 60}, 100, None),
        # NVML says nothing, or nothing that can be
        ((A,), None, None, None),
        ((A,), {SERVER: None}, None, None),
        ((), {}, None, None),
    ],
)
def test_who_computes_is_said_as_far_as_nvml_tells(
    clients: tuple[Client, ...],
    samples: dict[int, int | None] | None,
    of_a: int | None,
    of_b: int | None,
) -> None:
    assert [said(clients, samples, of) for of in "ab"] == [of_a, of_b]


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
