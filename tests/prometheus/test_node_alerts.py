"""Each alert about a node is made to fire by a fault of a simulated machine, and to clear."""

from collections.abc import Iterator

import pytest

from tests.prometheus.node_trials import NODE, TRIALS, Node, on_node, put_back
from tests.prometheus.server import prometheus
from tests.whole.machine.conftest import on_machine


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with prometheus(tmp_path_factory.mktemp("prometheus")) as server:
        for machine in on_machine("A30×2"):
            with on_node(machine, server) as node:
                server.until_up(1)
                yield node


@pytest.fixture
def node(running: Node) -> Iterator[Node]:
    """Ready, and without programs at the beginning and at the end."""
    yield running
    put_back(running)
    running.machine.until_no_grants()
    running.machine.until_ready()


@pytest.mark.parametrize("name", TRIALS)
def test_it_fires_while_the_fault_lasts_and_clears_when_it_is_mended(node: Node, name: str) -> None:
    node.prometheus.until_quiet(name)
    with TRIALS[name](node):
        labels = node.prometheus.until_firing(name)
        assert labels["instance"] == NODE
        told = node.prometheus.told(name)
        assert NODE in told["summary"]
        assert not [text for text in told.values() if "<no value>" in text or "{{" in text], told
    node.prometheus.until_quiet(name)
