"""The processes that call NVML: a host, which forks one reader a GPU and calls nothing itself. A
reader holds no lock, socket or record of mpsd's, so that one whose call never returns can be left
behind; it ends when whoever asks it does."""

import gc
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable

from mpsd.platform.nvml import Nvml, NvmlFailed

LARGEST_BYTES = 128 * 1024  # of a question or answer, in one packet


def serve(connect: Callable[[], Nvml]) -> None:
    """The host: each packet on its standard input brings the socket of a reader to be forked.
    connect: NVML as each reader opens it."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # they are for whoever asks
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for readers
    gc.disable()  # their questions leave no cycles
    gc.freeze()  # its memory is shared with theirs
    orders = socket.socket(fileno=0)
    while True:
        order, descriptors, _flags, _address = socket.recv_fds(orders, 1, 1)
        if not order:
            return
        if not os.fork():
            orders.close()
            _answer(socket.socket(fileno=descriptors[0]), connect())
            os._exit(0)
        os.close(descriptors[0])


def _answer(questions: socket.socket, nvml: Nvml) -> None:
    """Answers until nobody asks. With the first packet goes a pidfd of this process."""
    pidfd = os.pidfd_open(os.getpid())
    socket.send_fds(questions, [b"reader"], [pidfd])
    os.close(pidfd)
    is_open = False
    while packet := questions.recv(LARGEST_BYTES):
        method, arguments = pickle.loads(packet)  # noqa: S301 - of the process that made this one
        answer: object
        try:
            if not is_open:
                nvml.open()
                is_open = True
            answer = getattr(nvml, method)(*arguments)
        except NvmlFailed as error:
            answer = NvmlFailed(str(error), error.code)  # without its cause, which is the library's
        except Exception as error:
            answer = NvmlFailed(f"{method}: {type(error).__name__}: {error}")
        try:
            questions.send(pickle.dumps((answer, time.process_time())))
        except BrokenPipeError:
            return


def _real() -> Nvml:
    import pynvml  # only where the GPUs are real

    return Nvml(pynvml)


if __name__ == "__main__":
    import pynvml  # noqa: F401 - once, for all readers

    serve(_real)
