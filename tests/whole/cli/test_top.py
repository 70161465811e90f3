"""`mpsd top`: who uses the GPUs of this machine, live on a terminal and as lines elsewhere."""

import json
import re
import signal

from tests.whole.cli.screens import Screen, on_screen
from tests.whole.machine.machine import MPSD, Machine

GPUS = "A30×2"
POLICY = {"exclusive_process": False}


def row_of(screen: Screen, words: str) -> list[str]:
    return next((line.split() for line in screen.lines if words in line), [])


def place_of(screen: Screen, words: str) -> int:
    return next((place for place, line in enumerate(screen.lines) if words in line), -1)


def test_it_shows_who_uses_what_and_sorts_by_what_is_asked(served: Machine) -> None:
    served.client(6, "alloc=500")
    served.client(8, "alloc=2000")
    small, large = "alloc=500", "alloc=2000"
    with on_screen([MPSD, "top", "--interval", "0.2"], served.environment, 150) as screen:
        screen.until(
            lambda seen: place_of(seen, large) > 0 and "?" not in row_of(seen, "gpu0  ")[4:6],
            "both, measured",
        )
        screen.until(
            lambda seen: 0 < place_of(seen, large) < place_of(seen, small), "the larger one first"
        )
        assert row_of(screen, "A30")[:3] == ["gpu0", "A30", "ready"]
        assert row_of(screen, "A30")[3].startswith("14/")
        screen.press("n")
        screen.shows("sorted by name")
        screen.press("q")
        assert screen.ended() == 0
        assert screen.is_as_it_was()


def test_a_signal_ends_it_and_the_terminal_is_as_it_was(served: Machine) -> None:
    with on_screen([MPSD, "top"], served.environment) as screen:
        screen.shows("q quit")
        screen.send(signal.SIGTERM)
        assert screen.ended() == 128 + signal.SIGTERM
        assert screen.is_as_it_was()


def test_a_narrow_terminal_shows_fewer_columns_and_a_wide_one_all(served: Machine) -> None:
    served.client(6, "alloc=500")
    with on_screen([MPSD, "top", "--interval", "0.2"], served.environment, 150) as screen:
        screen.until(lambda seen: "THREADS" in seen.text and "MODEL" in seen.text, "all columns")
        screen.resize(64, 20)
        screen.until(lambda seen: "MODEL" not in seen.text and "USED" in seen.text, "what fits")
        screen.resize(150, 24)
        screen.until(
            lambda seen: "THREADS" in seen.text and "MODEL" in seen.text, "all columns again"
        )
        screen.press("q")
        assert screen.ended() == 0


def test_an_agent_that_is_gone_is_said_since_when_and_is_waited_for(pair: Machine) -> None:
    _control, agent = pair.apart()
    pair.until_ready()
    pair.client(6, "alloc=500")
    with on_screen([MPSD, "top", "--interval", "0.2"], pair.environment, 150) as screen:
        screen.shows("alloc=500")
        agent.kill()
        screen.shows("nothing newer is known since")
        assert re.search(
            r"since \d\d:\d\d:\d\d \(\d+ s\): mpsd (does not run here|closed the connection)",
            screen.text,
        )
        assert "alloc=500" in screen.text, "what was seen last stays"
        pair.service("agent")
        screen.until(
            lambda seen: "nothing newer" not in seen.text and "alloc=500" in seen.text, "it goes on"
        )
        screen.press("q")
        assert screen.ended() == 0
        assert screen.is_as_it_was()


# -- elsewhere


def test_in_a_pipe_it_is_one_look_without_control_codes(served: Machine) -> None:
    client = served.client(6, "alloc=500")
    asked = served.start([MPSD, "top", "--once"])
    assert asked.exit_code() == 0, asked
    assert "\x1b" not in asked.output
    assert f"pid {client.pid}: sim-cuda" in asked.output


def test_machines_read_an_object_a_line(served: Machine) -> None:
    client = served.client(6, "alloc=500")
    asked = served.start([MPSD, "top", "-n", "3", "--interval", "0.2", "-o", "json"])
    assert asked.exit_code() == 0, asked
    looks = [json.loads(line) for line in asked.output.splitlines()]
    assert len(looks) == 3
    assert looks[0]["now"] < looks[1]["now"] < looks[2]["now"]
    for look in looks:
        (user,) = look["users"]
        assert (user["memoryMiB"], user["label"], user["over"]) == (6144, "gpu0", False)
        assert user["name"].startswith(f"pid {client.pid}: sim-cuda")
