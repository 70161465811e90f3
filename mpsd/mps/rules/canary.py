"""What a CUDA client of our own must observe under known limits, and what follows. More than its
limit is a problem; a difference from limits/gpus.yaml a warning."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mpsd.model import client_limits
from mpsd.model.client_limits import DENY_MIB, ClientLimit
from mpsd.model.cuda_limit_parser import (
    CUDA_VISIBLE_DEVICES,
    MEMORY_LIMIT,
    PIPE_DIRECTORY,
    THREAD_PERCENT,
)
from mpsd.model.grants import Gpu
from mpsd.model.node_view import CAP_HOLDS, Canary
from mpsd.model.policy import CanaryRule
from mpsd.model.problem import printable

PERCENT = 10
COST_TOLERANCE_MIB = 16  # between a context's cost as measured and as limits/gpus.yaml has it
_LONGEST = 300  # characters of what a program said

_OUT_OF_MEMORY = "2:CUDA_ERROR_OUT_OF_MEMORY"
_COMPUTE = (
    "give mpsd control the driver's compute libraries (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
)


@dataclass(frozen=True, slots=True)
class Trial:
    """A client under a memory limit: its own, or the server's, for those that set none."""

    limit_mib: int
    own: bool

    def __str__(self) -> str:
        whose = "a server"
        if self.own:
            whose = "its own"
        return f"a client under {whose} limit of {self.limit_mib} MiB"

    def environment(self, gpu: str, pipe_directory: str) -> dict[str, str]:
        """What such a client is started with, to be on the GPU with this UUID."""
        if self.own:
            limits = client_limits.environment(ClientLimit(self.limit_mib, PERCENT), pipe_directory)
        else:
            limits = {PIPE_DIRECTORY: pipe_directory, THREAD_PERCENT: str(PERCENT)}
        return limits | {CUDA_VISIBLE_DEVICES: gpu}


SERVER_LIMIT = Trial(1024, own=False)
OWN_LIMIT = Trial(512, own=True)
DENIAL = Trial(DENY_MIB, own=False)
CAP = Trial(512, own=False)  # of its cgroup, below the server's limit of that time


def first_context_environment(gpu: str, pipe_directory: str) -> dict[str, str]:
    """Of a small context under any limit of the server (docs/mps-observed.md, section 3)."""
    own = {MEMORY_LIMIT: "0=0", THREAD_PERCENT: str(PERCENT)}
    return {PIPE_DIRECTORY: pipe_directory, CUDA_VISIBLE_DEVICES: gpu, **own}


# -- what became of a client


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """It had a context, and CUDA reported this of its GPU."""

    uuid: str
    free_mib: int
    sms: int


@dataclass(frozen=True, slots=True)
class NoContext:
    """step: the call that failed. error: CUDA's, such as 2:CUDA_ERROR_OUT_OF_MEMORY."""

    step: str
    error: str

    def __str__(self) -> str:
        return f"{self.error} at {self.step}"


@dataclass(frozen=True, slots=True)
class Broken:
    """It printed nothing of use; how: how it ended, as the end of a sentence about it."""

    how: str

    def __str__(self) -> str:
        return self.how


Outcome = ProbeResult | NoContext | Broken


def outcome_of(code: int, output: str, errors: str) -> Outcome:
    """The outcome of a client that has ended. code: as subprocess has it, negative for a signal."""
    if code < 0:
        return Broken(f"was killed by signal {-code}")
    try:
        first = json.loads(output.partition("\n")[0])
    except (ValueError, RecursionError):
        first = None
    match first:
        case {"uuid": str(uuid), "meminfo_free_MiB": int(free), "sms": int(sms)} if code == 0:
            return ProbeResult(uuid, free, sms)
        case {"fail": str(step), "err": str(error)}:
            return NoContext(printable(step, _LONGEST), printable(error, _LONGEST))
        case _:
            last = (errors.strip() or output.strip()).rpartition("\n")[2]
            return Broken(f'ended with code {code} and printed "{printable(last, _LONGEST)}"')


# -- what follows from it


@dataclass(frozen=True, slots=True)
class CanaryFinding:
    """On one GPU. problem: why its limits are not reliable. warning: what differs from
    limits/gpus.yaml. context_mib: the cost of a context on `sms` SMs; None for none."""

    problem: str = ""
    warning: str = ""
    context_mib: int | None = None
    sms: int | None = None


def finding(gpu: Gpu, served: Mapping[Trial, Outcome]) -> CanaryFinding:
    """What clients that had to be admitted observed on their GPU."""
    found = [_problem(gpu, trial, outcome) for trial, outcome in served.items()]
    if problems := "; ".join(dict.fromkeys(filter(None, found))):
        return CanaryFinding(problem=f"{gpu.label}: {problems}")
    # The smaller: a card that is nearly full leaves a client less than its limit.
    context_mib, sms = min(
        (trial.limit_mib - outcome.free_mib, outcome.sms)
        for trial, outcome in served.items()
        if isinstance(outcome, ProbeResult)
    )
    warning = "; ".join(_warnings(gpu, context_mib, sms))
    if warning:
        warning = f"{gpu.label}: {warning}"
    return CanaryFinding(warning=warning, context_mib=context_mib, sms=sms)


def denial_problem(gpu: Gpu, outcome: Outcome) -> str:
    """Why this GPU cannot be kept shut, by a client under denial; empty where it can."""
    match outcome:
        case NoContext(_step, error) if error == _OUT_OF_MEMORY:
            return ""
        case ProbeResult(_uuid, free_mib, _sms):
            how = f"must get no context, and got one with {free_mib} MiB free"
        case NoContext(step, error):
            expected = f"it must fail with {_OUT_OF_MEMORY} when it makes its context"
            how = f"failed at {step} with {error}; {expected}"
        case Broken():
            how = str(outcome)
    return f"{gpu.label}: {DENIAL} {how}"


def cap_problem(gpu: Gpu, outcome: Outcome) -> str:
    """Why a memory limit of its cgroup does not hold a client on this GPU; empty where it does."""
    match outcome:
        case ProbeResult(_uuid, free_mib, _sms):
            if free_mib <= CAP.limit_mib:
                return ""
            how = f"saw {free_mib} MiB free"
        case NoContext():
            how = f"got no context: {outcome}"
        case Broken():
            how = str(outcome)
    return f"{gpu.label}: a client in a cgroup with a limit of {CAP.limit_mib} MiB {how}"


def _problem(gpu: Gpu, trial: Trial, outcome: Outcome) -> str:
    match outcome:
        case ProbeResult(uuid) if uuid != gpu.uuid:
            return f"{trial} got {printable(uuid, _LONGEST)} instead of {gpu.uuid}"
        case ProbeResult(_uuid, free_mib, _sms) if free_mib > trial.limit_mib:
            return f"{trial} saw {free_mib} MiB free: this driver does not enforce memory limits"
        case ProbeResult(_uuid, _free_mib, sms):
            most = _sms_expected(gpu)
            if sms <= most + gpu.capability.sm_minimum:
                return ""
            expected = f"{PERCENT} % of the threads are about {most}"
            what = "this driver does not enforce thread percentages"
            return f"{trial} got {sms} of {gpu.sms} SMs, and {expected}: {what}"
        case NoContext("libcuda", error):  # it could not be loaded
            return f"{error}; {_COMPUTE}"
        case NoContext(_step, error) if error == _OUT_OF_MEMORY:
            remedy = "check what else uses this GPU's memory (nvidia-smi)"
            return f"{trial} got no context: {outcome}; {remedy}"
        case NoContext():
            return f"{trial} got no context: {outcome}"
        case Broken():
            return f"{trial} {outcome}"


def _sms_expected(gpu: Gpu) -> int:
    return gpu.capability.sms_given(PERCENT, gpu.sms)


def _warnings(gpu: Gpu, context_mib: int, sms: int) -> Iterable[str]:
    row = f"limits/gpus.yaml for compute capability {gpu.capability.compute_capability}"
    expected_mib = gpu.capability.context_cost_mib(sms)
    if context_mib > expected_mib + COST_TOLERANCE_MIB:
        takes = f"takes {context_mib} MiB, not {expected_mib}"
        yield f"a context on {sms} SMs {takes} as in {row}; correct it there"
    if sms != _sms_expected(gpu):
        are = f"are {sms} SMs, not {_sms_expected(gpu)}"
        yield f"{PERCENT} % of the threads {are} as in {row}; correct it there"


# -- how long it counts


@dataclass(frozen=True, slots=True)
class CanaryScope:
    """What a canary holds for."""

    boot_id: str
    driver: str


def in_one(
    findings: Iterable[CanaryFinding], denials: Iterable[str], here: CanaryScope, now: float
) -> Canary:
    """The canary of a domain, of its GPUs' findings: every problem, and the dearest context."""
    found = tuple(findings)
    costs = [(one.context_mib, one.sms) for one in found if one.context_mib is not None]
    context_mib, sms = max(costs, default=(None, None))
    return Canary(
        boot_id=here.boot_id,
        driver=here.driver,
        at=now,
        problem="; ".join(filter(None, (*(one.problem for one in found), *denials))),
        context_mib=context_mib,
        sms=sms,
        warning="; ".join(filter(None, (one.warning for one in found))),
    )


def is_due(
    canary: Canary | None,
    here: CanaryScope,
    rule: CanaryRule,
    *,
    in_use: bool,
    tries_cap: bool = False,
) -> bool:
    """Whether it must run before the domain serves: once a boot and driver, again after a problem,
    never where holders of grants wait (in_use) but to lift an obstacle. tries_cap: limits of
    cgroups too."""
    if rule is CanaryRule.SKIP:
        return False
    if obstacle(canary, here, rule):
        return True
    is_done = canary is not None and _holds(canary, here) and not canary.problem
    if is_done and tries_cap:
        is_done = canary is not None and bool(canary.memory_cap)
    return not in_use and not is_done


def obstacle(canary: Canary | None, here: CanaryScope, rule: CanaryRule) -> str:
    """Why the domain cannot serve; empty where the canary passed, has not run, or only warns."""
    if canary is None or rule is not CanaryRule.REQUIRE or not _holds(canary, here):
        return ""
    return canary.problem and f"the canary failed under driver {canary.driver}: {canary.problem}"


def cap_obstacle(canary: Canary | None, here: CanaryScope) -> str:
    """Why the domain cannot serve where limits of cgroups are demanded; empty where they hold."""
    if canary is None or canary.memory_cap in {"", CAP_HOLDS} or not _holds(canary, here):
        return ""
    found = f"the canary found under driver {canary.driver}: {canary.memory_cap}"
    return f"memory_cap is cgroup, and {found}"


def _holds(canary: Canary, here: CanaryScope) -> bool:
    return (canary.boot_id, canary.driver) == (here.boot_id, here.driver)
