"""How mpsd runs here: flags, else MPSD_* variables, else defaults.

One rule: nobody else reads the environment for settings. What pods may have is not here but in limits/policy.yaml.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.domain_folder import LONGEST_SOCKET_PATH, DomainFolder

RUN_DIRECTORY = "MPSD_RUN_DIR"
LIMITS_DIRECTORY = "MPSD_LIMITS"
SIMULATE = "MPSD_SIMULATE"
LOG_FORMAT = "MPSD_LOG_FORMAT"
DAEMON_CGROUP = "MPSD_DAEMON_CGROUP"
SYSTEM_DIRECTORY = Path("/run/mpsd")
DOCKER_HOST = "DOCKER_HOST"  # docker's own
ENGINES = (Path("/run/docker.sock"), Path("/run/podman/podman.sock"))
_UNIX = "unix://"
GRANT = "MPSD_GRANT"  # set by mpsd in every program under `mpsd run`: the id of its grant


@dataclass(frozen=True, slots=True)
class Settings:
    """run_directory: sockets, records, pipes; by_default: nobody chose it. limits_directory None: those shipped.

    simulate: "" for real GPUs. daemon_cgroup: where the host's cgroups are mounted, among which each daemon gets one
    of its own, so that it outlives the container of `mpsd control`; None where it stays in mpsd's. engines: the sockets
    on which docker and podman tell what their containers are called.
    """

    run_directory: Path
    limits_directory: Path | None
    simulate: str
    log_format: str
    by_default: bool = False
    daemon_cgroup: Path | None = None
    engines: tuple[Path, ...] = ()

    @property
    def socket(self) -> Path:
        return self.run_directory / "mpsd.sock"

    @property
    def socket_to_ask(self) -> Path:
        """The socket of an mpsd of one's own, else the one of root's, which serves every user of the machine."""
        system = SYSTEM_DIRECTORY / self.socket.name
        return system if self.by_default and not self.socket.exists() and system.exists() else self.socket

    @property
    def grants(self) -> Path:
        return self.run_directory / "grants"

    @property
    def simulation(self) -> Path:
        """Where the simulated GPUs of this run directory are."""
        return self.run_directory / "simulation"

    def domain(self, name: str) -> DomainFolder:
        return DomainFolder(self.run_directory / name)


def settings(
    *,
    run_directory: str | None = None,
    limits_directory: str | None = None,
    simulate: str | None = None,
    log_format: str | None = None,
    daemon_cgroup: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings from flags (None where not given) and the environment. InvalidInput with every problem."""
    asked = run_directory or environment.get(RUN_DIRECTORY)
    directory = Path(asked or _default_run_directory(environment)).absolute()
    limits = limits_directory or environment.get(LIMITS_DIRECTORY)
    cgroup = daemon_cgroup or environment.get(DAEMON_CGROUP)
    chosen = Settings(
        run_directory=directory,
        limits_directory=Path(limits) if limits else None,
        simulate=simulate or environment.get(SIMULATE, ""),
        log_format=log_format or environment.get(LOG_FORMAT, "auto"),
        by_default=not asked,
        daemon_cgroup=Path(cgroup) if cgroup else None,
        engines=_engines(environment),
    )
    problems = _problems(chosen)
    if simulate is not None and not simulate.strip():
        remedy = "write a card and how many, such as H200x2, or leave it out for real GPUs"
        problems.append(Problem("simulates-nothing", "--simulate", '""', "names no GPUs", remedy))
    if problems:
        raise InvalidInput("settings", problems)
    return chosen


def _engines(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The engine that `docker` itself would ask, else those of the machine."""
    asked = environment.get(DOCKER_HOST, "")
    if asked:
        return (Path(asked.removeprefix(_UNIX)),) if asked.startswith(_UNIX) else ()
    return ENGINES


def _default_run_directory(environment: Mapping[str, str]) -> str:
    if os.geteuid() == 0:
        return str(SYSTEM_DIRECTORY)
    own = environment.get("XDG_RUNTIME_DIR")
    return f"{own}/mpsd" if own else f"/tmp/mpsd-{os.geteuid()}"  # noqa: S108 - whose it is, is checked


def _problems(chosen: Settings) -> list[Problem]:
    problems = []
    longest = chosen.domain("gpu0-1-2-3-4-5-6-7").longest_socket()
    if len(os.fsencode(longest)) > LONGEST_SOCKET_PATH:
        problems.append(
            Problem(
                "run-dir-too-long",
                f"--run-dir ({RUN_DIRECTORY})",
                str(chosen.run_directory),
                f"makes socket paths longer than the {LONGEST_SOCKET_PATH} bytes that Unix allows",
                "choose a shorter path, such as /run/mpsd",
            )
        )
    if chosen.log_format not in {"auto", "json", "console"}:
        problems.append(
            Problem(
                "log-format",
                f"--log-format ({LOG_FORMAT})",
                chosen.log_format,
                "is unknown",
                "write auto, json or console",
            )
        )
    return problems
