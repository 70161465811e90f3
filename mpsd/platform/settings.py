"""How mpsd runs here: flags, else MPSD_* variables, else defaults.

One rule: nobody else reads the environment for settings. What pods may have is not here but in limits/policy.yaml.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.model.quantity import DAY_S, HOUR_S, MINUTE_S
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


# How settings are written: one row each, and the readers that turn text into values.
#
# One rule: a flag beats its variable, which beats the default; every problem is said at once.

_UNITS_S = {"s": 1.0, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S}


@dataclass(frozen=True, slots=True)
class Row:
    """read: turns text into the value; a ValueError says what to write instead."""

    flag: str
    variable: str
    default: str
    read: Callable[[str], Any]


def read_rows(
    rows: Mapping[str, Row], flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The values by the names of the rows. flags: None where not given. InvalidInput with every problem."""
    read: dict[str, Any] = {}
    problems = []
    for name, row in rows.items():
        text = flags.get(name) or environment.get(row.variable) or row.default
        try:
            read[name] = row.read(text)
        except ValueError as error:
            problems.append(problem_with(row, text, "cannot be used", str(error)))
    if problems:
        raise InvalidInput("settings", problems)
    return read


def problem_with(row: Row, value: str, message: str, remedy: str) -> Problem:
    return Problem("setting", f"{row.flag} ({row.variable})", shown(value) if value else "", message, remedy)


def port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise ValueError("write a port number, such as 9443")
    return int(text)


def address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("write an IP address, such as 0.0.0.0") from None


def name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text):
        raise ValueError("write a name that Kubernetes takes: small letters, digits and -")
    return text


def path(text: str) -> Path | None:
    return Path(text) if text else None


def url(text: str) -> str:
    parts = urlsplit(text)
    if text and (parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment):
        raise ValueError("write it as https://host:port")
    return text


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    if not match:
        raise ValueError("write a time, such as 10s, 12h or 30d")
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def log_format(text: str) -> str:
    if text not in {"auto", "json", "console"}:
        raise ValueError("write auto, json or console")
    return text


# Where readers are served on TCP ports, and with which certificate: settings of `up`, `agent` and `scheduler`.
#
# One rule: nothing is served on a network unless somebody asked for it, and never where nobody can be asked who may
# read.

_REMEDY = "write addresses of this machine, each with a port, such as 127.0.0.1:9447 or 127.0.0.1:9448,[::]:9447"
_BY_SSH = "listen on a loopback address, such as 127.0.0.1:{0}, and come in with `ssh -L {0}:127.0.0.1:{0} MACHINE`"


class CannotListen(Exception):
    """Nobody can be served where it was asked for; the message says why."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """address: an IP address. port 0: the kernel chooses."""

    address: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine gets there."""
        return ipaddress.ip_address(self.address).is_loopback

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listen:
    """certificate: the folder of tls.crt and tls.key for what is no loopback address; None: one is made at start."""

    addresses: tuple[ListenAddress, ...] = ()
    certificate: Path | None = None

    @property
    def asks_who(self) -> bool:
        """Whether an address is among them that others reach."""
        return not all(one.is_loopback for one in self.addresses)


def _addresses(text: str) -> tuple[ListenAddress, ...]:
    try:
        return tuple(map(_address, text.split(","))) if text else ()
    except ValueError:
        raise ValueError(_REMEDY) from None


def _address(text: str) -> ListenAddress:
    host, _colon, number = text.strip().rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else bare)
    if (address.version == 6) != (bare != host):  # without brackets nobody can tell where the port begins
        raise ValueError
    return ListenAddress(str(address), port(number))


ROWS: Mapping[str, Row] = {
    "listen": Row("--listen", "MPSD_LISTEN", "", _addresses),
    "listen_certificate": Row("--listen-certificate", "MPSD_LISTEN_CERTIFICATE", "", path),
}


def listen_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str] = os.environ, *, in_cluster: bool
) -> Listen:
    """flags: by the names of ROWS, None where not given. in_cluster: whether an API server can be asked who may read.

    InvalidInput for what is no address and port, and for one that others reach where nobody can be asked.
    """
    read = read_rows(ROWS, flags, environment)
    listen = Listen(read["listen"], read["listen_certificate"])
    open_to_others = [] if in_cluster else [one for one in listen.addresses if not one.is_loopback]
    if open_to_others:
        message = "others reach it, and without a cluster there is nobody to ask who may read"
        raise InvalidInput(
            "settings",
            [problem_with(ROWS["listen"], str(one), message, _BY_SSH.format(one.port)) for one in open_to_others],
        )
    return listen
