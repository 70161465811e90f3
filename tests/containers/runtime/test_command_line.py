"""The command line of a runtime: what is taken out, what is understood, and that all else is handed
on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.containers.runtime import command_line
from mpsd.containers.runtime.json_text import ContainerRefused

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
PLAIN = WORDS.filter(lambda word: word != "" and not word.startswith("-"))
VALUED = ("root", "log", "log-format", "criu", "rootless")
OWN = ("next", "run-dir", "runtime-log")


@st.composite
def written(draw: st.DrawFn, names: tuple[str, ...]) -> tuple[str, str, list[str]]:
    """An option: its name, its value, and one of the ways to write it."""
    name, value = draw(st.sampled_from(names)), draw(WORDS)
    dashes = draw(st.sampled_from(["-", "--"]))
    return (
        name,
        value,
        draw(st.sampled_from([[f"{dashes}{name}", value], [f"{dashes}{name}={value}"]])),
    )


@given(
    st.lists(written((*VALUED, *OWN))),
    st.sampled_from(["create", "run", "state", "exec"]),
    st.lists(WORDS),
)
def test_own_flags_are_taken_out_and_the_rest_is_handed_on(
    options: list[tuple[str, str, list[str]]], command: str, behind: list[str]
) -> None:
    line = command_line.read([word for *_, words in options for word in words] + [command, *behind])
    theirs = [word for name, _, words in options if name not in OWN for word in words]
    assert line.passed == [*theirs, command, *behind]
    assert (line.command, line.arguments) == (command, behind)
    assert line.own == {name: value for name, value, _ in options if name in OWN}
    assert line.options == {name: value for name, value, _ in options if name not in OWN}


@given(st.lists(WORDS))
def test_any_words_are_read_and_nothing_is_lost_but_own_flags(argv: list[str]) -> None:
    line = command_line.read(argv)
    left = iter(argv)
    assert all(word in left for word in line.passed)
    if not any(word.lstrip("-").partition("=")[0] in (*OWN, "help-mpsd") for word in argv):
        assert line.passed == argv


@given(
    st.permutations(
        [
            ["-b", "/x y"],
            ["--pid-file", "c9"],
            ["--console-socket=s"],
            ["--no-pivot"],
            ["-preserve-fds", "3"],
            ["c1"],
        ]
    )
)
def test_the_bundle_and_the_id_are_found_wherever_they_stand(parts: list[list[str]]) -> None:
    options = command_line.of_create([word for part in parts for word in part])
    assert options.words == ["c1"]
    assert options.values["bundle"] == "/x y"


@given(st.lists(WORDS))
def test_options_of_create_are_read_or_refused(arguments: list[str]) -> None:
    try:
        options = command_line.of_create(arguments)
    except ContainerRefused:
        assert any(word.startswith("-") for word in arguments)
        return
    assert all(word in arguments for word in options.words)


@given(st.lists(PLAIN, min_size=1))
def test_a_program_behind_the_id_keeps_its_options(program: list[str]) -> None:
    options = command_line.of_exec(["-t", "--user", "1", "-p", "f", "c1", *program, "-p", "other"])
    assert options.words == ["c1", *program, "-p", "other"]
    assert options.values["process"] == "f"


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ([], ""),
        (["--version"], ""),
        (["--new", "value", "--root", "r", "create", "c1"], "create"),  # behind what nobody knows
        (["--new=value", "delete", "create"], "delete"),
        (["--root", "create", "delete", "x"], "delete"),
        (["--root"], ""),
        (["--", "create", "c1"], "create"),
    ],
)
def test_the_command_is_found(argv: list[str], command: str) -> None:
    line = command_line.read(argv)
    assert line.command == command
    assert line.passed == argv


@pytest.mark.parametrize("arguments", [["--new", "value", "c1"], ["-b/x", "c1"], ["-x", "c1"]])
def test_an_unknown_option_that_may_hide_the_id_or_the_bundle_is_refused(
    arguments: list[str],
) -> None:
    with pytest.raises(ContainerRefused, match="does not know the option"):
        command_line.of_create(arguments)


@pytest.mark.parametrize(
    "arguments", [["--new", "c1"], ["--new=value", "c1"], ["--", "c1"], ["c1", "--bundle=b"]]
)
def test_an_unknown_option_that_hides_nothing_is_handed_on(arguments: list[str]) -> None:
    assert command_line.of_create(arguments).words == ["c1"]
