"""What an operator cordons, and the domains that are drained for it."""

from typing import Any

import pytest

from mpsd.model.domain import Domain, drains, read_cordoned, unknown_cordons

DOMAINS = (Domain("gpu0", ("GPU-0",)), Domain("gpu1-2", ("GPU-1", "GPU-2")))


def cordoned(*names: Any) -> frozenset[str]:
    return read_cordoned({"spec": {"cordoned": list(names)}})


def test_all_drains_every_domain() -> None:
    assert list(drains(cordoned("all"), DOMAINS)) == ["gpu0", "gpu1-2"]


def test_one_gpu_drains_the_whole_domain_it_is_in_and_the_reason_names_it() -> None:
    assert drains(cordoned("GPU-2"), DOMAINS) == {
        "gpu1-2": "cordoned by spec.cordoned of the MPSNode: GPU-2"
    }


def test_a_label_that_starts_nvidias_daemon_drains_every_domain_and_is_named() -> None:
    reason = "the Node's label nvidia.com/mps.capable=true starts NVIDIA's own MPS daemon"
    found = drains(cordoned("GPU-2"), DOMAINS, "nvidia.com/mps.capable=true")
    assert found == dict.fromkeys(("gpu0", "gpu1-2"), reason)


def test_an_upgrade_of_the_driver_drains_every_domain_and_is_named_before_all_else() -> None:
    found = drains(cordoned("GPU-2"), DOMAINS, "nvidia.com/mps.capable=true", "a/b=cordon-required")
    assert found == dict.fromkeys(
        ("gpu0", "gpu1-2"), "the Node's label a/b=cordon-required is of a driver upgrade"
    )


def test_a_gpu_of_another_node_is_named_and_drains_nothing() -> None:
    assert drains(cordoned("GPU-9"), DOMAINS) == {}
    assert unknown_cordons(cordoned("GPU-9", "all", "GPU-0"), DOMAINS) == ("GPU-9",)


@pytest.mark.parametrize(
    "spec", [None, 7, [], {"cordoned": "all"}, {"cordoned": {"a": 1}}, {"cordoned": None}]
)
def test_what_cannot_be_read_cordons_nothing(spec: object) -> None:
    assert read_cordoned({"spec": spec}) == frozenset()
