"""The mappings of a process, of which there may be hundreds of megabytes: they are read by pieces,
each from where the last one stopped. Each of these reads may never end."""

from collections.abc import Iterator

from mpsd.platform.processes import is_shortage

_PIECE = 4 * 1024 * 1024  # bytes: 40 000 mappings, or 1 000 with the longest paths
_LARGEST_START = 1024 * 1024  # bytes, before what a context reserves


def mappings(pid: int) -> Iterator[bytes]:
    """Lines of /proc/PID/maps; none when it is gone or not ours to read. OSError for a shortage."""
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=4096) as file:  # noqa: PTH123 (as `processes`)
            yield from file
    except OSError as error:
        if is_shortage(error):
            raise


def first_mappings(pid: int) -> Iterator[bytes]:
    """The same, and no more than a program has before the first context's."""
    size = 0
    for line in mappings(pid):
        size += len(line)
        if size > _LARGEST_START:
            return
        yield line


class MappedBytes:
    """How much a process maps of files of this name, as far as it is read. It is of no more use
    after an error."""

    def __init__(self, pid: int, device: bytes) -> None:
        self._lines = mappings(pid)
        self._device = b"/" + device
        self.bytes = 0
        self.is_whole = False

    def go_on(self) -> None:
        left = _PIECE
        for line in self._lines:
            if self._device in line:
                start, end = line.partition(b" ")[0].split(b"-")
                self.bytes += int(end, 16) - int(start, 16)
            left -= len(line)
            if left <= 0:
                return
        self.is_whole = True
