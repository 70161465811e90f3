"""An agent that is stopped, as a roll-out stops it."""

import signal
from collections.abc import Iterator

import pytest

from tests.roles_kubelet.cluster import MEMORY, PERCENT, Cluster


@pytest.fixture
def leaving(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.agent = cluster.start_agent()
    cluster.until_offered()


def test_an_agent_that_goes_says_first_that_nothing_is_free(leaving: Cluster) -> None:
    leaving.agent.send(signal.SIGTERM)
    assert leaving.agent.exit_code() == 0
    assert (leaving.offered()[MEMORY], leaving.offered()[PERCENT]) == ("0", "0")


def test_an_agent_goes_while_the_api_server_is_away(leaving: Cluster) -> None:
    leaving.api.send(signal.SIGSTOP)
    try:
        leaving.agent.send(signal.SIGTERM)
        assert leaving.agent.exit_code() == 0
    finally:
        leaving.api.send(signal.SIGCONT)
    assert leaving.agent.logged("leaving unheard")
