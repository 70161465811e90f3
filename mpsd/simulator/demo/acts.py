"""The acts of the demo on a simulated cluster, in the order in which they are played."""

import sys
import time
from pathlib import Path

import yaml

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT, THREAD_PERCENT
from mpsd.model.quantity import gib
from mpsd.platform import local_api
from mpsd.simulator.demo import jobs
from mpsd.simulator.demo.cluster import MPSNODES, NODE, DemoCluster, RequestRefused
from mpsd.simulator.demo.jobs import JobPod
from mpsd.simulator.demo.story import DemoStory

WORK = ("alloc=1024", "work")  # takes 1 GiB and computes until it is ended
_SECOND_UNITS = 4
_SECOND_PERCENT = 25
_GREEDY_UNITS = 2
_WANTED_MIB = 4096
_WITHOUT_AGENT_S = 1.0  # at least


def play(story: DemoStory, cluster: DemoCluster) -> None:
    begin(story, cluster)
    sample = admit(story, cluster)
    pods = (sample, share(story, cluster, sample))
    story.chapter("A program allocates more than its grant")
    _exceed_grant(story, cluster, pods)
    story.chapter("A Job requests more than any GPU has")
    _exceed_gpu(story, cluster)
    _kill_agent(story, cluster, pods)
    _end(story, cluster, pods)
    stop(story, cluster)


def begin(story: DemoStory, cluster: DemoCluster) -> None:
    """Starts the cluster, and waits until its node offers every GPU."""
    story.chapter("A simulated Kubernetes cluster of one node")
    cluster.start()
    story.tell(
        "cluster",
        "The API server and kubelet are simulated; mpsd webhook, mpsd control and mpsd agent are"
        " the real programs.",
        node=NODE,
        folder=str(cluster.folder),
    )
    memory = cluster.resources.memory
    percent = cluster.resources.percent
    gpus = cluster.node().gpus
    units = sum([(gpu.promised_mib or 0) // cluster.resources.memory_unit_mib for gpu in gpus])
    offered = {memory: units, percent: 100 * len(gpus)}

    def is_offered() -> bool:  # one GPU after the other, as their daemons become ready
        return {name: cluster.offered(name) for name in offered} == offered

    cluster.until(is_offered, f"kubelet offers {offered} of {len(gpus)} GPUs")
    for gpu in gpus:
        story.tell(
            "gpu",
            f"{gpu.label}: {gpu.model}, {gib(gpu.promised_mib or 0)} GiB to share.",
            gpu=gpu.label,
            name=gpu.model,
            promised_mib=gpu.promised_mib,
        )
    story.tell(
        "offered",
        f"kubelet offers {offered[memory]} of {memory} and {offered[percent]} of {percent} on"
        f" {NODE}.",
        offered=offered,
    )


def admit(story: DemoStory, cluster: DemoCluster) -> JobPod:
    """The sample's pod, after the same Job without hostIPC was refused."""
    story.chapter("Admission: the sample Job of the ACK guide, 7 GiB of a GPU")
    job = jobs.simulated(jobs.sample(), *WORK)
    del jobs.pod_spec(job)["hostIPC"]
    try:
        cluster.api.apply(job)
    except RequestRefused as refused:
        words = str(refused)
        story.check("hostIPC" in words, f"the Job is refused for another reason: {words}")
        story.tell(
            "refused-by-admission", "Without hostIPC: true, the webhook refuses it:", reason=words
        )
        story.quote(words)
    else:
        story.check(False, "a Job without hostIPC is admitted")
    applied = cluster.api.apply(jobs.simulated(jobs.sample(), *WORK))
    name = applied.thing["metadata"]["name"]
    story.tell(
        "admitted", f"As published, Job {name} is admitted.", job=name, warnings=applied.warnings
    )
    for warning in applied.warnings:
        story.quote(f"Warning: {warning}")
    story.tell(
        "played", "Its image is not pulled: sim-cuda, a simulated CUDA program, runs instead."
    )
    return JobPod(cluster, name)


def share(story: DemoStory, cluster: DemoCluster, sample: JobPod) -> JobPod:
    """The pod of a second Job on the same GPU."""
    story.chapter("The Job runs: scheduled, allocated, limited")
    sample_gpu = _follow_start(story, cluster, sample)
    story.chapter("A second Job on the same GPU, at the same time")
    limits = {cluster.resources.memory: _SECOND_UNITS, cluster.resources.percent: _SECOND_PERCENT}
    cluster.api.apply(jobs.like_the_sample("second", limits, *WORK))
    second = JobPod(cluster, "second")
    second_gpu = _follow_start(story, cluster, second)
    story.check(
        sample_gpu == second_gpu, f"the two Jobs are on different GPUs: {sample_gpu}, {second_gpu}"
    )
    launches = {pod.job: pod.newer_launches() for pod in (sample, second)}
    story.tell("side-by-side", "Both compute at the same time.", launches=launches)
    _show_status(story, cluster)
    return second


def _follow_start(story: DemoStory, cluster: DemoCluster, pod: JobPod) -> str:
    """Follows a pod until its program has allocated memory; the GPU's label."""
    seen = pod.next("meminfo_free_MiB")
    node = pod.object()["spec"]["nodeName"]
    environment = pod.environment()
    story.check(node == NODE, f"pod {pod.name} is on {node}")
    gpu = next(gpu for gpu in cluster.node().gpus if gpu.uuid == seen["uuid"])
    limits = {name: environment[name] for name in (MEMORY_LIMIT, THREAD_PERCENT)}
    story.tell(
        "allocated",
        f"Pod {pod.name} is on {node}; Allocate gave it a share of {gpu.label}: "
        f"{', '.join(f'{name}={value}' for name, value in limits.items())}.",
        pod=pod.name,
        **limits,
    )
    unit_mib = cluster.resources.memory_unit_mib
    granted_mib = pod.asked(cluster.resources.memory) * unit_mib
    percent = pod.asked(cluster.resources.percent)
    free_mib = seen["meminfo_free_MiB"]
    sms = seen["sms"]
    story.check(
        granted_mib - unit_mib < free_mib <= granted_mib,
        f"it sees {free_mib} MiB free under {granted_mib} MiB",
    )
    story.check(
        sms <= (gpu.sms or 0) * (percent or 100) / 100 + 2,
        f"it sees {sms} SMs of {gpu.sms} under {percent} %",
    )
    holds_mib = pod.next("alloc_MiB")["alloc_MiB"]
    granted = (
        f"{granted_mib} MiB and {percent} % of the threads" if percent else f"{granted_mib} MiB"
    )
    story.tell(
        "limits",
        f"Granted {granted}, it sees {free_mib} MiB free and {sms} of {gpu.sms} SMs, and allocated"
        f" {holds_mib} MiB.",
        pod=pod.name,
        gpu=gpu.label,
        granted_mib=granted_mib,
        percent=percent,
        free_mib=free_mib,
        sms=sms,
        holds_mib=holds_mib,
    )
    return gpu.label


def _show_status(story: DemoStory, cluster: DemoCluster) -> None:
    story.chapter("mpsd status on the node, and kubectl get mps")
    node = cluster.node()
    if not cluster.has_cgroups:
        story.tell(
            "no-cgroups",
            "This user cannot create cgroups, so clients cannot be attributed to their pods.",
        )
    story.table(node)
    rows = cluster.until(
        lambda: _mpsnode_rows(cluster, len(node.grants or ())), "the MPSNode reports both Jobs"
    )
    story.rows(rows)
    columns = dict(zip(*rows, strict=True))
    story.tell(
        "status",
        f"The MPSNode reports the same: {columns['GRANTED']} granted to {columns['PODS']} pods.",
        mpsnode=columns,
    )


def _mpsnode_rows(cluster: DemoCluster, pods: int) -> list[list[str]]:
    """The MPSNode's columns and values once it reports so many pods; empty before."""
    rows = cluster.api.table(f"{MPSNODES}/{NODE}")
    return rows if dict(zip(*rows, strict=True))["PODS"] == str(pods) else []


def _exceed_grant(story: DemoStory, cluster: DemoCluster, others: tuple[JobPod, ...]) -> None:
    """others: run meanwhile, and must not be affected."""
    limits = {cluster.resources.memory: _GREEDY_UNITS}
    cluster.api.apply(jobs.like_the_sample("greedy", limits, f"alloc={_WANTED_MIB}"))
    greedy = JobPod(cluster, "greedy")
    took = greedy.next("alloc_MiB")
    error = took["rc"].partition(":")[2]
    story.check(took["rc"].startswith("2:"), f"the greedy program got {took}")
    story.tell(
        "out-of-memory",
        f"Granted {_GREEDY_UNITS} GiB, it allocates {_WANTED_MIB} MiB: {error} after"
        f" {took['alloc_MiB']} MiB.",
        pod=greedy.name,
        got_mib=took["alloc_MiB"],
        error=took["rc"],
    )
    greedy.until_phase("Succeeded")
    cluster.until(lambda: greedy.name not in cluster.grants(), "its grant is released")
    launches = {other.job: other.newer_launches() for other in others}
    story.tell(
        "given-back",
        "It ended and its grant is released; the other Jobs continue.",
        launches=launches,
    )


def _exceed_gpu(story: DemoStory, cluster: DemoCluster) -> None:
    resources = cluster.resources
    largest = (
        max([gpu.promised_mib or 0 for gpu in cluster.node().gpus]) // resources.memory_unit_mib
    )
    wanted = largest + 1
    offered = cluster.offered(resources.memory)
    story.check(wanted <= offered, f"{wanted} are more than the node's {offered}")
    cluster.api.apply(jobs.like_the_sample("impossible", {resources.memory: wanted}, "info"))
    pod = JobPod(cluster, "impossible")
    refused = pod.until_phase("Failed")["status"]
    story.tell(
        "refused",
        f"It requests {wanted} GiB; no GPU has more than {largest}, though the node offers"
        f" {offered}. Pod {pod.name} fails: {refused['reason']}.",
        pod=pod.name,
        reason=refused["reason"],
        wanted=wanted,
        largest=largest,
    )
    words = pod.event("AllocationRefused")
    story.tell("event", "The event on the pod gives the reason:", event=words)
    story.quote(words)
    pod.until_job_is("Failed")


def _kill_agent(story: DemoStory, cluster: DemoCluster, pods: tuple[JobPod, ...]) -> None:
    """pods: run meanwhile."""
    story.chapter("The agent is killed (SIGKILL) while both Jobs compute")
    before = cluster.pid("agent")
    grants = _grants(cluster)
    computed = {pod: pod.newer_launches() for pod in pods}
    cluster.kill("agent")
    killed = time.monotonic()
    cluster.until(lambda: time.monotonic() > killed + _WITHOUT_AGENT_S, "a while without an agent")
    launches = {pod.job: pod.newer_launches() - computed[pod] for pod in pods}
    story.tell(
        "without-agent",
        f"Without an agent for {time.monotonic() - killed:.1f} s, both continue: "
        f"{' and '.join(map(str, launches.values()))} kernels meanwhile.",
        launches=launches,
    )
    cluster.start_agent()
    cluster.until(lambda: _is_complete(cluster), "the agent knows from kubelet who holds what")
    story.check(_grants(cluster) == grants, f"the grants were {grants} and are {_grants(cluster)}")
    story.tell(
        "agent-back",
        f"A new agent (pid {cluster.pid('agent')} after {before}) has recovered the same grants"
        f" after {time.monotonic() - killed:.1f} s.",
        grants={pod: list(grant) for pod, grant in grants.items()},
    )
    for pod in pods:
        pod.newer_launches()
        story.check(pod.restarts == 0, f"pod {pod.name} was restarted")
        broken = [line for line in pod.lines() if "broke" in line]
        story.check(not broken, f"the program of {pod.name} lost its GPU: {broken}")
    silence_s = {pod.job: round(pod.longest_silence_s(), 2) for pod in pods}
    story.tell(
        "unnoticed",
        "Same processes, no errors; they report progress four times a second, and never paused for"
        f" more than {max(silence_s.values())} s.",
        silence_s=silence_s,
    )


def _is_complete(cluster: DemoCluster) -> bool:
    try:
        return not cluster.node().unknown
    except local_api.NotRunning:
        return False


def _grants(cluster: DemoCluster) -> dict[str, tuple[int | None, int | None]]:
    """By pod: the MiB and the percent of its grant."""
    return {
        pod: (grant.memory_mib, grant.thread_percent) for pod, grant in cluster.grants().items()
    }


def _end(story: DemoStory, cluster: DemoCluster, pods: tuple[JobPod, ...]) -> None:
    story.chapter("The Jobs end")
    for pod in pods:
        pod.finish()
    for pod in pods:
        pod.until_job_is("Complete")
    launches = {pod.job: pod.launches() for pod in pods}
    done = " and ".join(
        f"Job {job} is Complete after {number} kernels" for job, number in launches.items()
    )
    story.tell("complete", f"{done}.", launches=launches)
    cluster.until(lambda: not cluster.node().grants, "every grant is released")
    columns = dict(
        zip(
            *cluster.until(lambda: _mpsnode_rows(cluster, 0), "the MPSNode reports no pods"),
            strict=True,
        )
    )
    node = cluster.node()
    story.table(node)
    granted = {gpu.label: gpu.granted_mib for gpu in node.gpus}
    story.check(not any(granted.values()), f"granted without a pod: {granted}")
    story.tell(
        "ledger",
        f"Nothing is granted any more: {columns['GRANTED']}, {columns['PODS']} pods.",
        granted_mib=granted,
        mpsnode=columns,
    )


def stop(story: DemoStory, cluster: DemoCluster) -> None:
    story.chapter("Clean-up")
    codes = cluster.stop()
    story.check(not any(codes.values()), f"the programs ended with {codes}")
    story.tell(
        "stopped",
        f"SIGTERM to each of {len(codes)} programs; all exited with code 0.",
        exit_codes=codes,
    )


# -- mpsd demo --keep

# By file: what happens, the GiB that its Job requests, and what sim-cuda does.
_INCIDENTS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "fault": (
        "a fault; the other programs on its GPU end too",
        2,
        ("alloc=512", "fault", "linger=60"),
    ),
    "over-limit": ("out of memory within its grant", 2, ("alloc=4096", "hold=60")),
    "lifted-limit": (
        "a lifted limit; the program is killed",
        2,
        ("lift=0=0", "alloc=6000", "hold=60"),
    ),
    "too-large": ("more than any GPU has; the pod fails", 24, ("info",)),
    "shares": ("one more Job that computes", 3, WORK),
}


def explain_use(story: DemoStory, cluster: DemoCluster) -> None:
    """Writes a Job for each incident, and shows how to look at the cluster and what to break."""
    folder = cluster.folder / "incidents"
    folder.mkdir()
    for name, (_what, units, actions) in _INCIDENTS.items():
        job = jobs.like_the_sample(name, {cluster.resources.memory: units}, *actions)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(job))
    daemon = next(domain.daemon_pid for domain in cluster.node().domains)
    story.chapter("The cluster stays up until Ctrl-C. In another terminal:")
    story.tell(
        "kept",
        "kubectl needs this kubeconfig, and mpsd's plugin on PATH:",
        kubeconfig=str(cluster.kubeconfig),
        incidents=str(folder),
        run_directory=str(cluster.run_directory),
        daemon_pid=daemon,
    )
    story.quote(
        f"export KUBECONFIG={cluster.kubeconfig} MPSD_RUN_DIR={cluster.run_directory}"
        f" PATH={_programs()}:$PATH\nkubectl mps; kubectl get mps,pods,events; mpsd status"
    )
    story.tell("break", "Then break something:", incidents=list(_INCIDENTS))
    width = max(map(len, _INCIDENTS))
    incidents = [
        f"kubectl create --validate=false -f {folder}/{name + '.yaml':<{width + 5}}  # {what}"
        for name, (what, _units, _actions) in _INCIDENTS.items()
    ]
    story.quote(
        "\n".join(
            [*incidents, f"kill -KILL {daemon}  # the MPS control daemon of gpu0; it is restarted"]
        )
    )


def _programs() -> Path:
    """The folder of mpsd's commands: beside this Python."""
    return Path(sys.executable).parent
