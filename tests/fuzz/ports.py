"""What anybody may send to a port that speaks HTTP: packed bodies, lengths that lie, headers and
JSON without end, halves, junk, one byte at a time.

    python -m tests.fuzz.ports 60          # every port of `mpsd up --simulate A30x2`, a new seed
    python -m tests.fuzz.ports 60 SEED     # the same talks again

Short runs, on every server: tests/whole/machine/test_hostile_peers.py, and those of the webhook and
the scheduler beside it.
"""

import gzip
import random
import socket
import ssl
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.fuzz.control_socket import a_seed

Connect = Callable[[], socket.socket]
_CONNECTIONS = 40
_ANSWER_S = 10.0  # for a question that is honest; before, one took 26 s
_TURN_S = 0.02  # between two bytes of who is slow
_MIB = 1024**2
_PACKED_MIB = 512
_DEEP = 10_000


def _packed(window_bits: int) -> bytes:
    pack = zlib.compressobj(9, zlib.DEFLATED, window_bits)
    zeros = bytes(_MIB)
    return b"".join([*(pack.compress(zeros) for _part in range(_PACKED_MIB)), pack.flush()])


_GZIP, _DEFLATE = _packed(31), _packed(15)
_PACKED = (
    (b"gzip", _GZIP),
    (b"deflate", _DEFLATE),
    (b"deflate", _packed(-15)),
    (b"gzip, gzip", gzip.compress(_GZIP)),
    (b"br", b"\x0b\x02\x80hello\x03"),
    (b"zstd", b"\x28\xb5\x2f\xfd\x04\x00"),
)
_PATHS = (
    *b"/ /healthz /readyz /metrics /v1/node /v1/page /v1/use /v1/grants /v1/grants/x".split(),
    *b"/v1/containers /v1/containers/over /v1/containers/environment /v1/stop /validate".split(),
    *b"/mutate /filter /prioritize /preempt /bind /inspect /inspect/a /nowhere * //".split(),
    b"/" + b"a" * 9000,
    b"/%00%ff%2e%2e/",
    b"http://x/healthz",
)
_METHODS = (*b"GET POST HEAD PUT DELETE OPTIONS CONNECT PRI".split(), b"X" * 9000, b"\0")
_FIELDS = (
    *(b"Expect: 100-continue", b"Connection: close", b"Connection: keep-alive"),
    *(b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x", b"Upgrade: h2c"),
    *(b"Accept-Encoding: gzip", b"Authorization: Bearer " + b"x" * 8000, b"Host: evil.example"),
    *(b"X: " + b"x" * 9000, b"\r\n".join(b"X-%d: x" % one for one in range(200)), b"no colon"),
    *(b" folded: x", b"Range: bytes=0-", b"If-None-Match: *", b"\xff\xfe: \0"),
)
_BODIES = (
    *(b"", b"{}", b"null", b'"\xff"', b"9" * 100_000, b"-1e" + b"9" * 1000, b"[" * _DEEP),
    *(b"[" * _DEEP + b"]" * _DEEP, b'{"a":' * _DEEP, b'{"Pod":' * _DEEP + b"1" + b"}" * _DEEP),
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":'
    b'{"kind":"Pod","version":"v1"},"operation":"CREATE","object":{"spec":'
    + b"[" * 500
    + b"]" * 500
    + b"}}}",
    *(b'{"gpu_mem": 1e999, "command": ' + b"9" * 5000 + b"}", b'{"id": "' + b"x" * 300_000 + b'"}'),
    *(bytes(2 * _MIB), b'"' + b"\\u0000" * 100_000 + b'"'),
)


def talk(choice: random.Random) -> tuple[bytes, ...]:
    """What one connection sends, piece by piece; one byte is sent slowly."""
    pieces: list[bytes] = []
    for _request in range(choice.choice((1, 1, 1, 2, 5, 300))):
        pieces += choice.choice((_request_of, _request_of, _lying, _chunked, _bomb, _junk))(choice)
        if sum(map(len, pieces)) > 4 * _MIB:
            break
    whole = b"".join(pieces)
    how = choice.random()
    if how < 0.2:  # cut short
        return (whole[: choice.randrange(len(whole) + 1)],)
    if how < 0.3:
        return tuple(whole[at : at + 1] for at in range(choice.randrange(200)))
    return (whole,) if how < 0.7 else tuple(pieces)


def _head(choice: random.Random, *fields: bytes) -> bytes:
    more = choice.choices(_FIELDS, k=choice.choice((0, 0, 0, 1, 3)))
    line = b"%s %s HTTP/1.1" % (choice.choice(_METHODS[:3] * 5 + _METHODS), choice.choice(_PATHS))
    kind = choice.choice((b"application/json", b"application/json", b"text/plain", b""))
    lines = [line, b"Host: localhost", b"Content-Type: " + kind, *fields, *more, b"", b""]
    return b"\r\n".join(lines)


def _request_of(choice: random.Random) -> Sequence[bytes]:
    body = choice.choice(_BODIES)
    return _head(choice, b"Content-Length: %d" % len(body)), body


def _lying(choice: random.Random) -> Sequence[bytes]:
    body = choice.choice(_BODIES)
    length = choice.choice((b"0", b"1", b"-1", b"1000000", b"9" * 5000, b"0x10", b"1\r\nX: y"))
    return _head(choice, b"Content-Length: " + length), body


def _chunked(choice: random.Random) -> Sequence[bytes]:
    size = choice.choice((b"0", b"1", b"ffff", b"f" * 40, b"zz", b"1;" + b"x" * 9000))
    chunk = size + b"\r\n" + choice.choice(_BODIES) + b"\r\n"
    end = choice.choice((b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b""))
    coding = choice.choice((b"chunked", b"gzip, chunked", b"chunked, gzip", b"identity"))
    return _head(choice, b"Transfer-Encoding: " + coding), chunk * choice.choice((1, 50)), end


def _bomb(choice: random.Random) -> Sequence[bytes]:
    name, body = choice.choice(_PACKED)
    length = b"Content-Length: %d" % len(body)
    return _head(choice, b"Content-Encoding: " + name, length), body


def _junk(choice: random.Random) -> Sequence[bytes]:
    tls = b"\x16\x03\x01\xff\xff\x01"
    http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    some = (
        choice.randbytes(choice.choice((1, 100, 70_000))),
        tls,
        http2,
        b"\r\n" * 1000,
        b"\0" * 10,
    )
    return (choice.choice(some),)


# -- who sends it


def unix(path: Path) -> Connect:
    def connect() -> socket.socket:
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(_ANSWER_S)
        one.connect(str(path))
        return one

    return connect


def tcp(port: int) -> Connect:
    return lambda: socket.create_connection(("127.0.0.1", port), _ANSWER_S)


def tls(port: int) -> Connect:
    """Whoever answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def connect() -> socket.socket:
        return context.wrap_socket(tcp(port)())

    return connect


class Speakers:
    """So many connections at a time. Each of them says the same for the same seed."""

    def __init__(self, ports: Sequence[Connect], seed: int, most: int = _CONNECTIONS) -> None:
        self.count = 0  # of talks that are over
        self._ports, self._seed = ports, seed
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._speak, args=(number,)) for number in range(most)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _speak(self, number: int) -> None:
        choice = random.Random(f"{self._seed} {number}")
        while not self._over.is_set():
            connect = choice.choice(self._ports)
            pieces = talk(choice)
            listens = choice.random() < 0.5
            with suppress(OSError), connect() as one:  # hung up on, as it should
                self._say(one, pieces)
                if listens:
                    one.settimeout(1)
                    one.recv(65536)
            self.count += 1

    def _say(self, one: socket.socket, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            if self._over.is_set():
                return
            one.sendall(piece)
            if len(piece) == 1:
                self._over.wait(_TURN_S)


@contextmanager
def speaking(ports: Sequence[Connect], seed: int) -> Iterator[Speakers]:
    speakers = Speakers(ports, seed)
    speakers.start()
    try:
        yield speakers
    finally:
        speakers.stop()


def status_of(connect: Connect, path: str) -> int:
    """Of a question that is honest. TimeoutError where none comes, and OSError where it is hung up
    on."""
    with connect() as one:
        one.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = one.recv(65536)
        while some := one.recv(65536):
            answer += some
    return int(answer.split(b" ", 2)[1])


def most_memory_mib(pid: int) -> int:
    """That it ever had."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) // 1024


def main() -> None:
    from tests.served import free_port
    from tests.whole.machine.machine import Machine

    seed = a_seed()
    if len(sys.argv) > 2:
        seed = int(sys.argv[2])
    print(f"ports: {sys.argv[1]} s, seed {seed}", flush=True)
    machine = Machine("A30×2")
    try:
        port = free_port()
        up = machine.service("up", {"MPSD_LISTEN": f"127.0.0.1:{port}"})
        machine.until_ready()
        ports = (unix(machine.run_directory / "mpsd.sock"), tcp(port))
        ends = time.monotonic() + float(sys.argv[1])
        slowest_s = 0.0
        before_mib = most_memory_mib(up.pid)
        with speaking(ports, seed) as speakers:
            while time.monotonic() < ends:
                for connect, path in zip(ports, ("/healthz", "/v1/node"), strict=True):
                    began = time.monotonic()
                    assert status_of(connect, path) == 200, f"seed {seed}"
                    slowest_s = max(slowest_s, time.monotonic() - began)
        failed = up.logged("request failed")
        assert not failed, f"seed {seed}: {failed[:3]}"
        print(
            f"  {speakers.count} talks; an honest question took {slowest_s:.2f} s at most,"
            f" the process {most_memory_mib(up.pid)} MiB, {before_mib} before"
        )
    finally:
        machine.stop()
        machine.destroy()


if __name__ == "__main__":
    main()
