"""Where metrics are served, as people write it."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.core.problem import InvalidInput
from mpsd.edge.metrics_settings import ListenAddress, listen_address


def test_nothing_is_served_on_a_network_unless_somebody_asks() -> None:
    assert listen_address(None, {}) is None
    assert listen_address(None, {"MPSD_METRICS_LISTEN": ""}) is None


def test_a_flag_beats_the_variable() -> None:
    environment = {"MPSD_METRICS_LISTEN": "127.0.0.1:1"}
    assert listen_address(None, environment) == ListenAddress("127.0.0.1", 1)
    assert listen_address("[::1]:2", environment) == ListenAddress("::1", 2)


@pytest.mark.parametrize(
    ("written", "address", "is_loopback"),
    [
        ("localhost:9447", "127.0.0.1", True),
        ("127.8.8.8:9447", "127.8.8.8", True),
        ("[::1]:9447", "::1", True),
        ("0.0.0.0:9447", "0.0.0.0", False),
        ("[::]:9447", "::", False),
        ("10.1.2.3:9447", "10.1.2.3", False),
    ],
)
def test_an_address_says_whether_others_get_there(written: str, address: str, is_loopback: bool) -> None:
    found = listen_address(written, {})
    assert found == ListenAddress(address, 9447)
    assert found.is_loopback == is_loopback


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
    ],
)
def test_what_is_no_address_and_port_is_refused_with_the_remedy(written: str) -> None:
    with pytest.raises(InvalidInput, match=r"--metrics-listen .MPSD_METRICS_LISTEN.*such as 127\.0\.0\.1:9447"):
        listen_address(written, {})


@given(st.text(max_size=20))
def test_any_text_is_an_address_or_refused(written: str) -> None:
    try:
        found = listen_address(written, {})
    except InvalidInput:
        return
    assert found is None or (ipaddress.ip_address(found.address) and 0 <= found.port < 65_536)
