"""A short run of tests/fuzz/hostile_processes.py, with a new seed."""

import os
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz.control_socket import a_seed
from tests.fuzz.hostile_processes import Scanned, rounds
from tests.watchdog.test_scanner import one_gpu

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="they become another user's")


def test_whatever_a_process_does_while_it_is_read_its_neighbour_is_seen(tmp_path: Path) -> None:
    seed = a_seed()
    print(f"MPSD_FUZZ_SEED={seed}")
    with one_gpu(tmp_path) as world:
        scanned = Scanned(world)
        for played in islice(rounds(seed), 12):
            scanned.play(played)
