"""The page of the real programs: what happens on a node or in a cluster is soon seen, and an end is
said."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from mpsd.platform.kube import PatchKind
from tests.page.browser import Browser
from tests.served import free_port
from tests.simulated_api import SimulatedApi, simulated_api
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Service
from tests.whole.scheduler.process import extender
from tests.whole.scheduler.world import MPS_NODES, PODS, World, pod, run

LISTEN = "MPSD_LISTEN"


@pytest.fixture
def machine() -> Iterator[Machine]:
    yield from on_machine("A30×2")


def page_of(service: Service) -> str:
    (line,) = service.logged("serving readers")
    return f"http://127.0.0.1:{line['port']}/"


def test_a_lost_connection_is_said_with_since_when_and_heals(
    window: Browser, machine: Machine
) -> None:
    port = free_port()
    machine.service("control")
    agent = machine.service("agent", {LISTEN: f"127.0.0.1:{port}"})
    machine.until_ready()
    machine.client(7)
    window.open(f"http://127.0.0.1:{port}/")
    window.until("return document.querySelectorAll('tbody tr').length === 1", "the program is seen")

    agent.kill()
    window.until("return document.body.className === 'lost'", "the loss is seen")
    assert "connection lost since " in window.text("#link")
    assert "What is shown is what was known at " in window.text("#verdict-stale")
    assert window.text("#said").startswith("Connection lost.")
    assert "/ 7 GiB" in window.text("tbody")

    machine.service("agent", {LISTEN: f"127.0.0.1:{port}"})
    window.until("return document.body.className === 'live'", "it is connected again")
    assert window.text("#said") == "Connected again."
    assert window.text("#verdict-stale") == ""
    window.until(
        "return document.querySelectorAll('tbody tr').length === 1", "the program is seen again"
    )


@pytest.fixture
def api() -> Iterator[SimulatedApi]:
    with simulated_api() as running:
        yield running


def test_the_scheduler_shows_the_cluster_and_why_a_pod_waits(
    window: Browser, api: SimulatedApi, tmp_path: Path
) -> None:
    async def test(world: World) -> None:
        for number in range(1, 6):
            await world.add_node(f"node{number}", (23, 23))
        train, waits = await world.add_pod("train-0", 9, node="node1"), pod("finetune-0", 24)
        waits["spec"]["schedulerName"] = "mpsd-scheduler"
        runs = {"status": {"phase": "Running"}}
        await world.kube.patch(
            PODS, "train-0", runs, PatchKind.MERGE, "default", subresource="status"
        )
        await world.tell("node1", train, used_mib=900)
        await world.kube.create(PODS, waits, "default")
        with extender(tmp_path / "scheduler", world.kubeconfig, listen="127.0.0.1:0") as running:
            await asyncio.to_thread(running.wait_until_ready)
            (line,) = running.log("serving readers")
            await asyncio.to_thread(look, f"http://127.0.0.1:{line['port']}/")
            broken = {
                "status": {"domains": [{"name": "gpu0", "gpus": ["GPU-node3-0"], "state": "fault"}]}
            }
            await world.kube.patch(
                MPS_NODES, "node3", broken, PatchKind.MERGE, subresource="status"
            )
            await asyncio.to_thread(look_again)
            running.stop()

    def look(address: str) -> None:
        window.open(address)
        window.until(
            "return document.querySelectorAll('.node').length === 5", "five nodes are shown"
        )
        window.until(
            "return document.querySelectorAll('#waiting > li').length === 1", "one pod waits"
        )
        assert "cluster" in window.text("h1")
        assert "too large" in window.text("#waiting")
        assert "pod default/finetune-0 waits: it asks for 24 GiB of one GPU" in window.text(
            "#waiting"
        )
        window.keys("/train-0")
        window.until(
            "return document.querySelector('tr.hit th')?.innerText.trim() === 'default/train-0'",
            "its row is marked",
        )
        window.select_all()
        window.keys(Keys.BACKSPACE)
        window.until("return document.querySelectorAll('.node').length === 5", "all nodes are back")

    def look_again() -> None:
        window.until(
            "return document.querySelector('.node h3').textContent === 'node3'",
            "the worst node is first",
        )
        assert "node3 gpu0" in window.text("#notes")
        assert window.complaints() == []

    run(api, tmp_path, test)
