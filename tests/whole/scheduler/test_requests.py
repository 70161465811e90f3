"""What kube-scheduler asks is answered from the ledger, over HTTP, by one process for all of these
tests."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.kubelet.rules.node_pods import GPU
from mpsd.platform.limits_files import POLICY_FILE, shipped_folder
from mpsd.scheduler.rules.filter import UNKNOWN_NODE
from mpsd.simulator.api_server.kinds import PODS as POD_KIND
from mpsd.simulator.programs import wait_until
from tests.served import DEADLINE_S, Object, Served
from tests.simulated_api import SimulatedApi, simulated_api
from tests.whole.scheduler.process import Extender, extender
from tests.whole.scheduler.world import PODS, World, gpu_of, pod, run, uuid
from tests.world.unread import Place, unread, without_reader

EVERY_NODE = ("full", "empty", "roomy", "small", "plain")


async def cluster(world: World) -> None:
    """full has 3 and 4 GiB free; of the others empty packs, roomy spreads, small is too small, and
    plain is no node of ours. Of the pods on full, low-a and low-b give way to others, and high does
    not.
    """
    await world.add_node("full", (23, 23))
    for name, gib, gpu, priority in (
        ("low-a", 9, 0, 1),
        ("high", 11, 0, 1000),
        ("low-b", 19, 1, 2),
    ):
        made = pod(name, gib)
        made["metadata"]["annotations"] = {GPU: uuid("full", gpu)}
        made["spec"] |= {"nodeName": "full", "priority": priority}
        await world.kube.create(PODS, made, "default")
    await world.tell("full", *[await world.pod(name) for name in ("low-a", "high", "low-b")])
    await world.add_node("empty", (23, 10))
    await world.add_node("roomy", (23, 23), placement="spread")
    await world.add_node("small", (6,))


@pytest.fixture(scope="module")
def api() -> Iterator[SimulatedApi]:
    with simulated_api() as running:
        yield running


@pytest.fixture(scope="module")
def served(api: SimulatedApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extender]:
    folder = tmp_path_factory.mktemp("scheduler")
    run(api, folder, cluster)
    shutil.copytree(shipped_folder(), folder / "limits")
    with extender(folder, api.kubeconfig(folder), limits=str(folder / "limits")) as running:
        running.wait_until_ready()
        yield running


def asking(api: SimulatedApi, name: str, gib: int = 7, gpus: int = 1, priority: int = 0) -> Object:
    """A pod as kube-scheduler has it: as the API server has, without its kind."""
    made = pod(name, gib, gpus)
    made["spec"]["priority"] = priority
    found: Object = api.do(lambda: api.cluster.objects.create(POD_KIND, "default", made))
    return {key: value for key, value in found.items() if key not in {"apiVersion", "kind"}}


def test_a_node_with_room_on_one_gpu_passes_and_others_say_why_not(
    served: Extender, api: SimulatedApi
) -> None:
    said = served.filter(asking(api, "seven"), *EVERY_NODE)
    assert said["NodeNames"] == ["empty", "roomy"]
    failed = said["FailedNodes"]
    assert (*failed, failed["plain"]) == ("full", "small", "plain", UNKNOWN_NODE)
    assert (failed["full"].count("gpu"), failed["small"].count("gpu")) == (2, 1)
    assert [*said["FailedAndUnresolvableNodes"]] == ["small", "plain"]
    assert said["Error"] == ""
    assert served.metric('mpsd_scheduler_requests_total{verb="filter",verdict="done"}') >= 1
    assert served.metric("mpsd_scheduler_nodes") == 4
    assert served.metric("mpsd_scheduler_gpus") == served.metric("mpsd_scheduler_gpus_open") == 7
    usable = "mpsd_scheduler_ledger_usable_seconds"
    wait_until(lambda: served.metric(usable) > 0, DEADLINE_S, "it counts since when", 0.05)
    assert served.ask("POST", "/filter", b'{"Pod": 1}').status == 400


def test_whoever_is_needed_is_added_to_the_proposed_victims(
    served: Extender, api: SimulatedApi
) -> None:
    uids = {name: uid_of(api, name) for name in ("low-a", "low-b")}
    nobody: Object = {"Pods": None, "NumPDBViolations": 0}
    asked = {
        "Pod": asking(api, "urgent", priority=100),
        "NodeNameToMetaVictims": {"full": nobody, "small": nobody},
    }
    said = served.post("preempt", asked).json
    assert said == {
        "NodeNameToMetaVictims": {"full": {"Pods": [{"UID": uids["low-a"]}], "NumPDBViolations": 0}}
    }
    proposed = {"full": {"Pods": [{"UID": uids["low-b"]}], "NumPDBViolations": 1}}
    said = served.post("preempt", asked | {"NodeNameToMetaVictims": proposed}).json
    assert said == {"NodeNameToMetaVictims": proposed}


def uid_of(api: SimulatedApi, name: str) -> str:
    return next(
        one["metadata"]["uid"] for one in api.all(POD_KIND) if one["metadata"]["name"] == name
    )


def test_a_pod_is_bound_where_the_scheduler_says_and_counts_at_once(
    served: Extender, api: SimulatedApi
) -> None:
    one, two = asking(api, "one", 10), asking(api, "two", 14)
    assert served.bind(one, "empty") == ""
    bound = next(each for each in api.all(POD_KIND) if each["metadata"]["name"] == "one")
    assert (bound["spec"]["nodeName"], gpu_of(bound)) == ("empty", uuid("empty", 1))
    assert served.bind(one, "empty") == "", "it may be asked again"
    assert served.bind(two, "empty") == ""
    third = asking(api, "three", 10)
    assert "gpu0 has 9 of the needed 10 GiB free, gpu1 0" in served.bind(third, "empty")
    assert served.filter(third, "empty")["FailedNodes"] == {
        "empty": "gpu0 has 9 of the needed 10 GiB free, gpu1 0"
    }
    assert "is gone" in served.bind({"metadata": one["metadata"] | {"name": "nobody"}}, "empty")
    (node,) = served.ask("GET", "/inspect/empty").json["nodes"]
    assert [device["pods"][0]["name"] for device in node["devs"]] == ["two", "one"]


def test_clients_of_gpushare_find_what_they_know(served: Extender) -> None:
    for prefix in ("", "/gpushare-scheduler"):
        said = served.ask("GET", f"{prefix}/inspect").json
        assert [node["name"] for node in said["nodes"]] == ["empty", "full", "roomy", "small"]
        (node,) = served.ask("GET", f"{prefix}/inspect/full").json["nodes"]
        assert (node["totalGPU"], node["usedGPU"]) == (46, 39)
        assert served.post("filter", {"Pod": pod("a", 0), "NodeNames": ["full"]}, prefix).json[
            "NodeNames"
        ] == ["full"]


def test_a_changed_policy_counts_without_a_restart_and_a_broken_one_does_not(
    served: Extender, api: SimulatedApi
) -> None:
    policy = served.folder / "limits" / POLICY_FILE
    good, seven = policy.read_text(), asking(api, "later")
    policy.write_text("version: v0\n")
    wait_until(lambda: served.metric("mpsd_limits_wrong") == 1, DEADLINE_S, "it says so", 0.05)
    assert served.filter(seven, "empty")["FailedNodes"] == {}
    policy.write_text(re.sub(r"clients_per_grant: \d+", "clients_per_grant: 60", good))
    wait_until(
        lambda: served.filter(seven, "empty")["FailedNodes"], DEADLINE_S, "the new one counts", 0.05
    )
    assert "needed 60 clients free" in served.filter(seven, "empty")["FailedNodes"]["empty"]
    assert served.metric("mpsd_limits_wrong") == 0


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("place", [unread, without_reader])
def test_nobody_has_to_read_the_log_of_a_scheduler(
    place: Place, api: SimulatedApi, tmp_path: Path
) -> None:
    flags = {"kubeconfig": str(api.kubeconfig(tmp_path)), "metrics-address": "127.0.0.1"}
    with place() as stderr:
        one = Served("scheduler", tmp_path, {**flags, "drain": "0s"}, stderr)
        try:
            one.wait_until_ready()
            dropped = one.metric('mpsd_log_lines_dropped_total{process="scheduler"}')
            assert (dropped > 0) == (place is without_reader)
            assert one.stop() == 0
        finally:
            one.kill()
