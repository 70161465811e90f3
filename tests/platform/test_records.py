"""Records: read as what they should be, or not at all."""

import sys
from pathlib import Path

import pytest

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import records
from tests.world.captured import captured

DAEMON = ProcessIdentity(7, 123, "this-boot")


def test_a_record_comes_back_as_it_was_written_with_its_mode_whatever_the_umask(
    tmp_path: Path,
) -> None:
    path = tmp_path / "record.json"
    records.write(path, DAEMON, mode=0o644)
    assert records.read(path, ProcessIdentity) == DAEMON
    assert path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b'{"pid": "7", "start_ticks": 1, "boot_id": ""}',
        b'{"pid": 7}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_record_that_is_something_else_is_unreadable_and_names_its_file(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(records.UnreadableRecord, match=str(path)):
        records.read(path, ProcessIdentity)


_WRITES_TOO_MUCH = """
import resource, sys
from pathlib import Path
from mpsd.platform import records
# The first part of it is taken, as on a disk that is nearly full.
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
try:
    records.write(Path(sys.argv[1]), ["much"] * 100)
except OSError as error:
    print(error)
"""


def test_a_value_that_does_not_fit_is_an_error_and_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.write(path, DAEMON)
    said = captured([sys.executable, "-c", _WRITES_TOO_MUCH, str(path)])
    assert said.stdout == f"[Errno 27] File too large: '{path}'\n"
    assert records.read(path, ProcessIdentity) == DAEMON
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_a_write_that_was_interrupted_does_not_hinder_the_next(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    (tmp_path / ".record.json.new").write_text('{"half')
    records.write(path, DAEMON)
    assert records.read(path, ProcessIdentity) == DAEMON


def test_a_record_with_any_bit_flipped_or_cut_off_anywhere_is_unreadable_or_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "record.json"
    records.write(path, DAEMON)
    sound = path.read_bytes()
    damaged = [sound[:length] for length in range(len(sound))]
    for at, bit in ((at, bit) for at in range(len(sound)) for bit in range(8)):
        damaged.append(sound[:at] + bytes([sound[at] ^ (1 << bit)]) + sound[at + 1 :])
    for content in damaged:
        path.write_bytes(content)
        try:
            assert records.read(path, ProcessIdentity) == DAEMON, content
        except records.UnreadableRecord:
            continue
