"""How close the simulator has to come to what the hardware printed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.simulator.machine import Machine
from tests.simulator.transcripts import AskedCommand, RanClient

# MiB. A context's cost is a straight line through the measured ones; outside a limit the card's own
# rounding shows too, most at middling numbers of SMs.
WITHIN_A_LIMIT = 2
ON_THE_CARD = 4

LIMITED_BELOW_MIB = 141_000
_NOT_COMPARED = {"pid", "t", "init_s", "uuid", "after_s"}


def same_memory(seen_mib: int, expected_mib: int) -> bool:
    allowed = WITHIN_A_LIMIT if expected_mib < LIMITED_BELOW_MIB else ON_THE_CARD
    return abs(seen_mib - expected_mib) <= allowed


def assert_same_lines(
    seen: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]
) -> None:
    """The same lines with the same values; free memory as close as it is promised."""
    assert [_keys(line) for line in seen] == [_keys(line) for line in expected]
    for ours, theirs in zip(seen, expected, strict=True):
        for key in _keys(theirs):
            if key in {"meminfo_free_MiB", "free_after_MiB"}:
                assert same_memory(ours[key], theirs[key]), (key, ours, theirs)
            else:
                assert ours[key] == theirs[key], (key, ours, theirs)


def _keys(line: Mapping[str, Any]) -> list[str]:
    return sorted(set(line) - _NOT_COMPARED)


class Replay:
    """Plays a transcript's steps on a machine; the transcript's server pids become the machine's as
    they are listed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._servers: dict[str, str] = {}

    def play(self, step: AskedCommand | RanClient) -> None:
        if isinstance(step, AskedCommand):
            self._command(step)
        else:
            client = self.machine.run_client(*step.arguments, environment=step.environment)
            assert client.process.returncode == step.exit
            assert_same_lines(client.lines, step.lines)

    def here(self, text: str) -> str:
        """The text with this machine's server pids."""
        for there, now in self._servers.items():
            text = re.sub(rf"\b{there}\b", now, text)
        return text

    def _command(self, step: AskedCommand) -> None:
        answer = self.machine.ask(self.here(step.line))
        if step.line == "get_server_list" and step.output:
            assert answer.output.isdigit()
            self._servers[step.output] = answer.output
        assert (answer.output, answer.error, answer.exit) == (
            self.here(step.output),
            step.error,
            step.exit,
        ), step.line
