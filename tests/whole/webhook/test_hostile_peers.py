"""Forty connections send what they like to the webhook's ports, and to what is below its TLS, by a
new seed each time, which a failure prints (MPSD_FUZZ_SEED repeats it)."""

from tests.fuzz.control_socket import a_seed
from tests.fuzz.ports import most_memory_mib, speaking, status_of, tcp, tls
from tests.whole.webhook.world import Webhook, gpu_pod, review_of

_TALKS = 200
_MOST_MIB = 400


def test_whatever_is_sent_to_the_webhook_reviews_are_answered(served: Webhook, bundle: str) -> None:
    seed = a_seed()
    ports = (tls(served.port), tcp(served.port), tcp(served.metrics_port))
    with speaking(ports, seed) as speakers:
        while speakers.count < _TALKS:
            assert status_of(tcp(served.metrics_port), "/readyz") == 200, f"seed {seed}"
            with served.connect(bundle) as client:
                assert client.review("/validate", review_of(gpu_pod())).status == 200
    assert not served.log("request failed"), f"seed {seed}"
    assert most_memory_mib(served.process.pid) < _MOST_MIB, f"seed {seed}"
