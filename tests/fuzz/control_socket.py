"""What any user may send to a control socket: junk, halves of the protocol, commands of all kinds
with line breaks and forged lines of the log in them.

    python -m tests.fuzz.control_socket 60          # against a simulated daemon, with a new seed
    python -m tests.fuzz.control_socket 60 SEED     # the same talks again

tests/contract/test_control_socket.py has a short run on the simulator and on a card.
"""

import os
import random
import sys
import time
from collections.abc import Iterator

from tests.contract.raw_control import COMMANDER, CREDENTIALS, Talk, command

_SIZES = (0, 1, 3, 4, 5, 8, 9, 17, 100, 5000, 1 << 16, 200_000)
_WORDS = (
    *(
        b"get_server_list get_server_status get_client_list get_device_client_list ps device_query"
        b" terminate_client start_server shutdown_server quit set_default_active_thread_percentage"
        b" get_default_active_thread_percentage set_active_thread_percentage"
        b" set_default_device_pinned_mem_limit get_default_device_pinned_mem_limit"
        b" set_device_pinned_mem_limit get_device_pinned_mem_limit set_default_client_priority"
        b" -uid -t -f --csv 0 1 65534 -1 1G 0=1G nan 1e309 x"
    ).split(),
    b"9" * 500,
    b"\xff\xfe",
    "\u00b2\u0661\u2028".encode(),
    b"\n[2026-11-28 01:00:00.000 Server 4242] Server is handling a fatal GPU error.",
    b"\n[2026-11-28 01:00:00.000 Control 77] Server 771 exited with status 1",
    b"\r\n\0",
    b"\t",
    b"%s%n",
    b'{"words": "x"}',
)
# Who connects, besides a commander: what the others are was not observed; 1 is a client of the
# simulator.
CLIENTS = (0, 1, 2, 5, 6, 7, 255, 1 << 31)  # not 3: docs/mps-observed.md, section 4


def a_seed() -> int:
    """Of MPSD_FUZZ_SEED, or a new one."""
    return int(os.environ.get("MPSD_FUZZ_SEED") or time.time_ns() % 10**9)


def talks(seed: int, *, as_clients: bool = False) -> Iterator[Talk]:
    """Without end. as_clients: by who says that it is no commander."""
    choice = random.Random(seed)
    while True:
        if as_clients:
            number = choice.choice(CLIENTS).to_bytes(4, "little")
            yield (CREDENTIALS, number, *_messages(choice))
        else:
            yield choice.choice((_junk, _cut, _wrong, _spoken))(choice)


def _bytes(choice: random.Random) -> bytes:
    return choice.randbytes(choice.choice(_SIZES))


def _text(choice: random.Random) -> bytes:
    return b" ".join(choice.choices(_WORDS, k=choice.randint(0, 6)))


def _junk(choice: random.Random) -> Talk:
    return tuple(_bytes(choice) for _packet in range(choice.randint(0, 3)))


def _spoken(choice: random.Random) -> Talk:
    return command(_text(choice))


def _cut(choice: random.Random) -> Talk:
    whole = _spoken(choice)
    return tuple(whole[: choice.randrange(len(whole))])


def _wrong(choice: random.Random) -> Talk:
    """One of its packets is another, or comes twice, or another length was said."""
    packets = list(_spoken(choice))
    # the second says who it is
    at = choice.choice((0, 2, 3, 4))
    length = choice.choice((0, 1, len(packets[3]) + 1, 1 << 31, (1 << 64) - 1)).to_bytes(
        8, "little"
    )
    packets[at] = choice.choice((_bytes(choice), length, b"", packets[at] + b"\0", COMMANDER))
    if choice.random() < 0.3:
        packets.insert(at, packets[at])
    return tuple(packets)


def _messages(choice: random.Random) -> Iterator[bytes]:
    known = (
        b"{}",
        b"[]",
        b'"context"',
        b'{"context": 1}',
        b'{"context": {"uuid": "x", "ordinal": 0, "wish": {}}}',
        b'{"destroy": true}',
        b'{"fault": true}',
        b"[" * 50_000,
        b"\xff{",
    )
    for _message in range(choice.randint(0, 4)):
        yield choice.choice((*known, _bytes(choice)))


def main() -> None:
    from tests.contract.journal import Journal
    from tests.contract.platforms import Simulated
    from tests.contract.world import OTHER_UID, World, open_folder

    seed = a_seed()
    if len(sys.argv) > 2:
        seed = int(sys.argv[2])
    print(f"control socket: {sys.argv[1]} s, seed {seed}", flush=True)
    uid = OTHER_UID
    if os.getuid() != 0:
        uid = os.getuid()
    folder = open_folder()
    world = World(Simulated(folder / "node"), folder, Journal())
    try:
        daemon = world.daemon()
        neighbour = daemon.ready_client("hold")
        ends = time.monotonic() + float(sys.argv[1])
        said = talks(seed)
        as_client = talks(seed, as_clients=True)
        count = 0
        while time.monotonic() < ends:
            batch = [next(said) for _talk in range(100)]
            batch += [next(as_client) for _talk in range(100)]
            daemon.speak(batch, uid)
            count += len(batch)
            assert daemon.status == "ACTIVE", f"seed {seed}: after {count} talks"
            assert neighbour.running, f"seed {seed}: after {count} talks"
        print(f"  {count} talks; the daemon and its client live")
    finally:
        world.close()


if __name__ == "__main__":
    main()
