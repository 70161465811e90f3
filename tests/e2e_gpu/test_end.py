"""mpsd goes as it came: nothing of it is left on the GPU, and no setting of a card has changed."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.machine import Machine, mps_processes
from tests.e2e.waiting import eventually
from tests.e2e_gpu.cards import Cards
from tests.e2e_gpu.installation import GpuInstallation


def test_uninstalled_it_leaves_no_daemon(
    cluster: Cluster, mpsd: GpuInstallation, machine: Machine
) -> None:
    mpsd.uninstall()
    eventually(lambda: not mps_processes(), "no daemon and no server", within_s=60.0)


def test_no_setting_of_a_card_has_changed(cards: Cards) -> None:
    if not cards.settings:
        pytest.skip("the cards are simulated, or of another machine")
    cards.assert_unchanged()
