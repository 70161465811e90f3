"""The files with the compute modes that were found: the mode, or unreadable, whatever happens to
them."""

from pathlib import Path

import pytest

from mpsd.mps.compute_modes import FoundModes
from mpsd.platform import records

UUID = "GPU-00000000-0000-0000-0000-000000000000"


def test_a_mode_that_was_found_is_known_until_it_is_back(tmp_path: Path) -> None:
    modes = FoundModes(tmp_path)
    assert modes.get(UUID) is None
    modes.put(UUID, 0)
    assert modes.get(UUID) == 0
    modes.remove(UUID)
    assert modes.get(UUID) is None


def test_a_file_with_any_bit_flipped_or_cut_off_anywhere_gives_no_other_mode(
    tmp_path: Path,
) -> None:
    modes = FoundModes(tmp_path)
    modes.put(UUID, 2)
    file = modes.file(UUID)
    sound = file.read_bytes()
    damaged = [sound[:length] for length in range(len(sound) - 1)]
    damaged += [
        sound[:at] + bytes([sound[at] ^ (1 << bit)]) + sound[at + 1 :]
        for at in range(len(sound))
        for bit in range(8)
    ]
    for content in damaged:
        file.write_bytes(content)
        try:
            assert modes.get(UUID) == 2, content
        except records.UnreadableRecord:
            continue


def test_a_file_of_another_gpu_is_unreadable(tmp_path: Path) -> None:
    modes = FoundModes(tmp_path)
    modes.put(UUID, 0)
    modes.file(UUID).rename(modes.file("GPU-other"))
    with pytest.raises(records.UnreadableRecord, match=UUID):
        modes.get("GPU-other")
