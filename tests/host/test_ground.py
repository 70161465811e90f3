"""The ground itself: a container that asks for nothing is runc's own, and leaves nothing."""

from tests.host.host import Host


def test_a_container_that_asks_nothing_runs_and_ends_with_its_own_code(host: Host) -> None:
    done = host.ran({"LANG": "C"}, "sh", "-c", "echo $LANG; echo no >&2; exit 7")
    assert (done.code, done.output, done.errors) == (7, "C\n", "no\n")


def test_a_container_is_created_started_entered_and_deleted(host: Host) -> None:
    made = host.container({}, "sleep", "60")
    assert made.create().code == 0
    assert made.status == "created"
    assert made.start().code == 0
    assert made.exec("sh", "-c", "echo in").output == "in\n"
    assert made.delete(force=True).code == 0
    assert made.status == ""


def test_the_simulated_cuda_client_is_in_every_container(host: Host) -> None:
    done = host.ran({}, "sim-cuda", "nonsense")
    assert done.code == 2
    assert "sim-cuda: nonsense is not one of" in done.errors
