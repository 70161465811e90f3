"""Where an agent serves its metrics beside its Unix socket: what `mpsd up` and `mpsd agent` have in settings alone.

One rule: nothing is served on a network unless somebody asked for it.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass

from mpsd.edge.setting_rows import Row, port, read_rows

_REMEDY = "write an address of this machine and a port, such as 127.0.0.1:9447 or [::1]:9447"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """address: an IP address. port 0: the kernel chooses."""

    address: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine gets there."""
        return ipaddress.ip_address(self.address).is_loopback


def _listen(text: str) -> ListenAddress | None:
    if not text:
        return None
    host, _colon, number = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else bare)
        if (address.version == 6) != (bare != host):  # without brackets nobody can tell where the port begins
            raise ValueError
        return ListenAddress(str(address), port(number))
    except ValueError:
        raise ValueError(_REMEDY) from None


LISTEN = Row("--metrics-listen", "MPSD_METRICS_LISTEN", "", _listen)


def listen_address(flag: str | None, environment: Mapping[str, str] = os.environ) -> ListenAddress | None:
    """None where nobody asked. InvalidInput for what is no address and port."""
    found: ListenAddress | None = read_rows({"listen": LISTEN}, {"listen": flag}, environment)["listen"]
    return found
