"""Settings: flags before variables before defaults, and every fault at once."""

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.settings import kubelet_settings
from mpsd.model.problem import InvalidInput
from mpsd.platform.settings import Listen, ListenAddress, listen_settings, settings


def test_a_flag_counts_before_a_variable_and_that_before_the_default() -> None:
    environment = {"MPSD_RUN_DIR": "/run/one", "MPSD_SIMULATE": "T4", "MPSD_LIMITS": "/etc/limits"}
    assert settings(environment=environment).run_directory == Path("/run/one")
    chosen = settings(run_directory="/run/two", environment=environment)
    assert (chosen.run_directory, chosen.simulate, chosen.limits_directory) == (
        Path("/run/two"),
        "T4",
        Path("/etc/limits"),
    )
    assert settings(environment={}).simulate == ""


@pytest.mark.parametrize("nothing", ["", " "])
def test_simulating_nothing_is_refused_and_not_taken_for_real_gpus(nothing: str) -> None:
    with pytest.raises(InvalidInput, match="leave it out for real GPUs") as raised:
        settings(simulate=nothing, environment={})
    assert [problem.rule for problem in raised.value.problems] == ["simulates-nothing"]


def test_the_longest_run_directory_still_holds_the_sockets_of_every_domain() -> None:
    longest = "/" + 63 * "r"
    chosen = settings(run_directory=longest, environment={})
    assert len(str(chosen.domain("gpu0-1-2-3-4-5-6-7").longest_socket)) == 107
    with pytest.raises(InvalidInput, match="run"):
        settings(run_directory=longest + "r", environment={})


# Where readers are served, as people write it.


def read(written: str, *, in_cluster: bool = True) -> tuple[ListenAddress, ...]:
    return listen_settings({"listen": written}, {}, in_cluster=in_cluster).addresses


@pytest.mark.parametrize(
    ("written", "address", "is_loopback"),
    [
        ("localhost:9447", "127.0.0.1", True),
        ("[::1]:9447", "::1", True),
        ("0.0.0.0:9447", "0.0.0.0", False),
        ("[::]:9447", "::", False),
    ],
)
def test_an_address_says_whether_others_get_there(
    written: str, address: str, is_loopback: bool
) -> None:
    (found,) = read(written)
    assert found == ListenAddress(address, 9447)
    assert found.is_loopback == is_loopback
    assert Listen((found,)).asks_who != is_loopback


def test_several_addresses_are_divided_by_commas() -> None:
    found = read("127.0.0.1:9448, [::]:9447")
    assert found == (ListenAddress("127.0.0.1", 9448), ListenAddress("::", 9447))
    assert Listen(found).asks_who
    assert ",".join(map(str, found)) == "127.0.0.1:9448,[::]:9447"


@pytest.mark.parametrize(
    "written",
    [
        "9447",
        ":9447",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "::1:9447",
        "[127.0.0.1]:1",
        "gpu-node:9447",
        "[]:1",
        "127.0.0.1:1,",
        "127.0.0.1:1;127.0.0.1:2",
    ],
)
def test_what_is_no_address_and_port_is_refused_with_the_remedy(written: str) -> None:
    with pytest.raises(InvalidInput, match=r"--listen .MPSD_LISTEN.*such as 127\.0\.0\.1:9447"):
        read(written)


def test_without_a_cluster_only_this_machine_may_be_served() -> None:
    assert read("127.0.0.1:9447", in_cluster=False) == (ListenAddress("127.0.0.1", 9447),)
    with pytest.raises(InvalidInput) as refused:
        read("127.0.0.1:1,0.0.0.0:9447,[::]:9446", in_cluster=False)
    assert [problem.value for problem in refused.value.problems] == [
        '"0.0.0.0:9447"',
        '"[::]:9446"',
    ]
    assert "ssh -L 9447:127.0.0.1:9447 MACHINE" in refused.value.problems[0].remedy


@given(st.text(max_size=20))
def test_any_text_is_a_list_of_addresses_or_refused(written: str) -> None:
    try:
        found = read(written)
    except InvalidInput:
        return
    assert all(ipaddress.ip_address(one.address) and 0 <= one.port < 65_536 for one in found)


@pytest.mark.parametrize(
    "key", ["mpsd.io/not-ready:NoSchedule", "mpsd.io/", "/not-ready", "a b", "Mpsd.io/x", "x" * 64]
)
def test_a_startup_taint_is_named_by_its_key_alone(key: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"--startup-taint .MPSD_STARTUP_TAINT.*such as mpsd\.io/not-ready"
    ):
        kubelet_settings({"node": "node1", "startup_taint": key}, {})
    chosen = kubelet_settings({"node": "node1", "startup_taint": "mpsd.io/not-ready"}, {})
    assert chosen
    assert chosen.startup_taint == "mpsd.io/not-ready"
