"""How an API server is reached: its address, whom to trust, and what is said to be let in.

One rule: a service account, and a kubeconfig that has a token, are read here. For everything else (client certificates,
programs that log in, proxies) there is the package `kubernetes`, which takes 15 MiB and a third of a second to load.
"""

import os
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_ADDRESS = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
_READ_AGAIN_S = 60.0  # kubelet replaces a token well before it expires
_CONNECTIONS = 8  # that are kept: those of four calls at once, and of watches
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
_KNOWN = {
    "cluster": {"server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify"},
    "user": {"token", "tokenFile"},
}


class NotPlain(Exception):
    """It takes more than is done here."""


@dataclass(frozen=True, slots=True)
class Access:
    """host: with the scheme and no slash at its end. authorization: the headers that let us in, as they are now."""

    host: str
    pool: urllib3.PoolManager
    authorization: Callable[[], Mapping[str, str]]


class TokenFile:
    """The token in a file, as it was a minute ago at most. While it cannot be read, the last one is used."""

    def __init__(self, file: Path) -> None:
        """OSError where it cannot be read at all, NotPlain where it is empty."""
        self._file = file
        self._token = file.read_text().strip()
        if not self._token:
            raise NotPlain(f"{file} is empty")
        self._read_at = time.monotonic()

    def __call__(self) -> Mapping[str, str]:
        if time.monotonic() - self._read_at > _READ_AGAIN_S:
            with suppress(OSError):
                self._token = self._file.read_text().strip() or self._token
                self._read_at = time.monotonic()
        return _bearer(self._token)


def of_service_account(folder: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> Access:
    """That of the pod this runs in. NotPlain where it is in none, or behind a proxy."""
    _without_proxy(environment)
    address, port = (environment.get(name, "") for name in _ADDRESS)
    authority = folder / "ca.crt"
    if not address or not port or not authority.is_file():
        raise NotPlain("no service account")
    host = f"[{address}]" if ":" in address else address
    try:
        return Access(f"https://{host}:{port}", _pool(ca_certs=str(authority)), TokenFile(folder / "token"))
    except OSError as error:
        raise NotPlain(str(error)) from None


def of_kubeconfig(file: Path, environment: Mapping[str, str] = os.environ) -> Access:
    """That of the file's current context. NotPlain where there is more in it, or less."""
    _without_proxy(environment)
    try:
        read = yaml.safe_load(file.read_text())
        context = _named(read, "context", read["current-context"])
        cluster, user = (_named(read, kind, context[kind]) for kind in ("cluster", "user"))
        if not cluster.keys() <= _KNOWN["cluster"] or not user.keys() <= _KNOWN["user"]:
            raise NotPlain(f"{file}: more than a token, or a proxy")
        authorization = _authorization(user, file.parent)
        return Access(cluster["server"].rstrip("/"), _trusting(cluster, file.parent), authorization)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise NotPlain(f"{file}: {error}") from None


def _named(read: Any, kind: str, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [one[kind] for one in read[f"{kind}s"] if one["name"] == name]
    return found[0]


def _without_proxy(environment: Mapping[str, str]) -> None:
    if any(name.lower() in _PROXIES and value for name, value in environment.items()):
        raise NotPlain("behind a proxy")


def _authorization(user: Mapping[str, Any], beside: Path) -> Callable[[], Mapping[str, str]]:
    """A token file goes before a token, as in client-go."""
    if user.get("tokenFile"):
        return TokenFile(beside / user["tokenFile"])
    if not user["token"]:
        raise NotPlain("no token")
    header = _bearer(user["token"])
    return lambda: header


def _bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _trusting(cluster: Mapping[str, Any], beside: Path) -> urllib3.PoolManager:
    """Whom the cluster's entry says, else whom the machine trusts. Data go before a file, as in client-go."""
    if cluster.get("insecure-skip-tls-verify"):
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # it was chosen, once for all requests
        return _pool(cert_reqs="CERT_NONE", assert_hostname=False)
    if "certificate-authority-data" in cluster:
        return _pool(ca_cert_data=b64decode(cluster["certificate-authority-data"], validate=True).decode())
    if "certificate-authority" in cluster:
        return _pool(ca_certs=str(beside / cluster["certificate-authority"]))
    return _pool()


def _pool(cert_reqs: str = "CERT_REQUIRED", **how: Any) -> urllib3.PoolManager:
    return urllib3.PoolManager(maxsize=_CONNECTIONS, cert_reqs=cert_reqs, **how)
