"""A process of another user that makes it hard to see what it is: HOW SIZE [ACTION...]. It says
`hostile`, then does what sim-cuda does by these actions, or stays.

As its environment the kernel shows: `range`, SIZE bytes of addresses; `region`, SIZE bytes of its
own; `stuck`, a page that nobody ever fills in. `maps`: it has SIZE mappings with long paths.
`named`: its name has line breaks. `renamed`: it maps SIZE bytes of a `nvidia-uvm` that has another
name by then. SIGUSR1 makes it fork 50 times, and SIGUSR2 become another program."""

import ctypes
import mmap
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

NOBODY = 65534
PR_SET_DUMPABLE, PR_SET_NAME = 4, 15  # of prctl(2), as these
PR_SET_MM, PR_SET_MM_MAP = 35, 14  # which need no right
USERFAULTFD = 323  # of asm/unistd_64.h; the kernel's own accesses wait too, for root alone
UFFDIO_API, UFFDIO_REGISTER, MISSING = 0xC018AA3F, 0xC020AA00, 1
MAP_NORESERVE = 0x4000  # of asm-generic/mman-common.h
_PAGE = 4096
_NAMES = (
    *("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack"),
    *("arg_start", "arg_end", "env_start", "env_end", "auxv"),
)


class MemoryMap(ctypes.Structure):
    """`prctl_mm_map` of linux/prctl.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in _NAMES] + [
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


libc = ctypes.CDLL(None, use_errno=True)


def show_as_environment(start: int, size: int) -> None:
    stat = Path("/proc/self/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    libc.sbrk.restype = ctypes.c_void_p
    code, stack = map(int, fields[23:25]), int(fields[25])
    start_data, end_data, start_brk, arg_start, arg_end = map(int, fields[42:47])
    shown = MemoryMap(
        *code, start_data, end_data, start_brk, libc.sbrk(0), stack, arg_start, arg_end,
        start, start + size, 0, 0, 0xFFFFFFFF,
    )  # fmt: skip
    done = libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(shown), ctypes.sizeof(shown), 0)
    assert not done, os.strerror(ctypes.get_errno())


def region(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)


def address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def stick() -> None:
    import fcntl

    fault = libc.syscall(USERFAULTFD, os.O_CLOEXEC)
    assert fault >= 0, os.strerror(ctypes.get_errno())
    page = region(_PAGE)
    start = address_of(page)
    fcntl.ioctl(fault, UFFDIO_API, (ctypes.c_uint64 * 3)(0xAA, 0, 0))
    fcntl.ioctl(fault, UFFDIO_REGISTER, (ctypes.c_uint64 * 4)(start, _PAGE, MISSING, 0))
    show_as_environment(start, _PAGE)
    kept.append(page)


def map_often(times: int) -> None:
    for _ in range(15):
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    file = os.open("f" * 200, os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, _PAGE)
    libc.mmap.restype = ctypes.c_void_p
    for _ in range(times):  # Python's own has a descriptor for each
        address = libc.mmap(None, _PAGE, mmap.PROT_READ, mmap.MAP_SHARED, file, ctypes.c_long(0))
        assert address != ctypes.c_void_p(-1).value


def rename_mapped(size: int) -> None:
    os.chdir(tempfile.mkdtemp())
    file = os.open("nvidia-uvm", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, size)
    kept.append(mmap.mmap(file, size))
    Path("nvidia-uvm").rename("a\nnvidia-uvm 7f00-8f00")


def fork_often(_signal: int, _frame: object) -> None:
    for _ in range(50):
        if not os.fork():
            os._exit(0)


def become_another(_signal: int, _frame: object) -> None:
    os.execv("/bin/sleep", ["sleep", "600"])


kept: list[mmap.mmap] = []
if __name__ == "__main__":
    how, how_much, *actions = sys.argv[1:]
    size = int(how_much)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from mpsd.simulator import cuda_client

    if how == "range":  # most of it is not mapped
        show_as_environment(0x10000, size)
    elif how == "region":
        kept.append(region(size))
        kept[0].write(b"A=1\0" * (min(size, 9_000_000) // 4))
        show_as_environment(address_of(kept[0]), size)
    elif how == "stuck":
        stick()
    elif how == "maps":
        os.chdir(tempfile.mkdtemp())
        map_often(size)
    elif how == "named":
        libc.prctl(PR_SET_NAME, b"a\nUid:\t0\n) Z 1")
    elif how == "renamed":
        rename_mapped(size)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, fork_often)
    signal.signal(signal.SIGUSR2, become_another)
    os.setuid(NOBODY)
    libc.prctl(PR_SET_DUMPABLE, 1)  # as after an exec by this user
    print('{"hostile": true}', flush=True)
    if actions:
        sys.exit(cuda_client.main(actions))
    while True:
        time.sleep(600)
