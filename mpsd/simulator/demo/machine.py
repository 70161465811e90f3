"""One machine without Kubernetes: `mpsd up` and `mpsd run`, a crash of a control daemon, a request
that fits no GPU."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpsd.admission.rules.verdict import AdmissionVerdict, review_all
from mpsd.model.quantity import gib
from mpsd.platform.console import ExitCode
from mpsd.platform.limits_files import Limits, load_limits
from mpsd.platform.yaml_files import read_yaml
from mpsd.simulator.demo.jobs import SAMPLE
from mpsd.simulator.demo.story import DemoStory
from mpsd.simulator.own_mpsd import OwnMpsd
from mpsd.simulator.programs import JsonProgram, wait_until


class DemoMachine(OwnMpsd):
    """`mpsd up` with simulated GPUs in `folder`, and the simulator's CUDA programs under it."""

    def __init__(self, folder: Path, gpus: str, limits: Path | None = None) -> None:
        super().__init__(
            folder, ["--simulate", gpus, *(["--limits", str(limits)] if limits else [])]
        )

    def run(self, gpu_mem: int, actions: Sequence[str], gpu_core: int | None = None) -> JsonProgram:
        """Starts the simulator's CUDA program under `mpsd run`."""
        share = [] if gpu_core is None else ["--gpu-core", str(gpu_core)]
        return self.run_command(["--gpu-mem", str(gpu_mem), *share], ["sim-cuda", *actions])


_DEADLINE_S = 20.0


def play(story: DemoStory, folder: Path, gpus: str) -> None:
    """In this folder, which is left as it is."""
    limits = load_limits(None)
    with _machine(story, folder, gpus) as machine:
        job = _explain_the_sample(story, limits)
        sample, second, elsewhere = _share(story, machine, job)
        _take_too_much(story, machine)
        _kill_the_daemon(story, machine, sample, second, elsewhere)
        _ask_for_what_no_gpu_has(story, machine)
        story.chapter("The grants at the end")
        node = machine.node()
        story.table(node)
        granted = {gpu.label: gpu.granted_mib or 0 for gpu in node.gpus}
        story.tell("ledger", f"Granted: {_listed(granted)}.", granted_mib=granted)


@contextmanager
def _machine(story: DemoStory, folder: Path, gpus: str) -> Iterator[DemoMachine]:
    story.chapter("A simulated machine with two GPUs")
    machine = DemoMachine(folder, gpus)
    took_s = machine.wait_until_ready()
    for gpu in machine.node().gpus:
        story.tell(
            "gpu",
            f"{gpu.label}: {gpu.model}, {gib(gpu.promised_mib or 0)} GiB to share.",
            **_gpu_facts(gpu),
        )
    story.tell("ready", f"`mpsd up` serves both after {took_s:.2f} s.", seconds=round(took_s, 3))
    yield machine
    story.chapter("Clean-up")
    daemons = [domain.daemon_pid for domain in machine.node().domains if domain.daemon_pid]
    code = machine.stop()
    story.check(code == 0, f"mpsd ended with code {code}")
    left = [pid for pid in daemons if Path(f"/proc/{pid}").exists()]
    story.check(not left, f"control daemons {left} are still there")
    story.tell(
        "stopped",
        f"Ctrl-C stopped mpsd (exit code {code}) and its {len(daemons)} control daemons.",
        exit_code=code,
    )


def _gpu_facts(gpu: Any) -> dict[str, object]:
    return {"gpu": gpu.label, "name": gpu.model, "promised_mib": gpu.promised_mib}


def _explain_the_sample(story: DemoStory, limits: Limits) -> AdmissionVerdict:
    story.chapter("The sample Job of the ACK guide: what it requests")
    (document,) = read_yaml(str(SAMPLE))
    (verdict,) = review_all(document.value, limits.policy, limits.facts)
    story.check(verdict.admitted, f"{verdict.object_name} is refused: {verdict.problems}")
    (request,) = verdict.requests
    story.tell(
        "explained",
        f"{verdict.object_name} is admitted: container {request.container} requests"
        f" {gib(request.memory_mib)} GiB of {request.gpus} GPU and no share of its threads.",
        object=verdict.object_name,
        memory_mib=request.memory_mib,
    )
    return verdict


def _share(
    story: DemoStory, machine: DemoMachine, job: AdmissionVerdict
) -> tuple[JsonProgram, JsonProgram, JsonProgram]:
    story.chapter("Programs share a GPU, each under its limit (sim-cuda simulates the programs)")
    sample_gib = job.requests[0].memory_mib // 1024
    sample = _started(story, machine, "the sample Job's program", sample_gib, None)
    second = _started(story, machine, "a second program", 4, 25)
    elsewhere = _started(story, machine, "a third, too large for the same GPU,", 17, None)
    grants = {grant.holder_pid: grant for grant in machine.node().grants or ()}
    story.check(
        grants[sample.pid].gpus == grants[second.pid].gpus,
        "the first two programs are on different GPUs",
    )
    story.check(
        grants[elsewhere.pid].gpus != grants[sample.pid].gpus,
        "the third program is on the same GPU",
    )
    return sample, second, elsewhere


def _started(
    story: DemoStory, machine: DemoMachine, who: str, gpu_mem: int, gpu_core: int | None
) -> JsonProgram:
    """Starts a program that allocates 1 GiB, and tells what it sees."""
    program = machine.run(gpu_mem, ["alloc=1024", "hold"], gpu_core)
    seen = program.line()
    took = program.line()
    program.line()  # ready
    free_mib = seen["meminfo_free_MiB"]
    sms = seen["sms"]
    story.check(
        free_mib < gpu_mem * 1024,
        f"program {program.pid} sees {free_mib} MiB free under {gpu_mem} GiB",
    )
    gpu = _gpu_of(machine, program)
    share = "" if gpu_core is None else f" and {gpu_core} % of the threads"
    story.tell(
        "started",
        f"{who[0].upper()}{who[1:]} got {gpu_mem} GiB{share} on {gpu}: it sees {free_mib} MiB free"
        f" and {sms} SMs, and allocated {took['alloc_MiB']} MiB.",
        pid=program.pid,
        gpu=gpu,
        granted_gib=gpu_mem,
        free_mib=free_mib,
        sms=sms,
        holds_mib=took["alloc_MiB"],
    )
    return program


def _gpu_of(machine: DemoMachine, program: JsonProgram) -> str:
    node = machine.node()
    uuid = next(grant.gpus[0] for grant in node.grants or () if grant.holder_pid == program.pid)
    return next(gpu.label for gpu in node.gpus if gpu.uuid == uuid)


def _take_too_much(story: DemoStory, machine: DemoMachine) -> None:
    story.chapter("A program allocates more than its grant")
    greedy = machine.run(2, ["alloc=4096"])
    greedy.line()
    took = greedy.line()
    story.check(took["rc"].startswith("2:"), f"the greedy program got {took}")
    error = took["rc"].partition(":")[2]
    story.tell(
        "out-of-memory",
        f"Granted 2 GiB, it allocates 4 GiB: {error} after {took['alloc_MiB']} MiB.",
        pid=greedy.pid,
        got_mib=took["alloc_MiB"],
        error=took["rc"],
    )
    greedy.exit_code()
    wait_until(
        lambda: greedy.pid not in _holders(machine), _DEADLINE_S, "its grant is released", 0.01
    )
    story.tell("given-back", "It ended, and its 2 GiB are free again.", pid=greedy.pid)


def _holders(machine: DemoMachine) -> set[int | None]:
    return {grant.holder_pid for grant in machine.node().grants or ()}


def _kill_the_daemon(
    story: DemoStory,
    machine: DemoMachine,
    sample: JsonProgram,
    second: JsonProgram,
    elsewhere: JsonProgram,
) -> None:
    story.chapter("The control daemon of gpu0 is killed (SIGKILL)")
    before = machine.domain("gpu0").daemon_pid
    story.check(before is not None, "gpu0 has no daemon to kill")
    os.kill(before or 0, signal.SIGKILL)
    killed = time.monotonic()
    errors = [program.line()["broke"] for program in (sample, second)]
    lost_s = time.monotonic() - killed
    story.tell(
        "clients-lost",
        f"Its {len(errors)} programs lost their GPU within {lost_s:.2f} s: {', '.join(errors)}.",
        errors=errors,
        seconds=round(lost_s, 3),
    )
    wait_until(lambda: _is_back(machine, before), _DEADLINE_S, "gpu0 is ready again", 0.005)
    back_s = time.monotonic() - killed
    domain = machine.domain("gpu0")
    story.tell(
        "restarted",
        f"gpu0 has a new daemon (pid {domain.daemon_pid} after {before}) and is ready again"
        f" {back_s:.2f} s after the kill; restarts so far: {domain.restarts}.",
        seconds=round(back_s, 3),
        restarts=domain.restarts,
    )
    again = _started(story, machine, "the sample Job's program, restarted,", 7, None)
    alive = {client.pid for client in machine.node().clients or ()}
    story.check(
        {elsewhere.pid, again.pid} <= alive,
        f"of {elsewhere.pid} and {again.pid} only {alive} are on a GPU",
    )
    story.tell("untouched", "The program on the other GPU was not affected.", pid=elsewhere.pid)


def _is_back(machine: DemoMachine, before: int | None) -> bool:
    domain = machine.domain("gpu0")
    return domain.state == "ready" and domain.daemon_pid != before


def _ask_for_what_no_gpu_has(story: DemoStory, machine: DemoMachine) -> None:
    story.chapter("A request that fits no single GPU, although together they have enough")
    free = {
        gpu.label: (gpu.promised_mib or 0) - (gpu.granted_mib or 0) for gpu in machine.node().gpus
    }
    wanted = max(free.values()) // 1024 + 1
    story.check(
        wanted * 1024 <= sum(free.values()), f"{wanted} GiB are more than all that is free: {free}"
    )
    refused = machine.run(wanted, ["info"])
    code = refused.exit_code()
    reason = refused.complaint()
    story.check(code == ExitCode.NO, f"a request of {wanted} GiB ended with code {code}")
    story.tell(
        "refused",
        f"Free: {_listed(free)}. Requested: {wanted} GiB. Exit code {code}:",
        free_mib=free,
        exit_code=code,
    )
    story.tell("reason", reason, wanted_gib=wanted)


def _listed(mib_by_gpu: dict[str, int]) -> str:
    return ", ".join(f"{gpu} {gib(mib)} GiB" for gpu, mib in mib_by_gpu.items())
