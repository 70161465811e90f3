"""The mappings of a process, of which there may be hundreds of megabytes: they are read by pieces,
each from where the last one stopped. Each of these reads may never end."""

from collections.abc import Iterator

from mpsd.platform.processes import address_space_pages, is_shortage

_PIECE = 4 * 1024 * 1024  # bytes: 40 000 mappings, or 1 000 with the longest paths
_LARGEST_START = 1024 * 1024  # bytes, before what a context reserves


def mappings(pid: int) -> Iterator[bytes]:
    """Lines of /proc/PID/maps; none when it is gone or not ours to read. OSError for a shortage."""
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=4096) as file:  # noqa: PTH123
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
    """How much a process maps of files of this name, as far as it is read. is_all: whether that is
    all that it can map of NVIDIA's device for managed memory: not where it is gone or not ours to
    read, or maps something under another name as that device is mapped. It is of no more use after
    an error."""

    def __init__(self, pid: int, device: bytes) -> None:
        self.pid = pid
        self._lines = mappings(pid)
        self._device = b"/" + device
        self._hides = False
        self.bytes = 0
        self.is_whole = self.is_all = False

    def go_on(self) -> None:
        left = _PIECE
        for line in self._lines:
            self._add(line)
            left -= len(line)
            if left <= 0:
                return
        self.is_whole = True
        self.is_all = bool(address_space_pages(self.pid)) and not self._hides

    def _add(self, line: bytes) -> None:
        addresses, mode, offset, _filesystem, inode = line.split(None, 5)[:5]
        start, end = addresses.split(b"-")
        if self._device in line:
            self.bytes += int(end, 16) - int(start, 16)
        # the driver refuses all but shared mappings whose offset is their address: uvm_mmap in
        # kernel-open/nvidia-uvm/uvm.c of its sources
        elif mode.endswith(b"s") and offset == start and inode != b"0":
            self._hides = True
