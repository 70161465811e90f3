"""The canary of one domain: CUDA clients of our own, under limits that were read back just before.
It delays nobody: it runs before the first client, once a boot and driver, not where holders of
grants wait."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from mpsd.model.grants import Gpu
from mpsd.model.node_view import CAP_HOLDS, Canary, ServerLimit
from mpsd.model.policy import Policy
from mpsd.mps.control_daemon import ControlPipe, communicate
from mpsd.mps.memory_caps import CapProbe
from mpsd.mps.rules import canary, control_protocol
from mpsd.mps.rules.canary import (
    CAP,
    DENIAL,
    OWN_LIMIT,
    SERVER_LIMIT,
    Broken,
    CanaryScope,
    Outcome,
    ProbeResult,
    Trial,
)
from mpsd.mps.rules.control_protocol import ControlFailed
from mpsd.platform import clock, life, processes
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import NvmlFailed

# A process of its own, as a driver may hang or crash; without site-packages it starts in some ms.
PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("cuda_canary.py")))


async def run(
    program: Sequence[str],
    environment: Mapping[str, str],
    deadline_s: float,
    on_start: Callable[[int], None] = lambda _pid: None,
) -> Outcome:
    """The outcome of one CUDA client, which is killed at its deadline or with this task."""
    try:
        said = await communicate(program, environment, deadline_s, on_start=on_start)
        return canary.outcome_of(*said)
    except TimeoutError:
        return Broken(f"did not end within {deadline_s:g} s")
    except OSError as error:
        return Broken(f"could not be started: {error}")


@dataclass(frozen=True, slots=True)
class CanarySetup:
    """program: its client. gpus, name: of the domain. driver: asks NVML; NvmlFailed. caps: None
    where no memory limits of cgroups are tried."""

    program: Sequence[str]
    gpus: Sequence[Gpu]
    driver: Callable[[], str]
    caps: CapProbe | None = None
    name: str = ""


Made = TypeVar("Made")


class OwnContexts(Generic[Made]):
    """What makes contexts of mpsd's own in a domain. on_end: called when it has."""

    _task: asyncio.Task[Made] | None = None

    def __init__(
        self,
        setup: CanarySetup,
        environment: Mapping[str, str],
        on_end: Callable[[], None],
        log: Logger,
    ) -> None:
        self._setup = setup
        self._environment = environment
        self._on_end = on_end
        self._log = log
        self.pids = deque[int](maxlen=64)  # of its last clients

    def cancel(self) -> None:
        """Its daemon is gone, or goes."""
        task = self._task
        self._task = None
        if task:
            task.cancel()

    async def end(self) -> None:
        """The same, and its clients are gone then."""
        task = self._task
        self.cancel()
        if task:
            await asyncio.wait({task})


class DomainCanary(OwnContexts[Canary | None]):
    """Runs a domain's canary and keeps its result; before the first an earlier mpsd's, or None."""

    _again_at = 0.0
    _left_alone = False
    is_awaited = False  # whether it is due, or running, for a GPU was seen to be sick
    result: Canary | None = None
    servers: tuple[int, ...] = ()  # those that it left under denial

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def has_passed(self) -> bool:
        return self.result is not None and not self.result.problem

    def forget(self) -> None:
        """What it found counts no more, and it is due whatever the policy says."""
        self.cancel()
        self.result = None
        self.is_awaited = True

    def obstacle(self, policy: Policy) -> str:
        """Why the domain cannot serve; NvmlFailed."""
        why = canary.obstacle(self.result, self._here(), policy.canary)
        if why or policy.memory_cap != "cgroup":
            return why
        return canary.cap_obstacle(self.result, self._here())

    def why_no_caps(self, policy: Policy) -> str:
        """Why cgroups' limits, if the policy demands them, cannot be set, or empty. NvmlFailed."""
        why = ""
        if policy.memory_cap == "cgroup" and self._setup.caps:
            why = self._setup.caps.why_not(self._uuids)
        if not why:
            return ""
        return f"memory_cap is cgroup, and {why}; set memory_cap: auto, or change that"

    @property
    def _uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self._setup.gpus]

    def _tries_caps(self, policy: Policy) -> bool:
        caps = self._setup.caps
        return policy.memory_cap != "mps" and caps is not None and not caps.why_not(self._uuids)

    def is_due(self, policy: Policy, *, in_use: bool) -> bool:
        """Whether it is to be run now, before anything else is set. NvmlFailed."""
        if self._left_alone:
            return False
        if self._task is not None or self.is_awaited:
            return True
        here = self._here()
        caps = self._tries_caps(policy)
        return canary.is_due(self.result, here, policy.canary, in_use=in_use, tries_cap=caps)

    def _here(self) -> CanaryScope:
        return CanaryScope(processes.boot_id(), self._setup.driver())

    async def run(self, pipe: ControlPipe, policy: Policy) -> bool:
        """Starts it, or takes its result: True once it has ended and nothing prevents serving.
        Raises what the daemon's commands raise."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(pipe, policy))
            self._task.add_done_callback(self._ended)
        if not self._task.done():
            return False
        task = self._task
        self._task = None
        result = task.result()
        self._again_at = time.monotonic() + policy.restarts.longest_s
        if result is None:
            self._left_alone = True
            return True
        self.result = result
        self.is_awaited = False
        if result.problem:
            self._log.error("canary failed", driver=result.driver, reason=result.problem)
        elif result.warning:
            self._log.warning("canary passed", driver=result.driver, reason=result.warning)
        else:
            about = {"driver": result.driver, "context_mib": result.context_mib}
            self._log.info("canary passed", **about, sms=result.sms)
        self._on_end()  # the state follows from it
        return not self.obstacle(policy)

    async def run_again(self, pipe: ControlPipe, policy: Policy) -> None:
        """While it keeps the domain from serving: now and then, at once under another driver."""
        keeps = self.obstacle(policy) or not self.has_passed
        if self._task or (time.monotonic() >= self._again_at and keeps):
            await self.run(pipe, policy)

    def cancel(self) -> None:
        super().cancel()
        self._left_alone = False
        self.servers = ()

    def _ended(self, task: asyncio.Task[Canary | None]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved, in case nobody awaits it
        self._on_end()

    # -- what it does

    async def _run(self, pipe: ControlPipe, policy: Policy) -> Canary | None:
        """None where the daemon has clients, which may not be disturbed."""
        here = self._here()
        gpus = self._setup.gpus
        servers = await pipe.ask(control_protocol.server_list())
        if await pipe.clients(servers):
            return None
        await self._limit(pipe, (None, *servers), SERVER_LIMIT)
        deadline_s = policy.graces.start_s
        served = await self._clients(pipe, (SERVER_LIMIT, OWN_LIMIT), deadline_s)
        findings = [canary.finding(gpu, served[gpu.uuid]) for gpu in gpus]
        cap = ""
        if self._tries_caps(policy):
            cap = await self._try_caps(pipe, deadline_s)
        self.servers = await pipe.ask(control_protocol.server_list())
        await self._limit(pipe, self.servers, DENIAL)
        denials: list[str] = []
        if not any(one.problem for one in findings):
            denied = await self._clients(pipe, (DENIAL,), deadline_s)
            denials = [canary.denial_problem(gpu, denied[gpu.uuid][DENIAL]) for gpu in gpus]
        result = replace(canary.in_one(findings, denials, here, clock.wall_s()), memory_cap=cap)
        if result.problem:  # else whoever settles the daemon sets what its next servers admit
            await self._limit(pipe, (None,), DENIAL)
        return result

    async def _try_caps(self, pipe: ControlPipe, deadline_s: float) -> str:
        """CAP_HOLDS, or every reason why memory limits of cgroups do not hold a client here."""
        problems = [await self._try_cap(gpu, pipe, deadline_s) for gpu in self._setup.gpus]
        return "; ".join(filter(None, problems)) or CAP_HOLDS

    async def _try_cap(self, gpu: Gpu, pipe: ControlPipe, deadline_s: float) -> str:
        caps = self._setup.caps
        if caps is None:
            return ""
        try:
            with caps.limited(f"canary-{self._setup.name}", gpu.uuid, CAP.limit_mib) as entering:
                outcome = await self._client(gpu, CAP, pipe, deadline_s, entering)
                return canary.cap_problem(gpu, outcome)
        except (NvmlFailed, OSError) as error:
            return f"{gpu.label}: {error}"

    async def _client(
        self,
        gpu: Gpu,
        trial: Trial,
        pipe: ControlPipe,
        deadline_s: float,
        entering: Sequence[str] = (),
    ) -> Outcome:
        """entering: the prefix of its command."""
        environment = {**self._environment, **trial.environment(gpu.uuid, str(pipe.directory))}
        program = (*entering, *self._setup.program)
        return await run(program, environment, deadline_s, self.pids.append)

    async def _limit(self, pipe: ControlPipe, servers: Sequence[int | None], trial: Trial) -> None:
        """server None: the default for new servers."""
        for ordinal in range(len(self._setup.gpus)):
            for server in servers:
                await pipe.set_limit(ServerLimit(server, ordinal, trial.limit_mib))

    async def _clients(
        self, pipe: ControlPipe, trials: Sequence[Trial], deadline_s: float
    ) -> Mapping[str, Mapping[Trial, Outcome]]:
        """The outcomes of one client a GPU and trial, all at the same time."""
        asked = [(gpu, trial) for gpu in self._setup.gpus for trial in trials]
        clients = [self._client(gpu, trial, pipe, deadline_s) for gpu, trial in asked]
        found: dict[str, dict[Trial, Outcome]] = {}
        for (gpu, trial), outcome in zip(asked, await asyncio.gather(*clients), strict=True):
            found.setdefault(gpu.uuid, {})[trial] = outcome
        return found


_LOOK_S = 0.02  # while the server still lists a client that has ended
_TRIES = 3  # for a first context: one failed each time (10 of 10)


class FirstContext(OwnContexts[None]):
    """A context of mpsd's own after the last client was killed: in mid-kernel, the next one fails
    once, with 719 or 46 (docs/mps-observed.md, section 15)."""

    is_awaited = False  # whether it is due, or being made
    on_outcome: Callable[[str, str], None] = staticmethod(lambda _gpu, _failure: None)

    @property
    def is_begun(self) -> bool:
        return self._task is not None

    def begin(self, pipe: ControlPipe, servers: Sequence[int], deadline_s: float) -> None:
        """Makes one on each GPU, by then, unless the servers have clients after all."""
        self._task = life.background(self._run(pipe, servers, deadline_s))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._task = None
            self.is_awaited = False
            self._on_end()

    def cancel(self) -> None:
        super().cancel()
        self.is_awaited = False

    async def _run(self, pipe: ControlPipe, servers: Sequence[int], deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                if await self._has_clients(pipe, servers):
                    return
                for gpu in self._setup.gpus:
                    await self._make(gpu, pipe, servers, deadline_s)
        except TimeoutError:
            self._log.warning("first context not made", reason=f"not within {deadline_s:g} s")
        except (ControlFailed, OSError) as error:
            self._log.warning("first context not made", reason=str(error))

    @staticmethod
    async def _has_clients(pipe: ControlPipe, servers: Sequence[int]) -> bool:
        """Once those that have ended are listed no more."""
        while pids := await pipe.clients(servers):
            if any(map(processes.identity_of, pids)):
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def _make(
        self, gpu: Gpu, pipe: ControlPipe, servers: Sequence[int], deadline_s: float
    ) -> None:
        limits = canary.first_context_environment(gpu.uuid, str(pipe.directory))
        environment = {**self._environment, **limits}
        refused: list[str] = []
        for _try in range(_TRIES):
            program = self._setup.program
            outcome = await run(program, environment, deadline_s, self.pids.append)
            if isinstance(outcome, ProbeResult):
                self.on_outcome(gpu.uuid, "")
                self._log.info("first context made", gpu=gpu.label, refused=refused)
                return
            if await self._has_clients(pipe, servers):
                return  # they may have left it no room, which says nothing of the GPU
            self.on_outcome(gpu.uuid, str(outcome))
            refused.append(str(outcome))
        self._log.warning("first context not made", gpu=gpu.label, reason="; ".join(refused))
