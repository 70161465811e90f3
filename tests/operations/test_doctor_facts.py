"""What the doctor sees of a file system: full is one that counts something and has none of it left."""

import os

import pytest

from mpsd.operations.doctor.node import is_full


@pytest.mark.parametrize(
    ("blocks", "blocks_left", "files", "files_left", "full"),
    [
        (100, 7, 50, 3, False),
        (100, 0, 50, 3, True),
        (100, 7, 50, 0, True),
        (100, 7, 0, 0, False),  # btrfs counts no files
        (0, 0, 0, 0, False),  # /proc counts nothing
    ],
)
def test_a_file_system_is_full_without_blocks_or_without_files(
    blocks: int, blocks_left: int, files: int, files_left: int, full: bool
) -> None:
    assert (
        is_full(os.statvfs_result((4096, 4096, blocks, blocks_left, blocks_left, files, files_left, 0, 0, 255))) is full
    )
