"""What the tests asked and heard, for `--record FILE`.

Of the machine nothing goes in but the GPU and the driver.
"""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.contract.processes import Answer, Client

Event = dict[str, Any]


class Journal:
    def __init__(self) -> None:
        self._tests: dict[str, dict[str, Any]] = {}
        self._events: list[Event] = []
        self._clients: list[tuple[Event, Client]] = []
        self._hidden = dict.fromkeys((sys.executable, os.path.realpath(sys.executable)), "python3")

    def begin(self, test: str) -> None:
        self._events = []
        self._tests[test] = {"outcome": "not run", "events": self._events}

    def end(self, outcome: str, seen: Sequence[tuple[str, object]]) -> None:
        """seen: what the test counted or noted."""
        for event, client in self._clients:
            event["lines"] = list(client.lines)
        self._clients = [(event, client) for event, client in self._clients if client.running]
        test = next(reversed(self._tests.values()))
        test["outcome"] = outcome
        if seen:
            test["seen"] = [{name: value} for name, value in seen]

    def hide(self, path: str) -> None:
        self._hidden[path] = "…"

    def note_answer(self, answer: Answer, directory: str, uid: int) -> None:
        self._events.append(
            {
                "command": answer.command,
                "directory": directory,
                "uid": uid,
                "exit": answer.exit_code if answer.answered else "no answer",
                "stdout": answer.stdout,
                "stderr": answer.stderr,
            }
        )

    def note_client(
        self,
        client: Client,
        actions: Sequence[str],
        environment: Mapping[str, str | None],
        directory: str,
        uid: int,
    ) -> None:
        event: Event = {
            "client": list(actions),
            "pid": client.pid,
            "environment": dict(environment),
            "directory": directory,
            "uid": uid,
        }
        self._events.append(event)
        self._clients.append((event, client))

    def write(self, path: Path, ran_on: Mapping[str, Any]) -> None:
        record = {
            "read": "MPS as it answered tests/contract",
            "date": datetime.now(UTC).date().isoformat(),
            **ran_on,
            "kernel": platform.release(),
            "tests": self._tests,
        }
        text = json.dumps(record, indent=1, ensure_ascii=False)
        for hidden in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(hidden, self._hidden[hidden])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
