"""A look at a cluster is answered by kubectl where it can be, and by a client of our own where
not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpsd.cli import kubectl_mps
from tests.cli.cluster_world import ClusterWorld
from tests.mpsnodes import NAMES
from tests.world.captured import captured

BIN = Path(sys.executable).parent


@pytest.fixture
def with_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")


def ageless(text: str) -> str:
    return re.sub(r"\d+ s\b", "N s", text)


@pytest.mark.usefixtures("with_kubectl")
@pytest.mark.parametrize("words", [[], ["-o", "wide"], ["status", "-o=json"]])
def test_it_says_what_the_client_of_its_own_says(
    words: list[str], world: ClusterWorld, tmp_path: Path
) -> None:
    world.put(*NAMES)
    by_kubectl = world.run(kubectl_mps.main, "kubectl-mps", *words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        by_itself = world.run(kubectl_mps.main, "kubectl-mps", *words)
    without_now = [
        re.sub(r'"now": [0-9.]+', "", ageless(said.output)) for said in (by_kubectl, by_itself)
    ]
    assert without_now[0] == without_now[1]
    assert (by_kubectl.code, by_kubectl.errors) == (by_itself.code, by_itself.errors) == (1, "")


def test_where_kubectl_answers_no_client_is_loaded(world: ClusterWorld) -> None:
    world.put("gpu-a1")
    heavy = ["kubernetes", "urllib3", "asyncio", "yaml"]
    code = (
        "import sys\nfrom mpsd.cli.kubectl_mps import main\nsys.argv = ['kubectl-mps']\n"
        f"try: main()\nexcept SystemExit: print(*[one for one in {heavy} if one in sys.modules],"
        " 'end')\n"
    )
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = captured([sys.executable, "-c", code], env=environment)
    assert done.stdout.splitlines()[-1].strip() == "end"
    assert "default/mps-sample-7xk2p" in done.stdout


@pytest.mark.parametrize("said", ["exit 1", "echo '{}'", "exec sleep 60", "printf '\\377'"])
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
    answer = world.run(kubectl_mps.main, "kubectl-mps")
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
        "from mpsd.cli.kubectl_mps import main\nsys.argv = ['kubectl-mps']\nmain()\n"
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asks:
        assert asks.stderr
        first = asks.stderr.readline()
        logged_in.touch()  # whatever was read, for the program waits for it
        _answer, errors = asks.communicate(timeout=60)
    assert (asks.returncode, first, errors) == (0, "open this page\n", "")
