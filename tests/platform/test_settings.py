"""Settings: flags before variables before defaults, and every fault at once."""

from pathlib import Path

import pytest

from mpsd.model.problem import InvalidInput
from mpsd.platform.settings import settings


def test_a_flag_counts_before_a_variable_and_that_before_the_default() -> None:
    environment = {"MPSD_RUN_DIR": "/run/one", "MPSD_SIMULATE": "T4", "MPSD_LIMITS": "/etc/limits"}
    assert settings(environment=environment).run_directory == Path("/run/one")
    chosen = settings(run_directory="/run/two", environment=environment)
    assert (chosen.run_directory, chosen.simulate, chosen.limits_directory) == (
        Path("/run/two"),
        "T4",
        Path("/etc/limits"),
    )
    assert settings(environment={}).simulate == ""


@pytest.mark.parametrize("nothing", ["", " "])
def test_simulating_nothing_is_refused_and_not_taken_for_real_gpus(nothing: str) -> None:
    with pytest.raises(InvalidInput, match="leave it out for real GPUs") as raised:
        settings(simulate=nothing, environment={})
    assert [problem.rule for problem in raised.value.problems] == ["simulates-nothing"]


def test_the_longest_run_directory_still_holds_the_sockets_of_every_domain() -> None:
    longest = "/" + 63 * "r"
    chosen = settings(run_directory=longest, environment={})
    assert len(str(chosen.domain("gpu0-1-2-3-4-5-6-7").longest_socket())) == 107
    with pytest.raises(InvalidInput, match="run"):
        settings(run_directory=longest + "r", environment={})


def test_every_fault_is_named() -> None:
    with pytest.raises(InvalidInput) as raised:
        settings(run_directory="/" + 120 * "r", log_format="xml", environment={})
    assert [(problem.rule, problem.where) for problem in raised.value.problems] == [
        ("setting", "--run-dir (MPSD_RUN_DIR)"),
        ("setting", "--log-format (MPSD_LOG_FORMAT)"),
    ]
