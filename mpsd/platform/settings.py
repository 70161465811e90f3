"""The settings of mpsd's processes.

A flag takes precedence over its variable, and that over the default.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.model.times import DAY_S, HOUR_S, MINUTE_S
from mpsd.platform.logs import LEVELS
from mpsd.platform.run_directory import LONGEST_SOCKET_PATH, DomainFolder

SYSTEM_DIRECTORY = Path("/run/mpsd")
ANYWHERE = "0.0.0.0"  # noqa: S104
ENGINES = (Path("/run/docker.sock"), Path("/run/podman/podman.sock"))
LOG_LOSS = "log-loss.json"  # in the run directory
GRANT = "MPSD_GRANT"  # set by mpsd in every program under `mpsd run`: the id of its grant
_UNIX = "unix://"  # how docker writes a socket


@dataclass(frozen=True, slots=True)
class Setting:
    flag: str
    metavar: str
    help: str
    #: Turns text into the value; a ValueError says what to write instead.
    read: Callable[[str], Any] = str
    default: str = ""
    otherwise: str = ""  # what holds where nothing is given and `default` does not say it
    other_variable: str = ""  # where it is not named after the flag

    @property
    def variable(self) -> str:
        """Such as MPSD_RUN_DIR, of --run-dir."""
        own = self.flag.removeprefix("--").replace("-", "_").upper()
        return self.other_variable or f"MPSD_{own}"

    def problem(self, value: str, message: str, remedy: str) -> Problem:
        where = f"{self.flag} ({self.variable})"
        return Problem("setting", where, shown(value) if value else "", message, remedy)


def read_settings(
    settings: Mapping[str, Setting], flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The values by name. flags: None where not given. InvalidInput with every problem."""
    read = {}
    problems = []
    for name, setting in settings.items():
        text = flags.get(name) or environment.get(setting.variable) or setting.default
        try:
            read[name] = setting.read(text)
        except ValueError as error:
            problems.append(setting.problem(text, "cannot be used", str(error)))
    refuse(problems)
    return read


def refuse(problems: Iterable[Problem]) -> None:
    if found := tuple(problems):
        raise InvalidInput("settings", found)


# -- what turns text into values


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
        raise ValueError("write a name that Kubernetes accepts: lowercase letters, digits and -")
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
    return float(match[1]) * {"s": 1.0, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S}[match[2] or "s"]


def log_format(text: str) -> str:
    if text not in {"", "auto", "json", "console"}:
        raise ValueError("write auto, json or console")
    return text or "auto"


def log_level(text: str) -> str:
    if text not in LEVELS:
        raise ValueError(f"write {', '.join(LEVELS[:-1])} or {LEVELS[-1]}")
    return text


# -- a node's processes: `up`, `control`, `agent`, and those that ask them


def _run_directory(text: str) -> Path:
    directory = Path(text).absolute()
    longest = DomainFolder(directory / "gpu0-1-2-3-4-5-6-7").longest_socket
    if len(os.fsencode(longest)) > LONGEST_SOCKET_PATH:
        raise ValueError(
            "choose a shorter path, such as /run/mpsd: sockets in it would have over"
            f" {LONGEST_SOCKET_PATH} bytes, which is all that Unix allows"
        )
    return directory


RUN_DIRECTORY = Setting(
    "--run-dir", "DIR", "Sockets and records", _run_directory, otherwise="/run/mpsd for root"
)
LIMITS_DIRECTORY = Setting(
    "--limits", "DIR", "policy.yaml and gpus.yaml", path, otherwise="else those shipped"
)
_GPUS = "Simulated GPUs, such as H200×2 or A30x2,T4; MIG instances as A100:3g.40gb×2"
SIMULATE = Setting("--simulate", "MODEL×N", _GPUS)
LOG_FORMAT = Setting("--log-format", "FORMAT", "json, console or auto", log_format)
_LEAST = "The least that is logged: info, warning or error"
LOG_LEVEL = Setting("--log-level", "LEVEL", _LEAST, log_level, "info")
LOG_SETTINGS = {"log_format": LOG_FORMAT, "log_level": LOG_LEVEL}
_OWN_CGROUPS = (
    "The host's /sys/fs/cgroup, where each daemon gets a cgroup that outlives this container"
)
DAEMON_CGROUP = Setting(
    "--daemon-cgroup", "DIR", _OWN_CGROUPS, path, otherwise="else it stays in this one's"
)
KUBECONFIG = Setting("--kubeconfig", "FILE", "The API server; else that of this pod", path)
NODE_SETTINGS = {
    "simulate": SIMULATE,
    "limits_directory": LIMITS_DIRECTORY,
    "run_directory": RUN_DIRECTORY,
    **LOG_SETTINGS,
    "daemon_cgroup": DAEMON_CGROUP,
}


@dataclass(frozen=True, slots=True)
class Settings:
    run_directory: Path  # sockets, records, pipes
    limits_directory: Path | None  # None: those shipped
    simulate: str  # empty for real GPUs
    log_format: str
    log_level: str
    by_default: bool = False  # nobody chose the run directory
    #: Where the host's cgroups are mounted, among which each daemon gets its own; None: in mpsd's.
    daemon_cgroup: Path | None = None
    engines: tuple[Path, ...] = ()  # sockets of docker and podman, which name their containers

    @property
    def socket(self) -> Path:
        return self.run_directory / "mpsd.sock"

    @property
    def socket_to_ask(self) -> Path:
        """The socket of the caller's own mpsd, else of root's, which serves every user."""
        system = SYSTEM_DIRECTORY / self.socket.name
        if self.by_default and not self.socket.exists() and system.exists():
            return system
        return self.socket

    @property
    def log_loss(self) -> Path:
        """Written by `mpsd control`, whose metrics the agent shows."""
        return self.run_directory / LOG_LOSS

    @property
    def grants(self) -> Path:
        return self.run_directory / "grants"

    @property
    def simulation(self) -> Path:
        return self.run_directory / "simulation"

    def domain(self, name: str) -> DomainFolder:
        return DomainFolder(self.run_directory / name)


def settings(
    *,
    run_directory: str | None = None,
    limits_directory: str | None = None,
    simulate: str | None = None,
    log_format: str | None = None,
    log_level: str | None = None,
    daemon_cgroup: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """flags: None where not given. InvalidInput with every problem."""
    asked = run_directory or environment.get(RUN_DIRECTORY.variable)
    own = environment.get("XDG_RUNTIME_DIR")
    by_default = f"{own}/mpsd" if own else f"/tmp/mpsd-{os.geteuid()}"  # noqa: S108
    flags = {
        "run_directory": asked or (str(SYSTEM_DIRECTORY) if os.geteuid() == 0 else by_default),
        "limits_directory": limits_directory,
        "simulate": simulate,
        "log_format": log_format,
        "log_level": log_level,
        "daemon_cgroup": daemon_cgroup,
    }
    if simulate is not None and not simulate.strip():
        remedy = "write a card and how many, such as H200x2, or leave it out for real GPUs"
        raise InvalidInput.of(
            "settings", "simulates-nothing", SIMULATE.flag, '""', "names no GPUs", remedy
        )
    of_docker = environment.get("DOCKER_HOST", "")
    sockets = (Path(of_docker.removeprefix(_UNIX)),) if of_docker.startswith(_UNIX) else ()
    read = read_settings(NODE_SETTINGS, flags, environment)
    return Settings(by_default=not asked, engines=sockets if of_docker else ENGINES, **read)


# -- where readers are served: `up`, `agent` and `scheduler`
#
# Nothing is served on a network where nobody can be asked who may read.


class CannotListen(Exception):
    """The message says why."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    address: str  # an IP address
    port: int  # 0: the kernel chooses

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listen:
    addresses: tuple[ListenAddress, ...] = ()
    #: The folder of tls.crt and tls.key for what is no loopback address; None: one is made.
    certificate: Path | None = None

    @property
    def asks_who(self) -> bool:
        return not all(one.is_loopback for one in self.addresses)


def _addresses(text: str) -> tuple[ListenAddress, ...]:
    try:
        return tuple(map(_address, text.split(","))) if text else ()
    except ValueError:
        raise ValueError(
            "write addresses of this machine, each with a port, such as 127.0.0.1:9447 or"
            " 127.0.0.1:9448,[::]:9447"
        ) from None


def _address(text: str) -> ListenAddress:
    host, _colon, number = text.strip().rpartition(":")
    if host == "localhost":
        host = "127.0.0.1"
    bracketed = host.startswith("[") and host.endswith("]")
    address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    # else nobody can tell where the port begins
    if (address.version == 6) != bracketed:
        raise ValueError
    return ListenAddress(str(address), port(number))


_SERVED = "Serve the page and metrics there; others bring a token"
_CERTIFICATE = "tls.crt and tls.key to be shown there; else one is made"
LISTEN_SETTINGS = {
    "listen": Setting("--listen", "ADDRESS:PORT,…", _SERVED, _addresses),
    "listen_certificate": Setting("--listen-certificate", "DIR", _CERTIFICATE, path),
}


def listen_settings(
    flags: Mapping[str, str | None],
    environment: Mapping[str, str] = os.environ,
    *,
    in_cluster: bool,
) -> Listen:
    """flags: None where not given. in_cluster: whether an API server can be asked who may read.
    InvalidInput."""
    read = read_settings(LISTEN_SETTINGS, flags, environment)
    listen = Listen(read["listen"], read["listen_certificate"])
    why = "other machines reach it, and without a cluster no API server reviews tokens of readers"
    problems = []
    for one in listen.addresses:
        if not in_cluster and not one.is_loopback:
            home = f"127.0.0.1:{one.port}"
            tunnel = f"ssh -L {one.port}:{home} MACHINE"
            remedy = f"listen on a loopback address, such as {home}, and connect with `{tunnel}`"
            problems.append(LISTEN_SETTINGS["listen"].problem(str(one), why, remedy))
    refuse(problems)
    return listen
