"""`kubectl mps` and `mpsd status --cluster`: a cluster's GPUs, for people and for machines, and
what may go wrong."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mpsd.cli import kubectl_mps, main
from mpsd.cli.kubectl_mps import KUBECTL_MPS
from mpsd.model.mpsnode import cluster_status
from mpsd.platform.kube import MPS_NODES, PatchKind
from mpsd.status.cluster_answers import cluster_parts
from tests.cli.cluster_world import ClusterWorld
from tests.mpsnodes import NAMES, NOW, damaged, mpsnode
from tests.whole.machine.machine import Program, eventually
from tests.whole.webhook.api_server import api_server

BIN = Path(sys.executable).parent


def test_nodes_gpus_and_pods_are_shown_and_what_is_wrong_with_them(world: ClusterWorld) -> None:
    world.put(*NAMES)
    said = world.kubectl_mps()
    assert said.code == 1
    assert said.errors == ""
    assert said.row("gpu-a1", "True")[:6] == ["gpu-a1", "True", "AllServe", "26", "h", "2"]
    assert said.row("gpu-a2", "False")[5:10] == ["4", "1/3", "27/92.2", "GiB", "?"]
    assert said.row("gpu-b1", "silent")[-2:] == ["87", "min"]
    assert said.row("gpu-b2", "Unknown") == [
        *("gpu-b2", "Unknown", "?", "?", "?/?", "GiB", "?", "?", "?", "?", "all", "never")
    ]
    assert said.row("gpu-a2", "gpu0")[2:7] == ["A30", "gpu0", "draining", "11/23", "GiB"]
    assert said.row("gpu-a2", "default/wide-0") == [
        *("gpu-a2", "default/wide-0", "gpu2,gpu3", "8", "GiB", "25", "%", "3", "GiB", "1")
    ]
    assert "gpu-a2: gpu1 is down since " in said.output
    assert " in a row; the next start is in 8 s; mpsd restarts it; log/control.log" in said.output
    assert "gpu-b1 has reported nothing for 87 min (expected every 5 min): " in said.output
    assert "gpu-b2 has reported nothing yet; " in said.output


def test_a_node_that_is_well_is_a_yes_whatever_the_others_are(world: ClusterWorld) -> None:
    world.put(*NAMES)
    said = world.kubectl_mps("gpu-a1")
    assert said.code == 0
    assert "gpu-a2" not in said.output
    assert "gpu-a1" in world.run(main.main, "mpsd", "status", "gpu-a1").output
    assert world.run(main.main, "mpsd", "status", "--cluster").code == 1


def test_machines_read_the_same_in_json_and_yaml(world: ClusterWorld) -> None:
    world.put("gpu-a1", "gpu-a2")
    as_json, as_yaml = world.kubectl_mps("-o=json"), world.kubectl_mps("-o", "yaml")
    read, other = json.loads(as_json.output), yaml.safe_load(as_yaml.output)
    assert read["nodes"] == other["nodes"]
    assert (as_json.code, as_yaml.code) == (1, 1)
    assert read["nodes"][0]["gpus"][0]["grantedMiB"] == 27648
    assert read["nodes"][1]["gpus"][1]["usedMiB"] is None
    pod = read["nodes"][1]["pods"][0]
    assert (pod["pod"], pod["violations"]["last"]["action"]) == ("default/train-1", "kill")


# -- what may go wrong


def test_a_node_that_is_not_there_is_a_wrong_question_answered_with_those_that_are(
    world: ClusterWorld,
) -> None:
    world.put("gpu-a1", "gpu-b1")
    said = world.kubectl_mps("gpu-a1", "gpu-b7")
    assert (said.code, said.output) == (2, "")
    assert 'node "gpu-b7": has no MPSNode; name one of gpu-b1, gpu-a1\n' in said.errors


def test_a_cluster_without_mpsnodes_says_where_to_look(world: ClusterWorld) -> None:
    said = world.kubectl_mps()
    assert said.code == 1
    assert "no node has reported anything yet; see whether the pods" in said.errors


def test_a_cluster_without_mpsd_is_told_how_to_get_it(bare_world: ClusterWorld) -> None:
    for words in ((), ("-w",), ("cordon", "gpu-a1")):
        said = bare_world.kubectl_mps(*words)
        assert said.code == 1
        assert "this cluster knows no MPSNodes (mpsnodes.mpsd.io)" in said.errors


def test_a_missing_right_is_named_with_the_way_to_it(tmp_path: Path, world: ClusterWorld) -> None:
    with api_server() as server:
        config = server.kubeconfig(tmp_path)
        server.forbidden = {("list", "mpsnodes"), ("patch", "mpsnodes")}
        server.put("/apis/mpsd.io/v1alpha1/mpsnodes/gpu-a1", mpsnode("gpu-a1"))
        listing = world.kubectl_mps("--kubeconfig", str(config))
        assert listing.code == 1
        assert "lacks the right to list mpsnodes: " in listing.errors
        assert "--verb=get,list,watch --resource=mpsnodes.mpsd.io" in listing.errors
        patching = world.kubectl_mps("cordon", "gpu-a1", "--kubeconfig", str(config))
        assert patching.code == 1
        assert "lacks the right to patch mpsnodes gpu-a1: " in patching.errors
        assert "patch too" in patching.errors


def test_a_missing_module_is_answered_with_the_extra_that_brings_it(world: ClusterWorld) -> None:
    code = (
        "import sys; sys.modules['urllib3'] = None; from mpsd.cli.kubectl_mps import main; main()"
    )
    environment = os.environ | {"PATH": str(BIN / "nothing")}  # no kubectl
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs the module urllib3: pip install '.[kubectl]' in a checkout" in done.stderr


# -- the program


def test_kubectl_finds_it(world: ClusterWorld) -> None:
    world.put("gpu-a1")
    path = f"{BIN}:{os.environ['PATH']}"
    done = subprocess.run(
        ["kubectl", "mps", "gpu-a1"],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "default/mps-sample-7xk2p" in done.stdout


def test_tab_offers_verbs_nodes_and_gpus_through_kubectl_itself(world: ClusterWorld) -> None:
    world.put("gpu-a1", "gpu-b1")

    def offered(*words: str) -> list[str]:
        said = world.run(kubectl_mps.complete, "kubectl_complete-mps", *words)
        *lines, directive = said.output.splitlines()
        assert directive == ":4"
        return [line.split("\t")[0] for line in lines]

    assert offered("") == [*KUBECTL_MPS.verbs, "gpu-a1", "gpu-b1"]
    assert offered("gpu-a1", "") == ["gpu-b1"]
    assert offered("cordon", "gpu-b") == ["gpu-b1"]
    assert offered("--context", "simulated", "cordon", "gpu-a1", "gpu0", "") == ["gpu1", "all"]
    assert offered("drain", "gpu-a1", "--gpu", "gpu1", "--gpu", "") == ["gpu0", "all"]
    assert offered("-o", "w") == ["wide"]
    path = f"{BIN}:{os.environ['PATH']}"
    done = subprocess.run(
        ["kubectl", "__complete", "mps", "uncordon", "gpu-b1", "g"],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "gpu0\n:4\n"
    world.api.stop()
    assert offered("cordon", "") == []


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ([], ["status"]),
        (["gpu-a1", "-w"], ["status", "gpu-a1", "-w"]),
        (["--context", "cordon", "gpu-a1"], ["status", "--context", "cordon", "gpu-a1"]),
        (["--context", "a", "cordon", "gpu-a1"], ["cordon", "--context", "a", "gpu-a1"]),
        (["--context=a", "cordon", "gpu-a1"], ["cordon", "--context=a", "gpu-a1"]),
        (["status", "cordon"], ["status", "cordon"]),
        (["--help"], ["--help"]),
    ],
)
def test_options_may_stand_before_the_verb_and_no_verb_is_status(
    words: list[str], read: list[str]
) -> None:
    assert KUBECTL_MPS.arranged(words) == read


def test_which_options_have_a_value_is_known_before_any_verb_is_loaded() -> None:
    options = [one for verb in KUBECTL_MPS.verbs for one in vars(KUBECTL_MPS.load(verb))["options"]]
    assert {word for one in options if one.has_value for word in one.names} == kubectl_mps._VALUED


# -- watching


def watching(world: ClusterWorld, tmp_path: Path, *words: str) -> Program:
    argv = [str(BIN / "kubectl-mps"), *words, "--watch"]
    return Program(argv, {**os.environ, "PYTHONUNBUFFERED": "1"}, tmp_path / "watch")


def test_a_watch_shows_every_change_outlives_the_api_server_and_ends_at_ctrl_c(
    world: ClusterWorld, tmp_path: Path
) -> None:
    world.put("gpu-a1")
    watch = watching(world, tmp_path, "gpu-a1", "-o", "json")

    def pictures() -> list[Any]:
        return [
            json.loads(line)
            for line in watch.output.splitlines(keepends=True)
            if line.endswith("\n")
        ]

    eventually(lambda: len(pictures()) == 1, "the first picture")
    world.api.stop()
    eventually(lambda: pictures()[-1]["away"], "that the API server is away")
    assert pictures()[-1]["nodes"] == pictures()[0]["nodes"]
    world.api.start()
    world.ask(
        lambda kube: kube.patch(
            MPS_NODES, "gpu-a1", {"spec": {"cordoned": ["all"]}}, PatchKind.MERGE
        )
    )
    eventually(lambda: pictures()[-1]["nodes"][0]["cordoned"] == ["all"], "the change")
    watch.process.send_signal(signal.SIGINT)
    assert watch.exit_code() == 130
    assert watch.errors == ""


# -- any JSON


@given(st.lists(damaged(), max_size=2), st.booleans())
def test_whatever_nodes_tell_can_be_shown_and_no_terminal_obeys_it(
    things: list[Any], wide: bool
) -> None:
    shown = io.StringIO()
    to = Console(file=shown, width=1000, markup=False, highlight=False)
    for part in cluster_parts(cluster_status(things, NOW), wide=wide):
        to.print(part)
    text = shown.getvalue().replace("\n", "")
    assert text.isprintable()
