"""`mpsd up`: where it does not start, and what it does with limits that change under it."""

from pathlib import Path

import pytest

from tests.whole.machine.machine import MPSD, Machine, eventually


@pytest.mark.parametrize("program", ["up", "agent"])
def test_a_second_mpsd_in_one_run_directory_leaves_the_first_alone(
    served: Machine, program: str
) -> None:
    first = served.part("up")
    client = served.client(7)
    before = served.node()
    second = served.service(program)
    assert second.exit_code() == 1
    assert second.errors.startswith("mpsd: mpsd runs here already: ")
    assert str(served.run_directory) in second.errors
    after = served.node()
    assert (after.domains, after.grants) == (before.domains, before.grants)
    assert first.running
    assert client.running


def test_every_fault_of_a_malformed_policy_is_named_and_nothing_is_started(
    machine: Machine,
) -> None:
    machine.set_policy(placement="heap", domains=[[0]], surprise=1)
    service = machine.service("up")
    assert service.exit_code() == 2
    assert all(field in service.errors for field in ("placement", "domains", "surprise"))
    assert not (machine.run_directory / "gpu0").exists()


def test_a_policy_that_goes_bad_is_not_taken_and_one_that_is_good_again_is(served: Machine) -> None:
    service = served.part("up")
    served.client(7)
    served.write_policy("version: v2\n")

    (line,) = eventually(lambda: service.logged("limits kept"), "the bad policy is reported")

    assert "v2" in line["reason"]
    assert served.run("--gpu-mem 12", "true").exit_code() == 0
    served.set_policy(oversubscription={"memory_percent": 50})
    eventually(
        lambda: served.node().gpus[0].promised_mib < 12 * 1024, "the good policy is in force"
    )
    assert served.run("--gpu-mem 7", "true").exit_code() == 1
    served.end_programs()
    served.set_policy()
    eventually(
        lambda: served.node().gpus[0].promised_mib > 12 * 1024, "the first policy is in force again"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--simulate", "A31x2"], "A31"),
        (["--run-dir", "/tmp/" + 90 * "x"], "choose a shorter path"),
        (["--simulate", "H200", "--run-dir", "/proc/self"], "takes no files: "),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_remedy(
    machine: Machine, arguments: list[str], said: str
) -> None:
    refused = machine.start([MPSD, "up", *arguments])
    assert refused.exit_code() == 2
    assert said in refused.errors
    assert not Path("/tmp/" + 90 * "x").exists()
