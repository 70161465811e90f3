"""Plain questions are answered by kubectl, before the library of the command line has loaded, and no otherwise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from mpsd.cli import kubectl_mps
from mpsd.cli import plain as quick
from mpsd.cli.plain import STATUS, plain
from mpsd.status import cluster_verbs
from tests.cli.cluster_world import ClusterWorld
from tests.mpsnodes import NAMES

BIN = Path(sys.executable).parent
FIELDS = ("output", "kubeconfig", "context")


def as_typer_reads(words: list[str]) -> dict[str, str] | None:
    """What the verb is given; None where it is not called, or asked for more than options with a word of their own."""
    found: dict[str, str] = {}

    def status(**given: object) -> None:
        found.update({name: str(value) for name, value in given.items() if value})

    status.__signature__ = __import__("inspect").signature(cluster_verbs.status)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False)
    alone.command("status")(status)
    try:
        typer.main.get_command(alone).main(list(words), standalone_mode=False)
    except Exception:
        return None
    return found


@given(
    st.lists(
        st.sampled_from([*STATUS, "json", "wide", "text", "xml", "-ojson", "-o=json", "--output=yaml", "--context=a"])
        | st.sampled_from(["-w", "gpu-a1", "", "-", "--", "--kubeconfig=", "--kubeconfig=/a=b", "--cont", "-h"]),
        max_size=5,
    )
)
def test_a_plain_line_is_read_as_the_library_reads_it(words: list[str]) -> None:
    found = plain(words, STATUS)
    if found is not None:
        assert {"output": "text"} | found == as_typer_reads(words)


def test_what_people_type_most_is_plain() -> None:
    assert plain([], STATUS) == {}
    assert plain(["-o", "wide"], STATUS) == {"output": "wide"}
    assert plain(["--context=far", "-o", "json"], STATUS) == {"context": "far", "output": "json"}
    assert plain(["gpu-a1"], STATUS) is None
    assert plain(["-w"], STATUS) is None


def test_this_machine_is_asked_without_the_library_of_the_command_line() -> None:
    code = (
        "import sys\nfrom mpsd.cli.plain import mpsd\nsys.argv = ['mpsd', 'status', '--run-dir', '/nowhere']\n"
        "try: mpsd()\nexcept SystemExit as end: print(int(end.code), *{'typer'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "1\n"
    assert done.stderr.startswith("mpsd status: mpsd does not run here: no process answers on ")


@pytest.fixture
def with_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")


def ageless(text: str) -> str:
    return re.sub(r"\d+ s\b", "N s", text)


@pytest.mark.usefixtures("with_kubectl")
@pytest.mark.parametrize("words", [[], ["-o", "wide"], ["status", "-o=json"]])
def test_it_says_what_the_client_of_its_own_says(words: list[str], world: ClusterWorld, tmp_path: Path) -> None:
    world.put(*NAMES)
    by_kubectl = world.run(quick.kubectl_mps, "kubectl-mps", *words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        by_itself = world.run(kubectl_mps.main, "kubectl-mps", *words)
    without_now = [re.sub(r'"now": [0-9.]+', "", ageless(said.output)) for said in (by_kubectl, by_itself)]
    assert without_now[0] == without_now[1]
    assert (by_kubectl.code, by_kubectl.errors) == (by_itself.code, by_itself.errors) == (1, "")


@pytest.mark.parametrize("program", ["kubectl_mps", "mpsd"])
def test_where_kubectl_answers_no_client_and_no_reader_of_command_lines_is_loaded(
    program: str, world: ClusterWorld
) -> None:
    world.put("gpu-a1")
    words = {"kubectl_mps": ["kubectl-mps"], "mpsd": ["mpsd", "status", "--cluster"]}[program]
    heavy = ["kubernetes", "urllib3", "asyncio", "typer", "yaml"]
    code = (
        f"import sys\nfrom mpsd.cli.plain import {program}\nsys.argv = {words}\n"
        f"try: {program}()\nexcept SystemExit: print(*[name for name in {heavy} if name in sys.modules], 'end')\n"
    )
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.splitlines()[-1].strip() == "end"
    assert "default/mps-sample-7xk2p" in done.stdout


@pytest.mark.parametrize("said", ["exit 1", "echo '{}'", "echo '['", "exec sleep 60", "printf '\\377'"])
def test_what_kubectl_does_not_answer_is_asked_by_a_client_of_its_own(
    said: str, world: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with it; the last word is that of the client, which knows what to do."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\n{said}\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("mpsd.status.glance._LONGEST_S", 1.0)
    monkeypatch.setattr("mpsd.status.glance._PATIENCE_S", 0.2)
    world.put("gpu-a1")
    answer = world.run(quick.kubectl_mps, "kubectl-mps")
    assert (answer.code, answer.errors) == (0, "")
    assert "default/mps-sample-7xk2p" in answer.output


def test_what_kubectl_says_is_shown_where_it_takes_long(
    world: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be asking a person to log in."""
    kubectl = tmp_path / "kubectl"
    logged_in = tmp_path / "logged-in"
    waits = f"until [ -e {logged_in} ]; do sleep 0.05; done"
    kubectl.write_text(f'#!/bin/sh\necho open this page >&2\n{waits}\nexec {BIN}/kubectl "$@"\n')
    kubectl.chmod(0o755)
    world.put("gpu-a1")
    code = (
        "import sys\nimport mpsd.status.glance as raw\nraw._PATIENCE_S = 0.2\n"
        "from mpsd.cli.plain import kubectl_mps\nsys.argv = ['kubectl-mps']\nkubectl_mps()\n"
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asks:
        assert asks.stderr
        first = asks.stderr.readline()
        logged_in.touch()  # whatever was read, for the program waits for it
        _answer, errors = asks.communicate(timeout=60)
    assert (asks.returncode, first, errors) == (0, "open this page\n", "")
