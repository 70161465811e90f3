"""`kubectl mps explain` of pods that get their GPU by a resource claim, in the sentences for those
that request it."""

import json
from typing import Any

import pytest

from mpsd.platform.kube import Resource
from tests.cli.asking import ask
from tests.cli.cluster_world import ClusterWorld, Said
from tests.cli.gpu_cluster import GIB, GpuCluster, grant, machine, mpsnode

_API = "resource.k8s.io/v1"
CLASSES, SLICES, CLAIMS, TEMPLATES = (
    Resource(_API, plural)
    for plural in ("deviceclasses", "resourceslices", "resourceclaims", "resourceclaimtemplates")
)
DEVICE_CLASS = "mps.mpsd.io"


@pytest.fixture
def cluster(world: ClusterWorld) -> GpuCluster:
    return GpuCluster(world)


def explain(cluster: GpuCluster, *words: str) -> Said:
    return cluster.world.kubectl_mps("explain", *words)


def install(cluster: GpuCluster, *nodes: str, gib: int = 15) -> None:
    """What dra.enabled and the agents of these nodes write."""
    cluster.thing(CLASSES, {"metadata": {"name": DEVICE_CLASS}, "spec": {}})
    for node in nodes:
        device = {"name": "gpu0", "capacity": {"memory": {"value": f"{gib * GIB}Mi"}}}
        spec = {"driver": "gpu.mpsd.io", "nodeName": node, "devices": [device]}
        spec["pool"] = {"name": node}
        cluster.thing(SLICES, {"metadata": {"name": f"{node}-gpu.mpsd.io"}, "spec": spec})


def template(
    cluster: GpuCluster, name: str = "share", device_class: str = DEVICE_CLASS, **amounts: str
) -> None:
    exactly = {"deviceClassName": device_class, "capacity": {"requests": amounts}}
    keep_template(cluster, name, {"requests": [{"name": "gpu", "exactly": exactly}]})


def keep_template(cluster: GpuCluster, name: str, devices: Any) -> None:
    spec = {"spec": {"devices": devices}}
    cluster.thing(TEMPLATES, {"metadata": {"name": name}, "spec": spec}, "default")


def one_node(cluster: GpuCluster, *grants: Any) -> None:
    """A node with the driver of claims, and what it has granted."""
    install(cluster, "node1")
    cluster.nodes(machine("node1"), mpsnode("node1", 15, grants=[*grants]))


def held(cluster: GpuCluster, gib: int) -> Any:
    pod = cluster.pod(claimed("held", nodeName="node1"), {"phase": "Running"})
    return grant(pod, gib, "node1")


def answer(cluster: GpuCluster, name: str = "train") -> Any:
    return json.loads(explain(cluster, name, "-o", "json").output)


def claimed(name: str = "train", **spec: Any) -> Any:
    container = {"name": "main", "image": "train", "resources": {"claims": [{"name": "gpu"}]}}
    entry = {"name": "gpu", "resourceClaimTemplateName": "share"}
    fields = {"containers": [container], "resourceClaims": [entry], "schedulerName": "nobody's"}
    return {"metadata": {"name": name}, "spec": fields | spec}


def test_a_claim_without_room_is_explained_as_a_request_is(cluster: GpuCluster) -> None:
    one_node(cluster, held(cluster, 11))
    template(cluster, memory="7Gi", threads="30")
    cluster.pod(claimed())
    said = explain(cluster, "train")
    assert said.code == 1
    assert said.output.startswith(
        "pod default/train waits: no room on node1 (gpu0 has 4 of the needed 7 GiB free);"
    )
    read = answer(cluster)
    assert (read["why"], read["request"]) == (
        "no-room",
        {"memory_mib": 7 * GIB, "thread_percent": 30, "gpus": 1, "clients": None},
    )
    assert "pod default/train waits: " in explain(cluster, "-A").output


def test_every_pod_of_a_claim_is_where_its_grant_is(cluster: GpuCluster) -> None:
    install(cluster, "node1")
    template(cluster, memory="7Gi")
    first, second = (
        cluster.pod(claimed(name, nodeName="node1"), {"phase": "Running"})
        for name in ("first", "second")
    )
    sharing = {"pod": "default/second", "uid": second["metadata"]["uid"]}
    of_both = {"claim": "default/share", "id": "1", "sharedWith": [sharing]}
    held = grant(first, 11, "node1") | of_both
    cluster.nodes(machine("node1"), mpsnode("node1", 15, grants=[held]))
    for name in ("first", "second"):
        assert f"{name} runs on gpu0 of node1 with 11 GiB" in explain(cluster, name).output


def test_room_on_a_node_that_serves_no_claims_does_not_count(cluster: GpuCluster) -> None:
    install(cluster, "node1", gib=3)
    template(cluster, memory="7Gi")
    cluster.nodes(machine("node1"), machine("node2"), mpsnode("node1", 3), mpsnode("node2", 15))
    cluster.pod(claimed())
    assert "the largest can give 3, gpu0 of node1" in explain(cluster, "train").output


def test_a_claim_without_memory_wants_a_whole_gpu(cluster: GpuCluster) -> None:
    one_node(cluster)
    template(cluster)
    cluster.pod(claimed())
    read = answer(cluster)
    assert (read["why"], read["request"]["memory_mib"]) == ("not-looked-at", 15 * GIB)


def test_a_template_that_does_not_exist_is_named(cluster: GpuCluster) -> None:
    one_node(cluster)
    cluster.pod(claimed())
    said = explain(cluster, "train").output
    assert "its ResourceClaimTemplate default/share does not exist; create it" in said


def test_a_cluster_without_the_class_or_without_a_slice_says_so(cluster: GpuCluster) -> None:
    template(cluster, memory="7Gi")
    cluster.nodes(machine("node1"), mpsnode("node1", 15))
    cluster.pod(claimed())
    said = explain(cluster, "train").output
    assert "asks for the DeviceClass mps.mpsd.io, which does not exist" in said
    install(cluster)
    assert "there is no ResourceSlice of gpu.mpsd.io" in explain(cluster, "train").output


def test_the_claim_that_was_made_counts_and_not_its_template(cluster: GpuCluster) -> None:
    one_node(cluster)
    exactly = {"deviceClassName": DEVICE_CLASS, "capacity": {"requests": {"memory": "4Gi"}}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    cluster.thing(CLAIMS, {"metadata": {"name": "train-gpu-x7k2p"}, "spec": spec}, "default")
    cluster.pod(
        claimed(),
        {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "train-gpu-x7k2p"}]},
    )
    read = answer(cluster)
    assert read["request"]["memory_mib"] == 4 * GIB


def test_claims_of_another_class_are_no_business_of_mpsd(cluster: GpuCluster) -> None:
    one_node(cluster)
    template(cluster, device_class="gpu.nvidia.com")
    cluster.pod(claimed())
    assert "asks for no GPU" in explain(cluster, "train").output
    assert explain(cluster).output == "no pod of namespace default waits for a GPU\n"


@pytest.mark.parametrize(
    ("clients", "why", "said"),
    [
        ("47", "no-room", "gpu0 has 46 of the needed 47 clients free"),
        ("60", "too-large", "the most that one serves is 48"),
    ],
)
def test_the_clients_that_a_claim_asks_for_count(
    cluster: GpuCluster, clients: str, why: str, said: str
) -> None:
    one_node(cluster, held(cluster, 1))
    template(cluster, memory="1Gi", clients=clients)
    cluster.pod(claimed())
    read = answer(cluster)
    assert read["why"] == why
    assert said in read["sentence"]


@pytest.mark.parametrize(
    ("amounts", "named"),
    [({"mem": "4Gi"}, "requests.mem"), ({"memory": "1Gi", "threads": "101"}, "requests.threads")],
)
def test_what_no_gpu_can_ever_give_does_not_start_when_others_end(
    cluster: GpuCluster, amounts: dict[str, str], named: str
) -> None:
    one_node(cluster, held(cluster, 11))
    template(cluster, **amounts)
    cluster.pod(claimed())
    read = answer(cluster)
    assert read["why"] == "claim-impossible"
    assert named in read["sentence"]
    assert "when others end" not in read["sentence"]


def test_a_pod_with_two_claims_or_with_a_request_beside_one_never_starts(
    cluster: GpuCluster,
) -> None:
    one_node(cluster)
    template(cluster, memory="4Gi")
    template(cluster, "large", memory="20Gi")
    entries = [{"name": name, "resourceClaimTemplateName": name} for name in ("share", "large")]
    cluster.pod(claimed("both", resourceClaims=entries))
    asking = {"limits": {"aliyun.com/gpu-mem": "4"}, "claims": [{"name": "gpu"}]}
    cluster.pod(
        claimed("beside", containers=[{"name": "main", "image": "train", "resources": asking}])
    )
    for name, other in (("both", "ResourceClaim"), ("beside", "aliyun.com/gpu-mem")):
        read = answer(cluster, name)
        assert read["why"] == "claim-impossible"
        first, _and, second = read["sentence"].partition(", and a pod has")[0].partition(" and ")
        assert "ResourceClaim" in first
        assert other in second


def test_gpus_are_not_joined_for_a_claim_so_that_several_wait_for_a_domain(
    cluster: GpuCluster,
) -> None:
    install(cluster, "node1")
    exactly = {
        "deviceClassName": DEVICE_CLASS,
        "count": 2,
        "capacity": {"requests": {"memory": "4Gi"}},
    }
    devices = {"requests": [{"name": "gpu", "exactly": exactly}]}
    together = devices | {"constraints": [{"matchAttribute": "gpu.mpsd.io/domain"}]}
    keep_template(cluster, "share", together)
    keep_template(cluster, "apart", devices)
    reported = mpsnode("node1", 15, 15)
    for domain in reported["status"]["domains"]:
        domain["kind"] = "free"
    cluster.nodes(machine("node1"), reported)
    cluster.pod(claimed())
    read = answer(cluster)
    assert read["why"] == "no-room"
    assert "until an administrator makes a domain of 2 GPUs" in read["sentence"]
    entry = {"name": "gpu", "resourceClaimTemplateName": "apart"}
    cluster.pod(claimed("apart", resourceClaims=[entry]))
    assert answer(cluster, "apart")["why"] == "claim-impossible"


# -- `mpsd explain -f`

_TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: share}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly: {deviceClassName: mps.mpsd.io, capacity: {requests: {memory: 6.5Gi, threads: "30"}}}
      config:
        - opaque:
            driver: gpu.mpsd.io
            parameters: {apiVersion: mpsd.io/v1alpha1, kind: MPSConfig, threadCap: 60}
"""  # noqa: E501 (tests replace parts of a line)
_POD = """
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  hostIPC: true
  resourceClaims: [{name: gpu, resourceClaimTemplateName: share}]
  containers: [{name: main, image: train, resources: {claims: [{name: gpu}]}}]
"""


_CAPACITY = "requests[0].exactly.capacity.requests"


def explained(text: str, *words: str, code: int = 0) -> list[Any]:
    done = ask("explain", "-o", "json", *words, "-f", "-", given=text)
    assert (done.returncode, done.stderr) == (code, "")
    found: list[Any] = json.loads(done.stdout)
    return found


def test_a_file_with_a_pod_and_its_template_says_what_the_pod_gets() -> None:
    for text in (f"{_TEMPLATE}---{_POD}", f"{_POD}---{_TEMPLATE}"):
        by_name = {one["object"]: one for one in explained(text)}
        pod = by_name["Pod default/train"]
        assert "share asks for 7 GiB of one GPU and 30 % of its threads" in pod["remark"]
        assert [one["rule"] for one in pod["warnings"]] == ["host-root"], (
            "it is judged as a pod with a GPU"
        )
        (request,) = pod["requests"]
        assert (request["container"], request["memory_mib"], request["thread_percent"]) == (
            "main",
            7 * GIB,
            30,
        )
        assert pod["environment"]["main"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60", (
            "the cap of its parameters"
        )
        assert by_name["ResourceClaimTemplate share"]["admitted"]


def test_a_pod_whose_template_is_elsewhere_is_said_to_be_judged_without_it() -> None:
    (pod,) = explained(_POD)
    assert pod["admitted"]
    assert "share is not in what was read" in pod["remark"]


def test_claims_of_one_name_in_two_namespaces_are_two() -> None:
    def inside(namespace: str, gib: str) -> str:
        text = f"{_TEMPLATE}---{_POD}".replace(
            "name: share}\nspec", f"name: share, namespace: {namespace}}}\nspec"
        )
        return text.replace(
            "name: train}\nspec", f"name: train, namespace: {namespace}}}\nspec"
        ).replace("6.5Gi", gib)

    both = f"{inside('a', '4Gi')}---{inside('b', '9Gi')}"
    by_name = {one["object"]: one["remark"] for one in explained(both)}
    assert "asks for 4 GiB" in by_name["Pod a/train"]
    assert "asks for 9 GiB" in by_name["Pod b/train"]
    wrong = explained(both.replace("threadCap: 60", "threadCap: 600", 1), code=1)
    assert [one["object"] for one in wrong if one["problems"]] == ["ResourceClaimTemplate a/share"]


def test_a_template_that_says_that_its_work_can_wait_is_below_normal() -> None:
    low = _TEMPLATE.replace("threadCap: 60", "threadCap: 60, priority: below-normal")
    template, pod = explained(low + "---" + _POD)
    for remark in (template["remark"], pod["remark"]):
        assert remark.endswith("at most 60 % of them, below normal there")
    assert (pod["priority"], pod["environment"]["main"]["CUDA_MPS_CLIENT_PRIORITY"]) == (1, "1")
    (wrong,) = explained(low.replace("below-normal", "low"), code=1)
    assert [(one["rule"], one["where"]) for one in wrong["problems"]] == [
        ("priority-unknown", "spec.spec.devices.config[0].opaque.parameters.priority")
    ]


def test_a_claim_of_v1beta1_asks_for_what_it_says() -> None:
    exactly = "exactly: {deviceClassName: mps.mpsd.io, "
    text = _TEMPLATE.replace("/v1\n", "/v1beta1\n").replace(
        exactly, "deviceClassName: mps.mpsd.io\n        "
    )
    text = text.replace('threads: "30"}}}', 'threads: "30"}}')
    _template, pod = explained(f"{text}---{_POD}")
    assert "share asks for 7 GiB of one GPU and 30 % of its threads" in pod["remark"]


@pytest.mark.parametrize(
    ("was", "is_now", "rule", "where"),
    [
        ("6.5Gi", "seven", "quantity-malformed", f"{_CAPACITY}.memory"),
        ('"30"', "[1]", "quantity-malformed", f"{_CAPACITY}.threads"),
        ('"30"', '"101"', "quantity-malformed", f"{_CAPACITY}.threads"),
        ("threadCap", "threadcap", "field-unknown", "config[0].opaque.parameters.threadcap"),
        ('"30"', '"70"', "cap-below-reservation", "config[0].opaque.parameters.threadCap"),
        ("6.5Gi", "500Gi", "memory-over-card", f"{_CAPACITY}.memory"),
        (
            "threads:",
            'clients: "99", threads:',
            "clients-over-gpu",
            f"{_CAPACITY}.clients",
        ),
        ("memory", "mem", "capacity-name", f"{_CAPACITY}.mem"),
        (
            "capacity",
            "adminAccess: true, capacity",
            "admin-access",
            "requests[0].exactly.adminAccess",
        ),
        ("capacity", "allocationMode: All, capacity", "devices-of-domains", "requests"),
        ("capacity", "count: 0, capacity", "gpu-count-malformed", "requests[0].exactly.count"),
        (
            "{requests: {memory",
            "{requests: 7, x: {memory",
            "wrong-type",
            _CAPACITY,
        ),
        ("opaque:", "opaque: 7\n          x:", "wrong-type", "config[0].opaque"),
    ],
)
def test_amounts_that_are_none_are_refused_with_their_place(
    was: str, is_now: str, rule: str, where: str
) -> None:
    (template,) = explained(_TEMPLATE.replace(was, is_now), code=1)
    (problem,) = template["problems"]
    assert (problem["rule"], problem["where"]) == (rule, f"spec.spec.devices.{where}")
    assert problem["remedy"]


def test_several_gpus_in_several_requests_are_judged_together() -> None:
    second = (
        "      - {name: other, exactly: {deviceClassName: mps.mpsd.io, capacity: {requests:"
        " {memory: 4Gi}}}}\n"
    )
    (template,) = explained(_TEMPLATE.replace("      config:", f"{second}      config:"), code=1)
    codes = {problem["rule"] for problem in template["problems"]}
    assert codes == {"devices-of-domains", "claim-without-domain", "device-twice", "devices-uneven"}
    assert all(problem["value"] == "gpu and other" for problem in template["problems"])


def test_alternatives_are_well_where_one_of_them_is() -> None:
    def choosing(first: str, second: str) -> str:
        options = f"[{{name: a, {first}}}, {{name: b, {second}}}]"
        exactly = (
            "exactly: {deviceClassName: mps.mpsd.io, capacity: {requests: {memory: 6.5Gi, threads:"
            ' "30"}}}'
        )
        return _TEMPLATE.replace(exactly, f"firstAvailable: {options}")

    good = "deviceClassName: mps.mpsd.io, capacity: {requests: {memory: 4Gi}}"
    wrong = "deviceClassName: mps.mpsd.io, capacity: {requests: {mem: 4Gi}}"
    (template,) = explained(choosing(wrong, good))
    assert [one["rule"] for one in template["warnings"]] == ["capacity-name"]
    (template,) = explained(choosing(wrong, wrong), code=1)
    assert [one["rule"] for one in template["problems"]] == ["capacity-name", "capacity-name"]


def test_what_is_asked_is_said_as_the_scheduler_rounds_it() -> None:
    (template,) = explained(_TEMPLATE.replace('"30"', '"33"'))
    assert "35 % of its threads" in template["remark"]
    (template,) = explained(_TEMPLATE.replace("6.5Gi", "7"))
    assert "asks for 1 GiB" in template["remark"]
    (warning,) = template["warnings"]
    assert (warning["rule"], warning["remedy"]) == ("memory-without-unit", "write 7Gi")


def test_a_claim_that_can_never_be_served_gives_its_pod_nothing() -> None:
    template, pod = explained(f"{_TEMPLATE.replace('memory:', 'mem:')}---{_POD}", code=1)
    assert not template["admitted"]
    assert pod["requests"] == []
    assert "can never be served" in pod["remark"]


def test_a_whole_gpu_has_figures_where_its_model_is_named() -> None:
    whole = _TEMPLATE.replace('{memory: 6.5Gi, threads: "30"}', "{}")
    text = f"{whole}---{_POD}"
    assert explained(text)[1]["requests"] == []
    (limit,) = explained(text, "--gpu", "A30")[1]["limits"]
    assert (limit["gpu"], limit["memory_mib"], limit["thread_percent"]) == (
        "NVIDIA A30",
        23 * GIB,
        60,
    )


def test_the_class_for_whole_gpus_takes_no_amounts_and_all_threads() -> None:
    whole = _TEMPLATE.replace("mps.mpsd.io", "whole-gpu.mpsd.io").partition("      config:")[0]
    (template,) = explained(whole, code=1)
    assert {one["rule"] for one in template["problems"]} == {"whole-gpu"}
    plain = whole.replace(', capacity: {requests: {memory: 6.5Gi, threads: "30"}}', "")
    template, pod = explained(f"{plain}---{_POD}", "--gpu", "A30")
    assert template["remark"].startswith("asks for the memory of one GPU")
    assert (pod["limits"][0]["memory_mib"], pod["limits"][0]["thread_percent"]) == (23 * GIB, 100)
