"""Where readers are served on TCP ports, and with which certificate: settings of `up`, `agent` and `scheduler`.

One rule: nothing is served on a network unless somebody asked for it, and never where nobody can be asked who may read.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpsd.model.problem import InvalidInput
from mpsd.platform.setting_rows import Row, path, port, problem_with, read_rows

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
