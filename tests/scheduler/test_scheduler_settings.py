"""Nobody but kube-scheduler may come in, so an address that others reach is refused without client
certificates."""

from pathlib import Path

import pytest

from mpsd.model.problem import InvalidInput
from mpsd.scheduler.settings import scheduler_settings

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
TLS = {"certificate_directory": "/certs", "client_authority": "/ca/ca.crt"}
OTHER = {"certificate_directory": "--client-ca", "client_authority": "--cert-dir"}


def test_beside_kube_scheduler_nothing_need_be_said() -> None:
    chosen = scheduler_settings({}, POD)
    assert (chosen.address, chosen.port, chosen.metrics_port) == ("127.0.0.1", 12345, 9446)
    assert chosen.certificate_directory is None


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.7", "128.0.0.1"])
def test_an_address_that_others_reach_needs_client_certificates(address: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        scheduler_settings({"address": address}, POD)
    assert [problem.where.split()[0] for problem in raised.value.problems] == ["--address"]
    assert scheduler_settings({"address": address, **TLS}, POD).client_authority == Path(
        "/ca/ca.crt"
    )


@pytest.mark.parametrize("only", TLS)
def test_half_of_tls_is_refused_even_on_loopback(only: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        scheduler_settings({only: TLS[only]}, POD)
    assert [(problem.where.split()[0], problem.value) for problem in raised.value.problems] == [
        (OTHER[only], "")
    ]
