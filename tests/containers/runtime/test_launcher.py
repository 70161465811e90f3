"""The launcher itself: what it hands on at once, and to whom."""

from pathlib import Path

import pytest

from mpsd.containers.engines.launcher import launcher
from tests.containers.runtime.ground import Ground


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "words", [("start", "c1"), ("--root", "r", "state", "c1"), ("pause", "a b"), ("delete", "c1")]
)
def test_what_mpsd_has_no_part_in_needs_no_python(ground: Ground, words: tuple[str, ...]) -> None:
    write(
        ground.program,
        launcher("/no/such/python", "/x", "/run/mpsd", str(ground.following), "/log"),
    )
    assert ground.call(*words).code == 0
    heard = ground.heard
    assert heard
    assert heard["argv"][1:] == list(words)


@pytest.mark.parametrize(
    "word",
    [
        *("create", "run", "exec", "over", "--help", "-h", "help", "--next=x", "--run-dir"),
        *("kill", "delete -f", "delete --force", "delete -force=true"),
    ],
)
def test_what_mpsd_has_a_part_in_is_python_s(ground: Ground, word: str) -> None:
    write(ground.program, launcher("/bin/echo", "/x", "/run/mpsd", str(ground.following), "/log"))
    ended = ground.call("--debug", *word.split(), "c1")
    assert ended.said.startswith("-ISc ")
    assert ended.said.endswith(f" {ground.program} --debug {word} c1\n")


def test_without_a_next_runtime_named_nvidia_s_comes_before_runc(ground: Ground) -> None:
    write(ground.program, launcher("/no/such/python", "/x", "/run/mpsd", "", "/log"))
    folder = ground.folder / "bin"
    folder.mkdir()
    write(folder / "runc", "#!/bin/sh\necho runc $@\n")
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    assert ground.call("state", "c1", env=path).said == "runc state c1\n"
    write(folder / "nvidia-container-runtime", "#!/bin/sh\necho nvidia $@\n")
    assert ground.call("state", "c1", env=path).said == "nvidia state c1\n"


def test_it_never_starts_itself_again_and_says_so(ground: Ground) -> None:
    again = ground.folder / "runc"
    again.symlink_to(ground.program)
    text = ground.program.read_text().replace(str(ground.following), str(again))
    write(ground.program, text)
    ended = ground.call("state", "c1")
    assert ended.code != 0
    assert "is mpsd-runtime itself; name another with --next" in ended.said


def test_a_next_runtime_that_is_not_there_is_said_with_the_remedy(ground: Ground) -> None:
    ground.following.unlink()
    ended = ground.call("state", "c1")
    assert (ended.code, "is not found; name one with --next" in ended.said) == (127, True), ended
