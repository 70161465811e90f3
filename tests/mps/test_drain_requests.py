"""Requests to drain, as the agent writes them and control reads them."""

from pathlib import Path

import pytest

from mpsd.mps import drain
from mpsd.mps.drain import DrainRequest
from mpsd.platform.run_directory import DomainFolder


@pytest.fixture
def folder(tmp_path: Path) -> DomainFolder:
    return DomainFolder(tmp_path / "gpu0")


def test_a_request_can_be_made_before_control_has_run(folder: DomainFolder) -> None:
    assert drain.asked(folder) is None
    assert drain.ask(folder, "a new driver")
    assert drain.asked(folder) == DrainRequest("a new driver")


def test_a_request_is_written_once_and_again_only_for_another_reason(folder: DomainFolder) -> None:
    assert drain.ask(folder, "a new driver")
    assert not drain.ask(folder, "a new driver")
    assert drain.ask(folder, "a new card")


def test_a_request_is_withdrawn_once(folder: DomainFolder) -> None:
    drain.ask(folder, "a new driver")
    assert drain.withdraw(folder)
    assert not drain.withdraw(folder)
    assert drain.asked(folder) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"reason": 3}', "null"])
def test_a_request_that_cannot_be_read_is_a_request(folder: DomainFolder, content: str) -> None:
    folder.make()
    folder.drain.write_text(content)
    asked = drain.asked(folder)
    assert asked
    assert str(folder.drain) in asked.reason
