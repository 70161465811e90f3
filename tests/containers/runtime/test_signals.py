"""`kill` and `delete --force`: mpsd is asked first, and the next runtime gets the call whatever
comes of that."""

import signal
import subprocess

import msgspec
import pytest

from mpsd.grants.rules.messages import ClientsEnded, HostContainerSignal
from tests.containers.runtime.ground import Ground
from tests.containers.runtime.mpsd_answers import Answers, answering
from tests.whole.machine.machine import eventually

END = "/v1/containers/end"
ENDED = {END: (200, msgspec.to_builtins(ClientsEnded(2, is_over=False)))}
OVER = {END: (200, msgspec.to_builtins(ClientsEnded(2, is_over=True)))}


def _call(ground: Ground, words: str) -> None:
    """Fails unless the next runtime got the call as it came."""
    argv = ["--root", str(ground.root), *words.split()]
    assert ground.call(*argv).code == 0
    assert ground.heard
    assert ground.heard["argv"][1:] == argv


@pytest.mark.parametrize(
    ("words", "signum", "to_all"),
    [
        ("kill c1", signal.SIGTERM, False),
        ("kill c1 SIGKILL", signal.SIGKILL, False),
        ("kill c1 9", signal.SIGKILL, False),
        ("kill c1 sigusr1", signal.SIGUSR1, False),
        ("kill --all c1 15", signal.SIGTERM, True),
        ("kill -a c1 37", signal.SIGRTMIN + 3, True),
        ("kill c1 INT --all=true", signal.SIGINT, True),
        ("kill --all=false c1 HUP", signal.SIGHUP, False),
        ("delete --force c1", signal.SIGKILL, False),
        ("delete c1 -f", signal.SIGKILL, False),
    ],
)
def test_mpsd_is_asked_before_a_signal_is_sent(
    container: Ground, words: str, signum: int, to_all: bool
) -> None:
    with answering(container.run_directory, Answers(dict(ENDED))) as mpsd:
        _call(container, words)
    (asked,) = mpsd.asked
    wanted = HostContainerSignal(
        str(container.root), "c1", signum, to_all, pid=4711, start_ticks=815
    )
    assert (asked.url, msgspec.convert(asked.body, HostContainerSignal, strict=True)) == (
        END,
        wanted,
    )
    event = container.events[-1]
    assert (event["event"], event["signal"], event["ended"]) == ("signal", signum, 2)


@pytest.mark.parametrize(
    "words",
    [
        "kill c2 KILL",
        "kill .. KILL",
        "kill c1 NOSUCH",
        "kill c1 SIG_BLOCK",
        "kill c1 0",
        "kill --regex c.* KILL",
        "delete c1",
        "delete --force=false c1",
        "delete --force c2",
    ],
)
def test_nobody_is_asked_about_what_kills_no_client_of_a_grant(
    container: Ground, words: str
) -> None:
    with answering(container.run_directory, Answers(dict(ENDED))) as mpsd:
        _call(container, words)
    assert mpsd.asked == []


def test_a_signal_that_finds_nobody_any_more_has_had_its_effect(container: Ground) -> None:
    with answering(container.run_directory, Answers(dict(OVER))):
        assert container.call("--root", str(container.root), "kill", "c1", "KILL").code == 0
        assert container.heard is None
        _call(container, "kill --all c1 KILL")
        _call(container, "delete --force c1")


@pytest.mark.parametrize(
    "answer", [None, (204, None), (404, {"reasons": ["none"]}), (409, []), (500, None), (200, [])]
)
def test_the_signal_is_sent_whatever_mpsd_answers(
    container: Ground, answer: tuple[int, object] | None
) -> None:
    if answer is None:
        _call(container, "kill c1 KILL")
    else:
        with answering(container.run_directory, Answers({END: answer})):
            _call(container, "kill c1 KILL")
    assert container.events[-1]["reasons"]


@pytest.mark.parametrize("config", ["{", "[]", '{"process": {"env": ["A=b", 5]}}', None])
def test_the_signal_is_sent_where_the_bundle_cannot_be_read(
    container: Ground, config: str | None
) -> None:
    if config is None:
        container.config.unlink()
    else:
        container.config.write_text(config)
    with answering(container.run_directory, Answers(dict(ENDED))) as mpsd:
        _call(container, "kill c1 KILL")
    assert mpsd.asked == []


def test_a_container_that_was_given_its_share_by_kubelet_is_asked_for_too(ground: Ground) -> None:
    ground.hold("c1")
    ground.write()
    with answering(ground.run_directory, Answers(dict(ENDED))) as mpsd:
        _call(ground, "kill c1 KILL")
        assert mpsd.asked == []
        ground.write("CUDA_MPS_PIPE_DIRECTORY=/run/mpsd/client")
        _call(ground, "kill c1 KILL")
    assert [asked.url for asked in mpsd.asked] == [END]


def test_the_signal_is_not_sent_before_mpsd_has_answered(container: Ground) -> None:
    with answering(container.run_directory, Answers(dict(ENDED))) as mpsd:
        mpsd.may_answer.clear()
        call = subprocess.Popen(
            [container.program, "--root", str(container.root), "kill", "c1", "KILL"]
        )
        try:
            eventually(lambda: mpsd.asked, "mpsd is asked")
            assert call.poll() is None
            assert container.heard is None
            mpsd.may_answer.set()
            assert call.wait(60) == 0
        finally:
            call.kill()
    assert container.heard
