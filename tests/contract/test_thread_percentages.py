"""CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in a client's environment, and the SMs it comes to."""

import pytest

from mpsd.model.cuda_limit_parser import THREAD_PERCENT
from tests.contract.gpus import Seen
from tests.contract.world import Daemon, World


class TestAClientsThreadPercentage:
    @pytest.mark.parametrize("percent", ["1", "10", "20", "25", "30", "33", "40", "50", "99", "100"])
    def test_it_becomes_these_sms(self, daemon: Daemon, world: World, percent: str) -> None:
        assert daemon.client(environment={THREAD_PERCENT: percent}).finished().saw(world.gpu.seen(percent=percent))

    @pytest.mark.parametrize("percent", ["0", "101", "-5", "abc", ""])
    def test_what_is_no_percentage_is_silently_all(self, daemon: Daemon, world: World, percent: str) -> None:
        expected = world.gpu.seen(percent=percent)
        assert isinstance(expected, Seen)
        assert expected.sms == world.gpu.sms
        assert daemon.client(environment={THREAD_PERCENT: percent}).finished().saw(expected)
